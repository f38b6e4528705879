"""Replicas the directory has: an entry is withdrawn before its memory is freed, and told anew when it has changed."""

import pytest

from mooncake_node.core.jobs import Retell, Withdraw
from mooncake_node.core.replica import Contract, ReplicaState
from mooncake_node.core.waiting import PutMode, Want
from tests.core.far import found

PAGE = 4096
S = ReplicaState


@pytest.fixture
def core(make_core):
    return make_core(has_peers=True)


def withdrawal(core):
    """The only errand since the last look: a `Withdraw`."""
    [errand] = core.far.take()
    assert isinstance(errand, Withdraw)
    return errand


def test_memory_is_kept_until_the_directory_has_it_no_more(core):
    a = core.open()
    replica = core.far.store(a, "k")
    core.remove("k")
    assert withdrawal(core).replica is replica
    assert (core.used, core.stat("pool.leaving_bytes"), core.stat("stash.bytes")) == (PAGE, PAGE, PAGE)
    assert (core.readable("k"), replica.state, replica.told) == (None, S.STASHED, False)
    core.far.withdrawn(replica)
    assert (core.used, core.stat("pool.leaving_bytes"), replica.state) == (0, 0, S.GONE)


def test_what_the_directory_was_never_told_of_is_freed_at_once(core):
    a = core.open()
    core.store(a, "k")
    core.remove("k")
    assert (core.used, core.far.take()) == (0, [])


def test_a_new_generation_stands_beside_one_that_leaves(core):
    a = core.open()
    old = core.far.store(a, "k")
    core.remove("k")
    new = core.far.store(a, "k")
    core.far.take()
    core.far.withdrawn(old)
    assert (core.readable("k"), core.used) == (new, PAGE)


def test_memory_that_is_read_stays_after_the_entry_is_withdrawn(core):
    a = core.open()
    core.far.store(a, "k")
    handle = core.get(a, "k")
    core.remove("k")
    core.far.withdrawn(withdrawal(core).replica)
    assert (core.used, core.stat("pool.leaving_bytes")) == (PAGE, 0)
    core.release(a, handle)
    assert core.used == 0


def test_memory_whose_last_reader_goes_stays_until_the_entry_is_withdrawn(core):
    a = core.open()
    core.far.store(a, "k")
    handle = core.get(a, "k")
    core.remove("k")
    core.release(a, handle)
    assert core.used == PAGE
    core.far.withdrawn(withdrawal(core).replica)
    assert core.used == 0


def test_an_empty_object_is_withdrawn_like_any_other(core):
    a = core.open()
    core.far.store(a, "k", 0)
    core.remove("k")
    core.far.withdrawn(withdrawal(core).replica)
    assert core.master.table.all_replicas() == []


def test_an_upsert_here_without_the_directory_withdraws_what_it_replaces(core):
    a = core.open()
    old = core.far.store(a, "k")
    core.store(a, "k", mode=PutMode.UPSERT)
    assert withdrawal(core).replica is old
    core.far.withdrawn(old)
    assert core.used == PAGE


# -- reclaim ---------------------------------------------------------------------------------------------------------


def test_a_put_waits_for_what_it_has_made_leave_and_makes_no_more_leave(core):
    a = core.open()
    for number in range(4):
        core.far.store(a, f"k{number}")
    put = core.put(a, "new")
    assert (put.want, core.gone(4), core.stat("pool.leaving_bytes")) == (Want.ROOM, [0], PAGE)
    core.tick()
    assert core.gone(4) == [0]
    core.far.withdrawn(withdrawal(core).replica)
    assert core.replica_for(put).key == "new"
    assert core.gone(4) == [0]


def test_a_second_put_makes_its_own_room_leave_when_it_is_its_turn(core):
    a = core.open()
    for number in range(4):
        core.far.store(a, f"k{number}")
    first, second = core.put(a, "a"), core.put(a, "b")
    core.far.withdrawn(withdrawal(core).replica)
    assert core.replica_for(first).key == "a"
    core.tick()
    core.far.withdrawn(withdrawal(core).replica)
    assert core.replica_for(second).key == "b"
    assert core.gone(4) == [0, 1]


def test_what_leaves_but_not_together_is_made_up_for(core):
    """Two pages that are not neighbours are no room for two."""
    a = core.open()
    for number in range(4):
        core.far.store(a, f"k{number}")
    core.remove("k0")
    core.remove("k2")
    put = core.put(a, "new", 2 * PAGE)
    assert core.gone(4) == [0, 2]
    for errand in core.far.take():
        core.far.withdrawn(errand.replica)
    for errand in core.far.take():
        core.far.withdrawn(errand.replica)
    assert core.replica_for(put).nbytes == 2 * PAGE


