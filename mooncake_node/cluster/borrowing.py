"""What this node has from others for the length of a transfer: leases on their replicas, or small objects whole."""

import asyncio
from collections.abc import Sequence
from functools import partial

from mooncake_client import wire
from mooncake_client.codes import Code
from mooncake_node.cluster.batching import Batches
from mooncake_node.core.refusal import Refusal
from mooncake_node.obs.log import get_logger
from mooncake_node.peers.errors import PeerError
from mooncake_node.peers.links import PeerLinks
from mooncake_node.peers.messages import GetReplicas, ReleaseLeases, ReplicaItem, Replicas
from mooncake_node.peers.tasks import Tasks

_CALL_S = 5.0

_Lease = tuple[str, int, int]

log = get_logger()


class Borrowing:
    """Asks the nodes that have replicas. What is asked of one node in one turn of the loop goes in one message."""

    def __init__(self, links: PeerLinks, tasks: Tasks) -> None:
        self._links = links
        self._tasks = tasks
        # By node; one entry for each there has ever been something asked of.
        self._asking: dict[str, Batches[str, ReplicaItem | wire.Failure]] = {}
        self._releasing: dict[str, Batches[_Lease, None]] = {}
        self.leases_taken = 0
        self.leases_released = 0

    async def lease(self, node: str, key: str) -> ReplicaItem:
        """What that node has of *key*. Raises Refusal and PeerError."""
        asking = self._asking.get(node)
        if asking is None:
            asking = self._asking[node] = Batches(partial(self._ask, node), self._tasks)
        item = await asking.add(key)
        if isinstance(item, wire.Failure):
            raise Refusal(Code(item.code), f"node {node}: {item.message}")
        self.leases_taken += item.lease_token > 0
        return item

    def release(self, node: str, key: str, item: ReplicaItem) -> asyncio.Future[None] | None:
        """At most once, and never again if it is lost: then the lease ends by itself. None: there is no lease."""
        if not item.lease_token:
            return None
        self.leases_released += 1
        releasing = self._releasing.get(node)
        if releasing is None:
            releasing = self._releasing[node] = Batches(partial(self._release, node), self._tasks, one_by_one=True)
        released = releasing.add((key, item.replica_id, item.lease_token))
        released.add_done_callback(_note_if_lost)
        return released

    async def _ask(self, node: str, keys: Sequence[str]) -> Sequence[ReplicaItem | wire.Failure]:
        reply = await self._links.call(node, GetReplicas(0, list(keys)), _CALL_S)
        if isinstance(reply, wire.Failed):
            return [wire.Failure(reply.code, reply.message)] * len(keys)
        assert isinstance(reply, Replicas)
        if len(reply.items) != len(keys):
            raise PeerError(f"node {node} answered {len(reply.items)} of {len(keys)} keys", sent=True)
        return reply.items

    async def _release(self, node: str, leases: Sequence[_Lease]) -> Sequence[None]:
        await self._links.call(node, ReleaseLeases(0, list(leases)), _CALL_S)
        return [None] * len(leases)


def _note_if_lost(released: asyncio.Future[None]) -> None:
    error = None if released.cancelled() else released.exception()
    if isinstance(error, PeerError):
        log.debug("lease_not_released", error=str(error))
    elif error is not None:
        raise error
