"""One client's connection: frames, the hello, descriptors, back-pressure, and the end."""

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Protocol, cast

import msgspec

from mooncake_client import wire
from mooncake_client.codes import Code
from mooncake_client.framing import FramingError, Unpacker, pack
from mooncake_client.index_layout import Shape
from mooncake_node.obs.log import get_logger
from mooncake_node.server.admin import LOOKS, answer_fault
from mooncake_node.server.client import Client
from mooncake_node.server.lookout import Lookout
from mooncake_node.server.peer import Peer
from mooncake_node.server.service import Service

# Replies a client has not taken yet; beyond that it is given up.
UNSENT_NBYTES_MAX = 64 << 20
HELLO_TIMEOUT_S = 10.0

log = get_logger()


class RowGiver(Protocol):
    """Who has the shared index and gives pin rows."""

    @property
    def shape(self) -> Shape:
        """Of the index."""
        ...

    def open_row(self, session_id: int) -> list[int]:
        """Descriptors of control, accessed bytes and a row for that session; the last is to be closed after use."""
        ...


class Door(msgspec.Struct, frozen=True):
    """What a listening socket gives to those who come in by it."""

    welcome: Callable[[], wire.Welcome]  # made anew for each, without request and session id
    read_fd: int
    write_fd: int
    is_admin: bool
    clients_max: int
    readers: RowGiver | None  # by the shared index, if there is one


class Register(Protocol):
    """Who has to know of connections."""

    def connection_opened(self, connection: "Connection") -> None:
        """It exists; it may not have said hello."""
        ...

    def connection_closed(self, connection: "Connection") -> None:
        """It is over, and so is its session."""
        ...


