"""A connection whose requests pass fault points: used instead of the plain one when fault injection is on."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from mooncake_client import wire
from mooncake_client.errors import StoreError
from mooncake_node.server.client import Client
from mooncake_node.server.connection import Connection
from mooncake_node.server.points import AFTER, BEFORE


class FaultyConnection(Connection):
    """Each request in a task of its own, so that one that sleeps at a point holds up nobody else.

    Requests that meet no fault are answered in the order they came, as on a plain connection.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # The loop itself holds tasks only weakly.
        self._held: set[asyncio.Task[None]] = set()

    def dispatch(self, request: wire.Request) -> None:
        """Answer one request, by way of the points before and after it."""
        client = self._client
        if client is None or isinstance(request, wire.Fault):
            super().dispatch(request)
        else:
            self._hold(self._dispatch(client, request))

    def send_to_waiter(self, message: wire.Message) -> None:
        """By way of its point."""
        self._hold(self._send_to_waiter(message))

    def end_session(self, client: Client) -> None:
        """By way of its point."""
        self._hold(self._end_session(client))

    async def _dispatch(self, client: Client, request: wire.Request) -> None:
        reply: wire.Message | None
        try:
            await self._point(BEFORE.get(type(request)))
        except StoreError as error:
            reply = wire.Failed(request.request_id, error.code, error.message)
        else:
            reply = self.answer(client, request)
            try:
                await self._point(AFTER.get(type(request)))
            except StoreError as error:
                if reply is not None:
                    self._service.take_back(client, reply)
                reply = wire.Failed(request.request_id, error.code, error.message)
        if reply is not None and request.request_id:
            self.send(reply)

    async def _send_to_waiter(self, message: wire.Message) -> None:
        try:
            await self._point("NodeBeforeAnswerWaiter")
        except StoreError as error:
            if self._client is not None:
                self._service.take_back(self._client, message)
            message = wire.Failed(message.request_id, error.code, error.message)
        self.send(message)

    async def _end_session(self, client: Client) -> None:
        # There is nobody to tell an error, and a death cannot be refused.
        with contextlib.suppress(StoreError):
            await self._point("NodeBeforeFree")
        super().end_session(client)

    async def _point(self, name: str | None) -> None:
        if name is not None:
            seconds = self._service.faults.hit(name)
            if seconds:
                await asyncio.sleep(seconds)

    def _hold(self, step: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(step)
        self._held.add(task)
        task.add_done_callback(self._held.discard)
