"""The segment: nameless, read-only where it says so, reserved in full or not there."""

import ctypes
import fcntl
import mmap
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mooncake_client.mapping import Mapping
from mooncake_node.pool import (
    NAME_PREFIX,
    SHM_DIRECTORY,
    PoolError,
    PoolStoppedError,
    Segment,
    sweep,
)

MIB = 1 << 20


@pytest.fixture
def segment() -> Iterator[Segment]:
    made = Segment(4 * MIB)
    yield made
    made.close()


def open_fds() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def inodes_with_a_name() -> set[int]:
    return {path.lstat().st_ino for path in SHM_DIRECTORY.iterdir()}


def test_a_new_segment_has_two_descriptors_and_no_name(segment: Segment) -> None:
    write, read = os.fstat(segment.write_fd), os.fstat(segment.read_fd)
    assert os.path.samestat(write, read)
    assert write.st_dev == SHM_DIRECTORY.stat().st_dev
    assert write.st_nlink == 0
    assert write.st_ino not in inodes_with_a_name()
    assert write.st_size == segment.nbytes == 4 * MIB
    target = str(Path(f"/proc/self/fd/{segment.write_fd}").readlink())
    assert target.startswith(f"{SHM_DIRECTORY}/{NAME_PREFIX}")
    assert target.endswith(" (deleted)")


@pytest.mark.parametrize("mask", [0, 0o022, 0o777])
def test_the_mode_is_0400_under_any_umask(mask: int) -> None:
    before = os.umask(mask)
    try:
        segment = Segment(4096)
    finally:
        os.umask(before)
    assert os.fstat(segment.read_fd).st_mode & 0o7777 == 0o400
    segment.close()


def test_the_read_only_descriptor_cannot_be_mapped_writable(segment: Segment) -> None:
    with pytest.raises(PermissionError):
        Mapping(segment.read_fd, segment.nbytes, writable=True)
    mapping = Mapping(segment.read_fd, segment.nbytes, writable=False)
    os.pwrite(segment.write_fd, b"seen", 0)
    assert ctypes.string_at(mapping.address, 4) == b"seen"


def test_another_user_cannot_reopen_the_read_only_descriptor_for_writing(segment: Segment) -> None:
    """Root may do anything; whoever else was handed the descriptor may not."""
    fd = segment.read_fd
    user = 65534 if os.geteuid() == 0 else None
    shell = f"test -e /proc/self/fd/{fd} || exit 9; exec 3<>/proc/self/fd/{fd}"
    done = subprocess.run(["/bin/sh", "-c", shell], pass_fds=[fd], user=user, capture_output=True, check=False)
    assert done.returncode not in {0, 9}
    assert b"ermission denied" in done.stderr


def test_descriptors_are_not_inherited_and_the_lock_is_held(segment: Segment) -> None:
    assert not os.get_inheritable(segment.write_fd)
    assert not os.get_inheritable(segment.read_fd)
    with pytest.raises(BlockingIOError):
        fcntl.flock(segment.read_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_reserve_takes_every_page_and_tells_how_far_it_is() -> None:
    segment = Segment(130 * MIB)
    assert os.fstat(segment.write_fd).st_blocks == 0
    seen: list[tuple[int, int]] = []
    segment.reserve(lambda done, total: seen.append((done, total)))
    assert os.fstat(segment.write_fd).st_blocks * 512 == 130 * MIB
    assert seen[-1] == (130 * MIB, 130 * MIB)
    assert len(seen) > 1
    assert seen == sorted(set(seen))
    segment.close()


def test_a_stop_ends_the_reservation_at_the_next_step_and_closes_the_segment() -> None:
    segment = Segment(1 << 40)
    stop = threading.Event()
    steps: list[int] = []

    def progress(done: int, _total: int) -> None:
        steps.append(done)
        stop.set()

    with pytest.raises(PoolStoppedError):
        segment.reserve(progress, stop)
    assert len(steps) == 1
    assert segment.write_fd == segment.read_fd == -1


def test_close_is_harmless_twice_and_mappings_outlive_it(segment: Segment) -> None:
    mapping = Mapping(segment.write_fd, segment.nbytes, writable=True)
    segment.close()
    # Whoever gets the number next keeps it.
    other = os.open("/dev/null", os.O_RDONLY)
    segment.close()
    os.fstat(other)
    os.close(other)
    ctypes.memmove(mapping.address, b"alive", 5)
    assert ctypes.string_at(mapping.address, 5) == b"alive"


@pytest.mark.parametrize("nbytes", [0, -4096, 4095, 1 << 70])
def test_an_impossible_size_is_a_pool_error_and_leaves_no_descriptor(nbytes: int) -> None:
    before = open_fds()
    with pytest.raises(PoolError):
        Segment(nbytes)
    assert open_fds() == before


def test_a_sweep_between_creation_and_lock_costs_another_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For that moment the new file looks like one that a crash has left."""
    flock = fcntl.flock
    swept: list[str] = []

    def sweep_first(fd: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        swept.extend(sweep())
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", sweep_first)
    segment = Segment(4096)
    assert swept
    assert os.fstat(segment.write_fd).st_nlink == 0
    assert os.path.samestat(os.fstat(segment.write_fd), os.fstat(segment.read_fd))
    segment.close()


def test_a_sweep_that_holds_the_lock_costs_another_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flock = fcntl.flock

    def refused_once(_fd: int, _operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        raise BlockingIOError

    monkeypatch.setattr(fcntl, "flock", refused_once)
    before = open_fds()
    segment = Segment(4096)
    assert len(open_fds() - before) == 2
    segment.close()
    # That file still has its name: the sweep that has the lock removes it.
    sweep()


def test_an_error_before_the_name_is_gone_removes_the_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(_fd: int, _mode: int) -> None:
        raise PermissionError("chmod refused")

    monkeypatch.setattr(os, "fchmod", broken)
    before = open_fds()
    with pytest.raises(PoolError, match="chmod refused"):
        Segment(4096)
    named = [p for p in SHM_DIRECTORY.glob(NAME_PREFIX + "*") if not sweep_would_spare(p)]
    assert named == []
    assert open_fds() == before


def sweep_would_spare(path: Path) -> bool:
    """True for a file that another test's daemon is just making."""
    try:
        fd = os.open(path, os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    os.close(fd)
    return False


def test_pythons_own_mmap_shares_the_memory_too(segment: Segment) -> None:
    with mmap.mmap(segment.read_fd, segment.nbytes, prot=mmap.PROT_READ) as plain:
        os.pwrite(segment.write_fd, b"x", 100)
        assert plain[100] == ord("x")
