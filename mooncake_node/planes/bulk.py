"""Large objects through a socket in a thread: few system calls, and the loop is free meanwhile.

The socket is non-blocking. `stop` it from elsewhere to have the thread end soon.
"""

import asyncio
import contextlib
import select
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

from xxhash import xxh3_64

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# From here on an object is worth a hop to a thread.
BULK_NBYTES_MIN = 2 << 20
# Bytes of one system call, and of one step of the checksum: they are in the processor's cache then.
_PART_NBYTES = 1 << 20


class Threads:
    """So many threads, and no queue: a thread is taken for as long as the slowest peer lasts, and nobody is to wait for
    that. Who finds none free goes by the loop.
    """

    def __init__(self, count: int) -> None:
        self._executor = ThreadPoolExecutor(count, "mooncake-plane")
        self._free = count

    @property
    def any_free(self) -> bool:
        """`run` may be called."""
        return self._free > 0

    def run(self, work: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """What *work* gives or raises. Not to be cancelled: the thread would go on."""
        assert self.any_free
        self._free -= 1
        future = asyncio.get_running_loop().run_in_executor(self._executor, work, *args)
        future.add_done_callback(self._ended)
        return future

    def close(self) -> None:
        """No more work; what is under way goes on."""
        self._executor.shutdown(wait=False)

    def _ended(self, _future: asyncio.Future[T]) -> None:
        self._free += 1


def push(sock: socket.socket, data: memoryview, stall_timeout_s: float) -> None:
    """Send all of *data*. TimeoutError: nothing of it was taken for so long. OSError: the connection is over."""
    ready = select.poll()
    ready.register(sock, select.POLLOUT)
    start = 0
    while start < data.nbytes:
        try:
            start += sock.send(data[start : start + _PART_NBYTES])
        except BlockingIOError:
            _wait(ready, stall_timeout_s)


def pull(sock: socket.socket, into: memoryview, stall_timeout_s: float) -> int:
    """Fill *into*; the XXH3-64 of what came. TimeoutError: not a byte for so long. OSError: the connection is over."""
    ready = select.poll()
    ready.register(sock, select.POLLIN)
    hasher = xxh3_64()
    start = 0
    while start < into.nbytes:
        try:
            nbytes = sock.recv_into(into[start : start + _PART_NBYTES])
        except BlockingIOError:
            _wait(ready, stall_timeout_s)
            continue
        if not nbytes:
            raise ConnectionResetError("the sender has hung up")
        hasher.update(into[start : start + nbytes])
        start += nbytes
    return hasher.intdigest()


def stop(sock: socket.socket) -> None:
    """Whoever pushes or pulls there gets an error."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _wait(ready: select.poll, timeout_s: float) -> None:
    if not ready.poll(timeout_s * 1000):
        raise TimeoutError
