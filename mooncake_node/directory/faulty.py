"""A directory that loses calls or answers, or is slow, when a drill says so."""

import asyncio
from collections.abc import Sequence

from mooncake_client.errors import StoreError
from mooncake_client.faults import FaultTable
from mooncake_node.directory.port import (
    Created,
    Creation,
    Directory,
    DirectoryAwayError,
    Entry,
    Holding,
    Members,
    Node,
    Taken,
    TooOld,
)


class FaultyDirectory:
    """Implements `Directory` over *inner*, with a fault point before and after each call. Only while faults are on.

    An error at a point is to the caller DirectoryAwayError: before, nothing was carried out; after, all was and the
    answer is lost. `leave` and `close` pass through.
    """

    def __init__(self, inner: Directory, faults: FaultTable) -> None:
        assert faults.enabled
        self._inner = inner
        self._faults = faults

    @property
    def state(self) -> str:
        """See Directory; what a fault made of a call does not count."""
        return self._inner.state

    async def join(self, name: str, endpoint: str) -> Node:
        """See Directory."""
        await self._point("DirectoryBeforeJoin")
        answer = await self._inner.join(name, endpoint)
        await self._point("DirectoryAfterJoin")
        return answer

    async def renew(self, node: Node) -> bool:
        """See Directory."""
        await self._point("DirectoryBeforeRenew")
        answer = await self._inner.renew(node)
        await self._point("DirectoryAfterRenew")
        return answer

    async def leave(self, node: Node) -> None:
        """See Directory."""
        await self._inner.leave(node)

    async def members(self) -> Members:
        """See Directory."""
        await self._point("DirectoryBeforeMembers")
        answer = await self._inner.members()
        await self._point("DirectoryAfterMembers")
        return answer

    async def raise_clear_epoch(self) -> int:
        """See Directory."""
        await self._point("DirectoryBeforeRaiseClearEpoch")
        answer = await self._inner.raise_clear_epoch()
        await self._point("DirectoryAfterRaiseClearEpoch")
        return answer

    async def lookup(self, keys: Sequence[str]) -> list[Entry]:
        """See Directory."""
        await self._point("DirectoryBeforeLookup")
        answer = await self._inner.lookup(keys)
        await self._point("DirectoryAfterLookup")
        return answer

    async def create(self, items: Sequence[Creation]) -> list[Created | Taken | TooOld]:
        """See Directory."""
        await self._point("DirectoryBeforeCreate")
        answer = await self._inner.create(items)
        await self._point("DirectoryAfterCreate")
        return answer

    async def publish(self, items: Sequence[tuple[str, Holding]]) -> list[bool]:
        """See Directory."""
        await self._point("DirectoryBeforePublish")
        answer = await self._inner.publish(items)
        await self._point("DirectoryAfterPublish")
        return answer

    async def update(self, items: Sequence[tuple[str, Holding]]) -> list[bool]:
        """See Directory."""
        await self._point("DirectoryBeforeUpdate")
        answer = await self._inner.update(items)
        await self._point("DirectoryAfterUpdate")
        return answer

    async def transfer(self, key: str, *, node: str, incarnation: int, to: Holding) -> bool:
        """See Directory."""
        await self._point("DirectoryBeforeTransfer")
        answer = await self._inner.transfer(key, node=node, incarnation=incarnation, to=to)
        await self._point("DirectoryAfterTransfer")
        return answer

    async def remove(self, items: Sequence[tuple[str, int | None]]) -> list[Entry]:
        """See Directory."""
        await self._point("DirectoryBeforeRemove")
        answer = await self._inner.remove(items)
        await self._point("DirectoryAfterRemove")
        return answer

    async def withdraw(self, items: Sequence[tuple[str, str, int, int]]) -> None:
        """See Directory."""
        await self._point("DirectoryBeforeWithdraw")
        await self._inner.withdraw(items)
        await self._point("DirectoryAfterWithdraw")

    async def close(self) -> None:
        """See Directory."""
        await self._inner.close()

    async def _point(self, point: str) -> None:
        try:
            seconds = self._faults.hit(point)
        except StoreError as error:
            raise DirectoryAwayError(str(error)) from error
        if seconds:
            await asyncio.sleep(seconds)
