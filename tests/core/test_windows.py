"""Address windows: room for a large object is made where it costs least, and kept together for it."""

import pytest

from mooncake_client.codes import Code
from mooncake_node.core import windows
from mooncake_node.core.jobs import Offload
from mooncake_node.core.replica import Rank, Replica
from mooncake_node.core.waiting import Want

PAGE = 4096
LARGE = 16 * PAGE
RETRY = 10


@pytest.fixture
def core(make_core):
    return make_core(pages=64, tier_nbytes_max=1000 * PAGE, tier_retry_ns=RETRY)


def gone(core, count=64):
    """The numbers of the objects k0, k1, ... that are not readable any more."""
    return [number for number in range(count) if core.readable(f"k{number}") is None]


def numbers(first, last):
    return list(range(first, last + 1))


def held_pages(core):
    return core.master.reclaim.windows.held_nbytes // PAGE


# -- which window ---------------------------------------------------------------------------------------------------


def test_a_large_put_takes_neighbours_and_no_more_of_them_than_it_needs(core):
    """k0, the coldest, lies at the end of the pool, k1 before it, and so on."""
    a = core.open()
    core.fill(a, 64)
    core.store(a, "large", LARGE)
    assert gone(core) == numbers(0, 15)
    assert [core.stat(f"reclaim.{name}") for name in ("passes", "productive_passes", "isolated")] == [1, 1, 16]


def test_a_small_put_takes_the_coldest_wherever_it_lies(core):
    a = core.open()
    core.fill(a, 64)
    core.release(a, core.get(a, "k0"))
    core.store(a, "small", PAGE)
    assert gone(core) == [1]


def test_what_was_used_lately_costs_more(core):
    a = core.open()
    core.fill(a, 64)
    for number in range(4, 16):
        core.release(a, core.get(a, f"k{number}"))
    core.store(a, "large", LARGE)
    assert gone(core) == numbers(16, 31)


def test_free_room_costs_nothing(core):
    a = core.open()
    core.fill(a, 64)
    for number in numbers(20, 29):
        core.remove(f"k{number}")
    core.store(a, "large", LARGE)
    assert core.stat("reclaim.dropped") == 6
    assert len(gone(core)) == 16


def test_a_window_lies_beside_what_is_read(core):
    a = core.open()
    core.fill(a, 64)
    core.get(a, "k3")
    core.get(a, "k30")
    core.store(a, "large", LARGE)
    assert gone(core) == numbers(4, 19)


def test_a_window_grows_to_both_sides(core):
    """k8, the coldest of those that may go, has k0 to k7 above it; k24 is read."""
    a = core.open()
    core.fill(a, 64)
    for number in range(8):
        core.release(a, core.get(a, f"k{number}"))
    core.get(a, "k20")
    core.store(a, "large", LARGE)
    assert gone(core) == numbers(4, 19)


def test_where_no_window_is_to_be_had_the_coldest_go(core):
    a = core.open()
    core.fill(a, 64)
    for number in range(15, 64, 16):
        core.get(a, f"k{number}")
    put = core.put(a, "large", LARGE)
    assert put.want is Want.ROOM
    assert core.stat("reclaim.passes") == core.stat("reclaim.productive_passes")


def test_pinned_ones_are_spared_while_others_will_do(core):
    a = core.open()
    core.fill(a, 32, softpin=True)
    core.fill(a, 32, prefix="plain")
    put = core.put(a, "large", LARGE)
    assert isinstance(put, Replica)
    assert (gone(core, 32), core.take_jobs(), core.stat("reclaim.dropped")) == ([], [], 16)


def test_one_that_has_to_be_written_costs_more_than_one_that_was_used_lately(core):
    a = core.open()
    core.fill(a, 8, prefix="pinned", softpin=True)
    core.fill(a, 56)
    for number in range(8, 56):
        core.release(a, core.get(a, f"k{number}"))
    window = core.master.reclaim.windows.choose(LARGE, tuple(Rank))
    assert {victim.key for victim in window.victims} == {f"k{number}" for number in range(16)}
    core.clear()  # they are off the lists, and nobody lets them go


