"""Tiers for tests: each kind behind one kit, so that one suite runs for all of them."""

import asyncio
import mmap
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from mooncake_client.faults import FaultTable
from mooncake_node.tiers import POINTS, DirectoryTier, MemoryDisk, MemoryTier, Tier, TierIOError, TierMeta, TierRecord
from tests.support.patterns import pattern

HANG_LIMIT_S = 60
PAGE = 4096
_FILLING = 0xAA  # behind what a test hands out, so that a byte too far is seen


def meta(key: str, nbytes: int, *, generation: int = 1, **facts) -> TierMeta:
    return TierMeta(key=key, generation=generation, nbytes=nbytes, **facts)


class Memory:
    """*nbytes* on a page's boundary, as an object in G, with known bytes behind them."""

    def __init__(self, nbytes: int, content: bytes | None = None, *, shift: int = 0) -> None:
        self.map = mmap.mmap(-1, nbytes + shift + PAGE)
        with memoryview(self.map) as whole:
            whole[:] = bytes((_FILLING,)) * len(whole)
        self._start, self._end = shift, shift + nbytes
        if content is not None:
            self.map[shift : shift + nbytes] = content

    def view(self) -> memoryview:
        return memoryview(self.map)[self._start : self._end]

    def close(self) -> None:
        """Raises BufferError while anybody has a view. Nothing around it was written."""
        assert set(self.map[: self._start] + self.map[self._end :]) == {_FILLING}
        self.map.close()


def content_of(meta: TierMeta) -> bytes:
    return pattern(meta.identity, meta.nbytes)


async def write(tier: Tier, *metas: TierMeta) -> list:
    """Write objects whose bytes are the pattern of their identity; nobody has their memory afterwards."""
    memories = [Memory(meta.nbytes, content_of(meta)) for meta in metas]
    answers = await tier.write([(meta, memory.view()) for meta, memory in zip(metas, memories, strict=True)])
    for memory in memories:
        memory.close()
    return answers


async def read(tier: Tier, record) -> bytes:
    """The object's bytes; nobody has the memory afterwards, also after an error."""
    memory = Memory(record.nbytes)
    try:
        await tier.read(record, memory.view())
        return bytes(memory.view())
    except Exception as error:
        error.__traceback__ = None  # of this frame and the tier's, which have the view
        raise
    finally:
        memory.close()


async def assert_holds(tier: Tier, *records) -> None:
    for record in records:
        assert await read(tier, record) == content_of(record), record


class Gate(FaultTable):
    """A fault table with a point at which threads stop until they are let go."""

    def __init__(self) -> None:
        super().__init__(POINTS, enabled=True)
        self.closed_at = ""
        self.arrived = threading.Event()
        self._open = threading.Event()

    def hit(self, name: str) -> float:
        if name == self.closed_at:
            self.arrived.set()
            assert self._open.wait(HANG_LIMIT_S), f"held at {name} for {HANG_LIMIT_S} s"
        return super().hit(name)

    @contextmanager
    def closed(self, name: str) -> Iterator[None]:
        self.arrived.clear()
        self._open.clear()
        self.closed_at = name
        try:
            yield
        finally:
            self.closed_at = ""
            self._open.set()

    async def somebody_is_held(self) -> None:
        assert await asyncio.to_thread(self.arrived.wait, HANG_LIMIT_S), f"nobody came to {self.closed_at}"


