"""Bytes to their final place in G, in one copy."""

import ctypes
import os
import threading

from mooncake_client.arrays import address_of
from mooncake_client.codec import Encoded, Part
from mooncake_client.errors import InvalidArgumentError
from mooncake_client.faults import CLIENT_FAULTS
from mooncake_client.mapping import Mapping

# Below this a slice assignment, which holds the interpreter lock; above it memmove, which does not.
MEMMOVE_NBYTES_MIN = 256 << 10
# Fresh pages of a longer range are mapped in one call before the copy instead of one by one during it.
POPULATE_NBYTES_MIN = 256 << 10

_UNIT_NBYTES = 4096
_SMALL_UNIT_NBYTES = 64
_ZEROS = bytes(_UNIT_NBYTES)


def copy_from(address: int, source: memoryview) -> None:
    """Copy a contiguous buffer to *address* without holding the interpreter lock."""
    ctypes.memmove(address, address_of(source), source.nbytes)


def copy_to(target: memoryview, source: memoryview) -> None:
    """Copy *source* over the first bytes of a writable contiguous *target*."""
    if source.nbytes < MEMMOVE_NBYTES_MIN:
        target[: source.nbytes] = source
    else:
        copy_from(address_of(target), source)


def writable_bytes(buffer: object) -> memoryview:
    """A caller's buffer as flat writable bytes."""
    try:
        view = memoryview(buffer)  # type: ignore[arg-type]  # that is the check
        if view.readonly:
            raise InvalidArgumentError("the buffer to read into is read-only")
        return view.cast("B") if view.nbytes else memoryview(bytearray())
    except TypeError as exc:
        raise InvalidArgumentError(f"cannot read into this buffer: {exc}") from exc


class WriteWindow:
    """The writable side of G, as a place to put objects. Keeps its mapping while a copy is under way.

    A range this process has never written has pages but no page table entries here. With 4 KiB pages, making those
    takes longer than the copy, so the first copy goes through the descriptor, which needs none, and they are made
    behind its back for the next one. With huge pages they cost nothing.
    """

    def __init__(self, mapping: Mapping, fd: int, *, huge_pages: bool) -> None:
        """Keeps a duplicate of *fd*, the descriptor that *mapping* maps."""
        self.mapping = mapping
        self._fd = os.dup(fd)
        self._huge_pages = huge_pages
        root = (ctypes.c_char * mapping.nbytes).from_address(mapping.address)
        self._bytes = memoryview(root).cast("B")
        self._populating = threading.Lock()

    def __del__(self) -> None:
        os.close(self._fd)

    def write(self, offset: int, encoded: Encoded) -> None:
        """Put an object at *offset*, its reserved tail zeroed so that no older bytes show behind it."""
        nbytes = encoded.nbytes
        cold = False
        if nbytes >= POPULATE_NBYTES_MIN:
            if self._huge_pages:
                self.mapping.populate(offset, nbytes)
            else:
                cold = not self.mapping.is_populated(offset, nbytes)
        end = 0
        for part in encoded.parts:
            if part.offset > end:
                self._bytes[offset + end : offset + part.offset] = _ZEROS[: part.offset - end]
            self._write_part(offset + part.offset, part, cold=cold)
            end = part.offset + part.nbytes
        assert end == nbytes, "a codec's parts cover its object"
        self.zero_tail(offset, nbytes)
        if cold:
            self._populate_behind(offset, nbytes)

    def zero_tail(self, offset: int, nbytes: int) -> None:
        """Zero what is reserved for an object of *nbytes* behind its last byte."""
        unit = _UNIT_NBYTES if nbytes >= _UNIT_NBYTES else _SMALL_UNIT_NBYTES
        rest = -nbytes % unit
        if rest:
            self._bytes[offset + nbytes : offset + nbytes + rest] = _ZEROS[:rest]

    def _write_part(self, offset: int, part: Part, *, cold: bool) -> None:
        source = part.source
        if source is None:
            assert part.fill is not None
            part.fill(self._bytes[offset : offset + part.nbytes])
            if CLIENT_FAULTS.enabled:
                CLIENT_FAULTS.hit_blocking("ClientPutInsideCopy")
        elif CLIENT_FAULTS.enabled:
            half = part.nbytes // 2
            copy_from(self.mapping.address + offset, source[:half])
            CLIENT_FAULTS.hit_blocking("ClientPutInsideCopy")
            copy_from(self.mapping.address + offset + half, source[half:])
        elif part.nbytes < MEMMOVE_NBYTES_MIN:
            self._bytes[offset : offset + part.nbytes] = source
        elif cold:
            self._write_through(offset, source)
        else:
            copy_from(self.mapping.address + offset, source)

    def _write_through(self, offset: int, source: memoryview) -> None:
        written = 0
        while written < source.nbytes:
            # One call moves 2 GiB at the most.
            written += os.pwrite(self._fd, source[written:], offset + written)

    def _populate_behind(self, offset: int, nbytes: int) -> None:
        if self._populating.acquire(blocking=False):
            threading.Thread(target=self._populate, args=(offset, nbytes), daemon=True).start()

    def _populate(self, offset: int, nbytes: int) -> None:
        try:
            self.mapping.populate(offset, nbytes)
        finally:
            self._populating.release()
