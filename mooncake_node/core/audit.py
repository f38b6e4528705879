"""Checks every invariant of the local master. Every core test calls it after every step."""

from itertools import islice

from mooncake_node.core.jobs import Load, Offload, Withdraw
from mooncake_node.core.master import Master
from mooncake_node.core.replica import PLAIN, Rank, Replica, ReplicaState, Shelf
from mooncake_node.core.space import footprint
from mooncake_node.core.waiting import PUTS_RETRIED_MAX, PutMode, Waiter, Want

# Readers by the index never see these; a stashed one keeps its record as long as it may be pinned.
_UNLISTED = (ReplicaState.WRITING, ReplicaState.DOOMED, ReplicaState.QUARANTINED, ReplicaState.ON_DISK)


def check_invariants(master: Master) -> None:
    """Assert that tables, counters, room and waiters agree with each other."""
    _check_states(master)
    _check_room(master)
    _check_lists(master)
    _check_loads(master)
    _check_far(master)
    _check_sessions(master)
    _check_waiters(master)
    _check_counters(master)
    _check_index(master)
    master.objects.disk.check(list(master.table.current.values()), master.table.condemned)


def _check_states(master: Master) -> None:
    table = master.table
    for key, replica in table.current.items():
        assert replica.key == key
        assert replica.state in (ReplicaState.COMPLETE, ReplicaState.ISOLATED, ReplicaState.ON_DISK)
        assert replica.writer == 0
        assert (replica.state is ReplicaState.ISOLATED) <= (replica.transfers == 1), "isolated for nothing"
    for key, replica in table.writing.items():
        assert replica.key == key
        assert replica.state is ReplicaState.WRITING
        assert replica.writer in master.sessions
        current = table.current.get(key)
        # Of what came from another node meanwhile the directory will say that it is newer (`renumber`).
        assert current is None or current.owner is not None or current.generation < replica.generation
    for group, state in (
        (table.stash, ReplicaState.STASHED),
        (table.doomed, ReplicaState.DOOMED),
        (table.quarantine, ReplicaState.QUARANTINED),
    ):
        for replica_id, replica in group.items():
            assert replica.replica_id == replica_id
            assert replica.state is state
    for replica in table.stash.values():
        assert _is_kept(master, replica), "stashed for nobody"
    for replica in table.condemned:
        assert replica.state in (ReplicaState.COMPLETE, ReplicaState.ISOLATED, ReplicaState.ON_DISK)


def _is_kept(master: Master, replica: Replica) -> bool:
    used = replica.refs > 0 or replica.transfers > 0 or replica.loans > 0 or replica.pinned
    return used or master.objects.leases.runs_on(replica)


def _check_room(master: Master) -> None:
    master.space.check()
    in_memory = _in_memory(master)
    master.objects.leases.check(in_memory)
    replicas = [replica for replica in in_memory if replica.nbytes]
    assert master.objects.at == {replica.offset: replica for replica in replicas}
    replicas.sort(key=lambda replica: replica.offset)
    end = 0
    for replica in replicas:
        assert replica.offset >= end, "two replicas overlap"
        end = replica.offset + footprint(replica.nbytes)
    assert end <= master.space.bytes_total
    taken = sum(footprint(replica.nbytes) for replica in replicas)
    held = master.reclaim.windows.held_nbytes
    assert taken + held <= master.space.bytes_used
    if not replicas:
        assert master.space.bytes_used == held


def _check_lists(master: Master) -> None:
    objects = master.objects
    listed = []
    for replica in master.table.current.values():
        if replica.shelf in (Shelf.ACTIVE, Shelf.INACTIVE):
            listed.append(replica)
            assert replica.state is ReplicaState.COMPLETE
            assert replica.refs == replica.transfers == replica.loans == 0, "a victim that is read"
            assert not replica.pinned, "a victim that is pinned"
            assert not replica.contract.hardpin
            if replica.copy is not None or replica.owner is not None:
                assert replica.rank is Rank.CLEAN
            else:
                assert replica.rank is (Rank.PINNED if replica.contract.softpin else Rank.PLAIN)
        elif replica.shelf is Shelf.PARKED:
            assert replica.state is ReplicaState.COMPLETE
            assert _is_kept(master, replica), "parked for nobody"
        elif replica.state is ReplicaState.COMPLETE:
            assert replica.contract.hardpin or not replica.nbytes, "neither listed nor parked"
    objects.lists.check(listed)


def _check_loads(master: Master) -> None:
    objects, loads = master.objects, master.admission.loads
    filled = {}
    for key, loading in loads.by_key.items():
        assert loading.key == key
        assert master.table.current.get(key) is loading.on_disk, "a load of what is there"
        if loading.on_disk is not None:
            assert loading.on_disk.state is ReplicaState.ON_DISK
        if loading.into is not None:
            filled[key] = loading.into
            source = loading.found or loading.on_disk
            assert source is not None
            assert loading.into.generation == source.generation
        elif not loading.seeking:
            assert isinstance(loading.waiter, Waiter)
            assert loading.waiter.open, "a load that nobody goes on with"
    assert master.table.loading == filled
    for key, replica in master.table.current.items():
        if replica.state is ReplicaState.ON_DISK:
            assert replica.transfers == (key in loads.by_key), "kept on disk for a load that is not there"
    for job in objects.jobs:
        if isinstance(job, Offload):
            assert job.replica.transfers > 0
        elif isinstance(job, Load):
            assert job.replica.state in (ReplicaState.WRITING, ReplicaState.DOOMED)
    isolated = [r for r in _readable(master) if r.state is ReplicaState.ISOLATED]
    assert objects.isolated_nbytes == sum(footprint(replica.nbytes) for replica in isolated)


