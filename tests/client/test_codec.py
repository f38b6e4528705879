"""Objects come back equal and of the same types; what cannot is refused by name."""

import array
import collections
import dataclasses
import datetime as dt
import decimal
import enum
import gc
import weakref
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_client.codec import Encoded, Kind, raw
from mooncake_client.errors import InvalidArgumentError, StoreError
from mooncake_client.lower import DEPTH_MAX, INLINE_MAX
from tests.client.codec_memory import CODEC, dirty_memory, stored, write


def same(a: Any, b: Any) -> bool:
    """Equal, and of the same types all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(map(typed, a)) == list(map(typed, b)) and all(map(same, a.values(), b.values()))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, set | frozenset):
        return collections.Counter(map(typed, a)) == collections.Counter(map(typed, b))
    return repr(a) == repr(b) if a != a else a == b


def typed(key: Any) -> Any:
    """A key that tells 1 from True and NaN from nothing."""
    if isinstance(key, tuple):
        return (tuple, *map(typed, key))
    if isinstance(key, frozenset):
        return (frozenset, frozenset(map(typed, key)))
    return (type(key), repr(key) if key != key else key)


text = st.text(st.characters(codec=None, exclude_categories=()))
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(1 << 70), max_value=1 << 70)
    | st.floats()
    | text
    | st.binary()
    | st.complex_numbers(allow_nan=False)
    | st.datetimes(timezones=st.none() | st.just(dt.UTC) | st.just(dt.timezone(dt.timedelta(hours=5, seconds=7))))
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.uuids()
)
keys = st.recursive(leaves, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=4)
objects = st.recursive(
    leaves | st.sets(keys, max_size=4),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(text, inner)
        | st.dictionaries(keys, inner)
    ),
    max_leaves=12,
)


@given(objects.filter(lambda obj: not isinstance(obj, bytes)))
def test_nested_objects_come_back_equal_and_of_the_same_types(obj):
    assert same(stored(obj), obj)
    assert same(stored(obj, copy=True), obj)


@pytest.mark.parametrize(
    "obj",
    [
        list(range(5000)),
        [-(1 << 63), (1 << 64) - 1] * 100,
        [float(i) for i in range(5000)],
        [str(i) for i in range(5000)],
        [""] * 200,
        [None, True, 1, 1.5, "x"] * 100,
        [1.0, 2] * 200,
        [{"a": i, "b": None} for i in range(5000)],
        {str(i): i for i in range(5000)},
        dict(enumerate(map(str, range(5000)))),
        tuple(range(5000)),
        set(range(5000)),
        [0] * 1000 + [(1, 2)],
        [0] * 1000 + [{1}],
        [0] * 1000 + [True],
        [0] * 1000 + [1 << 64],
        [0.5] * 1000 + [1 << 64],
        [0.5] * 1000 + [decimal.Decimal(1)],
        [0.5] * 1000 + [(0.5,)],
        ["a"] * 1000 + ["\ud800"],
        ["a"] * 1000 + [b"a"],
        ["a"] * 1000 + [dt.date(2024, 2, 29)],
        ["a"] * 1000 + [("a",)],
        [{"a": 1}] * 1000 + [{"a": (1,)}],
        [{"a": 1}] * 1000 + [{(1, 2): 1}],
        [{"a": 1}] * 1000 + [(1,)],
        [{}] * 1000,
    ],
    ids=lambda obj: repr(obj[-1] if isinstance(obj, list) else type(obj)),
)
def test_a_long_container_comes_back_whatever_its_last_element(obj):
    assert same(stored(obj), obj)


def test_a_numpy_scalar_at_the_end_of_a_long_list_keeps_its_type():
    for filler, last in ((0, np.int64(7)), (0.5, np.float64(7)), ("a", np.str_("b"))):
        out = stored([filler] * 1000 + [last])
        assert out[-1] == last
        assert type(out[-1]) is type(last)


@pytest.mark.parametrize("obj", [b"", b"abc", b"x" * 10_000])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_alone_are_stored_as_they_are(obj, kind):
    encoded = CODEC.encode(kind(obj))
    assert encoded.kind is Kind.RAW
    assert encoded.nbytes == len(obj)
    view = write(encoded)
    assert view == obj
    assert CODEC.decode(encoded.kind, view) is view
    private = CODEC.decode(encoded.kind, view, copy=True)
    assert type(private) is bytearray
    assert private == obj


def test_a_raw_object_over_writable_memory_is_given_out_read_only():
    assert CODEC.decode(Kind.RAW, memoryview(bytearray(3))).readonly


def test_type_makes_raw_objects_bytes():
    assert stored(b"abc", type=bytes) == b"abc"
    assert type(stored(b"abc", type=bytes)) is bytes


def test_raw_joins_buffers_of_any_format_without_padding():
    floats = array.array("d", [1.0, 2.0])
    matrix = np.arange(6, dtype=">i2").reshape(2, 3)
    encoded = raw(b"ab", bytearray(), floats, memoryview(matrix), memoryview(b""))
    assert encoded.kind is Kind.RAW
    assert bytes(write(encoded)) == b"ab" + floats.tobytes() + matrix.tobytes()
    assert list(encoded.gaps()) == []
    assert raw() == Encoded(Kind.RAW, 0, [])


@pytest.mark.parametrize("buffer", [np.zeros((4, 4))[:, ::2], np.zeros((2, 3)).T, memoryview(b"abcd")[::2], 7, "text"])
def test_raw_refuses_what_has_no_single_order_of_bytes(buffer):
    with pytest.raises(InvalidArgumentError, match="buffer 1: "):
        raw(b"first", buffer)


def test_buffers_are_aligned_and_the_gaps_between_parts_are_told():
    encoded = CODEC.encode({"a": np.zeros(3, "u1"), "b": np.zeros(70, "u1"), "c": bytes(INLINE_MAX)})
    assert [part.offset % 64 for part in encoded.parts] == [0, 0, 0, 0]
    covered = [(part.offset, part.nbytes) for part in encoded.parts] + list(encoded.gaps())
    end = 0
    for offset, nbytes in sorted(covered):
        assert offset == end
        end += nbytes
    assert end == encoded.nbytes


def test_write_into_writes_the_same_bytes_and_not_one_more():
    encoded = CODEC.encode({"a": np.ones(3), "b": np.ones((4, 4))[:, ::2], "c": "x" * 5000})
    memory = dirty_memory(encoded.nbytes + 64)
    encoded.write_into(memory)
    assert memory[: encoded.nbytes] == write(encoded)
    assert memory[encoded.nbytes :] == b"\xa5" * 64


def test_equal_objects_are_stored_as_equal_bytes():
    obj = {"a": np.arange(5), "b": [1, (2, "x")]}
    assert write(CODEC.encode(obj)) == write(CODEC.encode(obj))


@pytest.mark.parametrize("nbytes", [0, INLINE_MAX - 1])
def test_short_nested_bytes_come_back_as_bytes(nbytes):
    data = b"z" * nbytes
    out = stored([data, bytearray(data), memoryview(data)])
    assert out == [data] * 3
    assert [type(part) for part in out] == [bytes, bytearray, bytes]


def test_long_nested_bytes_are_views_of_the_store_or_private_copies():
    data = bytes(range(256)) * (INLINE_MAX // 256)
    obj = {"a": data, "b": (bytearray(data), [memoryview(data)])}
    encoded = CODEC.encode(obj)
    assert [part.nbytes for part in encoded.parts[1:]] == [INLINE_MAX] * 3
    out = CODEC.decode(encoded.kind, write(encoded))
    for part in (out["a"], out["b"][0], out["b"][1][0]):
        assert type(part) is memoryview
        assert part.readonly
        assert part == data
    private = stored(obj, copy=True)
    assert private == obj
    assert [type(private["a"]), type(private["b"][0]), type(private["b"][1][0])] == [bytes, bytearray, bytes]


def test_long_bytes_are_not_copied_by_encode():
    data = bytes(1 << 20)
    part = CODEC.encode({"a": data}).parts[-1]
    assert part.source.obj is data


def test_long_bytes_as_keys_and_members_stay_private_bytes():
    data = b"k" * INLINE_MAX
    obj = {data: 1, (data,): 2, "set": {data}, "frozen": frozenset({(data, 1)})}
    encoded = CODEC.encode(obj)
    assert len(encoded.parts) == 2
    assert same(CODEC.decode(encoded.kind, write(encoded)), obj)


@pytest.mark.parametrize(
    "obj", [array.array(code, [1, 2, 3]) for code in "bBhHiIlLqQfd"] + [array.array("u", "aé"), array.array("d")]
)
def test_an_array_array_comes_back_private_and_of_its_typecode(obj):
    big = obj * 3000
    for original in (obj, big):
        out = stored(original)
        assert out == original
        assert out.typecode == original.typecode
        out.append(out.pop() if out else 1)


class Colour(enum.Enum):
    RED = "red"
    PAIR = (1, 2)


class Level(enum.IntEnum):
    LOW = 1


class Point(NamedTuple):
    x: int
    y: Any


class Text(str):
    __slots__ = ()


def test_subclasses_come_back_as_the_type_they_stand_for():
    obj = {
        "enum": [Colour.RED, Colour.PAIR, Level.LOW],
        "tuple": Point(1, (2,)),
        "dicts": [
            collections.OrderedDict(b=1, a=(2,)),
            collections.defaultdict(list, a=[1]),
            collections.Counter("aa"),
        ],
        "text": Text("x"),
        "keys": {Colour.PAIR: 1, Level.LOW: 2, Text("x"): 3},
    }
    assert same(
        stored(obj),
        {
            "enum": ["red", (1, 2), 1],
            "tuple": (1, (2,)),
            "dicts": [{"b": 1, "a": (2,)}, {"a": [1]}, {"a": 2}],
            "text": "x",
            "keys": {(1, 2): 1, 1: 2, "x": 3},
        },
    )


def test_keys_that_would_become_equal_are_refused():
    for obj in ({Colour.RED: 1, "red": 2}, {Colour.RED, "red"}, {Colour.PAIR, (1, 2)}):
        with pytest.raises(InvalidArgumentError, match="become equal"):
            CODEC.encode([obj])


def test_time_keeps_fold_and_offset():
    offset = dt.timezone(dt.timedelta(hours=-3, minutes=-30))
    obj = [dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=offset), dt.time(2, 30, fold=1, tzinfo=offset)]
    out = stored(obj)
    assert out == obj
    assert [part.fold for part in out] == [1, 1]
    assert [part.utcoffset() for part in out] == [part.utcoffset() for part in obj]


@dataclasses.dataclass
class Node:
    inner: Any


@dataclasses.dataclass(frozen=True)
class FrozenKey:
    inner: Any


@pytest.mark.parametrize(
    ("obj", "path"),
    [
        (object(), "obj: objects of type builtins.object"),
        ({"a": [0, 1, 2, object()]}, "obj['a'][3]: objects of type builtins.object"),
        ({"a": [0, 1, 2, np.array([None])]}, "obj['a'][3]: an array of dtype object"),
        (({"k": (1, object())},), "obj[0]['k'][1]: "),
        ({(1, 2): {3: object()}}, "obj[(1, 2)][3]: "),
        ({1, object()}, "obj{"),
        ({object(): 1}, "obj{0}: "),
        (Node([Node(object())]), "obj.inner[0].inner: "),
        ([int], "obj[0]: objects of type builtins.type"),
        ({"v": memoryview(b"abcd")[::2]}, "obj['v']: a buffer that is not C-contiguous"),
        ({FrozenKey(1): 1}, "obj{0}: "),
        ({(1, FrozenKey(1))}, "obj{0}[1]: "),
        ([np.ma.array([1])], "obj[0]: objects of type numpy.ma.MaskedArray are not supported; what"),
        ([0] * 1000 + [object()], "obj[1000]: "),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_stored_is_named_by_its_path(obj, path):
    with pytest.raises(InvalidArgumentError) as caught:
        CODEC.encode(obj)
    assert caught.value.message.startswith(f"cannot store {path}")
    assert caught.value.message.endswith("pass pickle=True or an enc_hook")


def test_an_object_that_contains_itself_is_refused_with_the_path():
    inner: dict[str, Any] = {}
    inner["back"] = [0, inner]
    for obj, path in ((inner, "obj['back'][1]"), ({"x": (inner,)}, "obj['x'][0]['back'][1]")):
        with pytest.raises(InvalidArgumentError) as caught:
            CODEC.encode(obj)
        assert caught.value.message.startswith(f"cannot store {path}: it contains itself")


def nest(depth: int, wrap: Any) -> Any:
    obj: Any = 1
    for _ in range(depth):
        obj = wrap(obj)
    return obj


@pytest.mark.parametrize(
    "wrap",
    [lambda x: [x], lambda x: (x,), lambda x: {"k": x}, lambda x: {(1,): x}, lambda x: frozenset({x}), Node],
    ids=["list", "tuple", "dict", "map", "frozenset", "dataclass"],
)
def test_nesting_is_limited_both_ways(wrap):
    deep = nest(DEPTH_MAX, wrap)
    if wrap is not Node:
        assert stored(deep) == deep
    for depth in (DEPTH_MAX + 2, 50_000):
        obj = nest(depth, wrap)
        with pytest.raises(InvalidArgumentError, match=r"obj.*\.\.\.: nested deeper than 100 levels"):
            CODEC.encode(obj)
        # Left to the interpreter, the death of so deep an object recurses as deep.
        while isinstance(obj, list | tuple | dict | Node):
            obj = obj.inner if isinstance(obj, Node) else next(iter(obj.values() if isinstance(obj, dict) else obj))


def test_a_kind_from_the_future_is_refused():
    with pytest.raises(StoreError, match="kind 9"):
        CODEC.decode(9, memoryview(b"abc"))


def test_encoded_keeps_the_callers_data_alive_and_nothing_after_it():
    class Owner(bytearray):
        pass

    data = Owner(8192)
    alive = weakref.ref(data)
    encoded = CODEC.encode([data])
    del data
    gc.collect()
    assert alive() is not None
    del encoded
    gc.collect()
    assert alive() is None
