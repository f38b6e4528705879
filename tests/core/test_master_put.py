"""put, put_end, put_revoke, and a second put of the same key."""

import pytest

from mooncake_client.codes import Code
from mooncake_node.core.replica import ReplicaState
from mooncake_node.core.sessions import Handle
from mooncake_node.core.waiting import PutMode, Waiter, Want

PAGE = 4096


def test_a_put_is_invisible_until_its_end_and_then_readable_by_everyone(core):
    a, b = core.open("a"), core.open("b")
    replica = core.put(a, "k", 5000, kind=3)
    assert (replica.state, replica.writer, replica.since_ns) == (ReplicaState.WRITING, a.session_id, core.now)
    assert core.readable("k") is None
    assert core.used == 2 * PAGE
    core.now += 7
    assert core.end(a, replica) is replica
    assert (replica.state, replica.writer, replica.since_ns) == (ReplicaState.COMPLETE, 0, core.now)
    assert (replica.key, replica.nbytes, replica.kind) == ("k", 5000, 3)
    assert core.readable("k") is replica
    assert core.get(b, "k").replica is core.get(a, "k").replica is replica
    assert core.answers() == []


def test_a_revoked_put_leaves_nothing(core):
    a = core.open()
    replica = core.put(a, "k")
    core.revoke(a, replica)
    assert replica.state is ReplicaState.GONE
    assert core.used == 0
    with core.refuses(Code.NOT_FOUND):
        core.get(a, "k")


def test_every_put_has_a_new_replica_id_and_a_larger_generation(core):
    a = core.open()
    seen = []
    for key in ("k", "l", "k"):
        core.remove(key)
        replica = core.store(a, key)
        seen.append((replica.replica_id, replica.generation))
    assert seen == sorted(set(seen))
    assert len({generation for _, generation in seen}) == 3


def test_a_put_of_a_readable_key_is_refused(core):
    a, b = core.open("a"), core.open("b")
    first = core.store(a, "k")
    with core.refuses(Code.EXISTS):
        core.put(b, "k")
    with core.refuses(Code.EXISTS):
        core.put(b, "k", timeout=None)
    assert core.readable("k") is first


def test_a_put_of_a_key_being_written_waits_and_is_refused_when_that_completes(core):
    a, b = core.open("a"), core.open("b")
    first = core.put(a, "k")
    second = core.put(b, "k")
    assert isinstance(second, Waiter)
    assert (second.want, core.answers()) == (Want.TURN, [])
    core.end(a, first)
    assert core.refusal_for(second).code is Code.EXISTS
    assert not second.open
    assert core.readable("k") is first


def test_when_a_put_is_revoked_exactly_one_waiting_put_takes_over(core):
    a, b, c = core.open("a"), core.open("b"), core.open("c")
    first = core.put(a, "k")
    second, third = core.put(b, "k"), core.put(c, "k")
    core.revoke(a, first)
    taken = core.replica_for(second)
    assert (taken.writer, taken.state) == (b.session_id, ReplicaState.WRITING)
    assert taken.generation > first.generation
    assert (third.open, third.want) == (True, Want.TURN)
    core.end(b, taken)
    assert core.refusal_for(third).code is Code.EXISTS


def test_a_waiting_put_is_not_ready_at_its_deadline(core):
    a, b = core.open("writer"), core.open("b")
    first = core.put(a, "k")
    second = core.put(b, "k", timeout=10)
    core.tick(later=9)
    assert core.answers() == []
    core.tick(later=1)
    refusal = core.refusal_for(second)
    assert refusal.code is Code.NOT_READY
    assert "writer (pid 4711)" in refusal.message
    core.end(a, first)
    assert core.answers() == []


def test_a_put_with_no_time_left_is_not_ready_at_once_beside_a_writer(core):
    a, b = core.open("a"), core.open("b")
    core.put(a, "k")
    for timeout in (0, -5):
        with core.refuses(Code.NOT_READY, "after 0 s"):
            core.put(b, "k", timeout=timeout)
    assert len(core.master.waiting) == 0


def test_a_put_without_a_deadline_enters_nothing_and_says_what_it_would_wait_for(core):
    a, b = core.open("a"), core.open("b")
    core.put(a, "k")
    assert core.put(b, "k", timeout=None) is Want.TURN
    assert core.put(b, "big", 4 * PAGE, timeout=None) is Want.ROOM
    assert core.put(b, "small", timeout=None).key == "small"
    assert len(core.master.waiting) == 0


def test_a_client_that_puts_a_key_twice_waits_for_itself(core):
    a = core.open()
    first = core.put(a, "k")
    second = core.put(a, "k")
    core.revoke(a, first)
    core.end(a, core.replica_for(second))


def test_waiting_puts_of_one_key_take_over_in_order_of_arrival_although_one_waited_for_room_meanwhile(core):
    """Found by reading: what a put waits for changed its place among those of its key."""
    a, b, c, d = (core.open(name) for name in "abcd")
    first = core.put(a, "k", PAGE)
    large = core.put(b, "k", 4 * PAGE)
    small = core.put(c, "k", PAGE)
    last = core.put(d, "k", PAGE)
    in_the_way = core.store(a, "other", PAGE, softpin=True)
    core.revoke(a, first)
    taken = core.replica_for(small)
    assert (large.want, last.want) == (Want.TURN, Want.TURN)
    assert core.remove("other", in_the_way.generation)
    core.revoke(c, taken)
    assert core.replica_for(large).nbytes == 4 * PAGE


