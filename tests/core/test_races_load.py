"""The races of a load: of an object that is on disk alone and is asked for."""

import pytest

from mooncake_client.codes import Code
from mooncake_node.core.jobs import Delete, Load
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.replica import Replica, ReplicaState
from mooncake_node.core.waiting import PutMode, Waiter, Want

PAGE = 4096
TTL = 30
FAILURE = Refusal(Code.TRANSFER_FAILED, "unreadable")


class Loading:
    """k is on disk alone; a reader has asked for it, and it is being read into a pool of three pages."""

    def __init__(self, core):
        self.core = core
        self.session = core.open()
        self.on_disk = core.offload(self.session, "k")
        self.reader = core.open("reader")
        self.waiter = core.get(self.reader, "k")
        job = core.job()
        assert isinstance(job, Load)
        assert job.record == "record"
        self.into = job.replica


@pytest.fixture
def loading(make_core):
    return Loading(make_core(3, lease_ttl_ns=TTL, tier_nbytes_max=4 * PAGE))


@pytest.fixture
def crowded(make_core):
    """k is on disk alone, and the load of it waits for room: another object is read."""
    core = make_core(1, tier_nbytes_max=4 * PAGE)
    core.session = core.open()
    core.offload(core.session, "k")
    core.store(core.session, "other")
    core.handle = core.get(core.session, "other")
    core.reader = core.open("reader")
    core.waiter = core.get(core.reader, "k")
    assert isinstance(core.waiter, Waiter)
    assert core.take_jobs() == []
    return core


def test_all_who_ask_during_a_load_get_their_handles_with_its_end(loading):
    core = loading.core
    second = core.get(loading.session, "k")
    third = core.put(loading.session, "k", mode=PutMode.PUT_OR_ACQUIRE)
    assert core.take_jobs() == []
    assert core.stat("load.coalesced") == 2
    # A put that waits for all the room there is cannot come in between.
    put = core.put(loading.session, "new", 3 * PAGE)
    core.loaded(loading.into)
    answers = core.answers()
    assert [waiter for waiter, _ in answers] == [loading.waiter, second, third]
    assert {handle.replica for _, handle in answers} == {loading.into}
    assert put.open


def test_a_load_goes_on_when_its_reader_runs_out_of_time(loading):
    core = loading.core
    core.tick(later=100)
    assert core.refusal_for(loading.waiter).code is Code.NOT_READY
    core.loaded(loading.into)
    assert core.answers() == []
    assert core.state("k") == "COMPLETE"
    assert isinstance(core.put(loading.session, "new", 3 * PAGE), Replica)
    assert core.state("k") == "ON_DISK"


def test_a_removal_during_a_load_keeps_its_room_until_it_has_ended(loading):
    core = loading.core
    assert core.remove("k") is True
    assert core.refusal_for(loading.waiter).code is Code.NOT_FOUND
    assert isinstance(core.job(), Delete)
    assert loading.into.state is ReplicaState.DOOMED
    assert core.used == PAGE
    core.loaded(loading.into)
    assert core.used == 0
    assert core.state("k") is None


def test_a_put_that_waits_for_a_load_writes_if_the_object_is_removed(loading):
    core = loading.core
    put = core.put(loading.session, "k", mode=PutMode.PUT_OR_ACQUIRE)
    core.remove("k")
    [(first, replica)] = core.answers()
    assert first is put
    assert loading.waiter.want is Want.READ
    core.end(loading.session, replica)
    assert core.handle_for(loading.waiter).replica is replica
    core.loaded(loading.into)
    assert core.readable("k") is replica


def test_a_put_during_a_load_finds_the_key_taken(loading):
    core = loading.core
    with core.refuses(Code.EXISTS):
        core.put(loading.session, "k")
    assert core.wait(loading.session, "k") is None


