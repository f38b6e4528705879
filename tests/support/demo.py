"""The demo commands as processes, and a look at what they leave behind."""

import os
import subprocess
import sys
from pathlib import Path

from mooncake_node.pool import NAME_PREFIX, SHM_DIRECTORY
from tests.support.waiting import eventually

HANG_LIMIT_S = 110


class Demo:
    """Runs the command with a temporary directory of its own; short, for the sockets' paths."""

    def __init__(self, command: str, temporary: Path) -> None:
        self._command = command
        self.temporary = temporary
        self._named_before = self._named()

    def start(self, *args: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "mooncake_node", self._command, *map(str, args)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(self.temporary), "COLUMNS": "200"},
        )

    def run(self, *args: object) -> tuple[int, str, str]:
        with self.start(*args) as process:
            out, err = process.communicate(timeout=HANG_LIMIT_S)
        return process.returncode, out, err

    def check_clean(self) -> None:
        assert list(self.temporary.iterdir()) == []
        assert self.processes() == []
        # A pool that another test is just making has its name for a moment.
        eventually(lambda: self._named() <= self._named_before, "no new name in /dev/shm")

    def processes(self) -> list[str]:
        """Command lines of those that were told of our directory: nodes, clients, and what else they need."""
        found = []
        for process in Path("/proc").iterdir():
            try:
                line = (process / "cmdline").read_text().replace("\0", " ") if process.name.isdecimal() else ""
            except (FileNotFoundError, ProcessLookupError):
                continue
            if str(self.temporary) in line:
                found.append(line)
        return found

    @staticmethod
    def _named() -> set[str]:
        return {path.name for path in SHM_DIRECTORY.glob(f"{NAME_PREFIX}*")}
