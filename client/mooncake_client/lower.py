"""Nested Python objects to what msgpack can hold.

Lowering replaces only what msgpack would lose or refuse, mostly by Ext types, and moves large
buffers out of band. Containers of plain scalars pass through unseen: the checks on them run at C
speed. ``lift`` is the way back.
"""

import array
import dataclasses
import enum
import reprlib
import sys
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from functools import partial
from pickle import PickleBuffer
from typing import Any

import msgspec
from msgspec.msgpack import Ext

from mooncake_client import arrays
from mooncake_client.arrays import Block, UnsupportedError
from mooncake_client.leaves import BIG_INT, LEAVES, ODD_TEXT, Leaf, Tag
from mooncake_client.plain import KEYS, SCALARS, plain_dict, plain_items

ALIGNMENT = 64
# Buffers from LARGE_MIN on start on a page. Their sources mostly start just behind one, and memmove of this length is
# less than half as fast when its target lies a few hundred bytes further into a page than its source.
PAGE = 4096
LARGE_MIN = 1 << 20
# bytes shorter than this stay in the header: a buffer of their own would cost more than the copy it
# saves.
INLINE_MAX = 4096
# Far beyond real objects; a level costs stack in Python and in msgspec, both ways.
DEPTH_MAX = 100


class NotPlainError(Exception):
    """msgspec met something in a container taken for plain: lower it again, element by element."""


class Lowering:
    """One object on its way into bytes. Spent once :meth:`lower` has raised.

    *strict* looks at every single scalar, for the objects that hold one msgpack refuses.
    """

    __slots__ = ("_depth", "_replaced", "blocks", "enc_hook", "in_band", "scalars", "size", "strict")

    def __init__(self, enc_hook: Callable[[Any], Any] | None, *, strict: bool) -> None:
        # All and only out-of-band buffers: offset from the end of the padded header, nbytes,
        # source, fill.
        self.blocks: list[tuple[int, int, memoryview | None, Callable[[memoryview], None] | None]] = []
        # Where the last of them ends.
        self.size = 0
        self.enc_hook = enc_hook
        self.strict = strict
        # Types that need no look at the value.
        self.scalars = _STRICT_SCALARS if strict else SCALARS
        # Inside a dict key or a set: these come back hashable and hold no memory of the store.
        self.in_band = False
        self._depth = 0
        # Whether a key or member was stored by another value, which may equal a third one.
        self._replaced = False

    def lower(self, obj: Any) -> Any:
        """The same object for msgspec: *obj* itself where nothing in it needs replacing."""
        cls = type(obj)
        return (_LOWER.get(cls) or _resolve(cls))(self, obj)

    def place(self, nbytes: int, source: memoryview | None, fill: Callable[[memoryview], None] | None) -> int:
        """Give a buffer its place and return the offset."""
        if not nbytes:
            return 0
        offset = aligned(self.size, PAGE if nbytes >= LARGE_MIN else ALIGNMENT)
        self.blocks.append((offset, nbytes, source, fill))
        self.size = offset + nbytes
        return offset

    def items(self, items: Iterable[Any], owner: object, brackets: str = "[]") -> list[Any]:
        """Each of *items* lowered."""
        self._enter()
        scalars = self.scalars
        out: list[Any] = []
        try:
            for item in items:
                cls = type(item)
                out.append(item if cls in scalars else (_LOWER.get(cls) or _resolve(cls))(self, item))
        except UnsupportedError as error:
            error.steps.append((f"{brackets[0]}{len(out)}{brackets[1]}", id(owner)))
            raise
        self._depth -= 1
        return out

    def hashed_items(self, items: Iterable[Any], owner: object) -> list[Any]:
        """Keys or set members lowered."""
        outer, self.in_band = self.in_band, True
        out = self.items(items, owner, "{}")
        self.in_band = outer
        if self._replaced:
            kept = {(item.code, item.data) if type(item) is Ext else item for item in out}
            if len(kept) != len(out):
                raise UnsupportedError("two of its keys or members become equal when stored")
        return out

    def refuse_in_band(self, obj: object) -> None:
        """Stop where *obj*, a key or member, would come back as what cannot be one."""
        if self.in_band:
            raise UnsupportedError(f"{type_name(obj)} as a key or set member comes back unhashable")

    def named(self, pairs: Iterable[tuple[Any, Any]], owner: object, *, attributes: bool = True) -> dict[Any, Any]:
        """The values of a mapping or of an object's *attributes* lowered."""
        self.refuse_in_band(owner)
        self._enter()
        scalars = self.scalars
        out: dict[Any, Any] = {}
        name: Any = None
        try:
            for name, item in pairs:
                cls = type(item)
                out[name] = item if cls in scalars else (_LOWER.get(cls) or _resolve(cls))(self, item)
        except UnsupportedError as error:
            step = f".{name}" if attributes else f"[{reprlib.repr(name)}]"
            error.steps.append((step, id(owner)))
            raise
        self._depth -= 1
        return out

    def inner(self, value: Any, owner: object, step: str) -> Any:
        """Lower the one *value* that stands for *owner*."""
        self._replaced |= self.in_band
        self._enter()
        try:
            out = self.lower(value)
        except UnsupportedError as error:
            error.steps.append((step, id(owner)))
            raise
        self._depth -= 1
        return out

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise UnsupportedError(f"nested deeper than {DEPTH_MAX} levels")


