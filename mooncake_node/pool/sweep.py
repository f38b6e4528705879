"""Removal of files that a crash left between their creation and the loss of their name."""

import fcntl
import os
import stat
from pathlib import Path

from mooncake_node.pool.names import NAME_PREFIX, SHM_DIRECTORY


def sweep(directory: Path = SHM_DIRECTORY) -> list[str]:
    """Remove every file of our prefix that no process has locked; return the names removed.

    A daemon that is just making its pool holds the lock, or notices that its file was taken and
    makes another. Files of other users are left to them.
    """
    return [path.name for path in sorted(directory.glob(NAME_PREFIX + "*")) if _take(path)]


def _take(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # gone, another user's, or a link: none of ours to remove
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held, named = os.fstat(fd), path.lstat()
        # Somebody may have removed the file that we opened and made another of that name, whose
        # lock we do not hold.
        if not stat.S_ISREG(held.st_mode) or not os.path.samestat(held, named):
            return False
        path.unlink()
    except (BlockingIOError, FileNotFoundError, PermissionError):
        return False
    finally:
        os.close(fd)
    return True
