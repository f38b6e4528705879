"""A directory on a Valkey or Redis server: one hash a key, one key with a time to live a node."""

from collections.abc import Sequence
from typing import cast

from mooncake_node.directory import encoding, scripts
from mooncake_node.directory.lives import Lives
from mooncake_node.directory.naming import check_namespace
from mooncake_node.directory.port import (
    Created,
    Creation,
    DirectoryError,
    Entry,
    Holding,
    Members,
    Node,
    Taken,
    TooOld,
)
from mooncake_node.directory.server import Command, Server
from mooncake_node.directory.url import parse_url

LIVENESS_TTL_S = 3.0
TOMBSTONE_S = 3600.0
TIMEOUT_S = 0.5
PAUSE_S = 1.0


class ValkeyDirectory:
    """Implements `Directory`. To make one connects to nothing yet; DirectoryError: it could not be used.

    The time limit is for each 256 items of a batch, which are one round trip; a batch that fails half way may have
    been carried out in part, as DirectoryAwayError says. After a call without an answer others fail at once for
    *pause_s*; then one tries.
    """

    def __init__(
        self,
        url: str,
        *,
        namespace: str,
        liveness_ttl_s: float = LIVENESS_TTL_S,
        tombstone_s: float = TOMBSTONE_S,
        timeout_s: float = TIMEOUT_S,
        pause_s: float = PAUSE_S,
    ) -> None:
        assert liveness_ttl_s > 0
        assert tombstone_s > 0
        assert timeout_s > 0
        check_namespace(namespace)
        self._server = Server(parse_url(url), timeout_s=timeout_s, pause_s=pause_s)
        self._lives = Lives(self._server, namespace=namespace, ttl_s=liveness_ttl_s)
        self._prefix = f"o:{namespace}:"
        self._tombstone_ms = max(1, round(tombstone_s * 1000))

    @property
    def state(self) -> str:
        """See Directory."""
        return "up" if self._server.is_up else "away"

    async def join(self, name: str, endpoint: str) -> Node:
        """See Directory."""
        return await self._lives.join(name, endpoint)

    async def renew(self, node: Node) -> bool:
        """See Directory."""
        return await self._lives.renew(node)

    async def leave(self, node: Node) -> None:
        """See Directory."""
        await self._lives.leave(node)

    async def members(self) -> Members:
        """See Directory."""
        return await self._lives.members()

    async def raise_clear_epoch(self) -> int:
        """See Directory."""
        return await self._lives.raise_clear_epoch()

    async def lookup(self, keys: Sequence[str]) -> list[Entry]:
        """See Directory."""
        answers = await self._server.run([("HGETALL", self._name(key)) for key in keys])
        return [_entry(answer) for answer in answers]

    async def create(self, items: Sequence[Creation]) -> list[Created | Taken | TooOld]:
        """See Directory."""
        answers = await self._server.run([self._creation(item) for item in items])
        return [_creation_answer(answer) for answer in answers]

    async def publish(self, items: Sequence[tuple[str, Holding]]) -> list[bool]:
        """See Directory."""
        assert not any(holding.is_owner for _, holding in items)
        return await self._ask([self._with_holding(scripts.PUBLISH, *item) for item in items])

    async def update(self, items: Sequence[tuple[str, Holding]]) -> list[bool]:
        """See Directory. Who owns is not changed by it."""
        return await self._ask([self._with_holding(scripts.UPDATE, *item) for item in items])

    async def transfer(self, key: str, *, node: str, incarnation: int, to: Holding) -> bool:
        """See Directory."""
        assert to.is_owner
        value = encoding.holding_text(to)
        [done] = await self._ask([(scripts.TRANSFER, self._name(key), node, incarnation, to.node, value)])
        return done

    async def remove(self, items: Sequence[tuple[str, int | None]]) -> list[Entry]:
        """See Directory."""
        commands: list[Command] = [
            (
                scripts.REMOVE,
                self._name(key),
                "" if generation is None else encoding.generation_text(generation),
                self._tombstone_ms,
            )
            for key, generation in items
        ]
        return [_entry(answer) for answer in await self._server.run(commands)]

    async def withdraw(self, items: Sequence[tuple[str, str, int, int]]) -> None:
        """See Directory."""
        await self._server.run(
            [
                (
                    scripts.WITHDRAW,
                    self._name(key),
                    node,
                    incarnation,
                    encoding.generation_text(generation),
                    self._tombstone_ms,
                )
                for key, node, incarnation, generation in items
            ]
        )

    async def close(self) -> None:
        """See Directory."""
        await self._server.close()

    def _name(self, key: str) -> str:
        return self._prefix + encoding.digest_of(key)

    def _creation(self, item: Creation) -> Command:
        assert item.holding.is_owner
        dead = (f"{incarnation}:{node}" for node, incarnation in item.dead)
        value = encoding.holding_text(item.holding)
        return (scripts.CREATE, self._name(item.key), item.holding.node, value, "1" if item.replaces else "0", *dead)

    def _with_holding(self, script: scripts.Script, key: str, holding: Holding) -> Command:
        return (script, self._name(key), holding.node, encoding.holding_text(holding))

    async def _ask(self, commands: Sequence[Command]) -> list[bool]:
        return [answer == 1 for answer in await self._server.run(commands)]


def _fields(answer: object) -> list[bytes]:
    """Fields and values in turn, of what a script or HGETALL gave."""
    if isinstance(answer, dict):
        return [part for pair in answer.items() for part in pair]
    return cast("list[bytes]", answer)


def _entry(answer: object) -> Entry:
    try:
        return encoding.entry_from(_fields(answer))
    except ValueError as error:
        raise _foreign(error) from error


def _creation_answer(answer: object) -> Created | Taken | TooOld:
    outcome, *rest = _fields(answer)
    try:
        if outcome == b"created":
            gone = encoding.entry_from(rest)
            return Created(gone.holdings or gone.removed)
        if outcome == b"taken":
            return Taken(encoding.holding_from(*rest))
        assert outcome == b"old"
        return TooOld(int(rest[0], 16))
    except ValueError as error:
        raise _foreign(error) from error


def _foreign(error: ValueError) -> DirectoryError:
    return DirectoryError(f"the directory has values that are not ours under this namespace: {error}")
