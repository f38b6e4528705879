"""Telling other nodes what they have to do before somebody is answered: heard by every one that lives."""

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from mooncake_client import wire
from mooncake_client.codes import Code
from mooncake_client.errors import StoreError
from mooncake_node.cluster.membership import Membership
from mooncake_node.cluster.points import Points
from mooncake_node.core.refusal import Refusal
from mooncake_node.directory.port import Holding
from mooncake_node.peers.errors import PeerError
from mooncake_node.peers.links import PeerLinks
from mooncake_node.peers.messages import Drop, PeerRequest
from mooncake_node.peers.tasks import Tasks

# How long one attempt lasts, and all of them together.
_ATTEMPT_S = 5.0
_PATIENCE_S = 25.0
_PAUSE_S = 0.05


class FanOut:
    """Asks nodes until they have answered, or their life is over: then they serve no secondary replica any more."""

    def __init__(self, links: PeerLinks, membership: Membership, points: Points, tasks: Tasks) -> None:
        self._links = links
        self._membership = membership
        self._points = points
        self._tasks = tasks
        # What other nodes are being told to drop and have not acknowledged, by key and generation.
        self._pending: dict[str, dict[int, asyncio.Event]] = {}

    async def drop(self, dropped: Iterable[tuple[str, Sequence[Holding]]], *, is_replaced: bool = False) -> None:
        """Have every holder of these (key, holdings) drop what it has; the holdings are in the directory no more.

        *is_replaced*: by newer ones. Whoever gets an error instead: it is being carried out nevertheless.
        """
        own: list[tuple[str, int]] = []
        of_node: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
        for key, holdings in dropped:
            for holding in holdings:
                is_own = holding.node == self._membership.me.name
                (own if is_own else of_node[holding.node]).append((key, holding.generation))
        with self._pending_until_heard([item for items in of_node.values() for item in items]):
            await self.settled(own)
            if of_node:
                await self._drop(of_node, is_replaced=is_replaced)

    async def settled(self, items: Iterable[tuple[str, int]]) -> None:
        """Returns when what this node is having dropped of older generations of these (key, generation) is dropped.

        Whoever is told that a generation is gone may take all before it for gone too, and some may be held by nodes
        that only this one knows of.
        """
        for key, generation in items:
            for older, heard in list(self._pending.get(key, {}).items()):
                if older < generation:
                    await heard.wait()

    @contextmanager
    def _pending_until_heard(self, items: Sequence[tuple[str, int]]) -> Iterator[None]:
        heard = asyncio.Event()
        for key, generation in items:
            self._pending.setdefault(key, {})[generation] = heard
        try:
            yield
        finally:
            heard.set()
            for key, generation in items:
                pending = self._pending.get(key, {})
                if pending.get(generation) is heard:
                    del pending[generation]
                if not pending:
                    self._pending.pop(key, None)

    async def _drop(self, of_node: Mapping[str, list[tuple[str, int]]], *, is_replaced: bool) -> None:
        requests: dict[str, Callable[[], PeerRequest]] = {
            node: partial(Drop, 0, items, is_replaced) for node, items in of_node.items()
        }
        try:
            await self._points.hit("NodeBeforeFanOut")
        except StoreError:
            for node, make in requests.items():
                self._tasks.run(self._insist(node, make))
            raise
        await self._all(requests)

    def drop_everywhere(self, items: list[tuple[str, int]]) -> None:
        """`drop` by every node that lives as far as is known, when the directory cannot say who has them."""
        if items:
            for node in self._membership.others:
                self._links.notify(node, Drop(0, items))

    async def drop_by_all(self, items: list[tuple[str, int]]) -> None:
        """Have every node that lives drop these generations of keys and all before them."""
        if items:
            await self.everyone(lambda: Drop(0, items))

    async def everyone(self, make: Callable[[], PeerRequest]) -> int:
        """Ask all other nodes that live; the sum of their counts."""
        return await self._all(dict.fromkeys(self._membership.others, make))

    async def _all(self, requests: dict[str, Callable[[], PeerRequest]]) -> int:
        counts = await asyncio.gather(*(self._one(node, make) for node, make in requests.items()))
        return sum(counts)

    async def _insist(self, node: str, make: Callable[[], PeerRequest]) -> None:
        """Nobody waits for it; but as long as that node lives it may serve what it has not dropped."""
        await self._one(node, make, patience_s=math.inf)

    async def _one(self, node: str, make: Callable[[], PeerRequest], patience_s: float = _PATIENCE_S) -> int:
        began_s = time.monotonic()
        while node in self._membership.others:
            try:
                reply = await self._links.call(node, make(), _ATTEMPT_S)
            except PeerError:
                await self._membership.heard(_PAUSE_S)
            else:
                if not isinstance(reply, wire.Failed):
                    return reply.count if isinstance(reply, wire.Count) else 0
                await asyncio.sleep(_PAUSE_S)
            if time.monotonic() - began_s > patience_s:
                self._tasks.run(self._insist(node, make))
                raise Refusal(Code.TIMEOUT, f"carried out here, but node {node} lives and has not acknowledged it")
        return 0
