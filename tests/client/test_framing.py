"""Frames without IO: any cutting of a byte stream gives the same messages; what is no frame is told."""

import random
import struct

import msgspec
import pytest

from mooncake_client import wire
from mooncake_client.framing import FramingError, Unpacker, pack

MESSAGES: list[wire.Request] = [
    wire.Exists(1, [], ["a", "é" * 100]),
    wire.Released(0, list(range(300))),
    wire.Stats(2, [1]),
    wire.PutStart(3, [], [wire.PutSpec("k", 1 << 40, 1, True, softpin=True, softpin_ttl_ms=5)] * 50, 10),
    wire.ListKeys(1 << 60, [], "", 0),
]


def unpacker() -> Unpacker[wire.AnyRequest]:
    return Unpacker(wire.AnyRequest)


def test_frame_is_a_length_and_a_message():
    frame = pack(MESSAGES[0])
    assert struct.unpack("<I", frame[:4])[0] == len(frame) - 4
    assert msgspec.msgpack.decode(frame[4:]) == [14, 1, [], ["a", "é" * 100]]


@pytest.mark.parametrize("seed", range(30))
def test_any_cutting_of_the_stream_gives_the_same_messages(seed):
    draw = random.Random(seed)
    stream = b"".join(map(pack, MESSAGES)) * 3
    reader, got = unpacker(), []
    while stream:
        size = draw.choice([1, 3, 4, 5, 50, 5000])
        got += reader.feed(stream[:size])
        stream = stream[size:]
    assert got == MESSAGES * 3
    assert reader.chunks in ([], [b""])


def test_messages_read_and_not_accepted_are_read_again():
    reader = unpacker()
    reader.chunks.append(pack(MESSAGES[0]) + pack(MESSAGES[2])[:3])
    first, _ = reader.read()
    again, rest = reader.read()
    assert first == again == [MESSAGES[0]]
    reader.accept(again, rest)
    assert reader.feed(pack(MESSAGES[2])[3:]) == [MESSAGES[2]]


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<I", wire.FRAME_NBYTES_MAX + 1),
        struct.pack("<I", 0),
        struct.pack("<I", 1) + b"\xc1",
        pack(MESSAGES[0])[:4] + b"\xff" * 300,
    ],
)
def test_what_is_no_frame_is_an_error(data):
    reader = unpacker()
    assert reader.feed(pack(MESSAGES[2])) == [MESSAGES[2]]
    with pytest.raises(FramingError):
        reader.feed(data)


def test_message_beyond_the_limit_is_not_packed():
    with pytest.raises(FramingError, match="limit"):
        pack(wire.Exists(1, [], ["k" * (wire.FRAME_NBYTES_MAX + 1)]))


def test_field_that_a_newer_peer_appended_is_ignored():
    body = msgspec.msgpack.encode([14, 1, [], ["a"], "of a later version"])
    assert unpacker().feed(struct.pack("<I", len(body)) + body) == [wire.Exists(1, [], ["a"])]
