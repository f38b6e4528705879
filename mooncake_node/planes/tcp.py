"""The built-in data plane: bytes of objects over authenticated TCP connections.

Who dials and accepts connections, and proves who is there, stands elsewhere: this plane gets connected sockets.
"""

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from mooncake_client.errors import StoreError
from mooncake_node.planes.bulk import Threads
from mooncake_node.planes.port import Lender, Outcome, RemoteRange
from mooncake_node.planes.tcp_counters import TcpCounters
from mooncake_node.planes.tcp_receiver import Connection, Pool
from mooncake_node.planes.tcp_sender import TcpSender
from mooncake_node.planes.transfer import Transfer

WAITING_MAX = 4096  # transfers to one node that have no connection yet
THREADS_MAX = 32  # large objects sent and received at once in a thread each; further ones go by the loop

# Connects and authenticates to a node by its name. Raises OSError or StoreError.
Dial = Callable[[str], Awaitable[socket.socket]]
View = Callable[[int, int], memoryview]


class TcpPlane:
    """Implements `DataPlane`, and its other side: `serve`. For one event loop.

    A transfer that has no connection waits its turn, first come, first served, until its ticket is given up. A peer's
    connections are dialled when they are needed, used again, and closed when idle for long or after any failure.
    """

    kind = "tcp"

    def __init__(
        self,
        dial: Dial,
        view: View,
        *,
        connections_max: int = 4,
        threads_max: int = THREADS_MAX,
        stall_timeout_s: float = 5.0,
        idle_timeout_s: float = 60.0,
    ) -> None:
        """*view* gives this node's pool, writable: offset, nbytes. *connections_max*: to one peer.

        *stall_timeout_s*: for a connection to be dialled, for the next byte to come, and for a part to be taken.
        """
        assert connections_max > 0
        assert stall_timeout_s > 0
        assert idle_timeout_s > 0
        self.counters = TcpCounters()
        self._dial = dial
        self._view = view
        self._connections_max = connections_max
        self._stall_timeout_s = stall_timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._threads = Threads(threads_max)
        self._sender = TcpSender(self.counters, self._threads, stall_timeout_s=stall_timeout_s)
        # All and only those with a connection, one being dialled, or a transfer.
        self._peers: dict[tuple[str, int, str], _Peer] = {}
        self._is_closed = False

    def submit(self, source: RemoteRange, local_offset: int) -> Transfer:
        """See DataPlane."""
        transfer = Transfer(source, local_offset, self._count)
        if self._is_closed:
            transfer.end(Outcome.FAILED, "this plane is closed")
            return transfer
        name = (source.node, source.incarnation, source.endpoint)
        peer = self._peers.get(name)
        if peer is None:
            peer = self._peers[name] = self._new_peer(name)
        peer.submit(transfer)
        return transfer

    async def serve(self, sock: socket.socket, peer: str, lender: Lender) -> None:
        """See TcpSender."""
        await self._sender.serve(sock, peer, lender)

    async def close(self) -> None:
        """See DataPlane. What is served ends with its own call."""
        self._is_closed = True
        for peer in list(self._peers.values()):
            peer.close()
        while ending := [future for peer in self._peers.values() for future in peer.ending()]:
            await asyncio.wait(ending)
        self._threads.close()

    def facts(self) -> dict[str, int | str]:
        """What is to be seen from outside: the counters and what there is now."""
        peers = self._peers.values()
        return {
            **msgspec.to_builtins(self.counters),
            "connections": sum(len(peer.connections) for peer in peers),
            "transfers_waiting": sum(len(peer.waiting) for peer in peers),
            "transfers_running": sum(peer.running for peer in peers),
            "congestion_control": _congestion_control(),
        }

    def _new_peer(self, name: tuple[str, int, str]) -> "_Peer":
        peer = _Peer(partial(self._connect, name[0]), self._connections_max, partial(self._forget, name))
        peer.pool = Pool(
            view=self._view,
            on_idle=peer.connection_idle,
            on_lost=peer.connection_lost,
            counters=self.counters,
            threads=self._threads,
            stall_timeout_s=self._stall_timeout_s,
            idle_timeout_s=self._idle_timeout_s,
        )
        return peer

    async def _connect(self, node: str, pool: Pool) -> Connection:
        try:
            async with asyncio.timeout(self._stall_timeout_s):
                sock = await self._dial(node)
                try:
                    loop = asyncio.get_running_loop()
                    _, connection = await loop.create_connection(partial(Connection, pool), sock=sock)
                except BaseException:
                    sock.close()
                    raise
        except BaseException:
            self.counters.dials_failed += 1
            raise
        self.counters.connections_dialled += 1
        return connection

    def _forget(self, name: tuple[str, int, str]) -> None:
        del self._peers[name]

    def _count(self, transfer: Transfer, outcome: Outcome) -> None:
        del transfer
        self.counters.transfers_ok += outcome is Outcome.OK
        self.counters.transfers_failed += outcome is Outcome.FAILED
        self.counters.transfers_expired += outcome is Outcome.EXPIRED


