"""The two sockets of a node and everyone connected to them."""

import asyncio
import os
from collections.abc import Callable
from functools import partial

from mooncake_client import wire
from mooncake_client.codes import Code
from mooncake_node.server.connection import Connection, Door, RowGiver
from mooncake_node.server.faulty import FaultyConnection
from mooncake_node.server.listener import Listener
from mooncake_node.server.lookout import Lookout
from mooncake_node.server.service import Service

# Connections that have not said hello, on top of clients_max.
STRANGERS_MAX = 256
ADMIN_MODE = 0o600


class Server:
    """Listens on the data and the admin socket; knows every connection, the orphaned ones included."""

    def __init__(self, service: Service, listeners: tuple[Listener, Listener], clients_max: int) -> None:
        self._service = service
        self._data, self._admin = listeners
        self._clients_max = clients_max
        # All whose session is not over, connected or not.
        self._connections: set[Connection] = set()
        self._servers: list[asyncio.Server] = []

    async def start(
        self,
        welcome: Callable[[], wire.Welcome],
        read_fd: int,
        write_fd: int,
        *,
        mode: int,
        readers: RowGiver | None = None,
    ) -> None:
        """Listen. *welcome* makes what a client is told; the descriptors stay the caller's."""
        loop = asyncio.get_running_loop()
        lookout = Lookout(loop, cpus=os.cpu_count() or 1)
        kind = FaultyConnection if self._service.faults.enabled else Connection
        for listener, is_admin in ((self._data, False), (self._admin, True)):
            door = Door(welcome, read_fd, write_fd, is_admin, self._clients_max, readers)
            self._servers.append(
                await loop.create_unix_server(
                    partial(kind, door, self._service, self, lookout),
                    sock=listener.bind(ADMIN_MODE if is_admin else mode),
                    backlog=1024,
                )
            )

    def stop(self) -> None:
        """Accept nobody more and end every connection."""
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.close()

    def connection_opened(self, connection: Connection) -> None:
        """Part of `Register`."""
        self._connections.add(connection)
        if len(self._connections) > self._clients_max + STRANGERS_MAX:
            connection.give_up(Code.NO_SPACE, f"{len(self._connections)} connections already; most never said hello")

    def connection_closed(self, connection: Connection) -> None:
        """Part of `Register`."""
        self._connections.discard(connection)