@pytest.mark.parametrize("failure", [None, FAILURE])
def test_an_upsert_during_a_load_serves_those_who_wait_for_it(loading, failure):
    core = loading.core
    upsert = core.put(loading.session, "k", mode=PutMode.UPSERT)
    assert isinstance(upsert, Replica)
    core.end(loading.session, upsert)
    assert core.handle_for(loading.waiter).replica is upsert
    assert isinstance(core.job(), Delete)
    core.loaded(loading.into, failure, gone=failure is not None)
    assert core.readable("k") is upsert
    assert core.used == PAGE


def test_an_upsert_that_ends_after_the_load_replaces_what_was_loaded(loading):
    core = loading.core
    upsert = core.put(loading.session, "k", mode=PutMode.UPSERT)
    core.loaded(loading.into)
    handle = core.handle_for(loading.waiter)
    core.end(loading.session, upsert)
    assert core.readable("k") is upsert
    assert loading.into.state is ReplicaState.STASHED
    core.release(loading.reader, handle)
    assert core.used == PAGE


def test_a_lease_during_a_load_is_on_nothing_and_after_it_on_memory(loading):
    core = loading.core
    assert core.lease("k") == 0
    core.loaded(loading.into)
    assert core.lease("k") > 0
    core.release(loading.reader, core.handle_for(loading.waiter))
    assert isinstance(core.put(loading.session, "new", 3 * PAGE), Waiter)
    assert core.state("k") == "COMPLETE"
    core.tick(later=TTL)
    assert core.state("k") == "ON_DISK"


@pytest.mark.parametrize("end", ["unpin", "deadline"])
def test_a_pin_that_ends_during_a_load_lets_the_copy_go_only_after_it(make_core, end):
    loading = Loading(make_core(3, tier_nbytes_max=PAGE))
    core = loading.core
    if end == "unpin":
        core.unpin("k")
    else:
        core.pin("k", 10)
        core.tick(later=10)
    other = core.store(loading.session, "other", softpin=True)
    assert core.master.rescue(other, core.now) is False
    core.loaded(loading.into)
    core.release(loading.reader, core.handle_for(loading.waiter))
    core.tick(later=core.master.config.tier_retry_ns)
    assert core.master.rescue(other, core.now) is True
    assert isinstance(core.take_jobs()[0], Delete)
    assert core.state("k") == "COMPLETE"
    assert core.readable("k").contract.softpin is False
    core.written(other)


def test_a_pin_during_a_load_goes_with_the_object(loading):
    core = loading.core
    core.pin("k", 50)
    core.loaded(loading.into)
    core.release(loading.reader, core.handle_for(loading.waiter))
    assert loading.into.contract.softpin
    core.tick(later=50)
    assert not loading.into.contract.softpin


def test_remove_all_during_a_load_keeps_its_room_until_it_has_ended(loading):
    core = loading.core
    assert core.clear() == 1
    assert core.refusal_for(loading.waiter).code is Code.NOT_FOUND
    core.reap()
    assert core.used == PAGE
    new = core.store(loading.session, "k")
    core.loaded(loading.into)
    assert core.readable("k") is new
    assert core.used == PAGE


def test_remove_all_ends_a_load_that_waits_for_room(crowded):
    core = crowded
    core.clear()
    assert core.refusal_for(core.waiter).code is Code.NOT_FOUND
    core.release(core.session, core.handle)
    core.reap()
    assert core.take_jobs() == []
    assert core.stat("load.under_way") == 0


def test_a_load_goes_on_without_the_client_it_was_for(loading):
    core = loading.core
    second = core.get(loading.session, "k")
    core.end_session(loading.reader)
    core.loaded(loading.into)
    assert core.handle_for(second).replica is loading.into


@pytest.mark.parametrize("end", ["death", "cancel", "deadline"])
def test_a_load_that_waits_for_room_ends_with_the_last_who_waits_for_it(crowded, end):
    core = crowded
    second = core.get(core.session, "k", timeout=200)
    core.end_session(core.reader)
    assert core.stat("load.under_way") == 1
    if end == "death":
        core.end_session(core.session)
    elif end == "cancel":
        core.cancel(second)
    else:
        core.tick(later=200)
        assert core.refusal_for(second).code is Code.NO_SPACE
    assert core.stat("load.under_way") == 0
    assert core.stat("waiting") == 0
    assert core.take_jobs() == []


