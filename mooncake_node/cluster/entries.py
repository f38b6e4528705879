"""What this node has the directory say of its objects: told at once, or as soon as the directory answers again.

What could not be told is a set of keys. Their state is read when they are told, so nothing that is out of date is ever
sent, however long the directory was away (SPEC 6, rules 7 and 9).
"""

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import msgspec

from mooncake_client.codes import Code
from mooncake_client.errors import StoreError
from mooncake_node.cluster.dues import DUE_MAX, Due, Dues
from mooncake_node.cluster.fanout import FanOut
from mooncake_node.cluster.holdings import holding_of, live_holdings
from mooncake_node.cluster.losers import Losers
from mooncake_node.cluster.membership import Membership
from mooncake_node.core.jobs import Withdraw
from mooncake_node.core.master import Master
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.replica import Replica, ReplicaState
from mooncake_node.directory.port import (
    Created,
    Creation,
    Directory,
    DirectoryAwayError,
    DirectoryError,
    Entry,
    Holding,
    Taken,
    TooOld,
)
from mooncake_node.obs.log import get_logger

# Keys in one call of the directory.
BATCH = 256
# How often a creation is tried that meets holdings of dead nodes, or newer generations.
_ATTEMPTS_MAX = 5
_PAUSE_S = 0.25

_Lives = tuple[tuple[str, int], ...]  # node, incarnation

log = get_logger()


