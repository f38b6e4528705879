"""Will the pool fit? Asked before it is made, of everything that could refuse or kill it later."""

import os
from dataclasses import dataclass
from pathlib import Path

from mooncake_node.pool.errors import PoolError

_UNLIMITED = 1 << 60  # cgroup v1 writes a number near 2**63 for "no limit"
# What the daemon and its page tables take besides the pool (4 KiB pages: 8 bytes each).
_OVERHEAD_FIXED, _OVERHEAD_SHARE = 32 << 20, 512


@dataclass(frozen=True, slots=True)
class Limit:
    """One bound on the size of the pool."""

    what: str  # as a reader knows it
    path: str  # where the number stands
    available: int  # bytes a pool may still take
    total: int  # bytes if nothing else were there
    hint: str  # what to change


def find_limits(directory: Path, root: Path = Path("/")) -> list[Limit]:
    """Every bound that holds for this process now; *root* is where proc and sys are found."""
    return [
        *_directory_limit(directory),
        *_cgroup_limits(root),
        *_memory_limit(root),
    ]


def find_shortage(nbytes: int, limits: list[Limit]) -> Limit | None:
    """The tightest limit that a pool of *nbytes* would break, if any."""
    short = [limit for limit in limits if limit.available < nbytes]
    return min(short, key=lambda limit: limit.available, default=None)


def check_room(nbytes: int, directory: Path, root: Path = Path("/")) -> None:
    """Raise PoolError with the numbers unless a pool of *nbytes* fits now."""
    short = find_shortage(nbytes, find_limits(directory, root))
    if short is not None:
        raise PoolError(describe_shortage(nbytes, short))


def describe_shortage(nbytes: int, short: Limit) -> str:
    """Say what was asked, what there is, where, and how to raise it."""
    return (
        f"no room for the pool: asked {format_bytes(nbytes)}, available"
        f" {format_bytes(short.available)} of {format_bytes(short.total)} ({short.what},"
        f" {short.path}). {short.hint}"
    )


def raise_hint(directory: Path) -> str:
    """How a full shared-memory mount is made bigger."""
    return (
        f"Ask for a smaller pool, free some of {directory}, or raise it: on a host"
        f" `mount -o remount,size=... {directory}`; in a container --shm-size=...;"
        f" in Kubernetes an emptyDir with medium: Memory and a sizeLimit, mounted at {directory}."
    )


def format_bytes(nbytes: int) -> str:
    """Exact bytes, and a size a human reads."""
    for unit, shift in (("TiB", 40), ("GiB", 30), ("MiB", 20)):
        if nbytes >= 1 << shift:
            return f"{nbytes} bytes ({nbytes / (1 << shift):.4g} {unit})"
    return f"{nbytes} bytes"


def _directory_limit(directory: Path) -> list[Limit]:
    mount = os.statvfs(directory)
    if mount.f_blocks == 0:  # a tmpfs mounted with size=0 has no limit of its own
        return []
    free, total = mount.f_bavail * mount.f_frsize, mount.f_blocks * mount.f_frsize
    return [Limit("shared memory", str(directory), free, total, raise_hint(directory))]


def _memory_limit(root: Path) -> list[Limit]:
    path = root / "proc/meminfo"
    fields = dict(line.split(":", 1) for line in path.read_text().splitlines())
    available, total = (int(fields[k].split()[0]) * 1024 for k in ("MemAvailable", "MemTotal"))
    hint = "Ask for a smaller pool or stop something else: this is the machine's memory."
    return [Limit("MemAvailable", str(path), _less_overhead(available), total, hint)]


def _cgroup_limits(root: Path) -> list[Limit]:
    """The limits of this process's memory cgroup and of all its ancestors, both versions."""
    limits = []
    mounts = _cgroup_mounts(root)
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        version = 2 if not controllers else 1 if "memory" in controllers.split(",") else 0
        if version not in mounts:
            continue
        top, mount_root = mounts[version]
        for group in _ancestors(top, path, mount_root):
            limits += _limits_v2(group) if version == 2 else _limits_v1(group)
    return limits


def _cgroup_mounts(root: Path) -> dict[int, tuple[Path, str]]:
    """By cgroup version: where the memory hierarchy is mounted, and which group is its top."""
    mounts = {}
    for line in (root / "proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        fields, (kind, _, options) = left.split(), right.split(maxsplit=2)
        place = (root / fields[4].lstrip("/"), fields[3])
        if kind == "cgroup2":
            mounts[2] = place
        elif kind == "cgroup" and "memory" in options.split(","):
            mounts[1] = place
    return mounts


def _ancestors(top: Path, path: str, mount_root: str) -> list[Path]:
    """The directories from the process's group up to the mount.

    A container without a cgroup namespace is told the host's path, while its mount begins at its
    own group; and one whose group is outside the mount is told a path with "..".
    """
    if mount_root != "/" and (path + "/").startswith(mount_root + "/"):
        path = path[len(mount_root) :]
    parts = [part for part in path.split("/") if part]
    group = top.joinpath(*parts)
    if ".." in parts or not group.is_dir():
        return [top]
    return [top.joinpath(*parts[:n]) for n in range(len(parts), -1, -1)]


def _limits_v2(group: Path) -> list[Limit]:
    limits = []
    # Over memory.high nothing is killed, but every further page costs its taker seconds.
    for name in ("memory.max", "memory.high"):
        text = _read(group / name)
        if text is not None and text != "max":
            used = int(_read(group / "memory.current") or 0)
            cached = _cached(group, ("inactive_file", "active_file"))
            limits.append(_cgroup_limit(group / name, int(text), used - cached))
    return limits


def _limits_v1(group: Path) -> list[Limit]:
    text = _read(group / "memory.limit_in_bytes")
    if text is None or int(text) >= _UNLIMITED:
        return []
    used = int(_read(group / "memory.usage_in_bytes") or 0)
    cached = _cached(group, ("total_inactive_file", "total_active_file"))
    return [_cgroup_limit(group / "memory.limit_in_bytes", int(text), used - cached)]


def _cgroup_limit(path: Path, limit: int, used: int) -> Limit:
    hint = "Ask for a smaller pool or raise this limit (container: --memory, resources.limits)."
    return Limit("cgroup memory", str(path), _less_overhead(limit - max(used, 0)), limit, hint)


def _cached(group: Path, keys: tuple[str, ...]) -> int:
    """File pages that count as used but are given up before anything is killed."""
    text = _read(group / "memory.stat") or ""
    fields = (line.split() for line in text.splitlines())
    return sum(int(field[1]) for field in fields if field[0] in keys)


def _less_overhead(nbytes: int) -> int:
    return max(0, nbytes - _OVERHEAD_FIXED - nbytes // _OVERHEAD_SHARE)


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:  # no such limit in this group, or not ours to know
        return None
