"""What each request does: the shell around the local master.

Every handler is one step of the core and its translation, so nothing comes in between. Those that walk over many
objects do it in slices, between which other requests run.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol, cast

from mooncake_client import wire
from mooncake_client.codes import Code
from mooncake_client.errors import StoreError
from mooncake_client.faults import FaultTable
from mooncake_node.core.master import Master
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.scan import Scan
from mooncake_node.core.sessions import Handle
from mooncake_node.core.waiting import Waiter
from mooncake_node.server.client import Client, Send, check_batch
from mooncake_node.server.looks import Looks
from mooncake_node.server.pending import Pending
from mooncake_node.server.puts import Puts
from mooncake_node.server.translate import MS_NS, failure, grant, outcome_item

# Objects looked at before other requests get their turn: about 1 ms.
SLICE_COUNT = 1000

Ticket = tuple[Pending, int, Send]


class TierJobs(Protocol):
    """Who runs what the core asks for of the offload tier."""

    def start(self) -> asyncio.Future[None] | None:
        """Begin the jobs of the core; a future of what is to be on disk before anybody is told, None if nothing is."""
        ...

    async def remove_all(self) -> None:
        """Remove everything that lies in the tier or is being written there now."""
        ...


class Service:
    """Answers requests from the core, wakes those who waited, and keeps the core's one timer."""

    def __init__(
        self,
        master: Master,
        faults: FaultTable,
        *,
        store: Callable[[int, memoryview], None],
        node_facts: Callable[[], dict[str, Any]],
        timeout_max_ns: int,
        jobs: TierJobs | None = None,
        start_errands: Callable[[], None] | None = None,
    ) -> None:
        """*store* puts an object's bytes at an offset of G; *node_facts* is what `stats` shows; *jobs*: with a tier.

        *start_errands* begins what the core asks of other nodes, where there are any.
        """
        self.master = master
        self.faults = faults
        self._store = store
        self._puts = puts = Puts(
            master,
            store=store,
            deadline_ns=self._deadline_ns,
            enter=self._enter,
            when_on_disk=self._when_on_disk,
        )
        self._timeout_max_ns = timeout_max_ns
        self._jobs = jobs
        self._start_errands = start_errands
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._timer_ns = 0
        # The loop itself holds tasks only weakly.
        self._walks: set[asyncio.Task[None]] = set()
        self._handlers: dict[type[wire.Request], Callable[[Client, Any, int], wire.Message | None]] = {
            wire.Released: self._released,
            wire.Cancel: self._cancel,
            wire.Unpinned: self._unpinned,
            wire.Acquire: self._acquire,
            wire.Remove: self._remove,
            wire.Wait: self._wait,
            wire.Pin: self._pin,
            wire.Unpin: self._unpin,
            **puts.handlers,
            **Looks(master, node_facts).handlers,
        }
        self._walks_by_type: dict[type[wire.Request], Callable[[Client, Any], Any]] = {
            wire.RemovePrefix: self._remove_prefix,
            wire.RemoveAll: self._remove_all,
        }

    @property
    def request_types(self) -> frozenset[type[wire.Request]]:
        """What `handle` takes."""
        return frozenset(self._handlers) | frozenset(self._walks_by_type)

    def handle(self, client: Client, request: wire.Request) -> wire.Message | None:
        """The reply, or None if it comes later or never. Refusals are replies too."""
        now_ns = time.monotonic_ns()
        if request.released:
            self.master.release(client.session, request.released, now_ns)
        handler = self._handlers.get(type(request), self._start_walk)
        try:
            return handler(client, request, now_ns)
        except Refusal as refusal:
            return wire.Failed(request.request_id, int(refusal.code), refusal.message)
        finally:
            self.settle()

    def hang_up(self, client: Client) -> bool:
        """The connection is over, its process perhaps not: nobody waits there any more. True if it holds anything.

        A waiter left behind would take room or a handle, for nobody, until the process dies.
        """
        session = client.session
        for waiter in self.master.waiting.of_session(session):
            self.master.cancel(waiter, time.monotonic_ns())
        self.settle()
        return self.master.holds(session)

    def end_session(self, client: Client) -> None:
        """The client is dead or has let go of everything."""
        self.master.end_session(client.session, time.monotonic_ns())
        self.settle()

    def take_back(self, client: Client, reply: wire.Message) -> None:
        """Undo what a reply gave that its client will never see: a fault point replaced it by an error."""
        now_ns = time.monotonic_ns()
        if isinstance(reply, wire.Acquired):
            handle_ids = [item.handle_id for item in reply.items if isinstance(item, wire.Grant)]
            self.master.release(client.session, handle_ids, now_ns)
        elif isinstance(reply, wire.PutStarted):
            replica_ids = [item.replica_id for item in reply.items if isinstance(item, wire.Reservation)]
            self._puts.revoke(client, replica_ids, now_ns)
        self.settle()

    def settle(self) -> None:
        """Send what the core decided for others, and set the timer for what it waits for next."""
        master = self.master
        while master.outbox:
            outbox = master.outbox[:]
            master.outbox.clear()
            for waiter, outcome in outbox:
                _answer(waiter, outcome_item(outcome))
        if master.errands and self._start_errands is not None:
            self._start_errands()
        if master.jobs and self._jobs is not None:
            self._jobs.start()
        deadline_ns = master.next_deadline_ns(time.monotonic_ns())
        if deadline_ns is not None and (self._timer is None or deadline_ns < self._timer_ns):
            self._set_timer(deadline_ns)

    # -- timer -------------------------------------------------------------------------------------------------------

    def _set_timer(self, deadline_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = deadline_ns
        if deadline_ns == 0:
            # At once, but behind the requests that have come.
            self._timer = self._loop.call_soon(self._tick)
            return
        # The loop's clock has whole milliseconds; one later than due, or a tick would find nothing.
        delay_s = max(0, deadline_ns - time.monotonic_ns()) / 1e9 + 0.001
        self._timer = self._loop.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.master.tick(time.monotonic_ns())
        self.settle()

    def _deadline_ns(self, timeout_ms: int, now_ns: int) -> int:
        return now_ns + min(max(0, timeout_ms) * MS_NS, self._timeout_max_ns)

    # -- put and get -------------------------------------------------------------------------------------------------

    def _acquire(self, client: Client, request: wire.Acquire, now_ns: int) -> wire.Message | None:
        check_batch(request.keys)
        acquire, session = self.master.acquire, client.session
        deadline_ns = self._deadline_ns(request.timeout_ms, now_ns)
        items: list[Any] = []
        pending: Pending | None = None
        for key in request.keys:
            try:
                answer = acquire(session, key, now_ns, deadline_ns)
            except Refusal as refusal:
                items.append(failure(refusal))
                continue
            if isinstance(answer, Handle):
                items.append(grant(answer))
            else:
                if pending is None:
                    pending = Pending(request.request_id, wire.Acquired)
                    pending.items = items
                self._enter(client, answer, pending)
        return wire.Acquired(request.request_id, items) if pending is None else None

    def _wait(self, client: Client, request: wire.Wait, now_ns: int) -> wire.Message | None:
        deadline_ns = self._deadline_ns(request.timeout_ms, now_ns)
        waiter = self.master.wait(client.session, request.key, now_ns, deadline_ns)
        if waiter is None:
            return wire.Done(request.request_id)
        self._enter(client, waiter, Pending(request.request_id, waited))
        return None

    def _enter(self, client: Client, waiter: Waiter, pending: Pending) -> None:
        ticket: Ticket = (pending, pending.wait_for_next(), client.send)
        waiter.ticket = ticket

    def _released(self, _client: Client, _request: wire.Released, _now_ns: int) -> None:
        return None

    def _unpinned(self, _client: Client, _request: wire.Unpinned, now_ns: int) -> None:
        self.master.unpinned(now_ns)

    def _cancel(self, client: Client, request: wire.Cancel, now_ns: int) -> None:
        for waiter in self.master.waiting.of_session(client.session):
            if _ticket(waiter)[0].request_id == request.target:
                self.master.cancel(waiter, now_ns)
                _answer(waiter, wire.Failure(Code.TIMEOUT, "the caller gave up"))

    # -- remove and pin ---------------------------------------------------------------------------------------------

    def _remove(self, client: Client, request: wire.Remove, now_ns: int) -> wire.Message | None:
        check_batch(request.keys)
        check_changes(client)
        remove, generation = self.master.remove, request.generation
        flags = [remove(key, now_ns, generation) for key in request.keys]
        return self._when_on_disk(client, wire.Flags(request.request_id, flags))

    def _when_on_disk(self, client: Client, reply: wire.Message) -> wire.Message | None:
        """*reply*, or None if it is sent later: when no restart can undo any more what it says."""
        on_disk = self._jobs.start() if self._jobs is not None else None
        if on_disk is None:
            return reply
        on_disk.add_done_callback(lambda _: client.send(reply))
        return None

    def _pin(self, client: Client, request: wire.Pin, now_ns: int) -> wire.Message | None:
        check_changes(client)
        ttl_ns = None if request.ttl_ms is None else request.ttl_ms * MS_NS
        self.master.pin(request.key, ttl_ns, now_ns)
        return self._when_on_disk(client, wire.Done(request.request_id))

    def _unpin(self, client: Client, request: wire.Unpin, now_ns: int) -> wire.Message | None:
        check_changes(client)
        self.master.unpin(request.key, now_ns)
        return self._when_on_disk(client, wire.Done(request.request_id))

    # -- walks over many objects -------------------------------------------------------------------------------------

    def _start_walk(self, client: Client, request: wire.Request, _now_ns: int) -> None:
        walk = self._walks_by_type[type(request)]
        check_changes(client)

        async def answer() -> None:
            try:
                reply: wire.Message = wire.Count(request.request_id, await walk(client, request))
            except Refusal as refusal:
                reply = wire.Failed(request.request_id, int(refusal.code), refusal.message)
            except StoreError as error:
                reply = wire.Failed(request.request_id, error.code, error.message)
            client.send(reply)

        task = self._loop.create_task(answer())
        self._walks.add(task)
        task.add_done_callback(self._walks.discard)

    async def _remove_prefix(self, _client: Client, request: wire.RemovePrefix) -> int:
        scan, count = Scan(self.master.table, request.prefix), 0
        deletions: list[asyncio.Future[None]] = []
        while not scan.done:
            now_ns = time.monotonic_ns()
            for replica in scan.next(SLICE_COUNT):
                count += self.master.remove(replica.key, now_ns, replica.generation)
            if self._jobs is not None and (deletion := self._jobs.start()) is not None:
                deletions.append(deletion)
            self.settle()
            await asyncio.sleep(0)
        if deletions:
            await asyncio.wait(deletions)
        return count

    async def _remove_all(self, _client: Client, _request: wire.RemoveAll) -> int:
        return await self.clear()

    async def clear(self, epoch: int | None = None) -> int:
        """Take away everything on this node, and have its memory and files back; how many objects were readable.

        *epoch*: as for `Master.clear`.
        """
        count = self.master.clear(time.monotonic_ns(), epoch)
        # Begun before anything that is put from now on can be written to the tier.
        cleared = None if self._jobs is None else self._loop.create_task(self._jobs.remove_all())
        self.settle()
        while self.master.reap(SLICE_COUNT, time.monotonic_ns()):
            self.settle()
            await asyncio.sleep(0)
        self.settle()
        if cleared is not None:
            await cleared
        return count


def _ticket(waiter: Waiter) -> Ticket:
    return cast("Ticket", waiter.ticket)


def _answer(waiter: Waiter, item: object) -> None:
    pending, index, send = _ticket(waiter)
    reply = pending.fill(index, item)
    if reply is not None:
        send(reply)


def waited(request_id: int, items: list[Any]) -> wire.Message:
    """The answer to Wait."""
    item = items[0]
    if isinstance(item, wire.Failure):
        return wire.Failed(request_id, item.code, item.message)
    return wire.Done(request_id)


def check_changes(client: Client) -> None:
    """Refuse changes by a client that only reads."""
    if client.session.readonly:
        raise Refusal(Code.INVALID_ARGUMENT, "this client attached with readonly=True")
