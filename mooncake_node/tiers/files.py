"""Files of the tier, written and read in one of its threads: complete under their name, or not there."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import xxhash

from mooncake_node.tiers.direct_io import ShortReadError, aligned_buffer, is_aligned, read_parts, write_parts
from mooncake_node.tiers.errors import TierCorruptError, TierError, TierIOError, TierMissingError, from_os
from mooncake_node.tiers.place import Place
from mooncake_node.tiers.port import TierMeta, TierRecord
from mooncake_node.tiers.publication import Publication
from mooncake_node.tiers.trailer import BLOCK, Body, encode_trailer, meta_nbytes, padded, trailer_nbytes_bound

_HASH_STEP_NBYTES = 32 << 20
_BOUNCE_NBYTES_MAX = 1 << 20


def record_of(meta: TierMeta, xxh3: int) -> TierRecord:
    """The record of an object whose checksum is now known."""
    return TierRecord(
        key=meta.key,
        generation=meta.generation,
        nbytes=meta.nbytes,
        kind=meta.kind,
        softpin=meta.softpin,
        softpin_until_unix_ms=meta.softpin_until_unix_ms,
        hardpin=meta.hardpin,
        scope=meta.scope,
        origin=meta.origin,
        xxh3=xxh3,
    )


def file_nbytes_bound(meta: TierMeta) -> int:
    """What an object takes that has a file of its own, at most."""
    return padded(meta.nbytes) + trailer_nbytes_bound(meta_nbytes(meta), 0)


def write_object(place: Place, publication: Publication, meta: TierMeta, view: memoryview) -> tuple[TierRecord, int]:
    """Write an object into a file of its own, straight from *view*; its record, and the file's size.

    Raises TierError; then nothing of it is there.
    """
    record = record_of(meta, checksum(view, publication.check))
    trailer, flags_at = encode_trailer(Body([record], [0], []), meta.nbytes)
    whole = meta.nbytes // BLOCK * BLOCK
    rest = padded(meta.nbytes) - whole  # a last block that the object does not fill
    tail = aligned_buffer(rest + len(trailer))[: rest + len(trailer)]
    tail[: meta.nbytes - whole] = view[whole:]
    tail[rest:] = trailer
    publication.flags_offset = whole + rest + flags_at
    return record, store(place, publication, [view[:whole], tail])


def store(place: Place, publication: Publication, parts: Sequence[memoryview]) -> int:
    """Write *parts* as one file and give it its name; return its size. Raises TierError: nothing of it is there."""
    points, path, temporary = place.points, publication.path, publication.temporary
    try:
        points.hit_blocking("TierBeforeWrite", path)
        nbytes = _write_temporary(place, publication, parts)
        points.hit_blocking("TierAfterWrite", path)
        points.hit_blocking("TierBeforeRename", path)
        publication.publish()
        points.hit_blocking("TierAfterRename", path)
    except (OSError, TierError) as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        try:
            publication.revoke_all()
        except OSError as second:
            # It may be found by a restart: whole, so nothing wrong is ever served, but nobody knows of it here.
            raise from_os("cannot take back a file after a failed write", path, second) from error
        if isinstance(error, OSError):
            raise from_os("cannot write", path, error) from error
        raise
    return nbytes


def read_object(place: Place, record: TierRecord, into: memoryview, path: Path, check: Callable[[], None]) -> None:
    """Fill *into* from the object's own file, and verify it. Raises TierError."""
    whole = record.nbytes // BLOCK * BLOCK
    direct = place.direct and is_aligned(into)
    rest = record.nbytes - whole
    # A block is read, of which the object has only a part: the other part is not ours to fill.
    tail = aligned_buffer(BLOCK) if rest else memoryview(b"")
    place.points.hit_blocking("TierBeforeRead", path)
    with opened(path, direct=direct) as fd:
        _refuse_cut(fd, record, path)
        read_parts(fd, 0, [into[:whole], tail], check, direct=direct)
    into[whole:] = tail[:rest]
    if checksum(into, check) != record.xxh3:
        raise TierCorruptError("the bytes are not those that were written", path=path)
    place.points.hit_blocking("TierAfterRead", path)


def read_object_part(
    place: Place, record: TierRecord, offset: int, into: memoryview, path: Path, check: Callable[[], None]
) -> None:
    """Fill *into* with the bytes from *offset* on of the object's own file, unverified. Raises TierError."""
    place.points.hit_blocking("TierBeforeRead", path)
    with opened(path, direct=place.direct) as fd:
        _refuse_cut(fd, record, path)
        if not place.direct:
            read_parts(fd, offset, [into], check, direct=False)
            return
        start = 0
        if offset % BLOCK == 0 and is_aligned(into):
            start = into.nbytes // BLOCK * BLOCK
            read_parts(fd, offset, [into[:start]], check, direct=True)
        _read_bounced(fd, offset + start, into[start:], check)


@contextlib.contextmanager
def opened(path: Path, *, direct: bool = False) -> Iterator[int]:
    """A descriptor for reading *path*; what goes wrong while it is open becomes a TierError."""
    fd = -1
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECT if direct else 0))
        yield fd
    except FileNotFoundError as error:
        raise TierMissingError("the file has gone", path=path, errno=error.errno or 0) from error
    except ShortReadError as error:
        raise TierCorruptError(f"cut short: {error}", path=path) from error
    except OSError as error:
        raise TierIOError("cannot read", path=path, errno=error.errno or 0) from error
    finally:
        if fd >= 0:
            os.close(fd)


def checksum(view: memoryview, check: Callable[[], None]) -> int:
    """XXH3-64 of *view*, other threads running meanwhile."""
    if view.nbytes <= _HASH_STEP_NBYTES:
        return xxhash.xxh3_64_intdigest(view)
    state = xxhash.xxh3_64()
    for start in range(0, view.nbytes, _HASH_STEP_NBYTES):
        check()
        state.update(view[start : start + _HASH_STEP_NBYTES])
    return state.intdigest()


def _refuse_cut(fd: int, record: TierRecord, path: Path) -> None:
    # A file cut behind the data would do for now, but is none of ours any more.
    if os.fstat(fd).st_size <= padded(record.nbytes):
        raise TierCorruptError("cut short", path=path)


def _read_bounced(fd: int, offset: int, into: memoryview, check: Callable[[], None]) -> None:
    """Fill *into* past the page cache, through whole blocks of memory of our own: it may begin and end anywhere."""
    first, end = offset // BLOCK * BLOCK, offset + into.nbytes
    if offset == end:
        return
    bounce = aligned_buffer(min(padded(end - first), _BOUNCE_NBYTES_MAX))
    for start in range(first, end, bounce.nbytes):
        stop = min(start + bounce.nbytes, end)
        read_parts(fd, start, [bounce[: padded(stop - start)]], check, direct=True)
        wanted = max(start, offset)
        into[wanted - offset : stop - offset] = bounce[wanted - start : stop - start]


def _write_temporary(place: Place, publication: Publication, parts: Sequence[memoryview]) -> int:
    direct = place.direct and all(is_aligned(part) for part in parts)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | (os.O_DIRECT if direct else 0)
    fd = os.open(publication.temporary, flags, 0o600)
    try:
        nbytes = write_parts(fd, parts, publication.check, direct=direct)
        if place.durable:
            os.fdatasync(fd)
    finally:
        os.close(fd)
    return nbytes
