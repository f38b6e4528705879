"""A tier in memory: what tests use for a disk. It passes the same suite as the directory.

Its `MemoryDisk` outlives it, so that a restart is a new tier on the same disk.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import xxhash

from mooncake_node.tiers.errors import (
    TierCorruptError,
    TierError,
    TierFullError,
    TierIOError,
    TierLockedError,
    TierMissingError,
    TierRemovedError,
)
from mooncake_node.tiers.port import WRITE_BATCH_MAX, TierCounters, TierMeta, TierRecord
from mooncake_node.tiers.workers import all_done

_COST_FIXED = 128  # what a record takes, in a tier whose bytes are counted one by one

Identity = tuple[str, int]


class MemoryDisk:
    """What stays when a tier ends, and the switches with which a test makes it misbehave."""

    def __init__(self) -> None:
        self.content: dict[Identity, tuple[TierRecord, bytearray]] = {}
        self.node_id = "memory"
        self.floor = 0
        self.locked = False
        # Raised by every write, read, removal or amendment while set; a TierIOError counts as the system's.
        self.write_error: TierError | None = None
        self.read_error: TierError | None = None
        self.remove_error: TierError | None = None
        self.amend_error: TierError | None = None
        # A write waits here before it becomes visible, a read before it copies.
        self.write_gate: asyncio.Event | None = None
        self.read_gate: asyncio.Event | None = None

    def amend(self, record: TierRecord) -> None:
        """Keep *record* in the place of the former one, if the object has not been lost."""
        if record.identity in self.content:
            self.content[record.identity] = record, self.content[record.identity][1]

    def flip(self, meta: TierMeta, bit: int = 0) -> None:
        """Turn over one bit of the object's bytes."""
        self.content[meta.identity][1][bit // 8] ^= 1 << bit % 8

    def truncate(self, meta: TierMeta, nbytes: int) -> None:
        """Cut the object's bytes."""
        del self.content[meta.identity][1][nbytes:]

    def lose(self, meta: TierMeta) -> None:
        """Delete the object behind the tier's back."""
        del self.content[meta.identity]


class _Draft:
    """One object's write under way."""

    __slots__ = ("cost", "on_end", "removed")

    def __init__(self, cost: int) -> None:
        self.cost = cost
        self.removed = False
        self.on_end: list[Callable[[], None]] = []  # called in turn when it has ended

    def end(self) -> None:
        """Go on with what has waited for it."""
        for call in self.on_end:
            call()


class MemoryTier:
    """Implements `Tier`."""

    def __init__(self, disk: MemoryDisk | None = None, *, bytes_limit: int = 1 << 40) -> None:
        self.disk = MemoryDisk() if disk is None else disk
        self.bytes_limit = bytes_limit
        self.counters = TierCounters()
        self._index: dict[Identity, TierRecord] = {}  # what can be read
        self._undead: dict[Identity, TierRecord] = {}  # removed, but the disk refused
        self._under_way: dict[Identity, _Draft] = {}
        self._is_open = self._is_closing = False
        self._idle = asyncio.Event()  # no write is under way
        self._idle.set()

    @property
    def node_id(self) -> str:
        """See Tier."""
        return self.disk.node_id

    @property
    def floor(self) -> int:
        """See Tier."""
        return self.disk.floor

    @property
    def bytes_used(self) -> int:
        """See Tier."""
        lying = sum(self.cost(record) for held in (self._index, self._undead) for record in held.values())
        return lying + sum(draft.cost for draft in self._under_way.values())

    @property
    def objects(self) -> int:
        """See Tier."""
        return len(self._index)

    def cost(self, meta: TierMeta) -> int:
        """See Tier."""
        return meta.nbytes + len(meta.key.encode()) + _COST_FIXED

    async def open(self) -> list[TierRecord]:
        """See Tier."""
        if self.disk.locked:
            raise TierLockedError("another tier has this disk")
        self.disk.locked = self._is_open = True
        for record, _ in sorted(self.disk.content.values(), key=lambda item: item[0].generation, reverse=True):
            if any(record.key == key for key, _ in self._index):
                self.counters.scan_outdated += 1
                del self.disk.content[record.identity]
            else:
                self._index[record.identity] = record
        return list(self._index.values())

    async def write(self, objects: Sequence[tuple[TierMeta, memoryview]]) -> list[TierRecord | TierError]:
        """See Tier."""
        assert self._is_open
        assert not self._is_closing
        assert len(objects) <= WRITE_BATCH_MAX
        drafts = [self._begin(meta, view) for meta, view in objects]
        try:
            if self.disk.write_gate is not None:
                await self.disk.write_gate.wait()
            else:
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            for (meta, _), draft in zip(objects, drafts, strict=True):
                if isinstance(draft, _Draft):
                    self._leave(meta)
                    draft.end()
            raise
        return [self._end(meta, view, draft) for (meta, view), draft in zip(objects, drafts, strict=True)]

    async def read(self, record: TierRecord, into: memoryview) -> None:
        """See Tier."""
        assert into.nbytes == record.nbytes
        stored, content = await self._found(record)
        if len(content) != stored.nbytes or xxhash.xxh3_64_intdigest(content) != stored.xxh3:
            raise self._corrupt(record)
        into[:] = content
        self.counters.restored += 1

    async def read_part(self, record: TierRecord, offset: int, into: memoryview) -> None:
        """See Tier."""
        assert 0 <= offset <= record.nbytes - into.nbytes
        stored, content = await self._found(record)
        if len(content) != stored.nbytes:
            raise self._corrupt(record)
        into[:] = memoryview(content)[offset : offset + into.nbytes]

    async def remove(self, *objects: TierMeta) -> None:
        """See Tier."""
        assert self._is_open
        failed = 0
        for meta in objects:
            failed += not self._remove(meta.identity)
        await asyncio.sleep(0)
        if failed:
            raise TierIOError(f"{failed} of {len(objects)} objects could not be removed")

    async def amend(self, meta: TierMeta) -> None:
        """See Tier. It takes nothing."""
        assert self._is_open
        done: asyncio.Future[TierError | None] = asyncio.get_running_loop().create_future()
        draft = self._under_way.get(meta.identity)
        if draft is None:
            self._amend(meta, done)
        else:
            draft.on_end.append(partial(self._amend, meta, done))
        await all_done([done])
        await asyncio.sleep(0)
        if (error := done.result()) is not None:
            raise error

    async def remove_all(self) -> int:
        """See Tier."""
        count = len(self._index)
        failed = 0
        for identity in [*self._under_way, *self._index, *self._undead]:
            failed += not self._remove(identity)
        await asyncio.sleep(0)
        if failed:
            raise TierIOError(f"{failed} objects could not be removed")
        return count

    async def raise_floor(self, generation: int) -> None:
        """See Tier."""
        self.disk.floor = max(self.disk.floor, generation)

    async def close(self) -> None:
        """See Tier."""
        self._is_closing = True
        await self._idle.wait()
        if self._is_open:
            self._is_open = self.disk.locked = False

    async def _found(self, record: TierRecord) -> tuple[TierRecord, bytearray]:
        assert self._is_open
        identity = record.identity
        if identity not in self._index:
            raise TierMissingError(f"no {record.key!r} here")
        held = self.disk.content.get(identity)
        if self.disk.read_gate is not None:
            await self.disk.read_gate.wait()
        else:
            await asyncio.sleep(0)
        if self.disk.read_error is not None:
            self.counters.read_failed += 1
            raise self.disk.read_error
        if held is None:
            self.counters.read_missing += 1
            self._index.pop(identity, None)
            raise TierMissingError(f"{record.key!r} has gone")
        return held

    def _corrupt(self, record: TierRecord) -> TierCorruptError:
        self.counters.read_corrupt += 1
        self._index.pop(record.identity, None)
        self.disk.content.pop(record.identity, None)
        return TierCorruptError(f"{record.key!r} is not what was written")

    def _begin(self, meta: TierMeta, view: memoryview) -> _Draft | TierRecord | TierError:
        assert view.nbytes == meta.nbytes
        assert meta.identity not in self._under_way
        if meta.identity in self._index:
            return self._index[meta.identity]
        cost = self.cost(meta)
        if self.bytes_used + cost > self.bytes_limit:
            self.counters.write_full += 1
            return TierFullError(f"{cost} bytes more than {self.bytes_limit}")
        draft = self._under_way[meta.identity] = _Draft(cost)
        self._idle.clear()
        return draft

    def _end(self, meta: TierMeta, view: memoryview, draft: _Draft | TierRecord | TierError) -> TierRecord | TierError:
        if not isinstance(draft, _Draft):
            return draft
        self._leave(meta)
        answer = self._answer(meta, view, draft)
        draft.end()
        return answer

    def _answer(self, meta: TierMeta, view: memoryview, draft: _Draft) -> TierRecord | TierError:
        if draft.removed:
            return TierRemovedError(f"{meta.key!r} was removed while it was being written")
        error = self.disk.write_error
        if error is not None:
            if isinstance(error, TierFullError):
                self.counters.write_full += 1
            else:
                self.counters.write_failed += 1
            return error
        content = bytearray(view)
        facts = {name: getattr(meta, name) for name in TierMeta.__struct_fields__}
        record = TierRecord(**facts, xxh3=xxhash.xxh3_64_intdigest(content))
        self.disk.content[meta.identity] = (record, content)
        self._index[meta.identity] = record
        self.counters.written += 1
        return record

    def _amend(self, meta: TierMeta, done: asyncio.Future[TierError | None]) -> None:
        record = self._index.get(meta.identity)
        if record is None:
            done.set_result(None)
            return
        error = self.disk.amend_error
        if error is not None:
            self.counters.amend_failed += 1
        else:
            self.disk.amend(record.amended(meta))
            self._index[meta.identity] = record.amended(meta)
            self.counters.amended += 1
        done.set_result(error)

    def _leave(self, meta: TierMeta) -> None:
        del self._under_way[meta.identity]
        if not self._under_way:
            self._idle.set()

    def _remove(self, identity: Identity) -> bool:
        draft = self._under_way.get(identity)
        if draft is not None:
            draft.removed = True
        record = self._index.pop(identity, None) or self._undead.get(identity)
        if record is None:
            return True
        if self.disk.remove_error is not None:
            self._undead[identity] = record
            self.counters.remove_failed += 1
            return False
        self._undead.pop(identity, None)
        self.disk.content.pop(identity, None)
        self.counters.removed += 1
        return True
