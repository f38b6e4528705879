"""Reclaim: when it runs, how much it takes, and that it never looks at what cannot go."""

import pytest

from mooncake_client.codes import Code
from mooncake_node.core.lists import EXAMINED_MAX
from mooncake_node.core.reclaim import DIRECT_PASSES_MAX
from mooncake_node.core.replica import PLAIN, Shelf
from mooncake_node.core.waiting import Put, Want

PAGE = 4096
MS = 1_000_000


def gone(core, count):
    """The numbers of the objects k0, k1, ... that are not readable any more."""
    return [number for number in range(count) if core.readable(f"k{number}") is None]


def reclaim(core, *names):
    return [core.stat(f"reclaim.{name}") for name in names]


def is_due(core):
    return core.master.next_deadline_ns(core.now) == 0


# -- direct: a put that finds no room -----------------------------------------------------------------------------


def test_a_put_that_finds_no_room_drops_the_coldest_and_gets_theirs_at_once(core):
    a = core.open()
    core.fill(a, 4)
    core.release(a, core.get(a, "k0"))
    core.store(a, "new")
    assert gone(core, 4) == [1]
    assert reclaim(core, "passes", "productive_passes", "examined", "isolated", "dropped") == [1, 1, 1, 1, 1]


def test_a_put_that_finds_room_drops_nothing(core):
    a = core.open()
    core.fill(a, 4)
    core.remove("k3")
    core.store(a, "new")
    assert (gone(core, 4), reclaim(core, "passes")) == ([3], [0])


def test_a_put_without_a_deadline_makes_room_like_any_other(core):
    a = core.open()
    core.fill(a, 4)
    assert core.put(a, "new", timeout=None).key == "new"
    assert gone(core, 4) == [0]


def test_a_load_makes_room_like_a_put(make_core):
    core = make_core(tier_nbytes_max=10 * PAGE)
    a = core.open()
    core.offload(a, "k", 2 * PAGE)
    core.fill(a, 4)
    core.get(a, "k")
    assert gone(core, 4) == [0, 1]
    core.loaded(core.job().replica)


def test_one_put_costs_a_bounded_number_of_passes_and_waits_for_the_rest(make_core):
    """Objects of a slot each, beside one that stays: dropping some frees no whole page."""
    core = make_core(pages=1)
    a = core.open()
    core.fill(a, 63, 64)
    stays = core.store(a, "stays", 64)
    handle = core.get(a, "stays")
    core.release(a, core.get(a, "k0"))
    assert core.put(a, "new").want is Want.ROOM
    assert len(gone(core, 63)) == 63
    assert stays.refs == 1
    core.release(a, handle)
    assert [replica.key for _, replica in core.answers()] == ["new"]


def full_of_slots(core, session):
    """Fill 32 pages with the smallest objects; one in each slab is held, so that dropping the others frees no page."""
    for number in range(2048):
        put = Put(key=f"k{number}", nbytes=64, contract=PLAIN)
        replica = core.master.put_start(session, put, core.now, None)
        core.master.put_end(session, replica.replica_id, core.now)
    return [core.get(session, f"k{number}") for number in range(0, 2048, 1024)]


def test_a_put_takes_no_more_than_its_passes(make_core):
    core = make_core(pages=32)
    a = core.open()
    held = full_of_slots(core, a)
    put = core.put(a, "new")
    assert put.want is Want.ROOM
    # Once when it came, and once more since something had been freed.
    assert reclaim(core, "passes") == [2 * DIRECT_PASSES_MAX]
    assert core.stat("reclaim.examined") <= 2 * DIRECT_PASSES_MAX * EXAMINED_MAX
    assert is_due(core)
    core.release(a, *held)
    while put.open:
        core.tick()
    [(_, replica)] = core.answers()
    assert replica.key == "new"


