"""What each request does on a node of a cluster: as on a node alone, and in sight of the others.

Reads need nothing of this: what is not here is brought here by the core's errands. What changes an object for others
waits for the directory and for them, in a task of its own, and is answered when it holds everywhere.
"""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from mooncake_client import wire
from mooncake_client.codes import Code
from mooncake_client.errors import StoreError
from mooncake_node.cluster.changes import Changes
from mooncake_node.cluster.entries import Entries
from mooncake_node.cluster.far_scan import FarScan
from mooncake_node.cluster.holdings import live_holdings
from mooncake_node.cluster.membership import Membership
from mooncake_node.cluster.publishing import Item, Publishing
from mooncake_node.cluster.watches import Watches
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.replica import Replica
from mooncake_node.core.waiting import Waiter, Want
from mooncake_node.directory.port import DirectoryError
from mooncake_node.peers.errors import PeerError
from mooncake_node.peers.links import PeerLinks
from mooncake_node.peers.messages import GetHolders, GetInfo
from mooncake_node.peers.tasks import Tasks
from mooncake_node.server.client import Client, check_batch
from mooncake_node.server.pending import Pending
from mooncake_node.server.puts import check_carried
from mooncake_node.server.service import Service, check_changes, waited
from mooncake_node.server.translate import failure, put_of

_CALL_S = 5.0
_FAR_SCANS_MAX = 8
# How often what moves between nodes is looked for.
_LOOKS_MAX = 3


