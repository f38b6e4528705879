"""The port to readers that take no handle: they pin a replica in shared memory, and the core has to ask.

A reference by request and a pin are the same to everything else in the core (`Replica.is_kept`).
"""

from collections.abc import Sequence
from typing import Protocol

from mooncake_node.core.replica import Replica


class Readers(Protocol):
    """Where readers find replicas by themselves, and what they have pinned.

    Only such as have a place in the index are hidden, unlisted or looked for.
    """

    def list(self, replica: Replica) -> None:
        """It is readable from here on. Sets `record`: negative if it has no place in the index."""
        ...

    def list_many(self, replicas: Sequence[Replica]) -> None:
        """`list`, for each."""
        ...

    def hide(self, replicas: Sequence[Replica]) -> bool:
        """Nobody can pin them any more, who has not by now. True if somebody may have: ask `pinned`."""
        ...

    def hide_all(self) -> None:
        """`hide`, for everything at once."""
        ...

    def show(self, replica: Replica, *, wanted: bool) -> None:
        """A hidden one is readable again. *wanted*: whoever unpins it is to tell the daemon."""
        ...

    def unlist(self, replicas: Sequence[Replica]) -> None:
        """Hidden ones that nobody has pinned: their places in the index are free, and `record` negative."""
        ...

    def want(self, replica: Replica, *, wanted: bool) -> None:
        """Whether whoever unpins it is to tell the daemon."""
        ...

    def pinned(self, replicas: Sequence[Replica]) -> set[int]:
        """The replica_ids of those that are pinned; of hidden ones, for ever after all that are."""
        ...

    def take_accessed(self, replica: Replica) -> bool:
        """Whether it was read since the last call."""
        ...

    def set_unlisted(self, count: int) -> None:
        """So many objects are readable that have no place in the index."""
        ...

    def close_row(self, session_id: int) -> bool:
        """That session has nothing pinned any more; True if it could have."""
        ...

    def has_pins(self, session_id: int) -> bool:
        """Whether that session has anything pinned now."""
        ...

    def holders(self, replica: Replica) -> dict[int, int]:
        """Session id → pins on it."""
        ...

    def pin_counts(self, replicas: Sequence[Replica]) -> Sequence[int]:
        """How many pins there are on each."""
        ...

    @property
    def pins(self) -> int:
        """All of them."""
        ...

    @property
    def hits(self) -> int:
        """Gets that the daemon did not see."""
        ...


class NoReaders:
    """Implements `Readers` for a node whose every reader takes a handle."""

    pins = hits = 0

    def list(self, replica: Replica) -> None:
        """See Readers."""

    def list_many(self, replicas: Sequence[Replica]) -> None:
        """See Readers."""

    def hide(self, _replicas: Sequence[Replica]) -> bool:
        """See Readers."""
        return False

    def hide_all(self) -> None:
        """See Readers."""

    def show(self, replica: Replica, *, wanted: bool) -> None:
        """See Readers."""

    def unlist(self, replicas: Sequence[Replica]) -> None:
        """See Readers."""

    def want(self, replica: Replica, *, wanted: bool) -> None:
        """See Readers."""

    def pinned(self, _replicas: Sequence[Replica]) -> set[int]:
        """See Readers."""
        return set()

    def take_accessed(self, _replica: Replica) -> bool:
        """See Readers."""
        return False

    def set_unlisted(self, count: int) -> None:
        """See Readers."""

    def close_row(self, _session_id: int) -> bool:
        """See Readers."""
        return False

    def has_pins(self, _session_id: int) -> bool:
        """See Readers."""
        return False

    def holders(self, _replica: Replica) -> dict[int, int]:
        """See Readers."""
        return {}

    def pin_counts(self, replicas: Sequence[Replica]) -> Sequence[int]:
        """See Readers."""
        return [0] * len(replicas)