def test_an_empty_object_is_put_read_and_removed_and_takes_no_room(core):
    a = core.open()
    core.store(a, "full", 4 * PAGE)
    empty = core.store(a, "k", 0)
    handle = core.get(a, "k")
    assert (handle.replica, empty.nbytes, core.used) == (empty, 0, 4 * PAGE)
    assert core.remove("k")
    assert empty.state is ReplicaState.STASHED
    core.release(a, handle)
    assert empty.state is ReplicaState.GONE


# -- PUT_OR_ACQUIRE ----------------------------------------------------------------------------------------------


def test_put_or_acquire_reserves_what_is_not_there(core):
    a = core.open()
    replica = core.put(a, "k", mode=PutMode.PUT_OR_ACQUIRE)
    assert replica.state is ReplicaState.WRITING


def test_put_or_acquire_takes_a_handle_on_what_is_there(core):
    a, b = core.open("a"), core.open("b")
    replica = core.store(a, "k")
    handle = core.put(b, "k", mode=PutMode.PUT_OR_ACQUIRE)
    assert isinstance(handle, Handle)
    assert handle.replica is replica
    assert b.handles == {handle.handle_id: handle}
    assert core.master.admission.local_hits == 0


def test_a_waiting_put_or_acquire_gets_a_handle_when_the_writer_publishes(core):
    a, b = core.open("a"), core.open("b")
    replica = core.put(a, "k")
    waiter = core.put(b, "k", mode=PutMode.PUT_OR_ACQUIRE)
    core.end(a, replica)
    assert core.handle_for(waiter).replica is replica


def test_a_waiting_put_or_acquire_writes_when_the_writer_gives_up(core):
    a, b = core.open("a"), core.open("b")
    replica = core.put(a, "k")
    waiter = core.put(b, "k", mode=PutMode.PUT_OR_ACQUIRE)
    core.revoke(a, replica)
    core.end(b, core.replica_for(waiter))


def test_put_or_acquire_beside_an_upsert_takes_the_old_generation(core):
    a, b = core.open("a"), core.open("b")
    old = core.store(a, "k")
    core.put(a, "k", mode=PutMode.UPSERT)
    assert core.put(b, "k", mode=PutMode.PUT_OR_ACQUIRE).replica is old


# -- ids that are not (or no longer) the caller's -----------------------------------------------------------------


@pytest.mark.parametrize("call", ["end", "end_and_acquire", "revoke"])
def test_only_the_writer_ends_its_put_and_only_once(core, call):
    a, b = core.open("a"), core.open("b")
    replica = core.put(a, "k")
    with core.refuses(Code.ILLEGAL_CLIENT):
        getattr(core, call)(b, replica)
    assert replica.state is ReplicaState.WRITING
    getattr(core, call)(a, replica)
    for late in ("end", "end_and_acquire", "revoke"):
        with core.refuses(Code.ILLEGAL_CLIENT, f"no reservation {replica.replica_id}"):
            getattr(core, late)(a, replica)


# -- put_end_and_acquire ------------------------------------------------------------------------------------------


def test_end_and_acquire_gives_the_writer_and_everyone_who_waited_a_handle_in_one_step(core):
    a, b, c = core.open("a"), core.open("b"), core.open("c")
    replica = core.put(a, "k")
    readers = [core.get(b, "k"), core.get(c, "k"), core.get(b, "k")]
    acquirer = core.put(c, "k", mode=PutMode.PUT_OR_ACQUIRE)
    mine = core.end_and_acquire(a, replica)
    answers = core.answers()
    assert [waiter for waiter, _ in answers] == [*readers, acquirer]
    handles = [mine, *(handle for _, handle in answers)]
    assert all(handle.replica is replica for handle in handles)
    assert replica.refs == 5
    # Nothing that comes after can take the bytes away from them.
    assert core.remove("k")
    assert core.used == PAGE
    for session, handle in zip((a, b, c, b, c), handles, strict=True):
        assert core.used == PAGE
        core.release(session, handle)
    assert core.used == 0


def test_end_and_acquire_keeps_its_generation_although_an_upsert_takes_over_in_the_same_step(core):
    a, b = core.open("a"), core.open("b")
    replica = core.put(a, "k")
    waiter = core.put(b, "k", mode=PutMode.UPSERT)
    handle = core.end_and_acquire(a, replica)
    core.end(b, core.replica_for(waiter))
    assert (handle.replica, replica.state) == (replica, ReplicaState.STASHED)


def test_end_and_acquire_without_room_for_a_handle_changes_nothing(make_core):
    core = make_core(handles_max=1)
    a = core.open()
    core.store(a, "held")
    held = core.get(a, "held")
    replica = core.put(a, "k")
    with core.refuses(Code.INVALID_ARGUMENT, "holds 1 views"):
        core.end_and_acquire(a, replica)
    assert replica.state is ReplicaState.WRITING
    core.release(a, held)
    assert core.end_and_acquire(a, replica).replica is replica


def test_end_and_acquire_takes_the_last_handle_before_those_who_waited_in_the_same_session(make_core):
    core = make_core(handles_max=1)
    a = core.open()
    replica = core.put(a, "k")
    reader = core.get(a, "k")
    assert core.end_and_acquire(a, replica).replica is replica
    assert core.refusal_for(reader).code is Code.INVALID_ARGUMENT
