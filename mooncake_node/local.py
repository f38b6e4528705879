"""A daemon of one's own in a directory of its own, for demo and bench; nothing of it stays."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from mooncake_client import Client, DaemonGoneError, StoreTimeoutError

_STOP_LIMIT_S = 30.0


class LocalNodeError(Exception):
    """The daemon did not start; the message is its own."""


class LocalNode:
    """`mooncake-node serve` as a child process, optionally pinned to one CPU."""

    def __init__(self, pool_nbytes: int, *flags: str, cpu: int | None = None, prefix: Sequence[str] = ()) -> None:
        """*prefix* stands before the command, such as what enters a network namespace."""
        self._directory = tempfile.TemporaryDirectory(prefix="mooncake-node-")
        self.directory = Path(self._directory.name)
        self.socket = self.directory / "node.sock"
        self._log_path = self.directory / "log"
        command = [*prefix, sys.executable, "-m", "mooncake_node", "serve", "--socket", str(self.socket)]
        command += ["--pool-size", str(pool_nbytes), "--log-format", "console", *flags]
        # The user's own daemon has settings in the environment; this one is none of theirs.
        env = {name: value for name, value in os.environ.items() if not name.startswith("MOONCAKE_NODE_")}
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env=env,
                # In a session of its own, Ctrl-C reaches us alone and we end it in order.
                start_new_session=True,
                preexec_fn=None if cpu is None else lambda: os.sched_setaffinity(0, {cpu}),  # noqa: PLW1509
            )

    @property
    def pid(self) -> int:
        """Of the daemon."""
        return self._process.pid

    def wait_until_it_serves(self) -> None:
        """Return when clients can attach; LocalNodeError with the daemon's own words if it ends before."""
        while True:
            if self._process.poll() is not None:
                lines = self._log_path.read_text(errors="replace").strip().splitlines()
                raise LocalNodeError(lines[-1] if lines else f"exit code {self._process.returncode}")
            try:
                Client(self.socket, name="starter").close()
            except (DaemonGoneError, StoreTimeoutError):
                try:
                    self._process.wait(timeout=0.05)
                except subprocess.TimeoutExpired:
                    continue
            else:
                return

    def close(self) -> None:
        """End the daemon and remove its directory."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._directory.cleanup()

    def __enter__(self) -> Self:
        try:
            self.wait_until_it_serves()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
