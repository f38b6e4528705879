"""A sweep removes what a crash left, and nothing that anybody uses."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mooncake_node.pool import NAME_PREFIX, SHM_DIRECTORY, sweep


def open_fds() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def leave(directory: Path, name: str) -> Path:
    path = directory / name
    path.touch(mode=0o400)
    return path


def test_a_file_of_ours_without_a_lock_is_removed_and_named(tmp_path: Path) -> None:
    stale = [leave(tmp_path, NAME_PREFIX + tail) for tail in ("a", "b")]
    assert sweep(tmp_path) == [path.name for path in stale]
    assert list(tmp_path.iterdir()) == []
    assert sweep(tmp_path) == []


def test_locked_files_and_strangers_are_spared(tmp_path: Path) -> None:
    locked = leave(tmp_path, NAME_PREFIX + "locked")
    leave(tmp_path, "other-store.a")
    (tmp_path / (NAME_PREFIX + "link")).symlink_to(leave(tmp_path, "target"))
    (tmp_path / (NAME_PREFIX + "dir")).mkdir()
    os.mkfifo(tmp_path / (NAME_PREFIX + "fifo"))
    before = sorted(tmp_path.iterdir())
    fd = os.open(locked, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert sweep(tmp_path) == []
    assert sorted(tmp_path.iterdir()) == before
    os.close(fd)
    assert sweep(tmp_path) == [locked.name]


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_killed_process_left_in_dev_shm_goes_once_it_is_dead(signal_number: int) -> None:
    child = """
import fcntl, secrets, sys, posix_ipc
name = sys.argv[1] + secrets.token_hex(8)
fd = posix_ipc.SharedMemory("/" + name, posix_ipc.O_CREX, mode=0o400, size=4096).fd
fcntl.flock(fd, fcntl.LOCK_EX)
print(name, flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", child, NAME_PREFIX],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        path = SHM_DIRECTORY / process.stdout.readline().strip()
        sweep()
        assert path.exists(), "its maker lives"
        process.send_signal(signal_number)
        process.wait()
        # Any daemon that starts meanwhile may be the one that does it.
        sweep()
        assert not path.exists()


def test_a_file_that_took_the_name_after_the_look_is_spared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is on the file that was opened, which then is not the one that has the name."""
    path = leave(tmp_path, NAME_PREFIX + "a")
    flock = fcntl.flock

    def replace_first(fd: int, operation: int) -> None:
        path.unlink()
        leave(tmp_path, path.name)
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", replace_first)
    assert sweep(tmp_path) == []
    assert path.exists()


def test_a_file_that_another_sweep_removed_first_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = leave(tmp_path, NAME_PREFIX + "a")
    monkeypatch.setattr(fcntl, "flock", lambda _fd, _operation: path.unlink())
    before = open_fds()
    assert sweep(tmp_path) == []
    assert open_fds() == before
