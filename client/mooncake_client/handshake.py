"""Attaching: connect to the daemon's socket, say hello, receive the descriptors of G."""

import errno
import os
import socket
from typing import TypeVar

from mooncake_client import membarrier, wire
from mooncake_client.codes import Code
from mooncake_client.errors import (
    DaemonGoneError,
    InvalidArgumentError,
    StoreTimeoutError,
    error_for,
)
from mooncake_client.faults import CLIENT_FAULTS
from mooncake_client.framing import FramingError, Unpacker, pack

HELLO_TIMEOUT_S = 5.0
# A client that will not wait for anything still has to attach; and 0 would make the socket non-blocking.
HELLO_TIMEOUT_MIN_S = 1.0
_NO_SUCH_DAEMON = {errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR, errno.ECONNRESET, errno.EPIPE}


_DESCRIPTORS_MAX = 8

R = TypeVar("R", bound=wire.Message)


class Attached:
    """A connection after its hello. Owns the socket and the descriptors until someone takes them over."""

    def __init__(self, sock: socket.socket, welcome: wire.Welcome, descriptors: list[int]) -> None:
        self.sock = sock
        self.welcome = welcome
        self.descriptors = descriptors

    def close(self) -> None:
        """Give everything back."""
        self.sock.close()
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []


def attach(path: str, *, name: str, readonly: bool = False, timeout_s: float = HELLO_TIMEOUT_S) -> Attached:
    """Attach to the daemon behind *path*.

    DaemonGoneError: nobody listens there. StoreTimeoutError: somebody does, but does not answer. StoreError with
    INVALID_VERSION: it speaks another protocol version.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    descriptors: list[int] = []
    try:
        sock.settimeout(min(max(timeout_s, HELLO_TIMEOUT_MIN_S), HELLO_TIMEOUT_S))
        sock.connect(path)
        # Who may write nothing at all gets no pin row either.
        can_pin = not readonly and not CLIENT_FAULTS.enabled and membarrier.register()
        hello = wire.Hello(1, [], wire.PROTOCOL_VERSION, name[: wire.NAME_CHARS_MAX], os.getpid(), readonly, can_pin)
        sock.sendall(pack(hello))
        welcome = receive_reply(sock, wire.Welcome, descriptors)
        sock.settimeout(None)
        return Attached(sock, welcome, descriptors)
    except TimeoutError as exc:
        _discard(sock, descriptors)
        raise StoreTimeoutError(f"the daemon on {path} accepts connections but does not answer") from exc
    except OSError as exc:
        _discard(sock, descriptors)
        raise _connect_error(path, exc) from exc
    except BaseException:
        _discard(sock, descriptors)
        raise


def receive_reply(sock: socket.socket, kind: type[R], descriptors: list[int] | None = None) -> R:
    """The next reply of *kind*; descriptors that come beside it are appended. For sockets without other traffic."""
    unpacker: Unpacker[wire.AnyReply] = Unpacker(wire.AnyReply)
    while True:
        data, received, _flags, _address = socket.recv_fds(sock, 65536, _DESCRIPTORS_MAX)
        if descriptors is not None:
            descriptors += received
        if not data:
            raise DaemonGoneError("the daemon closed the connection")
        try:
            replies = unpacker.feed(data)
        except FramingError as exc:
            raise error_for(
                Code.INVALID_VERSION, f"what answers on the socket does not speak this protocol: {exc}"
            ) from exc
        for reply in replies:
            if isinstance(reply, wire.Failed):
                raise error_for(reply.code, reply.message)
            if isinstance(reply, kind):
                return reply


def _connect_error(path: str, exc: OSError) -> Exception:
    if isinstance(exc, PermissionError):
        return InvalidArgumentError(f"no permission to use the daemon's socket {path}")
    if exc.errno in _NO_SUCH_DAEMON:
        return DaemonGoneError(f"no daemon answers on {path}; start one with `mooncake-node serve`")
    if "too long" in str(exc):
        return InvalidArgumentError(f"the socket path is too long for the system: {path}")
    return DaemonGoneError(f"cannot attach to {path}: {exc}")


def _discard(sock: socket.socket, descriptors: list[int]) -> None:
    sock.close()
    for descriptor in descriptors:
        os.close(descriptor)