def aligned(offset: int, alignment: int = ALIGNMENT) -> int:
    """The next multiple of *alignment*, a power of two."""
    return (offset + alignment - 1) & -alignment


def buffers_start(header_end: int, rest_nbytes: int) -> int:
    """Where an object's buffers start, behind its header and padding.

    *rest_nbytes* counts from the first multiple of ALIGNMENT behind the header: the buffers, with or without the
    padding up to a page that they ask for.
    """
    return aligned(header_end, PAGE if rest_nbytes >= LARGE_MIN else ALIGNMENT)


def flat(buffer: Any) -> memoryview:
    """The bytes of a C-contiguous buffer as a one-dimensional view of format B."""
    try:
        view = memoryview(buffer)
    except (TypeError, ValueError, BufferError) as error:
        raise UnsupportedError(f"{type_name(buffer)} is not a bytes-like object: {error}") from error
    if not view.c_contiguous:
        raise UnsupportedError("a buffer that is not C-contiguous has no single order of its bytes")
    if view.ndim == 1 and view.format == "B":
        return view
    return PickleBuffer(view).raw()


def type_name(obj: object) -> str:
    """Module and name of *obj*'s type."""
    return f"{type(obj).__module__}.{type(obj).__qualname__}"


def _stop(_: Any) -> Any:
    raise NotPlainError


# Encodes what lower() returned. Raises NotPlainError, OverflowError or UnicodeEncodeError where
# that must be strict.
encode = msgspec.msgpack.Encoder(enc_hook=_stop).encode

_Lower = Callable[[Lowering, Any], Any]
_STRICT_SCALARS = frozenset({float, bool, type(None)})


def _same(_: Lowering, obj: Any) -> Any:
    return obj


def _lower_list(state: Lowering, obj: list[Any]) -> Any:
    state.refuse_in_band(obj)
    if not state.strict and plain_items(obj):
        return obj if type(obj) is list else list(obj)
    return state.items(obj, obj)


def _lower_tuple(state: Lowering, obj: tuple[Any, ...]) -> Any:
    plain = type(obj) is tuple and not state.strict and plain_items(obj)
    return Ext(Tag.TUPLE, encode(obj if plain else state.items(obj, obj)))


def _lower_set(state: Lowering, obj: set[Any]) -> Any:
    state.refuse_in_band(obj)
    return _members(state, obj, Tag.SET)


def _lower_frozenset(state: Lowering, obj: frozenset[Any]) -> Any:
    return _members(state, obj, Tag.FROZENSET)


def _members(state: Lowering, obj: AbstractSet[Any], tag: int) -> Ext:
    plain = not state.strict and plain_items(obj)
    return Ext(tag, encode(list(obj) if plain else state.hashed_items(obj, obj)))


def _lower_dict(state: Lowering, obj: dict[Any, Any]) -> Any:
    state.refuse_in_band(obj)
    if not state.strict and plain_dict(obj):
        return obj if type(obj) is dict else dict(obj)
    fits = KEYS.issuperset(map(type, obj))
    keys = state.hashed_items(obj, obj) if state.strict or not fits else list(obj)
    values = state.named(obj.items(), obj, attributes=False)
    if fits and all(new is old for new, old in zip(keys, obj, strict=True)):
        return values
    return Ext(Tag.MAP, encode([keys, list(values.values())]))


def _lower_dataclass(state: Lowering, obj: Any) -> Any:
    fields = dataclasses.fields(obj)
    return state.named(((field.name, getattr(obj, field.name)) for field in fields), obj)


def _lower_attrs(state: Lowering, obj: Any) -> Any:
    fields = obj.__attrs_attrs__
    return state.named(((field.name, getattr(obj, field.name)) for field in fields), obj)


def _lower_struct(state: Lowering, obj: msgspec.Struct) -> Any:
    config = obj.__struct_config__
    names = zip(obj.__struct_encode_fields__, obj.__struct_fields__, strict=True)
    fields = [(name, getattr(obj, field)) for name, field in names]
    if config.tag is not None:
        fields.insert(0, (config.tag_field or "type", config.tag))
    if config.array_like:
        state.refuse_in_band(obj)
        return state.items([value for _, value in fields], obj)
    return state.named((pair for pair in fields if pair[1] is not msgspec.UNSET), obj)


def _lower_enum(state: Lowering, obj: enum.Enum) -> Any:
    return state.inner(obj.value, obj, ".value")


