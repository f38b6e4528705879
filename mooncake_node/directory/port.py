"""The port of a directory: who lives, and who has what. Nodes can rebuild all of it; the truth is with them.

An entry names the nodes that have one generation of a key: its owner, whose replica carries the contract, and those
with a secondary replica. All holdings of an entry are of the same generation. What removed a generation leaves a
tombstone for a set time, so that nobody who was away meanwhile brings it back.

Every call ends within the directory's time limit; DirectoryAwayError then says that the outcome is unknown. Calls take
batches; each item is one atomic step of its own, and the answers stand in the order of the items.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec


class DirectoryError(Exception):
    """The directory cannot be used as asked; the message is for the operator."""


class DirectoryAwayError(DirectoryError):
    """No answer in time, or none at all: whether the call was carried out is not known."""


class NameTakenError(DirectoryError):
    """A living node has that name already."""


class Holding(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What one node has of a key."""

    node: str
    incarnation: int  # of that node's life in the cluster
    generation: int
    nbytes: int
    kind: int
    epoch: int  # clear epoch of its put_start
    is_owner: bool
    on_disk: bool = False  # in its offload tier alone
    softpin: bool = False  # the object's contract, whoever has the replica
    softpin_until_unix_ms: int | None = None  # None: until removed, or not pinned


class Entry(msgspec.Struct, frozen=True, gc=False):
    """What the directory knows of one key; without holdings: nothing, or that it was removed."""

    holdings: tuple[Holding, ...] = ()
    tombstone: int = 0  # the newest generation known to be removed; 0: none
    # What was removed with it: whoever had it may not have heard of that yet. Forgotten with the next creation.
    removed: tuple[Holding, ...] = ()

    @property
    def owner(self) -> Holding | None:
        """Whose replica carries the contract; None: nobody's."""
        return next((holding for holding in self.holdings if holding.is_owner), None)


class Creation(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An owner's new generation of a key."""

    key: str
    holding: Holding  # is_owner
    replaces: bool = False  # upsert: an older generation that is there gives way
    # Nodes' lives that the caller knows to be over: (node, incarnation). Their holdings count as absent.
    dead: tuple[tuple[str, int], ...] = ()


class Created(msgspec.Struct, frozen=True, gc=False):
    """The entry is the caller's. *replaced*: the holdings that gave way, dead ones and those of the caller included,
    and those that were removed before.
    """

    replaced: tuple[Holding, ...] = ()


class Taken(msgspec.Struct, frozen=True, gc=False):
    """A holding of the key is there already: the owner's, or if that is withdrawn a secondary. Nothing was changed."""

    by: Holding


class TooOld(msgspec.Struct, frozen=True, gc=False):
    """The generation is not above *newest*, which was there or is known to be removed. Nothing was changed."""

    newest: int


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One living node."""

    name: str
    incarnation: int  # above every earlier one of any node
    slot: int  # of its generations: 0 to 2,047, no other node's, the same in all its lives
    endpoint: str  # "host:port" of its listener
    free_bytes: int = 0


class Members(msgspec.Struct, frozen=True):
    """The nodes that live, and the clear epoch."""

    nodes: tuple[Node, ...]
    clear_epoch: int


class Directory(Protocol):
    """One for each node, all of one namespace."""

    @property
    def state(self) -> str:
        """ "up" | "away": whether the last call was answered."""

    # -- who lives -----------------------------------------------------------------------------------------------

    async def join(self, name: str, endpoint: str) -> Node:
        """Begin a life of that node, with a new incarnation.

        NameTakenError if another of that name lives: at once if it renews, else after its time to live at the
        latest, which is waited for. Slots run out at 2,048 names: DirectoryError.
        """

    async def renew(self, node: Node) -> bool:
        """Live on for the time to live from now; carries *free_bytes*. False: that life is over, whoever ended it."""

    async def leave(self, node: Node) -> None:
        """End that life now."""

    async def members(self) -> Members:
        """Who lives now, and the clear epoch."""

    async def raise_clear_epoch(self) -> int:
        """The new clear epoch, above every one before."""

    # -- who has what --------------------------------------------------------------------------------------------

    async def lookup(self, keys: Sequence[str]) -> list[Entry]:
        """The entry of each key, the holdings of dead nodes included."""

    async def create(self, items: Sequence[Creation]) -> list[Created | Taken | TooOld]:
        """Put if absent. Holdings of an epoch below the item's count as absent.

        A generation that is there already under the same node's name is Created again, whatever its incarnation was:
        the call can be repeated. Then the holdings of others of the same generation stay as secondary ones.
        """

    async def publish(self, items: Sequence[tuple[str, Holding]]) -> list[bool]:
        """Add a secondary holding, only while the entry has an owner of that generation. True: it is there now."""

    async def update(self, items: Sequence[tuple[str, Holding]]) -> list[bool]:
        """Change what is said of one's own holding. False: none of that incarnation and generation is there."""

    async def transfer(self, key: str, *, node: str, incarnation: int, to: Holding) -> bool:
        """Make *to* the owner, only while that node's life is the owner with *to*'s generation.

        The holding of the old owner goes. True also if *to* is the owner already.
        """

    async def remove(self, items: Sequence[tuple[str, int | None]]) -> list[Entry]:
        """Remove each (key, generation or None for any), leaving a tombstone; the entry as it was.

        An entry without holdings in the answer: there was none, or not of that generation, and nothing was changed.
        """

    async def withdraw(self, items: Sequence[tuple[str, str, int, int]]) -> None:
        """Take holdings out: (key, node, incarnation, generation). Those that are not there change nothing.

        If it was the owner's and others have that generation, one of them becomes the owner. No tombstone.
        """

    async def close(self) -> None:
        """Let go of it; twice is harmless."""
