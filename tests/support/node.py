"""A daemon as a real process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from mooncake_client import Client, DaemonGoneError, StoreTimeoutError
from tests.support.waiting import eventually

START_LIMIT_S = 120.0


class NodeProcess:
    """`mooncake-node serve` in *directory*; its log is `log` there, read it with `read_log`."""

    def __init__(
        self, directory: Path, *flags: str, pool_size: str = "64MiB", env: dict[str, str] | None = None
    ) -> None:
        self.directory = directory
        self.socket = str(directory / "node.sock")
        self.log_path = directory / "log"
        self.flags = ["--socket", self.socket, "--pool-size", pool_size, "--log-format", "json", *flags]
        self.env = {**os.environ, **(env or {})}
        self.process: subprocess.Popen[bytes] | None = None

    def spawn(self, *more_flags: str) -> subprocess.Popen[bytes]:
        """Start the process without waiting for it to serve."""
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mooncake_node", "serve", *self.flags, *more_flags],
                stdout=log,
                stderr=log,
                env=self.env,
            )
        return self.process

    def start(self, *more_flags: str) -> "NodeProcess":
        """Start it and wait until it serves."""
        process = self.spawn(*more_flags)

        def serves() -> bool:
            assert process.poll() is None, f"the daemon ended with {process.returncode}:\n{self.read_log()}"
            try:
                Client(self.socket, timeout=5).close()
            except (DaemonGoneError, StoreTimeoutError):
                return False
            return True

        eventually(serves, "the daemon to serve", hang_limit_s=START_LIMIT_S)
        return self

    def client(self, **kwargs) -> Client:
        """A client in this process."""
        return Client(self.socket, **kwargs)

    def stop(self, signum: int = signal.SIGTERM) -> int:
        """Signal it and wait for its end; the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signum)
        code = self.process.wait(timeout=60)
        self.process = None
        return code

    def kill(self) -> None:
        """SIGKILL."""
        self.stop(signal.SIGKILL)

    def read_log(self) -> str:
        """Everything it has logged, over all its lives."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def close(self) -> None:
        """End it if it still runs, and check that it logged no traceback."""
        if self.process is not None:
            self.stop()
        assert "Traceback" not in self.read_log(), self.read_log()