class _Peer:
    """One incarnation of a node at one endpoint: its connections, and who waits for one."""

    pool: Pool  # set once, after it was made

    def __init__(
        self, connect: Callable[[Pool], Awaitable[Connection]], connections_max: int, on_empty: Callable[[], None]
    ) -> None:
        self._connect = connect
        self._connections_max = connections_max
        self._on_empty = on_empty
        self.connections: set[Connection] = set()  # made and not lost
        self._idle: list[Connection] = []  # of them, those without a transfer, and some that have just ended
        self._dialling: set[asyncio.Task[None]] = set()
        self.waiting: OrderedDict[Transfer, None] = OrderedDict()  # first come first
        self._is_closing = False

    @property
    def running(self) -> int:
        """Transfers that have a connection."""
        return sum(connection.is_busy for connection in self.connections)

    def submit(self, transfer: Transfer) -> None:
        """Begin it now or as soon as there is a connection for it."""
        if len(self.waiting) >= WAITING_MAX:
            transfer.end(Outcome.FAILED, f"{WAITING_MAX} transfers wait for this node already")
            return
        self.waiting[transfer] = None
        transfer.stop = partial(self._stop_waiting, transfer)
        self._pump()

    def close(self) -> None:
        """Give up everything; it has ended when `ending` is empty."""
        self._is_closing = True
        self._fail_waiting("this plane is closed")
        for task in self._dialling:
            task.cancel()
        for connection in self.connections:
            connection.give_up("this plane is closed")

    def ending(self) -> list[asyncio.Future[None]]:
        """What is still to end after `close`."""
        return [*self._dialling, *(connection.lost for connection in self.connections)]

    def connection_idle(self, connection: Connection) -> None:
        """It can take the next transfer."""
        self._idle.append(connection)
        self._pump()

    def connection_lost(self, connection: Connection) -> None:
        """It is no more."""
        if connection not in self.connections:
            return  # its dialling was given up, or is about to see this
        self.connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._pump()
        self._leave_if_empty()

    def _pump(self) -> None:
        """Give waiting transfers the idle connections; dial for the others, within the limit."""
        while self.waiting and self._idle:
            connection = self._idle.pop()
            if connection.is_idle:
                transfer, _ = self.waiting.popitem(last=False)
                connection.begin(transfer)
        room = self._connections_max - len(self.connections) - len(self._dialling)
        for _ in range(min(room, len(self.waiting) - len(self._dialling))):
            task = asyncio.get_running_loop().create_task(self._dial())
            self._dialling.add(task)
            task.add_done_callback(self._dialled)

    async def _dial(self) -> None:
        reason = "dialling was given up"
        connection = None
        task = asyncio.current_task()
        assert task is not None
        try:
            connection = await self._connect(self.pool)
        except (OSError, StoreError) as error:
            reason = f"no connection: {str(error) or type(error).__name__}"
        finally:
            self._dialling.discard(task)
            if connection is not None and not connection.lost.done():
                self._connected(connection)
            elif not self.connections and not self._dialling:
                # Otherwise those who wait may still be served; and nobody is dialled again for them before that.
                self._fail_waiting(reason)
            self._leave_if_empty()

    def _connected(self, connection: Connection) -> None:
        self.connections.add(connection)
        if self._is_closing:
            connection.give_up("this plane is closed")
        elif connection.is_idle:
            self._idle.append(connection)
            self._pump()

    def _dialled(self, task: asyncio.Task[None]) -> None:
        if task in self._dialling:  # cancelled before it had begun
            self._dialling.discard(task)
            self._leave_if_empty()

    def _stop_waiting(self, transfer: Transfer, reason: str) -> None:
        del self.waiting[transfer]
        transfer.end(Outcome.FAILED, reason)
        self._leave_if_empty()

    def _fail_waiting(self, reason: str) -> None:
        while self.waiting:
            transfer, _ = self.waiting.popitem(last=False)
            transfer.end(Outcome.FAILED, reason)

    def _leave_if_empty(self) -> None:
        if not self.connections and not self._dialling and not self.waiting:
            self._on_empty()


def _congestion_control() -> str:
    with socket.socket() as sock:
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()
