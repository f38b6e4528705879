"""Bytes between files and the pool, straight: a 100 GB file is never in this process's memory."""

import io
import mmap
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from mooncake_node.cli.outcome import CommandError

STANDARD_STREAM = "-"

_PIECE_BYTES = 1 << 20
_STEP_BYTES = 64 << 20  # the kernel moves less than 2 GiB at once, whatever it is asked for


@contextmanager
def source(file: str) -> Iterator[BinaryIO]:
    """*file*, or standard input for ``-``, to read from."""
    if file == STANDARD_STREAM:
        yield sys.stdin.buffer
        return
    with Path(file).open("rb", buffering=0) as opened:
        yield opened


def read_up_to(stream: BinaryIO, nbytes_max: int) -> bytes:
    """All of *stream*; CommandError as soon as there is more than *nbytes_max* of it."""
    pieces: list[bytes] = []
    room = nbytes_max
    while piece := stream.read(_PIECE_BYTES):
        room -= len(piece)
        if room < 0:
            raise CommandError(
                f"more than {nbytes_max} bytes, which is all that fits the pool, and the end is not in sight"
            )
        pieces.append(piece)
    return b"".join(pieces)


def size_ahead(stream: BinaryIO) -> int | None:
    """Bytes from here to the end of a regular file; None where only reading will tell."""
    try:
        status = os.fstat(stream.fileno())
    except io.UnsupportedOperation:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    # Files of /proc say that they are empty and are not.
    return max(0, status.st_size - stream.tell()) or None


def fill(view: memoryview, stream: BinaryIO) -> None:
    """Read into all of *view*, which keeps no export afterwards."""
    filled = 0
    while filled < len(view):
        with view[filled : filled + _STEP_BYTES] as step:
            count = stream.readinto(step)  # type: ignore[attr-defined]
        if not count:
            raise CommandError(f"the file ended {len(view) - filled} bytes early; it is being changed")
        filled += count


def mapped(stream: BinaryIO, nbytes: int) -> memoryview:
    """The next *nbytes* of a regular file as a buffer that is read from disk as it is used.

    The mapping ends with the last view of it: closing it here would fail, and hide why, after a
    failed put, whose traceback still refers to the buffer.
    """
    start = stream.tell()
    if os.fstat(stream.fileno()).st_size < start + nbytes:
        raise CommandError("the file is being changed")
    mapping = mmap.mmap(stream.fileno(), start + nbytes, access=mmap.ACCESS_READ)
    return memoryview(mapping)[start:]


def store(view: memoryview, file: str) -> None:
    """Write *view* to *file*, or to standard output for ``-``.

    A file is complete or untouched: it is written beside its place and renamed. What is no regular
    file (a device, a named pipe) is written to as it is.
    """
    if file == STANDARD_STREAM:
        sys.stdout.flush()
        _write_all(view, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    target = Path(file).resolve()  # a link stays a link
    mode = target.stat().st_mode if target.exists() else None
    if mode is not None and not stat.S_ISREG(mode):
        with target.open("wb", buffering=0) as opened:
            _write_all(view, opened)
        return
    beside = target.with_name(f".{target.name[:200]}.{os.getpid()}.part")
    try:
        with beside.open("xb", buffering=0) as opened:
            if mode is not None:
                os.fchmod(opened.fileno(), stat.S_IMODE(mode))
            _write_all(view, opened)
        beside.replace(target)
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}") from error
    finally:
        beside.unlink(missing_ok=True)


def _write_all(view: memoryview, stream: BinaryIO) -> None:
    written = 0
    while written < len(view):
        with view[written : written + _STEP_BYTES] as step:
            written += stream.write(step)
