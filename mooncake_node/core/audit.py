"""Checks every invariant of the local master. Every core test calls it after every step."""

from itertools import islice

from mooncake_node.core.master import Master
from mooncake_node.core.replica import Replica, ReplicaState
from mooncake_node.core.space import footprint
from mooncake_node.core.waiting import PUTS_RETRIED_MAX, PutMode, Want


def check_invariants(master: Master) -> None:
    """Assert that tables, counters, room and waiters agree with each other."""
    _check_states(master)
    _check_room(master)
    _check_sessions(master)
    _check_waiters(master)
    _check_counters(master)


def _check_states(master: Master) -> None:
    table = master.table
    for key, replica in table.current.items():
        assert replica.key == key
        assert replica.state in (ReplicaState.COMPLETE, ReplicaState.ISOLATED)
        assert replica.writer == 0
    for key, replica in table.writing.items():
        assert replica.key == key
        assert replica.state is ReplicaState.WRITING
        assert replica.writer in master.sessions
        current = table.current.get(key)
        assert current is None or current.generation < replica.generation
    for group, state in (
        (table.stash, ReplicaState.STASHED),
        (table.doomed, ReplicaState.DOOMED),
        (table.quarantine, ReplicaState.QUARANTINED),
    ):
        for replica_id, replica in group.items():
            assert replica.replica_id == replica_id
            assert replica.state is state
    for replica in table.stash.values():
        assert replica.refs > 0
    for replica in table.condemned:
        assert replica.state is ReplicaState.COMPLETE


def _check_room(master: Master) -> None:
    master.space.check()
    replicas = [replica for replica in master.table.all_replicas() if replica.nbytes]
    replicas.sort(key=lambda replica: replica.offset)
    end = 0
    for replica in replicas:
        assert replica.offset >= end, "two replicas overlap"
        end = replica.offset + footprint(replica.nbytes)
    assert end <= master.space.bytes_total
    taken = sum(footprint(replica.nbytes) for replica in replicas)
    assert taken <= master.space.bytes_used
    if not replicas:
        assert master.space.bytes_used == 0


def _check_sessions(master: Master) -> None:
    refs: dict[int, int] = {}
    reserved: dict[int, Replica] = {}
    for session_id, session in master.sessions.items():
        assert session.open
        assert session.session_id == session_id
        for handle_id, handle in session.handles.items():
            assert handle.handle_id == handle_id < session.next_handle_id
            refs[handle.replica.replica_id] = refs.get(handle.replica.replica_id, 0) + 1
        for replica_id, replica in session.reservations.items():
            assert replica.replica_id == replica_id
            assert replica.writer == session_id
            reserved[replica_id] = replica
    unpublished = {replica.replica_id: replica for replica in master.table.writing.values()} | master.table.doomed
    assert unpublished == reserved
    for replica in master.table.all_replicas():
        assert replica.refs == refs.pop(replica.replica_id, 0)
    assert not refs, "a handle on memory that was freed"


def _check_waiters(master: Master) -> None:
    table, waiting = master.table, master.waiting
    waiters = waiting.all_open()
    assert len(waiters) == len(waiting)
    for session in master.sessions.values():
        assert session.waiting == sum(waiter.session is session for waiter in waiters)
    for waiter in waiters:
        assert waiter.session.open
        assert waiting.by_key.get(waiter.key, {}).get(waiter.number) is waiter
        assert (waiter.number in waiting.for_room) == (waiter.want is Want.ROOM)
        assert (waiter.put is None) == (waiter.want in (Want.READ, Want.PRESENCE))
        if waiter.put is None or waiter.put.mode is not PutMode.UPSERT:
            assert waiter.key not in table.current, "waits for what is there"
        if waiter.want in (Want.READ, Want.TURN):
            assert waiter.key in table.writing, "waits for a writer that is not there"
    assert sum(len(waiters) for waiters in waiting.by_key.values()) == len(waiting)
    assert sum(waiter.want is Want.ROOM for waiter in waiters) == len(waiting.for_room)
    if not waiting.moved_up:
        for waiter in islice(waiting.for_room.values(), PUTS_RETRIED_MAX):
            assert waiter.put is not None
            assert waiter.put.nbytes > master.space.largest_free_extent, "waits beside room for it"


def _check_counters(master: Master) -> None:
    table = master.table
    held = [replica for replica in table.all_replicas() if replica.refs]
    assert (master.held.count, master.held.nbytes) == (len(held), sum(replica.nbytes for replica in held))
    assert table.writing_nbytes == sum(replica.nbytes for replica in table.writing.values())
    assert master.handle_count == sum(len(session.handles) for session in master.sessions.values())
    for group, nbytes in (
        (table.stash, table.stash_nbytes),
        (table.doomed, table.doomed_nbytes),
        (table.quarantine, table.quarantine_nbytes),
    ):
        assert nbytes == sum(replica.nbytes for replica in group.values())
    named = [*table.current.values(), *table.condemned]
    assert master.pins.soft_nbytes == sum(r.nbytes for r in named if r.contract.softpin)
    unpublished = [*table.writing.values(), *table.doomed.values()]
    hard = [r for r in [*named, *unpublished] if r.contract.hardpin]
    assert master.pins.hard_nbytes == sum(r.nbytes for r in hard)
