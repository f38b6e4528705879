"""The core's port to readers by the shared index."""

from collections.abc import Sequence

from mooncake_client import membarrier
from mooncake_client.index_layout import ID_SHIFT, Shape
from mooncake_node.core.replica import Replica
from mooncake_node.readers.index import Index, shape_for
from mooncake_node.readers.rows import Rows


class SharedReaders:
    """Implements `Readers`: the index, the rows, and the barrier between hiding and looking."""

    def __init__(self, pool_nbytes: int) -> None:
        self._index = Index(shape_for(pool_nbytes))
        self._rows = Rows()
        # Clients register too; a daemon that cannot reach them gives no rows.
        self.works = membarrier.register() and membarrier.reach_all()

    @property
    def shape(self) -> Shape:
        """Of the index."""
        return self._index.shape

    def open_row(self, session_id: int) -> list[int]:
        """A row for a client: descriptors of control, accessed bytes and row; the last is to be closed after use."""
        return [self._index.control_fd, self._index.accessed_fd, self._rows.open(session_id)]

    def close(self) -> None:
        """Close the descriptors."""
        self._index.close()

    # -- Readers -----------------------------------------------------------------------------------------------------

    def close_row(self, session_id: int) -> bool:
        """See Readers."""
        return self._rows.close(session_id)

    def list(self, replica: Replica) -> None:
        """See Readers."""
        replica.record = self._index.add(replica)

    def list_many(self, replicas: Sequence[Replica]) -> None:
        """See Readers."""
        add = self._index.add
        for replica in replicas:
            replica.record = add(replica)

    def hide(self, replicas: Sequence[Replica]) -> bool:
        """See Readers."""
        self._index.hide([replica.record for replica in replicas])
        return bool(replicas) and len(self._rows) > 0

    def hide_all(self) -> None:
        """See Readers."""
        self._index.hide_all()

    def show(self, replica: Replica, *, wanted: bool) -> None:
        """See Readers."""
        if replica.record >= 0:
            self._index.show(replica, wanted=wanted)

    def unlist(self, replicas: Sequence[Replica]) -> None:
        """See Readers."""
        self._index.remove([replica.record for replica in replicas])
        for replica in replicas:
            replica.record = -1

    def want(self, replica: Replica, *, wanted: bool) -> None:
        """See Readers."""
        if replica.record >= 0:
            self._index.want(replica.record, wanted=wanted)

    def pinned(self, replicas: Sequence[Replica]) -> set[int]:
        """See Readers."""
        if not replicas or not len(self._rows):
            return set()
        if not membarrier.reach_all():
            # It did at the start. Without it a pin may be on its way to us, so nothing can be said of any.
            return {replica.replica_id for replica in replicas}
        id_of = self._index.id_of
        return {id_ >> ID_SHIFT for id_ in self._rows.pinned(id_of(r, r.record) for r in replicas)}

    def take_accessed(self, replica: Replica) -> bool:
        """See Readers."""
        accessed, record = self._index.accessed, replica.record
        if record < 0 or not accessed[record]:
            return False
        accessed[record] = 0
        return True

    def set_unlisted(self, count: int) -> None:
        """See Readers."""
        self._index.set_unlisted(count)

    def has_pins(self, session_id: int) -> bool:
        """See Readers."""
        return self._rows.has_pins(session_id)

    def holders(self, replica: Replica) -> dict[int, int]:
        """See Readers."""
        return {} if replica.record < 0 else self._rows.counts(self._index.id_of(replica, replica.record))

    def pin_counts(self, replicas: Sequence[Replica]) -> Sequence[int]:
        """See Readers."""
        counts = self._rows.all_counts()
        return [counts.get(self._index.id_of(r, r.record), 0) if r.record >= 0 else 0 for r in replicas]

    @property
    def pins(self) -> int:
        """See Readers."""
        return self._rows.pins

    @property
    def hits(self) -> int:
        """See Readers."""
        return self._rows.hits
