"""Objects to bytes in place, and back without a copy.

An encoded object is ``[u32 LE header length][msgpack header][large buffers]``. Each buffer starts on a multiple of 64
bytes, from 1 MiB on at a page, counted from the object's start. Array elements and bytes of 4 KiB and more lie out of
band and are copied once, to their place. bytes, bytearray and memoryview alone are stored as they are (kind RAW).

What comes back: the same containers with equal values. Subclasses of the built-in types come back
as the built-in type (namedtuple: tuple), an Enum as its value, a dataclass or Struct as dict, each
unless ``type=`` asks for it. An aware datetime keeps its offset, not its zone's name. Nested bytes
below 4 KiB come back as bytes, longer ones as a read-only memoryview of the store; ``copy=True``
gives bytes. bytearray likewise, as bytearray. array.array is always private. A tensor comes back on
the CPU and without grad. An object held twice is stored twice.

Views: numpy arrays over the store are read-only. torch has no such thing: a write to a tensor over
the store's read-only mapping ends the process. Whoever wants to write takes ``copy=True``.
"""

import pickle
import struct
from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import partial
from typing import Annotated, Any, get_origin

import msgspec

from mooncake_client.arrays import UnsupportedError
from mooncake_client.codes import Code
from mooncake_client.errors import InvalidArgumentError, StoreError, error_for
from mooncake_client.lift import Lifting
from mooncake_client.lower import (
    ALIGNMENT,
    Lowering,
    NotPlainError,
    aligned,
    buffers_start,
    encode,
    flat,
    type_name,
)

__all__ = ["ALIGNMENT", "Codec", "Encoded", "Kind", "Part", "raw"]


class Kind(IntEnum):
    """How the bytes are to be read. Metadata of the replica, never part of the bytes."""

    RAW = 0
    ENCODED = 1
    PICKLED = 2


# The look-up of an Enum's member is slow.
_RAW, _ENCODED, _PICKLED = Kind


class Part(msgspec.Struct, frozen=True):
    """Bytes of an encoded object that stand together, at *offset* from its start.

    Exactly one of *source* (C-contiguous, format B, *nbytes* long) and *fill* (writes exactly
    *nbytes* into a writable B view of that length, in one pass) is set. Both keep the caller's
    object alive; its data is read when copied.
    """

    offset: int
    nbytes: int
    source: memoryview | None
    fill: Callable[[memoryview], None] | None = None

    def copy_into(self, target: memoryview) -> None:
        """Write the bytes to *target*, a writable B view of *nbytes*."""
        if self.source is not None:
            target[:] = self.source
        elif self.fill is not None:
            self.fill(target)


class Encoded(msgspec.Struct, frozen=True):
    """An object ready to be written: *nbytes* in all, *parts* by offset, zeros in between."""

    kind: Kind
    nbytes: int
    parts: list[Part]

    def gaps(self) -> Iterator[tuple[int, int]]:
        """Offset and length of every run no part covers. Whoever writes the parts zeroes these."""
        end = 0
        for part in self.parts:
            if part.offset > end:
                yield end, part.offset - end
            end = part.offset + part.nbytes

    def write_into(self, target: memoryview) -> None:
        """Write the whole object to the first *nbytes* of *target*, gaps included."""
        for offset, nbytes in self.gaps():
            target[offset : offset + nbytes] = bytes(nbytes)
        for part in self.parts:
            part.copy_into(target[part.offset : part.offset + part.nbytes])


