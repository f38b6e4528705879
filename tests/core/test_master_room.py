"""Puts that wait for room."""

import pytest

from mooncake_client.codes import Code
from mooncake_node.core.reclaim import DIRECT_PASSES_MAX
from mooncake_node.core.sessions import Handle
from mooncake_node.core.waiting import PUTS_RETRIED_MAX, PutMode, Want

PAGE = 4096


@pytest.fixture
def core(make_core):
    """Full once it is full: nothing in it may be dropped."""
    return make_core(pinned=True)


def test_a_put_that_finds_no_room_waits_and_gets_it_from_a_remove(core):
    a, b = core.open("a"), core.open("b")
    core.store(a, "big", 4 * PAGE)
    put = core.put(b, "k")
    assert (put.want, core.stat("waiting_puts"), core.stat("waiting")) == (Want.ROOM, 1, 1)
    core.now += 5
    core.remove("big")
    replica = core.replica_for(put)
    assert (replica.key, replica.since_ns) == ("k", core.now)
    assert (core.stat("waiting_puts"), core.stat("waiting")) == (0, 0)
    core.end(b, replica)


@pytest.mark.parametrize("how", ["release", "revoke", "death", "upsert"])
def test_room_that_comes_back_in_any_way_goes_to_who_waits_for_it(core, how):
    a, b = core.open("a"), core.open("b")
    if how == "revoke":
        held = core.put(a, "big", 4 * PAGE)
    elif how == "upsert":
        core.store(a, "big", 3 * PAGE)
        held = core.put(a, "big", PAGE, mode=PutMode.UPSERT)
    else:
        core.store(a, "big", 4 * PAGE)
        held = core.get(a, "big")
        core.remove("big")
    put = core.put(b, "k", 3 * PAGE)
    assert put.want is Want.ROOM
    if how == "release":
        core.release(a, held)
    elif how == "revoke":
        core.revoke(a, held)
    elif how == "upsert":
        core.end(a, held)
    else:
        core.end_session(a)
    assert core.replica_for(put).nbytes == 3 * PAGE


def test_puts_get_room_in_order_of_arrival(core):
    a, b = core.open("a"), core.open("b")
    core.store(a, "big", 4 * PAGE)
    puts = [core.put(b, f"k{i}", 2 * PAGE) for i in range(3)]
    core.remove("big")
    assert [waiter for waiter, _ in core.answers()] == puts[:2]
    assert puts[2].open


def test_a_smaller_put_passes_a_head_that_does_not_fit(core):
    a, b = core.open("a"), core.open("b")
    for i in range(4):
        core.store(a, f"k{i}")
    head, small = core.put(b, "head", 2 * PAGE), core.put(b, "small")
    core.remove("k1")
    replica = core.replica_for(small)
    assert head.open
    core.remove("k0")
    assert core.answers() == []
    core.revoke(b, replica)
    core.replica_for(head)


def test_a_put_that_fits_does_not_wait_behind_one_that_does_not(core):
    a, b = core.open("a"), core.open("b")
    core.store(a, "k", 3 * PAGE)
    core.put(b, "head", 2 * PAGE)
    assert core.put(b, "small").nbytes == PAGE


def test_a_put_without_room_is_refused_at_its_deadline_with_what_holds_the_memory(core):
    a, b = core.open("a"), core.open("b")
    core.store(a, "read", PAGE)
    core.get(a, "read")
    core.get(a, "read")
    core.store(a, "stashed", PAGE)
    core.get(a, "stashed")
    core.remove("stashed")
    core.put(a, "doomed", PAGE)
    core.clear()
    core.store(a, "k", 100)
    put = core.put(b, "new", PAGE, timeout=2_500_000_000)
    core.tick(later=2_500_000_000)
    refusal = core.refusal_for(put)
    assert refusal.code is Code.NO_SPACE
    assert refusal.message == (
        "no room for 4096 bytes within 2.5 s: 0 of 16384 bytes free, largest free extent 0; 1 objects; "
        "2 replicas of 8192 bytes held by readers: 'read' (4096 bytes) by a (pid 4711) for 2.5 s, "
        "'stashed' (4096 bytes) by a (pid 4711) for 2.5 s; 0 being written (0 bytes); "
        "1 removed but still read (4096 bytes); 1 given up but not yet let go by their writers (4096 bytes); "
        "4196 bytes pinned soft, in memory or on disk; there is no offload directory for them to go to"
    )
    core.remove("k")
    assert core.answers() == []


def test_a_put_with_no_time_left_is_refused_at_once_when_there_is_no_room(core):
    a = core.open()
    core.put(a, "k", 4 * PAGE)
    with core.refuses(Code.NO_SPACE, r"within 0 s.*1 being written \(16384 bytes\)"):
        core.put(a, "l", timeout=0)
    assert len(core.master.waiting) == 0


