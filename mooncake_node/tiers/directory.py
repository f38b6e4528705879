"""A tier in a local directory.

    lock            held by the process that uses it
    identity.json   the node's id and the floor of its generations
    objects/ab/     a file for each object that is not small, named by the digest of its key and its generation
    packs/          files that small objects share
    contracts/      a file for each object whose contract was changed after it was written, named as the object's
    bad/            what was found damaged, the newest of it

All that is known of the content belongs to the event loop; threads get what they need and give back an outcome.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby, islice
from pathlib import Path

import msgspec

from mooncake_client.faults import FaultTable
from mooncake_node.obs.log import get_logger
from mooncake_node.tiers import identity as identities
from mooncake_node.tiers.amendments import Amendments
from mooncake_node.tiers.contents import OWN_FILE, Contents, Entry
from mooncake_node.tiers.drafts import Draft
from mooncake_node.tiers.errors import (
    TierCorruptError,
    TierError,
    TierFullError,
    TierIOError,
    TierMissingError,
    TierRemovedError,
    from_os,
)
from mooncake_node.tiers.files import file_nbytes_bound, read_object, read_object_part, write_object
from mooncake_node.tiers.identity import Identity
from mooncake_node.tiers.packer import PACK_NBYTES_MAX, PACK_OBJECTS_MAX, Packer, count_refusal
from mooncake_node.tiers.packs import Member, member_cost, read_member, read_member_part
from mooncake_node.tiers.place import Place
from mooncake_node.tiers.points import Points
from mooncake_node.tiers.port import WRITE_BATCH_MAX, TierCounters, TierMeta, TierRecord
from mooncake_node.tiers.publication import Publication
from mooncake_node.tiers.removal import Removal
from mooncake_node.tiers.scan import Found, scan
from mooncake_node.tiers.workers import Workers, all_done, run, start

SMALL_MAX_NBYTES = 64 << 10

log = get_logger()


class DirectoryTier:
    """Implements `Tier`. Of the disk's durability it promises what survives the process; `durable`: a loss of power."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        bytes_limit: int,
        small_max_nbytes: int = SMALL_MAX_NBYTES,
        offloads: int = 2,
        restores: int = 2,
        durable: bool = False,
        direct: bool = True,
        faults: FaultTable | None = None,
    ) -> None:
        """Objects below *small_max_nbytes* share files. *direct* False: through the page cache in any case."""
        assert 0 <= small_max_nbytes <= PACK_NBYTES_MAX // 4
        self.counters = TierCounters()
        self._root = Path(root).resolve()
        self._small_max_nbytes = small_max_nbytes
        self._durable = durable
        self._wants_direct = direct
        self._points = Points(faults)
        self._contents = Contents(bytes_limit)
        self._workers = Workers(offloads=offloads, restores=restores)
        self._under_way: dict[tuple[str, int], Draft] = {}  # every write between its call and its answer
        self._lock_fd = -1
        self._identity: Identity | None = None
        self._opened: tuple[Place, Packer, Amendments] | None = None
        self._calls = 0
        self._is_closing = False
        self._idle = asyncio.Event()  # no call is under way
        self._idle.set()

    @property
    def bytes_limit(self) -> int:
        """See Tier."""
        return self._contents.bytes_limit

    @bytes_limit.setter
    def bytes_limit(self, nbytes: int) -> None:
        self._contents.bytes_limit = nbytes

    @property
    def node_id(self) -> str:
        """See Tier."""
        assert self._identity is not None
        return self._identity.node_id

    @property
    def floor(self) -> int:
        """See Tier."""
        assert self._identity is not None
        return self._identity.floor

    @property
    def direct(self) -> bool:
        """Large objects go past the page cache: the file system takes it. Known once open."""
        return self._place.direct

    @property
    def bytes_used(self) -> int:
        """See Tier. The files in `bad/`, at most 256 MiB, are not in it."""
        return self._contents.bytes_used

    @property
    def objects(self) -> int:
        """See Tier."""
        return self._contents.objects

    def cost(self, meta: TierMeta) -> int:
        """See Tier."""
        return member_cost(meta) if meta.nbytes < self._small_max_nbytes else file_nbytes_bound(meta)

    async def open(self) -> list[TierRecord]:
        """See Tier."""
        assert self._lock_fd < 0
        try:
            outcome = await run(self._workers.restores, self._open)
        except BaseException:
            self._unlock()
            raise
        if isinstance(outcome, TierError):
            self._unlock()
            raise outcome
        place, found = outcome
        contents = self._contents
        for entry in found.files:
            contents.add_file(entry.record, entry.file_nbytes)
        for pack in found.packs:
            contents.add_pack(pack)
        for record in found.amended:
            contents.amend(contents.index[record.identity], record)
        contents.next_pack = max(contents.next_pack, found.next_pack)
        packer = Packer(place, contents, self.counters, self._workers)
        self._opened = place, packer, Amendments(place, contents, self.counters, self._workers)
        packer.wake()
        log.info(
            "tier_opened",
            path=str(self._root),
            direct=place.direct,
            objects=contents.objects,
            amended=len(found.amended),
            bytes=contents.file_nbytes,
            bad=self.counters.scan_bad,
            temporary=self.counters.scan_temporary,
            outdated=self.counters.scan_outdated,
        )
        return [entry.record for entry in contents.index.values()]

    async def write(self, objects: Sequence[tuple[TierMeta, memoryview]]) -> list[TierRecord | TierError]:
        """See Tier."""
        assert len(objects) <= WRITE_BATCH_MAX
        with self._call():
            begun = [self._begin(meta, view) for meta, view in objects]
            drafts = [draft for draft in begun if isinstance(draft, Draft)]
            try:
                await all_done((draft.answer for draft in drafts), partial(_give_up, drafts))
            except asyncio.CancelledError:
                with contextlib.suppress(TierIOError):  # counted
                    await self._remove([draft.meta for draft in drafts], drafts)
                raise
            finally:
                for draft in drafts:
                    del self._under_way[draft.meta.identity]
            return [item.answer.result() if isinstance(item, Draft) else item for item in begun]

    async def read(self, record: TierRecord, into: memoryview) -> None:
        """See Tier."""
        assert into.nbytes == record.nbytes
        await self._restore(record, into, None)
        self.counters.restored += 1

    async def read_part(self, record: TierRecord, offset: int, into: memoryview) -> None:
        """See Tier. Best in whole blocks of 4 KiB from such an offset on, into memory on such a boundary."""
        assert 0 <= offset <= record.nbytes - into.nbytes
        await self._restore(record, into, offset)

    async def remove(self, *objects: TierMeta) -> None:
        """See Tier."""
        with self._call():
            under_way = (self._under_way.get(meta.identity) for meta in objects)
            await self._remove(objects, [draft for draft in under_way if draft is not None])

    async def amend(self, meta: TierMeta) -> None:
        """See Tier. It takes a block of the disk until the object is removed."""
        with self._call():
            await self._amendments.carry_out(meta, self._under_way.get(meta.identity))

    async def remove_all(self) -> int:
        """See Tier. Cancelled, it may have removed a part."""
        with self._call():
            count = self._contents.objects
            entries = list(self._contents.index.values())
            await self._remove([], list(self._under_way.values()))
            # Pack by pack, so that each goes whole.
            entries.sort(key=lambda entry: entry.pack)
            for _, pack in groupby(entries, lambda entry: entry.pack):
                while some := [entry.record for entry in islice(pack, PACK_OBJECTS_MAX)]:
                    await self._remove(some, [])
            return count

    async def raise_floor(self, generation: int) -> None:
        """See Tier."""
        with self._call():
            # One thread does these in turn, each from what the one before left.
            outcome = await run(self._workers.removals, partial(self._raise_floor, generation))
            if isinstance(outcome, TierError):
                raise outcome

    async def close(self) -> None:
        """See Tier."""
        self._is_closing = True
        await self._idle.wait()
        if self._opened is not None:
            await self._opened[1].finish()
        self._workers.end()
        self._unlock()

    # -- on the loop -------------------------------------------------------------------------------------------------

    @property
    def _place(self) -> Place:
        assert self._opened is not None
        return self._opened[0]

    @property
    def _packer(self) -> Packer:
        assert self._opened is not None
        return self._opened[1]

    @property
    def _amendments(self) -> Amendments:
        assert self._opened is not None
        return self._opened[2]

    @contextlib.contextmanager
    def _call(self) -> Iterator[None]:
        assert self._opened is not None
        assert not self._is_closing
        self._calls += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._calls -= 1
            if self._calls == 0:
                self._idle.set()

    def _begin(self, meta: TierMeta, view: memoryview) -> Draft | TierRecord | TierError:
        assert view.nbytes == meta.nbytes
        assert meta.identity not in self._under_way
        contents = self._contents
        entry = contents.living(meta.identity)
        if entry is not None:
            return entry.record
        dead = contents.index.get(meta.identity)
        if dead is not None and dead.is_amended:
            self.counters.write_failed += 1
            return TierIOError(f"the contract of a former {meta.key!r} is still there", path=self._root)
        cost = self.cost(meta)
        if contents.bytes_used + cost > contents.bytes_limit:
            self.counters.write_full += 1
            return TierFullError(
                f"{cost} bytes for {meta.key!r}, {contents.bytes_used} of {contents.bytes_limit} are taken",
                path=self._root,
            )
        contents.reserved_nbytes += cost
        draft = self._under_way[meta.identity] = Draft(meta, view, cost)
        if meta.nbytes < self._small_max_nbytes:
            self._packer.add(draft)
        else:
            place = self._place
            draft.publication = Publication(place, place.object_path(meta), 1)
            job = partial(write_object, place, draft.publication, meta, view)
            start(self._workers.offloads, job).add_done_callback(partial(self._file_written, draft))
        return draft

    def _file_written(self, draft: Draft, future: asyncio.Future[tuple[TierRecord, int] | TierError]) -> None:
        self._contents.reserved_nbytes -= draft.reserved_nbytes
        if (bug := future.exception()) is not None:
            draft.fail(bug)
            return
        outcome = future.result()
        if draft.is_removed:
            draft.settle(TierRemovedError("removed while it was being written"))
        elif isinstance(outcome, TierError):
            count_refusal(self.counters, outcome, 1)
            draft.settle(outcome)
        else:
            record, file_nbytes = outcome
            self._contents.add_file(record, file_nbytes)
            self.counters.written += 1
            draft.settle(record)

    async def _restore(self, record: TierRecord, into: memoryview, part_offset: int | None) -> None:
        """Read the object, or a part of it, from where it lies by then."""
        with self._call():
            while (entry := self._contents.living(record.identity)) is not None:
                pack = entry.pack
                check = _Check()
                job = partial(self._read, self._where(entry), into, part_offset, check, is_own_file=pack == OWN_FILE)
                outcome = await run(self._workers.restores, job, check.give_up)
                if not isinstance(outcome, TierError):
                    return
                if entry.pack != pack and not entry.is_dead:
                    continue  # its pack was written anew while we went for the old one
                await self._read_failed(entry, outcome)
                raise outcome
            raise TierMissingError(f"no generation {record.generation:016x} of {record.key!r}", path=self._root)

    def _where(self, entry: Entry) -> Member:
        place = self._place
        path = place.object_path(entry.record) if entry.pack == OWN_FILE else place.pack_path(entry.pack)
        return Member(entry.record, path, entry.offset)

    async def _read_failed(self, entry: Entry, error: TierError) -> None:
        if entry.is_dead:  # removed meanwhile, or another reader was here first
            return
        log.warning("tier_read_failed", key=entry.record.key, generation=entry.record.generation, error=str(error))
        if not isinstance(error, TierMissingError | TierCorruptError):
            self.counters.read_failed += 1
        else:
            self.counters.read_missing += isinstance(error, TierMissingError)
            self.counters.read_corrupt += isinstance(error, TierCorruptError)
            removal = Removal(self._contents)
            removal.add(entry)
            await self._carry_out(removal)

    async def _remove(self, objects: Sequence[TierMeta], drafts: Sequence[Draft]) -> None:
        removal = Removal(self._contents)
        for draft in drafts:
            removal.add_draft(draft)
        for meta in objects:
            entry = self._contents.index.get(meta.identity)
            if entry is not None:
                removal.add(entry)
        self.counters.removed += await self._carry_out(removal)
        if removal.error is not None:
            failed = len(removal.failed) + removal.failed_drafts
            self.counters.remove_failed += failed
            log.warning("tier_removal_failed", path=str(self._root), count=failed, error=str(removal.error))
            raise TierIOError(
                f"cannot remove {failed} objects", path=self._root, errno=removal.error.errno or 0
            ) from removal.error

    async def _carry_out(self, removal: Removal) -> int:
        if removal.is_empty:
            return 0
        try:
            await run(self._workers.removals, partial(removal.carry_out, self._place))
        finally:
            count = removal.finish()
            self._packer.wake()
        return count

    # -- in a thread -------------------------------------------------------------------------------------------------

    def _open(self) -> tuple[Place, Found]:
        try:
            self._root.mkdir(0o700, parents=True, exist_ok=True)
            self._lock_fd = identities.lock(self._root)
            place = Place(self._root, direct=self._wants_direct, durable=self._durable, points=self._points)
            self._identity = identities.load(self._root)
            return place, scan(place, self.counters)
        except OSError as error:
            raise from_os("cannot use this directory as a tier", self._root, error) from error

    def _raise_floor(self, generation: int) -> None:
        assert self._identity is not None
        if generation > self._identity.floor:
            raised = msgspec.structs.replace(self._identity, floor=generation)
            identities.save(self._root, raised)
            self._identity = raised

    def _read(
        self,
        where: Member,
        into: memoryview,
        part_offset: int | None,
        check: Callable[[], None],
        *,
        is_own_file: bool,
    ) -> None:
        place = self._place
        if not is_own_file:
            if part_offset is None:
                read_member(place, where, into, check)
            else:
                read_member_part(place, where, part_offset, into, check)
            return
        try:
            if part_offset is None:
                read_object(place, where.record, into, where.path, check)
            else:
                read_object_part(place, where.record, part_offset, into, where.path, check)
        except TierCorruptError:
            # What cannot be moved away is forgotten all the same.
            with contextlib.suppress(OSError):
                place.set_aside(where.path)
            raise

    def _unlock(self) -> None:
        fd, self._lock_fd = self._lock_fd, -1
        if fd >= 0:
            os.close(fd)


class _Check:
    """Called between two steps of a read; a reader that is cancelled makes it raise."""

    def __init__(self) -> None:
        self._is_given_up = False

    def __call__(self) -> None:
        if self._is_given_up:
            raise TierRemovedError("the reader has given up")

    def give_up(self) -> None:
        self._is_given_up = True


def _give_up(drafts: Sequence[Draft]) -> None:
    for draft in drafts:
        draft.give_up()