class Codec:
    """Encodes and decodes objects. Holds no state between calls: one may serve several threads.

    *enc_hook* turns an object of unknown type into a known one; an object may be shown to it twice.
    *dec_hook(type, obj)* builds unknown types that ``decode(type=)`` asks for. *pickle* stores what
    is still unknown by pickle, and permits reading such objects back, which runs code the writer
    chose.
    """

    def __init__(
        self,
        *,
        enc_hook: Callable[[Any], Any] | None = None,
        dec_hook: Callable[[Any, Any], Any] | None = None,
        pickle: bool = False,
    ) -> None:
        self._enc_hook = enc_hook
        self._dec_hook = None if dec_hook is None else partial(_unless_instance, dec_hook)
        self._pickle = pickle

    def encode(self, obj: Any) -> Encoded:
        """Lay *obj* out without copying arrays or large bytes.

        InvalidArgumentError names the path to what cannot be stored.
        """
        cls = type(obj)
        if cls is bytes:
            return Encoded(_RAW, len(obj), [Part(0, len(obj), memoryview(obj))] if obj else [])
        if cls in _RAW_TYPES:
            return raw(obj)
        try:
            try:
                return self._encode(obj, strict=False)
            except (NotPlainError, OverflowError, UnicodeEncodeError):
                return self._encode(obj, strict=True)
        except UnsupportedError as error:
            if self._pickle:
                return _encode_pickled(obj)
            raise _refusal(error) from error
        except (RecursionError, OverflowError, UnicodeEncodeError) as error:
            raise InvalidArgumentError(f"cannot store the object: {error}") from error

    def decode(
        self,
        kind: int,
        view: memoryview,
        *,
        copy: bool = False,
        type: Any = None,  # noqa: A002 - the word users know from msgspec
    ) -> Any:
        """Build the object that fills *view*.

        Everything in it that needs *view*'s memory keeps it alive; with *copy* nothing does, and
        all is writable. *type* asks for a type as ``msgspec.convert`` does. Damaged bytes raise
        StoreError, never worse.
        """
        if not view.readonly:
            view = view.toreadonly()
        if kind == _RAW:
            out = bytearray(view) if copy else view
        elif kind == _ENCODED:
            out = _decode_encoded(view, copy=copy)
        elif kind != _PICKLED:
            raise StoreError(f"objects of kind {kind} need a newer client")
        elif self._pickle:
            out = _decode_pickled(view, copy=copy)
        else:
            raise InvalidArgumentError(
                "the object was stored by pickle; reading it runs code its writer chose: it takes pickle=True"
            )
        return out if type is None else self._convert(out, type)

    def _encode(self, obj: Any, *, strict: bool) -> Encoded:
        state = Lowering(self._enc_hook, strict=strict)
        return _lay_out(Kind.ENCODED, encode(state.lower(obj)), state)

    def _convert(self, obj: Any, wanted: Any) -> Any:
        try:
            return msgspec.convert(obj, wanted, dec_hook=self._dec_hook)
        except (msgspec.ValidationError, TypeError) as error:
            raise InvalidArgumentError(f"the stored object is no {wanted}: {error}") from error


def raw(*buffers: Any) -> Encoded:
    """Exactly the bytes of the *buffers*, one after the other."""
    parts: list[Part] = []
    end = 0
    for index, buffer in enumerate(buffers):
        try:
            view = flat(buffer)
        except UnsupportedError as error:
            raise InvalidArgumentError(f"buffer {index}: {error.reason}") from error
        if view.nbytes:
            parts.append(Part(end, view.nbytes, view))
            end += view.nbytes
    return Encoded(_RAW, end, parts)


_RAW_TYPES = frozenset({bytes, bytearray, memoryview})
# A longer header gets a part of its own rather than another copy.
_JOINED_MAX = 4096
_HEADER_BYTES_MAX = (1 << 32) - 1
# In a message; the whole path may be DEPTH_MAX steps.
_STEPS_MAX = 12
_head = struct.Struct("<I")
_unpack = msgspec.msgpack.decode
_Unsigned = Annotated[int, msgspec.Meta(ge=0)]
_pickle_header = msgspec.msgpack.Decoder(list[tuple[_Unsigned, _Unsigned]]).decode
# What code fed with bytes the codec did not write can raise.
_CORRUPT = (
    msgspec.MsgspecError,
    struct.error,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RuntimeError,  # torch's own
    MemoryError,
    BufferError,
)


