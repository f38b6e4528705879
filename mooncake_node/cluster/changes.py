"""Changes that reach every node: remove, clear, pin; what a request and another node's request have in common."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from mooncake_client import wire
from mooncake_client.codes import Code
from mooncake_node.cluster.entries import BATCH, Entries
from mooncake_node.cluster.fanout import FanOut
from mooncake_node.cluster.holdings import live_holdings
from mooncake_node.cluster.membership import Membership
from mooncake_node.core.jobs import Retell
from mooncake_node.core.master import Master
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.scan import Scan
from mooncake_node.directory.port import Directory, DirectoryError
from mooncake_node.peers.errors import PeerError
from mooncake_node.peers.links import PeerLinks
from mooncake_node.peers.messages import Clear, Pin, RemovePrefix
from mooncake_node.server.service import TierJobs

MS_NS = 1_000_000
_SLICE_COUNT = 1000
_CALL_S = 10.0


class Changes:
    """Carries them out here and has them carried out elsewhere; returns when both is done."""

    def __init__(
        self,
        *,
        master: Master,
        directory: Directory,
        entries: Entries,
        membership: Membership,
        fan_out: FanOut,
        links: PeerLinks,
        jobs: TierJobs | None,
        settle: Callable[[], None],
        clear_all: Callable[[int], Awaitable[int]],
    ) -> None:
        """*clear_all* takes away everything on this node, under a clear epoch; how many objects were readable."""
        self._master = master
        self._directory = directory
        self._entries = entries
        self._membership = membership
        self._fan_out = fan_out
        self._links = links
        self._jobs = jobs
        self.settle = settle
        self._clear_all = clear_all
        # The newest clear epoch under which this node was cleared, and how many objects it owned then.
        self._cleared: tuple[int, asyncio.Future[int] | None] = (0, None)

    async def on_disk(self) -> None:
        """Begin what the core asks for; returns when no restart can undo what was removed."""
        future = None if self._jobs is None else self._jobs.start()
        self.settle()
        if future is not None:
            await asyncio.wait([future])

    # -- remove ------------------------------------------------------------------------------------------------------

    async def remove(self, keys: Sequence[str], generation: int | None) -> list[bool]:
        """Remove keys from every node; whether each was there.

        Returns when every living node that has the generation has acknowledged, and no reader finds it any more.
        """
        found = await self._entries.remove([(key, generation) for key in keys])
        now_ns = time.monotonic_ns()
        flags: list[bool] = []
        for key, entry in zip(keys, found, strict=True):
            was_there = bool(live_holdings(entry, self._membership, self._master.clear_epoch))
            if entry.holdings:
                self._master.peers.drop(key, entry.holdings[0].generation, now_ns)
            elif entry.tombstone:
                self._drop_late(key, entry.tombstone)
            current = self._master.table.current.get(key)
            if current is not None and current.owner is None and not current.told:
                # Only this node knows of it: put with scope "node", or while the directory was away.
                was_there |= self._master.remove(key, now_ns, generation)
            if generation is not None:
                was_there |= self._entries.losers.forget(key, generation) > 0
            flags.append(was_there)
        await asyncio.gather(
            self.on_disk(),
            # Of what another node is removing: whoever hears "it was not there" is not to find it either.
            self._fan_out.drop(
                [(key, entry.holdings or entry.removed) for key, entry in zip(keys, found, strict=True)]
            ),
        )
        return flags

    def _drop_late(self, key: str, generation: int) -> None:
        """Another node is removing it, and has not reached this one."""
        current = self._master.table.current.get(key)
        if current is not None and current.told and current.generation <= generation:
            self._master.peers.drop(key, generation, time.monotonic_ns())

    async def remove_owned_prefix(self, prefix: str) -> int:
        """Remove what this node owns under *prefix*, everywhere; how many objects."""
        scan, count = Scan(self._master.table, prefix), 0
        while not scan.done:
            owned = [r.key for r in scan.next(_SLICE_COUNT) if r.owner is None]
            for start in range(0, len(owned), BATCH):
                count += sum(await self.remove(owned[start : start + BATCH], None))
            await asyncio.sleep(0)
        return count

    async def remove_prefix(self, prefix: str) -> int:
        """Remove every key under *prefix*, whichever node owns it; how many objects."""
        counts = await asyncio.gather(
            self.remove_owned_prefix(prefix), self._fan_out.everyone(lambda: RemovePrefix(0, prefix))
        )
        return sum(counts)

    async def remove_all(self) -> int:
        """Nothing put or begun before, anywhere in the cluster, is readable from here on; how many objects went."""
        try:
            # Asked first: a server that is paused would carry out later what nobody waits for any more.
            await self._directory.members()
        except DirectoryError as error:
            raise Refusal(
                Code.NOT_READY,
                f"the directory is away, so not every node could be reached; nothing was removed: {error}",
            ) from error
        try:
            epoch = await self._directory.raise_clear_epoch()
        except DirectoryError as error:
            raise Refusal(
                Code.NOT_READY,
                f"the directory went away; either nothing was removed, or all will be when it is back: {error}",
            ) from error
        counts = await asyncio.gather(self.clear_here(epoch), self._fan_out.everyone(lambda: Clear(0, epoch)))
        return sum(counts)

    async def clear_only_here(self) -> int:
        """Take away everything on this node alone; how many objects it owned."""
        return await self._clear(self._master.clear_epoch)

    async def clear_here(self, epoch: int) -> int:
        """Everything of a lower clear epoch goes from this node; how many objects it owned.

        Who asks for it may not be the first from whom this node hears of that epoch; the count is theirs all the same.
        """
        if epoch > max(self._master.clear_epoch, self._cleared[0]):
            self._cleared = (epoch, asyncio.ensure_future(self._clear(epoch)))
        cleared, count = self._cleared
        return await asyncio.shield(count) if count is not None and cleared == epoch else 0

    async def _clear(self, epoch: int) -> int:
        self._entries.losers.forget()
        secondary = sum(replica.owner is not None for replica in self._master.table.current.values())
        return await self._clear_all(epoch) - secondary

    # -- pin ---------------------------------------------------------------------------------------------------------

    async def pin_here(self, key: str, *, softpin: bool, ttl_ms: int | None) -> None:
        """Change the contract of an object that this node owns; Refusal if it does not."""
        now_ns = time.monotonic_ns()
        replica = self._master.readable(key, now_ns)
        if replica.owner is not None:
            raise Refusal(Code.NOT_FOUND, f"node {replica.owner} owns it")
        if softpin:
            self._master.pin(key, None if ttl_ms is None else ttl_ms * MS_NS, now_ns)
        else:
            self._master.unpin(key, now_ns)
        if replica.told:
            self._master.errands.append(Retell(replica))
        await self.on_disk()

    async def pin(self, key: str, *, softpin: bool, ttl_ms: int | None) -> None:
        """`pin_here` on whichever node owns it."""
        current = self._master.table.current.get(key)
        if current is not None and current.owner is None:
            await self.pin_here(key, softpin=softpin, ttl_ms=ttl_ms)
            return
        node = await self.owner_of(key)
        if node == self._membership.me.name and current is not None and current.owner is not None:
            # The directory has made this node the owner, since the one before has dropped its replica.
            self._master.peers.promote(current)
            await self.pin_here(key, softpin=softpin, ttl_ms=ttl_ms)
            return
        if node is None:
            raise Refusal(Code.NOT_FOUND, "no such object")
        try:
            reply = await self._links.call(node, Pin(0, key, softpin, ttl_ms), _CALL_S)
        except PeerError as error:
            raise Refusal(Code.NOT_READY, f"its owner, node {node}, did not answer: {error}") from error
        if isinstance(reply, wire.Failed):
            raise Refusal(Code(reply.code), reply.message)

    async def owner_of(self, key: str) -> str | None:
        """The living node that owns *key*; None: there is none, or the directory is away."""
        try:
            (entry,) = await self._entries.lookup([key])
        except DirectoryError:
            return None
        owner = entry.owner
        if owner is None or not live_holdings(entry, self._membership, self._master.clear_epoch):
            return None
        return owner.node if self._membership.is_alive(owner.node, owner.incarnation) else None
