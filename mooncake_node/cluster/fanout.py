"""Telling other nodes what they have to do before somebody is answered: heard by every one that lives."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from mooncake_client import wire
from mooncake_client.codes import Code
from mooncake_node.cluster.membership import Membership
from mooncake_node.cluster.points import Points
from mooncake_node.core.refusal import Refusal
from mooncake_node.directory.port import Holding
from mooncake_node.peers.errors import PeerError
from mooncake_node.peers.links import PeerLinks
from mooncake_node.peers.messages import Drop, PeerRequest

# How long one attempt lasts, and all of them together.
_ATTEMPT_S = 5.0
_PATIENCE_S = 25.0
_PAUSE_S = 0.05


class FanOut:
    """Asks nodes until they have answered, or their life is over: then they serve no secondary replica any more."""

    def __init__(self, links: PeerLinks, membership: Membership, points: Points) -> None:
        self._links = links
        self._membership = membership
        self._points = points

    async def drop(self, dropped: Iterable[tuple[str, Sequence[Holding]]]) -> None:
        """Have every holder of these (key, holdings) drop what it has; the holdings are in the directory no more."""
        of_node: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
        for key, holdings in dropped:
            for holding in holdings:
                if holding.node != self._membership.me.name:
                    of_node[holding.node].append((key, holding.generation))
        if of_node:
            await self._points.hit("NodeBeforeFanOut")
            await self._all({node: partial(Drop, 0, items) for node, items in of_node.items()})

    def drop_everywhere(self, items: list[tuple[str, int]]) -> None:
        """`drop` by every node that lives as far as is known, when the directory cannot say who has them."""
        if items:
            for node in self._membership.others:
                self._links.notify(node, Drop(0, items))

    async def everyone(self, make: Callable[[], PeerRequest]) -> int:
        """Ask all other nodes that live; the sum of their counts."""
        return await self._all(dict.fromkeys(self._membership.others, make))

    async def _all(self, requests: dict[str, Callable[[], PeerRequest]]) -> int:
        counts = await asyncio.gather(*(self._one(node, make) for node, make in requests.items()))
        return sum(counts)

    async def _one(self, node: str, make: Callable[[], PeerRequest]) -> int:
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
            if time.monotonic() - began_s > _PATIENCE_S:
                raise Refusal(Code.TIMEOUT, f"carried out here, but node {node} lives and has not acknowledged it")
        return 0
