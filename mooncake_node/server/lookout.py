"""Looks for the next request for a moment before the loop sleeps (ADR 14)."""

import asyncio
import math
import os
import time

# About what a client takes from a reply to its next request, with 1 MiB to copy in between.
LOOK_S = 100e-6
# A yield that takes longer has let somebody else run.
YIELD_S = 30e-6
# For so long it does not look where others want the processor: longer each time, and shorter with each request that
# came while it looked.
REST_MIN_S, REST_MAX_S = 1e-3, 0.1
_LONGER, _SHORTER = 4.0, 0.98


class Lookout:
    """Keeps the loop from sleeping while clients ask one thing right after the other.

    It looks only if what the loop last slept for came within `LOOK_S`, and what does not come in that time ends it: so
    who asks now and then, or asks for what takes long, costs nothing. Nor does it look where that takes the processor
    from others.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, cpus: int) -> None:
        """*cpus*: of this machine; with one a client could not run meanwhile."""
        self._loop = loop
        self._rest_s = REST_MIN_S
        self._rests_until_s = 0.0 if cpus > 1 else math.inf
        self._served_s = 0.0
        self._is_looking = False

    def served(self) -> None:
        """What a client has asked for is done."""
        now_s, before_s = time.monotonic(), self._served_s
        self._served_s = now_s
        if self._is_looking:
            self._rest_s = max(REST_MIN_S, self._rest_s * _SHORTER)
        elif now_s - before_s < LOOK_S and now_s >= self._rests_until_s:
            self._is_looking = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        now_s = time.monotonic()
        if now_s - self._served_s >= LOOK_S:
            self._is_looking = False
            return
        os.sched_yield()
        yielded_s = time.monotonic()
        if yielded_s - now_s < YIELD_S:
            # While something is ready to be called, the loop looks at its sockets without waiting.
            self._loop.call_soon(self._look)
        else:
            self._is_looking = False
            self._rests_until_s = yielded_s + self._rest_s
            self._rest_s = min(REST_MAX_S, self._rest_s * _LONGER)