def _lower_unknown(state: Lowering, obj: Any) -> Any:
    if state.enc_hook is None:
        array = {"ndarray", "Tensor"}.intersection(base.__name__ for base in type(obj).__mro__)
        why = f"; what {type_name(obj)} adds to {min(array)} would be lost" if array else ""
        raise UnsupportedError(f"objects of type {type_name(obj)} are not supported{why}")
    try:
        plain = state.enc_hook(obj)
    except NotImplementedError as error:
        raise UnsupportedError(f"enc_hook refused an object of type {type_name(obj)}") from error
    return state.inner(plain, obj, "<enc_hook>")


def _lower_int(_: Lowering, obj: int) -> Any:
    value = int(obj)
    if -(1 << 63) <= value < 1 << 64:
        return obj if type(obj) is int else value
    return Ext(Tag.INT, BIG_INT.pack(value))


def _lower_leaf(leaf: Leaf, _: Lowering, obj: Any) -> Any:
    return Ext(leaf.tag, leaf.pack(obj))


def _lower_float(_: Lowering, obj: float) -> Any:
    return float(obj)


def _lower_text(_: Lowering, obj: str) -> Any:
    try:
        obj.encode()
    except UnicodeEncodeError:
        # A lone surrogate, as in names from os.listdir, is no UTF-8.
        return Ext(Tag.TEXT, ODD_TEXT.pack(obj))
    return obj if type(obj) is str else str.__str__(obj)


def _lower_bytes(state: Lowering, obj: Any) -> Any:
    view = flat(obj)
    if view.nbytes < INLINE_MAX or state.in_band:
        return obj if type(obj) is bytes else bytes(view)
    return Ext(Tag.BUFFER, encode((state.place(view.nbytes, view, None), view.nbytes)))


def _lower_bytearray(state: Lowering, obj: bytearray) -> Any:
    return Ext(Tag.BYTEARRAY, encode(_lower_bytes(state, obj)))


def _lower_array(state: Lowering, obj: Any) -> Any:
    return Ext(Tag.ARRAY, encode((obj.typecode, _lower_bytes(state, obj))))


def _lower_scalar(_: Lowering, obj: Any) -> Any:
    return Ext(Tag.SCALAR, encode(arrays.scalar_parts(obj)))


def _lower_ndarray(state: Lowering, obj: Any) -> Any:
    return _block(state, Tag.NDARRAY, arrays.ndarray_block(obj))


def _lower_tensor(state: Lowering, obj: Any) -> Any:
    return _block(state, Tag.TENSOR, arrays.tensor_block(obj))


def _block(state: Lowering, tag: int, block: Block) -> Ext:
    offset = state.place(block.nbytes, block.source, block.fill)
    return Ext(tag, encode((offset, block.dtype, block.shape, block.fortran)))


# By exact type; grows by the types _resolve has seen, up to _LOWER_MAX.
_LOWER: dict[type, _Lower] = {
    int: _lower_int,
    float: _same,
    bool: _same,
    type(None): _same,
    str: _lower_text,
    list: _lower_list,
    tuple: _lower_tuple,
    dict: _lower_dict,
    set: _lower_set,
    frozenset: _lower_frozenset,
    bytes: _lower_bytes,
    bytearray: _lower_bytearray,
    memoryview: _lower_bytes,
    array.array: _lower_array,
    **{leaf.cls: partial(_lower_leaf, leaf) for leaf in LEAVES},
}
_LOWER_MAX = 1024

# Subclasses stand for their base, in this order. datetime's are left out: pandas.Timestamp holds
# more than one.
_BASES: tuple[tuple[type, _Lower], ...] = (
    (enum.Enum, _lower_enum),
    (msgspec.Struct, _lower_struct),
    (dict, _lower_dict),
    (list, _lower_list),
    (tuple, _lower_tuple),
    (set, _lower_set),
    (frozenset, _lower_frozenset),
    (str, _lower_text),
    (int, _lower_int),
    (float, _lower_float),
    (bytes, _lower_bytes),
    (bytearray, _lower_bytearray),
)


def _resolve(cls: type) -> _Lower:
    found = _numpy_lower(cls) or _torch_lower(cls) or _base_lower(cls)
    if len(_LOWER) < _LOWER_MAX:
        _LOWER[cls] = found
    return found


def _numpy_lower(cls: type) -> _Lower | None:
    # Another thread may be in the middle of importing it: then cls is none of its types.
    np = sys.modules.get("numpy")
    if issubclass(cls, getattr(np, "generic", ())):
        return _lower_scalar
    if np is not None and issubclass(cls, getattr(np, "ndarray", ())):
        # A masked array, a matrix, a unit: what a subclass adds would be lost.
        return _lower_ndarray if cls in (np.ndarray, np.memmap) else _lower_unknown
    return None


def _torch_lower(cls: type) -> _Lower | None:
    torch = sys.modules.get("torch")
    if torch is None or not issubclass(cls, getattr(torch, "Tensor", ())):
        return None
    known = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    return _lower_tensor if cls in known else _lower_unknown


def _base_lower(cls: type) -> _Lower:
    for base, found in _BASES:
        if issubclass(cls, base):
            return found
    if dataclasses.is_dataclass(cls):
        return _lower_dataclass
    return _lower_attrs if hasattr(cls, "__attrs_attrs__") else _lower_unknown