@pytest.mark.parametrize(
    ("mode", "code"), [(PutMode.PUT, Code.EXISTS), (PutMode.PUT_OR_ACQUIRE, None), (PutMode.UPSERT, None)]
)
def test_a_put_that_waits_for_room_while_its_key_appears(core, mode, code):
    """A put is refused, put-or-acquire gets a handle, an upsert waits on."""
    a, b = core.open("a"), core.open("b")
    core.store(a, "big", 3 * PAGE)
    waiting = core.put(b, "k", 2 * PAGE, mode=mode)
    replica = core.store(a, "k", PAGE)
    if mode is PutMode.UPSERT:
        assert (waiting.want, core.answers()) == (Want.ROOM, [])
        core.remove("big")
        core.end(b, core.replica_for(waiting))
    elif code:
        assert core.refusal_for(waiting).code is code
    else:
        assert core.handle_for(waiting).replica is replica


def test_a_put_that_waits_for_room_while_its_key_is_written_by_another_waits_for_its_turn(core):
    a, b = core.open("a"), core.open("b")
    core.store(a, "big", 3 * PAGE)
    waiting = core.put(b, "k", 2 * PAGE)
    replica = core.put(a, "k", PAGE)
    core.remove("big")
    assert (waiting.want, core.stat("waiting_puts"), core.answers()) == (Want.TURN, 0, [])
    core.revoke(a, replica)
    assert core.replica_for(waiting).nbytes == 2 * PAGE


def test_a_put_that_takes_over_and_finds_no_room_waits_for_it_until_its_own_deadline(core):
    a, b = core.open("a"), core.open("b")
    core.store(a, "other")
    replica = core.put(a, "k")
    waiting = core.put(b, "k", 4 * PAGE, timeout=10)
    core.revoke(a, replica)
    assert (waiting.want, core.stat("waiting_puts")) == (Want.ROOM, 1)
    core.tick(later=10)
    assert core.refusal_for(waiting).code is Code.NO_SPACE


def test_the_turn_goes_to_the_next_when_the_first_does_not_fit(core):
    a, b, c = core.open("a"), core.open("b"), core.open("c")
    core.store(a, "other")
    replica = core.put(a, "k")
    large, small = core.put(b, "k", 4 * PAGE), core.put(c, "k")
    core.revoke(a, replica)
    assert core.replica_for(small).writer == c.session_id
    assert large.open


def test_a_cancelled_put_gets_no_room(core):
    a, b = core.open("a"), core.open("b")
    core.store(a, "big", 4 * PAGE)
    first, second = core.put(b, "k", 4 * PAGE), core.put(b, "l", 4 * PAGE)
    core.cancel(first)
    core.remove("big")
    core.replica_for(second)


# -- more of them than are looked at when room comes back ---------------------------------------------------------

LONG = PUTS_RETRIED_MAX + 6


def test_every_put_that_fits_gets_room_at_once_however_many_wait(make_core):
    """Found by reading: those behind the first PUTS_RETRIED_MAX waited on beside free room."""
    core = make_core(pages=2 * LONG, pinned=True)
    a, b = core.open("a"), core.open("b")
    core.store(a, "big", 2 * LONG * PAGE)
    puts = [core.put(b, f"k{i}") for i in range(2 * LONG)]
    core.remove("big")
    assert [waiter for waiter, _ in core.answers()] == puts


def a_long_queue(core, a, b):
    """PUTS_RETRIED_MAX puts that do not fit, and behind them one that does and is out of view."""
    core.store(a, "k0")
    core.store(a, "rest", 3 * PAGE)
    heads = [core.put(b, f"head{i}", 2 * PAGE, timeout=100 if i else 50) for i in range(PUTS_RETRIED_MAX)]
    last = core.put(b, "last", PAGE, timeout=1000)
    core.remove("k0")
    assert core.answers() == []
    assert core.master.next_deadline_ns(core.now) == core.now + 50
    return heads, last


def test_puts_out_of_view_are_passed_over_until_one_before_them_runs_out_of_time(core):
    heads, last = a_long_queue(core, core.open("a"), core.open("b"))
    core.tick(later=50)
    [(late, refusal), (served, replica)] = core.answers()
    assert (late, refusal.code) == (heads[0], Code.NO_SPACE)
    assert (served, replica.key) == (last, "last")


def test_a_put_comes_into_view_when_one_before_it_is_cancelled(core):
    heads, last = a_long_queue(core, core.open("a"), core.open("b"))
    core.cancel(heads[5])
    assert core.replica_for(last).key == "last"
    assert core.master.next_deadline_ns(core.now) == core.now + 50


def test_a_put_comes_into_view_when_one_before_it_is_answered_by_its_key(core):
    a, b = core.open("a"), core.open("b")
    heads, last = a_long_queue(core, a, b)
    replica = core.put(a, "head3", 0)
    core.end(a, replica)
    assert [waiter for waiter, _ in core.answers()] == [heads[3], last]


