"""get, wait and release."""

import pytest

from mooncake_client.codes import Code
from mooncake_node.core.replica import ReplicaState
from mooncake_node.core.waiting import PutMode, Waiter, Want

PAGE = 4096


def test_a_get_of_nothing_is_not_found_at_once(core):
    a = core.open()
    with core.refuses(Code.NOT_FOUND):
        core.get(a, "k")
    assert len(core.master.waiting) == 0


def test_a_get_of_a_key_being_written_waits_for_its_end(core):
    a, b = core.open("a"), core.open("b")
    replica = core.put(a, "k")
    waiter = core.get(b, "k")
    assert isinstance(waiter, Waiter)
    assert (waiter.want, waiter.began_ns, waiter.deadline_ns) == (Want.READ, core.now, core.now + 100)
    core.end(a, replica)
    handle = core.handle_for(waiter)
    assert (handle.replica, b.handles) == (replica, {handle.handle_id: handle})


def test_a_get_of_a_key_being_written_is_not_ready_at_its_deadline(core):
    a, b = core.open("writer"), core.open("b")
    replica = core.put(a, "k")
    waiter = core.get(b, "k", timeout=10)
    core.tick(later=9)
    assert core.answers() == []
    core.tick(later=1)
    refusal = core.refusal_for(waiter)
    assert (refusal.code, "writer" in refusal.message) == (Code.NOT_READY, True)
    core.end(a, replica)
    assert core.answers() == []
    assert replica.refs == 0


@pytest.mark.parametrize("timeout", [0, -1])
def test_a_get_with_no_time_left_is_not_ready_at_once(core, timeout):
    a, b = core.open("a"), core.open("b")
    core.put(a, "k")
    with core.refuses(Code.NOT_READY):
        core.get(b, "k", timeout=timeout)


def test_a_get_beside_an_upsert_reads_the_old_generation_at_once(core):
    a, b = core.open("a"), core.open("b")
    old = core.store(a, "k")
    core.put(a, "k", mode=PutMode.UPSERT)
    assert core.get(b, "k", timeout=0).replica is old


def test_a_get_waits_for_an_upsert_when_the_old_generation_is_removed(core):
    a, b = core.open("a"), core.open("b")
    core.store(a, "k")
    new = core.put(a, "k", mode=PutMode.UPSERT)
    core.remove("k")
    waiter = core.get(b, "k")
    core.end(a, new)
    assert core.handle_for(waiter).replica is new


def test_readers_are_told_not_found_when_the_writer_gives_up(core):
    a, b, c = core.open("a"), core.open("b"), core.open("c")
    replica = core.put(a, "k")
    waiters = [core.get(b, "k"), core.get(c, "k")]
    core.revoke(a, replica)
    answers = core.answers()
    assert [waiter for waiter, _ in answers] == waiters
    assert [refusal.code for _, refusal in answers] == [Code.NOT_FOUND] * 2


def test_readers_wait_on_when_another_put_takes_over(core):
    a, b, c = core.open("a"), core.open("b"), core.open("c")
    replica = core.put(a, "k")
    reader = core.get(c, "k")
    put = core.put(b, "k")
    core.revoke(a, replica)
    taken = core.replica_for(put)
    assert (reader.open, reader.want) == (True, Want.READ)
    core.end(b, taken)
    assert core.handle_for(reader).replica is taken


def test_readers_are_told_not_found_when_the_put_that_would_take_over_finds_no_room(core):
    a, b = core.open("a"), core.open("b")
    core.store(a, "other", softpin=True)
    replica = core.put(a, "k")
    put = core.put(b, "k", 4 * PAGE)
    reader = core.get(b, "k")
    core.revoke(a, replica)
    assert core.refusal_for(reader).code is Code.NOT_FOUND
    assert put.want is Want.ROOM


def test_readers_hold_the_first_generation_before_a_waiting_upsert_begins_the_next(core):
    a, b, c = core.open("a"), core.open("b"), core.open("c")
    replica = core.put(a, "k")
    upsert = core.put(b, "k", mode=PutMode.UPSERT)
    reader = core.get(c, "k")
    core.end(a, replica)
    [(first, handle), (second, new)] = core.answers()
    assert (first, second) == (reader, upsert)
    assert handle.replica is replica
    assert (new.state, new.generation > replica.generation) == (ReplicaState.WRITING, True)


def test_two_gets_of_one_key_are_two_handles_on_the_same_bytes(core):
    a = core.open()
    replica = core.store(a, "k")
    one, two = core.get(a, "k"), core.get(a, "k")
    assert one.handle_id != two.handle_id
    assert one.replica is two.replica is replica
    assert replica.refs == 2
    core.release(a, one)
    assert replica.refs == 1


def test_handle_ids_grow_and_are_not_reused_after_a_release(core):
    a = core.open()
    core.store(a, "k")
    ids = []
    for _ in range(3):
        handle = core.get(a, "k")
        ids.append(handle.handle_id)
        core.release(a, handle)
    assert ids == [1, 2, 3]


