"""Small objects gathered into packs, one pack at a time.

What comes while a pack is being written goes into the next one, so many callers with one object each cost few files.
A round also takes in packs that are small or mostly dead, and so keeps their number down.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial

from mooncake_node.obs.log import get_logger
from mooncake_node.tiers.contents import Contents, Entry, Pack
from mooncake_node.tiers.contracts import unlink_contracts
from mooncake_node.tiers.drafts import Draft
from mooncake_node.tiers.errors import TierError, TierFullError, TierRemovedError
from mooncake_node.tiers.packs import (
    Member,
    PackUnreadableError,
    PackWritten,
    member_cost,
    pack_nbytes_bound,
    unlink_packs,
    write_pack,
)
from mooncake_node.tiers.place import Place
from mooncake_node.tiers.port import TierCounters, TierRecord
from mooncake_node.tiers.publication import Publication
from mooncake_node.tiers.workers import Workers, run

log = get_logger()

PACK_NBYTES_MAX = 4 << 20  # of a pack, so of the memory that it is made in
PACK_OBJECTS_MAX = 8192


class _Round:
    """One pack under way: what goes into it."""

    def __init__(self, place: Place, drafts: list[Draft], old: list[Pack], contents: Contents) -> None:
        self.number = contents.next_pack
        self.drafts = drafts
        self.old = old
        self.moved: list[tuple[Entry, Member]] = [pair for pack in old for pair in contents.members(pack, place)]
        self.replaces = [*(pack.number for pack in old), *contents.stale]
        self.corrupt: list[Entry] = []  # of those moved, what was found damaged and was not removed before
        self.publication = Publication(place, place.pack_path(self.number), len(drafts) + len(self.moved))
        metas = [*(draft.meta for draft in drafts), *(entry.record for entry, _ in self.moved)]
        bound = pack_nbytes_bound(metas, len(self.replaces))
        # What the drafts have not reserved for themselves.
        self.extra_nbytes = max(0, bound - sum(draft.reserved_nbytes for draft in drafts))

    def begin(self) -> None:
        """From now on a removal has to reach this pack."""
        for number, draft in enumerate(self.drafts):
            draft.publication, draft.number = self.publication, number
        numbers: dict[int, dict[int, int]] = {pack.number: {} for pack in self.old}
        for number, (entry, _) in enumerate(self.moved, len(self.drafts)):
            numbers[entry.pack][entry.number] = number
        for pack in self.old:
            pack.moving = self.publication, numbers[pack.number]

    def write(self, place: Place) -> PackWritten:
        """In a thread. Raises TierError."""
        new = [(draft.meta, draft.view) for draft in self.drafts]
        return write_pack(place, self.publication, new, [member for _, member in self.moved], self.replaces)


class Packer:
    """Writes drafts of small objects. Belongs to the event loop."""

    def __init__(self, place: Place, contents: Contents, counters: TierCounters, workers: Workers) -> None:
        self._place = place
        self._contents = contents
        self._counters = counters
        self._workers = workers
        self._queue: deque[Draft] = deque()
        self._task: asyncio.Task[None] | None = None

    def add(self, draft: Draft) -> None:
        """Have *draft* written and settled."""
        self._queue.append(draft)
        self.wake()

    def wake(self) -> None:
        """Begin, if there is something to do and nobody at it."""
        if self._task is None and (self._queue or self._contents.has_mostly_dead):
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def finish(self) -> None:
        """Return when nothing is left to do."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _work(self) -> None:
        try:
            while self._queue or self._contents.has_mostly_dead:
                current = self._next_round()
                went_well = current is not None and await self._carry_out(current)
                if not went_well and not self._queue:
                    return  # to write old packs anew is tried again when something changes
        finally:
            self._task = None

    def _next_round(self) -> _Round | None:
        contents = self._contents
        drafts = self._take_drafts()
        old = self._choose_old(drafts)
        while drafts or old:
            current = _Round(self._place, drafts, old, contents)
            if contents.bytes_used + current.extra_nbytes <= contents.bytes_limit:
                contents.next_pack += 1
                contents.reserved_nbytes += current.extra_nbytes
                current.begin()
                return current
            if old:
                old = []
            else:
                self._counters.write_full += 1
                self._settle(drafts.pop(), TierFullError("no room for a pack", path=self._place.root))
        return None

    def _take_drafts(self) -> list[Draft]:
        drafts: list[Draft] = []
        room = PACK_NBYTES_MAX
        while self._queue and len(drafts) < PACK_OBJECTS_MAX:
            draft = self._queue[0]
            room -= draft.reserved_nbytes
            if room < 0 and drafts:
                break
            self._queue.popleft()
            if draft.is_removed:
                self._settle(draft, TierRemovedError("removed before it was written"))
            else:
                drafts.append(draft)
        return drafts

    def _choose_old(self, drafts: list[Draft]) -> list[Pack]:
        """Packs worth writing anew, as many as fit beside *drafts*; for their own sake only mostly dead ones."""
        chosen: list[Pack] = []
        room = PACK_NBYTES_MAX - sum(draft.reserved_nbytes for draft in drafts)
        count = len(drafts)
        for number in sorted(self._contents.movable):
            pack = self._contents.packs[number]
            if not drafts and not pack.is_mostly_dead:
                continue
            room -= sum(member_cost(entry.record) for entry in pack.living.values())
            count += len(pack.living)
            if room < 0 or count > PACK_OBJECTS_MAX:
                break
            chosen.append(pack)
        return chosen

    async def _carry_out(self, current: _Round) -> bool:
        try:
            outcome = await run(self._workers.offloads, partial(current.write, self._place))
        except BaseException as error:
            for draft in current.drafts:
                draft.fail(error)
            raise
        finally:
            self._contents.reserved_nbytes -= current.extra_nbytes
            for pack in current.old:
                pack.moving = None
        if isinstance(outcome, PackUnreadableError):
            self._leave(current, outcome)
            return False
        answers = self._refuse(current, outcome) if isinstance(outcome, TierError) else self._take_in(current, outcome)
        # Only now, when no reader is sent to them any more: one who was looks again.
        await self._unlink_empty([*current.replaces, current.number])
        await self._forget(current.corrupt)
        for draft, answer in zip(current.drafts, answers, strict=True):
            self._settle(draft, answer)
        return not isinstance(outcome, TierError)

    def _take_in(self, current: _Round, written: PackWritten) -> Sequence[TierRecord | TierError]:
        contents, records, offsets = self._contents, written.records, written.offsets
        living = {
            number: Entry(records[number], current.number, number, offsets[number], 0)
            for number, draft in enumerate(current.drafts)
            if not draft.is_removed
        }
        for number, (entry, _) in enumerate(current.moved, len(current.drafts)):
            if entry.is_dead:
                continue
            if number in written.corrupt:
                self._counters.read_corrupt += 1
                contents.take_out(entry)
                current.corrupt.append(entry)
            else:
                living[number] = entry
        contents.replace_packs(current.number, current.publication.flags_offset, written, living)
        self._counters.written += sum(not draft.is_removed for draft in current.drafts)
        return records[: len(current.drafts)]

    def _refuse(self, current: _Round, error: TierError) -> Sequence[TierRecord | TierError]:
        count_refusal(self._counters, error, sum(not draft.is_removed for draft in current.drafts))
        return [error] * len(current.drafts)

    def _leave(self, current: _Round, error: PackUnreadableError) -> None:
        """The objects of an old pack stay where they are; the drafts go without them."""
        for pack in current.old:
            if str(self._place.pack_path(pack.number)) == error.path:
                self._contents.fix(pack.number)
        self._queue.extendleft(reversed(current.drafts))

    def _settle(self, draft: Draft, answer: TierRecord | TierError) -> None:
        self._contents.reserved_nbytes -= draft.reserved_nbytes
        draft.settle(answer)

    async def _forget(self, corrupt: list[Entry]) -> None:
        """Have no contract outlive its object: it would be taken for that of the same generation written again."""
        amended = [entry.record for entry in corrupt if entry.is_amended]
        left: set[tuple[str, int]] | TierError = set()
        if amended:
            left = await run(self._workers.removals, partial(unlink_contracts, self._place, amended))
        assert not isinstance(left, TierError)
        for entry in corrupt:
            if entry.record.identity not in left:
                self._contents.forget(entry)

    async def _unlink_empty(self, numbers: list[int]) -> None:
        """Packs of which nothing lives: moved, or removed meanwhile."""
        packs = self._contents.packs
        empty = [number for number in numbers if number not in packs or not packs[number].living]
        if not empty:
            return
        gone = await run(self._workers.removals, partial(unlink_packs, self._place, empty))
        assert not isinstance(gone, TierError)
        for number in empty:
            if number in gone:
                self._contents.forget_pack(number)
            else:
                self._contents.make_stale(number)


def count_refusal(counters: TierCounters, error: TierError, count: int) -> None:
    """So many objects were not written. A full tier is ordinary, and met at every object: it is not logged."""
    if isinstance(error, TierFullError):
        counters.write_full += count
    else:
        counters.write_failed += count
        log.warning("tier_write_failed", count=count, error=str(error))