def test_small_objects_go_by_whole_slabs(core):
    a = core.open()
    core.fill(a, 4 * 32, 2048)
    core.store(a, "large", LARGE)
    assert gone(core, 4 * 32) == numbers(0, 31)


def test_a_slab_in_which_one_is_read_is_left_alone(core):
    a = core.open()
    core.fill(a, 2 * 32, 2048)
    core.fill(a, 32, prefix="page")
    core.get(a, "k12")
    core.store(a, "large", LARGE)
    # The coldest all lie beside the one that is read; when they are gone, those of the other slab are.
    assert gone(core, 2 * 32) == [number for number in range(64) if number != 12]
    assert core.stat("reclaim.passes") == core.stat("reclaim.productive_passes") == 2


@pytest.mark.parametrize("looks", [4, 5])
def test_a_search_that_finds_nothing_within_its_bound_leaves_it_to_the_lists(core, monkeypatch, looks):
    monkeypatch.setattr(windows, "_LOOKS_MAX", looks)
    a = core.open()
    core.fill(a, 64)
    core.store(a, "large", LARGE)
    assert gone(core) == numbers(0, 15)
    assert core.stat("reclaim.examined") == 16 + 2


def test_what_a_clear_has_cut_off_is_in_no_window(core):
    """Found by random calls: it looked as if it were listed, and a new object of its key went in its place."""
    a = core.open()
    core.fill(a, 32)
    core.clear()
    core.fill(a, 32)
    core.store(a, "large", LARGE)
    assert gone(core, 32) == numbers(0, 15)
    core.reap()
    assert gone(core, 32) == numbers(0, 15)


# -- kept together --------------------------------------------------------------------------------------------------


def pinned(core, session, *, timeout=1000):
    """A large put over a pool of pinned objects; it, and what is being written for it."""
    core.fill(session, 64, softpin=True)
    put = core.put(session, "large", LARGE, timeout=timeout)
    core.tick()
    return put, [job.replica for job in core.take_jobs() if isinstance(job, Offload)]


def test_a_window_of_pinned_ones_is_written_and_its_room_goes_to_the_put_as_a_whole(core):
    a = core.open()
    put, victims = pinned(core, a)
    assert [victim.key for victim in victims] == [f"k{number}" for number in range(16)]
    for count, victim in enumerate(victims[:-1], 1):
        core.written(victim)
        assert (held_pages(core), core.answers()) == (count, [])
    core.written(victims[-1])
    assert core.replica_for(put).nbytes == LARGE
    assert (held_pages(core), core.take_jobs()) == (0, [])


def test_nothing_more_is_written_while_a_window_is_on_its_way(core):
    """Found by reading: what was free in it already was asked for once more."""
    a = core.open()
    core.fill(a, 64, softpin=True)
    for number in range(20, 30):
        core.remove(f"k{number}")
    core.put(a, "large", LARGE)
    core.tick()
    assert (held_pages(core), len(core.take_jobs())) == (10, 6)
    core.tick()
    assert core.take_jobs() == []


def test_a_smaller_put_does_not_get_what_is_kept(core):
    a = core.open()
    put, victims = pinned(core, a)
    small = core.put(a, "small")
    for victim in victims[:-1]:
        core.written(victim)
    assert core.put(a, "other", timeout=None) is Want.ROOM
    assert (small.open, core.answers()) == (True, [])
    core.written(victims[-1])
    core.replica_for(put)
    core.tick()
    core.written(core.job().replica)
    core.replica_for(small)


def test_a_smaller_put_takes_what_is_free_elsewhere(core):
    a = core.open()
    _put, _victims = pinned(core, a)
    core.remove("k40")
    assert core.put(a, "small").nbytes == PAGE


