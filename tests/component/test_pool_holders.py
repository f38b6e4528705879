"""Who holds the memory of a pool that has neither name nor daemon."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mooncake_client.mapping import Mapping
from mooncake_node.pool import SHM_DIRECTORY, Segment, who_maps_deleted_pools

MIB = 1 << 20
CHILD = """
import os, sys
from mooncake_client.mapping import Mapping
maps = []
for argument in sys.argv[1:]:
    fd, nbytes = map(int, argument.split(":"))
    maps += [Mapping(fd, nbytes, writable=writable) for writable in (True, False)]
    os.close(fd)
print("mapped", flush=True)
sys.stdin.read()
"""


@contextmanager
def client_of(*segments: Segment) -> Iterator[int]:
    """A process that maps each segment twice, as a putting client does; yields its pid."""
    arguments = [f"{segment.write_fd}:{segment.nbytes}" for segment in segments]
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[segment.write_fd for segment in segments],
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"mapped\n"
        yield process.pid


def held_by(pid: int) -> int | None:
    return next((h.nbytes for h in who_maps_deleted_pools() if h.pid == pid), None)


def test_a_process_that_maps_pools_is_found_until_it_ends() -> None:
    segments = [Segment(4 * MIB), Segment(6 * MIB)]
    with client_of(*segments) as pid:
        for segment in segments:
            segment.close()
        assert held_by(pid) == 10 * MIB
        comm = next(h.comm for h in who_maps_deleted_pools() if h.pid == pid)
        assert comm == Path(f"/proc/{pid}/comm").read_text().strip()
    assert held_by(pid) is None


def test_pools_on_another_mount_are_not_counted(tmp_path: Path) -> None:
    if tmp_path.stat().st_dev == SHM_DIRECTORY.stat().st_dev:
        pytest.skip("THE TEMPORARY DIRECTORY IS ON /dev/shm")
    segment = Segment(4 * MIB)
    with client_of(segment) as pid:
        assert pid not in {h.pid for h in who_maps_deleted_pools(tmp_path)}
    segment.close()


def test_processes_that_vanish_or_may_not_be_read_are_passed_over(tmp_path: Path) -> None:
    number = SHM_DIRECTORY.stat().st_dev
    line = (
        f"7f0000000000-7f0000200000 rw-s 00000000 {number >> 8:02x}:{number & 255:02x} 42"
        "    /other/view/mooncake-node.00ff (deleted)\n"
    )
    for pid, maps in (
        ("1", line),
        ("2", line.replace(" (deleted)", "")),
        ("3", line.replace("mooncake-node.", "someone-else.")),
        ("4", "7f00-7f01 r--p 00000000 00:00 0\n"),
    ):
        (tmp_path / "proc" / pid).mkdir(parents=True)
        (tmp_path / "proc" / pid / "maps").write_text(maps)
        (tmp_path / "proc" / pid / "comm").write_text("trainer\n")
    (tmp_path / "proc" / "5").mkdir()  # has ended: no maps
    (tmp_path / "proc" / "6").mkdir()  # has ended a little later: no comm
    (tmp_path / "proc" / "6" / "maps").write_text(line)
    (tmp_path / "proc" / "self").mkdir()
    assert who_maps_deleted_pools(root=tmp_path) == [(1, "trainer", 2 * MIB)]


def test_a_process_of_ones_own_counts_too() -> None:
    segment = Segment(2 * MIB)
    mapping = Mapping(segment.read_fd, segment.nbytes, writable=False)
    segment.close()
    assert any(h.nbytes >= mapping.nbytes for h in who_maps_deleted_pools())
