"""A listening Unix socket that only one daemon can have, whatever became of the one before."""

import fcntl
import os
import socket
import stat
from pathlib import Path

LISTEN_BACKLOG = 1024


class ListenError(Exception):
    """The socket cannot be had; the message says why and what to do."""


class Listener:
    """A bound socket and the lock that makes its path ours. Nothing is left behind by `close`."""

    def __init__(self, path: Path) -> None:
        """Take *path*: a stale socket of a dead daemon is replaced, anything else that is there is not."""
        self.path = path
        self.sock: socket.socket | None = None
        self._lock_path = path.with_name(path.name + ".lock")
        self._make_directory()
        self._lock_fd = self._take_lock()

    def bind(self, mode: int) -> socket.socket:
        """Bind the path with the file mode *mode*; not listening yet, so nobody can connect before it is set."""
        try:
            self._remove_stale()
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            self.sock = sock
            sock.bind(str(self.path))
            self.path.chmod(mode)
        except OSError as exc:
            raise ListenError(f"cannot listen on {self.path}: {exc.strerror or exc}") from exc
        return sock

    def close(self) -> None:
        """Stop listening, remove the socket and the lock file. A second call does nothing."""
        if self.sock is not None:
            self.sock.close()
            self.sock = None
            self.path.unlink(missing_ok=True)
        if self._lock_fd >= 0:
            # Unlinked while still locked: who waits for it finds out that the name leads elsewhere.
            self._lock_path.unlink(missing_ok=True)
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _make_directory(self) -> None:
        directory = self.path.parent
        try:
            directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            owner = directory.stat().st_uid
        except OSError as exc:
            raise ListenError(f"cannot make the directory of {self.path}: {exc.strerror}") from exc
        # Whoever owns it could put a socket of his own in the place of ours.
        if owner not in (0, os.geteuid()) and os.geteuid() != 0:
            raise ListenError(f"{directory} belongs to another user (uid {owner}); choose another --socket")

    def _take_lock(self) -> int:
        while True:
            try:
                fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as exc:
                raise ListenError(f"cannot lock {self.path}: {exc.strerror}") from exc
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                os.close(fd)
                raise ListenError(f"another daemon serves {self.path}; give this one a --socket of its own") from exc
            if _is_same_file(fd, self._lock_path):
                return fd
            # A daemon that has just stopped removed the name between our open and our lock.
            os.close(fd)

    def _remove_stale(self) -> None:
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise ListenError(f"{self.path} exists and is not a socket; it was left alone")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(self.path))
            except ConnectionRefusedError:
                self.path.unlink()
                return
        raise ListenError(f"another program listens on {self.path}; it was left alone")


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        return path.stat().st_ino == os.fstat(fd).st_ino
    except FileNotFoundError:
        return False
