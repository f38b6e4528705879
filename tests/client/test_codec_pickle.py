"""Pickle, which has to be asked for: what it stores, and what it takes to read that."""

import dataclasses
import math
import pickle
from typing import Any

import numpy as np
import pytest

from mooncake_client.codec import Codec, Encoded, Kind, Part
from mooncake_client.errors import InvalidArgumentError, StoreError
from tests.client.codec_memory import CODEC, stored, write


def test_pickle_stores_what_the_codec_cannot_with_its_arrays_out_of_band():
    codec = Codec(pickle=True)
    weights = np.arange(10_000.0)
    obj = {"fraction": PickledThing(3), "weights": weights, "empty": np.zeros(0), "f": np.ones((3, 4), order="F")}
    encoded = codec.encode(obj)
    assert encoded.kind is Kind.PICKLED
    assert any(
        part.source is not None
        and part.nbytes == weights.nbytes
        and np.frombuffer(part.source, "u1").ctypes.data == weights.ctypes.data
        for part in encoded.parts
    )
    view = write(encoded)
    out = codec.decode(encoded.kind, view)
    assert out["fraction"] == PickledThing(3)
    np.testing.assert_array_equal(out["weights"], weights)
    assert not out["weights"].flags.writeable
    assert np.shares_memory(out["weights"], np.frombuffer(view, "u1"))
    assert out["f"].flags.f_contiguous
    private = codec.decode(encoded.kind, view, copy=True)
    private["weights"][0] = 7
    assert not np.shares_memory(private["weights"], np.frombuffer(view, "u1"))


@dataclasses.dataclass(frozen=True, eq=True)
class Value:
    value: int


class PickledThing:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return type(other) is PickledThing and other.value == self.value

    def __reduce__(self):
        return _make_thing, (self.value,)

    __hash__ = None


def _make_thing(value):
    return PickledThing(value)


def test_pickle_is_used_only_where_it_is_needed():
    assert Codec(pickle=True).encode({"a": np.zeros(3), "b": (1,)}).kind is Kind.ENCODED


def test_pickle_stores_circular_and_object_arrays():
    codec = Codec(pickle=True)
    loop: list[Any] = [1]
    loop.append(loop)
    out = stored(loop, codec)
    assert out[1] is out
    assert stored(np.array([None, {1}]), codec).tolist() == [None, {1}]


def test_unpickling_takes_consent():
    codec = Codec(pickle=True)
    encoded = codec.encode(PickledThing(1))
    with pytest.raises(InvalidArgumentError, match="pickle=True"):
        CODEC.decode(encoded.kind, write(encoded))


def test_what_pickle_refuses_is_the_callers_mistake():
    with pytest.raises(InvalidArgumentError, match="cannot pickle"):
        Codec(pickle=True).encode(lambda: None)


def test_a_pickle_that_fails_to_load_is_a_store_error():
    codec = Codec(pickle=True)
    encoded = codec.encode(PickledThing(1))
    stream = encoded.parts[1]
    bad = pickle.dumps(math.sqrt).replace(b"sqrt", b"sqrx").ljust(stream.nbytes, b".")[: stream.nbytes]
    broken = Encoded(encoded.kind, encoded.nbytes, [encoded.parts[0], Part(stream.offset, len(bad), memoryview(bad))])
    with pytest.raises(StoreError, match="cannot unpickle"):
        codec.decode(broken.kind, write(broken))
