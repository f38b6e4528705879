"""The daemon's own way of writing into G: for objects small enough to come in a message."""

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
        end = offset + nbytes
        rest = footprint(nbytes) - nbytes
        self._bytes[offset:end] = data
        if rest:
            self._bytes[end : end + rest] = _ZEROS[:rest]