class ClusterService(Service):
    """Answers the requests that concern other nodes too; the rest as `Service`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._alone = dict(self._handlers)
        self._handlers |= {
            wire.PutBytes: self._put_bytes_shared,
            wire.PutEnd: self._put_end_shared,
            wire.Remove: self._remove_shared,
            wire.Pin: self._pin_shared,
            wire.Unpin: self._unpin_shared,
            wire.Wait: self._wait_shared,
            wire.Exists: self._exists_shared,
            wire.Info: self._info_shared,
            wire.ListKeys: self._list_shared,
            wire.Holders: self._holders_shared,
        }
        self._walks_by_type = {
            wire.RemovePrefix: self._remove_prefix_shared,
            wire.RemoveAll: self._remove_all_shared,
        }

    def connect(
        self,
        *,
        changes: Changes,
        entries: Entries,
        publishing: Publishing,
        membership: Membership,
        watches: Watches,
        links: PeerLinks,
        tasks: Tasks,
    ) -> None:
        """The other nodes, before the first request."""
        self._changes = changes
        self._entries = entries
        self._publishing = publishing
        self._membership = membership
        self._watches = watches
        self._links = links
        self._tasks = tasks

    def hear(self, waiter: Waiter, outcome: asyncio.Future[None]) -> None:
        """*outcome* is what *waiter* waits for: done when its key is readable, a Refusal if it is not in time."""

        def send(message: wire.Message) -> None:
            if outcome.done():
                return
            if isinstance(message, wire.Failed):
                outcome.set_exception(Refusal(Code(message.code), message.message))
            else:
                outcome.set_result(None)

        pending = Pending(0, waited)
        waiter.ticket = (pending, pending.wait_for_next(), send)
        self.settle()

    def _later(self, client: Client, request: wire.Request, work: Coroutine[Any, Any, wire.Message]) -> None:
        """Answer *request* with what *work* returns; refusals are answers too."""

        async def answer() -> None:
            try:
                reply = await work
            except Refusal as refusal:
                reply = wire.Failed(request.request_id, int(refusal.code), refusal.message)
            except StoreError as error:
                reply = wire.Failed(request.request_id, error.code, error.message)
            client.send(reply)

        self._tasks.run(answer())

    # -- put ---------------------------------------------------------------------------------------------------------

    def _put_bytes_shared(self, client: Client, request: wire.PutBytes, now_ns: int) -> wire.Message | None:
        if all(spec.scope == "node" for spec in request.puts):
            return self._alone[wire.PutBytes](client, request, now_ns)
        check_batch(request.puts)
        check_carried(request)
        items: list[Item | Replica] = []
        for spec, data in zip(request.puts, request.data, strict=True):
            try:
                answer = self.master.put_start(client.session, put_of(spec), now_ns, None)
            except Refusal as refusal:
                items.append(failure(refusal))
            else:
                if isinstance(answer, Want):
                    items.append(wire.Deferred())
                else:
                    assert isinstance(answer, Replica)
                    self._store(answer.offset, data)
                    items.append(answer)
        self._later(client, request, self._publishing.publish(client.session, request.request_id, items))
        return None

    def _put_end_shared(self, client: Client, request: wire.PutEnd, _now_ns: int) -> None:
        check_batch(request.replica_ids)
        items: list[Item | Replica] = []
        for replica_id in request.replica_ids:
            try:
                items.append(self.master.reserved(client.session, replica_id))
            except Refusal as refusal:
                items.append(failure(refusal))
        self._later(client, request, self._publishing.publish(client.session, request.request_id, items))

    # -- remove and pin ----------------------------------------------------------------------------------------------

    def _remove_shared(self, client: Client, request: wire.Remove, now_ns: int) -> wire.Message | None:
        check_batch(request.keys)
        check_changes(client)
        if request.scope == "node":
            return self._alone[wire.Remove](client, request, now_ns)
        self._later(client, request, self._remove_all_of(request))
        return None

    async def _remove_all_of(self, request: wire.Remove) -> wire.Message:
        return wire.Flags(request.request_id, await self._changes.remove(request.keys, request.generation))

    def _pin_shared(self, client: Client, request: wire.Pin, _now_ns: int) -> None:
        check_changes(client)
        self._later(client, request, self._pinned(request, request.ttl_ms, softpin=True))

    def _unpin_shared(self, client: Client, request: wire.Unpin, _now_ns: int) -> None:
        check_changes(client)
        self._later(client, request, self._pinned(request, None, softpin=False))

    async def _pinned(self, request: wire.Pin | wire.Unpin, ttl_ms: int | None, *, softpin: bool) -> wire.Message:
        await self._changes.pin(request.key, softpin=softpin, ttl_ms=ttl_ms)
        return wire.Done(request.request_id)

    async def _remove_prefix_shared(self, client: Client, request: wire.RemovePrefix) -> int:
        if request.scope == "node":
            return await self._remove_prefix(client, request)
        return await self._changes.remove_prefix(request.prefix)

    async def _remove_all_shared(self, client: Client, request: wire.RemoveAll) -> int:
        if request.scope == "node":
            return await self._changes.clear_only_here()
        return await self._changes.remove_all()

    # -- looks -------------------------------------------------------------------------------------------------------

    def _wait_shared(self, client: Client, request: wire.Wait, now_ns: int) -> wire.Message | None:
        reply = self._alone[wire.Wait](client, request, now_ns)
        if reply is None:
            self._watches.want(request.key)
        return reply

    def _exists_shared(self, client: Client, request: wire.Exists, now_ns: int) -> wire.Message | None:
        reply = self._alone[wire.Exists](client, request, now_ns)
        assert isinstance(reply, wire.Flags)
        if all(reply.items):
            return reply
        self._later(client, request, self._exists_of_all(request, reply))
        return None

    async def _exists_of_all(self, request: wire.Exists, reply: wire.Flags) -> wire.Message:
        """Look elsewhere; what the directory has here alone, and is not here, may have moved on: looked for again."""
        sought = [index for index, is_here in enumerate(reply.items) if not is_here]
        for _ in range(_LOOKS_MAX):
            sought = await self._exists_elsewhere(request, reply, sought)
            if not sought:
                break
        return reply

    async def _exists_elsewhere(self, request: wire.Exists, reply: wire.Flags, sought: list[int]) -> list[int]:
        """Those that living nodes have, and only this one, though they are not here."""
        try:
            entries = await self._entries.lookup([request.keys[index] for index in sought])
        except DirectoryError:
            return []
        unsure: list[int] = []
        for index, entry in zip(sought, entries, strict=True):
            living = live_holdings(entry, self._membership, self.master.clear_epoch)
            # One of this node's own that is not here is being published, and replaces one elsewhere, or is withdrawn.
            key, me = request.keys[index], self._membership.me.name
            writing = self.master.table.writing.get(key)
            is_replaced = writing is not None and writing.replaces
            # It may have come here while the directory was asked.
            is_here = self.master.is_readable(key, time.monotonic_ns())
            reply.items[index] = is_here or any(holding.node != me or is_replaced for holding in living)
            if living and not reply.items[index]:
                unsure.append(index)
        return unsure

    def _info_shared(self, client: Client, request: wire.Info, now_ns: int) -> wire.Message | None:
        reply = self._alone[wire.Info](client, request, now_ns)
        assert isinstance(reply, wire.Infos)
        if not any(map(_is_missing, reply.items)):
            return reply
        self._later(client, request, self._info_of_all(client, request, reply))
        return None

    async def _info_of_all(self, client: Client, request: wire.Info, reply: wire.Infos) -> wire.Message:
        """Look elsewhere; what has moved meanwhile is looked for again, here and there."""
        for _ in range(_LOOKS_MAX):
            await self._info_elsewhere(request, reply)
            again = [index for index, item in enumerate(reply.items) if _is_missing(item)]
            if not again:
                break
            here = self._alone[wire.Info](
                client, wire.Info(0, [], [request.keys[index] for index in again]), time.monotonic_ns()
            )
            assert isinstance(here, wire.Infos)
            for index, item in zip(again, here.items, strict=True):
                reply.items[index] = item
            if all(_is_missing(item) for item in here.items):
                break
        return reply

    async def _info_elsewhere(self, request: wire.Info, reply: wire.Infos) -> None:
        missing = [index for index, item in enumerate(reply.items) if _is_missing(item)]
        try:
            entries = await self._entries.lookup([request.keys[index] for index in missing])
        except DirectoryError:
            return
        of_node: dict[str, list[int]] = {}
        for index, entry in zip(missing, entries, strict=True):
            living = live_holdings(entry, self._membership, self.master.clear_epoch)
            nodes = sorted((not h.is_owner, h.node) for h in living if h.node != self._membership.me.name)
            if nodes:
                of_node.setdefault(nodes[0][1], []).append(index)
        for node, indexes in of_node.items():
            try:
                far = await self._links.call(node, GetInfo(0, [request.keys[index] for index in indexes]), _CALL_S)
            except PeerError as error:
                for index in indexes:
                    reply.items[index] = wire.Failure(Code.NOT_READY, f"node {node} did not answer: {error}")
                continue
            if isinstance(far, wire.Infos):
                for index, item in zip(indexes, far.items, strict=True):
                    reply.items[index] = item

    def _list_shared(self, client: Client, request: wire.ListKeys, now_ns: int) -> wire.Message | None:
        far = client.far_scans.get(request.cursor) if request.cursor else None
        if isinstance(far, FarScan):
            self._later(client, request, self._far_page(client, request, far))
            return None
        reply = self._alone[wire.ListKeys](client, request, now_ns)
        if isinstance(reply, wire.Infos) and not reply.cursor and self._membership.others:
            cursor = client.next_cursor
            client.next_cursor += 1
            nodes = sorted(self._membership.others)
            listed = {key for key in self.master.table.current if key.startswith(request.prefix)}
            client.far_scans[cursor] = FarScan(self._links, nodes, request.prefix, listed)
            if len(client.far_scans) > _FAR_SCANS_MAX:
                del client.far_scans[next(iter(client.far_scans))]
            reply.cursor = cursor
        return reply

    async def _far_page(self, client: Client, request: wire.ListKeys, scan: FarScan) -> wire.Message:
        items = await scan.next()
        cursor = request.cursor
        if scan.done:
            client.far_scans.pop(cursor, None)
            cursor = 0
        return wire.Infos(request.request_id, [*items], cursor)

    def _holders_shared(self, client: Client, request: wire.Holders, now_ns: int) -> wire.Message | None:
        reply = self._alone[wire.Holders](client, request, now_ns)
        assert isinstance(reply, wire.HolderList)
        if not self._membership.others:
            return reply
        self._later(client, request, self._holders_elsewhere(request, reply))
        return None

    async def _holders_elsewhere(self, request: wire.Holders, reply: wire.HolderList) -> wire.Message:
        nodes = list(self._membership.others)
        calls = [self._links.call(node, GetHolders(0, request.key), _CALL_S) for node in nodes]
        for node, far in zip(nodes, await asyncio.gather(*calls, return_exceptions=True), strict=True):
            if isinstance(far, wire.HolderList):
                for item in far.items:
                    item.client = f"{item.client} (node {node})"
                    reply.items.append(item)
        return reply


def _is_missing(item: object) -> bool:
    return isinstance(item, wire.Failure) and item.code == Code.NOT_FOUND
