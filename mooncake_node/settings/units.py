"""Sizes and durations as people write and read them."""

import math
import re
from decimal import Decimal

_BYTES = {
    "": 1,
    "b": 1,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_SECONDS = {
    "": Decimal(1),
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
}
# Twenty digits are enough for any use and keep a pasted megabyte of them from being parsed.
_QUANTITY = re.compile(r"\s*(\d{1,20}(?:\.\d{1,20})?)\s*([A-Za-z]*)\s*", re.ASCII)


class UnitError(ValueError):
    """A text or number that is no size or no duration; the message completes "this value …"."""


def parse_size(value: object) -> int:
    """Bytes, from a whole number or a text with a unit: 1024, ``1.5GiB``, ``64 MB``."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    factor = _BYTES.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise UnitError("must be a number of bytes or a size such as 24GiB (KiB, MiB, GiB, TiB, KB, MB, GB, TB)")
    nbytes = Decimal(match[1]) * factor
    if nbytes != nbytes.to_integral_value():
        raise UnitError("is not a whole number of bytes")
    return int(nbytes)


def parse_seconds(value: object) -> float:
    """Seconds, from a number or a text with a unit: 30, ``500ms``, ``5m``."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    factor = _SECONDS.get(match[2]) if match else None
    if match is None or factor is None:
        raise UnitError("must be a number of seconds or a duration such as 500ms, 30s, 5m, 2h, 1d")
    return float(Decimal(match[1]) * factor)


def format_size(nbytes: float) -> str:
    """A size for people, three significant digits: ``1 GiB``, ``1.5 MiB``, ``17 B``."""
    for unit, factor in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= factor:
            # From 1000 on, "g" would turn to an exponent.
            number = nbytes / factor
            return f"{number:.0f} {unit}" if number >= 100 else f"{number:.3g} {unit}"
    return f"{nbytes:.0f} B"


def format_seconds(seconds: float) -> str:
    """A duration for people: ``90 s``, ``5 ms``."""
    return f"{seconds * 1000:.3g} ms" if 0 < seconds < 1 else f"{seconds:.10g} s"