def _check_far(master: Master) -> None:
    """What other nodes and the directory have to do with."""
    table, objects = master.table, master.objects
    for replica in _readable(master):
        if replica.owner is None:
            assert replica.remembered is None
            continue
        assert master.config.has_peers
        assert replica.state is ReplicaState.COMPLETE
        assert replica.copy is None, "on disk for another node"
        assert replica.contract == PLAIN, "a contract that another node carries"
    for replica in table.all_replicas():
        assert replica.loans >= 0
    assert not any(replica.told for replica in table.stash.values()), "gone, and nobody will withdraw it"
    withdrawn = [errand.replica for errand in objects.errands if isinstance(errand, Withdraw) and errand.is_held]
    assert all(replica.loans > 0 for replica in withdrawn), "freed before its entry is withdrawn"
    leaving = [replica for replica in table.stash.values() if replica.loans > 0]
    assert objects.leaving_nbytes <= sum(footprint(replica.nbytes) for replica in leaving)
    for replica in table.quarantine.values():
        assert not _is_kept(master, replica), "read before it is complete"


def _in_memory(master: Master) -> list[Replica]:
    return [replica for replica in master.table.all_replicas() if replica.state is not ReplicaState.ON_DISK]


def _check_index(master: Master) -> None:
    index = master.objects.index
    for replica in master.table.all_replicas():
        if replica.state in _UNLISTED:
            assert replica.record < 0, "in the index without being readable in memory"
    pinned = {replica.replica_id: replica for replica in master.table.all_replicas() if replica.pinned}
    assert index.kept == pinned
    assert index.unlisted == index.elsewhere + sum(replica.record < 0 for replica in master.table.current.values())


def _readable(master: Master) -> list[Replica]:
    """What is readable, or was until a clear."""
    return [*master.table.current.values(), *master.table.condemned]


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
    # Those without a writer were to be filled from the tier.
    assert {number: replica for number, replica in unpublished.items() if replica.writer} == reserved
    for replica in master.table.all_replicas():
        assert replica.refs == refs.pop(replica.replica_id, 0)
    assert not refs, "a handle on memory that was freed"


def _check_waiters(master: Master) -> None:
    table, waiting, loads = master.table, master.waiting, master.admission.loads.by_key
    waiters = waiting.all_open()
    assert len(waiters) == len(waiting)
    for session in master.sessions.values():
        assert session.waiting == sum(waiter.session is session for waiter in waiters)
    for waiter in waiters:
        assert waiter.session.open
        assert waiting.by_key.get(waiter.key, {}).get(waiter.number) is waiter
        assert (waiter.number in waiting.for_room) == (waiter.want is Want.ROOM)
        loading = loads.get(waiter.key)
        if loading is not None and loading.waiter is waiter:
            assert waiter.want is Want.ROOM
            continue
        if waiter.want is Want.LOAD:
            assert loading is not None, "waits for a load that is not there"
            continue
        assert (waiter.put is None) == (waiter.want in (Want.READ, Want.PRESENCE))
        current = table.current.get(waiter.key)
        if (waiter.put is None or waiter.put.mode is not PutMode.UPSERT) and current is not None:
            # A secondary one is not there for readers while this node is cut off.
            assert current.owner is not None, "waits for what is there"
        if waiter.want in (Want.READ, Want.TURN):
            assert waiter.key in table.writing, "waits for a writer that is not there"
    assert sum(len(waiters) for waiters in waiting.by_key.values()) == len(waiting)
    assert sum(waiter.want is Want.ROOM for waiter in waiters) == len(waiting.for_room)
    if not waiting.moved_up:
        for waiter in islice(waiting.for_room.values(), PUTS_RETRIED_MAX):
            assert waiter.nbytes > master.space.largest_free_extent, "waits beside room for it"


def _check_counters(master: Master) -> None:
    table = master.table
    held = [replica for replica in table.all_replicas() if replica.refs]
    counted = master.objects.held
    assert (counted.count, counted.nbytes) == (len(held), sum(replica.nbytes for replica in held))
    unread = [*table.writing.values(), *table.loading.values()]
    assert table.writing_nbytes == sum(replica.nbytes for replica in unread)
    for group, nbytes in (
        (table.stash, table.stash_nbytes),
        (table.doomed, table.doomed_nbytes),
        (table.quarantine, table.quarantine_nbytes),
    ):
        assert nbytes == sum(replica.nbytes for replica in group.values())
    disk = master.objects.disk
    assert disk.writing_nbytes == sum(disk.cost(r) for r in _in_memory(master) if r.transfers)
    named = _readable(master)
    assert master.pins.soft_nbytes == sum(r.nbytes for r in named if r.contract.softpin)
    unpublished = [*table.writing.values(), *table.doomed.values()]
    hard = [r for r in [*named, *unpublished] if r.contract.hardpin]
    assert master.pins.hard_nbytes == sum(r.nbytes for r in hard)
