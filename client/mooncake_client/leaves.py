"""Values without parts that msgpack does not know, each beside its way back."""

import datetime as dt
import decimal
import struct
import uuid
from collections.abc import Callable
from typing import Any

import msgspec


class Tag:
    """Ext types of the header. A number, once given a meaning, is never reused.

    Not an IntEnum: msgspec takes exact ints only.
    """

    TUPLE = 1
    SET = 2
    FROZENSET = 3
    MAP = 4
    INT = 5
    TEXT = 6
    COMPLEX = 7
    DATETIME = 8
    DATE = 9
    TIME = 10
    TIMEDELTA = 11
    DECIMAL = 12
    UUID = 13
    BUFFER = 14
    BYTEARRAY = 15
    ARRAY = 16
    NDARRAY = 17
    SCALAR = 18
    TENSOR = 19


class Leaf(msgspec.Struct, frozen=True):
    """Exactly *cls* is written by *pack*; *unpack* raises on bytes that *pack* did not write."""

    cls: type
    tag: int
    pack: Callable[[Any], bytes]
    unpack: Callable[[memoryview], Any]


_encode = msgspec.msgpack.encode
_complex = struct.Struct("<dd")
_timedelta_parts = msgspec.msgpack.Decoder(tuple[int, int, int]).decode
_clock_parts = msgspec.msgpack.Decoder(tuple[str, int]).decode


def _pack_int(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)


def _unpack_int(data: memoryview) -> int:
    return int.from_bytes(data, "little", signed=True)


def _pack_text(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


def _unpack_text(data: memoryview) -> str:
    return str(data, "utf-8", "surrogatepass")


def _pack_complex(value: complex) -> bytes:
    return _complex.pack(value.real, value.imag)


def _unpack_complex(data: memoryview) -> complex:
    return complex(*_complex.unpack(data))


def _pack_clock(value: dt.datetime | dt.time) -> bytes:
    return _encode((value.isoformat(), value.fold))


def _unpack_datetime(data: memoryview) -> dt.datetime:
    text, fold = _clock_parts(data)
    return dt.datetime.fromisoformat(text).replace(fold=fold)


def _unpack_time(data: memoryview) -> dt.time:
    text, fold = _clock_parts(data)
    return dt.time.fromisoformat(text).replace(fold=fold)


def _pack_date(value: dt.date) -> bytes:
    return value.isoformat().encode()


def _unpack_date(data: memoryview) -> dt.date:
    return dt.date.fromisoformat(str(data, "ascii"))


def _pack_timedelta(value: dt.timedelta) -> bytes:
    return _encode((value.days, value.seconds, value.microseconds))


def _unpack_timedelta(data: memoryview) -> dt.timedelta:
    return dt.timedelta(*_timedelta_parts(data))


def _pack_decimal(value: decimal.Decimal) -> bytes:
    return str(value).encode()


def _unpack_decimal(data: memoryview) -> decimal.Decimal:
    return decimal.Decimal(str(data, "ascii"))


def _pack_uuid(value: uuid.UUID) -> bytes:
    return value.bytes


def _unpack_uuid(data: memoryview) -> uuid.UUID:
    return uuid.UUID(bytes=bytes(data))


# Only those msgpack refuses: below 65 bits, and UTF-8.
BIG_INT = Leaf(int, Tag.INT, _pack_int, _unpack_int)
ODD_TEXT = Leaf(str, Tag.TEXT, _pack_text, _unpack_text)
LEAVES = (
    Leaf(complex, Tag.COMPLEX, _pack_complex, _unpack_complex),
    Leaf(dt.datetime, Tag.DATETIME, _pack_clock, _unpack_datetime),
    Leaf(dt.date, Tag.DATE, _pack_date, _unpack_date),
    Leaf(dt.time, Tag.TIME, _pack_clock, _unpack_time),
    Leaf(dt.timedelta, Tag.TIMEDELTA, _pack_timedelta, _unpack_timedelta),
    Leaf(decimal.Decimal, Tag.DECIMAL, _pack_decimal, _unpack_decimal),
    Leaf(uuid.UUID, Tag.UUID, _pack_uuid, _unpack_uuid),
)
