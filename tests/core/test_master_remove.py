"""remove: the key goes at once, the bytes when nobody reads them."""

import pytest

from mooncake_client.codes import Code
from mooncake_node.core.replica import ReplicaState
from mooncake_node.core.waiting import PutMode

PAGE = 4096


def test_a_removed_object_that_nobody_reads_is_freed(core):
    a = core.open()
    replica = core.store(a, "k")
    assert core.remove("k") is True
    assert (replica.state, core.used) == (ReplicaState.GONE, 0)
    with core.refuses(Code.NOT_FOUND):
        core.get(a, "k")


def test_remove_of_nothing_is_false(core):
    assert core.remove("k") is False


def test_remove_is_not_refused_because_someone_reads_and_the_key_is_free_for_a_new_put(core):
    a, b = core.open("a"), core.open("b")
    old = core.store(a, "k")
    handle = core.get(b, "k")
    assert core.remove("k") is True
    assert (old.state, core.readable("k")) == (ReplicaState.STASHED, None)
    new = core.store(a, "k")
    assert (handle.replica, core.readable("k")) == (old, new)
    assert new.offset != old.offset
    core.release(b, handle)
    assert (old.state, core.used) == (ReplicaState.GONE, PAGE)


def test_the_stash_is_freed_with_the_last_of_several_handles(core):
    a = core.open()
    replica = core.store(a, "k")
    handles = [core.get(a, "k") for _ in range(3)]
    core.remove("k")
    core.release(a, *handles[:2])
    assert replica.state is ReplicaState.STASHED
    core.release(a, *handles[:2])
    assert replica.state is ReplicaState.STASHED
    core.release(a, handles[2])
    assert replica.state is ReplicaState.GONE


def test_remove_by_generation_takes_that_one_only(core):
    a = core.open()
    old = core.store(a, "k")
    new = core.store(a, "k", mode=PutMode.UPSERT)
    assert core.remove("k", old.generation) is False
    assert core.readable("k") is new
    assert core.remove("k", new.generation) is True
    assert core.remove("k", new.generation) is False


def test_remove_by_generation_does_not_find_a_stashed_one(core):
    a = core.open()
    old = core.store(a, "k")
    handle = core.get(a, "k")
    core.remove("k")
    assert core.remove("k", old.generation) is False
    core.release(a, handle)


def test_remove_of_a_key_that_is_only_being_written_is_false_and_the_put_goes_on(core):
    a = core.open()
    replica = core.put(a, "k")
    assert core.remove("k") is False
    assert core.remove("k", replica.generation) is False
    core.end(a, replica)
    assert core.readable("k") is replica


def test_remove_beside_an_upsert_takes_the_old_generation_and_the_upsert_goes_on(core):
    a = core.open()
    core.store(a, "k")
    new = core.put(a, "k", mode=PutMode.UPSERT)
    assert core.remove("k") is True
    assert core.readable("k") is None
    core.end(a, new)
    assert core.readable("k") is new


@pytest.mark.parametrize("read", [False, True])
def test_an_object_that_is_being_written_to_disk_is_removed_like_any_other(make_core, read):
    core = make_core(tier_nbytes_max=PAGE)
    a = core.open()
    replica = core.store(a, "k", softpin=True)
    assert core.rescue(replica)
    core.take_jobs()
    handles = [core.get(a, "k")] if read else []
    assert core.remove("k") is True
    assert core.readable("k") is None
    assert replica.state is ReplicaState.STASHED
    core.release(a, *handles)
    assert replica.state is ReplicaState.STASHED
    core.written(replica)
    assert replica.state is ReplicaState.GONE


def test_a_put_waiting_for_a_writer_is_not_disturbed_by_remove(core):
    a, b = core.open("a"), core.open("b")
    replica = core.put(a, "k")
    put = core.put(b, "k")
    core.remove("k")
    assert core.answers() == []
    core.revoke(a, replica)
    core.replica_for(put)