def test_a_put_comes_into_view_when_the_client_before_it_dies(core):
    a, b, c = core.open("a"), core.open("b"), core.open("c")
    core.store(a, "k0")
    core.store(a, "rest", 3 * PAGE)
    for i in range(LONG):
        core.put(b, f"head{i}", 2 * PAGE)
    last = core.put(c, "last")
    core.remove("k0")
    core.end_session(b)
    assert core.replica_for(last).key == "last"


def test_a_put_comes_into_view_when_room_comes_back_for_one_before_it(core):
    a, b = core.open("a"), core.open("b")
    heads, last = a_long_queue(core, a, b)
    core.remove("rest")
    answers = core.answers()
    assert [waiter for waiter, _ in answers] == [*heads[:2]]
    core.revoke(b, answers[0][1])
    assert [waiter for waiter, _ in core.answers()] == [heads[2]]
    assert last.open


def test_a_long_queue_is_cleared_whole_and_nothing_is_due_after_the_next_tick(core):
    heads, last = a_long_queue(core, core.open("a"), core.open("b"))
    core.clear()
    assert {waiter.number for waiter, _ in core.answers()} == {waiter.number for waiter in [*heads, last]}
    assert core.master.next_deadline_ns(core.now) == 0
    core.tick()
    assert core.master.next_deadline_ns(core.now) is None


# -- limits hold for puts that waited, too ------------------------------------------------------------------------


def test_puts_that_waited_do_not_together_pass_the_limit_of_reservations(make_core):
    """Found by reading: the limit was checked when a put came, not when it got its room."""
    core = make_core(pinned=True, reservations_max=2)
    a, b = core.open("a"), core.open("b")
    core.store(a, "big", 4 * PAGE)
    puts = [core.put(b, f"k{i}") for i in range(3)]
    core.remove("big")
    answers = core.answers()
    assert [waiter for waiter, _ in answers] == puts
    assert len(b.reservations) == 2
    assert answers[2][1].code is Code.NO_SPACE
    assert "2 unpublished puts" in answers[2][1].message


def test_puts_that_waited_do_not_together_pass_the_cap_of_hard_pins(make_core):
    """Found by reading: the cap was checked when a put came, not when it got its room."""
    core = make_core(pinned=True, hard_pin_nbytes_max=2 * PAGE)
    a, b = core.open("a"), core.open("b")
    core.store(a, "big", 4 * PAGE)
    for i in range(3):
        core.put(b, f"k{i}", hardpin=True)
    core.remove("big")
    outcomes = [outcome for _, outcome in core.answers()]
    assert core.stat("pinned.hard_bytes") == 2 * PAGE
    assert outcomes[2].code is Code.NO_SPACE


def test_a_turn_its_client_may_not_take_goes_to_the_next(make_core):
    core = make_core(pinned=True, reservations_max=1)
    a, b, c = core.open("a"), core.open("b"), core.open("c")
    replica = core.put(a, "k")
    refused, served = core.put(b, "k"), core.put(c, "k")
    core.put(b, "other")
    core.revoke(a, replica)
    [(first, refusal), (second, taken)] = core.answers()
    assert (first, refusal.code) == (refused, Code.NO_SPACE)
    assert (second, taken.writer) == (served, c.session_id)


def test_a_put_or_acquire_that_waited_gets_no_handle_past_the_limit(make_core):
    core = make_core(handles_max=1)
    a, b = core.open("a"), core.open("b")
    core.store(a, "held")
    held = core.get(b, "held")
    assert isinstance(held, Handle)
    replica = core.put(a, "k")
    waiting = core.put(b, "k", mode=PutMode.PUT_OR_ACQUIRE)
    core.end(a, replica)
    assert core.refusal_for(waiting).code is Code.INVALID_ARGUMENT
    assert replica.refs == 0


def test_what_is_dropped_for_one_that_waits_may_be_room_for_one_before_it(make_core):
    """The first has dropped as much as one step may, in pieces too small for it; the second drops one large object."""
    pieces = 8 * DIRECT_PASSES_MAX
    core = make_core(pages=2 * pieces + 16)
    a, b = core.open("a"), core.open("b")
    handles, kept = [], []
    for number in range(pieces):
        handles.append(core.get(a, core.store(a, f"piece {number}").key))
        kept.append(core.get(b, core.store(b, f"kept {number}").key))
    handles.append(core.get(a, core.store(a, "large", 16 * PAGE).key))
    first = core.put(b, "first", 8 * PAGE)
    second = core.put(b, "second", 2 * PAGE)
    core.release(a, *handles)
    answers = core.answers()
    assert [waiter for waiter, _ in answers] == [second, first]
    for _, replica in answers:
        core.revoke(b, replica)
    core.release(b, *kept)
