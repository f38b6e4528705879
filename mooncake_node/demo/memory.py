"""What the kernel knows of this process's memory: where an array lies, and what the process takes."""

import gc
from pathlib import Path

import msgspec

_POOL_MARK = "/mooncake-node."
_PRIVATE = ("Private_Clean", "Private_Dirty", "Private_Hugetlb")


class Place(msgspec.Struct, frozen=True):
    """Where bytes lie: a range of a pool as `/proc/self/maps` shows it."""

    pool: str  # device and inode of the pool: the same in every process
    offset: int  # bytes from the start of the pool
    writable: bool  # this process could store there


class Usage(msgspec.Struct, frozen=True):
    """Memory of this process, in bytes."""

    own: int  # pages no other process has
    shared: int  # shared memory, a page that k processes have mapped counted as 1/k of a page

    def since(self, before: "Usage") -> "Usage":
        """What came on top of *before*."""
        return Usage(self.own - before.own, self.shared - before.shared)


def find(address: int, nbytes: int, maps: str) -> Place | None:
    """The place of a range of this process's addresses; None if it is not wholly in a pool without a name."""
    for line in maps.splitlines():
        if _POOL_MARK not in line or not line.endswith(" (deleted)"):
            continue
        extent, rights, offset, device, inode, _path = line.split(maxsplit=5)
        start, end = (int(text, 16) for text in extent.split("-"))
        if start <= address and address + nbytes <= end:
            return Place(f"{device}:{inode}", int(offset, 16) + address - start, "w" in rights)
    return None


def own_maps() -> str:
    """The mappings of this process."""
    return Path("/proc/self/maps").read_text()


def usage() -> Usage:
    """What this process takes now. Shared memory counts as far as this process has touched it."""
    gc.collect()
    fields: dict[str, int] = {}
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        fields[name] = int(rest.split()[0]) * 1024
    # A shared page that only this process has mapped is private too; here the daemon has all of them mapped.
    return Usage(sum(fields.get(name, 0) for name in _PRIVATE), fields.get("Pss_Shmem", 0))
