"""WaitingRoom alone: who waits for what, in which order, until when."""

import random

import pytest

from mooncake_node.core.replica import PLAIN
from mooncake_node.core.sessions import Session
from mooncake_node.core.waiting import PUTS_RETRIED_MAX, Put, Waiter, WaitingRoom, Want


@pytest.fixture
def room():
    return WaitingRoom()


@pytest.fixture
def session():
    return Session(1, "client", 4711, readonly=False)


def enter(room, session, key="k", *, want=Want.TURN, deadline=100):
    put = Put(key=key, nbytes=1, contract=PLAIN) if want in (Want.TURN, Want.ROOM) else None
    waiter = Waiter(session=session, want=want, key=key, put=put, deadline_ns=deadline, began_ns=0)
    room.add(waiter)
    return waiter


def test_an_empty_room_has_no_deadline_and_nobody_in_it(room, session):
    assert len(room) == 0
    assert room.next_deadline_ns() is None
    assert room.close_expired(1 << 62) == []
    assert room.of_key("k") == room.of_session(session) == room.all_open() == []


def test_waiters_of_a_key_come_in_order_of_arrival_whatever_they_wait_for(room, session):
    waiters = [enter(room, session, want=want) for want in (Want.TURN, Want.READ, Want.ROOM, Want.PRESENCE)]
    enter(room, session, "other")
    assert room.of_key("k") == waiters
    assert [waiter.number for waiter in waiters] == [1, 2, 3, 4]


def test_turning_to_something_else_keeps_the_place_among_those_of_the_key(room, session):
    first, second = enter(room, session), enter(room, session)
    room.turn_into(first, Want.ROOM)
    assert room.of_key("k") == [first, second]
    assert list(room.for_room.values()) == [first]
    room.turn_into(first, Want.TURN)
    assert room.of_key("k") == [first, second]
    assert (list(room.for_room), len(room)) == ([], 2)


def test_waiting_on_for_room_keeps_the_place_in_the_queue(room, session):
    waiters = [enter(room, session, want=Want.ROOM) for _ in range(3)]
    room.turn_into(waiters[0], Want.ROOM)
    assert list(room.for_room.values()) == waiters


def test_a_waiter_is_closed_once_and_found_nowhere_after(room, session):
    waiter = enter(room, session, want=Want.ROOM)
    other = enter(room, session)
    room.close(waiter)
    room.close(waiter)
    assert (len(room), session.waiting) == (1, 1)
    assert room.of_key("k") == room.of_session(session) == room.all_open() == [other]
    assert list(room.for_room) == []
    room.close(other)
    assert (room.by_key, len(room), session.waiting) == ({}, 0, 0)


def test_those_whose_time_is_up_are_closed_earliest_first_and_of_equals_the_first_come(room, session):
    waiters = [enter(room, session, deadline=deadline) for deadline in (30, 10, 30, 20, 31)]
    closed = waiters[3]
    room.close(closed)
    assert room.next_deadline_ns() == 10
    assert room.close_expired(9) == []
    assert room.close_expired(30) == [waiters[1], waiters[0], waiters[2]]
    assert (room.next_deadline_ns(), len(room)) == (31, 1)
    assert not waiters[0].open


def test_the_waiters_of_a_session_are_its_own(room, session):
    other = Session(2, "other", 4712, readonly=False)
    mine, theirs = enter(room, session), enter(room, other)
    assert room.of_session(session) == [mine]
    assert room.of_session(other) == [theirs]
    assert (session.waiting, other.waiting) == (1, 1)


def test_closed_waiters_do_not_pile_up_until_their_deadline(room, session):
    kept = [enter(room, session, deadline=500 + i) for i in range(10)]
    for i in range(10_000):
        room.close(enter(room, session, deadline=1000 - i % 7))
        assert len(room._heap) <= 2 * 65 + 10
    assert room.all_open() == kept
    assert len(room) == 10
    assert room.close_expired(505) == kept[:6]


def test_the_room_agrees_with_a_sorted_list_of_deadlines(room, session):
    rng = random.Random(4)
    expected = []
    for now in range(2_000):
        for _ in range(rng.randrange(4)):
            expected.append(enter(room, session, rng.choice("ab"), deadline=now + rng.randrange(1, 600)))
        for _ in range(rng.randrange(4)):
            if expected:
                room.close(expected.pop(rng.randrange(len(expected))))
        expected.sort(key=lambda waiter: (waiter.deadline_ns, waiter.number))
        assert room.next_deadline_ns() == (expected[0].deadline_ns if expected else None)
        due = [waiter for waiter in expected if waiter.deadline_ns <= now]
        assert room.close_expired(now) == due
        del expected[: len(due)]
        assert len(room) == len(expected) == session.waiting


@pytest.mark.parametrize(("more", "moved_up"), [(0, False), (1, True)])
@pytest.mark.parametrize("leave", ["close", "turn", "expire"])
def test_another_comes_into_view_only_when_more_wait_for_room_than_are_looked_at(room, session, more, moved_up, leave):
    waiters = [enter(room, session, want=Want.ROOM, deadline=10 + i) for i in range(PUTS_RETRIED_MAX + more)]
    assert not room.moved_up
    if leave == "close":
        room.close(waiters[0])
    elif leave == "turn":
        room.turn_into(waiters[0], Want.TURN)
    else:
        assert room.close_expired(10) == waiters[:1]
    assert room.moved_up is moved_up