class DirectoryKit:
    """Tiers on one directory, one after the other."""

    def __init__(self, root: Path, **settings) -> None:
        self.root = root
        self.gate = Gate()
        self._settings = {"bytes_limit": 1 << 34, "faults": self.gate, **settings}
        self.tier: DirectoryTier

    def make(self, **settings) -> DirectoryTier:
        self.tier = DirectoryTier(self.root, **{**self._settings, **settings})
        return self.tier

    def audit(self) -> None:
        """What the tier believes of its files is so."""
        tier = self.tier
        tier._contents.check_invariants()
        assert tier._contents.reserved_nbytes == 0
        files = [path for path in self.files() if path.parent.name != "bad"]
        assert sum(path.stat().st_size for path in files) == tier.bytes_used
        assert not [path for path in files if path.suffix == ".tmp"]

    def files(self) -> list[Path]:
        return [
            path
            for name in ("objects", "packs", "contracts", "bad")
            for path in (self.root / name).rglob("*")
            if path.is_file()
        ]

    def where(self, meta: TierMeta) -> tuple[Path, int]:
        """The object's file, and where in it its first byte is."""
        entry = self.tier._contents.index[meta.identity]
        return self.tier._where(entry).path, entry.offset

    def flip(self, meta: TierMeta, bit: int) -> None:
        path, offset = self.where(meta)
        flip(path, 8 * offset + bit)

    def truncate(self, meta: TierMeta, nbytes: int) -> None:
        path, offset = self.where(meta)
        with path.open("rb+") as file:
            file.truncate(offset + nbytes)

    def lose(self, meta: TierMeta) -> None:
        self.where(meta)[0].unlink()

    @asynccontextmanager
    async def held_writes(self) -> AsyncIterator[Callable]:
        with self.gate.closed("TierBeforeRename"):
            yield self.gate.somebody_is_held

    @asynccontextmanager
    async def held_reads(self) -> AsyncIterator[Callable]:
        with self.gate.closed("TierBeforeRead"):
            yield self.gate.somebody_is_held

    @contextmanager
    def failing(self, what: str, code: int) -> Iterator[None]:
        name = {"write": "TierAfterWrite", "read": "TierBeforeRead", "amend": "TierBeforeAmendRename"}[what]
        self.gate.inject(name, "return_error", code, times=1000)
        yield
        self.gate.inject(name, "reset")


class MemoryKit:
    """The fake, with the same switches."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.tier: MemoryTier

    def make(self, **settings) -> MemoryTier:
        for name in ("small_max_nbytes", "offloads", "restores"):
            settings.pop(name, None)
        self.tier = MemoryTier(self.disk, **settings)
        return self.tier

    def audit(self) -> None:
        assert not self.tier._under_way
        assert self.tier._index.keys() | self.tier._undead.keys() >= self.disk.content.keys()

    def flip(self, meta: TierMeta, bit: int) -> None:
        self.disk.flip(meta, bit)

    def truncate(self, meta: TierMeta, nbytes: int) -> None:
        self.disk.truncate(meta, nbytes)

    def lose(self, meta: TierMeta) -> None:
        self.disk.lose(meta)

    @asynccontextmanager
    async def held_writes(self) -> AsyncIterator[Callable]:
        gate = self.disk.write_gate = asyncio.Event()
        try:
            yield self._turn
        finally:
            self.disk.write_gate = None
            gate.set()

    @asynccontextmanager
    async def held_reads(self) -> AsyncIterator[Callable]:
        gate = self.disk.read_gate = asyncio.Event()
        try:
            yield self._turn
        finally:
            self.disk.read_gate = None
            gate.set()

    @contextmanager
    def failing(self, what: str, code: int) -> Iterator[None]:
        setattr(self.disk, f"{what}_error", TierIOError("injected", code=code))
        yield
        setattr(self.disk, f"{what}_error", None)

    async def _turn(self) -> None:
        """A task that was made before has come to the gate."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def flip(path: Path, bit: int) -> None:
    """Turn over one bit of a file."""
    with path.open("rb+") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes((byte ^ 1 << bit % 8,)))


KITS: dict[str, Callable[[Path], DirectoryKit | MemoryKit]] = {
    "memory": lambda path: MemoryKit(),
    "direct": lambda path: DirectoryKit(path / "tier"),
    "buffered": lambda path: DirectoryKit(path / "tier", direct=False),
    "durable": lambda path: DirectoryKit(path / "tier", durable=True),
    "unpacked": lambda path: DirectoryKit(path / "tier", small_max_nbytes=0),
}


@asynccontextmanager
async def opened(kit, *, audit: bool = True, **settings) -> AsyncIterator[Tier]:
    """A tier on the kit's place, open, audited at its end and closed."""
    tier = kit.make(**settings)
    await tier.open()
    try:
        yield tier
        if audit:
            kit.audit()
    finally:
        await tier.close()


async def reopened(kit) -> list[TierRecord]:
    """What a new tier on the same place finds."""
    kit.audit()
    await kit.tier.close()
    records = await kit.make().open()
    kit.audit()
    return records


def keyed(records) -> dict:
    return {record.identity: record for record in records}


def skip_unless_direct(tier: DirectoryTier) -> None:
    if not tier.direct:
        pytest.skip("THIS FILE SYSTEM REFUSES O_DIRECT, NOT TESTED")
