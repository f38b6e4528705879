"""How a file of the tier ends: what lies in it, said once, in whole blocks, under a checksum.

A file is data, padded to a block, then the trailer:

    body      msgpack: the records, where each begins, which packs this one replaces
    flags     one byte an object: 0 it lives, 255 it was removed
    zeros     to a whole block, less the footer
    footer    magic, version, lengths, XXH3-64 of the trailer with its flags taken as 0

A flag is changed in place by a write of one byte, which is complete or absent; so it stands outside the checksum. No
flipped bit makes a removed object live again, and one in a living object's flag is seen: it is neither 0 nor 255.
"""

import struct
from collections.abc import Callable

import msgspec
import xxhash

from mooncake_node.tiers.port import TierMeta, TierRecord

BLOCK = 4096
VERSION = 1
TRAILER_NBYTES_MAX = 16 << 20
RECORD_NBYTES_MAX = 2048  # msgpack of a record with a key of 1,024 bytes; more would be a bug
ALIVE, DEAD = 0, 255

_MAGIC = b"\x89MCNtier"
# magic, version, objects, bytes of the body, bytes of the trailer, bytes of data without padding; then the checksum
_FOOTER = struct.Struct("<8sIIQQQ")
_CHECKSUM = struct.Struct("<Q")
FOOTER_NBYTES = _FOOTER.size + _CHECKSUM.size


class TrailerError(ValueError):
    """These bytes are no trailer, or not as they were written."""


class Body(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What lies in a file."""

    records: list[TierRecord]
    offsets: list[int]  # of each object's first byte, from the start of the file
    replaces: list[int]  # numbers of packs whose living objects were moved here


class Trailer(msgspec.Struct, frozen=True, gc=False):
    """What the end of a file says."""

    body: Body
    flags: bytes
    flags_offset: int  # of the first flag, from the start of the file
    data_nbytes: int  # without padding


_encode_body = msgspec.msgpack.Encoder().encode
_decode_body = msgspec.msgpack.Decoder(Body).decode


def padded(nbytes: int) -> int:
    """*nbytes* rounded up to whole blocks."""
    return -(-nbytes // BLOCK) * BLOCK


def trailer_nbytes_bound(metas_nbytes: int, replaced: int) -> int:
    """A length that no trailer passes whose objects have `meta_nbytes` of this sum and that replaces so many packs."""
    return padded(metas_nbytes + 9 * replaced + 64 + FOOTER_NBYTES)


def meta_nbytes(meta: TierMeta) -> int:
    """What an object takes of a trailer, at most."""
    return len(meta.key.encode()) + len(meta.scope) + len(meta.origin) + 80


def encode_trailer(body: Body, data_nbytes: int) -> tuple[bytearray, int]:
    """The trailer, in whole blocks, and the offset of the flags in it."""
    encoded = _encode_body(body)
    count = len(body.records)
    total = padded(len(encoded) + count + FOOTER_NBYTES)
    assert total <= TRAILER_NBYTES_MAX
    trailer = bytearray(total)
    trailer[: len(encoded)] = encoded
    at = total - FOOTER_NBYTES
    _FOOTER.pack_into(trailer, at, _MAGIC, VERSION, count, len(encoded), total, data_nbytes)
    _CHECKSUM.pack_into(trailer, total - _CHECKSUM.size, xxhash.xxh3_64_intdigest(trailer[: -_CHECKSUM.size]))
    return trailer, len(encoded)


def read_trailer(file_nbytes: int, read_at: Callable[[int, int], bytes]) -> Trailer:
    """The trailer of a file of that size, by means of `read_at(nbytes, offset)`; TrailerError if it is none.

    Mostly one read of the last block.
    """
    if file_nbytes < BLOCK or file_nbytes % BLOCK:
        raise TrailerError(f"{file_nbytes} bytes are no whole blocks")
    last = read_at(BLOCK, file_nbytes - BLOCK)
    if len(last) != BLOCK:
        raise TrailerError("shorter than it was a moment ago")
    magic, version, count, body_nbytes, total, data_nbytes = _FOOTER.unpack_from(last, BLOCK - FOOTER_NBYTES)
    if magic != _MAGIC:
        raise TrailerError("not a file of a tier, or cut short")
    if version != VERSION:
        raise TrailerError(f"written in format {version}, read here is {VERSION}")
    # Before the checksum has been looked at any of these can be anything.
    if total > min(TRAILER_NBYTES_MAX, file_nbytes) or body_nbytes + count + FOOTER_NBYTES > total or total % BLOCK:
        raise TrailerError("the footer makes no sense")
    if padded(data_nbytes) + total != file_nbytes:
        raise TrailerError("longer or shorter than it was written")
    trailer = bytearray(last if total == BLOCK else read_at(total, file_nbytes - total))
    return _decode(trailer, count, body_nbytes, data_nbytes, file_nbytes)


def _decode(trailer: bytearray, count: int, body_nbytes: int, data_nbytes: int, file_nbytes: int) -> Trailer:
    flags = bytes(trailer[body_nbytes : body_nbytes + count])
    trailer[body_nbytes : body_nbytes + count] = bytes(count)
    (checksum,) = _CHECKSUM.unpack_from(trailer, len(trailer) - _CHECKSUM.size)
    if xxhash.xxh3_64_intdigest(trailer[: -_CHECKSUM.size]) != checksum:
        raise TrailerError("the checksum of the trailer is wrong")
    body = _decode_body(trailer[:body_nbytes])
    assert len(body.records) == count
    assert len(body.offsets) == count
    return Trailer(body, flags, file_nbytes - len(trailer) + body_nbytes, data_nbytes)
