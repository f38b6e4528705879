"""Puts: room for a client to fill and its publication, or objects whole; many at once where the core can."""

from collections.abc import Callable, Sequence
from typing import Any

from mooncake_client import wire
from mooncake_client.codes import Code
from mooncake_node.core.master import Master
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.replica import PLAIN, Replica
from mooncake_node.core.waiting import Waiter, Want
from mooncake_node.server.client import Client, check_batch
from mooncake_node.server.pending import Pending
from mooncake_node.server.translate import failure, outcome_item, put_of

# From so many puts in one message on, they are tried in one step.
_TOGETHER_MIN = 8


class Puts:
    """Answers them from the core."""

    def __init__(
        self,
        master: Master,
        *,
        store: Callable[[int, memoryview], None],
        deadline_ns: Callable[[int, int], int],
        enter: Callable[[Client, Waiter, Pending], None],
        when_on_disk: Callable[[Client, wire.Message], wire.Message | None],
    ) -> None:
        """*store* puts an object's bytes at an offset of G; *deadline_ns* of a request's timeout (ms) and the time.

        *enter* has a waiter's outcome told; *when_on_disk* has a reply wait for what is to be written first.
        """
        self._master = master
        self._store = store
        self._deadline_ns = deadline_ns
        self._enter = enter
        self._when_on_disk = when_on_disk
        self.handlers: dict[type[wire.Request], Callable[[Client, Any, int], wire.Message | None]] = {
            wire.PutStart: self._put_start,
            wire.PutBytes: self._put_bytes,
            wire.PutEnd: self._put_end,
            wire.PutRevoke: self._put_revoke,
        }

    def revoke(self, client: Client, replica_ids: Sequence[int], now_ns: int) -> None:
        """Give reservations back; the client stores into them no more."""
        for replica_id in replica_ids:
            try:
                self._master.put_revoke(client.session, replica_id, now_ns)
            except Refusal:
                # Revoked before; the outcome is the same.
                continue

    def _put_start(self, client: Client, request: wire.PutStart, now_ns: int) -> wire.Message | None:
        check_batch(request.puts)
        together = self._start_together(client, request, now_ns)
        if together is not None:
            return wire.PutStarted(request.request_id, together)
        deadline_ns = self._deadline_ns(request.timeout_ms, now_ns)
        items: list[Any] = []
        for spec in request.puts:
            try:
                # The first may wait; those behind it are asked for again when it has been answered. With no time left
                # all are refused now: one by one they would take as many messages.
                deferred = bool(items) and deadline_ns > now_ns
                answer = self._master.put_start(client.session, put_of(spec), now_ns, None if deferred else deadline_ns)
            except Refusal as refusal:
                items.append(failure(refusal))
                continue
            if isinstance(answer, Want):
                items.append(wire.Deferred())
            elif isinstance(answer, Waiter):
                pending = Pending(request.request_id, wire.PutStarted)
                self._enter(client, answer, pending)
                pending.items += [wire.Deferred() for _ in request.puts[1:]]
                return None
            else:
                items.append(outcome_item(answer))
        return wire.PutStarted(request.request_id, items)

    def _start_together(self, client: Client, request: wire.PutStart, now_ns: int) -> list[Any] | None:
        """Room for all of them in one step of the core, if it can; else None, and nothing has been done."""
        if len(request.puts) < _TOGETHER_MIN:
            return None
        try:
            replicas = self._master.begin_all(client.session, [put_of(spec) for spec in request.puts], now_ns)
        except Refusal:
            return None
        return None if replicas is None else [wire.Reservation(r.replica_id, r.offset) for r in replicas]

    def _put_bytes(self, client: Client, request: wire.PutBytes, now_ns: int) -> wire.Message | None:
        check_batch(request.puts)
        check_carried(request)
        items = self._put_together(client, request, now_ns)
        if items is None:
            items = self._put_one_by_one(client, request, now_ns)
        return self._when_on_disk(client, wire.PutEnded(request.request_id, items))

    def _put_together(self, client: Client, request: wire.PutBytes, now_ns: int) -> list[Any] | None:
        """All of them in one step of the core, if it can; else None, and nothing has been done."""
        if len(request.puts) < _TOGETHER_MIN:
            return None
        try:
            replicas = self._master.place_all(client.session, [put_of(spec) for spec in request.puts], now_ns)
        except Refusal:
            return None
        if replicas is None:
            return None
        store = self._store
        for replica, data in zip(replicas, request.data, strict=True):
            store(replica.offset, data)
        self._master.publish_all(replicas, now_ns)
        return _published(replicas)

    def _put_one_by_one(self, client: Client, request: wire.PutBytes, now_ns: int) -> list[Any]:
        master, session, store = self._master, client.session, self._store
        items: list[wire.Published | wire.Failure | wire.Deferred] = []
        for spec, data in zip(request.puts, request.data, strict=True):
            try:
                replica = master.place(session, put_of(spec), now_ns)
                if replica is None:
                    items.append(wire.Deferred())
                else:
                    store(replica.offset, data)
                    master.publish_placed(replica, now_ns)
                    items.append(wire.Published(replica.generation, replica.nbytes, replica.contract.scope))
            except Refusal as refusal:
                items.append(failure(refusal))
        return items

    def _put_end(self, client: Client, request: wire.PutEnd, now_ns: int) -> wire.Message | None:
        check_batch(request.replica_ids)
        if len(request.replica_ids) >= _TOGETHER_MIN:
            replicas = self._master.end_all(client.session, request.replica_ids, now_ns)
            if replicas is not None:
                return self._when_on_disk(client, wire.PutEnded(request.request_id, _published(replicas)))
        items: list[wire.Published | wire.Failure | wire.Deferred] = []
        for replica_id in request.replica_ids:
            try:
                replica = self._master.put_end(client.session, replica_id, now_ns)
            except Refusal as refusal:
                items.append(failure(refusal))
            else:
                items.append(wire.Published(replica.generation, replica.nbytes, replica.contract.scope))
        return self._when_on_disk(client, wire.PutEnded(request.request_id, items))

    def _put_revoke(self, client: Client, request: wire.PutRevoke, now_ns: int) -> wire.Message:
        check_batch(request.replica_ids)
        self.revoke(client, request.replica_ids, now_ns)
        return wire.Done(request.request_id)


def _published(replicas: list[Replica]) -> list[Any]:
    """What is said of objects without a contract."""
    scope = PLAIN.scope
    return [wire.Published(replica.generation, replica.nbytes, scope) for replica in replicas]


def check_carried(request: wire.PutBytes) -> None:
    """Refuse bytes that are not what their puts say."""
    lengths = [data.nbytes for data in request.data]
    if lengths != [spec.nbytes for spec in request.puts]:
        raise Refusal(Code.INVALID_ARGUMENT, "the bytes carried are not as long as their puts say")
    if lengths and max(lengths) > wire.CARRIED_NBYTES_MAX:
        raise Refusal(Code.INVALID_ARGUMENT, f"a message carries objects of up to {wire.CARRIED_NBYTES_MAX} bytes")