@pytest.mark.parametrize("how", ["refused", "not placed"])
def test_what_a_put_in_vain_has_dropped_goes_to_those_who_wait(make_core, how):
    """Found by random calls: they waited beside free room."""
    core = make_core(pages=32)
    a, b = core.open("a"), core.open("b")
    _first, other = full_of_slots(core, a)
    core.release(a, other)
    waiting = core.put(b, "waiting")
    assert waiting.want is Want.ROOM
    if how == "refused":
        with core.refuses(Code.NO_SPACE):
            core.put(b, "refused", 17 * PAGE, timeout=0)
    else:
        assert core.place(b, "not placed", 17 * PAGE) is None
    assert core.replica_for(waiting).key == "waiting"


# -- background: watermarks ----------------------------------------------------------------------------------------


@pytest.fixture
def marked(make_core):
    """Sixteen pages; reclaim begins when fewer than 4 are free, and ends at 6."""
    return make_core(pages=16, free_low_nbytes=4 * PAGE, free_high_nbytes=6 * PAGE)


def test_reclaim_begins_below_low_and_ends_at_high(marked):
    a = marked.open()
    marked.fill(a, 12)
    assert not is_due(marked)
    marked.store(a, "k12")
    assert is_due(marked)
    marked.tick()
    assert gone(marked, 13) == [0, 1, 2]
    assert not is_due(marked)


def test_what_was_begun_below_low_goes_on_up_to_high(marked):
    a = marked.open()
    replicas = marked.fill(a, 13)
    handles = [marked.get(a, replica.key) for replica in replicas]
    assert not is_due(marked)
    for handle in handles[:8]:
        marked.release(a, handle)
    assert is_due(marked)
    marked.tick()
    assert gone(marked, 13) == [0, 1]
    marked.release(a, handles[8])
    assert is_due(marked)
    marked.tick()
    assert gone(marked, 13) == [0, 1, 2]
    assert not is_due(marked)


def test_the_last_that_could_go_are_left_until_somebody_needs_their_room(marked):
    """Else what was put just now would be gone before anybody has read it."""
    a = marked.open()
    for replica in marked.fill(a, 12, prefix="read"):
        marked.get(a, replica.key)
    marked.fill(a, 4)
    assert not is_due(marked)
    marked.tick()
    assert gone(marked, 4) == []
    marked.store(a, "new", 2 * PAGE)
    assert gone(marked, 4) == [0, 1]


def test_between_low_and_high_nothing_is_begun(marked):
    a = marked.open()
    marked.fill(a, 11)
    marked.tick()
    assert (gone(marked, 11), reclaim(marked, "passes")) == ([], [0])


def test_what_is_being_written_counts_as_free_to_come(make_core):
    core = make_core(pages=16, free_low_nbytes=4 * PAGE, free_high_nbytes=6 * PAGE, tier_nbytes_max=100 * PAGE)
    a = core.open()
    core.fill(a, 13, softpin=True)
    core.tick()
    assert len(core.take_jobs()) == 3
    assert not is_due(core)
    core.tick()
    assert core.take_jobs() == []


def test_below_min_whoever_takes_room_gives_back_as_much(make_core):
    core = make_core(pages=16, free_min_nbytes=4 * PAGE)
    a = core.open()
    core.fill(a, 12)
    assert gone(core, 12) == []
    core.store(a, "k12")
    assert (gone(core, 13), core.stat("pool.bytes_free")) == ([0], 4 * PAGE)
    core.store(a, "k13", 2 * PAGE)
    assert (gone(core, 14), core.stat("pool.bytes_free")) == ([0, 1, 2], 4 * PAGE)
    for number in range(3, 13):
        core.get(a, f"k{number}")
    core.get(a, "k13")
    core.store(a, "k14")
    assert core.stat("pool.bytes_free") == 3 * PAGE


# -- what cannot go is not looked at --------------------------------------------------------------------------------


