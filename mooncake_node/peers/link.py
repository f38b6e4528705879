"""One control connection between two nodes: requests, replies and notices, both ways."""

import asyncio
import contextlib
import socket
from typing import Protocol, cast, get_args

from mooncake_client import wire
from mooncake_client.codes import Code
from mooncake_client.framing import FramingError, Unpacker, pack
from mooncake_node.obs.log import get_logger
from mooncake_node.peers.errors import PeerError, PeerGoneError
from mooncake_node.peers.identity import Identity, Me
from mooncake_node.peers.messages import PeerReply, PeerRequest
from mooncake_node.peers.requests import Requests

UNSENT_NBYTES_MAX = 64 << 20  # what a peer has not taken yet; beyond that the link is given up
UNANSWERED_MAX = 512  # calls of ours; half of what the peer takes, since it may still work on some that timed out here

_UNSENT_NBYTES_PAUSE = 1 << 20
_REQUESTS = get_args(PeerRequest)

log = get_logger()


class LinkOwner(Protocol):
    """Who has to know of a link."""

    def link_made(self, link: "PeerLink") -> None:
        """It can be used."""

    def link_ready(self, link: "PeerLink") -> None:
        """It may take calls again."""

    def link_lost(self, link: "PeerLink") -> None:
        """It is over, and its `reason` says why; every call that was under way has failed."""


class PeerLink(asyncio.Protocol):
    """From the end of the handshake to the end of the connection.

    The accepting side stops reading while its replies are not taken. The dialing side never does: of two that both
    stopped neither would go on.
    """

    def __init__(
        self,
        me: Me,
        mine: Identity,
        peer: Identity,
        requests: Requests,
        owner: LinkOwner,
        *,
        accepted: bool,
        unsent_nbytes_max: int = UNSENT_NBYTES_MAX,
    ) -> None:
        self.peer = peer
        self.reason = ""  # why it is over, or about to be
        self.heard = False  # anything came from the peer
        self.late_replies = 0
        self._me, self._mine = me, mine
        self._requests = requests
        self._owner = owner
        self._accepted = accepted
        self._unsent_nbytes_max = unsent_nbytes_max
        self._unpacker: Unpacker[PeerRequest | PeerReply] = Unpacker(PeerRequest | PeerReply)
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._last_id = 0
        self._calls: dict[int, asyncio.Future[PeerReply]] = {}  # all and only those sent and not done
        self._lost = asyncio.Event()

    # -- called by the loop ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_UNSENT_NBYTES_PAUSE)
        if self.reason:
            self._transport.abort()
        self._owner.link_made(self)

    def data_received(self, data: bytes) -> None:
        """Part of `asyncio.Protocol`."""
        try:
            messages = self._unpacker.feed(data)
        except FramingError as exc:
            self._give_up(str(exc))
            return
        self.heard = True
        for message in messages:
            if self.reason:
                return
            self._take(message)

    def eof_received(self) -> bool:
        """Part of `asyncio.Protocol`. False: the transport closes itself."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of `asyncio.Protocol`."""
        self._transport = None
        if not self.reason:
            self.reason = f"the connection broke: {exc}" if exc is not None else "the other side closed the connection"
        for call in list(self._calls.values()):
            if not call.done():
                call.set_exception(PeerGoneError(f"{self.peer.name} is gone: {self.reason}", sent=True))
        self._lost.set()
        self._owner.link_lost(self)

    def pause_writing(self) -> None:
        """Part of `asyncio.Protocol`."""
        self._paused = True
        if self._accepted and self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Part of `asyncio.Protocol`."""
        self._paused = False
        if self._accepted and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        self._owner.link_ready(self)

    # -- called by the owner -----------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether it takes a call now; `LinkOwner.link_ready` says when it does again."""
        return not self._paused and not self.reason and len(self._calls) < UNANSWERED_MAX

    @property
    def is_stale(self) -> bool:
        """This node has another incarnation than the peer believes to speak with."""
        return self._me.incarnation != self._mine.incarnation

    def call(self, request: PeerRequest, reply: asyncio.Future[PeerReply]) -> None:
        """Send *request* under a new id; *reply* gets its answer, or PeerError."""
        self._last_id += 1
        number = request.request_id = self._last_id
        try:
            frame = pack(request)
        except FramingError as exc:
            reply.set_exception(PeerError(f"{type(request).__name__} is too long: {exc}"))
            return
        self._calls[number] = reply
        reply.add_done_callback(lambda _: self._forget(number))
        self._write(frame)

    def send(self, message: wire.Message) -> None:
        """Send a reply or a notice, unless nobody is there to take it."""
        try:
            frame = pack(message)
        except FramingError as exc:
            if not message.request_id:
                log.warning("peer_notice_dropped", peer=self.peer.name, reason=str(exc))
                return
            frame = pack(wire.Failed(message.request_id, Code.INVALID_ARGUMENT, f"reply too long: {exc}"))
        self._write(frame)

    def cut(self, reason: str) -> None:
        """End it now; what is unsent is lost."""
        if not self.reason:
            self.reason = reason
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_lost(self) -> bool:
        """The connection is over."""
        return self._lost.is_set()

    async def wait_lost(self) -> None:
        """Returns when the connection is over; for ever if it was never made."""
        await self._lost.wait()

    # -- messages ----------------------------------------------------------------------------------------------------

    def _take(self, message: PeerRequest | PeerReply) -> None:
        if isinstance(message, _REQUESTS):
            if self.is_stale:
                self.cut("this node has a new incarnation")
                return
            self._requests.take(self.peer.name, message, self.send)
            return
        reply = cast("PeerReply", message)
        if isinstance(reply, wire.Failed) and not reply.request_id:
            self.cut(f"the other side gave the link up: {reply.message}")
            return
        call = self._calls.get(reply.request_id)
        if call is None or call.done():
            self.late_replies += 1
            return
        call.set_result(reply)

    def _write(self, frame: bytes) -> None:
        transport = self._transport
        if transport is None or self.reason:
            return
        if self.is_stale:
            self.cut("this node has a new incarnation")
            return
        transport.write(frame)
        if transport.get_write_buffer_size() > self._unsent_nbytes_max:
            log.warning("peer_link_given_up", peer=self.peer.name, reason="nothing was taken")
            self.cut("the other side did not take what was sent")

    def _give_up(self, reason: str) -> None:
        log.warning("peer_link_given_up", peer=self.peer.name, reason=reason)
        if self._transport is not None and not self.reason:
            self._transport.write(pack(wire.Failed(0, Code.INVALID_ARGUMENT, reason)))
            self.reason = reason
            self._transport.close()

    def _forget(self, number: int) -> None:
        was_full = len(self._calls) >= UNANSWERED_MAX
        del self._calls[number]
        if was_full:
            self._owner.link_ready(self)


async def attach(sock: socket.socket, link: PeerLink, *, accepted: bool) -> None:
    """Make *link* the protocol of a connected socket, which is its own from now on, even if this is cancelled."""
    loop = asyncio.get_running_loop()
    if accepted:
        making = loop.create_task(loop.connect_accepted_socket(lambda: link, sock))
    else:
        making = loop.create_task(loop.create_connection(lambda: link, sock=sock))
    try:
        await asyncio.shield(making)
    except asyncio.CancelledError:
        link.cut("it was given up")
        with contextlib.suppress(OSError):
            await making
        raise
    finally:
        # A transport of uvloop that ends before it knows of the socket object has closed the descriptor under it; the
        # object must not close that number once more, which may be somebody else's by now.
        if sock.fileno() >= 0 and (link.is_lost or making.cancelled() or making.exception() is not None):
            sock.detach()
