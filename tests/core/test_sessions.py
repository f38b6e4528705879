"""Sessions alone: handles taken and given back."""

import pytest

from mooncake_node.core.replica import PLAIN, Replica, ReplicaState
from mooncake_node.core.sessions import Session


@pytest.fixture
def replica():
    return Replica(1, "k", 1, 0, 10, 0, 0, PLAIN, ReplicaState.COMPLETE)


def test_handles_are_numbered_from_one_and_count_as_references(replica):
    session = Session(3, "client", 4711, readonly=False)
    one, two = session.take(replica, 5), session.take(replica, 6)
    assert [(h.handle_id, h.since_ns) for h in (one, two)] == [(1, 5), (2, 6)]
    assert session.handles == {1: one, 2: two}
    assert replica.refs == 2


def test_a_handle_is_given_back_once(replica):
    session = Session(3, "client", 4711, readonly=False)
    session.take(replica, 5)
    assert session.let_go(1) is replica
    assert session.let_go(1) is None
    assert (replica.refs, session.handles) == (0, {})
    assert session.take(replica, 6).handle_id == 2


def test_two_sessions_number_their_handles_apart(replica):
    a, b = Session(1, "a", 1, readonly=False), Session(2, "b", 2, readonly=True)
    assert a.take(replica, 5).handle_id == b.take(replica, 5).handle_id == 1
    a.let_go(1)
    assert (replica.refs, list(b.handles)) == (1, [1])


def test_more_references_given_back_than_taken_is_our_bug(replica):
    session = Session(3, "client", 4711, readonly=False)
    session.take(replica, 5)
    replica.refs = 0
    with pytest.raises(AssertionError):
        session.let_go(1)
