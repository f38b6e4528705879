"""What waits to be told to the directory: keys, in bounds. Their state is read when they are told."""

import asyncio
from collections.abc import Callable
from itertools import islice

import msgspec

# Keys that wait. Beyond that everything this node has is told anew.
DUE_MAX = 100_000


class Due(msgspec.Struct, frozen=True, gc=False):
    """What the directory may have of a key that is not up to date."""

    generation: int = 0  # the newest that this node had; 0: nothing is to be taken back
    removed: int = 0  # the newest that a user removed, from every node; 0: none
    # The answer to a creation was lost, and with it who has what it replaced.
    is_unheard: bool = False


class Dues:
    """The keys whose entries may differ from what this node has."""

    def __init__(self, on_overflow: Callable[[], None]) -> None:
        """*on_overflow*: everything is to be told anew; what users removed is kept here even then."""
        self._on_overflow = on_overflow
        # All and only those keys; after an overflow only those that a user removed, until `tells_all`.
        self._by_key: dict[str, Due] = {}
        self._has_overflowed = False
        # Set when something was marked.
        self.wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: str) -> bool:
        return key in self._by_key

    def mark(self, key: str, due: Due) -> None:
        """The directory may not be up to date about *key*."""
        known = self._by_key.get(key)
        if known is not None:
            # One of its own, also if it says the same: what is told just now may have been read before.
            due = Due(
                max(known.generation, due.generation),
                max(known.removed, due.removed),
                known.is_unheard or due.is_unheard,
            )
        elif len(self._by_key) >= DUE_MAX and not self._has_overflowed:
            self._has_overflowed = True
            self._by_key = {name: other for name, other in self._by_key.items() if other.removed}
            self._on_overflow()
        if due.removed or not self._has_overflowed:
            self._by_key[key] = due
            self.wake.set()

    def has_room(self, count: int) -> bool:
        """Whether so many removals can be marked."""
        return not self._has_overflowed or len(self._by_key) + count <= DUE_MAX

    def tells_all(self) -> None:
        """A new life has begun, and everything this node has is told from here on: overflow is over."""
        self._has_overflowed = False

    def first(self, count: int) -> dict[str, Due]:
        """Those marked first."""
        return dict(islice(self._by_key.items(), count))

    def told(self, batch: dict[str, Due]) -> None:
        """Those are up to date, unless they were marked again meanwhile."""
        for key, due in batch.items():
            if self._by_key.get(key) is due:
                del self._by_key[key]
