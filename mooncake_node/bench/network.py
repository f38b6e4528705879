"""A network of the bench's own, so that its figures do not depend on how this machine's is set up."""

import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

# What most machines between which nodes stand use, or what is near it; loopback under BBR is several times slower.
# Which of them a namespace may have is up to the machine.
_CONGESTION = "cubic reno"
_SET_UP = (
    "ip link set lo up && "
    f"for name in {_CONGESTION}; do "
    "echo $name > /proc/sys/net/ipv4/tcp_congestion_control 2>/dev/null && break; done; "
    "cat /proc/sys/net/ipv4/tcp_congestion_control && exec sleep infinity"
)


class Network:
    """A network namespace with a loopback, held by a process; or the machine's own where that is not allowed."""

    def __init__(self) -> None:
        self._holder: subprocess.Popen[str] | None = None
        self.congestion = ""
        unshare = shutil.which("unshare")
        if unshare and shutil.which("nsenter") and shutil.which("ip"):
            self._open(unshare)
        if not self.congestion:
            self.close()
            self.congestion = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()

    @property
    def prefix(self) -> list[str]:
        """What to put before a command that is to run in it."""
        return [] if self._holder is None else ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net", "--"]

    @property
    def is_own(self) -> bool:
        """Nothing else uses it."""
        return self._holder is not None

    def close(self) -> None:
        """It goes with its last process."""
        if self._holder is not None:
            self._holder.kill()
            self._holder.communicate()
            self._holder = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, unshare: str) -> None:
        self._holder = subprocess.Popen(
            [unshare, "--net", "sh", "-c", _SET_UP], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._holder.stdout is not None
        self.congestion = self._holder.stdout.readline().strip()
