"""Waiting for events under a hang limit, which is no statement about speed."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
HANG_LIMIT_S = 60.0


def eventually(probe: Callable[[], T], what: str, *, hang_limit_s: float = HANG_LIMIT_S) -> T:
    """The first true value *probe* gives; fails when there is none within the hang limit."""
    deadline = time.monotonic() + hang_limit_s
    while True:
        value = probe()
        if value:
            return value
        assert time.monotonic() < deadline, f"still waiting after {hang_limit_s:g} s: {what}"
        time.sleep(0.005)


async def until(probe: Callable[[], object], what: str) -> None:
    """`eventually`, beside other tasks of the loop."""
    deadline = time.monotonic() + HANG_LIMIT_S
    while not probe():
        assert time.monotonic() < deadline, f"still waiting after {HANG_LIMIT_S:g} s: {what}"
        await asyncio.sleep(0.001)
