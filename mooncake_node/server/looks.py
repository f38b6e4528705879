"""Requests that look and change nothing; a lease is the one thing some of them leave behind."""

from collections.abc import Callable
from typing import Any

from mooncake_client import wire
from mooncake_client.codes import Code
from mooncake_node.core.master import Master
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.replica import Replica
from mooncake_node.core.report import holders, leases
from mooncake_node.core.scan import Scan
from mooncake_node.server.client import Client, check_batch
from mooncake_node.server.translate import failure, holder, lease_holder, object_info, replica_list

PAGE_COUNT = 1000
# Listings one client can have open; an older one is dropped, and says so when asked for its next page.
SCANS_MAX = 8


class Looks:
    """Answers them from the core."""

    def __init__(self, master: Master, node_facts: Callable[[], dict[str, Any]]) -> None:
        self.master = master
        self._node_facts = node_facts
        self.handlers: dict[type[wire.Request], Callable[[Client, Any, int], wire.Message]] = {
            wire.Exists: self._exists,
            wire.Info: self._info,
            wire.GetReplicaList: self._get_replica_list,
            wire.ReleaseLease: self._release_lease,
            wire.ListKeys: self._list_keys,
            wire.Holders: self._holders,
            wire.Stats: self._stats,
        }

    def _exists(self, _client: Client, request: wire.Exists, now_ns: int) -> wire.Message:
        check_batch(request.keys)
        is_readable = self.master.is_readable
        return wire.Flags(request.request_id, [is_readable(key, now_ns) for key in request.keys])

    def _info(self, _client: Client, request: wire.Info, now_ns: int) -> wire.Message:
        check_batch(request.keys)
        found: list[Replica | wire.Failure] = []
        for key in request.keys:
            try:
                found.append(self.master.readable(key, now_ns))
            except Refusal as refusal:
                found.append(failure(refusal))
        infos = iter(self._infos([item for item in found if isinstance(item, Replica)], now_ns))
        return wire.Infos(request.request_id, [next(infos) if isinstance(item, Replica) else item for item in found])

    def _infos(self, replicas: list[Replica], now_ns: int) -> list[wire.ObjectInfo]:
        pins = self.master.objects.index.readers.pin_counts(replicas)
        return [object_info(replica, now_ns, count) for replica, count in zip(replicas, pins, strict=True)]

    def _get_replica_list(self, _client: Client, request: wire.GetReplicaList, now_ns: int) -> wire.Message:
        replica, token = self.master.peers.get_replica_list(request.key, now_ns)
        return replica_list(request.request_id, replica, token, now_ns)

    def _release_lease(self, _client: Client, request: wire.ReleaseLease, now_ns: int) -> wire.Message:
        self.master.peers.release_lease(request.key, request.replica_id, request.lease_token, now_ns)
        return wire.Done(request.request_id)

    def _list_keys(self, client: Client, request: wire.ListKeys, now_ns: int) -> wire.Message:
        cursor, scans = request.cursor, client.scans
        if cursor == 0:
            cursor = client.next_cursor
            client.next_cursor += 1
            scans[cursor] = Scan(self.master.table, request.prefix)
            if len(scans) > SCANS_MAX:
                del scans[next(iter(scans))]
        scan = scans.get(cursor)
        if scan is None:
            raise Refusal(Code.INVALID_ARGUMENT, f"this client has more than {SCANS_MAX} listings open; list again")
        infos: list[wire.ObjectInfo | wire.Failure] = [*self._infos(scan.next(PAGE_COUNT), now_ns)]
        if scan.done:
            del scans[cursor]
            cursor = 0
        return wire.Infos(request.request_id, infos, cursor)

    def _holders(self, _client: Client, request: wire.Holders, now_ns: int) -> wire.Message:
        found = [holder(report, now_ns) for report in holders(self.master, request.key)]
        found += [lease_holder(report) for report in leases(self.master, request.key, now_ns)]
        return wire.HolderList(request.request_id, found)

    def _stats(self, _client: Client, request: wire.Stats, now_ns: int) -> wire.Message:
        # What has just been removed may wait for a look at the pins, which comes with the next turn of the loop; who
        # asks how much is taken has it done now.
        if self.master.objects.index.sweep_due:
            self.master.unpinned(now_ns)
        return wire.Facts(request.request_id, self._node_facts())