@pytest.mark.parametrize("how", ["failure", "deadline", "cancel", "death", "read", "removed"])
def test_a_window_is_given_up(core, how):
    """What is free in it goes to those who wait, and the put waits on if it still can."""
    a, b = core.open("a"), core.open("b")
    put, victims = pinned(core, b, timeout=50)
    small = core.put(a, "small", timeout=1000)
    for victim in victims[:5]:
        core.written(victim)
    assert held_pages(core) == 5
    if how == "failure":
        core.written(victims[5], None)
    elif how == "deadline":
        core.tick(later=50)
    elif how == "cancel":
        core.cancel(put)
    elif how == "death":
        core.end_session(b)
    elif how == "removed":
        core.get(a, "k5")
        core.remove("k5")
    else:
        core.get(a, "k5")
        core.written(victims[5])
    answers = core.answers()
    assert answers[-1][0] is small
    assert isinstance(answers[-1][1], Replica)
    assert (held_pages(core), put.open) == (0, how in ("failure", "read", "removed"))
    if how == "deadline":
        assert (answers[0][0], answers[0][1].code) == (put, Code.NO_SPACE)


def test_after_a_window_was_lost_another_is_found(core):
    a = core.open()
    put, victims = pinned(core, a)
    for victim in victims[:5]:
        core.written(victim)
    core.get(a, "k5")
    core.written(victims[5])
    assert held_pages(core) == 0
    for victim in victims[6:]:
        core.written(victim)
    core.tick()
    more = [job.replica for job in core.take_jobs()]
    for victim in more:
        core.written(victim)
    assert core.replica_for(put).nbytes == LARGE
    assert core.state("k5") == "COMPLETE"


def test_a_window_is_given_up_when_its_put_waits_for_another_writer(core):
    """Found by reading: its room was kept although nobody waited for room."""
    a, b = core.open("a"), core.open("b")
    put, victims = pinned(core, a)
    core.written(victims[0])
    writer = core.put(b, "large", 0)
    core.written(victims[1])
    assert put.want is Want.TURN
    core.tick()
    assert held_pages(core) == 0
    core.revoke(b, writer)
    assert put.want is Want.ROOM


def test_a_window_is_given_up_when_another_put_took_a_slot_in_it(make_core):
    """Found by reading: it was waited for although nothing in it was on its way any more."""
    core = make_core(pages=32, tier_nbytes_max=1000 * PAGE)
    a = core.open()
    core.fill(a, 64, 2048, softpin=True)
    put = core.put(a, "large", LARGE, timeout=1000)
    core.tick()
    first, *victims = [job.replica for job in core.take_jobs()]
    assert len(victims) == 31
    core.written(first)
    core.store(a, "small", 2048)
    core.get(a, "small")
    for victim in victims:
        core.written(victim)
    assert (put.open, core.master.reclaim.windows.is_kept_for(put)) == (True, False)
    core.tick()
    for job in core.take_jobs():
        core.written(job.replica)
    assert core.replica_for(put).nbytes == LARGE
    assert core.state("small") == "COMPLETE"


def test_room_that_is_free_in_one_piece_already_is_kept_as_it_is(make_core):
    """A stash of a lease that runs out in the same tick."""
    core = make_core(pages=32, lease_ttl_ns=20)
    a = core.open()
    core.store(a, "stash", LARGE)
    core.lease("stash")
    core.remove("stash")
    core.fill(a, 16)
    core.get(a, "k0")
    handles = [core.get(a, f"k{number}") for number in range(1, 16)]
    put = core.put(a, "large", LARGE)
    core.release(a, *handles[:8])
    core.tick(later=20)
    assert core.replica_for(put).nbytes == LARGE
    assert core.stat("reclaim.passes") == core.stat("reclaim.productive_passes")


def test_a_load_is_kept_a_window_for_like_a_put(core):
    a = core.open()
    core.offload(a, "large", LARGE)
    core.fill(a, 64, softpin=True)
    reader = core.get(a, "large", timeout=1000)
    core.tick()
    victims = [job.replica for job in core.take_jobs()]
    assert len(victims) == 16
    for victim in victims:
        core.written(victim)
    core.loaded(core.job().replica)
    assert core.handle_for(reader).replica.nbytes == LARGE


def test_a_load_with_a_window_that_nobody_waits_for_any_more_gives_it_back(core):
    a = core.open()
    core.offload(a, "large", LARGE)
    core.fill(a, 64, softpin=True)
    reader = core.get(a, "large", timeout=1000)
    core.tick()
    core.written(core.take_jobs()[0].replica)
    assert held_pages(core) == 1
    core.cancel(reader)
    assert (held_pages(core), core.stat("load.under_way")) == (0, 0)
