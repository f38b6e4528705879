"""The end of a file: what was said comes back, and anything else is noticed."""

import msgspec
import pytest

from mooncake_node.tiers import TierRecord
from mooncake_node.tiers.trailer import (
    ALIVE,
    BLOCK,
    DEAD,
    Body,
    TrailerError,
    encode_trailer,
    meta_nbytes,
    padded,
    read_trailer,
    trailer_nbytes_bound,
)


def record(key: str, **facts) -> TierRecord:
    return TierRecord(key=key, generation=(1 << 64) - 1, nbytes=1 << 40, xxh3=(1 << 64) - 1, **facts)


def parse(file: bytes):
    return read_trailer(len(file), lambda nbytes, offset: bytes(file[offset : offset + nbytes]))


def file_of(body: Body, data_nbytes: int = 10) -> bytearray:
    trailer, _ = encode_trailer(body, data_nbytes)
    return bytearray(padded(data_nbytes)) + trailer


SMALL = Body([record("a"), record("b", origin="n", softpin_until_unix_ms=5)], [0, 8], [3, 1 << 60])


@pytest.mark.parametrize("count", [0, 1, 2, 40, 8192])
@pytest.mark.parametrize("key_nbytes", [1, 1024])
def test_what_was_said_comes_back(count, key_nbytes):
    body = Body([record("k" * key_nbytes, scope="node", kind=255) for _ in range(count)], list(range(count)), [7])
    file = file_of(body)
    trailer = parse(file)
    assert trailer.body == body
    assert trailer.flags == bytes((ALIVE,)) * count
    assert trailer.data_nbytes == 10
    assert len(file) - BLOCK <= trailer_nbytes_bound(sum(map(meta_nbytes, body.records)), 1)


def test_every_single_flipped_bit_is_noticed():
    """But one in a flag, where it can only take life away."""
    file = file_of(SMALL)
    flags = range(parse(file).flags_offset, parse(file).flags_offset + 2)
    for bit in range(8 * BLOCK, 8 * len(file)):
        file[bit // 8] ^= 1 << bit % 8
        if bit // 8 in flags:
            trailer = parse(file)
            assert trailer.body == SMALL
            assert trailer.flags[bit // 8 - flags.start] not in (ALIVE, DEAD)
        else:
            with pytest.raises((TrailerError, msgspec.MsgspecError)):
                parse(file)
        file[bit // 8] ^= 1 << bit % 8
    assert parse(file).body == SMALL


def test_no_single_flipped_bit_makes_the_dead_live():
    assert all(DEAD ^ 1 << bit != ALIVE for bit in range(8))


def test_a_file_cut_or_prolonged_anywhere_is_noticed():
    file = file_of(Body([record("k" * 1024)] * 20, [0] * 20, []), 100_000)
    for nbytes in [*range(0, len(file), BLOCK // 2), *range(len(file) - 100, len(file))]:
        with pytest.raises(TrailerError):
            parse(file[:nbytes])
    for extra in (bytes(1), bytes(BLOCK), bytes(file[-BLOCK:])):
        with pytest.raises(TrailerError):
            parse(file + extra)


@pytest.mark.parametrize("content", [b"", b"x", bytes(BLOCK), b"\xff" * 3 * BLOCK])
def test_other_files_are_no_trailers(content):
    with pytest.raises(TrailerError):
        parse(bytearray(content))


def test_an_unknown_version_says_which():
    file = file_of(SMALL)
    at = len(file) - 48 + 8
    file[at] += 1
    with pytest.raises(TrailerError, match="format 2, read here is 1"):
        parse(file)


def test_a_file_that_shrinks_while_it_is_read_is_noticed():
    file = file_of(SMALL)
    with pytest.raises(TrailerError, match="shorter"):
        read_trailer(len(file), lambda nbytes, offset: b"")
