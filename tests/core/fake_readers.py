"""Readers by the shared index, as the core's port sees them: clients look a key up, pin, and let go, without a word."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from mooncake_node.core.master import Master
from mooncake_node.core.replica import Replica, ReplicaState
from mooncake_node.core.sessions import Session

_IN_MEMORY = (ReplicaState.COMPLETE, ReplicaState.ISOLATED, ReplicaState.STASHED)


class IndexPin(msgspec.Struct, frozen=True, eq=False):
    """One pin of one client."""

    session_id: int
    replica: Replica
    place: tuple[int, int]  # offset, nbytes: what it reads


class FakeReaders:
    """Implements `Readers`, with room for so many *records*; counts what it was asked."""

    def __init__(self, records: int = 1000, key_nbytes_max: int = 72) -> None:
        self._key_nbytes_max = key_nbytes_max
        self._free = list(range(records))[::-1]
        # All and only those with a record, by record; those of them that are shown, and that are wanted.
        self.listed: dict[int, Replica] = {}
        self.shown: set[int] = set()
        self.wanted: set[int] = set()
        self.accessed: set[int] = set()
        self.unlisted = 0
        # One of each client that has ever pinned and lives: replica_id -> pins.
        self.rows: dict[int, Counter[int]] = {}
        self.live: list[IndexPin] = []
        self.hits = 0
        self.asked: list[int] = []  # how many replicas were looked for, each time

    # -- what clients do ---------------------------------------------------------------------------------------------

    def open_row(self, session: Session) -> None:
        """From here on the client may have pinned something."""
        self.rows.setdefault(session.session_id, Counter())

    def find(self, key: str) -> Replica | None:
        """What a client finds of *key*."""
        found = [self.listed[record] for record in self.shown if self.listed[record].key == key]
        assert len(found) <= 1, "two of one key"
        return found[0] if found else None

    def pin(self, session: Session, key: str) -> IndexPin | None:
        """A get; None: it is not in the index."""
        replica = self.find(key)
        if replica is None:
            return None
        self.accessed.add(replica.record)
        self.hits += 1
        return self.pin_blindly(session, replica)

    def pin_blindly(self, session: Session, replica: Replica) -> IndexPin:
        """A get that found the replica a moment ago, and has yet to see whether it is still shown."""
        self.open_row(session)
        self.rows[session.session_id][replica.replica_id] += 1
        pin = IndexPin(session.session_id, replica, (replica.offset, replica.nbytes))
        self.live.append(pin)
        return pin

    def unpin(self, pin: IndexPin) -> bool:
        """Let go; True if the daemon is to be told."""
        self.live.remove(pin)
        row = self.rows[pin.session_id]
        row[pin.replica.replica_id] -= 1
        return pin.replica.record in self.wanted

    # -- what must be so -----------------------------------------------------------------------------------------------

    def check(self, master: Master) -> None:
        """Assert that the index says of *master* what is so, and that what is pinned stays as it is."""
        table = master.table
        assert self.listed == {replica.record: replica for replica in table.all_replicas() if replica.record >= 0}
        assert {self.listed[record].replica_id for record in self.shown} == {
            replica.replica_id for replica in table.current.values() if replica.record >= 0
        }
        unlisted = sum(replica.record < 0 for replica in table.current.values())
        assert self.unlisted == unlisted + master.config.has_peers
        for pin in self.live:
            replica = pin.replica
            assert replica.state in _IN_MEMORY, "freed while it is pinned"
            assert (replica.offset, replica.nbytes) == pin.place, "moved while it is pinned"
            assert not replica.nbytes or master.objects.at[replica.offset] is replica
            assert replica.record >= 0, "nobody could find the pin"
        for replica in master.objects.index.kept.values():
            assert replica.record in self.wanted, "nobody will tell of its unpin"

    # -- Readers -------------------------------------------------------------------------------------------------------

    def list_many(self, replicas: Sequence[Replica]) -> None:
        for replica in replicas:
            self.list(replica)

    def list(self, replica: Replica) -> None:
        assert replica.record < 0
        if len(replica.key.encode()) > self._key_nbytes_max or not self._free:
            return
        replica.record = self._free.pop()
        self.listed[replica.record] = replica
        self.shown.add(replica.record)
        self.wanted.discard(replica.record)
        self.accessed.discard(replica.record)

    def hide(self, replicas: Sequence[Replica]) -> bool:
        for replica in replicas:
            assert self.listed[replica.record] is replica
            self.wanted.add(replica.record)
            self.shown.discard(replica.record)
        return bool(replicas and self.rows)

    def hide_all(self) -> None:
        self.wanted |= self.shown
        self.shown.clear()

    def show(self, replica: Replica, *, wanted: bool) -> None:
        assert replica.record not in self.shown
        self.shown.add(replica.record)
        self.want(replica, wanted=wanted)

    def unlist(self, replicas: Sequence[Replica]) -> None:
        for replica in replicas:
            assert replica.record not in self.shown, "freed while it can be found"
            assert not self._count(replica), "freed while it is pinned"
            del self.listed[replica.record]
            self._free.append(replica.record)
            replica.record = -1

    def want(self, replica: Replica, *, wanted: bool) -> None:
        assert self.listed[replica.record] is replica
        if wanted:
            self.wanted.add(replica.record)
        else:
            self.wanted.discard(replica.record)

    def pinned(self, replicas: Sequence[Replica]) -> set[int]:
        assert replicas, "asked for nothing"
        self.asked.append(len(replicas))
        return {replica.replica_id for replica in replicas if self._count(replica)}

    def take_accessed(self, replica: Replica) -> bool:
        was = replica.record in self.accessed
        self.accessed.discard(replica.record)
        return was

    def set_unlisted(self, count: int) -> None:
        assert count >= 0
        self.unlisted = count

    def close_row(self, session_id: int) -> bool:
        self.live = [pin for pin in self.live if pin.session_id != session_id]
        return self.rows.pop(session_id, None) is not None

    def has_pins(self, session_id: int) -> bool:
        return session_id in self.rows and self.rows[session_id].total() > 0

    def holders(self, replica: Replica) -> dict[int, int]:
        counts = {session_id: row[replica.replica_id] for session_id, row in self.rows.items()}
        return {session_id: count for session_id, count in counts.items() if count}

    def pin_counts(self, replicas: Sequence[Replica]) -> Sequence[int]:
        return [self._count(replica) for replica in replicas]

    @property
    def pins(self) -> int:
        return sum(row.total() for row in self.rows.values())

    def _count(self, replica: Replica) -> int:
        return sum(row[replica.replica_id] for row in self.rows.values())
