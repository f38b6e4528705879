"""Who lives, on a server: a key with a time to live for each node, and a slot that stays with its name.

A server that lost its data starts again from nothing, but the numbers it gives must not. An incarnation and a clear
epoch are therefore never below the wall clock of the server in milliseconds, nor at or below what the asking process
has seen of its kind. Beyond that it takes a clock that was set back while nobody remembered. Who has seen a higher
clear epoch than the server has puts it back; who had a slot asks for it again.
"""

import asyncio
from typing import cast

import msgspec

from mooncake_node.directory import encoding, scripts
from mooncake_node.directory.naming import SLOTS, check_name
from mooncake_node.directory.port import DirectoryError, Members, NameTakenError, Node
from mooncake_node.directory.server import Command, Server

_RENEWED_MS = 5  # an end that moved by more was moved by a renewal, not by rounding
# A join that waits looks again that often, at the least and at the most.
_LOOK_MIN_S = 0.01
_LOOK_MAX_S = 0.1


class _Seen(msgspec.Struct, frozen=True, array_like=True):
    """A life as the server has it."""

    value: bytes
    end_ms: bytes  # by the server's clock
    left_ms: int  # negative: it has no end


class Lives:
    """The lives of one namespace's nodes, as one node sees them."""

    def __init__(self, server: Server, *, namespace: str, ttl_s: float) -> None:
        self._server = server
        self._ttl_ms = max(1, round(ttl_s * 1000))
        self._prefix = f"n:{namespace}:"
        self._slots_key = f"d:{namespace}:slots"  # a hash: all names ever known, and the slot of each
        self._incarnation_key = f"d:{namespace}:incarnation"
        self._epoch_key = f"d:{namespace}:epoch"
        self._incarnation = 0  # the highest that was seen
        self._epoch = 0  # the highest that was seen
        self._slots: dict[str, int] = {}  # of every name that was seen
        self._names: list[str] = []  # all that the server knew at the last look

    async def join(self, name: str, endpoint: str) -> Node:
        """See Directory."""
        check_name(name)
        slot = await self._slot(name)
        first: _Seen | None = None
        while True:
            seen = await self._look(name)
            if seen is None:
                node = Node(name=name, incarnation=await self._next_incarnation(), slot=slot, endpoint=endpoint)
                if await self._claim(node):
                    self._learn(node)
                    return node
                continue  # another came first; whether it goes on to live is yet to be seen
            if first is None:
                first = seen
            if _is_another(seen, first) or seen.left_ms < 0:
                raise NameTakenError(f"a node named {name!r} lives already, at {_endpoint(name, seen)}")
            await asyncio.sleep(max(min(seen.left_ms / 1000, self._ttl_ms / 20_000, _LOOK_MAX_S), _LOOK_MIN_S))

    async def renew(self, node: Node) -> bool:
        """See Directory."""
        value = encoding.node_text(node)
        command: Command = (scripts.RENEW, self._prefix + node.name, node.incarnation, value, self._ttl_ms)
        [done] = await self._server.run([command])
        return done == 1

    async def leave(self, node: Node) -> None:
        """See Directory."""
        await self._server.run([(scripts.LEAVE, self._prefix + node.name, node.incarnation)])

    async def members(self) -> Members:
        """See Directory. One round trip while no name is new."""
        names = self._names
        commands: list[Command] = [("HGETALL", self._slots_key), (scripts.RESTORE, self._epoch_key, self._epoch)]
        if names:
            commands.append(("MGET", *(self._prefix + name for name in names)))
        slots, epoch, *rest = await self._server.run(commands)
        values = dict(zip(names, cast("list[bytes | None]", rest[0]) if rest else (), strict=True))
        self._names = sorted(name.decode() for name in cast("dict[bytes, bytes]", slots))
        new = [name for name in self._names if name not in values]
        if new:
            [more] = await self._server.run([("MGET", *(self._prefix + name for name in new))])
            values.update(zip(new, cast("list[bytes | None]", more), strict=True))
        nodes = tuple(_node(name, value) for name, value in sorted(values.items()) if value is not None)
        for node in nodes:
            self._learn(node)
        self._epoch = max(self._epoch, int(cast("bytes", epoch)))
        return Members(nodes, self._epoch)

    async def raise_clear_epoch(self) -> int:
        """See Directory."""
        [answer] = await self._server.run([(scripts.RISE, self._epoch_key, self._epoch)])
        self._epoch = max(self._epoch, number := int(cast("bytes", answer)))
        return number

    def _learn(self, node: Node) -> None:
        self._slots[node.name] = node.slot
        self._incarnation = max(self._incarnation, node.incarnation)

    async def _slot(self, name: str) -> int:
        own = self._slots.get(name, "")
        others = sorted({slot for other, slot in self._slots.items() if other != name} - {own})
        [slot] = await self._server.run([(scripts.SLOT, self._slots_key, name, SLOTS, own, *others)])
        assert isinstance(slot, int)
        if slot < 0:
            raise DirectoryError(f"all {SLOTS:,} slots are taken: so many nodes' names the directory has known")
        return slot

    async def _next_incarnation(self) -> int:
        [answer] = await self._server.run([(scripts.RISE, self._incarnation_key, self._incarnation)])
        self._incarnation = max(self._incarnation, number := int(cast("bytes", answer)))
        return number

    async def _look(self, name: str) -> _Seen | None:
        [answer] = await self._server.run([(scripts.LOOK, self._prefix + name)])
        parts = cast("list[bytes | int]", answer)
        return msgspec.convert(parts, _Seen) if parts else None

    async def _claim(self, node: Node) -> bool:
        value = encoding.node_text(node)
        [answer] = await self._server.run([("SET", self._prefix + node.name, value, "NX", "PX", self._ttl_ms)])
        return bool(answer)


def _is_another(seen: _Seen, first: _Seen) -> bool:
    """It is not the life that was *first* seen, or that one renewed."""
    return seen.value.split(b":")[0] != first.value.split(b":")[0] or int(seen.end_ms) > int(first.end_ms) + _RENEWED_MS


def _node(name: str, value: bytes) -> Node:
    try:
        return encoding.node_from(name, value)
    except ValueError as error:
        raise DirectoryError("the directory has nodes that are not ours under this namespace") from error


def _endpoint(name: str, seen: _Seen) -> str:
    return _node(name, seen.value).endpoint
