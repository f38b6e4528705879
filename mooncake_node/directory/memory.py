"""A directory in this process: what a cluster of one has, and what tests and simulations use for a server.

Its `MemoryCluster` is what the server would be: all nodes' directories over one are of one cluster.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from mooncake_node.directory.entries import EntryState
from mooncake_node.directory.naming import SLOTS, check_name
from mooncake_node.directory.port import (
    Created,
    Creation,
    DirectoryAwayError,
    DirectoryError,
    Entry,
    Holding,
    Members,
    NameTakenError,
    Node,
    Taken,
    TooOld,
)

_LOOK_S = 0.01  # how often a join that waits looks again


class _Life(msgspec.Struct):
    """A node's life, over at *end_ns* unless renewed."""

    node: Node
    end_ns: int


class MemoryCluster:
    """What all its directories share. *clock_ns* tells the time, which ends lives and tombstones."""

    def __init__(
        self,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        *,
        liveness_ttl_s: float = 3.0,
        tombstone_s: float = 3600.0,
    ) -> None:
        self.clock_ns = clock_ns
        self.ttl_ns = round(liveness_ttl_s * 1e9)
        self.tombstone_ns = round(tombstone_s * 1e9)
        self.incarnation = 0  # the newest
        self.clear_epoch = 0
        self.slots: dict[str, int] = {}  # of every name that ever joined
        self._lives: dict[str, _Life] = {}  # ended ones may still be among them
        self._entries: dict[str, EntryState] = {}  # those with holdings or a tombstone that may be over
        self._tombstone_end_ns: dict[str, int] = {}  # of those entries that have a tombstone

    def lose(self) -> None:
        """Forget who lives and who has what, as a server does that restarts empty; numbers go on rising."""
        self.slots.clear()
        self._lives.clear()
        self._entries.clear()
        self._tombstone_end_ns.clear()

    def life(self, name: str) -> _Life | None:
        """The life of that node that goes on now."""
        life = self._lives.get(name)
        if life is not None and self.clock_ns() >= life.end_ns:
            del self._lives[name]
            return None
        return life

    def living(self) -> tuple[Node, ...]:
        """In the order of their names."""
        lives = (self.life(name) for name in sorted(self._lives))
        return tuple(life.node for life in lives if life is not None)

    def begin(self, name: str, endpoint: str, slot: int) -> Node:
        """A new life; none of that name goes on."""
        self.incarnation += 1
        node = Node(name=name, incarnation=self.incarnation, slot=slot, endpoint=endpoint)
        self._lives[name] = _Life(node, self.clock_ns() + self.ttl_ns)
        return node

    def slot(self, name: str) -> int:
        """The name's slot, the lowest free one if it has none yet."""
        if name not in self.slots:
            taken = set(self.slots.values())
            free = next((slot for slot in range(SLOTS) if slot not in taken), None)
            if free is None:
                raise DirectoryError(f"all {SLOTS:,} slots are taken: so many nodes' names the directory has known")
            self.slots[name] = free
        return self.slots[name]

    def renew(self, node: Node) -> bool:
        """See Directory."""
        life = self.life(node.name)
        if life is None or life.node.incarnation != node.incarnation:
            return False
        life.node, life.end_ns = node, self.clock_ns() + self.ttl_ns
        return True

    def end(self, node: Node) -> None:
        """End that life, if it is the one that goes on."""
        life = self.life(node.name)
        if life is not None and life.node.incarnation == node.incarnation:
            del self._lives[node.name]

    def entry(self, key: str) -> EntryState:
        """What is known of that key now."""
        end_ns = self._tombstone_end_ns.get(key)
        if end_ns is not None and end_ns <= self.clock_ns():
            del self._entries[key], self._tombstone_end_ns[key]
        return self._entries.get(key) or EntryState()

    @contextmanager
    def changing(self, key: str) -> Iterator[EntryState]:
        """What is known of that key now, and kept as what the caller makes of it."""
        state = self.entry(key)
        yield state
        if state.held or state.tombstone:
            self._entries[key] = state
        else:
            self._entries.pop(key, None)
        if state.held or not state.tombstone:
            # Beside holdings a tombstone stays as long as they do.
            self._tombstone_end_ns.pop(key, None)
        else:
            self._tombstone_end_ns.setdefault(key, self.clock_ns() + self.tombstone_ns)


