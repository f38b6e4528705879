"""Replies that are sent when the last of their items has its outcome."""

from collections.abc import Callable
from typing import Any

from mooncake_client import wire


class Pending:
    """One request some of whose items wait."""

    __slots__ = ("_build", "_open", "items", "request_id")

    def __init__(self, request_id: int, build: Callable[[int, list[Any]], wire.Message]) -> None:
        self.request_id = request_id
        self._build = build
        # Item by item the wire form of its outcome; None where it is open.
        self.items: list[Any] = []
        self._open = 0

    def wait_for_next(self) -> int:
        """The next item waits; returns its index, to be given to `fill`."""
        self.items.append(None)
        self._open += 1
        return len(self.items) - 1

    def fill(self, index: int, item: Any) -> wire.Message | None:
        """The outcome of one item; returns the reply when it was the last."""
        self.items[index] = item
        self._open -= 1
        return None if self._open else self._build(self.request_id, self.items)
