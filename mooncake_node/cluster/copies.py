"""LocalCopy: what another node has is brought into this node's pool, once, whoever asks for it (SPEC 5)."""

import asyncio
import time
from collections.abc import Callable, Sequence

import xxhash

from mooncake_client.codes import Code
from mooncake_client.errors import StoreError
from mooncake_node.cluster.batching import Batches
from mooncake_node.cluster.borrowing import Borrowing
from mooncake_node.cluster.dues import Due
from mooncake_node.cluster.entries import Entries
from mooncake_node.cluster.heirs import Heirs
from mooncake_node.cluster.holdings import found_at, holding_of, live_holdings, sources_in
from mooncake_node.cluster.membership import Membership
from mooncake_node.cluster.points import Points
from mooncake_node.core.jobs import Found, Locate, Pull
from mooncake_node.core.master import Master
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.replica import Replica, ReplicaState
from mooncake_node.directory.port import Directory, DirectoryError, Entry, Holding
from mooncake_node.obs.log import get_logger
from mooncake_node.peers.errors import PeerError
from mooncake_node.peers.messages import ReplicaItem
from mooncake_node.peers.tasks import Tasks
from mooncake_node.planes.port import DataPlane, Outcome, RemoteRange, Ticket
from mooncake_node.pool import Room

# Transfers of one load that may fail; the second goes to another source, if there is one.
TRANSFERS_MAX = 2
# How often a load looks anew at who has what, because that has changed since.
LOOKS_MAX = 5
# Before the third look; then as much more before each.
LOOK_PAUSE_S = 0.1
# One object's bytes may take so long; a transfer without progress ends much earlier.
TRANSFER_S = 300.0
# Up to here a checksum is computed in the loop.
_INLINE_NBYTES_MAX = 4 << 20

log = get_logger()


class _Stale(Exception):  # noqa: N818  it is an outcome
    """What was found is not there like that any more."""


class Sources:
    """Who has an object, best first, and how its load has fared so far."""

    __slots__ = ("failed", "generations", "holdings", "looks", "transfers")

    def __init__(self, holdings: list[Holding]) -> None:
        self.holdings = holdings
        self.looks = 0
        self.transfers = 0
        self.failed: frozenset[str] = frozenset()  # nodes from which a transfer failed
        self.generations: frozenset[int] = frozenset()  # that were there and were not when they were asked for


