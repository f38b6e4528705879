"""Where the files of a directory lie, and what every access to them has in common."""

import os
import threading
from pathlib import Path

import xxhash

from mooncake_node.tiers.direct_io import takes_direct
from mooncake_node.tiers.points import Points
from mooncake_node.tiers.port import TierMeta

OBJECTS, PACKS, CONTRACTS, BAD = "objects", "packs", "contracts", "bad"
TEMPORARY = ".tmp"
SHARDS = [f"{number:02x}" for number in range(256)]
# Files found damaged are kept for a look at them, the newest of them within these bounds.
BAD_FILES_MAX = 16
BAD_NBYTES_MAX = 256 << 20


class Place:
    """The directory, opened once. Its methods are called by several threads and raise OSError."""

    def __init__(self, root: Path, *, direct: bool, durable: bool, points: Points) -> None:
        self.root = root
        self.durable = durable  # what was written survives a loss of power
        self.points = points
        self._bad_lock = threading.Lock()
        for name in (OBJECTS, PACKS, CONTRACTS, BAD):
            (root / name).mkdir(0o700, exist_ok=True)
        there = {path.name for path in (root / OBJECTS).iterdir()}
        for shard in SHARDS:
            if shard not in there:
                (root / OBJECTS / shard).mkdir(0o700)
        self.direct = direct and takes_direct(root)

    def object_path(self, meta: TierMeta) -> Path:
        """The file of an object that has one of its own."""
        digest = xxhash.xxh3_128_hexdigest(meta.key.encode())
        return Path(f"{self.root}/{OBJECTS}/{digest[:2]}/{digest}-{meta.generation:016x}")  # parsed once

    def contract_path(self, meta: TierMeta) -> Path:
        """The file of an object's contract, if that was changed; with an ending, for they may meet in `bad/`."""
        return self.root / CONTRACTS / f"{self.object_path(meta).name}.contract"

    def pack_path(self, number: int) -> Path:
        """The file of a pack."""
        return self.root / PACKS / f"{number:016x}"

    def set_aside(self, path: Path) -> None:
        """Take a damaged file out of use: into `bad/`, or away if it is too big to be kept."""
        with self._bad_lock:
            try:
                if path.stat().st_size > BAD_NBYTES_MAX // 2:
                    path.unlink()
                else:
                    path.rename(self.root / BAD / path.name)
                    self._bound_bad()
            except FileNotFoundError:
                return

    def unlink(self, path: Path) -> None:
        """Remove a file for good; none there is no error."""
        try:
            path.unlink()
        except FileNotFoundError:
            return
        self.sync_parent(path)

    def sync_parent(self, path: Path) -> None:
        """Have the name of *path*, or its absence, survive a loss of power, if that was promised."""
        if not self.durable:
            return
        fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _bound_bad(self) -> None:
        kept = ((path, path.stat()) for path in (self.root / BAD).iterdir())
        found = sorted((stat.st_ctime_ns, stat.st_size, path) for path, stat in kept)
        total = sum(nbytes for _, nbytes, _ in found)
        while len(found) > BAD_FILES_MAX or total > BAD_NBYTES_MAX:
            _, nbytes, path = found.pop(0)
            path.unlink()
            total -= nbytes
