"""sd_notify: tell the service manager how far we are. Does nothing where there is no manager."""

import os
import socket
from collections.abc import Mapping


class Notifier:
    """Sends the daemon's state to the manager that started it; an error is never raised."""

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        variables = os.environ if env is None else env
        self._address = variables.get("NOTIFY_SOCKET", "")
        self._watchdog_us = variables.get("WATCHDOG_USEC", "")
        self._watchdog_pid = variables.get("WATCHDOG_PID", "")

    @property
    def watchdog_interval_s(self) -> float | None:
        """How often to call ``watchdog``: half of what the manager allows; None: never."""
        if self._watchdog_pid not in ("", str(os.getpid())):  # meant for our parent
            return None
        return int(self._watchdog_us) / 2e6 if self._watchdog_us.isdecimal() else None

    def ready(self, status: str) -> None:
        """The daemon serves clients."""
        self._send("READY=1", f"STATUS={_line(status)}")

    def status(self, status: str) -> None:
        """What ``systemctl status`` shows."""
        self._send(f"STATUS={_line(status)}")

    def stopping(self, status: str) -> None:
        """The daemon is on its way down."""
        self._send("STOPPING=1", f"STATUS={_line(status)}")

    def extend_timeout(self, seconds: float) -> None:
        """Ask for *seconds* from now before the manager loses patience with a start or stop."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1_000_000)}")

    def watchdog(self) -> None:
        """The daemon is alive."""
        self._send("WATCHDOG=1")

    def _send(self, *fields: str) -> None:
        kind, rest = self._address[:1], self._address[1:]
        if kind not in ("/", "@"):
            return
        # "@" stands for the zero byte that an abstract address begins with.
        address = f"\0{rest}" if kind == "@" else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                # The manager's queue may be full; the event loop can wait this long, not more.
                sender.settimeout(0.2)
                sender.sendto("\n".join(fields).encode(), address)
        except (OSError, ValueError):
            pass


def _line(text: str) -> str:
    return " ".join(text.split())
