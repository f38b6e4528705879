"""MetaMap alone: names, states, and the one table of allowed moves."""

import pytest

from mooncake_node.core.replica import MOVES, PLAIN, Replica, ReplicaState
from mooncake_node.core.table import MetaMap

S = ReplicaState


def replica(replica_id=1, key="k", nbytes=10):
    return Replica(replica_id, key, replica_id, 0, nbytes, 0, 0, PLAIN, S.WRITING, 7)


@pytest.fixture
def table():
    return MetaMap()


def readable(table, replica_id=1, key="k"):
    entry = replica(replica_id, key)
    table.add_writing(entry)
    table.publish(entry, 5)
    return entry


def test_every_state_has_its_moves_and_only_gone_is_final():
    assert set(MOVES) == set(S)
    assert [state for state in S if not MOVES[state]] == [S.GONE]
    assert all(S.GONE in moves for state, moves in MOVES.items() if state is not S.GONE)


def test_nothing_becomes_readable_that_was_not_written_or_readable():
    assert {state for state, moves in MOVES.items() if S.COMPLETE in moves} == {S.WRITING, S.ISOLATED}


@pytest.mark.parametrize("to", S)
@pytest.mark.parametrize("state", S)
def test_a_move_that_is_not_in_the_table_is_our_bug(table, state, to):
    entry = replica()
    entry.state = state
    if to in MOVES[state]:
        table._move(entry, to)
        assert entry.state is to
    else:
        with pytest.raises(AssertionError, match="->"):
            table._move(entry, to)
        assert entry.state is state


def test_publish_gives_the_name_and_returns_the_generation_it_replaced(table):
    old = readable(table)
    assert (old.state, old.writer, old.since_ns) == (S.COMPLETE, 0, 5)
    new = replica(2)
    table.add_writing(new)
    assert table.current == {"k": old}
    assert table.publish(new, 6) is old
    assert (table.current, table.writing) == ({"k": new}, {})


def test_publish_of_a_first_generation_replaces_nothing(table):
    entry = replica()
    table.add_writing(entry)
    assert table.publish(entry, 5) is None


def test_a_key_has_one_writer(table):
    table.add_writing(replica())
    with pytest.raises(AssertionError):
        table.add_writing(replica(2))


def test_only_a_fresh_reservation_is_registered(table):
    entry = replica()
    entry.state = S.COMPLETE
    with pytest.raises(AssertionError):
        table.add_writing(entry)


def test_publishing_twice_is_our_bug(table):
    entry = readable(table)
    with pytest.raises(AssertionError):
        table.publish(entry, 6)


def test_an_abandoned_writer_is_gone_doomed_or_not(table):
    writing, doomed = replica(1, "k"), replica(2, "l")
    for entry in (writing, doomed):
        table.add_writing(entry)
    table.doom(doomed)
    assert (doomed.state, table.doomed, table.doomed_nbytes) == (S.DOOMED, {2: doomed}, 10)
    assert table.writing == {"k": writing}
    for entry in (writing, doomed):
        table.abandon_writing(entry)
        assert entry.state is S.GONE
    assert (table.writing, table.doomed, table.doomed_nbytes) == ({}, {}, 0)


def test_a_doomed_one_cannot_be_published(table):
    entry = replica()
    table.add_writing(entry)
    table.doom(entry)
    with pytest.raises(AssertionError):
        table.publish(entry, 5)


def test_a_stashed_one_is_counted_until_it_is_forgotten(table):
    entry = readable(table)
    assert table.unname("k") is entry
    table.stash_away(entry)
    assert (entry.state, table.stash, table.stash_nbytes) == (S.STASHED, {1: entry}, 10)
    table.forget(entry)
    assert (entry.state, table.stash, table.stash_nbytes) == (S.GONE, {}, 0)


def test_a_nameless_one_nobody_reads_is_forgotten_at_once(table):
    entry = readable(table)
    table.forget(table.unname("k"))
    assert entry.state is S.GONE


def test_the_condemned_are_taken_in_slices_each_once(table):
    entries = [readable(table, i, f"k{i}") for i in range(5)]
    assert table.condemn_all() == 5
    assert table.current == {}
    again = readable(table, 9, "k0")
    assert table.condemn_all() == 1
    taken = []
    for expected in (4, 2, 0):
        taken.append(table.take_condemned(4))
        assert len(taken[-1]) == expected
    assert {entry.replica_id for batch in taken for entry in batch} == {e.replica_id for e in [*entries, again]}


def test_all_replicas_are_those_that_occupy_room(table):
    condemned = readable(table, 1, "a")
    table.condemn_all()
    current, stashed = readable(table, 2, "b"), readable(table, 3, "c")
    written, doomed = replica(4, "d"), replica(5, "e")
    table.stash_away(table.unname("c"))
    table.add_writing(doomed)
    table.doom(doomed)
    table.add_writing(written)
    gone = readable(table, 6, "f")
    table.forget(table.unname("f"))
    found = table.all_replicas()
    assert {entry.replica_id for entry in found} == {1, 2, 3, 4, 5}
    assert all(entry in found for entry in (condemned, current, stashed, written, doomed))
    assert gone not in found
