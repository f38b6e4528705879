"""The daemon's own way into G: for objects small enough to come in a message, and for the offload tier."""

import ctypes

from mooncake_client.mapping import Mapping
from mooncake_node.core.space import footprint

_ZEROS = bytes(4096)


class PoolWriter:
    """Writes through the daemon's mapping, which must outlive it."""

    def __init__(self, mapping: Mapping) -> None:
        root = (ctypes.c_char * mapping.nbytes).from_address(mapping.address)
        self._bytes = memoryview(root).cast("B")

    def store(self, offset: int, data: memoryview) -> None:
        """Put a whole object at *offset*, the rest of what is reserved for it zeroed."""
        nbytes = data.nbytes
        self._bytes[offset : offset + nbytes] = data
        self.zero_tail(offset, nbytes)

    def view(self, offset: int, nbytes: int) -> memoryview:
        """Those bytes, writable."""
        return self._bytes[offset : offset + nbytes]

    def zero_tail(self, offset: int, nbytes: int) -> None:
        """Zero what is reserved beyond an object's bytes."""
        rest = footprint(nbytes) - nbytes
        if rest:
            self._bytes[offset + nbytes : offset + nbytes + rest] = _ZEROS[:rest]
