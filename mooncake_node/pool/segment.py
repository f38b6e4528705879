"""The shared-memory segment behind pool G: nameless before anyone hears of it, fully reserved."""

import fcntl
import os
import secrets
import threading
from collections.abc import Callable
from pathlib import Path

import posix_ipc

from mooncake_client.mapping import Mapping
from mooncake_node.pool.errors import PoolError, PoolStoppedError
from mooncake_node.pool.hugepages import mount_policy
from mooncake_node.pool.limits import format_bytes, raise_hint
from mooncake_node.pool.names import NAME_PREFIX, SHM_DIRECTORY

PAGE = 4096
_RESERVE_STEP = 64 << 20  # what a stop may have to wait for: about 0.1 s
_CREATE_ATTEMPTS_MAX = 8

Progress = Callable[[int, int], None]  # bytes reserved so far, bytes in all


class Segment:
    """Memory that exists only as long as somebody has it open or mapped.

    Its name is gone from /dev/shm when the constructor returns. Both descriptors are close-on-exec
    and belong to the segment; a mapping outlives ``close()``. The file has mode 0400, so a process
    that was given ``read_fd`` cannot turn it into write access through /proc.
    """

    write_fd: int
    read_fd: int
    nbytes: int

    def __init__(self, nbytes: int) -> None:
        if nbytes <= 0 or nbytes % PAGE:
            raise PoolError(f"a pool has a positive multiple of {PAGE} bytes, not {nbytes}")
        self.nbytes = nbytes
        self.write_fd, self.read_fd = _open_nameless()
        try:
            os.ftruncate(self.write_fd, nbytes)
        except (OSError, OverflowError) as error:
            self.close()
            raise PoolError(f"cannot make a pool of {format_bytes(nbytes)}: {error}") from error

    def reserve(
        self,
        progress: Progress | None = None,
        stop: threading.Event | None = None,
        *,
        huge_pages: bool = True,
    ) -> None:
        """Have the kernel set every page aside, so that no later access can run out of memory.

        Blocks for seconds or minutes: call it in a thread. *progress* is called in that thread
        after each step. Where it fails or *stop* is set, the segment is closed, hence all memory
        given back, and PoolError or PoolStoppedError raised.
        """
        try:
            self._reserve(progress, stop, huge_pages=huge_pages)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close both descriptors; the memory goes with the last mapping. Twice is harmless."""
        for name in ("write_fd", "read_fd"):
            fd = getattr(self, name)
            setattr(self, name, -1)
            if fd >= 0:
                os.close(fd)

    def _reserve(self, progress: Progress | None, stop: threading.Event | None, *, huge_pages: bool) -> None:
        # On a mount with huge=advise, fallocate would lay down small pages: it has no mapping whose
        # advice it could follow. So a mapping touches them first. It cannot tell a full mount from
        # other trouble; fallocate, which then finds nothing left to do, can.
        toucher = None
        if huge_pages and mount_policy(SHM_DIRECTORY) == "advise":
            toucher = Mapping(self.write_fd, self.nbytes, writable=True)
        try:
            for start in range(0, self.nbytes, _RESERVE_STEP):
                if stop is not None and stop.is_set():
                    raise PoolStoppedError("stopped while the pool was being reserved")
                step = min(_RESERVE_STEP, self.nbytes - start)
                if toucher is not None:
                    toucher.populate(start, step)
                self._allocate(start, step)
                if progress is not None:
                    progress(start + step, self.nbytes)
        finally:
            if toucher is not None:  # a traceback would keep it, and the memory with it
                toucher.unmap()
        assert os.fstat(self.write_fd).st_blocks * 512 >= self.nbytes

    def _allocate(self, start: int, nbytes: int) -> None:
        try:
            os.posix_fallocate(self.write_fd, start, nbytes)
        except OSError as error:
            raise self._no_room(start, error) from error

    def _no_room(self, reserved: int, error: OSError) -> PoolError:
        mount = os.statvfs(SHM_DIRECTORY)
        free = mount.f_bavail * mount.f_frsize
        return PoolError(
            f"no room for the pool: asked {format_bytes(self.nbytes)}, got {format_bytes(reserved)}"
            f" of it and then {error.strerror}; {format_bytes(free)} more are free in"
            f" {SHM_DIRECTORY} of {format_bytes(mount.f_blocks * mount.f_frsize)}."
            f" {raise_hint(SHM_DIRECTORY)}"
        )


def _open_nameless() -> tuple[int, int]:
    """Two descriptors, read-write and read-only, of a new file that has lost its name again."""
    for _ in range(_CREATE_ATTEMPTS_MAX):
        name = NAME_PREFIX + secrets.token_hex(8)
        try:
            write_fd = posix_ipc.SharedMemory("/" + name, posix_ipc.O_CREX, mode=0o400).fd
        except posix_ipc.ExistentialError:
            continue
        except (OSError, posix_ipc.Error) as error:
            raise PoolError(f"cannot create shared memory in {SHM_DIRECTORY}: {error}") from error
        try:
            read_fd = _lock_and_unlink(write_fd, SHM_DIRECTORY / name)
        except OSError as error:
            os.close(write_fd)
            (SHM_DIRECTORY / name).unlink(missing_ok=True)
            raise PoolError(f"cannot use new files in {SHM_DIRECTORY}: {error}") from error
        if read_fd is not None:
            return write_fd, read_fd
        os.close(write_fd)
    raise PoolError(f"something in {SHM_DIRECTORY} takes every new file away")


def _lock_and_unlink(write_fd: int, path: Path) -> int | None:
    """Open *path* for reading and unlink it; None if another daemon's sweep was quicker.

    Between its creation and the lock a file looks like one that a crash has left.
    """
    try:
        fcntl.flock(write_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.fchmod(write_fd, 0o400)  # the umask may have taken the bit that the next line needs
        read_fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (BlockingIOError, FileNotFoundError):
        return None
    try:
        if os.fstat(read_fd).st_ino != os.fstat(write_fd).st_ino:
            os.close(read_fd)
            return None
        path.unlink()
    except OSError:
        os.close(read_fd)
        raise
    return read_fd
