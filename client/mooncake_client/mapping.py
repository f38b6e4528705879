"""A shared mapping of a descriptor, placed so that huge pages can be used through it.

Python's ``mmap`` cannot choose an address, and a 2 MiB page is only mapped as one where address
and file offset agree modulo 2 MiB; so this goes to libc.
"""

import ctypes
import errno
import os
import sys
from collections.abc import Callable

CHUNK = 2 << 20  # one huge page, and the unit in which populate() remembers

# Upper bound of one call to the kernel, which keeps the address space locked and signal handlers waiting meanwhile:
# some 20 ms. Much smaller would be slower in a busy program, where each return has to wait for the interpreter's lock.
_POPULATE_STEP = 64 << 20

_PROT_NONE, _PROT_READ, _PROT_WRITE = 0, 1, 2
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS, _MAP_NORESERVE = 0x1, 0x2, 0x10, 0x20, 0x4000
_MADV_HUGEPAGE, _MADV_DONTDUMP = 14, 16
_MADV_POPULATE_READ, _MADV_POPULATE_WRITE = 22, 23  # Linux 5.14
_MADV_COLLAPSE = 25  # Linux 6.1
_MAP_FAILED = ctypes.c_void_p(-1).value

# A CDLL call lets other threads run; PyDLL would not.
_libc = ctypes.CDLL(None, use_errno=True)
_mmap = _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,  # off_t on every 64-bit Linux
)
_munmap = _libc.munmap
_munmap.restype = ctypes.c_int
_munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_madvise = _libc.madvise
_madvise.restype = ctypes.c_int
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Mapping:
    """A shared mapping of a descriptor at a 2 MiB-aligned address.

    Holds no reference to *fd*: the caller may close it at once. Whoever derives something from
    ``address`` must keep the Mapping alive: it unmaps when its last reference goes, or at
    ``unmap()``, once. What cannot be mapped raises OSError (PermissionError: a writable mapping of
    a read-only descriptor); a file shorter than *nbytes* raises ValueError, because touching its
    missing end would kill the process.
    """

    __slots__ = ("__weakref__", "_done", "_populates", "address", "nbytes", "writable")

    address: int  # 0 as long as nothing is mapped
    nbytes: int
    writable: bool
    _done: bytearray  # one byte a chunk: 1 when every page of it was mapped once
    _populates: bool  # False once the kernel said that it cannot

    def __init__(self, fd: int, nbytes: int, *, writable: bool) -> None:
        self.address = 0
        if nbytes <= 0:
            raise ValueError(f"cannot map {nbytes} bytes")
        size = os.fstat(fd).st_size
        if size < nbytes:
            raise ValueError(f"cannot map {nbytes} bytes of a file of {size}")
        self.nbytes = nbytes
        self.writable = writable
        self._populates = True
        self._done = bytearray(-(-nbytes // CHUNK))
        self.address = _map_aligned(fd, nbytes, writable=writable)
        _madvise(self.address, nbytes, _MADV_HUGEPAGE)
        _madvise(self.address, nbytes, _MADV_DONTDUMP)  # a pool of terabytes in every core file

    def populate(self, offset: int, nbytes: int) -> bool:
        """Map every page of the range now, so that a copy through it takes no page faults.

        Works on whole chunks, each once in the mapping's life, so a repeated call costs a look; no
        byte changes. Best effort: False, and nothing worse, where the kernel would or could not.
        """
        first, end = self._chunks(offset, nbytes)
        start = self._done.find(0, first, end)
        while start >= 0:
            stop = min(end, start + _POPULATE_STEP // CHUNK)
            done = self._done.find(1, start, stop)
            if done >= 0:
                stop = done
            if not self._populate_chunks(start, stop):
                return False
            start = self._done.find(0, stop, end)
        return True

    def is_populated(self, offset: int, nbytes: int) -> bool:
        """Whether `populate` has mapped every chunk of the range."""
        first, end = self._chunks(offset, nbytes)
        return self._done.find(0, first, end) < 0

    def collapse(self, offset: int, nbytes: int) -> bool:
        """Turn the whole chunks within the range into huge pages; True when all of them are now.

        Copies in the kernel and changes no byte, whoever writes meanwhile. The pages must have been
        allocated.
        """
        self._check(offset, nbytes)
        start = -(-offset // CHUNK) * CHUNK
        end = min(offset + nbytes, self.nbytes) // CHUNK * CHUNK
        if start >= end:
            return False
        return bool(_madvise(self.address + start, end - start, _MADV_COLLAPSE) == 0)

    def unmap(self) -> None:
        """Give the address range back; twice is harmless.

        Only for an owner who knows that nothing derived from ``address`` is in use any more.
        """
        # Forgotten first: the range may be somebody else's as soon as the kernel has it back.
        address = getattr(self, "address", 0)  # not set where __init__ was never entered
        self.address = 0
        if address:
            _munmap(address, self.nbytes)

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At exit the kernel does it, and frozen threads may still be copying.
        if not _finalizing():
            self.unmap()

    def _populate_chunks(self, first: int, end: int) -> bool:
        if not self._populates:
            return False
        start = first * CHUNK
        length = min(end * CHUNK, self.nbytes) - start
        advice = _MADV_POPULATE_WRITE if self.writable else _MADV_POPULATE_READ
        if _madvise(self.address + start, length, advice) != 0:
            self._populates = ctypes.get_errno() != errno.EINVAL
            return False
        self._done[first:end] = b"\1" * (end - first)
        return True

    def _chunks(self, offset: int, nbytes: int) -> tuple[int, int]:
        self._check(offset, nbytes)
        return offset // CHUNK, -(-min(offset + nbytes, self.nbytes) // CHUNK)

    def _check(self, offset: int, nbytes: int) -> None:
        if not self.address:
            raise ValueError("the mapping is unmapped")
        if offset < 0 or nbytes < 0:
            raise ValueError(f"no range: offset {offset}, {nbytes} bytes")


def _map_aligned(fd: int, nbytes: int, *, writable: bool) -> int:
    """Map the first *nbytes* of *fd* at a multiple of CHUNK, or leave nothing mapped and raise."""
    page = os.sysconf("SC_PAGE_SIZE")
    length = -(-nbytes // page) * page
    room = length + CHUNK
    flags = _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE
    base = _checked_mmap(0, room, _PROT_NONE, flags, -1)
    address = -(-base // CHUNK) * CHUNK
    prot = _PROT_READ | _PROT_WRITE if writable else _PROT_READ
    try:
        _checked_mmap(address, length, prot, _MAP_SHARED | _MAP_FIXED, fd)
    except OSError:
        _munmap(base, room)
        raise
    if address > base:
        _munmap(base, address - base)
    tail = base + room - (address + length)
    if tail:
        _munmap(address + length, tail)
    return address


def _checked_mmap(address: int, nbytes: int, prot: int, flags: int, fd: int) -> int:
    got = _mmap(address, nbytes, prot, flags, fd, 0)
    if got is None or got == _MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"{os.strerror(number)}: mmap of {nbytes} bytes")
    return int(got)