class Entries:
    """All that this node tells the directory about keys."""

    def __init__(
        self, directory: Directory, membership: Membership, master: Master, fan_out: FanOut, settle: Callable[[], None]
    ) -> None:
        self._directory = directory
        self._membership = membership
        self._master = master
        self._fan_out = fan_out
        self._settle = settle
        self._dues = Dues(self._overflowed)
        self.conflicts = 0
        self.losers = Losers(master)
        self.differences = 0  # found by the last check
        # Hears of keys that the directory has now, and had not when they were put.
        self.on_told: Callable[[str], None] = _nothing
        # All and only the keys of which the directory may have a generation that is not readable here yet.
        self._unpublished: set[str] = set()
        # Set when one of them goes; None: nobody waits for that.
        self._published: asyncio.Event | None = None

    def mark(self, key: str, due: Due | None = None) -> None:
        """The directory may not be up to date about *key*."""
        self._dues.mark(key, due or Due())

    def _overflowed(self) -> None:
        log.warning("directory_queue_overflowed", keys=DUE_MAX)
        # Whatever the directory has of this life is out of date as a whole.
        self._membership.begin_anew()

    # -- between the directory and the readers of this node ----------------------------------------------------------

    @contextlib.contextmanager
    def publishing(self, replicas: Sequence[Replica]) -> Iterator[None]:
        """Within, the directory is told of these, and they become readable here or are given up."""
        keys = [replica.key for replica in replicas]
        self._unpublished.update(keys)
        try:
            yield
        finally:
            self._unpublished.difference_update(keys)
            if self._published is not None:
                self._published.set()
                self._published = None

    async def published(self, key: str, patience_s: float) -> None:
        """Returns when the directory has no generation of *key* that is not readable here yet, or after that long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while key in self._unpublished:
                    if self._published is None:
                        self._published = asyncio.Event()
                    await self._published.wait()

    # -- at once -----------------------------------------------------------------------------------------------------

    async def create(self, replicas: Sequence[Replica]) -> tuple[list[Refusal | None], list[tuple[str, list[Holding]]]]:
        """Have the directory take unpublished generations of this node; None: it has, or it is away.

        Those it has are `told`. With the keys and holdings of what they replace on living nodes: that is to be dropped
        when they are readable here, and before anybody is answered.
        """
        answers: dict[int, Refusal | None] = {}
        open_ones = {replica.replica_id: replica for replica in replicas}
        dead: defaultdict[int, _Lives] = defaultdict(tuple)
        replaced: list[tuple[str, list[Holding]]] = []
        for _ in range(_ATTEMPTS_MAX):
            batch = list(open_ones.values())
            if not batch:
                break
            try:
                if not self._membership.is_serving:
                    raise DirectoryAwayError("this node is coming back to life")
                outcomes = await self._create([(r, r.replaces, dead[r.replica_id]) for r in batch])
            except DirectoryError:
                for replica in batch:
                    self.mark(replica.key, Due(replica.generation, is_unheard=True))
                break
            for replica, outcome in zip(batch, outcomes, strict=True):
                if isinstance(outcome, Created):
                    replica.told = True
                    replaced.append((replica.key, [h for h in outcome.replaced if self._lives(h)]))
                elif isinstance(outcome, TooOld):
                    self._renumber(replica, outcome.newest)
                    continue
                elif self._is_void(outcome.by):
                    dead[replica.replica_id] += ((outcome.by.node, outcome.by.incarnation),)
                    continue
                else:
                    where = outcome.by.node
                    answers[replica.replica_id] = Refusal(Code.EXISTS, f"an object of that key exists on node {where}")
                del open_ones[replica.replica_id]
        else:
            for replica_id in open_ones:
                answers[replica_id] = Refusal(Code.NOT_READY, "the key changes owners too fast; try again")
        return [answers.get(replica.replica_id) for replica in replicas], replaced

    async def _create(self, items: Sequence[tuple[Replica, bool, _Lives]]) -> list[Created | Taken | TooOld]:
        outcomes = await self._directory.create(
            [
                Creation(key=replica.key, holding=self._holding(replica), replaces=replaces, dead=dead)
                for replica, replaces, dead in items
            ]
        )
        for outcome in outcomes:
            if not isinstance(outcome, TooOld):
                await self._membership.meet(outcome.replaced if isinstance(outcome, Created) else (outcome.by,))
        return outcomes

    def _renumber(self, replica: Replica, newest: int) -> None:
        # Unless it was given up meanwhile.
        if self._master.table.writing.get(replica.key) is replica:
            self._master.peers.renumber(replica, newest, time.monotonic_ns())

    async def withdraw(self, errands: Sequence[Withdraw]) -> None:
        """Take replicas out of the directory that have lost their names here; then their memory goes."""
        items = [(e.replica.key, self._me, self._incarnation, e.replica.generation) for e in errands]
        try:
            for start in range(0, len(items), BATCH):
                await self._directory.withdraw(items[start : start + BATCH])
        except DirectoryError:
            for key, _, _, generation in items:
                self.mark(key, Due(generation))
        finally:
            for errand in errands:
                if errand.is_held:
                    self._master.peers.withdrawn(errand.replica, time.monotonic_ns())
            self._settle()

    async def remove(self, items: Sequence[tuple[str, int | None]]) -> list[Entry]:
        """Remove keys from the directory; what it had of them. Away: what this node has, and that is due later."""
        found: list[Entry] = []
        try:
            for start in range(0, len(items), BATCH):
                found += await self._remove(items[start : start + BATCH])
        except DirectoryError as error:
            away = items[len(found) :]
            if not self._dues.has_room(len(away)):
                raise Refusal(Code.NOT_READY, f"{DUE_MAX} removals wait to be told already: {error}") from error
            gone: list[tuple[str, int]] = []
            for key, generation in away:
                replica = self._master.table.current.get(key)
                if replica is None or generation not in (None, replica.generation) or not self._is_shared(replica):
                    found.append(Entry())
                else:
                    self.mark(key, Due(replica.generation, replica.generation))
                    gone.append((key, replica.generation))
                    found.append(Entry((self._holding(replica),)))
            self._fan_out.drop_everywhere(gone)
        return found

    async def lookup(self, keys: Sequence[str]) -> list[Entry]:
        """What the directory has; raises DirectoryError."""
        found: list[Entry] = []
        for start in range(0, len(keys), BATCH):
            found += await self._directory.lookup(keys[start : start + BATCH])
        await self._membership.meet(holding for entry in found for holding in entry.holdings)
        return found

    async def _remove(self, items: Sequence[tuple[str, int | None]]) -> list[Entry]:
        entries = await self._directory.remove(items)
        await self._membership.meet(holding for entry in entries for holding in entry.holdings)
        return entries

    # -- later -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Tell what is due, until cancelled."""
        while True:
            await self._dues.wake.wait()
            self._dues.wake.clear()
            while self._dues and self._membership.is_serving:
                try:
                    await self._tell_some()
                except DirectoryAwayError:
                    await self._membership.heard(_PAUSE_S)
                except (DirectoryError, Refusal, StoreError) as error:
                    log.warning("directory_not_told", error=str(error))
                    await asyncio.sleep(_PAUSE_S)
            if self._dues:
                await self._membership.heard(_PAUSE_S)
                self._dues.wake.set()

    async def tell_all(self) -> None:
        """Tell everything this node has; raises DirectoryError. What another node has won is given up here."""
        await self._tell_due()
        self._dues.tells_all()
        generations = {replica.key: replica.generation for replica in self._master.table.current.values()}
        for replica in self._master.table.current.values():
            replica.told = False
        every = iter(generations.items())
        while batch := dict(islice(every, BATCH)):
            await self._tell({key: Due(generation) for key, generation in batch.items()})
        await self._tell_due()
        self.differences = await self.count_differences()

    async def count_differences(self) -> int:
        """How many of this node's objects the directory has otherwise, or not; raises DirectoryError."""
        count = 0
        keys = [r.key for r in self._master.table.current.values() if self._is_shared(r)]
        for start in range(0, len(keys), BATCH):
            batch = keys[start : start + BATCH]
            for key, entry in zip(batch, await self._directory.lookup(batch), strict=True):
                replica = self._master.table.current.get(key)
                if replica is None or key in self._dues:
                    continue  # it has changed since, and is told as such
                count += not any(
                    (h.node, h.incarnation, h.generation, h.is_owner)
                    == (self._me, self._incarnation, replica.generation, replica.owner is None)
                    for h in entry.holdings
                )
        return count

    async def _tell_due(self) -> None:
        """Tell what is due now, though not what becomes due meanwhile."""
        for _ in range(0, len(self._dues), BATCH):
            await self._tell_some()

    async def _tell_some(self) -> None:
        """Bring up to *BATCH* keys up to date."""
        batch = self._dues.first(BATCH)
        await self._tell(batch)
        self._dues.told(batch)
        self._settle()

    async def _tell(self, batch: dict[str, Due]) -> None:
        await self._take_back(batch)
        here = [self._master.table.current.get(key) for key in batch]
        shared = [r for r in here if r is not None and self._is_shared(r)]
        if owned := [r for r in shared if r.owner is None]:
            await self._claim(owned)
            unheard = [(r.key, r.generation - 1) for r in owned if batch[r.key].is_unheard and r.replaces and r.told]
            if unheard:
                await self._fan_out.drop_by_all(unheard)
        if copies := [r for r in shared if r.owner is not None]:
            kept = await self._directory.publish([(r.key, self._holding(r)) for r in copies])
            for replica, is_kept in zip(copies, kept, strict=True):
                if is_kept:
                    self._was_told(replica)
                else:
                    self._give_up(replica)

    async def _take_back(self, batch: dict[str, Due]) -> None:
        """What the directory has of generations that this node has no more."""
        keys = [key for key, due in batch.items() if due.removed or due.generation not in (0, self._newest(key))]
        gone: list[tuple[str, str, int, int]] = []
        removed: list[tuple[str, int | None]] = []
        unknown: list[tuple[str, int]] = []
        for key, entry in zip(keys, await self.lookup(keys), strict=True):
            owner, own = entry.owner, next((h for h in entry.holdings if h.node == self._me), None)
            newest_removed = batch[key].removed
            if owner is None and newest_removed:
                unknown.append((key, newest_removed))
            if owner is None or owner.generation in self._generations(key):
                continue
            if owner.generation == newest_removed or (own is not None and owner.generation < newest_removed):
                removed.append((key, owner.generation))
            elif own is not None:
                gone.append((key, self._me, own.incarnation, own.generation))
        if unknown:
            # The directory has lost its data, and who has the object may not have told it again yet; or the answer to
            # the removal was lost, and with it who has it.
            await self._fan_out.drop_by_all(unknown)
            removed += unknown
        if removed:
            entries = await self._remove(removed)
            await self._fan_out.drop([(k, e.holdings or e.removed) for (k, _), e in zip(removed, entries, strict=True)])
        if gone:
            await self._directory.withdraw(gone)

    def _newest(self, key: str) -> int:
        replica = self._master.table.current.get(key)
        return 0 if replica is None else replica.generation

    def _generations(self, key: str) -> set[int]:
        """What this node has of *key*, or is about to have."""
        table = self._master.table
        return {group[key].generation for group in (table.current, table.writing, table.loading) if key in group}

    def _was_told(self, replica: Replica) -> None:
        """The directory has what was read of *replica* before; it may be gone since, or be in other memory."""
        current = self._master.table.current.get(replica.key)
        if current is None or current.generation != replica.generation:
            self.mark(replica.key, Due(replica.generation))
        else:
            current.told = True
            self.on_told(replica.key)

    async def _claim(self, owned: list[Replica]) -> None:
        """Have the directory take what this node owns and could not tell; a loser gives way."""
        dead: defaultdict[int, _Lives] = defaultdict(tuple)
        replaced: list[tuple[str, Sequence[Holding]]] = []
        for _ in range(_ATTEMPTS_MAX):
            again: list[Replica] = []
            outcomes = await self._create([(r, r.replaces, dead[r.replica_id]) for r in owned])
            for replica, outcome in zip(owned, outcomes, strict=True):
                if isinstance(outcome, Created):
                    self._was_told(replica)
                    replaced.append((replica.key, [h for h in outcome.replaced if self._lives(h)]))
                elif isinstance(outcome, TooOld):
                    # Removed, or replaced, while the directory could not be heard.
                    self._give_up(replica)
                elif self._is_void(outcome.by):
                    dead[replica.replica_id] += ((outcome.by.node, outcome.by.incarnation),)
                    again.append(replica)
                else:
                    self._lose(replica, outcome.by)
            owned = again
            if not owned:
                break
        await self._fan_out.drop(replaced, is_replaced=True)

    def _lose(self, replica: Replica, to: Holding) -> None:
        """Another node's object of that key has won: this one gives way, and is kept if that was promised."""
        if to.generation != replica.generation:
            self.conflicts += 1
            pinned = replica.contract.softpin
            log.warning("conflict_lost", key=replica.key, to=to.node, nbytes=replica.nbytes, kept=pinned)
            if pinned:
                self.losers.keep(replica)
        self._give_up(replica)

    def facts(self) -> dict[str, object]:
        """What `stats` shows of them."""
        return {
            "state": self._directory.state,
            "queued": len(self._dues),
            "conflicts": self.conflicts,
            "losers": self.losers.facts(),
            "differences": self.differences,
        }

    @staticmethod
    def _is_shared(replica: Replica) -> bool:
        return replica.contract.scope != "node"

    def _give_up(self, replica: Replica) -> None:
        current = self._master.table.current.get(replica.key)
        if current is not None and current.generation == replica.generation:
            current.told = False
            self._master.remove(replica.key, time.monotonic_ns(), replica.generation)
        # An older one of this node's may still be there.
        self.mark(replica.key, Due(replica.generation))

    def _holding(self, replica: Replica) -> Holding:
        holding = holding_of(replica, self._membership, self._master.clear_epoch)
        if replica.state is ReplicaState.WRITING and holding.softpin:
            # Its pin runs from when it is readable, which is about now.
            ttl_ns = replica.contract.softpin_ttl_ns or self._master.config.softpin_ttl_default_ns
            if ttl_ns is not None:
                until_unix_ms = time.time_ns() // 1_000_000 + ttl_ns // 1_000_000
                holding = msgspec.structs.replace(holding, softpin_until_unix_ms=until_unix_ms)
        return holding

    def _lives(self, holding: Holding) -> bool:
        return bool(live_holdings(Entry((holding,)), self._membership, self._master.clear_epoch))

    def _is_void(self, holding: Holding) -> bool:
        """Of a dead node, or this node's own: of a key that is readable here nothing is created, so it is no more."""
        return holding.node == self._me or not self._lives(holding)

    @property
    def _me(self) -> str:
        return self._membership.me.name

    @property
    def _incarnation(self) -> int:
        return self._membership.me.incarnation


def _nothing(_key: str) -> None:
    """What hears of keys before there is somebody who wants to."""
