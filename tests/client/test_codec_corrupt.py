"""Bytes the codec did not write raise StoreError, whatever they are, and never more than that."""

import datetime as dt
import struct

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.msgpack import Ext

from mooncake_client.codec import Codec, Kind
from mooncake_client.errors import InvalidArgumentError, StoreError
from mooncake_client.leaves import Tag
from tests.client.codec_memory import CODEC, write

pack = msgspec.msgpack.encode


def decode(data: bytes, kind: Kind = Kind.ENCODED, codec: Codec = CODEC) -> None:
    """Read *data* in every way; anything but StoreError fails the test."""
    for copy in (False, True):
        try:
            out = codec.decode(kind, memoryview(data), copy=copy)
        except StoreError as error:
            assert not isinstance(error, InvalidArgumentError) or "ml_dtypes" in str(error)  # noqa: PT017
        else:
            touch(out)


def touch(out: object) -> None:
    """Read every byte an object reaches: outside the view this may crash, and that is the point."""
    if isinstance(out, np.ndarray):
        out.tobytes()
    elif isinstance(out, torch.Tensor):
        if out.numel():
            out.contiguous().view(-1)[-1:].clone() if out.element_size() > 1 else out.view(torch.uint8).sum()
    elif isinstance(out, dict):
        for pair in out.items():
            touch(pair)
    elif isinstance(out, list | tuple | set | frozenset):
        for item in out:
            touch(item)
    elif isinstance(out, memoryview):
        out.tobytes()


SAMPLES = [
    bytes(write(CODEC.encode(obj)))
    for obj in (
        {"a": np.arange(6.0).reshape(2, 3), "t": torch.ones(3).bfloat16(), "b": b"x" * 5000, "c": (1, {2}, {(3,): 4})},
        np.zeros((2, 2), [("a", "i4"), ("s", "U2", (2,)), ("d", "M8[s]")]),
        [np.float32(1), np.str_("x"), 1 << 80, "\ud800", 1j, bytearray(b"ab"), frozenset({1})],
        [dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.date(2024, 1, 1), dt.time(1), dt.timedelta(1)],
        torch.zeros(2, 0, 3),
        np.asfortranarray(np.zeros((3, 4), ">M8[D]")),
    )
]


@given(st.binary(max_size=200))
def test_random_bytes(data):
    decode(data)
    decode(data, Kind.PICKLED, Codec(pickle=True))


@given(st.binary(max_size=200))
def test_a_random_header(data):
    decode(struct.pack("<I", len(data)) + data)


@settings(max_examples=500)
@given(st.sampled_from(SAMPLES), st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=4))
def test_flipped_bytes(data, changes):
    changed = bytearray(data)
    for where, value in changes:
        # The header is where it hurts.
        changed[where % min(len(data), 300)] = value
    decode(bytes(changed))


@given(st.sampled_from(SAMPLES), st.integers(0, 1 << 20))
def test_truncated_bytes(data, where):
    decode(data[: where % len(data)])


@pytest.mark.parametrize("sample", SAMPLES[1:4] + SAMPLES[5:], ids=range(4))
def test_every_truncation_is_noticed(sample):
    for length in range(len(sample)):
        with pytest.raises(StoreError):
            CODEC.decode(Kind.ENCODED, memoryview(sample)[:length])


json_like = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
ext_payloads = st.binary(max_size=30) | json_like.map(pack)


@settings(max_examples=500)
@given(st.integers(-5, 25), ext_payloads, ext_payloads)
def test_ext_types_with_any_content(code, inner, other):
    for header in (
        Ext(code, inner),
        [Ext(code, inner), {"a": Ext(code, other)}],
        Ext(Tag.TUPLE, pack([Ext(code, inner)])),
    ):
        data = pack(header)
        decode(struct.pack("<I", len(data)) + data + bytes(200))


dims = st.integers(-3, 5) | st.sampled_from([1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
few_dims = st.lists(dims, max_size=3)
numpy_names = ["<f4", "|u1", "|V0", "<U0", "|O", "O", "f4,f4", "<M8[s]", "<M8[bad]", "|S999999999"]
torch_names = ["torch.float32", "torch.bool", "torch.quint8", "torch.complex32", "torch.nn"]
structured = st.recursive(
    st.sampled_from(["<i4", "|O", "|S3"]),
    lambda inner: (
        st.tuples(st.just("sub"), inner, few_dims).map(list)
        | st.tuples(
            st.sampled_from(["void", "record", "other"]),
            st.lists(st.sampled_from("aab"), max_size=3),
            st.lists(inner, max_size=3),
            few_dims,
            st.lists(st.none() | st.just("T"), max_size=3),
            dims,
            st.booleans(),
        ).map(list)
    ),
    max_leaves=4,
).map(lambda spec: msgspec.json.encode(spec).decode())
dtypes = (
    st.sampled_from([*numpy_names, *torch_names, "ml_dtypes.bfloat16", "[]", "[1]", "{"])
    | st.text(max_size=6)
    | structured
)
array_tags = st.sampled_from([Tag.NDARRAY, Tag.TENSOR])


@settings(max_examples=500)
@given(array_tags, dims, dtypes, st.lists(dims, max_size=5), st.booleans(), st.integers(0, 300))
def test_absurd_arrays(tag, offset, dtype, shape, fortran, room):
    header = pack(Ext(tag, pack([offset, dtype, shape, fortran])))
    decode(struct.pack("<I", len(header)) + header + bytes(room))


@given(st.lists(st.tuples(dims, dims), max_size=4), st.integers(0, 200))
def test_absurd_buffers(places, room):
    for header in (
        [Ext(Tag.BUFFER, pack(place)) for place in places],
        Ext(Tag.BYTEARRAY, pack([Ext(Tag.BUFFER, pack(places))])),
    ):
        data = pack(header)
        decode(struct.pack("<I", len(data)) + data + bytes(room))


@given(st.lists(st.tuples(dims, dims), max_size=4), st.integers(0, 200))
def test_absurd_buffers_of_a_pickle(places, room):
    header = pack(places)
    decode(struct.pack("<I", len(header)) + header + bytes(room), Kind.PICKLED, Codec(pickle=True))


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x05\0\0\0\x01"])
def test_a_wrong_header_length_is_told(data):
    with pytest.raises(StoreError, match="the stored bytes are damaged"):
        CODEC.decode(Kind.ENCODED, memoryview(data))


def test_deep_nesting_ends_before_the_stack_does():
    native = b"\x91" * 100_000
    nested = b"\x01"
    while len(nested) < 100_000:
        nested = pack(Ext(Tag.TUPLE, nested))
        if len(nested) > 60_000:
            break
    for header in (native, nested, b"\xdd\xff\xff\xff\xff" * 1000, b"\xc9\xff\xff\xff\xff\x01"):
        with pytest.raises(StoreError):
            CODEC.decode(Kind.ENCODED, memoryview(struct.pack("<I", len(header)) + header))


def test_what_lies_past_the_view_is_out_of_reach():
    encoded = CODEC.encode({"a": np.arange(100), "b": b"x" * 5000})
    whole = write(encoded)
    with pytest.raises(StoreError, match="of 4000"):
        CODEC.decode(encoded.kind, whole[:4000])


def test_unhashable_members_and_keys_are_damage():
    for header in (Ext(Tag.SET, pack([[1]])), Ext(Tag.MAP, pack([[{}], [1]])), Ext(Tag.MAP, pack([[1, 2], [1]]))):
        data = pack(header)
        with pytest.raises(StoreError, match="damaged"):
            CODEC.decode(Kind.ENCODED, memoryview(struct.pack("<I", len(data)) + data))
