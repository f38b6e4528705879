"""Fault injection: named points where a test or a drill makes this process slow or makes it fail.

Each process has its own table; nothing is shared. Off unless switched on (`MOONCAKE_NODE_FAULTS=1` for a client,
`--faults` for the daemon); while it is off a point costs one attribute look-up, and arming is refused.
"""

import os
import time

import msgspec

from mooncake_client.errors import InvalidArgumentError, error_for

ACTIONS = ("sleep", "return_error", "reset")
SLEEP_MS_MAX = 3_600_000

CLIENT_POINTS = {
    "ClientPutAfterStart": "room is reserved, nothing is written yet",
    "ClientPutInsideCopy": "half of the object's bytes are in place",
    "ClientPutBeforeEnd": "all bytes are in place, the object is not published yet",
    "ClientGetAfterAcquire": "the handle is here, the caller has no view yet",
}


class FaultStatus(msgspec.Struct, kw_only=True):
    """One point: what it is armed with, how often it was passed and how often it acted."""

    name: str
    description: str
    action: str = ""  # "" | "sleep" | "return_error"
    value: int = 0  # milliseconds | error code
    start: int = 1  # the hit, counted from arming, at which it begins to act
    times: int = 1  # how often it acts
    hits: int = 0
    fired: int = 0

    @property
    def armed(self) -> bool:
        """It will act again."""
        return bool(self.action) and self.fired < self.times

    def as_dict(self) -> dict[str, object]:
        """For `get_fault_status` and the wire."""
        return {**msgspec.to_builtins(self), "armed": self.armed}


class FaultTable:
    """The points of one process and what they are armed with."""

    def __init__(self, points: dict[str, str], *, enabled: bool) -> None:
        self.enabled = enabled
        self._points = {name: FaultStatus(name=name, description=text) for name, text in points.items()}

    def inject(self, name: str, action: str, value: int = 0, start: int = 1, times: int = 1) -> int:
        """Arm *name*: `sleep` *value* ms or `return_error` code *value*; `reset` disarms it and forgets its counts.

        Acts from its *start*-th hit on, *times* times. Returns 0; raises InvalidArgumentError for bad input, or when
        fault injection is off.
        """
        if not self.enabled:
            raise InvalidArgumentError(
                "fault injection is off in this process (client: MOONCAKE_NODE_FAULTS=1, daemon: --faults)"
            )
        point = self.status(name)
        if action not in ACTIONS:
            raise InvalidArgumentError(f"unknown action {action!r}; one of {', '.join(ACTIONS)}")
        if action == "sleep" and not 0 <= value <= SLEEP_MS_MAX:
            raise InvalidArgumentError(f"sleep takes 0 to {SLEEP_MS_MAX} ms, not {value}")
        if action == "return_error" and value >= 0:
            raise InvalidArgumentError(f"return_error takes a negative error code, not {value}")
        if start < 1 or times < 1:
            raise InvalidArgumentError(f"start and times count from 1, not {start} and {times}")
        point.action, point.value = ("", 0) if action == "reset" else (action, value)
        point.start, point.times, point.hits, point.fired = start, times, 0, 0
        return 0

    def status(self, name: str) -> FaultStatus:
        """The point *name*; InvalidArgumentError names the known ones."""
        point = self._points.get(name)
        if point is None:
            raise InvalidArgumentError(f"no fault point {name!r} here; known: {', '.join(self._points)}")
        return point

    def statuses(self) -> list[FaultStatus]:
        """Every point."""
        return list(self._points.values())

    def reset_all(self) -> None:
        """Disarm every point."""
        for point in self._points.values():
            self.inject(point.name, "reset")

    def hit(self, name: str) -> float:
        """Pass the point: seconds to sleep now, mostly 0; raises the injected error. Ask only while `enabled`."""
        point = self._points[name]
        point.hits += 1
        if not point.armed or point.hits < point.start:
            return 0.0
        point.fired += 1
        if point.action == "return_error":
            raise error_for(point.value, f"injected by fault point {name}")
        return point.value / 1000

    def hit_blocking(self, name: str) -> None:
        """`hit` for code that may block its thread."""
        seconds = self.hit(name)
        if seconds:
            time.sleep(seconds)


# This process's own, as a client.
CLIENT_FAULTS = FaultTable(CLIENT_POINTS, enabled=os.environ.get("MOONCAKE_NODE_FAULTS", "") in ("1", "true", "yes"))