def test_all_whose_load_found_no_room_in_time_are_told_so(crowded):
    core = crowded
    second = core.get(core.session, "k")
    core.tick(later=100)
    assert [(waiter, refusal.code) for waiter, refusal in core.answers()] == [
        (core.waiter, Code.NO_SPACE),
        (second, Code.NO_SPACE),
    ]


def test_a_release_gives_the_waiting_load_its_room(crowded):
    core = crowded
    core.release(core.session, core.handle)
    core.loaded(core.job().replica)
    assert core.handle_for(core.waiter).replica.key == "k"
    assert core.state("other") is None


def test_a_removal_ends_a_load_that_waits_for_room(crowded):
    core = crowded
    core.remove("k")
    assert core.refusal_for(core.waiter).code is Code.NOT_FOUND
    core.release(core.session, core.handle)
    assert [type(job) for job in core.take_jobs()] == [Delete]
    assert core.state("other") == "COMPLETE"


def test_a_failed_load_is_told_and_the_next_reads_again(loading):
    core = loading.core
    core.loaded(loading.into, FAILURE)
    assert core.refusal_for(loading.waiter).code is Code.TRANSFER_FAILED
    assert core.state("k") == "ON_DISK"
    assert core.used == 0
    waiter = core.get(loading.reader, "k")
    core.loaded(core.job().replica)
    core.handle_for(waiter)


def test_an_object_whose_last_copy_is_gone_is_lost_until_it_is_put_again(loading):
    core = loading.core
    core.loaded(loading.into, FAILURE, gone=True)
    assert core.refusal_for(loading.waiter).code is Code.OBJECT_LOST
    assert isinstance(core.job(), Delete)
    with core.refuses(Code.OBJECT_LOST):
        core.get(loading.reader, "k")
    core.store(loading.session, "k")
    core.remove("k")
    with core.refuses(Code.NOT_FOUND):
        core.get(loading.reader, "k")


def test_an_unpinned_object_whose_last_copy_is_gone_is_just_not_there(loading):
    core = loading.core
    core.unpin("k")
    core.loaded(loading.into, FAILURE, gone=True)
    assert core.refusal_for(loading.waiter).code is Code.NOT_FOUND
    with core.refuses(Code.NOT_FOUND):
        core.get(loading.reader, "k")


@pytest.mark.parametrize("pinned", [False, True])
def test_a_put_that_waits_for_a_load_writes_if_the_copy_is_gone(loading, pinned):
    core = loading.core
    if not pinned:
        core.unpin("k")
    put = core.put(loading.session, "k", mode=PutMode.PUT_OR_ACQUIRE)
    core.loaded(loading.into, FAILURE, gone=True)
    [(reader, refusal), (writer, replica)] = core.answers()
    assert (reader, writer) == (loading.waiter, put)
    assert refusal.code is (Code.OBJECT_LOST if pinned else Code.NOT_FOUND)
    assert core.end(loading.session, replica) is core.readable("k")


def test_a_load_that_fails_after_the_removal_loses_nothing(loading):
    core = loading.core
    core.remove("k")
    core.loaded(loading.into, FAILURE, gone=True)
    with core.refuses(Code.NOT_FOUND):
        core.get(loading.reader, "k")
    assert core.stat("offload.lost") == 0


def test_an_eviction_makes_no_disk_room_of_what_is_loaded(make_core):
    """Its copy is the only one there is until the load has ended."""
    loading = Loading(make_core(3, tier_nbytes_max=PAGE))
    core = loading.core
    core.unpin("k")
    core.fill(loading.session, 2, softpin=True)
    put = core.put(loading.session, "new", timeout=1 << 40)
    core.tick()
    assert core.take_jobs() == []
    core.loaded(loading.into)
    core.release(loading.reader, core.handle_for(loading.waiter))
    core.tick()
    core.replica_for(put)
