"""What the cluster demo's workers are told to do, and what they tell of it."""

from typing import Literal

import msgspec

from mooncake_node.demo.memory import Place


class Order(msgspec.Struct, frozen=True):
    """One thing to do with one object."""

    call: Literal["put", "get", "let_go", "remove"]
    key: str
    nbytes: int = 0  # to be put
    at_ns: int = 0  # of the machine's monotonic clock: not before


class Stored(msgspec.Struct, frozen=True):
    """What a put made."""

    stored_nbytes: int  # the object's bytes and the header that says what they are
    xxh3: int  # of its bytes as the worker made them
    took_ns: int


class Got(msgspec.Struct, frozen=True):
    """What a get gave."""

    found: bool
    took_ns: int
    nbytes: int = 0
    xxh3: int = 0
    place: Place | None = None  # None: not in a pool, or no bytes to be anywhere


class Removed(msgspec.Struct, frozen=True):
    """What a remove said."""

    was_there: bool
    took_ns: int
