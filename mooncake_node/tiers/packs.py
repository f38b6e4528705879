"""Packs: files that small objects share, written and read in one of the tier's threads.

A pack is written once, through memory of its own, and then changes only in its flags: an object that is removed has
its one byte there turned (chosen before a log of removals, which would have to be compacted itself, and before a new
copy at every removal). A pack with little life left, or one that was small from the start, is written anew together
with what is to be written next; the new one names those that it replaces, so that a crash between its rename and their
end brings nothing back.
"""

import os
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path

import msgspec
import xxhash

from mooncake_node.tiers.direct_io import aligned_buffer, read_parts
from mooncake_node.tiers.errors import TierCorruptError, TierError, TierIOError, TierMissingError
from mooncake_node.tiers.files import checksum, opened, record_of, store
from mooncake_node.tiers.place import Place
from mooncake_node.tiers.port import TierMeta, TierRecord
from mooncake_node.tiers.publication import Publication
from mooncake_node.tiers.trailer import Body, encode_trailer, meta_nbytes, padded, trailer_nbytes_bound

PACK_FILE_NBYTES_MAX = 32 << 20  # more than any that is written
_ALIGN_NBYTES = 8


class Member(msgspec.Struct, frozen=True, gc=False):
    """An object in a pack, as a thread needs to know it."""

    record: TierRecord
    path: Path
    offset: int


class PackWritten(msgspec.Struct, frozen=True):
    """A pack that has its name."""

    records: list[TierRecord]  # by number: first the new ones, then those that were moved
    offsets: list[int]
    data_nbytes: int
    file_nbytes: int
    corrupt: set[int]  # numbers of moved ones that were found damaged; they are not there


class PackUnreadableError(TierError):
    """Objects could not be moved out of a pack; *path* says which."""


def member_cost(meta: TierMeta) -> int:
    """What an object takes of a pack, at most, without what the pack rounds up."""
    return meta.nbytes + _ALIGN_NBYTES + meta_nbytes(meta)


def pack_nbytes_bound(metas: Sequence[TierMeta], replaced: int) -> int:
    """The size of a pack of these objects, at most."""
    data = sum(meta.nbytes + _ALIGN_NBYTES for meta in metas)
    return padded(data) + trailer_nbytes_bound(sum(map(meta_nbytes, metas)), replaced)


def write_pack(
    place: Place,
    publication: Publication,
    new: Sequence[tuple[TierMeta, memoryview]],
    moved: Sequence[Member],
    replaces: Sequence[int],
) -> PackWritten:
    """Write a pack of *new* objects and of *moved* ones, which says that it *replaces* those packs.

    Raises TierError: nothing of it is there. PackUnreadableError, if that is because of the moved ones.
    """
    metas: list[TierMeta] = [*(meta for meta, _ in new), *(member.record for member in moved)]
    offsets, data_nbytes = _lay_out(metas)
    bound = padded(data_nbytes) + trailer_nbytes_bound(sum(map(meta_nbytes, metas)), len(replaces))
    buffer = aligned_buffer(bound)
    records, corrupt = [], set()
    for number, (meta, view) in enumerate(new):
        place_in_pack = buffer[offsets[number] : offsets[number] + meta.nbytes]
        place_in_pack[:] = view
        # Of the copy: what the checksum says is what will lie there.
        records.append(record_of(meta, checksum(place_in_pack, publication.check)))
    for path, numbered in groupby(enumerate(moved, len(new)), lambda item: item[1].path):
        old = _read_whole(path, publication.check)
        for number, member in numbered:
            at = offsets[number]
            if not _move(member, old, buffer[at : at + member.record.nbytes]):
                corrupt.add(number)
            records.append(member.record)
    trailer, flags_at = encode_trailer(Body(records, offsets, list(replaces)), data_nbytes)
    end = padded(data_nbytes) + len(trailer)
    buffer[padded(data_nbytes) : end] = trailer
    publication.flags_offset = padded(data_nbytes) + flags_at
    publication.revoke(corrupt)
    file_nbytes = store(place, publication, [buffer[:end]])
    return PackWritten(records, offsets, data_nbytes, file_nbytes, corrupt)


def read_member(place: Place, member: Member, into: memoryview, check: Callable[[], None]) -> None:
    """Fill *into* with one object of a pack, and verify it. Raises TierError."""
    place.points.hit_blocking("TierBeforeRead", member.path)
    with opened(member.path) as fd:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no bytes of neighbours
        # Through the page cache: a part of a block is read, and straight to its place.
        read_parts(fd, member.offset, [into], check, direct=False)
    if checksum(into, check) != member.record.xxh3:
        raise TierCorruptError("the bytes are not those that were written", path=member.path)
    place.points.hit_blocking("TierAfterRead", member.path)


def read_member_part(place: Place, member: Member, offset: int, into: memoryview, check: Callable[[], None]) -> None:
    """Fill *into* with one object's bytes from *offset* on, unverified. Raises TierError."""
    place.points.hit_blocking("TierBeforeRead", member.path)
    with opened(member.path) as fd:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no bytes of neighbours
        read_parts(fd, member.offset + offset, [into], check, direct=False)


def unlink_packs(place: Place, numbers: Sequence[int]) -> set[int]:
    """Remove packs whose objects are all dead or elsewhere; the numbers of those that are gone."""
    gone = set()
    for number in numbers:
        try:
            place.unlink(place.pack_path(number))
        except OSError:
            continue  # tried again with the next pack, which names it until then
        gone.add(number)
    return gone


def _lay_out(metas: Sequence[TierMeta]) -> tuple[list[int], int]:
    offsets, end = [], 0
    for meta in metas:
        offsets.append(end)
        end += -(-meta.nbytes // _ALIGN_NBYTES) * _ALIGN_NBYTES
    return offsets, end


def _read_whole(path: Path, check: Callable[[], None]) -> memoryview:
    try:
        with opened(path) as fd:
            whole = aligned_buffer(min(os.fstat(fd).st_size, PACK_FILE_NBYTES_MAX))
            read_parts(fd, 0, [whole], check, direct=False)
    except (TierMissingError, TierCorruptError, TierIOError) as error:
        raise PackUnreadableError("cannot move objects", path=path, errno=error.errno) from error
    return whole


def _move(member: Member, old: memoryview, into: memoryview) -> bool:
    found = old[member.offset : member.offset + member.record.nbytes]
    if xxhash.xxh3_64_intdigest(found) != member.record.xxh3:
        return False
    into[:] = found
    return True
