"""Classes of the user: dataclasses, Structs, and what hooks make of the rest."""

import dataclasses
import datetime as dt
import uuid
from typing import Any

import msgspec
import numpy as np
import pytest

from mooncake_client.codec import Codec
from mooncake_client.errors import InvalidArgumentError
from tests.client.codec_memory import CODEC, stored


@dataclasses.dataclass
class Sample:
    name: str
    weights: np.ndarray
    pair: tuple[int, int]
    tags: set[str]
    blob: bytes
    when: dt.datetime
    ident: uuid.UUID
    z: complex


class Batch(msgspec.Struct, tag="batch", rename="camel"):
    first_sample: Sample
    rest: list[Any] = []
    missing: int | msgspec.UnsetType = msgspec.UNSET


class Row(msgspec.Struct, array_like=True, tag=True):
    a: int
    b: np.ndarray


def sample() -> Sample:
    when = dt.datetime(2024, 5, 6, tzinfo=dt.UTC)
    return Sample("x", np.arange(4.0), (1, 2), {"t"}, b"B" * 5000, when, uuid.UUID(int=7), 1 + 2j)


def test_dataclasses_and_structs_come_back_as_dicts():
    out = stored(Batch(sample(), [Row(1, np.ones(2))]))
    assert list(out) == ["type", "firstSample", "rest"]
    assert out["type"] == "batch"
    assert out["firstSample"]["pair"] == (1, 2)
    assert out["rest"][0][:2] == ["Row", 1]


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("codec", [CODEC, Codec(dec_hook=lambda wanted, obj: 1 / 0)], ids=["plain", "dec_hook"])
def test_type_builds_the_classes_again_with_arrays_inside(codec, copy):
    out = stored(Batch(sample()), codec, type=Batch, copy=copy)
    assert type(out) is Batch
    first, original = out.first_sample, sample()
    assert type(first) is Sample
    np.testing.assert_array_equal(first.weights, original.weights)
    assert dataclasses.replace(first, weights=original.weights) == original
    row = stored(Row(3, np.ones(2)), codec, type=Row)
    assert (row.a, row.b.tolist()) == (3, [1, 1])


def test_type_that_does_not_fit_is_refused():
    with pytest.raises(InvalidArgumentError, match=r"Expected `int`, got `str`"):
        stored({"a": "x"}, type=dict[str, int])


class Opaque:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return type(other) is Opaque and self.value == other.value

    __hash__ = None


def as_dict(obj):
    if isinstance(obj, Opaque):
        return {"value": obj.value, "weights": np.arange(3)}
    raise NotImplementedError


def as_opaque(wanted, obj):
    if wanted is Opaque:
        return Opaque(obj["value"])
    raise NotImplementedError


def test_enc_hook_stores_unknown_types_and_dec_hook_builds_them():
    codec = Codec(enc_hook=as_dict, dec_hook=as_opaque)
    out = stored([Opaque((1, 2))], codec)
    assert out[0]["value"] == (1, 2)
    assert out[0]["weights"].tolist() == [0, 1, 2]
    assert stored([Opaque((1, 2))], codec, type=list[Opaque]) == [Opaque((1, 2))]
    with pytest.raises(InvalidArgumentError, match=r"obj\[0\]: enc_hook refused an object of type builtins.object"):
        codec.encode([object()])


def test_an_enc_hook_that_never_ends_is_refused():
    with pytest.raises(InvalidArgumentError, match="nested deeper"):
        Codec(enc_hook=Opaque).encode(Opaque(1))


def test_errors_of_an_enc_hook_pass_as_they_are():
    def broken(obj):
        raise LookupError("hook")

    with pytest.raises(LookupError, match="hook"):
        Codec(enc_hook=broken).encode(Opaque(1))