class Connection(asyncio.Protocol):
    """From connect to the end of the session.

    The session ends with the client's goodbye or its process. Where its death cannot be watched by a pidfd, the end
    of the connection counts as its death. Until then everything it refers to stays, even if nothing more is read.
    """

    def __init__(self, door: Door, service: Service, register: Register, lookout: Lookout) -> None:
        self._door = door
        self._service = service
        self._register = register
        self._lookout = lookout
        self._loop = asyncio.get_running_loop()
        self._unpacker: Unpacker[wire.AnyRequest] = Unpacker(wire.AnyRequest)
        self._transport: asyncio.Transport | None = None
        self._peer: Peer | None = None
        self._client: Client | None = None
        self._given_up = False
        self._allowed = LOOKS if door.is_admin else service.request_types
        self._hello_timer: asyncio.TimerHandle | None = None

    # -- called by the loop ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=1 << 20)
        self._peer = Peer(transport.get_extra_info("socket"))
        self._hello_timer = self._loop.call_later(HELLO_TIMEOUT_S, self._abort)
        self._register.connection_opened(self)

    def data_received(self, data: bytes) -> None:
        """Part of `asyncio.Protocol`."""
        if self._given_up:
            return
        try:
            requests = self._unpacker.feed(data)
        except FramingError as exc:
            self.give_up(Code.INVALID_ARGUMENT, str(exc))
            return
        for request in requests:
            if not self._given_up:
                self.dispatch(request)
        self._lookout.served()

    def eof_received(self) -> bool:
        """Part of `asyncio.Protocol`. False: the transport closes itself."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of `asyncio.Protocol`."""
        del exc
        self._transport = None
        peer, client = self._peer, self._client
        # A process that lives on after its connection may still read through its views; its death will be heard of.
        if peer is None or peer.pidfd < 0 or client is None or not self._service.hang_up(client):
            self._end()

    def pause_writing(self) -> None:
        """Part of `asyncio.Protocol`: a client that does not take its replies is not asked for more requests."""
        if self._transport is not None and not self._given_up:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Part of `asyncio.Protocol`."""
        if self._transport is not None and not self._given_up:
            self._transport.resume_reading()

    # -- requests ----------------------------------------------------------------------------------------------------

    def send(self, message: wire.Message) -> None:
        """Send a reply, unless nobody is there to take it."""
        transport = self._transport
        if transport is None or self._given_up:
            return
        try:
            frame = pack(message)
        except FramingError as exc:
            frame = pack(wire.Failed(message.request_id, Code.INVALID_ARGUMENT, f"reply too long: {exc}"))
        transport.write(frame)
        if transport.get_write_buffer_size() > UNSENT_NBYTES_MAX:
            self.give_up(Code.INTERNAL, "replies were not taken")

    def send_to_waiter(self, message: wire.Message) -> None:
        """`send` for a reply that comes later than its request."""
        self.send(message)

    def dispatch(self, request: wire.Request) -> None:
        """Answer one request."""
        client = self._client
        if client is None:
            self._hello(request)
            return
        reply = self.answer(client, request)
        # Request id 0 is a notice: nobody waits for a reply.
        if reply is not None and request.request_id:
            self.send(reply)

    def answer(self, client: Client, request: wire.Request) -> wire.Message | None:
        """The reply of one request; None if it comes later or never."""
        if not client.session.open:
            return _refusal(request, "goodbye was said")
        kind = type(request)
        if kind in self._allowed:
            try:
                return self._service.handle(client, request)
            except AssertionError:
                raise
            except Exception:
                log.exception("request_failed", request=kind.__name__, client=client.session.name)
                return wire.Failed(request.request_id, Code.INTERNAL, "the daemon failed; its log says more")
        if isinstance(request, wire.Goodbye):
            self.end_session(client)
            return None
        if self._door.is_admin and isinstance(request, wire.Fault):
            return answer_fault(self._service.faults, request)
        where = "admin" if self._door.is_admin else "data"
        return _refusal(request, f"{kind.__name__} is no request for the {where} socket")

    # -- hello -------------------------------------------------------------------------------------------------------

    def _hello(self, request: wire.Request) -> None:
        door, peer = self._door, self._peer
        assert peer is not None
        if not isinstance(request, wire.Hello):
            self.give_up(Code.INVALID_ARGUMENT, "the first message must be a hello")
            return
        if request.version != wire.PROTOCOL_VERSION:
            self.give_up(
                Code.INVALID_VERSION,
                f"this daemon speaks protocol version {wire.PROTOCOL_VERSION}, the client {request.version}; "
                "install the same mooncake-node on both sides",
            )
            return
        master = self._service.master
        if len(master.sessions) >= door.clients_max:
            self.give_up(Code.NO_SPACE, f"{door.clients_max} clients are attached already (clients_max)")
            return
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        name = request.name[: wire.NAME_CHARS_MAX]
        if peer.pid == 0:
            # Another PID namespace: the kernel's number for it means nothing here, its own claim is shown as such.
            name = f"{name} (pid as claimed)"
        session = master.open_session(name, peer.pid or request.pid, readonly=request.readonly)
        self._client = Client(session, self.send_to_waiter)
        if peer.pidfd >= 0:
            self._loop.add_reader(peer.pidfd, self._peer_died)
        self._send_welcome(request, session.session_id)

    def _send_welcome(self, request: wire.Hello, session_id: int) -> None:
        door, transport = self._door, self._transport
        assert transport is not None
        welcome = msgspec.structs.replace(door.welcome(), request_id=request.request_id, session_id=session_id)
        if door.is_admin:
            transport.write(pack(welcome))
            return
        fds = [door.read_fd] if request.readonly else [door.read_fd, door.write_fd]
        row_fd = -1
        if request.can_pin and door.readers is not None and not welcome.faults:
            index_fds = door.readers.open_row(session_id)
            row_fd = index_fds[-1]
            fds += index_fds
            welcome.index = door.readers.shape
        frame = pack(welcome)
        # The transport's own socket object cannot pass descriptors; a duplicate can. These are the first bytes of
        # the connection, so they overtake nothing and always fit.
        try:
            with socket.socket(fileno=socket.dup(transport.get_extra_info("socket").fileno())) as sock:
                sent = socket.send_fds(sock, [frame], fds)
        finally:
            if row_fd >= 0:
                os.close(row_fd)
        assert sent == len(frame)

    # -- the end -----------------------------------------------------------------------------------------------------

    def give_up(self, code: Code, message: str) -> None:
        """Say why, then read and write no more. What the client refers to stays until its process is gone."""
        log.warning("connection_given_up", client=self._client and self._client.session.name, reason=message)
        if self._transport is not None:
            self._transport.write(pack(wire.Failed(0, int(code), message)))
            self._given_up = True
            if self._client is None:
                self._transport.close()
            else:
                # Half closed: the client sees the end, and we still see its own.
                self._transport.write_eof()

    def close(self) -> None:
        """The daemon stops."""
        if self._transport is not None:
            self._transport.close()

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _peer_died(self) -> None:
        # A child of fork may still hold a copy of the socket; it is no client of ours.
        self._abort()
        self._end()

    def _end(self) -> None:
        """The session is over, exactly once, whatever of its end is heard of first."""
        peer, self._peer = self._peer, None
        if peer is None:
            return
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        if peer.pidfd >= 0:
            self._loop.remove_reader(peer.pidfd)
        peer.close()
        if self._client is not None:
            self.end_session(self._client)
        self._register.connection_closed(self)

    def end_session(self, client: Client) -> None:
        """Give back all that the client held."""
        self._service.end_session(client)


def _refusal(request: wire.Request, message: str) -> wire.Failed:
    return wire.Failed(request.request_id, Code.INVALID_ARGUMENT, message)
