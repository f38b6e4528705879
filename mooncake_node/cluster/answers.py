"""What this node does for others: their requests, answered from the core."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from mooncake_client import wire
from mooncake_client.codes import Code
from mooncake_client.errors import StoreError
from mooncake_client.wire import Message
from mooncake_node.cluster.changes import Changes
from mooncake_node.cluster.entries import Entries
from mooncake_node.cluster.fanout import FanOut
from mooncake_node.cluster.lending import Lending
from mooncake_node.cluster.membership import Membership
from mooncake_node.cluster.points import Points
from mooncake_node.cluster.watches import Watches
from mooncake_node.core.master import Master
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.report import holders, leases
from mooncake_node.core.scan import Scan
from mooncake_node.directory.port import DirectoryError
from mooncake_node.peers import messages
from mooncake_node.peers.messages import PeerRequest
from mooncake_node.server.translate import holder, lease_holder, object_info

# A replica that is just being published is waited for so long.
_PUBLISHED_S = 2.0
_PAGE_COUNT = 1000
_SCANS_MAX = 64


class Answers:
    """Answers every `PeerRequest`."""

    def __init__(
        self,
        *,
        master: Master,
        membership: Membership,
        lending: Lending,
        changes: Changes,
        entries: Entries,
        fan_out: FanOut,
        watches: Watches,
        points: Points,
        presence: Callable[[str, float], Awaitable[None]],
    ) -> None:
        """*presence* waits until a key is readable on this node, at most so many seconds."""
        self._master = master
        self._membership = membership
        self._lending = lending
        self._changes = changes
        self._entries = entries
        self._fan_out = fan_out
        self._watches = watches
        self._points = points
        self._presence = presence
        # Listings of other nodes, by node and cursor; the oldest are dropped.
        self._scans: dict[tuple[str, int], Scan] = {}
        self._next_cursor = 1
        self._handlers: dict[type[Message], Callable[[str, Any], Awaitable[Message]]] = {
            messages.GetReplicas: self._get_replicas,
            messages.ReleaseLeases: self._release_leases,
            messages.Drop: self._drop,
            messages.Clear: self._clear,
            messages.RemovePrefix: self._remove_prefix,
            messages.Pin: self._pin,
            messages.GetInfo: self._get_info,
            messages.ListOwned: self._list_owned,
            messages.Watch: self._watch,
            messages.Unwatch: self._unwatch,
            messages.Appeared: self._appeared,
            messages.GetHolders: self._get_holders,
            messages.Announce: self._announce,
        }

    async def handle(self, peer: str, request: PeerRequest) -> Message | None:
        """The answer; refusals are answers too."""
        try:
            return await self._handlers[type(request)](peer, request)
        except Refusal as refusal:
            return wire.Failed(request.request_id, int(refusal.code), refusal.message)

    async def _get_replicas(self, _peer: str, request: messages.GetReplicas) -> Message:
        items = await asyncio.gather(*(self._get_replica(key) for key in request.keys))
        return messages.Replicas(request.request_id, list(items))

    async def _get_replica(self, key: str) -> messages.ReplicaItem | wire.Failure:
        try:
            await self._points.hit("PeerBeforeGetReplicaList")
            if not self._membership.is_serving:
                raise Refusal(Code.NOT_READY, "this node is coming back to life")
            # Who asks may know of a generation that is not readable here yet.
            await self._entries.published(key, _PUBLISHED_S)
            try:
                item = await self._lending.lease(key)
            except Refusal as refusal:
                if refusal.code is not Code.NOT_READY:
                    raise
                await self._presence(key, _PUBLISHED_S)
                item = await self._lending.lease(key)
            await self._points.hit("PeerAfterGetReplicaList")
        except (Refusal, StoreError) as error:
            return wire.Failure(int(error.code), error.message)
        return item

    async def _release_leases(self, _peer: str, request: messages.ReleaseLeases) -> Message:
        now_ns = time.monotonic_ns()
        for key, replica_id, token in request.items:
            self._master.peers.release_lease(key, replica_id, token, now_ns)
        self._changes.settle()
        return wire.Done(request.request_id)

    async def _drop(self, _peer: str, request: messages.Drop) -> Message:
        await self._points.hit("PeerBeforeDrop")
        now_ns = time.monotonic_ns()
        for key, generation in request.items:
            self._master.peers.drop(key, generation, now_ns, is_replaced=request.is_replaced)
        await self._changes.on_disk()
        await self._fan_out.settled(request.items)
        await self._points.hit("PeerAfterDrop")
        return wire.Done(request.request_id)

    async def _clear(self, _peer: str, request: messages.Clear) -> Message:
        return wire.Count(request.request_id, await self._changes.clear_here(request.epoch))

    async def _remove_prefix(self, _peer: str, request: messages.RemovePrefix) -> Message:
        return wire.Count(request.request_id, await self._changes.remove_owned_prefix(request.prefix))

    async def _pin(self, _peer: str, request: messages.Pin) -> Message:
        await self._changes.pin_here(request.key, softpin=request.softpin, ttl_ms=request.ttl_ms)
        return wire.Done(request.request_id)

    async def _get_info(self, _peer: str, request: messages.GetInfo) -> Message:
        now_ns = time.monotonic_ns()
        items: list[wire.ObjectInfo | wire.Failure] = []
        for key in request.keys:
            try:
                items.append(self._info(self._master.readable(key, now_ns), now_ns))
            except Refusal as refusal:
                items.append(wire.Failure(int(refusal.code), refusal.message))
        return wire.Infos(request.request_id, items)

    async def _list_owned(self, peer: str, request: messages.ListOwned) -> Message:
        now_ns, cursor = time.monotonic_ns(), request.cursor
        if cursor == 0:
            cursor = self._next_cursor
            self._next_cursor += 1
            self._scans[peer, cursor] = Scan(self._master.table, request.prefix)
            if len(self._scans) > _SCANS_MAX:
                del self._scans[next(iter(self._scans))]
        scan = self._scans.get((peer, cursor))
        if scan is None:
            raise Refusal(Code.INVALID_ARGUMENT, "that listing was dropped; list again")
        items: list[wire.ObjectInfo | wire.Failure] = [
            self._info(replica, now_ns)
            for replica in scan.next(_PAGE_COUNT)
            if replica.owner is None and replica.contract.scope != "node"
        ]
        if scan.done:
            del self._scans[peer, cursor]
            cursor = 0
        return wire.Infos(request.request_id, items, cursor)

    async def _watch(self, peer: str, request: messages.Watch) -> Message:
        self._watches.watch(peer, request.keys)
        current = self._master.table.current
        readable = [key in current and current[key].contract.scope != "node" for key in request.keys]
        return wire.Flags(request.request_id, readable)

    async def _unwatch(self, peer: str, request: messages.Unwatch) -> Message:
        self._watches.unwatch(peer, request.keys)
        return wire.Done(request.request_id)

    async def _appeared(self, _peer: str, request: messages.Appeared) -> Message:
        self._watches.appeared(request.keys)
        return wire.Done(request.request_id)

    async def _get_holders(self, _peer: str, request: messages.GetHolders) -> Message:
        now_ns = time.monotonic_ns()
        found = [holder(report, now_ns) for report in holders(self._master, request.key)]
        found += [lease_holder(report) for report in leases(self._master, request.key, now_ns)]
        return wire.HolderList(request.request_id, found)

    async def _announce(self, _peer: str, request: messages.Announce) -> Message:
        try:
            await self._membership.look()
        except DirectoryError as error:
            raise Refusal(Code.NOT_READY, f"the directory is away: {error}") from error
        return wire.Done(request.request_id)

    def _info(self, replica: Any, now_ns: int) -> wire.ObjectInfo:
        (pins,) = self._master.objects.index.readers.pin_counts([replica])
        return object_info(replica, now_ns, pins)
