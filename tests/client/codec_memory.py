"""Where the codec's tests put objects: memory as the pool gives it, dirty and aligned."""

import ctypes
from typing import Any

from mooncake_client.codec import Codec, Encoded

CODEC = Codec()


def dirty_memory(nbytes: int) -> memoryview:
    """Writable bytes at a multiple of 64, none of them zero."""
    room = bytearray(b"\xa5" * (nbytes + 64))
    start = -ctypes.addressof(ctypes.c_char.from_buffer(room)) % 64
    return memoryview(room)[start : start + nbytes]


def write(encoded: Encoded) -> memoryview:
    """The stored bytes, read-only."""
    memory = dirty_memory(encoded.nbytes)
    for offset, nbytes in encoded.gaps():
        memory[offset : offset + nbytes] = bytes(nbytes)
    for part in encoded.parts:
        part.copy_into(memory[part.offset : part.offset + part.nbytes])
    return memory.toreadonly()


def stored(obj: Any, codec: Codec = CODEC, **kwargs: Any) -> Any:
    """*obj* after a round trip."""
    encoded = codec.encode(obj)
    return codec.decode(encoded.kind, write(encoded), **kwargs)
