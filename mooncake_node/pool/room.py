"""The port to the pool for what moves objects' bytes itself; `PoolWriter` implements it."""

from typing import Protocol


class Room(Protocol):
    """The daemon's own way into G."""

    def view(self, offset: int, nbytes: int) -> memoryview:
        """Those bytes, writable."""

    def zero_tail(self, offset: int, nbytes: int) -> None:
        """Zero what is reserved beyond an object's bytes."""
