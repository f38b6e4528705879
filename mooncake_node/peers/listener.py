"""Where other nodes come in."""

import asyncio
import errno
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from mooncake_node.obs.log import get_logger
from mooncake_node.peers.auth import Answering, AuthError, Kind
from mooncake_node.peers.endpoint import format_endpoint, is_loopback, resolve, tune
from mooncake_node.peers.errors import PeerListenError
from mooncake_node.peers.handshake import HANDSHAKE_TIMEOUT_S, answer, refuse
from mooncake_node.peers.identity import Identity, Me
from mooncake_node.peers.link import UNSENT_NBYTES_MAX, PeerLink, attach
from mooncake_node.peers.requests import INFLIGHT_MAX, Handler, Requests
from mooncake_node.peers.tasks import Tasks

LISTEN_BACKLOG = 1024

# Out of descriptors: those who wait in the backlog are looked at again after that.
_ACCEPT_PAUSE_S = 0.5
_REFUSALS_LOGGED_S = 60.0  # once in that time for each address
_REFUSED_ADDRESSES_MAX = 1024

OnData = Callable[[socket.socket, str], Awaitable[None]]

log = get_logger()


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What others may ask of this node at once."""

    handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S
    handshakes_max: int = 64  # further ones wait in the backlog
    links_max: int = 1024
    data_max: int = 4096
    inflight_max: int = INFLIGHT_MAX
    unsent_nbytes_max: int = UNSENT_NBYTES_MAX


class ListenerCounters(msgspec.Struct):
    """Who came, since the start."""

    accepted: int = 0  # proved themselves
    refused: int = 0


class PeerListener:
    """Lets in who knows the cluster secret: control connections become links, data connections go to *on_data*.

    A node has one link; a further one from it replaces the one before, which can only be a dead one.
    """

    def __init__(
        self,
        host: str,
        port: int,
        me: Me,
        secret: bytes,
        handler: Handler,
        on_data: OnData,
        limits: Limits | None = None,
    ) -> None:
        """*on_data* gets a non-blocking socket, closed when it returns; it is cancelled by `close`."""
        self._host, self._port = host, port
        self._me, self._secret = me, secret
        self._on_data = on_data
        self._limits = limits or Limits()
        self._loop = asyncio.get_running_loop()
        self._requests = Requests(handler, self._limits.inflight_max)
        self._tasks = Tasks()
        self._sock: socket.socket | None = None
        self._endpoint = ""
        self._handshakes = 0  # begun and not ended
        self._data_count = 0
        self._links: set[PeerLink] = set()  # all and only those whose connection is not over
        self._refused_s: dict[str, float] = {}  # address → when it was last logged; the oldest first
        self._accepting = False
        self.counters = ListenerCounters()

    @property
    def endpoint(self) -> str:
        """ "host:port" as bound."""
        assert self._endpoint
        return self._endpoint

    def facts(self) -> dict[str, Any]:
        """For statistics."""
        facts: dict[str, Any] = msgspec.to_builtins(self.counters)
        return {
            "links": len(self._links),
            "data_sockets": self._data_count,
            "requests": len(self._requests),
            "requests_refused": self._requests.refused,
            **facts,
        }

    async def start(self) -> None:
        """Listen; PeerListenError says why not."""
        assert self._sock is None
        where = format_endpoint(self._host, self._port)
        try:
            family, address = await resolve(self._host, self._port)
        except OSError as exc:
            raise PeerListenError(f"cannot listen on {where}: {exc.strerror or exc}") from exc
        if not self._secret and not is_loopback(address[0]):
            raise PeerListenError(
                f"cannot listen on {where} without a cluster secret: others could read and remove everything; "
                "set one, the same on every node, or listen on 127.0.0.1"
            )
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(LISTEN_BACKLOG)
        except OSError as exc:
            sock.close()
            what = "another program listens there" if exc.errno == errno.EADDRINUSE else exc.strerror or exc
            raise PeerListenError(f"cannot listen on {where}: {what}") from exc
        self._sock = sock
        self._endpoint = format_endpoint(*sock.getsockname()[:2])
        self._resume()

    def set_peers(self, peers: Mapping[str, tuple[int, str]]) -> None:
        """Who lives, as for `PeerLinks`: links of an earlier life of one of them end. Others are left alone."""
        for link in list(self._links):
            known = peers.get(link.peer.name)
            if known is not None and link.peer.incarnation < known[0]:
                link.cut("a later incarnation of that node lives")

    def sever(self, name: str) -> None:
        """Break the link that *name* dialled, if there is one, as a network would."""
        for link in list(self._links):
            if link.peer.name == name:
                link.cut("the link was severed")

    async def close(self) -> None:
        """Stop listening, end what came in and give up its requests. Twice is harmless."""
        self._pause()
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        await self._tasks.close()
        for link in list(self._links):
            link.cut("this node closes its links")
            await link.wait_lost()
        await self._requests.close()

    # -- LinkOwner ---------------------------------------------------------------------------------------------------

    def link_made(self, link: PeerLink) -> None:
        """Part of `LinkOwner`."""
        # One that is given up already will say so itself, and replaces nothing.
        for other in [] if link.reason else list(self._links):
            if other.peer.name == link.peer.name:
                other.cut("that node has dialled anew")
        self._links.add(link)

    def link_ready(self, link: PeerLink) -> None:
        """Part of `LinkOwner`: nothing is called from this side."""

    def link_lost(self, link: PeerLink) -> None:
        """Part of `LinkOwner`."""
        self._links.discard(link)

    # -- accepting ---------------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        if self._sock is not None and not self._accepting and self._handshakes < self._limits.handshakes_max:
            self._accepting = True
            self._loop.add_reader(self._sock, self._accept)

    def _pause(self) -> None:
        if self._sock is not None and self._accepting:
            self._loop.remove_reader(self._sock)
        self._accepting = False

    def _accept(self) -> None:
        assert self._sock is not None
        try:
            sock, address = self._sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as exc:
            log.warning("peer_not_accepted", reason=exc.strerror or str(exc))
            self._pause()
            self._loop.call_later(_ACCEPT_PAUSE_S, self._resume)
            return
        sock.setblocking(False)
        self._handshakes += 1
        if self._handshakes >= self._limits.handshakes_max:
            self._pause()
        guest = _Guest(sock, str(address[0]))
        self._tasks.run(self._greet(guest)).add_done_callback(lambda _: self._ended(guest))

    async def _greet(self, guest: "_Guest") -> None:
        answering = Answering(self._me.identity, self._secret)
        try:
            async with asyncio.timeout(self._limits.handshake_timeout_s):
                tune(guest.sock)
                await answer(guest.sock, answering, self._admit)
        except (AuthError, OSError) as exc:
            if isinstance(exc, TimeoutError):
                reason = f"no handshake in {self._limits.handshake_timeout_s:g} s"
            else:
                reason = getattr(exc, "strerror", None) or str(exc)
            self._count_refusal(guest.address, reason)
            await refuse(guest.sock, reason)
            return
        self.counters.accepted += 1
        self._shaken(guest)
        peer = answering.peer
        if answering.kind == "control":
            guest.owned = False
            link = PeerLink(
                self._me,
                answering.me,
                peer,
                self._requests,
                self,
                accepted=True,
                unsent_nbytes_max=self._limits.unsent_nbytes_max,
            )
            await attach(guest.sock, link, accepted=True)
            return
        self._data_count += 1
        try:
            await self._on_data(guest.sock, peer.name)
        except OSError as exc:
            log.info("peer_data_socket_broke", peer=peer.name, reason=exc.strerror or str(exc))
        except AssertionError:
            raise
        except Exception:
            log.exception("peer_data_socket_failed", peer=peer.name)
        finally:
            self._data_count -= 1

    def _admit(self, peer: Identity, kind: Kind) -> str:
        limits = self._limits
        if kind == "data" and self._data_count >= limits.data_max:
            return f"{limits.data_max} data connections are open already"
        others = sum(link.peer.name != peer.name for link in self._links) if kind == "control" else 0
        return f"{limits.links_max} nodes are connected already" if others >= limits.links_max else ""

    def _shaken(self, guest: "_Guest") -> None:
        if guest.in_handshake:
            guest.in_handshake = False
            self._handshakes -= 1
            self._resume()

    def _ended(self, guest: "_Guest") -> None:
        # Here and not in the task: one cancelled before its first step runs nothing of itself.
        self._shaken(guest)
        if guest.owned:
            guest.sock.close()

    def _count_refusal(self, address: str, reason: str) -> None:
        self.counters.refused += 1
        now_s = time.monotonic()
        if now_s - self._refused_s.get(address, -_REFUSALS_LOGGED_S) < _REFUSALS_LOGGED_S:
            return
        self._refused_s.pop(address, None)
        self._refused_s[address] = now_s
        if len(self._refused_s) > _REFUSED_ADDRESSES_MAX:
            del self._refused_s[next(iter(self._refused_s))]
        log.warning("peer_refused", address=address, reason=reason)


class _Guest:
    """A connection that came in."""

    __slots__ = ("address", "in_handshake", "owned", "sock")

    def __init__(self, sock: socket.socket, address: str) -> None:
        self.sock, self.address = sock, address
        self.in_handshake = True
        self.owned = True  # ours to close
