"""How replicas leave memory: dropped at once, or when a copy of them is on disk."""

from collections.abc import Iterator
from contextlib import contextmanager

from mooncake_node.core.config import MasterConfig
from mooncake_node.core.jobs import Delete, Offload
from mooncake_node.core.objects import Objects
from mooncake_node.core.replica import Rank, Replica, ReplicaState, Shelf
from mooncake_node.core.space import footprint

_COMPLETE, _ON_DISK = ReplicaState.COMPLETE, ReplicaState.ON_DISK


class Eviction:
    """Carries out what reclaim has chosen."""

    def __init__(self, config: MasterConfig, objects: Objects) -> None:
        self._objects = objects
        self._offload_unpinned = config.offload_unpinned

    def evict(self, victims: list[Replica], now_ns: int) -> None:
        """Let victims go that have just been taken off the lists: now, or when they are on disk."""
        going: list[Replica] = []
        for victim in victims:
            is_pinned = victim.contract.softpin
            is_spare = victim.copy is not None or victim.owner is not None
            if is_spare or not (is_pinned or self._offload_unpinned):
                going.append(victim)
            elif not self._offload(victim, now_ns):
                if is_pinned:
                    self._objects.enlist(victim)
                else:
                    going.append(victim)
        with self._objects.index.telling_later():
            for victim in self._not_pinned(going):
                self._objects.counters.dropped += 1
                if victim.copy is not None:
                    self._objects.leave_memory(victim)
                else:
                    self._objects.remove(victim, now_ns)

    def rescue(self, replica: Replica, now_ns: int) -> bool:
        """Write a copy of a readable replica, even of one that is read; True if that was begun."""
        if replica.copy is not None or replica.transfers or replica.state is not _COMPLETE:
            return False
        shelf = replica.shelf
        self._objects.lists.leave(replica)
        if self._offload(replica, now_ns):
            return True
        replica.shelf = shelf
        if shelf in (Shelf.INACTIVE, Shelf.ACTIVE):
            self._objects.enlist(replica)
        return False

    def offload_done(self, replica: Replica, record: object | None, now_ns: int) -> None:
        """The outcome of an `Offload`: the tier's record of a complete copy, or None."""
        replica.transfers -= 1
        self._objects.disk.writing_nbytes -= self._objects.disk.cost(replica)
        if self._objects.table.current.get(replica.key) is not replica:
            # It has lost its name meanwhile, and so has the copy, which whoever took the name has had deleted.
            self._objects.released(replica, now_ns)
            return
        self._objects.isolated_nbytes -= footprint(replica.nbytes)
        if record is None:
            self._objects.disk.failures += 1
            self._objects.disk.block(now_ns)
        else:
            self._objects.disk.add(replica, record)
            if not (replica.is_kept(now_ns) or replica.contract.hardpin) and self._objects.index.take_out([replica]):
                self._objects.leave_memory(replica)
                self._objects.counters.offloaded += 1
                return
        self._objects.table.take_back(replica)
        self._objects.shelve(replica, now_ns)
        self._objects.room_came_back = True  # what could not go may go now

    @contextmanager
    def set_aside(self, replica: Replica | None) -> Iterator[None]:
        """Not dropped within: it is to be replaced, and only when its successor is complete."""
        if replica is None or replica not in self._objects.lists or replica.rank is not Rank.PLAIN:
            yield
            return
        self._objects.lists.leave(replica)
        try:
            yield
        finally:
            self._objects.enlist(replica)

    def _not_pinned(self, victims: list[Replica]) -> list[Replica]:
        """Those that no reader by the index has pinned; the others are parked until they let go."""
        out = self._objects.index.take_out(victims)
        if len(out) < len(victims):
            for victim in victims:
                if victim.pinned:
                    self._objects.park(victim, by_lease=False, kept=False)
        return out

    def _offload(self, replica: Replica, now_ns: int) -> bool:
        cost = self._objects.disk.cost(replica)
        if not self._objects.disk.takes(now_ns):
            return False
        if not self._make_disk_room(cost, now_ns):
            self._objects.disk.block(now_ns)
            return False
        self._objects.disk.writing_nbytes += cost
        self._objects.isolated_nbytes += footprint(replica.nbytes)
        replica.transfers += 1
        self._objects.table.isolate(replica)
        self._objects.jobs.append(Offload(replica))
        return True

    def _make_disk_room(self, nbytes: int, now_ns: int) -> bool:
        """Give up copies of objects that are not pinned, the coldest first, until one of that cost fits; else False."""
        disk = self._objects.disk
        if nbytes > disk.nbytes_max:
            return False
        while not disk.has_room(nbytes):
            replica = next(iter(disk.spare.values()), None)
            if replica is None:
                return False
            if replica.state is _ON_DISK:
                self._objects.remove(replica, now_ns)
            else:
                self._objects.drop_copy(replica)
                self._objects.jobs.append(Delete(replica))
        return True