@pytest.mark.parametrize("kept_by", ["references", "leases", "hard pins", "soft pins without a tier"])
def test_nothing_is_due_and_nothing_is_looked_at_while_nothing_can_go(make_core, kept_by):
    core = make_core(
        pages=16, free_min_nbytes=PAGE, free_low_nbytes=2 * PAGE, free_high_nbytes=3 * PAGE,
        hard_pin_nbytes_max=16 * PAGE, lease_ttl_ns=1000,
    )  # fmt: skip
    a = core.open()
    pins = {"hard pins": {"hardpin": True}, "soft pins without a tier": {"softpin": True}}
    for number in range(16):
        core.store(a, f"k{number}", **pins.get(kept_by, {}))
        if kept_by == "references":
            core.get(a, f"k{number}")
        elif kept_by == "leases":
            core.lease(f"k{number}")
    for number in range(20):
        put = core.put(a, f"new{number}", PAGE * (1 + number % 4), timeout=500)
        assert put.want is Want.ROOM
        assert core.master.next_deadline_ns(core.now) == core.now + 500
        core.tick()
    assert reclaim(core, "passes", "examined") == [0, 0]


def test_a_parked_one_comes_back_by_event_and_goes_to_who_waits(core):
    a = core.open()
    replicas = core.fill(a, 4)
    handles = [core.get(a, replica.key) for replica in replicas]
    put = core.put(a, "new")
    assert [replica.shelf for replica in replicas] == [Shelf.PARKED] * 4
    core.release(a, handles[2])
    assert core.replica_for(put).key == "new"
    assert gone(core, 4) == [2]
    assert reclaim(core, "passes", "productive_passes") == [1, 1]


def test_a_thousand_parked_ones_cost_a_pass_nothing(make_core):
    core = make_core(pages=64)
    a = core.open()
    for replica in core.fill(a, 60):
        core.get(a, replica.key)
    core.fill(a, 4, prefix="free")
    core.store(a, "new")
    assert reclaim(core, "passes", "examined", "isolated") == [1, 1, 1]


def test_park_events_are_counted_by_cause(core):
    a = core.open()
    core.fill(a, 3)
    for _ in range(2):
        core.get(a, "k0")
    assert reclaim(core, "parked_ref_only", "parked_lease_only", "parked_lease_and_ref") == [1, 0, 0]
    for _ in range(2):
        core.lease("k1")
    assert reclaim(core, "parked_ref_only", "parked_lease_only", "parked_lease_and_ref") == [1, 1, 0]
    core.lease("k0")
    core.lease("k0")
    core.get(a, "k1")
    assert reclaim(core, "parked_ref_only", "parked_lease_only", "parked_lease_and_ref") == [1, 1, 2]
    core.store(a, "empty", 0)
    core.lease("empty")
    assert reclaim(core, "parked_ref_only", "parked_lease_only", "parked_lease_and_ref") == [1, 1, 2]


# -- how long the next lease still runs -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left_ms", "bound"),
    [(9.5, 10), (10, 10), (10.1, 100), (900, 1000), (17_000, 20_000), (29_900, 30_000), (60_000, 30_000)],
)
def test_when_nothing_can_go_the_time_the_next_lease_still_runs_is_noted(make_core, left_ms, bound):
    core = make_core(lease_ttl_ns=int(left_ms * MS) + 500)
    a = core.open()
    core.fill(a, 4)
    for number in range(4):
        core.lease(f"k{number}")
    core.now += 500
    core.put(a, "new")
    assert core.stat("reclaim.earliest_lease_expire_ms") == {f"<={bound}": 1}


def test_a_lease_that_has_run_out_unseen_is_noted_as_one_that_ends_now(make_core):
    core = make_core(lease_ttl_ns=5)
    a = core.open()
    core.store(a, "k", 4 * PAGE)
    core.lease("k")
    core.now += 10
    core.put(a, "new")
    assert core.stat("reclaim.earliest_lease_expire_ms") == {"<=10": 1}


def test_nothing_is_noted_where_no_lease_runs_or_something_may_go(core):
    a = core.open()
    core.fill(a, 4, softpin=True)
    core.lease("k0")
    core.put(a, "new")
    assert core.stat("reclaim.earliest_lease_expire_ms") == {}
    for number in range(1, 4):
        core.get(a, f"k{number}")
    core.put(a, "new2")
    assert core.stat("reclaim.earliest_lease_expire_ms") == {"<=30000": 1}
