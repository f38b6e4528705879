"""Checks of what callers hand in; each refusal says what was wrong, before anything is sent."""

import math
import operator
import string
import time
from collections.abc import Iterable
from typing import SupportsFloat, TypedDict

import msgspec

from mooncake_client import wire
from mooncake_client.codec import Encoded
from mooncake_client.errors import InvalidArgumentError

SCOPES = ("cluster", "node")
_HEX_DIGITS = frozenset(string.hexdigits)


class Deadline(msgspec.Struct, frozen=True, gc=False):
    """The end of one call, from the moment it was made."""

    timeout_s: float
    began_s: float = msgspec.field(default_factory=time.monotonic)

    @property
    def timeout_ms(self) -> int:
        """All of it in whole milliseconds, rounded up: what is left for the first request."""
        return math.ceil(self.timeout_s * 1000)

    def remaining_ms(self) -> int:
        """Whole milliseconds left, rounded up; 0 when the time is over."""
        return max(0, math.ceil(self.remaining_s() * 1000))

    def remaining_s(self) -> float:
        """Seconds left; negative when the time is over."""
        return self.began_s + self.timeout_s - time.monotonic()


def check_timeout(timeout: object) -> float:
    """Seconds, 0 to a week."""
    if isinstance(timeout, bool) or not isinstance(timeout, SupportsFloat):
        raise InvalidArgumentError(f"a timeout is a number of seconds, not {type(timeout).__name__}")
    seconds = float(timeout)
    if not 0 <= seconds <= wire.TIMEOUT_MS_MAX / 1000:
        raise InvalidArgumentError(f"a timeout is 0 to {wire.TIMEOUT_MS_MAX // 1000} seconds, not {timeout!r}")
    return seconds


def check_key(key: object) -> str:
    """A str of 1 to 1,024 bytes of UTF-8."""
    if not isinstance(key, str):
        raise InvalidArgumentError(f"a key is a str, not {type(key).__name__}")
    if key.isascii():
        nbytes = len(key)
    else:
        try:
            nbytes = len(key.encode())
        except UnicodeEncodeError as exc:
            raise InvalidArgumentError(f"a key must be valid Unicode: {exc}") from exc
    if not 0 < nbytes <= wire.KEY_NBYTES_MAX:
        shown = key[:40]
        raise InvalidArgumentError(f"a key has 1 to {wire.KEY_NBYTES_MAX} bytes of UTF-8, not {nbytes}", key=shown)
    # Of a subclass the plain str: the wire takes no other.
    return key if type(key) is str else str.__str__(key)


def check_keys(keys: object) -> list[str]:
    """A list of keys; a single str is most likely a mistake."""
    if isinstance(keys, str | bytes):
        raise InvalidArgumentError("this call takes several keys, not one str")
    try:
        return [check_key(key) for key in keys]  # type: ignore[attr-defined]  # that is the check
    except TypeError as exc:
        raise InvalidArgumentError(f"this call takes several keys, not {type(keys).__name__}") from exc


def check_prefix(prefix: object) -> str:
    """A str that can begin a key; empty: every key."""
    return "" if prefix == "" else check_key(prefix)


def check_nbytes(nbytes: object) -> int:
    """A length in bytes."""
    try:
        length = -1 if isinstance(nbytes, bool) else operator.index(nbytes)  # type: ignore[arg-type]  # that is the check
    except TypeError:
        length = -1
    if not 0 <= length < 1 << 62:
        raise InvalidArgumentError(f"a length is a whole number of bytes from 0 to 2**62, not {nbytes!r}")
    return length


def check_generation(generation: object) -> int | None:
    """A generation as `PutInfo.generation` shows it; None: any."""
    if generation is None:
        return None
    # int() alone would also take signs, underscores and 0x.
    if isinstance(generation, str) and len(generation) == 16 and set(generation) <= _HEX_DIGITS:
        return int(generation, 16)
    raise InvalidArgumentError(f"a generation is 16 hexadecimal digits, not {generation!r}")


def check_scope(scope: object) -> str | None:
    """None (the default), "cluster" or "node"."""
    if scope is None:
        return None
    if isinstance(scope, str) and scope in SCOPES:
        return str.__str__(scope)
    raise InvalidArgumentError(f'a scope is "cluster" or "node", not {scope!r}')


def check_ttl(ttl: object) -> int | None:
    """A pin's length in milliseconds from seconds; None: until removed."""
    if ttl is None:
        return None
    if not isinstance(ttl, int | float) or isinstance(ttl, bool) or not 0 <= ttl < 1e12:
        raise InvalidArgumentError(f"a pin's ttl is a number of seconds from 0 on, not {ttl!r}")
    return math.ceil(ttl * 1000)


class PutOptions(msgspec.Struct, frozen=True):
    """What all puts can be told."""

    softpin: bool
    softpin_ttl_ms: int | None
    hardpin: bool
    scope: str | None

    def spec(self, key: str, nbytes: int, kind: int, *, upsert: bool) -> wire.PutSpec:
        """The request for room for one object."""
        return wire.PutSpec(key, nbytes, kind, upsert, self.softpin, self.softpin_ttl_ms, self.hardpin, self.scope)

    def specs(self, puts: Iterable[tuple[str, Encoded]]) -> list[wire.PutSpec]:
        """`spec` for each of many plain puts."""
        options = (False, self.softpin, self.softpin_ttl_ms, self.hardpin, self.scope)
        return [wire.PutSpec(key, encoded.nbytes, encoded.kind, *options) for key, encoded in puts]


_PLAIN = PutOptions(softpin=False, softpin_ttl_ms=None, hardpin=False, scope=None)


class PutKwargs(TypedDict, total=False):
    """The keyword arguments of every put."""

    softpin: bool  # the object must stay readable until removed, or for softpin_ttl
    softpin_ttl: float | None  # seconds; 0: no pin; None: until removed
    hardpin: bool  # it must stay in memory; only where the node offers that
    scope: str | None  # "cluster" (default) | "node"
    timeout: float | None  # seconds to wait for room or for another writer; None: the client's


_PUT_KWARGS = frozenset(PutKwargs.__annotations__)


def put_options(kwargs: PutKwargs) -> PutOptions:
    """Checked options, without the timeout; plain ones are one shared object."""
    if not kwargs:
        return _PLAIN
    if unknown := kwargs.keys() - _PUT_KWARGS:
        raise TypeError(f"unexpected keyword arguments of a put: {', '.join(sorted(unknown))}")
    softpin, softpin_ttl = bool(kwargs.get("softpin")), kwargs.get("softpin_ttl")
    if softpin_ttl is not None and not softpin:
        raise InvalidArgumentError("softpin_ttl means nothing without softpin=True")
    return PutOptions(softpin, check_ttl(softpin_ttl), bool(kwargs.get("hardpin")), check_scope(kwargs.get("scope")))
