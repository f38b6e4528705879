"""The header of an encoded object back to Python objects: the inverse of ``lower``.

Everything here may be corrupt. Offsets and counts are checked against the view before use; any
exception that is not a StoreError means bytes that ``lower`` did not write.
"""

import array
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import msgspec

from mooncake_client import arrays
from mooncake_client.leaves import BIG_INT, LEAVES, ODD_TEXT, Leaf, Tag
from mooncake_client.lower import DEPTH_MAX

_Unsigned = Annotated[int, msgspec.Meta(ge=0)]


class Lifting:
    """One object on its way out of *view*, whose buffers start at *base*."""

    __slots__ = ("_address", "_depth", "base", "copy", "view")

    def __init__(self, view: memoryview, base: int, *, copy: bool) -> None:
        self.view = view
        self.base = base
        self.copy = copy
        self._address: int | None = None
        self._depth = 0

    def lift(self, data: memoryview) -> Any:
        """The object packed in *data*."""
        if self._depth > _DEPTH_MAX:
            raise ValueError(f"nested deeper than {DEPTH_MAX} levels")
        self._depth += 1
        out = _unpack(data, ext_hook=self._ext)
        self._depth -= 1
        return out

    def cut(self, offset: int, nbytes: int) -> memoryview:
        """The buffer at *offset*."""
        start = self.base + offset
        if start + nbytes > self.view.nbytes:
            raise ValueError(f"a buffer ends at byte {start + nbytes} of {self.view.nbytes}")
        return self.view[start : start + nbytes]

    def address(self) -> int:
        """Where the view lies."""
        if self._address is None:
            self._address = arrays.address_of(self.view)
        return self._address

    def _ext(self, tag: int, data: memoryview) -> Any:
        lift = _LIFT.get(tag)
        if lift is None:
            raise ValueError(f"unknown type number {tag}")
        return lift(self, data)


# A level here is one of lowering, which does not count a plain container or bytes at the very end.
# Input nested deeper would use up the C stack.
_DEPTH_MAX = DEPTH_MAX + 4
_unpack = msgspec.msgpack.decode
_array_meta = msgspec.msgpack.Decoder(arrays.ArrayMeta).decode
_buffer_meta = msgspec.msgpack.Decoder(tuple[_Unsigned, _Unsigned]).decode
_scalar_meta = msgspec.msgpack.Decoder(tuple[str, bytes]).decode


def _list(state: Lifting, data: memoryview) -> list[Any]:
    items = state.lift(data)
    if type(items) is not list:
        raise ValueError(f"{type(items).__name__} where a list belongs")
    return items


def _lift_tuple(state: Lifting, data: memoryview) -> tuple[Any, ...]:
    return tuple(_list(state, data))


def _lift_set(state: Lifting, data: memoryview) -> set[Any]:
    return set(_list(state, data))


def _lift_frozenset(state: Lifting, data: memoryview) -> frozenset[Any]:
    return frozenset(_list(state, data))


def _lift_map(state: Lifting, data: memoryview) -> dict[Any, Any]:
    keys, values = _list(state, data)
    return dict(zip(keys, values, strict=True))


def _lift_leaf(leaf: Leaf, _: Lifting, data: memoryview) -> Any:
    return leaf.unpack(data)


def _lift_buffer(state: Lifting, data: memoryview) -> memoryview | bytes:
    part = state.cut(*_buffer_meta(data))
    return bytes(part) if state.copy else part


def _lift_bytearray(state: Lifting, data: memoryview) -> memoryview | bytearray:
    inner = _bytes(state, data)
    # In band, and so private already: bytearray without asking.
    return bytearray(inner) if state.copy or type(inner) is bytes else inner


def _lift_array(state: Lifting, data: memoryview) -> Any:
    typecode, inner = _list(state, data)
    out = array.array(typecode)
    out.frombytes(_checked_bytes(inner))
    return out


def _lift_ndarray(state: Lifting, data: memoryview) -> Any:
    return arrays.ndarray_from(_array_meta(data), state.view, state.base, copy=state.copy)


def _lift_scalar(_: Lifting, data: memoryview) -> Any:
    return arrays.scalar_from(*_scalar_meta(data))


def _lift_tensor(state: Lifting, data: memoryview) -> Any:
    meta = _array_meta(data)
    address = state.address()
    return arrays.tensor_from(meta, state.view, state.base, address=address, copy=state.copy)


def _bytes(state: Lifting, data: memoryview) -> Any:
    return _checked_bytes(state.lift(data))


def _checked_bytes(inner: Any) -> Any:
    if type(inner) not in (bytes, memoryview):
        raise ValueError(f"{type(inner).__name__} where bytes belong")
    return inner


_LIFT: dict[int, Callable[[Lifting, memoryview], Any]] = {
    Tag.TUPLE: _lift_tuple,
    Tag.SET: _lift_set,
    Tag.FROZENSET: _lift_frozenset,
    Tag.MAP: _lift_map,
    **{leaf.tag: partial(_lift_leaf, leaf) for leaf in (BIG_INT, ODD_TEXT, *LEAVES)},
    Tag.BUFFER: _lift_buffer,
    Tag.BYTEARRAY: _lift_bytearray,
    Tag.ARRAY: _lift_array,
    Tag.NDARRAY: _lift_ndarray,
    Tag.SCALAR: _lift_scalar,
    Tag.TENSOR: _lift_tensor,
}
