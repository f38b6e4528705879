"""Offload: a pinned object leaves memory only when its copy is safe."""

import pytest

from mooncake_node.core.jobs import Delete, Offload
from mooncake_node.core.replica import Rank, ReplicaState, Shelf
from mooncake_node.core.waiting import PutMode, Want

PAGE = 4096
RETRY = 10
S = ReplicaState


@pytest.fixture
def core(make_core):
    return make_core(tier_nbytes_max=100 * PAGE, tier_retry_ns=RETRY)


def isolated(core, session):
    """A pinned object that a put waits for, and the write of it that was begun; the put."""
    replica = core.store(session, "k", 4 * PAGE, softpin=True)
    put = core.put(session, "new", 4 * PAGE, timeout=1000)
    assert put.want is Want.ROOM
    core.tick()
    job = core.job()
    assert isinstance(job, Offload)
    assert job.replica is replica
    return replica, put


def test_a_pinned_victim_is_written_first_and_its_room_goes_to_the_put_after(core):
    a = core.open()
    replica, put = isolated(core, a)
    assert (replica.state, replica.transfers, core.used) == (S.ISOLATED, 1, 4 * PAGE)
    assert (core.stat("pool.isolated_bytes"), core.answers()) == (4 * PAGE, [])
    core.written(replica)
    assert (replica.state, replica.copy.record) == (S.ON_DISK, "record")
    assert core.replica_for(put).key == "new"
    assert [core.stat(f"reclaim.{name}") for name in ("isolated", "offloaded", "dropped")] == [1, 1, 0]
    assert (core.stat("objects"), core.stat("pool.isolated_bytes")) == (1, 0)


def test_nothing_is_chosen_twice_while_it_is_written(core):
    a = core.open()
    isolated(core, a)
    assert core.master.next_deadline_ns(core.now) == core.now + 1000
    core.tick()
    assert core.take_jobs() == []


def test_an_isolated_object_is_readable_all_the_while(core):
    a = core.open()
    replica, _put = isolated(core, a)
    handle = core.get(a, "k")
    assert (handle.replica, replica.shelf) == (replica, Shelf.NONE)
    core.release(a, handle)
    assert replica.state is S.ISOLATED


@pytest.mark.parametrize("how", ["reference", "lease"])
def test_one_that_is_read_when_it_has_been_written_stays_and_is_clean(core, how):
    a = core.open()
    replica, put = isolated(core, a)
    handle = core.get(a, "k") if how == "reference" else None
    token = core.lease("k") if how == "lease" else 0
    core.written(replica)
    assert (replica.state, replica.shelf, replica.copy is None) == (S.COMPLETE, Shelf.PARKED, False)
    assert (core.stat("reclaim.offloaded"), core.stat("offload.only_on_disk"), put.open) == (0, 0, True)
    if handle:
        core.release(a, handle)
    else:
        core.release_lease(replica, token)
    # What has a copy goes at once, for the put that waits.
    assert core.replica_for(put).key == "new"
    assert (replica.state, core.take_jobs(), core.stat("reclaim.dropped")) == (S.ON_DISK, [], 1)


def test_a_clean_replica_is_dropped_without_being_written_again(core):
    a = core.open()
    core.offload(a, "k", 4 * PAGE)
    replica = core.bring_back(a, "k")
    assert (replica.rank, replica.shelf) == (Rank.CLEAN, Shelf.INACTIVE)
    core.store(a, "new", 4 * PAGE)
    assert (core.state("k"), core.take_jobs()) == ("ON_DISK", [])
    assert (core.stat("reclaim.dropped"), core.stat("offload.objects")) == (1, 1)


# -- gone while it was written ------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["record", None])
@pytest.mark.parametrize("how", ["remove", "upsert"])
def test_one_that_loses_its_name_keeps_its_room_until_the_write_has_ended_and_leaves_no_copy(core, how, outcome):
    a = core.open()
    replica = core.store(a, "k", 2 * PAGE, softpin=True)
    core.rescue(replica)
    core.take_jobs()
    if how == "remove":
        core.remove("k")
    else:
        core.store(a, "k", PAGE, mode=PutMode.UPSERT)
    job = core.job()
    assert isinstance(job, Delete)
    assert (job.replica, replica.state, core.stat("stash.bytes")) == (replica, S.STASHED, 2 * PAGE)
    assert (core.stat("pool.isolated_bytes"), core.master.is_wanted(replica)) == (0, False)
    core.written(replica, outcome)
    assert (replica.state, replica.copy, core.stat("offload.objects")) == (S.GONE, None, 0)
    # That nothing was written is no failure of the tier.
    assert core.stat("offload.failures") == 0
    assert core.rescue(core.store(a, "l", PAGE, softpin=True)) is True


