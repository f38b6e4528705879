"""Tasks that one owner started and ends."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class Tasks:
    """All and only the tasks begun here that have not ended; the loop itself holds them only weakly."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin *work*; those begun one after the other run their first steps in that order."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self) -> None:
        """Cancel all, and return when the last has ended."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # A failed assertion must reach the loop's handler, which ends the process.
            task.result()
