"""A directory that loses calls or answers, or is slow, when a drill says so."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

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

T = TypeVar("T")

POINTS = {
    "DirectoryBeforeJoin": "a node is about to begin a life, the directory does not know yet",
    "DirectoryAfterJoin": "a life has begun, its node does not know yet",
    "DirectoryBeforeRenew": "a node is about to say that it lives on",
    "DirectoryAfterRenew": "a life goes on or is over, its node does not know yet",
    "DirectoryBeforeMembers": "a node is about to ask who lives",
    "DirectoryAfterMembers": "who lives was answered, who asked does not know yet",
    "DirectoryBeforeLookup": "a node is about to ask who has keys",
    "DirectoryAfterLookup": "who has them was answered, who asked does not know yet",
    "DirectoryBeforeCreate": "an owner is about to enter its generations, nobody sees them there yet",
    "DirectoryAfterCreate": "generations were entered or refused, their owner does not know yet",
    "DirectoryBeforePublish": "a node is about to enter secondary replicas",
    "DirectoryAfterPublish": "secondary replicas were entered or refused, their node does not know yet",
    "DirectoryBeforeUpdate": "a node is about to change what is said of its replicas",
    "DirectoryAfterUpdate": "what is said was changed or not, their node does not know yet",
    "DirectoryBeforeTransfer": "a key is about to change its owner",
    "DirectoryAfterTransfer": "a key has changed its owner or not, who asked does not know yet",
    "DirectoryBeforeRemove": "keys are about to be removed for everybody",
    "DirectoryAfterRemove": "keys were removed, who asked does not know yet",
    "DirectoryBeforeWithdraw": "a node is about to take its replicas out",
    "DirectoryAfterWithdraw": "replicas were taken out, their node does not know yet",
    "DirectoryBeforeRaiseClearEpoch": "all objects are about to be cleared",
    "DirectoryAfterRaiseClearEpoch": "the clear epoch was raised, who asked does not know yet",
}


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
        await self._pass("DirectoryBeforeJoin")
        return await self._then("DirectoryAfterJoin", self._inner.join(name, endpoint))

    async def renew(self, node: Node) -> bool:
        """See Directory."""
        await self._pass("DirectoryBeforeRenew")
        return await self._then("DirectoryAfterRenew", self._inner.renew(node))

    async def leave(self, node: Node) -> None:
        """See Directory."""
        await self._inner.leave(node)

    async def members(self) -> Members:
        """See Directory."""
        await self._pass("DirectoryBeforeMembers")
        return await self._then("DirectoryAfterMembers", self._inner.members())

    async def raise_clear_epoch(self) -> int:
        """See Directory."""
        await self._pass("DirectoryBeforeRaiseClearEpoch")
        return await self._then("DirectoryAfterRaiseClearEpoch", self._inner.raise_clear_epoch())

    async def lookup(self, keys: Sequence[str]) -> list[Entry]:
        """See Directory."""
        await self._pass("DirectoryBeforeLookup")
        return await self._then("DirectoryAfterLookup", self._inner.lookup(keys))

    async def create(self, items: Sequence[Creation]) -> list[Created | Taken | TooOld]:
        """See Directory."""
        await self._pass("DirectoryBeforeCreate")
        return await self._then("DirectoryAfterCreate", self._inner.create(items))

    async def publish(self, items: Sequence[tuple[str, Holding]]) -> list[bool]:
        """See Directory."""
        await self._pass("DirectoryBeforePublish")
        return await self._then("DirectoryAfterPublish", self._inner.publish(items))

    async def update(self, items: Sequence[tuple[str, Holding]]) -> list[bool]:
        """See Directory."""
        await self._pass("DirectoryBeforeUpdate")
        return await self._then("DirectoryAfterUpdate", self._inner.update(items))

    async def transfer(self, key: str, *, node: str, incarnation: int, to: Holding) -> bool:
        """See Directory."""
        await self._pass("DirectoryBeforeTransfer")
        call = self._inner.transfer(key, node=node, incarnation=incarnation, to=to)
        return await self._then("DirectoryAfterTransfer", call)

    async def remove(self, items: Sequence[tuple[str, int | None]]) -> list[Entry]:
        """See Directory."""
        await self._pass("DirectoryBeforeRemove")
        return await self._then("DirectoryAfterRemove", self._inner.remove(items))

    async def withdraw(self, items: Sequence[tuple[str, str, int, int]]) -> None:
        """See Directory."""
        await self._pass("DirectoryBeforeWithdraw")
        await self._then("DirectoryAfterWithdraw", self._inner.withdraw(items))

    async def close(self) -> None:
        """See Directory."""
        await self._inner.close()

    async def _then(self, point: str, call: Awaitable[T]) -> T:
        answer = await call
        await self._pass(point)
        return answer

    async def _pass(self, point: str) -> None:
        try:
            seconds = self._faults.hit(point)
        except StoreError as error:
            raise DirectoryAwayError(str(error)) from error
        if seconds:
            await asyncio.sleep(seconds)
