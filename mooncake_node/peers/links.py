"""The links of this node to all others."""

import asyncio
import socket
from collections.abc import Mapping
from typing import Any

import msgspec

from mooncake_node.peers.errors import PeerGoneError, PeerRefusedError, PeerTimeoutError
from mooncake_node.peers.handshake import dial
from mooncake_node.peers.identity import Identity, Me
from mooncake_node.peers.line import Common, Counters, Line, Pace
from mooncake_node.peers.messages import PeerReply, PeerRequest
from mooncake_node.peers.requests import Handler, Requests
from mooncake_node.peers.tasks import Tasks


class PeerLinks:
    """Asks other nodes. To each its own link, dialled at the first need, so that one that hangs holds up no other."""

    def __init__(self, me: Me, secret: bytes, handler: Handler, pace: Pace | None = None) -> None:
        """*handler* answers what others send over the links dialled here; *secret* empty: loopback only."""
        self._common = Common(me, secret, Requests(handler), Tasks(), Counters(), pace or Pace(), set())
        self._lines: dict[str, Line] = {}  # all and only the peers that live
        self._closed = False

    @property
    def counters(self) -> Counters:
        """Since the start."""
        return self._common.counters

    def facts(self) -> dict[str, Any]:
        """For statistics."""
        facts: dict[str, Any] = msgspec.to_builtins(self.counters)
        connected = sum(line.is_connected for line in self._lines.values())
        return {"peers": len(self._lines), "connected": connected, **facts}

    # -- who there is ------------------------------------------------------------------------------------------------

    def set_peers(self, peers: Mapping[str, tuple[int, str]]) -> None:
        """Who lives: name → (incarnation, endpoint). This node itself may be among them.

        Links to others, or to another life of the same, end; calls under way over them fail with PeerGoneError. After
        `close` nothing comes of it.
        """
        if self._closed:
            return
        wanted = {
            name: (Identity(name, incarnation), endpoint)
            for name, (incarnation, endpoint) in peers.items()
            if name != self._common.me.name
        }
        for name, line in list(self._lines.items()):
            if wanted.get(name) != (line.peer, line.endpoint):
                del self._lines[name]
                line.close("it does not live any more" if name not in wanted else f"it is {wanted[name][0]} now")
        for name, (peer, endpoint) in wanted.items():
            if name not in self._lines:
                self._lines[name] = Line(self._common, peer, endpoint)

    # -- asking ------------------------------------------------------------------------------------------------------

    async def call(self, name: str, request: PeerRequest, timeout_s: float) -> PeerReply:
        """The answer of *name*, `wire.Failed` included. The request's id is assigned here.

        PeerGoneError: it cannot be reached, the reason is in the message; at once while the next dial has to wait.
        PeerTimeoutError: it has not answered after *timeout_s*, dialing included.
        """
        self.counters.calls += 1
        try:
            reply = self._line(name).call(request)
            async with asyncio.timeout(timeout_s):
                return await reply
        except TimeoutError:
            self.counters.timeouts += 1
            message = f"{name} did not answer {type(request).__name__} within {timeout_s:g} s"
            raise PeerTimeoutError(message, sent=True) from None
        except PeerGoneError:
            self.counters.gone += 1
            raise

    def notify(self, name: str, message: PeerRequest) -> None:
        """Send a notice, perhaps. Never raises and never waits; what cannot be sent is counted."""
        line = self._lines.get(name)
        if line is None:
            self.counters.notices_dropped += 1
        else:
            line.notify(message)

    async def dial_data(self, name: str) -> socket.socket:
        """A new connection for bulk bytes: non-blocking, both sides proved, nothing read beyond that. The caller's own.

        PeerGoneError as with `call`.
        """
        line = self._line(name)
        line.check()
        common = self._common
        common.counters.dials += 1
        try:
            sock = await dial(
                common.me.identity,
                line.peer,
                line.endpoint,
                kind="data",
                secret=common.secret,
                timeout_s=common.pace.handshake_timeout_s,
            )
        except PeerGoneError as exc:
            common.counters.dials_failed += 1
            common.counters.refused += isinstance(exc, PeerRefusedError)
            raise
        try:
            line.check()
        except PeerGoneError:
            sock.close()
            raise
        return sock

    # -- faults ------------------------------------------------------------------------------------------------------

    def sever(self, name: str) -> None:
        """Break the link to *name*, if there is one, as a network would."""
        if name in self._lines:
            self._lines[name].sever()

    def hold(self, name: str) -> None:
        """Send nothing to *name* until `release`: calls wait."""
        self._line(name).hold()

    def release(self, name: str) -> None:
        """End `hold`."""
        self._line(name).release()

    # -- the end -----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End every link; calls under way fail with PeerGoneError. Twice is harmless."""
        self._closed = True
        lines, self._lines = self._lines, {}
        for line in lines.values():
            line.close("this node closes its links")
        common = self._common
        await common.tasks.close()
        for link in list(common.links):
            link.cut("this node closes its links")
            await link.wait_lost()
        await common.requests.close()

    def _line(self, name: str) -> Line:
        line = self._lines.get(name)
        if line is None:
            raise PeerGoneError(f"{name} is not among the nodes that live" if not self._closed else "links are closed")
        return line
