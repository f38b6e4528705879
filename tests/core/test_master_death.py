"""The end of a session: everything it held comes back, exactly once, and nobody else's is touched."""

from mooncake_client.codes import Code
from mooncake_node.core.replica import ReplicaState
from mooncake_node.core.waiting import PutMode, Want

PAGE = 4096


def test_a_session_that_held_nothing_leaves_nothing(core):
    a = core.open()
    core.end_session(a)
    assert (a.open, core.master.sessions) == (False, {})


def test_a_session_ends_once(core):
    a, b = core.open("a"), core.open("b")
    replica = core.store(b, "k")
    core.get(a, "k")
    core.get(b, "k")
    core.end_session(a)
    core.end_session(a)
    assert replica.refs == 1
    assert core.stat("handles") == 1
    assert core.stat("clients") == 1


def test_session_ids_are_not_reused(core):
    a = core.open()
    core.end_session(a)
    assert core.open().session_id != a.session_id


def test_what_a_dead_client_published_stays(core):
    a, b = core.open("a"), core.open("b")
    replica = core.store(a, "k")
    core.end_session(a)
    assert core.get(b, "k").replica is replica


def test_the_reservations_of_a_dead_writer_are_freed(core):
    a = core.open()
    core.put(a, "k")
    core.put(a, "l", 100)
    core.end_session(a)
    assert core.used == 0


def test_a_dead_writer_wakes_exactly_one_waiting_put(core):
    a, b, c = core.open("a"), core.open("b"), core.open("c")
    core.put(a, "k")
    second, third = core.put(b, "k"), core.put(c, "k")
    core.end_session(a)
    core.end(b, core.replica_for(second))
    assert core.refusal_for(third).code is Code.EXISTS


def test_readers_of_a_dead_writers_key_are_told(core):
    a, b = core.open("a"), core.open("b")
    core.put(a, "k")
    reader = core.get(b, "k")
    core.end_session(a)
    assert core.refusal_for(reader).code is Code.NOT_FOUND


def test_a_dead_client_does_not_take_over_from_itself(core):
    a = core.open()
    core.put(a, "k")
    core.put(a, "k")
    core.get(a, "k")
    core.end_session(a)
    assert (core.used, core.answers(), len(core.master.waiting)) == (0, [], 0)


def test_a_client_that_dies_while_it_waits_gets_nothing(core):
    a, b, c = core.open("a"), core.open("b"), core.open("c")
    replica = core.put(a, "k", 4 * PAGE)
    reader, turn, room, presence = core.get(b, "k"), core.put(b, "k"), core.put(b, "l"), core.wait(b, "m")
    other = core.put(c, "k")
    core.end_session(b)
    assert not any(waiter.open for waiter in (reader, turn, room, presence))
    core.revoke(a, replica)
    assert core.replica_for(other).writer == c.session_id


def test_a_death_before_the_answer_was_sent_takes_back_what_the_answer_gave(core):
    a, b, c = core.open("a"), core.open("b"), core.open("c")
    replica = core.put(a, "k")
    core.get(b, "k")
    upsert = core.put(b, "k", mode=PutMode.UPSERT)
    core.end(a, replica)
    assert replica.refs == 1
    core.end_session(b)
    assert not upsert.open
    assert (replica.refs, core.used) == (0, PAGE)
    core.store(c, "k", mode=PutMode.UPSERT)


def test_a_thousand_handles_come_back_at_once(core):
    a, b = core.open("a"), core.open("b")
    kept, stashed = core.store(a, "kept"), core.store(a, "stashed")
    core.get(b, "kept")
    for _ in range(500):
        core.get(a, "kept")
        core.get(a, "stashed")
    core.remove("stashed")
    assert core.stat("handles") == 1001
    core.end_session(a)
    assert (kept.refs, stashed.refs, core.stat("handles")) == (1, 0, 1)
    assert (kept.state, stashed.state) == (ReplicaState.COMPLETE, ReplicaState.GONE)


def test_a_stash_that_others_still_read_outlives_the_dead(core):
    a, b = core.open("a"), core.open("b")
    replica = core.store(a, "k")
    core.get(a, "k")
    handle = core.get(b, "k")
    core.remove("k")
    core.end_session(a)
    assert replica.state is ReplicaState.STASHED
    core.release(b, handle)
    assert replica.state is ReplicaState.GONE


def test_a_doomed_reservation_is_freed_by_the_death_and_the_new_writer_of_its_key_is_not_touched(core):
    a, b, c = core.open("a"), core.open("b"), core.open("c")
    doomed = core.put(a, "k")
    core.clear()
    new = core.put(b, "k")
    waiting = core.put(c, "k")
    core.end_session(a)
    assert (doomed.state, new.state, waiting.open) == (ReplicaState.GONE, ReplicaState.WRITING, True)
    assert core.answers() == []
    assert core.used == PAGE


def test_all_a_dead_client_held_goes_to_who_waits_for_room(core):
    a, b = core.open("a"), core.open("b")
    core.put(a, "written", PAGE)
    core.store(a, "stashed", PAGE)
    core.get(a, "stashed")
    core.remove("stashed")
    core.put(a, "doomed", 2 * PAGE)
    core.clear()
    put = core.put(b, "k", 4 * PAGE)
    assert put.want is Want.ROOM
    core.end_session(a)
    assert core.replica_for(put).nbytes == 4 * PAGE


def test_late_calls_of_a_dead_client_change_nothing(core):
    a, b = core.open("a"), core.open("b")
    written, replica = core.put(a, "w"), core.store(a, "k")
    handle = core.get(a, "k")
    core.get(b, "k")
    core.end_session(a)
    for call in (core.end, core.end_and_acquire, core.revoke):
        with core.refuses(Code.ILLEGAL_CLIENT):
            call(a, written)
    core.release(a, handle)
    assert replica.refs == 1
