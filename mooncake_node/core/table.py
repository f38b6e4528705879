"""MetaMap: which generation of a key is readable, which is being written, and what is kept out of sight.

The only place where a replica's state changes, by the one table of allowed moves. Covers names and states, not
references (`sessions`), room (`space`) or who waits (`waiting`).
"""

from collections.abc import Iterable

from mooncake_node.core.replica import MOVES, Replica, ReplicaState

_WRITING, _COMPLETE, _ISOLATED, _STASHED, _DOOMED, _QUARANTINED, _ON_DISK, _GONE = ReplicaState


class MetaMap:
    """Every replica of this node, by what can be asked about it."""

    def __init__(self) -> None:
        # All and only the replicas readable by key (COMPLETE, ISOLATED or ON_DISK).
        self.current: dict[str, Replica] = {}
        # All and only the WRITING ones that a client fills: at most one of a key, beside a current one only for an
        # upsert.
        self.writing: dict[str, Replica] = {}
        # All and only the WRITING ones that are filled from the tier, beside a current one that is ON_DISK, or from
        # another node.
        self.loading: dict[str, Replica] = {}
        # All and only the STASHED, DOOMED and QUARANTINED ones, by replica_id. Generations of one key may coexist.
        self.stash: dict[int, Replica] = {}
        self.doomed: dict[int, Replica] = {}
        self.quarantine: dict[int, Replica] = {}
        # Replicas cut off by a clear and not yet freed or stashed; invisible by key.
        # A list with several of one key after several clears.
        self.condemned: list[Replica] = []
        self.writing_nbytes = 0
        self.stash_nbytes = 0
        self.doomed_nbytes = 0
        self.quarantine_nbytes = 0

    def add_writing(self, replica: Replica) -> None:
        """Register a fresh reservation; its key must not be written by anyone."""
        assert replica.state is _WRITING
        assert replica.key not in self.writing
        self.writing[replica.key] = replica
        self.writing_nbytes += replica.nbytes

    def add_loading(self, replica: Replica) -> None:
        """Register a reservation that the tier or another node fills."""
        assert replica.state is _WRITING
        assert replica.key not in self.loading
        self.loading[replica.key] = replica
        self.writing_nbytes += replica.nbytes

    def publish(self, replica: Replica, now_ns: int) -> Replica | None:
        """WRITING → COMPLETE: visible from here on. Returns the generation it replaced, now without a name."""
        self._move(replica, _COMPLETE)
        self._drop_writing(replica)
        replica.writer = 0
        replica.since_ns = now_ns
        replaced = self.current.get(replica.key)
        self.current[replica.key] = replica
        return replaced

    def publish_written(self, replicas: Iterable[Replica], now_ns: int) -> None:
        """`publish` for several whose keys are not there, but for what `publish_new` does."""
        for replica in replicas:
            self._drop_writing(replica)
            replica.writer = 0
            replica.since_ns = now_ns

    def publish_placed(self, replica: Replica) -> Replica | None:
        """`publish` for a replica that nobody had to wait for, and that is in no table yet."""
        self._move(replica, _COMPLETE)
        replaced = self.current.get(replica.key)
        self.current[replica.key] = replica
        return replaced

    def publish_new(self, replicas: Iterable[Replica]) -> None:
        """`publish_placed` for several whose keys are not there."""
        current = self.current
        for replica in replicas:
            assert replica.state is _WRITING
            replica.state = _COMPLETE
            current[replica.key] = replica

    def publish_loaded(self, replica: Replica) -> Replica:
        """WRITING → COMPLETE: in memory again. Returns the one on disk alone, which is GONE now."""
        self._move(replica, _COMPLETE)
        self._drop_writing(replica)
        on_disk = self.current[replica.key]
        assert on_disk.generation == replica.generation
        self._move(on_disk, _GONE)
        self.current[replica.key] = replica
        return on_disk

    def publish_pulled(self, replica: Replica) -> None:
        """WRITING → COMPLETE: a copy from another node, of what is not readable here."""
        self._move(replica, _COMPLETE)
        self._drop_writing(replica)
        assert replica.key not in self.current
        self.current[replica.key] = replica

    def set_in_quarantine(self, replica: Replica) -> None:
        """WRITING → QUARANTINED: a transfer into it has failed and may still write."""
        self._move(replica, _QUARANTINED)
        self._drop_writing(replica)
        self.quarantine[replica.replica_id] = replica
        self.quarantine_nbytes += replica.nbytes

    def isolate(self, replica: Replica) -> None:
        """COMPLETE → ISOLATED: on its way to disk, and readable all the while."""
        self._move(replica, _ISOLATED)

    def take_back(self, replica: Replica) -> None:
        """ISOLATED → COMPLETE: it stays in memory."""
        self._move(replica, _COMPLETE)

    def leave_memory(self, replica: Replica) -> None:
        """→ ON_DISK: readable by key as before. The caller frees the room in the same step."""
        self._move(replica, _ON_DISK)

    def unname(self, key: str) -> Replica:
        """Take the readable generation's name away. The caller frees or stashes it in the same step."""
        return self.current.pop(key)

    def abandon_writing(self, replica: Replica) -> None:
        """A writer gave up or died, or a transfer is over: → GONE. The caller frees the room in the same step."""
        if replica.state is _WRITING:
            self._drop_writing(replica)
        elif replica.state is _DOOMED:
            del self.doomed[replica.replica_id]
            self.doomed_nbytes -= replica.nbytes
        else:
            del self.quarantine[replica.replica_id]
            self.quarantine_nbytes -= replica.nbytes
        self._move(replica, _GONE)

    def doom(self, replica: Replica) -> None:
        """WRITING → DOOMED: the key is free again, the room stays until the writer's own end, revoke or death."""
        self._move(replica, _DOOMED)
        self._drop_writing(replica)
        self.doomed[replica.replica_id] = replica
        self.doomed_nbytes += replica.nbytes

    def stash_away(self, replica: Replica) -> None:
        """A nameless replica that is still read: → STASHED."""
        self._move(replica, _STASHED)
        self.stash[replica.replica_id] = replica
        self.stash_nbytes += replica.nbytes

    def forget(self, replica: Replica) -> None:
        """A nameless or stashed replica that nobody reads: → GONE. The caller frees the room in the same step."""
        if replica.state is _STASHED:
            del self.stash[replica.replica_id]
            self.stash_nbytes -= replica.nbytes
        self._move(replica, _GONE)

    def condemn_all(self) -> int:
        """Take every readable generation's name away; returns how many there were."""
        condemned, self.current = self.current, {}
        self.condemned += condemned.values()
        return len(condemned)

    def take_condemned(self, count_max: int) -> list[Replica]:
        """Up to *count_max* of the condemned; the caller frees or stashes each in the same step."""
        assert count_max > 0
        taken = self.condemned[-count_max:]
        del self.condemned[-count_max:]
        return taken

    def all_replicas(self) -> list[Replica]:
        """Every replica, for audits."""
        groups = (self.current, self.writing, self.loading, self.stash, self.doomed, self.quarantine)
        return [replica for group in groups for replica in group.values()] + self.condemned

    def _drop_writing(self, replica: Replica) -> None:
        group = self.loading if self.loading.get(replica.key) is replica else self.writing
        del group[replica.key]
        self.writing_nbytes -= replica.nbytes

    @staticmethod
    def _move(replica: Replica, to: ReplicaState) -> None:
        assert to in MOVES[replica.state], f"{replica.state} -> {to}"
        replica.state = to
