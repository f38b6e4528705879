"""What the tests of peers share: nodes on real loopback sockets, in one uvloop."""

import asyncio
import functools
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import uvloop

from mooncake_client import wire
from mooncake_client.wire import Message
from mooncake_node.peers import Limits, Me, Pace, PeerLinks, PeerListener
from mooncake_node.peers.messages import PeerRequest
from tests.support.waiting import HANG_LIMIT_S

SECRET = b"between us"
AT_ONCE = Pace(backoff_s=0.0)  # tests of reconnecting do not wait


def on_uvloop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on a loop of the daemon's kind; what reaches the loop's exception handler fails it."""

    @functools.wraps(test)
    def run(*args, **kwargs) -> None:
        unhandled: list[dict[str, Any]] = []

        async def main() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
            async with asyncio.timeout(HANG_LIMIT_S):
                await test(*args, **kwargs)

        uvloop.run(main())
        assert unhandled == []

    return run


class Node:
    """A listener and links, with what was asked of them."""

    def __init__(
        self,
        name: str,
        incarnation: int = 1,
        *,
        secret: bytes = SECRET,
        limits: Limits | None = None,
        pace: Pace = AT_ONCE,
    ) -> None:
        self.me = Me(name, incarnation)
        self.asked: list[tuple[str, PeerRequest]] = []
        self.answer: Callable[[PeerRequest], Awaitable[Message | None]] = self.done
        self.on_data: Callable[[socket.socket, str], Awaitable[None]] = self.nothing
        self.links = PeerLinks(self.me, secret, self._handle, pace)
        self.secret, self.limits = secret, limits
        self.listener = self._listener(0)

    def _listener(self, port: int) -> PeerListener:
        return PeerListener("127.0.0.1", port, self.me, self.secret, self._handle, self._data, self.limits)

    @property
    def entry(self) -> dict[str, tuple[int, str]]:
        """As others are to be told of it."""
        return {self.me.name: (self.me.incarnation, self.listener.endpoint)}

    async def restart(self, incarnation: int) -> None:
        """As after a crash, at the same endpoint."""
        port = int(self.listener.endpoint.rpartition(":")[2])
        await self.listener.close()
        self.me.incarnation = incarnation
        self.listener = self._listener(port)
        await self.listener.start()

    async def close(self) -> None:
        await self.links.close()
        await self.listener.close()

    async def done(self, request: PeerRequest) -> Message:
        return wire.Done(request.request_id)

    async def nothing(self, sock: socket.socket, peer: str) -> None:
        pass

    async def _handle(self, peer: str, request: PeerRequest) -> Message | None:
        self.asked.append((peer, request))
        return await self.answer(request)

    async def _data(self, sock: socket.socket, peer: str) -> None:
        await self.on_data(sock, peer)


@asynccontextmanager
async def net(*nodes: Node) -> AsyncIterator[None]:
    """Nodes that know of each other."""
    try:
        for node in nodes:
            await node.listener.start()
        for node in nodes:
            node.links.set_peers({name: entry for other in nodes for name, entry in other.entry.items()})
        yield
    finally:
        for node in nodes:
            await node.close()


@asynccontextmanager
async def raw_connection(node: Node) -> AsyncIterator[socket.socket]:
    """A TCP connection to a node's listener, with nothing said yet."""
    host, _, port = node.listener.endpoint.rpartition(":")
    with socket.socket() as sock:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
        yield sock


async def read_all(sock: socket.socket) -> bytes:
    """Until the other side closes."""
    data = bytearray()
    while part := await asyncio.get_running_loop().sock_recv(sock, 1 << 20):
        data += part
    return bytes(data)
