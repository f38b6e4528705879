"""Reads and writes of whole files that go past the page cache where the file system lets them.

O_DIRECT wants offset, length and memory on blocks of 4 KiB. Where it is refused, or the memory is not so aligned, the
same calls go through the page cache, which is then told to forget what it has seen.
"""

import mmap
import os
from collections.abc import Callable, Sequence
from errno import EDQUOT, EINVAL, ENOSPC, EOPNOTSUPP
from pathlib import Path

import numpy as np

from mooncake_node.tiers.trailer import BLOCK

# The kernel takes no more than 2 GiB in one call. A write or read that is given up ends after such a step.
STEP_NBYTES = 32 << 20

_FULL = (ENOSPC, EDQUOT)

Check = Callable[[], None]  # raises to give up between two steps


class ShortReadError(Exception):
    """The file ends before the bytes that were asked for."""


def aligned_buffer(nbytes: int) -> memoryview:
    """Zeroed memory of this process on a block's boundary, *nbytes* rounded up to whole blocks, at least one."""
    return memoryview(mmap.mmap(-1, max(BLOCK, -(-nbytes // BLOCK) * BLOCK)))


def is_aligned(view: memoryview) -> bool:
    """It begins on a block's boundary."""
    if view.nbytes == 0:
        return True
    address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return address % BLOCK == 0


def takes_direct(directory: Path) -> bool:
    """Whether files of *directory* can be read and written past the page cache, found out by doing it.

    A full disk is no answer: it is read all the same. Raises OSError if no file may be written there.
    """
    path = directory / "probe.tmp"
    buffer = aligned_buffer(BLOCK)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in (EINVAL, EOPNOTSUPP, *_FULL):
            return False
        raise
    try:
        return os.pwrite(fd, buffer, 0) == BLOCK and os.preadv(fd, [buffer], 0) == BLOCK
    except OSError as error:
        if error.errno in (EINVAL, EOPNOTSUPP):
            return False
        if error.errno in _FULL:
            return True  # alignment is looked at first
        raise
    finally:
        os.close(fd)
        path.unlink()


def write_parts(fd: int, parts: Sequence[memoryview], check: Check, *, direct: bool) -> int:
    """Write *parts* one behind the other from the start of the file, all of them; return how many bytes that is."""
    return _move(os.pwritev, fd, 0, parts, check, direct=direct)


def read_parts(fd: int, offset: int, parts: Sequence[memoryview], check: Check, *, direct: bool) -> None:
    """Fill *parts* one behind the other from *offset* on; ShortReadError if the file ends before."""
    _move(os.preadv, fd, offset, parts, check, direct=direct)


def _move(
    call: Callable[[int, list[memoryview], int], int],
    fd: int,
    offset: int,
    parts: Sequence[memoryview],
    check: Check,
    *,
    direct: bool,
) -> int:
    start = offset
    left = [part for part in parts if part.nbytes]
    while left:
        check()
        moved = call(fd, _first_step(left), offset)
        if moved == 0:
            raise ShortReadError(f"ends at byte {offset}")
        offset += moved
        left = _behind(left, moved)
        if not direct:
            # Of pages just written this only starts the way to the disk; what earlier steps wrote may be there now.
            os.posix_fadvise(fd, start, offset - start, os.POSIX_FADV_DONTNEED)
    return offset - start


def _first_step(parts: list[memoryview]) -> list[memoryview]:
    step, room = [], STEP_NBYTES
    for part in parts:
        step.append(part[:room])
        room -= step[-1].nbytes
        if room == 0:
            break
    return step


def _behind(parts: list[memoryview], nbytes: int) -> list[memoryview]:
    for number, part in enumerate(parts):
        if nbytes < part.nbytes:
            return [part[nbytes:], *parts[number + 1 :]]
        nbytes -= part.nbytes
    return []
