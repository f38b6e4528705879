"""Who still holds the memory of pools whose daemon is gone, and the wait for them at start."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from mooncake_node.pool.errors import PoolError, PoolStoppedError
from mooncake_node.pool.limits import (
    describe_shortage,
    find_limits,
    find_shortage,
    format_bytes,
)
from mooncake_node.pool.names import NAME_PREFIX, SHM_DIRECTORY

_POLL_S = 0.1
_NAMED_MAX = 20  # holders named in one message


class Holder(NamedTuple):
    """A process that maps pools without a name: a client, or a living daemon."""

    pid: int
    comm: str
    nbytes: int  # of all such pools together, a pool mapped twice counted once


def who_maps_deleted_pools(directory: Path = SHM_DIRECTORY, root: Path = Path("/")) -> list[Holder]:
    """Every process we may look at that maps a nameless pool of the mount at *directory*."""
    number = directory.stat().st_dev
    device = f"{os.major(number):02x}:{os.minor(number):02x}"
    holders = []
    for process in (root / "proc").iterdir():
        if not process.name.isdecimal():
            continue
        try:
            maps = (process / "maps").read_text(errors="replace")
            nbytes = _pool_bytes(maps, device)
            if nbytes:
                comm = (process / "comm").read_text(errors="replace").strip()
                holders.append(Holder(int(process.name), comm, nbytes))
        except (PermissionError, FileNotFoundError, ProcessLookupError):
            continue  # another user's, or it has just ended
    return sorted(holders)


def nameless_bytes(directory: Path) -> int:
    """How much of the mount at *directory* is taken by files without a name.

    Unlike a look at the processes this sees holders in other PID namespaces too.
    """
    mount = os.statvfs(directory)
    used = (mount.f_blocks - mount.f_bfree) * mount.f_frsize
    return max(0, used - sum(_named_sizes(directory)))


def wait_for_room(
    nbytes: int,
    *,
    start_wait_s: float,
    stop: threading.Event,
    on_wait: Callable[[list[Holder]], None] | None = None,
    directory: Path = SHM_DIRECTORY,
) -> None:
    """Return once a pool of *nbytes* fits; raise PoolError with numbers and holders if it does not.

    Waits, at most *start_wait_s*, only where room could come: where the memory of nameless files
    would be enough. Blocks: call it in a thread. *on_wait* is called in that thread at each look
    that found too little; *stop* ends the wait with PoolStoppedError.
    """
    deadline = time.monotonic() + start_wait_s
    while (short := find_shortage(nbytes, find_limits(directory))) is not None:
        held = nameless_bytes(directory)
        message = describe_shortage(nbytes, short)
        if short.available + held < nbytes:
            raise PoolError(message)
        holders = who_maps_deleted_pools(directory)
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            raise PoolError(
                f"{message} Waited {start_wait_s:g} s for pools without a daemon to be let go:"
                f" {format_bytes(held)}, {_describe(holders)}."
            )
        if on_wait is not None:
            on_wait(holders)
        if stop.wait(min(_POLL_S, remaining_s)):
            raise PoolStoppedError("stopped while waiting for room for the pool")


def _describe(holders: list[Holder]) -> str:
    if not holders:
        return "held by processes that cannot be seen from here (another PID namespace or user)"
    named = [f"{h.comm} (pid {h.pid}, {format_bytes(h.nbytes)})" for h in holders[:_NAMED_MAX]]
    more = len(holders) - len(named)
    return "held by " + ", ".join(named) + (f" and {more} more" if more else "")


def _pool_bytes(maps: str, device: str) -> int:
    pools: dict[str, int] = {}
    for line in maps.splitlines():
        if NAME_PREFIX not in line or not line.endswith(" (deleted)"):
            continue
        extent, _, _, line_device, inode, path = line.split(maxsplit=5)
        # In another mount namespace the directory may be shown differently; the name is not.
        name = path.rpartition("/")[2]
        if line_device != device or not name.startswith(NAME_PREFIX):
            continue
        start, _, end = extent.partition("-")
        pools[inode] = max(pools.get(inode, 0), int(end, 16) - int(start, 16))
    return sum(pools.values())


def _named_sizes(directory: Path) -> Iterator[int]:
    seen = set()
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                entry = os.lstat(Path(parent, name))
            except OSError:
                continue
            if entry.st_ino not in seen:
                seen.add(entry.st_ino)
                yield entry.st_blocks * 512
