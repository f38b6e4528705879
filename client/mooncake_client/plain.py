"""Whether msgspec keeps a container as it is, found out without a look at each element from Python.

The checks may pass what msgspec itself then refuses, such as subclasses of int and str, but never
what it would silently change: a tuple, a set, bytes that belong out of band.
"""

from collections.abc import Callable, Collection
from functools import partial
from itertools import chain
from math import gcd
from typing import Any

import msgspec

SCALARS = frozenset({int, float, str, bool, type(None)})
KEYS = SCALARS | {bytes}


def plain_items(items: Collection[Any]) -> bool:
    """Whether *items* are all scalars, or all dicts of scalars."""
    if len(items) < _PROBE_MIN:
        return SCALARS.issuperset(map(type, items))
    run = items if type(items) in (list, tuple) else list(items)
    return all(_plain_chunk(run[i : i + _CHUNK_MAX]) for i in range(0, len(run), _CHUNK_MAX))  # type: ignore[index]


def plain_dict(obj: dict[Any, Any]) -> bool:
    """Whether keys and values are all scalars."""
    return KEYS.issuperset(map(type, obj)) and plain_items(obj.values())


_PROBE_MIN = 128
# What a probe builds stays in the cache.
_CHUNK_MAX = 1024
_encode = msgspec.msgpack.encode
# Not gcd(1, *chunk), which copies the chunk once more.
_gcd_of_one = partial(gcd, 1)


def _plain_chunk(chunk: Any) -> bool:
    # Looking at every type takes four times as long as encoding; a probe for the type that comes
    # first, about as long.
    probe = _PROBES.get(type(chunk[0]))
    if probe is not None:
        try:
            if probe(chunk):
                return True
        except TypeError:
            pass
    return SCALARS.issuperset(map(type, chunk))


def _probe_ints(chunk: Any) -> bool:
    # At 1 gcd only checks that the rest are integers; TypeError where one is not.
    _gcd_of_one(*chunk)
    return True


def _probe_strs(chunk: Any) -> bool:
    # Past the end no prefix is compared, only checked to be a str; TypeError where one is not.
    "".startswith(tuple(chunk), 1)
    return True


def _probe_floats(chunk: Any) -> bool:
    # Every float is packed as this byte and eight more, and nothing else begins with it. Where the
    # first is one, the second begins nine further, and so on.
    packed = _encode(chunk)
    head = 1 if len(chunk) < 16 else 3
    return len(packed) == head + 9 * len(chunk) and packed[head::9] == b"\xcb" * len(chunk)


def _probe_dicts(chunk: Any) -> bool:
    return (
        {dict}.issuperset(map(type, chunk))
        and KEYS.issuperset(map(type, chain.from_iterable(chunk)))
        and SCALARS.issuperset(map(type, chain.from_iterable(map(dict.values, chunk))))
    )


_PROBES: dict[type, Callable[[Any], bool]] = {
    int: _probe_ints,
    str: _probe_strs,
    float: _probe_floats,
    dict: _probe_dicts,
}
