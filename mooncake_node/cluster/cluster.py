"""One node's part in a cluster: joins directory, links, data plane and the local master."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from mooncake_client import wire
from mooncake_client.codes import Code
from mooncake_client.faults import FaultTable
from mooncake_node.cluster.answers import Answers
from mooncake_node.cluster.borrowing import Borrowing
from mooncake_node.cluster.changes import Changes
from mooncake_node.cluster.copies import Copies
from mooncake_node.cluster.entries import BATCH, Entries
from mooncake_node.cluster.fanout import FanOut
from mooncake_node.cluster.heirs import Heirs
from mooncake_node.cluster.lending import Lending
from mooncake_node.cluster.membership import Membership
from mooncake_node.cluster.points import Points
from mooncake_node.cluster.publishing import Publishing
from mooncake_node.cluster.service import ClusterService
from mooncake_node.cluster.watches import Watches
from mooncake_node.core.jobs import Errand, Locate, Pull, Retell, Withdraw
from mooncake_node.core.master import Master
from mooncake_node.core.sessions import Session
from mooncake_node.directory import Directory, DirectoryAwayError, DirectoryError
from mooncake_node.obs.log import get_logger
from mooncake_node.peers.errors import PeerError
from mooncake_node.peers.identity import Me
from mooncake_node.peers.links import PeerLinks
from mooncake_node.peers.listener import PeerListener
from mooncake_node.peers.messages import Announce, PeerRequest
from mooncake_node.peers.tasks import Tasks
from mooncake_node.planes.tcp import TcpPlane
from mooncake_node.pool import Room
from mooncake_node.server.service import TierJobs
from mooncake_node.tiers import Tier, TierRecord

# How often it is looked at what has become due without an event.
_TIDY_S = 1.0
_JOIN_PAUSE_S = 0.5
# A node that does not hear of a new life in that time sees it at its next renewal.
_ANNOUNCE_S = 2.0

log = get_logger()
T = TypeVar("T")


class Cluster:
    """From `join`, before there is a local master, over `serve` to `close`."""

    def __init__(
        self, directory: Directory, faults: FaultTable, *, host: str, port: int, secret: bytes, liveness_ttl_s: float
    ) -> None:
        """*host*, *port*: where others reach this node; port 0: any."""
        self._directory = directory
        self._points = Points(faults)
        self._ttl_s = liveness_ttl_s
        self._me = Me("", 0)
        self._tasks = Tasks()
        self._listener = PeerListener(host, port, self._me, secret, self._handle, self._serve_data)
        self._links = PeerLinks(self._me, secret, self._handle)
        self.membership = Membership(
            directory,
            ttl_s=liveness_ttl_s,
            free_bytes=self._free_bytes,
            served_until=self._served_until,
            on_members=self._members_changed,
            on_return=self._return,
            tasks=self._tasks,
        )
        self._master: Master | None = None
        self._answers: Answers | None = None
        self._lending: Lending | None = None
        self._plane: TcpPlane | None = None
        self._served_until_ns = 0
        # What lies in the tier and was not adopted: objects, bytes.
        self._unclaimed = (0, 0)
        self._patient_until_s = 0.0

    # -- start and stop ----------------------------------------------------------------------------------------------

    async def join(self, name: str, patience_s: float) -> None:
        """Listen, and begin a life in the directory, waiting for it that long; raises DirectoryError."""
        self._me.name = name
        self._patient_until_s = time.monotonic() + patience_s
        await self._listener.start()
        await self._patiently(lambda: self.membership.join(name, self._listener.endpoint))

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """What the directory answers, waited for while the start may take."""
        while True:
            try:
                return await ask()
            except DirectoryAwayError as error:
                if time.monotonic() >= self._patient_until_s:
                    raise
                log.warning("directory_awaited", error=str(error))
            await asyncio.sleep(_JOIN_PAUSE_S)

    async def ours(self, found: Sequence[TierRecord]) -> list[TierRecord]:
        """Which objects found in the tier are to be adopted: those of this node alone, and those that are its still.

        What the directory does not know as this node's was removed, replaced or lost to another meanwhile, as far as
        anybody knows; it stays on disk, unclaimed (SPEC 6, rule 5).
        """
        kept = [record for record in found if record.scope == "node"]
        shared = [record for record in found if record.scope != "node"]
        for start in range(0, len(shared), BATCH):
            batch = shared[start : start + BATCH]
            keys = [record.key for record in batch]
            entries = await self._patiently(partial(self._directory.lookup, keys))
            for record, entry in zip(batch, entries, strict=True):
                if any(
                    (h.node, h.generation) == (self._me.name, record.generation)
                    and h.epoch >= self.membership.clear_epoch
                    for h in entry.holdings
                ):
                    kept.append(record)
        self._unclaimed = (len(found) - len(kept), sum(r.nbytes for r in found) - sum(r.nbytes for r in kept))
        if len(kept) < len(found):
            log.warning("objects_unclaimed", objects=self._unclaimed[0], nbytes=self._unclaimed[1])
        return kept

    def connect(
        self, master: Master, service: ClusterService, *, room: Room, tier: Tier | None, jobs: TierJobs | None
    ) -> None:
        """The local master and who answers clients; before the first request of anybody."""
        membership, links, points, tasks = self.membership, self._links, self._points, self._tasks
        master.clear_epoch = membership.clear_epoch
        master.peers.serve_secondaries_until(self._served_until_ns)
        self._master, self._service = master, service
        fan_out = FanOut(links, membership, points, tasks)
        self._entries = entries = Entries(self._directory, membership, master, fan_out, service.settle)
        self._changes = changes = Changes(
            master=master,
            directory=self._directory,
            entries=entries,
            membership=membership,
            fan_out=fan_out,
            links=links,
            jobs=jobs,
            settle=service.settle,
            clear_all=service.clear,
        )
        self._watches = watches = Watches(master, membership, links, tasks, service.settle)
        entries.on_told = watches.published
        self._heirs = heirs = Heirs(self._directory, membership, master, entries, service.settle)
        self._lending = lending = Lending(master, room, tier, tasks, service.settle)
        self._plane = plane = TcpPlane(self._dial_data, room.view)
        self._copies = Copies(
            directory=self._directory,
            entries=entries,
            heirs=heirs,
            membership=membership,
            master=master,
            borrowing=Borrowing(links, tasks),
            plane=plane,
            room=room,
            points=points,
            tasks=tasks,
            settle=service.settle,
        )
        self._answers = Answers(
            master=master,
            membership=membership,
            lending=lending,
            changes=changes,
            entries=entries,
            fan_out=fan_out,
            watches=watches,
            points=points,
            presence=self._presence,
        )
        publishing = Publishing(
            master=master,
            changes=changes,
            entries=entries,
            fan_out=fan_out,
            membership=membership,
            watches=watches,
            points=points,
        )
        service.connect(
            changes=changes,
            entries=entries,
            publishing=publishing,
            membership=membership,
            watches=watches,
            links=links,
            tasks=tasks,
        )

    async def serve(self) -> None:
        """Tell the directory what this node has, then serve others."""
        for loop in (self.membership.run, self._entries.run, self._tidy):
            self._tasks.run(loop())
        await asyncio.wait([self.membership.come_back()])
        self._members_changed()

    async def close(self) -> None:
        """End this life, and whatever is under way."""
        with contextlib.suppress(DirectoryError):
            await self._directory.leave(self.membership.me)
        await self._tasks.close()
        if self._plane is not None:
            await self._plane.close()
        await self._links.close()
        await self._listener.close()
        await self._directory.close()

    # -- errands -----------------------------------------------------------------------------------------------------

    def start_errands(self) -> None:
        """Begin what the core asks of other nodes."""
        master = self._master
        assert master is not None
        errands: list[Errand] = master.errands[:]
        master.errands.clear()
        locates = [errand for errand in errands if isinstance(errand, Locate)]
        withdrawals = [errand for errand in errands if isinstance(errand, Withdraw)]
        if locates:
            self._copies.locate(locates)
        if withdrawals:
            self._tasks.run(self._entries.withdraw(withdrawals))
        for errand in errands:
            if isinstance(errand, Pull):
                self._copies.pull(errand)
            elif isinstance(errand, Retell):
                self._entries.mark(errand.replica.key)

    def facts(self) -> dict[str, Any]:
        """What `stats` shows: of the directory, and of the other nodes."""
        membership = self.membership
        assert self._plane is not None
        return {
            "directory": {**self._entries.facts(), "is_serving": membership.is_serving, "lives": membership.lives},
            "cluster": {
                "nodes": {
                    node.name: {
                        "incarnation": node.incarnation,
                        "endpoint": node.endpoint,
                        "free_bytes": self._free_bytes() if node is membership.me else node.free_bytes,
                    }
                    for node in (membership.me, *membership.others.values())
                },
                "unclaimed": {"objects": self._unclaimed[0], "bytes": self._unclaimed[1]},
                "copies": self._copies.facts(),
                "links": self._links.facts(),
                "listener": self._listener.facts(),
                "plane": self._plane.facts(),
            },
        }

    # -- what others want --------------------------------------------------------------------------------------------

    async def _handle(self, peer: str, request: PeerRequest) -> wire.Message | None:
        if self._answers is None:
            return wire.Failed(request.request_id, Code.NOT_READY, "this node is starting")
        return await self._answers.handle(peer, request)

    async def _serve_data(self, sock: socket.socket, peer: str) -> None:
        if self._plane is not None and self._lending is not None:
            await self._plane.serve(sock, peer, self._lending)

    async def _dial_data(self, node: str) -> socket.socket:
        try:
            return await self._links.dial_data(node)
        except PeerError as error:
            raise ConnectionError(str(error)) from error

    async def _presence(self, key: str, patience_s: float) -> None:
        """Wait until *key* is readable on this node; Refusal if it is not by then."""
        assert self._master is not None
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        session = Session(0, "peers", 0, readonly=True)
        now_ns = time.monotonic_ns()
        waiter = self._master.wait(session, key, now_ns, now_ns + int(patience_s * 1e9))
        if waiter is not None:
            self._service.hear(waiter, outcome)
            await outcome

    # -- life --------------------------------------------------------------------------------------------------------

    async def _announce(self) -> None:
        """Have the others know of this life before anybody here can put what they should hear of."""
        calls = [self._links.call(node, Announce(0), _ANNOUNCE_S) for node in self.membership.others]
        await asyncio.gather(*calls, return_exceptions=True)

    async def _return(self) -> None:
        """The directory hears of everything this node has, under its present life."""
        master = self._master
        assert master is not None
        await self._announce()
        if self.membership.clear_epoch > master.clear_epoch:
            await self._changes.clear_here(self.membership.clear_epoch)
        await self._entries.tell_all()
        # Owners may have died while this node did not hear of it.
        self._heirs.is_due = True
        log.info("inventory_told", objects=len(master.table.current), differences=self._entries.differences)

    def _members_changed(self, has_died: bool = False) -> None:  # noqa: FBT001,FBT002  what Membership calls
        membership = self.membership
        self._me.incarnation = membership.me.incarnation
        peers = {node.name: (node.incarnation, node.endpoint) for node in membership.others.values()}
        self._links.set_peers(peers)
        self._listener.set_peers(peers)
        if self._master is not None:
            self._watches.members_changed()
            if has_died:
                self._heirs.is_due = True
                self._tasks.run(self._heirs.inherit())
            if membership.is_serving and membership.clear_epoch > self._master.clear_epoch:
                # Raised by a node that did not reach this one.
                self._tasks.run(self._catch_up(membership.clear_epoch))

    async def _catch_up(self, epoch: int) -> None:
        await self._changes.clear_here(epoch)

    def _served_until(self, until_ns: int) -> None:
        self._served_until_ns = until_ns
        if self._master is not None:
            self._master.peers.serve_secondaries_until(until_ns)

    def _free_bytes(self) -> int:
        return 0 if self._master is None else self._master.space.bytes_free

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(_TIDY_S)
            self._watches.tidy()
            await self._heirs.inherit()
            self._service.settle()