class MemoryDirectory:
    """Implements `Directory`: one node's view of a cluster. While `is_away` is set every call fails."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self.is_away = False
        self._was_away = False  # the last call was not answered

    @property
    def state(self) -> str:
        """See Directory."""
        return "away" if self._was_away else "up"

    async def join(self, name: str, endpoint: str) -> Node:
        """See Directory."""
        check_name(name)
        await self._reach()
        slot = self.cluster.slot(name)
        first = self.cluster.life(name)
        first_end_ns = 0 if first is None else first.end_ns
        while (life := self.cluster.life(name)) is not None:
            if life is not first or life.end_ns > first_end_ns:
                raise NameTakenError(f"a node named {name!r} lives already, at {life.node.endpoint}")
            await asyncio.sleep(_LOOK_S)
            await self._reach()
        return self.cluster.begin(name, endpoint, slot)

    async def renew(self, node: Node) -> bool:
        """See Directory."""
        await self._reach()
        return self.cluster.renew(node)

    async def leave(self, node: Node) -> None:
        """See Directory."""
        await self._reach()
        self.cluster.end(node)

    async def members(self) -> Members:
        """See Directory."""
        await self._reach()
        return Members(self.cluster.living(), self.cluster.clear_epoch)

    async def raise_clear_epoch(self) -> int:
        """See Directory."""
        await self._reach()
        self.cluster.clear_epoch += 1
        return self.cluster.clear_epoch

    async def lookup(self, keys: Sequence[str]) -> list[Entry]:
        """See Directory."""
        await self._reach()
        return [self.cluster.entry(key).entry for key in keys]

    async def create(self, items: Sequence[Creation]) -> list[Created | Taken | TooOld]:
        """See Directory."""
        assert all(item.holding.is_owner for item in items)
        await self._reach()
        answers = []
        for item in items:
            with self.cluster.changing(item.key) as state:
                answers.append(state.create(item))
        return answers

    async def publish(self, items: Sequence[tuple[str, Holding]]) -> list[bool]:
        """See Directory."""
        assert not any(holding.is_owner for _, holding in items)
        await self._reach()
        answers = []
        for key, holding in items:
            with self.cluster.changing(key) as state:
                answers.append(state.publish(holding))
        return answers

    async def update(self, items: Sequence[tuple[str, Holding]]) -> list[bool]:
        """See Directory. Who owns is not changed by it."""
        await self._reach()
        answers = []
        for key, holding in items:
            with self.cluster.changing(key) as state:
                answers.append(state.update(holding))
        return answers

    async def transfer(self, key: str, *, node: str, incarnation: int, to: Holding) -> bool:
        """See Directory."""
        assert to.is_owner
        await self._reach()
        with self.cluster.changing(key) as state:
            return state.transfer(node, incarnation, to)

    async def remove(self, items: Sequence[tuple[str, int | None]]) -> list[Entry]:
        """See Directory."""
        await self._reach()
        answers = []
        for key, generation in items:
            with self.cluster.changing(key) as state:
                answers.append(state.remove(generation))
        return answers

    async def withdraw(self, items: Sequence[tuple[str, str, int, int]]) -> None:
        """See Directory."""
        await self._reach()
        for key, node, incarnation, generation in items:
            with self.cluster.changing(key) as state:
                state.withdraw(node, incarnation, generation)

    async def close(self) -> None:
        """See Directory. The cluster stays."""

    async def _reach(self) -> None:
        """Let others run, as a call to a server would, then fail if it is away."""
        await asyncio.sleep(0)
        self._was_away = self.is_away
        if self.is_away:
            raise DirectoryAwayError("the directory in memory is away")
