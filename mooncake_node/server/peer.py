"""The process at the other end of a Unix socket: who it is, and when it is surely dead."""

import os
import socket
import struct

# Linux 6.5; not yet named by Python.
_SO_PEERPIDFD = 77


class Peer:
    """A connected process. Owns a pidfd where the kernel gives one."""

    def __init__(self, sock: socket.socket) -> None:
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        # 0: it lives in another PID namespace and cannot be named from here.
        self.pid, self.uid, _gid = struct.unpack("3i", credentials)
        # -1: there is none; then the end of the connection alone tells of the process's death.
        self.pidfd = self._open_pidfd(sock)

    def close(self) -> None:
        """Give the pidfd back; a second call does nothing."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    def _open_pidfd(self, sock: socket.socket) -> int:
        try:
            return sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
        except OSError:
            pass
        if self.pid > 0:
            try:
                # The process is alive, or was when it connected: its number can have been given away only since.
                return os.pidfd_open(self.pid)
            except OSError:
                pass
        return -1
