"""The port of a data plane: bytes are pulled, never pushed, so that nobody writes into a foreign pool."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Protocol

import msgspec


class RemoteRange(msgspec.Struct, frozen=True, kw_only=True):
    """An object's bytes on another node, as it has described them under a lease."""

    node: str
    incarnation: int
    endpoint: str  # "host:port"
    key: str
    replica_id: int
    offset: int  # in that node's pool; 0 on disk
    nbytes: int
    generation: int
    lease_token: int  # 0: on disk, where nothing is leased


class Outcome(Enum):
    """How a transfer ended."""

    OK = "ok"  # all bytes are there, unverified
    FAILED = "failed"  # and it is over: nothing is written into the destination any more
    EXPIRED = "expired"  # not in time; the destination may still be written until `quiesced`


class Ticket(Protocol):
    """One transfer under way."""

    @property
    def reason(self) -> str:
        """Why it did not go well; "" while it may."""

    @property
    def xxh3(self) -> int | None:
        """XXH3-64 of the bytes that came, if the transport has seen to that while they came; None: it has not."""

    async def done(self, timeout_s: float) -> Outcome:
        """Its outcome. One that lasts longer is given up by then at the latest. Cancelled: it is given up too."""

    async def quiesced(self) -> None:
        """Returns when nothing is written into the destination any more."""


class DataPlane(Protocol):
    """One kind of transport."""

    kind: str

    def submit(self, source: RemoteRange, local_offset: int) -> Ticket:
        """Begin to read *source* into this node's pool at *local_offset*, where `nbytes` are reserved."""

    async def close(self) -> None:
        """Give up what is under way; when it returns all is quiesced. Twice is harmless."""


class RefusedError(Exception):
    """This node has no such bytes to lend any more; the message says why."""


class Loan(Protocol):
    """An object's bytes, kept as they are for one transfer."""

    nbytes: int
    # All of them at once, if they lie in memory; else None, and they come in parts alone.
    view: memoryview | None

    def parts(self) -> AsyncIterator[memoryview]:
        """All of them in order, in parts; each is good until the next is asked for.

        RefusedError in the middle if the others cannot be had.
        """


class Lender(Protocol):
    """The sending node's own side: what a plane asks for the bytes it sends."""

    def lend(self, key: str, replica_id: int, generation: int, lease_token: int) -> AbstractAsyncContextManager[Loan]:
        """A loan of a replica as described; RefusedError on entry if it is not there like that any more."""
