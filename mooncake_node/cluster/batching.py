"""Calls that are made in one turn of the loop go out as one."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from mooncake_node.peers.tasks import Tasks

ITEMS_MAX = 256

T = TypeVar("T")
R = TypeVar("R")


class Batches(Generic[T, R]):
    """Gathers items until the loop has run what is ready now, and has them carried out together."""

    def __init__(
        self, carry_out: Callable[[Sequence[T]], Awaitable[Sequence[R]]], tasks: Tasks, *, one_by_one: bool = False
    ) -> None:
        """*carry_out* answers the items in their order; what it raises is raised for each of them.

        *one_by_one*: while a call is under way the next is gathered: fewer calls, and none that overtakes another.
        """
        self._carry_out = carry_out
        self._one_by_one = one_by_one
        self._is_under_way = False
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._gathered: list[tuple[T, asyncio.Future[R]]] = []

    def add(self, item: T) -> asyncio.Future[R]:
        """The answer to *item*, which comes whether or not it is waited for."""
        answer: asyncio.Future[R] = self._loop.create_future()
        if not self._gathered and not self._is_under_way:
            self._loop.call_soon(self._send)
        self._gathered.append((item, answer))
        return answer

    def _send(self) -> None:
        while self._gathered and not self._is_under_way:
            batch = self._gathered[:ITEMS_MAX]
            del self._gathered[:ITEMS_MAX]
            self._is_under_way = self._one_by_one
            self._tasks.run(self._carry(batch))

    async def _carry(self, batch: list[tuple[T, "asyncio.Future[R]"]]) -> None:
        try:
            answers = await self._carry_out([item for item, _ in batch])
        except Exception as error:  # noqa: BLE001  whoever asked handles it
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
        else:
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)
        finally:
            self._is_under_way = False
            self._send()
