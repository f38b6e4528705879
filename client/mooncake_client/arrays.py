"""How numpy and torch arrays become bytes in place, and bytes arrays again.

Neither library is imported until an object needs it: an ndarray can only be handed in where numpy
is loaded already, and is only built where one was stored.
"""

import ctypes
import importlib
import math
import re
import sys
from collections.abc import Callable
from functools import lru_cache, partial
from pickle import PickleBuffer
from typing import Annotated, Any

import msgspec

from mooncake_client.errors import InvalidArgumentError

Shape = tuple[Annotated[int, msgspec.Meta(ge=0)], ...]


class ArrayMeta(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What the header keeps of an array whose elements lie out of band.

    *offset* counts from the first byte after the header's padding. *dtype* is numpy's or torch's
    own name, or the packed description of a structured dtype.
    """

    offset: Annotated[int, msgspec.Meta(ge=0)]
    dtype: str
    shape: Shape
    fortran: bool = False


class Block(msgspec.Struct, frozen=True):
    """Elements to store: lying in one piece (*source*), or written by *fill* in one pass."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int = 0
    source: memoryview | None = None
    fill: Callable[[memoryview], None] | None = None
    fortran: bool = False


class UnsupportedError(Exception):
    """An object the codec cannot store.

    *steps* leads to it, innermost first, as (text, id of the container).
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[tuple[str, int]] = []


def address_of(buffer: memoryview) -> int:
    """Where *buffer*, which may be read-only, lies in this process; true while it is alive."""
    raw = _PyBuffer()
    _get_buffer(buffer, ctypes.byref(raw), 0)
    _release_buffer(ctypes.byref(raw))
    return raw.buf or 0


# numpy


def ndarray_block(array: Any) -> Block:
    """Describe an ndarray. Only strided elements are copied, and those when *fill* is called."""
    dtype = array.dtype
    spec = _SPECS.get(dtype) or _spec_of(dtype)
    nbytes: int = array.nbytes
    if not nbytes:
        if array.size > _EMPTY_ITEMS_MAX:
            raise UnsupportedError(f"more than {_EMPTY_ITEMS_MAX} elements without bytes")
        return Block(spec, array.shape)
    flags = array.flags
    if flags.c_contiguous:
        return Block(spec, array.shape, nbytes, source=_flat(array))
    if flags.f_contiguous:
        return Block(spec, array.shape, nbytes, source=_flat(array.T), fortran=True)
    return Block(spec, array.shape, nbytes, fill=partial(_fill_ndarray, array))


def ndarray_from(meta: ArrayMeta, view: memoryview, base: int, *, copy: bool) -> Any:
    """Build the ndarray over *view*; ValueError where the description does not fit."""
    np = require("numpy")
    dtype = _dtype_of(meta.dtype)
    count = math.prod(meta.shape)
    order = "F" if meta.fortran else "C"
    nbytes = count * dtype.itemsize
    if nbytes == 0:
        # Nothing in the view bounds these; walking 2**63 of them would take for ever.
        if count > _EMPTY_ITEMS_MAX:
            raise ValueError(f"{count} elements without bytes")
        empty = np.ndarray(meta.shape, dtype, order=order)
        empty.flags.writeable = copy
        return empty
    start = base + meta.offset
    if start + nbytes > view.nbytes:
        raise ValueError(f"an array ends at byte {start + nbytes} of {view.nbytes}")
    array = np.frombuffer(view, dtype, count, start).reshape(meta.shape, order=order)
    return array.copy(order) if copy else array


def scalar_parts(value: Any) -> tuple[str, bytes]:
    """Dtype and bytes of a numpy scalar."""
    # An S or U array drops trailing NULs, a str_ or bytes_ keeps them: these two go by value.
    if isinstance(value, str):
        return "str_", value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return "bytes_", bytes(value)
    return _spec_of(value.dtype), value.tobytes()


def scalar_from(spec: str, data: bytes) -> Any:
    """Build the numpy scalar; ValueError where *data* is not one of that dtype."""
    np = require("numpy")
    if spec == "str_":
        return np.str_(data.decode("utf-8", "surrogatepass"))
    if spec == "bytes_":
        return np.bytes_(data)
    dtype = _dtype_of(spec)
    if len(data) != dtype.itemsize:
        raise ValueError(f"{len(data)} bytes for a scalar of {dtype.itemsize}")
    if not data:
        return np.ndarray((), dtype)[()]
    return np.frombuffer(data, dtype)[0]


# torch


def tensor_block(tensor: Any) -> Block:
    """Describe a tensor of any device. Only strided or foreign elements are copied, by *fill*."""
    torch = sys.modules["torch"]
    if tensor.layout is not torch.strided or tensor.is_nested:
        raise UnsupportedError(f"a tensor of layout {tensor.layout} has no plain bytes; use to_dense() or its parts")
    if tensor.is_quantized:
        raise UnsupportedError("a quantised tensor would lose its scale; store int_repr(), scale and zero point")
    if tensor.is_meta:
        raise UnsupportedError("a tensor on the meta device has no data")
    name = str(tensor.dtype)
    if name not in _torch_dtypes():
        raise UnsupportedError(f"tensors of {name} are not supported")
    shape = tuple(tensor.shape)
    nbytes: int = tensor.numel() * tensor.element_size()
    if nbytes == 0:
        return Block(name, shape)
    in_place = tensor.is_cpu and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
    address = tensor.data_ptr() if in_place else 0
    if address:
        return Block(name, shape, nbytes, source=_memory(address, nbytes, tensor))
    return Block(name, shape, nbytes, fill=partial(_fill_tensor, tensor.detach()))


def tensor_from(meta: ArrayMeta, view: memoryview, base: int, *, address: int, copy: bool) -> Any:
    """Build the tensor over *view*, which lies at *address*; ValueError where it does not fit.

    torch has no read-only tensors: over the pool's read-only mapping a write ends the process.
    """
    torch = require("torch")
    dtype = _torch_dtypes().get(meta.dtype)
    if dtype is None:
        raise ValueError(f"no torch dtype {meta.dtype!r} that can be read")
    count = math.prod(meta.shape)
    if count == 0:
        return torch.empty(meta.shape, dtype=dtype)
    nbytes = count * dtype.itemsize
    start = base + meta.offset
    if start + nbytes > view.nbytes:
        raise ValueError(f"a tensor ends at byte {start + nbytes} of {view.nbytes}")
    part = view[start : start + nbytes]
    # torch warns about read-only buffers through the process-wide warning filters, which cannot be
    # silenced for one thread. The same memory as a ctypes array says nothing about writing. *part*
    # is ours alone and so never released early: it keeps what the view was derived from alive for
    # as long as the tensor lives.
    memory = _ctypes_array(address + start, nbytes, part)
    tensor = torch.frombuffer(memory, dtype=dtype, count=count)
    if copy:
        tensor = _copyable(tensor).clone().view(dtype)
    return tensor if len(meta.shape) == 1 else tensor.view(meta.shape)


# shared helpers


def require(name: str) -> Any:
    """The optional library *name*, imported now if need be."""
    module = sys.modules.get(name)
    if module is not None:
        return module
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InvalidArgumentError(f"the object holds {name} data but {name} cannot be imported: {error}") from error


# dtypes without fields -> how they are written. Bounded: numpy has a few dozen, datetime units and
# S/U lengths more.
_SPECS: dict[Any, str] = {}
_SPECS_MAX = 1024
_PLAIN_DTYPE = re.compile(r"[<>|=][biufcmMSUV]\d{1,18}(\[[\w/ ]{1,24}\])?")
_FIELDS_DEPTH_MAX = 16
# Elements of dtypes like V0.
_EMPTY_ITEMS_MAX = 1 << 20


def _spec_of(dtype: Any) -> str:
    described = _describe(dtype)
    if not isinstance(described, str):
        return msgspec.json.encode(described).decode()
    if len(_SPECS) < _SPECS_MAX:
        _SPECS[dtype] = described
    return described


def _describe(dtype: Any) -> Any:
    """The dtype as text, or as nested lists where it has fields or a sub-array."""
    if dtype.hasobject or dtype.kind not in "biufcmMSUV":
        raise UnsupportedError(f"an array of dtype {dtype} holds Python objects, not plain bytes")
    if dtype.subdtype is not None:
        return ["sub", _describe(dtype.subdtype[0]), list(dtype.subdtype[1])]
    if dtype.names is not None:
        return _describe_fields(dtype)
    if dtype.isbuiltin == 2:
        if dtype.type.__module__.partition(".")[0] != "ml_dtypes":
            raise UnsupportedError(f"dtype {dtype} is an extension type the codec does not know")
        return f"ml_dtypes.{dtype.name}"
    return dtype.str


def _describe_fields(dtype: Any) -> list[Any]:
    np = sys.modules["numpy"]
    if dtype.type not in (np.void, np.record):
        raise UnsupportedError(f"a structured dtype over {dtype.type.__name__} is not supported")
    rows = [dtype.fields[name] for name in dtype.names]
    titles = [row[2] if len(row) > 2 else None for row in rows]
    if not all(title is None or isinstance(title, str) for title in titles):
        raise UnsupportedError("a structured dtype's titles must be text")
    return [
        "record" if dtype.type is np.record else "void",
        list(dtype.names),
        [_describe(row[0]) for row in rows],
        [row[1] for row in rows],
        titles,
        dtype.itemsize,
        dtype.isalignedstruct,
    ]


@lru_cache(maxsize=256)
def _dtype_of(spec: str) -> Any:
    return _dtype_from(msgspec.json.decode(spec) if spec.startswith("[") else spec, 0)


def _dtype_from(described: Any, depth: int) -> Any:
    np = require("numpy")
    if depth > _FIELDS_DEPTH_MAX:
        raise ValueError("a dtype nested too deep")
    if isinstance(described, str):
        if described.startswith("ml_dtypes."):
            return np.dtype(getattr(require("ml_dtypes"), described.removeprefix("ml_dtypes.")))
        # np.dtype() understands far more than it writes, "O" and a small language among it.
        if not _PLAIN_DTYPE.fullmatch(described):
            raise ValueError(f"no dtype: {described!r}")
        return np.dtype(described)
    if described[0] == "sub":
        _, inner, shape = described
        return np.dtype((_dtype_from(inner, depth + 1), tuple(shape)))
    base, names, formats, offsets, titles, itemsize, aligned = described
    fields = {
        "names": names,
        "formats": [_dtype_from(inner, depth + 1) for inner in formats],
        "offsets": offsets,
        "itemsize": itemsize,
    }
    if any(title is not None for title in titles):
        fields["titles"] = titles
    dtype = np.dtype(fields, align=aligned)
    return np.dtype((np.record, dtype)) if base == "record" else dtype


def _flat(array: Any) -> memoryview:
    try:
        return PickleBuffer(array).raw()
    except (ValueError, BufferError):
        # Dates, overlapping fields and extension types have no name in the buffer protocol.
        view: memoryview = array.reshape(-1).view("u1").data
        return view


def _fill_ndarray(array: Any, target: memoryview) -> None:
    np = sys.modules["numpy"]
    if array.dtype.names is not None:
        # Copied field by field, the padding between fields would keep what the memory held before.
        array = array.view(f"V{array.dtype.itemsize}")
    np.copyto(np.frombuffer(target, array.dtype).reshape(array.shape), array)


@lru_cache(maxsize=1)
def _torch_dtypes() -> dict[str, Any]:
    """Every torch dtype whose elements mean something without further parameters, by name."""
    torch = require("torch")
    found = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
    quantised = ("torch.qint", "torch.quint")
    return {name: dtype for name, dtype in found.items() if not name.startswith(quantised)}


def _fill_tensor(tensor: Any, target: memoryview) -> None:
    torch = sys.modules["torch"]
    whole = torch.frombuffer(target, dtype=tensor.dtype, count=tensor.numel()).view(tensor.shape)
    if not tensor.is_neg():
        whole, tensor = _copyable(whole), _copyable(tensor)
    whole.copy_(tensor)


def _copyable(tensor: Any) -> Any:
    # torch has no copy kernels for its sub-byte and bit dtypes.
    return tensor.view(sys.modules["torch"].uint8) if tensor.element_size() == 1 else tensor


def _memory(address: int, nbytes: int, owner: object) -> memoryview:
    return memoryview(_ctypes_array(address, nbytes, owner)).cast("B")[:nbytes]


def _ctypes_array(address: int, nbytes: int, owner: object) -> Any:
    """A buffer at *address* that keeps *owner* alive, longer than *nbytes*: the caller cuts it."""
    array: Any = _array_type(nbytes.bit_length()).from_address(address)
    array.owner = owner
    return array


@lru_cache(maxsize=64)
def _array_type(bits: int) -> type[ctypes.Array[ctypes.c_ubyte]]:
    # One type per power of two: making one costs ten times an instance of it.
    return ctypes.c_ubyte * (1 << bits)


class _PyBuffer(ctypes.Structure):
    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_void_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


# By item: as attributes these are shared with whoever else in the process sets their types.
_get_buffer = ctypes.pythonapi["PyObject_GetBuffer"]
_get_buffer.argtypes = (ctypes.py_object, ctypes.c_void_p, ctypes.c_int)
_release_buffer = ctypes.pythonapi["PyBuffer_Release"]
_release_buffer.argtypes = (ctypes.c_void_p,)
_release_buffer.restype = None