def _lay_out(kind: Kind, header: bytes, state: Lowering) -> Encoded:
    if len(header) > _HEADER_BYTES_MAX:
        raise UnsupportedError(f"{len(header)} bytes outside arrays, more than {_HEADER_BYTES_MAX}")
    head = _head.pack(len(header))
    end = 4 + len(header)
    if len(header) <= _JOINED_MAX:
        parts = [Part(0, end, memoryview(head + header))]
    else:
        parts = [Part(0, 4, memoryview(head)), Part(4, len(header), memoryview(header))]
    if not state.blocks:
        return Encoded(kind, end, parts)
    base = buffers_start(end, state.size)
    for offset, nbytes, source, fill in state.blocks:
        parts.append(Part(base + offset, nbytes, source, fill))
    return Encoded(kind, base + state.size, parts)


def _split(view: memoryview) -> tuple[memoryview, int]:
    """The header, and where the buffers start."""
    if view.nbytes < 4:
        raise _corrupt(f"{view.nbytes} bytes hold no header")
    end = 4 + int(_head.unpack_from(view)[0])
    if end > view.nbytes:
        raise _corrupt(f"the header ends at byte {end} of {view.nbytes}")
    return view[4:end], buffers_start(end, view.nbytes - aligned(end))


def _decode_encoded(view: memoryview, *, copy: bool) -> Any:
    header, base = _split(view)
    try:
        return Lifting(view, base, copy=copy).lift(header)
    except StoreError:
        raise
    except RecursionError as error:
        raise StoreError(f"cannot read the object: {error}") from error
    except _CORRUPT as error:
        raise _corrupt(str(error)) from error


def _encode_pickled(obj: Any) -> Encoded:
    """Lay *obj* out as a pickle, buffer 0, and the buffers it left out."""
    buffers: list[memoryview] = []

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        try:
            buffers.append(buffer.raw())
        except BufferError:
            return True
        return False

    try:
        stream = pickle.dumps(obj, protocol=5, buffer_callback=keep_in_band)
    except Exception as error:
        raise InvalidArgumentError(f"cannot pickle an object of type {type_name(obj)}: {error}") from error
    state = Lowering(None, strict=False)
    places = [(state.place(part.nbytes, part, None), part.nbytes) for part in (memoryview(stream), *buffers)]
    return _lay_out(Kind.PICKLED, encode(places), state)


def _decode_pickled(view: memoryview, *, copy: bool) -> Any:
    header, base = _split(view)
    try:
        places = _pickle_header(header)
        state = Lifting(view, base, copy=copy)
        stream, *parts = (state.cut(offset, nbytes) for offset, nbytes in places)
    except _CORRUPT as error:
        raise _corrupt(str(error)) from error
    try:
        return pickle.loads(stream, buffers=map(bytearray, parts) if copy else parts)  # noqa: S301 - asked for
    except Exception as error:
        raise StoreError(f"cannot unpickle the object: {error!r}") from error


def _refusal(error: UnsupportedError) -> InvalidArgumentError:
    """What to tell the caller: where in the object, why, and what to do."""
    steps = error.steps[::-1]
    seen: dict[int, int] = {}
    reason = error.reason
    for depth, (_, owner) in enumerate(steps):
        if owner in seen:
            reason, steps = "it contains itself", steps[:depth]
            break
        seen[owner] = depth
    shown = "".join(text for text, _ in steps[:_STEPS_MAX])
    path = f"obj{shown}{'...' if len(steps) > _STEPS_MAX else ''}"
    return InvalidArgumentError(f"cannot store {path}: {reason}; pass pickle=True or an enc_hook")


def _corrupt(reason: str) -> StoreError:
    return error_for(Code.CHECKSUM_MISMATCH, f"the stored bytes are damaged: {reason}")


def _unless_instance(dec_hook: Callable[[Any, Any], Any], wanted: Any, obj: Any) -> Any:
    # Arrays are built before conversion; msgspec would show them to the hook all the same.
    plain = get_origin(wanted) or wanted
    return obj if isinstance(plain, type) and isinstance(obj, plain) else dec_hook(wanted, obj)
