"""The client's end of a connection without IO: every reply reaches its call once, and nothing granted is lost."""

import pytest

from mooncake_client import StoreError, wire
from mooncake_client.errors import DaemonGoneError
from mooncake_client.framing import FramingError, Unpacker, pack
from mooncake_client.session import Session

GRANT = wire.Grant(7, 1, 0, 10, 0, 5)


@pytest.fixture
def woken():
    return []


@pytest.fixture
def session(woken):
    return Session(lambda: woken.append(True))


def deliver(session: Session, *replies: wire.Message) -> list[wire.Request]:
    session.unpacker.chunks.append(b"".join(map(pack, replies)))
    return list(session.receive())


def sent(frame: bytes) -> wire.AnyRequest:
    (message,) = Unpacker(wire.AnyRequest).feed(frame)
    return message


def test_replies_in_any_order_reach_their_calls(session):
    first, _ = session.begin(wire.Stats(0, []))
    second, _ = session.begin(wire.Exists(0, [], ["k"]))
    assert first.request_id != second.request_id
    deliver(session, wire.Flags(second.request_id, [True]))
    assert second.ended
    assert not first.ended
    deliver(session, wire.Facts(first.request_id, {}))
    assert first.reply == wire.Facts(first.request_id, {})


def test_reply_nobody_asked_for_is_ignored(session):
    assert deliver(session, wire.Done(99), wire.Acquired(98, [GRANT])) == []


def test_end_of_a_call_is_told_once(session):
    ends = []
    call, _ = session.begin(wire.Stats(0, []), lambda: ends.append(True))
    deliver(session, wire.Facts(call.request_id, {}), wire.Facts(call.request_id, {}))
    assert ends == [True]


def test_late_grants_of_a_caller_who_gave_up_are_given_back(session):
    call, _ = session.begin(wire.Acquire(0, [], ["k", "n"], 0))
    (cancel,) = session.abandon(call)
    assert cancel == wire.Cancel(0, [], call.request_id)
    notices = deliver(session, wire.Acquired(call.request_id, [GRANT, wire.Failure(-704, "")]))
    assert [sent(session.frame(notice)).released for notice in notices] == [[7]]


def test_late_room_of_a_caller_who_gave_up_is_given_back(session):
    call, _ = session.begin(wire.PutStart(0, [], [], 0))
    session.abandon(call)
    notices = deliver(session, wire.PutStarted(call.request_id, [wire.Reservation(3, 0), wire.Deferred()]))
    assert notices == [wire.PutRevoke(0, [], [3])]


def test_grant_that_came_just_before_the_caller_gave_up_is_given_back(session):
    call, _ = session.begin(wire.Acquire(0, [], ["k"], 0))
    deliver(session, wire.Acquired(call.request_id, [GRANT]))
    notices = session.abandon(call)
    assert [sent(session.frame(notice)).released for notice in notices] == [[7]]


def test_handles_let_go_ride_on_the_next_request_once(session, woken):
    session.live[7] = session.live[8] = None
    session.let_go(7)
    session.let_go(8)
    assert woken
    assert not session.idle
    _, frame = session.begin(wire.Stats(0, []))
    assert sent(frame).released == [7, 8]
    _, frame = session.begin(wire.Stats(0, []))
    assert sent(frame).released == []
    assert session.idle


def test_leftovers_tell_of_handles_and_room_without_a_request(session):
    session.live[7] = session.drafts[3] = None
    assert session.holds
    session.let_go(7)
    session.give_up(3)
    assert not session.holds
    notices = session.leftovers()
    assert [type(notice) for notice in notices] == [wire.PutRevoke, wire.Released]
    assert [sent(session.frame(notice)).released for notice in notices] == [[7], []]
    assert session.leftovers() == []
    assert session.idle


def test_published_room_is_not_given_back(session, woken):
    session.drafts[3] = None
    session.drafts.pop(3)
    session.give_up(3)
    assert session.leftovers() == []
    assert woken


def test_request_that_cannot_be_packed_enters_nothing_and_loses_no_handle(session):
    session.live[7] = None
    session.let_go(7)
    with pytest.raises(FramingError):
        session.begin(wire.Exists(0, [], ["k" * (wire.FRAME_NBYTES_MAX + 1)]))
    _, frame = session.begin(wire.Stats(0, []))
    assert sent(frame).released == [7]
    session.lose(lambda: DaemonGoneError("gone"))


def test_lost_connection_ends_every_call_with_an_error_of_its_own(session):
    calls = [session.begin(wire.Stats(0, []))[0] for _ in range(3)]
    session.lose(lambda: DaemonGoneError("gone"))
    errors = [call.error for call in calls]
    assert all(isinstance(error, DaemonGoneError) for error in errors)
    assert len(set(map(id, errors))) == 3
    for call in calls:
        with pytest.raises(StoreError):
            session.outcome(call)


def test_last_words_of_the_daemon_are_kept(session):
    deliver(session, wire.Failed(0, -600, "not a frame"))
    assert session.farewell is not None
    assert session.farewell.message == "not a frame"


def test_refusal_is_raised_as_its_class(session):
    call, _ = session.begin(wire.Stats(0, []))
    deliver(session, wire.Failed(call.request_id, -901, "too late"))
    with pytest.raises(TimeoutError):
        session.outcome(call)
