"""What directory values look like on the server: text that Lua can take apart without turning it into numbers.

A generation is 16 hex digits, so that two of them compare as text: Lua's numbers are doubles. Incarnations and epochs
stay below 2**53.

A holding, under its node's name: ``role:incarnation:generation:epoch:place:nbytes:kind:pin:until``, where the role is
``o`` for the owner's, ``s`` for a secondary and ``x`` for one that was removed, the place ``m`` or ``d`` for memory or
disk, the pin ``p`` or nothing. Who owned what was removed is not kept.
A node, under its own key: ``incarnation:slot:free_bytes:endpoint``.
"""

import hashlib
from collections.abc import Sequence

from mooncake_node.directory.entries import in_order
from mooncake_node.directory.naming import RESERVED_NAME
from mooncake_node.directory.port import Entry, Holding, Node

NUMBER_END = 1 << 53  # Lua's numbers are exact below
GENERATION_END = 1 << 64
_TOMBSTONE = RESERVED_NAME.encode()
_REMOVED = b"x"


def digest_of(key: str) -> str:
    """BLAKE2b-128 of the key's UTF-8, in hex: all that the server ever sees of it."""
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest()


def generation_text(generation: int) -> str:
    """16 hex digits."""
    assert 0 <= generation < GENERATION_END
    return f"{generation:016x}"


def holding_text(holding: Holding) -> str:
    """The value under the holding's node."""
    assert 0 <= holding.incarnation < NUMBER_END
    assert 0 <= holding.epoch < NUMBER_END
    return ":".join(
        (
            "o" if holding.is_owner else "s",
            str(holding.incarnation),
            generation_text(holding.generation),
            str(holding.epoch),
            "d" if holding.on_disk else "m",
            str(holding.nbytes),
            str(holding.kind),
            "p" if holding.softpin else "",
            "" if holding.softpin_until_unix_ms is None else str(holding.softpin_until_unix_ms),
        )
    )


def holding_from(node: bytes, value: bytes) -> Holding:
    """The inverse of `holding_text`; a removed one is no owner's. ValueError: it is none."""
    role, incarnation, generation, epoch, place, nbytes, kind, pin, until = value.decode().split(":")
    return Holding(
        node=node.decode(),
        incarnation=int(incarnation),
        generation=int(generation, 16),
        nbytes=int(nbytes),
        kind=int(kind),
        epoch=int(epoch),
        is_owner=role == "o",
        on_disk=place == "d",
        softpin=pin == "p",
        softpin_until_unix_ms=int(until) if until else None,
    )


def entry_from(fields: Sequence[bytes]) -> Entry:
    """An entry of a hash's fields and values in turn."""
    holdings: list[Holding] = []
    removed: list[Holding] = []
    tombstone = 0
    for node, value in zip(fields[::2], fields[1::2], strict=True):
        if node == _TOMBSTONE:
            tombstone = int(value, 16)
        else:
            (removed if value.startswith(_REMOVED) else holdings).append(holding_from(node, value))
    return Entry(in_order(holdings), tombstone, in_order(removed))


def node_text(node: Node) -> str:
    """The value under the node's key."""
    assert 0 <= node.incarnation < NUMBER_END
    return f"{node.incarnation}:{node.slot}:{node.free_bytes}:{node.endpoint}"


def node_from(name: str, value: bytes) -> Node:
    """The inverse of `node_text`. ValueError: it is none."""
    incarnation, slot, free_bytes, endpoint = value.decode().split(":", 3)
    return Node(name=name, incarnation=int(incarnation), slot=int(slot), free_bytes=int(free_bytes), endpoint=endpoint)