def test_one_that_loses_its_name_while_it_is_written_and_read_goes_with_its_last_reader(core):
    a = core.open()
    replica = core.store(a, "k", softpin=True)
    handle = core.get(a, "k")
    core.rescue(replica)
    core.take_jobs()
    core.remove("k")
    core.written(replica)
    assert replica.state is S.STASHED
    core.release(a, handle)
    assert replica.state is S.GONE


@pytest.mark.parametrize("outcome", ["record", None])
@pytest.mark.parametrize("reaped_first", [False, True])
def test_one_that_a_clear_cuts_off_keeps_its_room_until_it_is_written_and_reaped(core, reaped_first, outcome):
    a = core.open()
    replica = core.store(a, "k", softpin=True)
    core.rescue(replica)
    core.take_jobs()
    core.clear()
    assert core.master.is_wanted(replica) is False
    if reaped_first:
        core.reap()
        assert replica.state is S.STASHED
        core.written(replica, outcome)
    else:
        core.written(replica, outcome)
        assert (replica.state, core.stat("pool.isolated_bytes")) == (S.ISOLATED, PAGE)
        core.reap()
    assert (replica.state, core.used, core.stat("pool.isolated_bytes")) == (S.GONE, 0, 0)
    # The tier is cleared as a whole.
    assert core.take_jobs() == []
    assert (core.stat("offload.objects"), core.stat("offload.failures")) == (0, 0)


# -- failures -----------------------------------------------------------------------------------------------------


def test_a_failed_write_leaves_its_object_readable_and_is_tried_again_later(core):
    a = core.open()
    replica, put = isolated(core, a)
    core.written(replica, None)
    assert (replica.state, replica.shelf, replica.rank) == (S.COMPLETE, Shelf.INACTIVE, Rank.PINNED)
    assert (core.stat("offload.failures"), put.open, core.take_jobs()) == (1, True, [])
    assert core.master.next_deadline_ns(core.now) == core.now + RETRY
    core.tick(later=RETRY - 1)
    assert core.take_jobs() == []
    core.tick(later=1)
    core.written(core.job().replica)
    core.replica_for(put)
    assert replica.state is S.ON_DISK


def test_a_failed_write_of_one_that_is_read_parks_it(core):
    a = core.open()
    replica = core.store(a, "k", softpin=True)
    core.rescue(replica)
    handle = core.get(a, "k")
    core.written(core.job().replica, None)
    assert (replica.state, replica.shelf) == (S.COMPLETE, Shelf.PARKED)
    core.release(a, handle)
    assert replica.shelf is Shelf.INACTIVE


def test_a_victim_that_cannot_be_written_is_listed_again(make_core):
    core = make_core(tier_nbytes_max=PAGE, tier_retry_ns=RETRY)
    a = core.open()
    replica = core.store(a, "k", 4 * PAGE, softpin=True)
    core.put(a, "new")
    core.tick()
    assert (core.take_jobs(), replica.state, replica.shelf) == ([], S.COMPLETE, Shelf.INACTIVE)
    assert core.master.next_deadline_ns(core.now) == core.now + RETRY


# -- contracts ----------------------------------------------------------------------------------------------------


def test_pins_and_copies_say_in_which_rank_an_object_is_listed(core):
    a = core.open()
    replica = core.store(a, "k")
    assert replica.rank is Rank.PLAIN
    core.pin("k")
    assert replica.rank is Rank.PINNED
    core.unpin("k")
    assert replica.rank is Rank.PLAIN
    core.pin("k", 50)
    core.tick(later=50)
    assert replica.rank is Rank.PLAIN
    handle = core.get(a, "k")
    core.pin("k")
    assert replica.shelf is Shelf.PARKED
    core.release(a, handle)
    assert replica.rank is Rank.PINNED
    core.rescue(replica)
    core.written(core.job().replica)
    replica = core.bring_back(a, "k")
    assert replica.rank is Rank.CLEAN
    core.unpin("k")
    assert replica.rank is Rank.CLEAN


def test_one_whose_pin_ends_while_a_put_waits_is_dropped_for_it(core):
    a = core.open()
    core.master.objects.disk.block(core.now + 1000)
    core.store(a, "k", 4 * PAGE, softpin=True)
    put = core.put(a, "new", timeout=1000)
    core.tick()
    assert core.answers() == []
    core.unpin("k")
    assert core.master.next_deadline_ns(core.now) == 0
    core.tick()
    core.replica_for(put)
    assert (core.state("k"), core.take_jobs()) == (None, [])


def test_one_whose_pin_ends_while_it_is_written_leaves_memory_and_its_copy_is_spare(core):
    a = core.open()
    replica = core.store(a, "k", softpin=True, softpin_ttl=50)
    core.rescue(replica)
    core.tick(later=50)
    core.written(core.job().replica)
    assert replica.state is S.ON_DISK
    assert list(core.master.objects.disk.spare.values()) == [replica]


# -- ordinary objects, if the operator wants them on disk too -------------------------------------------------------