class Copies:
    """Carries out `Locate` and `Pull`."""

    def __init__(
        self,
        *,
        directory: Directory,
        entries: Entries,
        heirs: Heirs,
        membership: Membership,
        master: Master,
        borrowing: Borrowing,
        plane: DataPlane,
        room: Room,
        points: Points,
        tasks: Tasks,
        settle: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._entries = entries
        self._heirs = heirs
        self._membership = membership
        self._master = master
        self._borrowing = borrowing
        self._plane = plane
        self._room = room
        self._points = points
        self._tasks = tasks
        self._settle = settle
        self._publishing = Batches(directory.publish, tasks, one_by_one=True)
        self.bytes_copied = 0
        self.checksum_failures = 0

    def facts(self) -> dict[str, int]:
        """What `stats` shows of them."""
        return {
            "leases_taken": self._borrowing.leases_taken,
            "leases_released": self._borrowing.leases_released,
            "bytes_copied": self.bytes_copied,
            "checksum_failures": self.checksum_failures,
        }

    def locate(self, errands: Sequence[Locate]) -> None:
        """Find out who has these keys."""
        self._tasks.run(self._locate(errands))

    def pull(self, errand: Pull) -> None:
        """Bring one object in."""
        self._tasks.run(self._pull(errand.replica, errand.found))

    # -- who has it --------------------------------------------------------------------------------------------------

    async def _locate(self, errands: Sequence[Locate]) -> None:
        sought: list[Locate] = []
        try:
            for errand in errands:
                try:
                    await self._points.hit("ClientLocalCopyBeforeRefreshReplicaListRemote")
                except StoreError as error:
                    self._located(errand, None, Refusal(Code(error.code), error.message))
                else:
                    sought.append(errand)
            keys = [errand.loading.key for errand in sought]
            try:
                entries = await self._entries.lookup(keys) if keys else []
                await self._points.hit("ClientLocalCopyAfterLookup")
            except DirectoryError:
                refusal = Refusal(Code.NOT_FOUND, "not on this node, and the directory of the others is away")
                entries = []
            except StoreError as error:
                refusal = Refusal(Code(error.code), error.message)
                entries = []
            else:
                for errand, entry in zip(sought, entries, strict=True):
                    self._located(errand, self._found(entry, None), self._missing(entry))
                return
            for errand in sought:
                self._located(errand, None, refusal)
        finally:
            self._settle()

    def _located(self, errand: Locate, found: Found | None, refusal: Refusal) -> None:
        self._master.peers.located(errand.loading, found, refusal, time.monotonic_ns())

    def _found(self, entry: Entry, before: Sources | None) -> Found | None:
        """What other nodes have; *before*: how the load that asks has fared."""
        avoid = frozenset[str]() if before is None else before.failed
        holdings = sources_in(entry, self._membership, self._master.clear_epoch, avoid=avoid)
        if not holdings:
            return None
        sources = Sources(holdings)
        if before is not None:
            sources.looks, sources.transfers, sources.failed = before.looks, before.transfers, before.failed
            sources.generations = before.generations
        return found_at(entry.owner or holdings[0], sources)

    def _missing(self, entry: Entry) -> Refusal:
        owner, epoch = entry.owner, self._master.clear_epoch
        was_pinned = owner is not None and owner.softpin and owner.epoch >= epoch
        if owner is None or not was_pinned or live_holdings(entry, self._membership, epoch):
            return Refusal(Code.NOT_FOUND, "no such object")
        return Refusal(Code.OBJECT_LOST, f"its only replica was on node {owner.node}, which is gone")

    # -- the copy ----------------------------------------------------------------------------------------------------

    async def _pull(self, into: Replica, found: Found) -> None:
        sources = found.sources
        assert isinstance(sources, Sources)
        failure: Refusal | None = Refusal(Code.TRANSFER_FAILED, "the copy was given up")
        again: Found | None = None
        ticket: Ticket | None = None
        quiesced, from_disk = True, False
        source = sources.holdings[0]
        try:
            await self._points.hit("ClientLocalCopyAfterPutStart")
            item = await self._lease(into, source)
            from_disk = item.on_disk
            outcome = Outcome.OK
            try:
                await self._points.hit("ClientLocalCopyAfterGetReplicaList")
                if item.data is not None:
                    self._room.view(into.offset, into.nbytes)[:] = item.data
                else:
                    sources.transfers += 1
                    ticket = self._plane.submit(_range(source, self._membership, into.key, item), into.offset)
                    outcome = await ticket.done(TRANSFER_S)
                    quiesced = outcome is not Outcome.EXPIRED
                await self._points.hit("ClientLocalCopyAfterTransfer")
            finally:
                released = self._borrowing.release(source.node, into.key, item)
            if outcome is not Outcome.OK:
                reason = "" if ticket is None else ticket.reason
                raise Refusal(Code.TRANSFER_FAILED, f"from node {source.node}: {reason}")
            await self._verify(into, item, None if ticket is None else ticket.xxh3)
            await self._publish(into, found)
            # A hint; but whoever has its answer may count on it that it was given.
            await _ended(released)
            failure = None
        except _Stale as stale:
            failure = _refusal_of(stale, into, sources)
            again = await self._look_again(into, sources)
        except Refusal as refusal:
            failure = refusal
            sources.failed |= {source.node}
            if sources.transfers < TRANSFERS_MAX:
                again = await self._look_again(into, sources)
        except PeerError as error:
            failure = Refusal(Code.TRANSFER_FAILED, f"node {source.node}: {error}")
            sources.failed |= {source.node}
            again = await self._look_again(into, sources)
        except StoreError as error:
            failure = Refusal(Code(error.code), error.message)
        finally:
            self._end(into, failure, again=again, from_disk=from_disk, ticket=None if quiesced else ticket)

    def _end(
        self, into: Replica, failure: Refusal | None, *, again: Found | None, from_disk: bool, ticket: Ticket | None
    ) -> None:
        if failure is None:
            self.bytes_copied += into.nbytes
            # Its owner may have died while it was copied.
            self._heirs.is_due |= into.owner is not None and into.owner not in self._membership.others
        else:
            log.info("copy_failed", key=into.key, error=failure.message, again=again is not None)
        self._master.peers.pull_done(
            into, failure, time.monotonic_ns(), again=again, from_disk=from_disk, quiesced=ticket is None
        )
        current = self._master.table.current.get(into.key)
        if failure is None and (current is None or current.generation != into.generation):
            # It was given up while it was published.
            self._entries.mark(into.key, Due(into.generation))
        if ticket is not None:
            self._tasks.run(self._quiesce(into, ticket))
        self._settle()

    async def _quiesce(self, into: Replica, ticket: Ticket) -> None:
        await ticket.quiesced()
        self._master.peers.pull_quiesced(into, time.monotonic_ns())
        self._settle()

    async def _lease(self, into: Replica, source: Holding) -> ReplicaItem:
        try:
            item = await self._borrowing.lease(source.node, into.key)
        except Refusal as refusal:
            if refusal.code is Code.NOT_FOUND:
                raise _Stale(refusal.message) from refusal
            raise
        carried_nbytes = into.nbytes if item.data is None else item.data.nbytes
        if (item.generation, item.nbytes, item.kind, carried_nbytes) != (
            into.generation,
            into.nbytes,
            into.kind,
            into.nbytes,
        ):
            self._borrowing.release(source.node, into.key, item)
            raise _Stale("it was replaced")
        return item

    async def _verify(self, into: Replica, item: ReplicaItem, found: int | None) -> None:
        """*found*: the checksum, if the data plane has seen to that."""
        view = self._room.view(into.offset, into.nbytes)
        self._room.zero_tail(into.offset, into.nbytes)
        if found is None and into.nbytes <= _INLINE_NBYTES_MAX:
            found = xxhash.xxh3_64_intdigest(view)
        elif found is None:
            found = await asyncio.to_thread(xxhash.xxh3_64_intdigest, view)
        if found != item.xxh3:
            self.checksum_failures += 1
            raise Refusal(Code.CHECKSUM_MISMATCH, "the bytes that came are not those that were sent")
        into.checksum = found

    async def _publish(self, into: Replica, found: Found) -> None:
        """The directory takes the copy only as long as the owner has that generation (SPEC 6, rule 1)."""
        await self._points.hit("ClientLocalCopyBeforePublish")
        if into.state is not ReplicaState.WRITING:
            raise _Stale("it was given up")
        holding: Holding | None = None
        if into.key not in self._master.table.current:
            try:
                # Else what was read might be fenced at once, just after the directory has come back.
                await self._membership.live_on()
                holding = _secondary(into, found, self._membership, self._master.clear_epoch)
                is_published = await self._publishing.add((into.key, holding))
            except DirectoryError:
                self._entries.mark(into.key, Due(into.generation))
                raise Refusal(Code.NOT_FOUND, "the directory went away while it was copied") from None
            if not is_published:
                raise _Stale("it was removed or replaced while it was copied")
        try:
            await self._points.hit("ClientLocalCopyBeforePutEnd")
        except StoreError:
            self._entries.mark(into.key, Due(into.generation))
            raise
        if holding is not None and holding.incarnation != self._membership.me.incarnation:
            # What was published is void: nobody would tell this node of a remove.
            raise _Stale("this node has begun a new life")

    async def _look_again(self, into: Replica, sources: Sources) -> Found | None:
        sources.looks += 1
        if sources.looks > LOOKS_MAX:
            return None
        # What was found again and was not so is changing hands: by a dead owner's heir, or by one who replaces it.
        await asyncio.sleep(LOOK_PAUSE_S * (sources.looks - 1))
        try:
            await self._points.hit("ClientLocalCopyBeforeRefreshReplicaListRemote")
            (entry,) = await self._entries.lookup([into.key])
        except (DirectoryError, StoreError):
            return None
        return self._found(entry, sources)


async def _ended(released: "asyncio.Future[None] | None") -> None:
    if released is not None and not released.done():
        await asyncio.wait([released])


def _refusal_of(stale: _Stale, into: Replica, sources: Sources) -> Refusal:
    sources.generations |= {into.generation}
    if sources.looks >= LOOKS_MAX and len(sources.generations) > 1:
        return Refusal(Code.NOT_READY, f"it changes faster than it can be copied: {stale}")
    return Refusal(Code.NOT_FOUND, f"no such object any more: {stale}")


def _range(source: Holding, membership: Membership, key: str, item: ReplicaItem) -> RemoteRange:
    node = membership.others.get(source.node)
    return RemoteRange(
        node=source.node,
        incarnation=source.incarnation,
        endpoint="" if node is None else node.endpoint,
        key=key,
        replica_id=item.replica_id,
        offset=item.offset,
        nbytes=item.nbytes,
        generation=item.generation,
        lease_token=item.lease_token,
    )


def _secondary(into: Replica, found: Found, membership: Membership, epoch: int) -> Holding:
    into.owner, into.remembered, into.softpin_until_ns = found.owner, found.contract, found.softpin_until_ns
    try:
        return holding_of(into, membership, epoch)
    finally:
        into.owner = into.remembered = into.softpin_until_ns = None
