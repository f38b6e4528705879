"""Contracts that were changed after their object was written: a small file for each such object.

It has the object's record as it is since the change, and is in force over the one that lies with the object, wherever
that is moved to. Chosen before a change of the trailer in place, which is not complete or absent, and before a log,
which would have to be compacted. One block:

    head      magic, version, length of the body
    body      msgpack: the record
    zeros     to a whole block, less the checksum
    checksum  XXH3-64 of all before it

All of them are written and removed by the tier's one thread for removals, so in the order of the calls. The object goes
first, its contract second: a crash in between leaves a contract of nothing, which the next scan removes.
"""

import contextlib
import os
import struct
from collections.abc import Iterable
from pathlib import Path

import msgspec
import xxhash

from mooncake_node.tiers.errors import TierError, TierIOError
from mooncake_node.tiers.place import TEMPORARY, Place
from mooncake_node.tiers.port import TierMeta, TierRecord
from mooncake_node.tiers.trailer import BLOCK

CONTRACT_NBYTES = BLOCK
VERSION = 1

_MAGIC = b"\x89MCNpact"
_HEAD = struct.Struct("<8sII")
_CHECKSUM = struct.Struct("<Q")
_BODY_NBYTES_MAX = CONTRACT_NBYTES - _HEAD.size - _CHECKSUM.size

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(TierRecord).decode


class ContractError(ValueError):
    """These bytes are no contract, or not as they were written."""


def write_contract(place: Place, record: TierRecord) -> None:
    """Put the contract of *record* in force. Raises TierIOError: the one before it still is."""
    points, path = place.points, place.contract_path(record)
    temporary = path.with_name(path.name + TEMPORARY)
    is_renamed, before = False, None
    try:
        before = _content(path)
        points.hit_blocking("TierBeforeAmend", path)
        _write(place, temporary, encode_contract(record))
        points.hit_blocking("TierBeforeAmendRename", path)
        temporary.rename(path)
        is_renamed = True
        place.sync_parent(path)
        points.hit_blocking("TierAfterAmendRename", path)
    except (OSError, TierError) as error:
        try:
            if is_renamed:
                _put_back(place, path, before)
        except OSError as second:
            # A restart may find the new one: whole, and asked for, but nobody knows of it here.
            raise _cannot("take back a contract after a failed change", path, second) from error
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
        if isinstance(error, OSError):
            raise _cannot("write a contract", path, error) from error
        raise


def unlink_contracts(place: Place, metas: Iterable[TierMeta]) -> set[tuple[str, int]]:
    """Remove contracts whose objects are gone; the identities of those that could not be."""
    left = set()
    for meta in metas:
        try:
            place.unlink(place.contract_path(meta))
        except OSError:
            left.add(meta.identity)
    return left


def encode_contract(record: TierRecord) -> bytes:
    """The content of the file."""
    body = _encode(record)
    assert len(body) <= _BODY_NBYTES_MAX
    block = bytearray(CONTRACT_NBYTES - _CHECKSUM.size)
    _HEAD.pack_into(block, 0, _MAGIC, VERSION, len(body))
    block[_HEAD.size : _HEAD.size + len(body)] = body
    return bytes(block) + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(block))


def read_contract(path: Path) -> TierRecord:
    """The record in a file. Raises ContractError, msgspec.MsgspecError or OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        block = os.pread(fd, CONTRACT_NBYTES + 1, 0)
    finally:
        os.close(fd)
    if len(block) != CONTRACT_NBYTES:
        raise ContractError("longer or shorter than it was written")
    magic, version, body_nbytes = _HEAD.unpack_from(block)
    if magic != _MAGIC:
        raise ContractError("not a contract of a tier")
    if version != VERSION:
        raise ContractError(f"written in format {version}, read here is {VERSION}")
    (checksum,) = _CHECKSUM.unpack_from(block, CONTRACT_NBYTES - _CHECKSUM.size)
    if xxhash.xxh3_64_intdigest(block[: -_CHECKSUM.size]) != checksum:
        raise ContractError("the checksum of the contract is wrong")
    assert body_nbytes <= _BODY_NBYTES_MAX
    return _decode(block[_HEAD.size : _HEAD.size + body_nbytes])


def _write(place: Place, path: Path, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        left = memoryview(content)
        while left.nbytes:
            left = left[os.write(fd, left) :]
        if place.durable:
            os.fdatasync(fd)
    finally:
        os.close(fd)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _put_back(place: Place, path: Path, before: bytes | None) -> None:
    if before is None:
        place.unlink(path)
        return
    temporary = path.with_name(path.name + TEMPORARY)
    _write(place, temporary, before)
    temporary.rename(path)
    place.sync_parent(path)


def _cannot(what: str, path: Path, error: OSError) -> TierIOError:
    # A full disk too: a change of contract is not a write that a removal elsewhere makes room for.
    return TierIOError(f"cannot {what}", path=path, errno=error.errno or 0)
