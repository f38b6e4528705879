"""The demo's client processes, as their parent sees them: started, talked to, and gone in the end."""

import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NoReturn, TypeVar

import msgspec

from mooncake_node.demo.errors import DemoError

T = TypeVar("T")

# No statement about speed: a process that takes longer is taken as stuck.
HANG_LIMIT_S = 300.0


class Child:
    """One process of the demo, spoken with a line at a time."""

    def __init__(self, role: str, log: IO[bytes], *args: str) -> None:
        self.role = role
        self._log = log
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"mooncake_node.demo.{role}", *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        self.pid = self._process.pid

    def tell(self, message: object) -> None:
        """Send a line; a process that has died is heard of by `hear`."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(msgspec.json.encode(message) + b"\n")
            self._process.stdin.flush()

    def hear(self, kind: type[T]) -> T:
        """Its next line."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], HANG_LIMIT_S)
        if not ready:
            raise DemoError(f"the {self.role} (pid {self.pid}) has said nothing for {HANG_LIMIT_S:g} s")
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise DemoError(f"the {self.role} (pid {self.pid}) ended with {code}: {_last_line(self._log)}")
        return msgspec.json.decode(line, type=kind)

    def end(self) -> None:
        """Its input ends, and so does it."""
        self._close_pipes()
        try:
            self._process.wait(HANG_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Whatever it is doing; the node gives back what it held."""
        self._process.kill()
        self._process.wait()
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


@contextmanager
def child(role: str, directory: Path, *args: str) -> Iterator[Child]:
    """A process of the demo that is gone at the end of the block."""
    with (directory / f"{role}.{time.monotonic_ns()}.log").open("w+b") as log:
        started = Child(role, log, *args)
        try:
            yield started
        except BaseException:
            started.kill()
            raise
        else:
            started.end()


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind like Ctrl-C, so that the processes of the demo end with it."""

    def unwind(signum: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + signum)

    before = {signum: signal.signal(signum, unwind) for signum in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _last_line(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
