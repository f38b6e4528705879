"""A way to a server that a test can slow down, block or break, for one node alone."""

import contextlib
import socket
import threading
from typing import Self


class Passage:
    """Passes bytes between a port of its own and *port*, both on loopback, while it is open."""

    def __init__(self, port: int) -> None:
        self._behind = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        # Set: bytes pass. Else they wait, and so do new connections.
        self._open = threading.Event()
        self._open.set()
        self._is_broken = False
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_broken = True
        self._open.set()
        self._listener.close()
        self._reset()

    @property
    def url(self) -> str:
        """Of the directory behind it."""
        return f"valkey://127.0.0.1:{self.port}/0"

    def block(self) -> None:
        """From now on nothing passes, and nobody is told."""
        self._open.clear()

    def break_(self) -> None:
        """Reset every connection, and each new one."""
        self._is_broken = True
        self._reset()

    def mend(self) -> None:
        """All is well again."""
        self._is_broken = False
        self._open.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                front, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(front,), daemon=True).start()

    def _serve(self, front: socket.socket) -> None:
        if self._is_broken:
            front.close()
            return
        try:
            behind = socket.create_connection(("127.0.0.1", self._behind))
        except OSError:
            front.close()
            return
        with self._lock:
            self._sockets |= {front, behind}
        threading.Thread(target=self._pump, args=(front, behind), daemon=True).start()
        self._pump(behind, front)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while part := source.recv(65536):
                self._open.wait()
                sink.sendall(part)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        with self._lock:
            self._sockets -= {source, sink}

    def _reset(self) -> None:
        with self._lock:
            sockets = list(self._sockets)
        for end in sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