def test_what_leaves_counts_as_free_for_the_background(make_core):
    core = make_core(8, has_peers=True, free_low_nbytes=2 * PAGE, free_high_nbytes=3 * PAGE)
    a = core.open()
    for number in range(7):
        core.far.store(a, f"k{number}")
    for _ in range(5):
        core.tick()
    assert (core.stat("pool.leaving_bytes"), core.gone(7)) == (2 * PAGE, [0, 1])
    assert core.master.next_deadline_ns(core.now) is None


def test_a_window_is_kept_for_a_large_put_while_its_victims_leave(make_core):
    core = make_core(64, has_peers=True)
    a = core.open()
    for number in range(4):
        core.far.store(a, f"k{number}", 16 * PAGE)
    handles = [core.get(a, "k0"), core.get(a, "k3")]
    core.lease("k1"), core.lease("k2")
    large = core.put(a, "large", 32 * PAGE, timeout=1 << 60)
    core.tick(later=core.master.config.lease_ttl_ns)
    first, second = (errand.replica for errand in core.far.take())
    small = core.put(a, "small", 8 * PAGE)
    core.far.withdrawn(first)
    assert core.answers() == []
    core.far.withdrawn(second)
    assert core.replica_for(large).nbytes == 32 * PAGE
    core.cancel(small)
    core.release(a, *handles)


# -- clear -----------------------------------------------------------------------------------------------------------


def test_a_clear_frees_memory_without_waiting_for_the_directory(core):
    """Nobody believes an entry of a lower clear epoch."""
    a = core.open()
    core.far.store(a, "k")
    core.clear()
    assert not core.reap()
    errand = withdrawal(core)
    assert (errand.is_held, core.used, core.stat("pool.leaving_bytes")) == (False, 0, 0)


def test_what_leaves_when_all_is_cleared_still_waits_for_its_withdrawal(core):
    a = core.open()
    replica = core.far.store(a, "k")
    core.remove("k")
    core.clear()
    core.reap()
    assert core.used == PAGE
    core.far.take()
    core.far.withdrawn(replica)
    assert core.used == 0


# -- told anew -------------------------------------------------------------------------------------------------------


def told(core):
    """What is to be told anew since the last look."""
    errands = core.far.take()
    assert all(isinstance(errand, Retell) for errand in errands)
    return [errand.replica for errand in errands]


@pytest.fixture
def tiered(make_core):
    return make_core(has_peers=True, tier_nbytes_max=100 * PAGE)


def test_an_object_that_leaves_memory_or_comes_back_is_told_anew(tiered):
    a = tiered.open()
    replica = tiered.far.store(a, "k", softpin=True)
    tiered.rescue(replica)
    tiered.written(tiered.job().replica)
    assert (tiered.state("k"), told(tiered)) == ("ON_DISK", [replica])
    waiter = tiered.get(a, "k")
    tiered.far.located(tiered.far.sought(), None)
    tiered.loaded(tiered.job().replica)
    back = tiered.handle_for(waiter).replica
    assert (told(tiered), back.told) == ([back], True)


def test_an_object_of_this_node_alone_is_never_told(tiered):
    a = tiered.open()
    tiered.offload(a, "k", softpin_ttl=50)
    tiered.tick(later=50)
    assert tiered.far.take() == []


def test_what_is_on_disk_alone_needs_no_memory_held_when_it_is_removed(tiered):
    a = tiered.open()
    replica = tiered.far.store(a, "k", softpin=True)
    tiered.rescue(replica)
    tiered.written(tiered.job().replica)
    tiered.far.take()
    tiered.remove("k")
    assert withdrawal(tiered).is_held is False
    assert replica.state is S.GONE
    tiered.take_jobs()


def test_what_is_removed_while_it_is_written_to_disk_waits_for_both(tiered):
    a = tiered.open()
    replica = tiered.far.store(a, "k", softpin=True)
    tiered.rescue(replica)
    tiered.remove("k")
    tiered.take_jobs()
    tiered.far.withdrawn(withdrawal(tiered).replica)
    assert tiered.used == PAGE
    tiered.written(replica)
    assert tiered.used == 0


def test_a_soft_pin_that_ends_is_told(core):
    a = core.open()
    replica = core.far.store(a, "k", softpin=True, softpin_ttl=50)
    assert core.far.take() == []
    core.tick(later=50)
    assert told(core) == [replica]


def test_a_copy_that_is_dropped_is_withdrawn_and_told_of_no_more(core):
    a = core.open()
    core.far.cache(a, "k", found(contract=Contract(softpin=True), until=core.now + 5))
    core.remove("k")
    errand = withdrawal(core)
    core.tick(later=5)
    assert core.far.take() == []
    core.far.withdrawn(errand.replica)
    assert core.used == 0