@pytest.fixture
def core_for_all(make_core):
    return make_core(tier_nbytes_max=100 * PAGE, tier_retry_ns=RETRY, offload_unpinned=True)


def test_ordinary_objects_are_written_too_and_no_more_of_them_than_are_needed(core_for_all):
    """Found by reading: a put wrote as much as eight passes found, and again with each write that ended."""
    core = core_for_all
    a = core.open()
    replicas = core.fill(a, 4)
    put = core.put(a, "new")
    core.tick()
    core.tick()
    assert core.job().replica is replicas[0]
    core.written(replicas[0])
    core.replica_for(put)
    assert ([core.state(f"k{n}") for n in range(4)], core.take_jobs()) == (["ON_DISK"] + ["COMPLETE"] * 3, [])


def test_an_ordinary_object_is_dropped_when_it_cannot_be_written(core_for_all):
    core = core_for_all
    a = core.open()
    replicas = core.fill(a, 4)
    core.rescue(replicas[3])
    core.written(core.job().replica, None)
    core.store(a, "new", 2 * PAGE)
    assert (core.state("k0"), core.state("k1"), core.take_jobs()) == (None, None, [])
    assert core.stat("reclaim.dropped") == 2


def test_an_ordinary_object_that_the_tier_has_no_room_for_is_dropped(make_core):
    core = make_core(tier_nbytes_max=PAGE, offload_unpinned=True)
    a = core.open()
    core.offload(a, "pinned")
    core.fill(a, 4)
    put = core.put(a, "new")
    core.tick()
    core.replica_for(put)
    assert (core.state("k0"), core.take_jobs()) == (None, [])


# -- rescue: what is pinned is written at the end -------------------------------------------------------------------


def test_the_unsaved_are_the_pinned_ones_without_a_copy(core):
    a = core.open()
    core.offload(a, "saved")
    core.store(a, "plain")
    unsaved = core.store(a, "unsaved", softpin=True)
    assert core.master.unsaved() == [unsaved]


def test_one_that_is_read_is_rescued_and_stays(core):
    a = core.open()
    replica = core.store(a, "k", softpin=True)
    handle = core.get(a, "k")
    assert core.rescue(replica) is True
    core.written(core.job().replica)
    assert (replica.state, replica.shelf, core.master.unsaved()) == (S.COMPLETE, Shelf.PARKED, [])
    core.release(a, handle)
    assert replica.rank is Rank.CLEAN


def test_what_is_saved_or_on_its_way_is_not_written_again(core):
    a = core.open()
    saved = core.offload(a, "saved")
    replica = core.store(a, "k", softpin=True)
    core.rescue(replica)
    assert core.rescue(replica) is False
    assert core.rescue(saved) is False
    core.take_jobs()
    assert core.rescue(core.bring_back(a, "saved")) is False
    assert core.rescue(core.put(a, "written", softpin=True)) is False
    assert core.take_jobs() == []


def test_one_that_is_read_and_cannot_be_written_stays_parked(core):
    a = core.open()
    replica = core.store(a, "k", softpin=True)
    handle = core.get(a, "k")
    core.master.objects.disk.block(core.now)
    assert core.rescue(replica) is False
    assert replica.shelf is Shelf.PARKED
    core.release(a, handle)
    assert replica.shelf is Shelf.INACTIVE


@pytest.mark.parametrize("read", [False, True])
def test_a_hard_pin_keeps_a_rescued_object_in_memory_and_off_the_lists(make_core, read):
    """Found by reading: it left memory, and if it was read it was listed after."""
    core = make_core(tier_nbytes_max=100 * PAGE, hard_pin_nbytes_max=4 * PAGE)
    a = core.open()
    replica = core.store(a, "k", softpin=True, hardpin=True)
    handles = [core.get(a, "k")] if read else []
    core.rescue(replica)
    core.written(core.job().replica)
    core.release(a, *handles)
    assert (replica.state, replica.shelf, replica.copy is None) == (S.COMPLETE, Shelf.NONE, False)


def test_an_empty_object_that_is_read_while_it_is_rescued_is_not_listed_after(core):
    """Found by reading: it was parked for ever."""
    a = core.open()
    replica = core.store(a, "k", 0, softpin=True)
    handle = core.get(a, "k")
    core.rescue(replica)
    core.written(core.job().replica)
    core.release(a, handle)
    assert (replica.state, replica.shelf) == (S.COMPLETE, Shelf.NONE)


def test_a_contract_that_changes_is_changed_on_disk_too_if_there_is_a_copy(make_core):
    core = make_core(4, tier_nbytes_max=100 * PAGE)
    session = core.open()
    on_disk = core.offload(session, "on disk")
    writing = core.store(session, "being written", softpin=True)
    core.rescue(writing)
    core.store(session, "in memory", softpin=True)
    for key in ("on disk", "being written", "in memory"):
        core.pin(key, 50)
        core.unpin(key)
    core.take_jobs()
    assert core.amended == [on_disk, on_disk, writing, writing]