def test_a_handle_given_back_twice_counts_once(core):
    a, b = core.open("a"), core.open("b")
    replica = core.store(a, "k")
    one, _other = core.get(a, "k"), core.get(b, "k")
    core.release(a, one, one)
    core.release(a, one)
    assert replica.refs == 1
    assert core.stat("handles") == 1


def test_foreign_and_made_up_handle_ids_change_nothing(core):
    a, b = core.open("a"), core.open("b")
    replica = core.store(a, "k")
    handle = core.get(a, "k")
    core.release(b, handle)
    core.release_ids(a, [0, -1, 99, 1 << 70])
    assert replica.refs == 1


def test_the_last_release_of_a_readable_object_keeps_it_readable(core):
    a = core.open()
    replica = core.store(a, "k")
    core.release(a, core.get(a, "k"))
    assert core.readable("k") is replica


def test_gets_answered_at_once_are_counted_as_local_hits(core):
    a = core.open()
    replica = core.put(a, "k")
    core.get(a, "k")
    core.end(a, replica)
    assert core.stat("load.local_hits") == 0
    core.get(a, "k")
    assert core.stat("load.local_hits") == 1


# -- looking without a reference ----------------------------------------------------------------------------------


def test_looking_at_a_key_tells_nothing_from_not_ready_and_takes_no_reference(core):
    a = core.open()
    with core.refuses(Code.NOT_FOUND):
        core.master.readable("k", core.now)
    replica = core.put(a, "k")
    with core.refuses(Code.NOT_READY):
        core.master.readable("k", core.now)
    core.end(a, replica)
    assert core.master.readable("k", core.now) is replica
    assert replica.refs == 0


# -- wait ---------------------------------------------------------------------------------------------------------


def test_wait_for_a_readable_key_returns_at_once(core):
    a = core.open()
    core.store(a, "k")
    assert core.wait(a, "k", timeout=0) is None


def test_wait_is_answered_when_its_key_is_readable_and_not_before(core):
    a, b = core.open("a"), core.open("b")
    waiter = core.wait(b, "k")
    replica = core.put(a, "k")
    core.revoke(a, replica)
    replica = core.put(a, "k")
    assert core.answers() == []
    core.end(a, replica)
    assert core.answers() == [(waiter, None)]
    assert replica.refs == 0


def test_wait_runs_out_of_time_at_its_deadline(core):
    a = core.open()
    waiter = core.wait(a, "k", timeout=10)
    core.tick(later=10)
    assert core.refusal_for(waiter).code is Code.TIMEOUT


def test_wait_with_no_time_left_is_a_timeout_at_once(core):
    a = core.open()
    with core.refuses(Code.TIMEOUT):
        core.wait(a, "k", timeout=0)
    core.put(a, "k")
    with core.refuses(Code.TIMEOUT):
        core.wait(a, "k", timeout=0)


# -- cancel -------------------------------------------------------------------------------------------------------


def test_a_cancelled_get_gets_no_handle(core):
    a, b = core.open("a"), core.open("b")
    replica = core.put(a, "k")
    waiter = core.get(b, "k")
    core.cancel(waiter)
    core.cancel(waiter)
    core.end(a, replica)
    core.tick(later=1000)
    assert core.answers() == []
    assert replica.refs == 0


def test_a_cancelled_put_takes_nothing_over(core):
    a, b, c = core.open("a"), core.open("b"), core.open("c")
    replica = core.put(a, "k")
    given_up, second = core.put(b, "k"), core.put(c, "k")
    core.cancel(given_up)
    core.revoke(a, replica)
    assert core.replica_for(second).writer == c.session_id


def test_cancelling_what_was_answered_changes_nothing(core):
    a, b = core.open("a"), core.open("b")
    replica = core.put(a, "k")
    waiter = core.get(b, "k")
    core.end(a, replica)
    core.cancel(waiter)
    assert core.handle_for(waiter).replica is replica
    assert replica.refs == 1


# -- the timer ----------------------------------------------------------------------------------------------------


def test_the_next_deadline_is_the_earliest_of_those_who_still_wait(core):
    a, b = core.open("a"), core.open("b")
    assert core.master.next_deadline_ns(core.now) is None
    core.put(a, "k")
    late, early = core.get(b, "k", timeout=50), core.wait(b, "other", timeout=20)
    assert core.master.next_deadline_ns(core.now) == core.now + 20
    core.cancel(early)
    assert core.master.next_deadline_ns(core.now) == core.now + 50
    core.cancel(late)
    assert core.master.next_deadline_ns(core.now) is None


def test_one_tick_answers_everyone_whose_time_is_up_earliest_first(core):
    a = core.open()
    waiters = {timeout: core.wait(a, "k", timeout=timeout) for timeout in (30, 10, 20, 40)}
    core.tick(later=30)
    assert [waiter for waiter, _ in core.answers()] == [waiters[10], waiters[20], waiters[30]]
    assert core.master.next_deadline_ns(core.now) == waiters[40].deadline_ns
