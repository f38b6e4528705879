"""The two system calls that let readers do without fences: one registers this process, the other reaches all such."""

import ctypes
import platform
import sys

_SYS_MEMBARRIER = 324  # x86-64
_GLOBAL_EXPEDITED = 1 << 1
_REGISTER_GLOBAL_EXPEDITED = 1 << 2

_libc = ctypes.CDLL(None, use_errno=True)


def register() -> bool:
    """Have every later `reach_all`, of any process, act on this one; whether this machine can do it.

    Only x86-64: there a load may overtake an earlier store and nothing else may, which is what the barrier is for. Also
    tried: that eight aligned bytes are stored and loaded as one word.
    """
    if platform.machine() != "x86_64" or sys.byteorder != "little" or not _words_are_whole():
        return False
    return _membarrier(_REGISTER_GLOBAL_EXPEDITED)


def reach_all() -> bool:
    """Return when every registered process has passed a full memory barrier on every processor it runs on."""
    return _membarrier(_GLOBAL_EXPEDITED)


def _membarrier(command: int) -> bool:
    return bool(_libc.syscall(_SYS_MEMBARRIER, command, 0, 0) == 0)


def _words_are_whole() -> bool:
    words = memoryview(bytearray(16)).cast("Q")
    words[1] = 0x0123_4567_89AB_CDEF
    return words.itemsize == 8 and bytes(words)[8:] == bytes.fromhex("efcdab8967452301")
