"""What happens where /dev/shm is small: each script runs with its own 100 MiB one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PRELUDE = """
import ctypes, os, subprocess, sys, threading
from pathlib import Path
import pytest
from mooncake_client.mapping import Mapping
from mooncake_node.pool import *

MIB = 1 << 20
SHM = Path("/dev/shm")

def used():
    mount = os.statvfs(SHM)
    return (mount.f_blocks - mount.f_bfree) * mount.f_frsize

def fill(name="filler", nbytes=1 << 40):
    written = 0
    with (SHM / name).open("wb", buffering=0) as out:
        try:
            while written < nbytes:
                written += out.write(bytes(min(65536, nbytes - written)))
        except OSError as error:
            assert error.errno == 28
    return written

class Client:
    "A process that maps a segment until it is told to end."

    def __init__(self, segment):
        code = (
            "import os, sys; from mooncake_client.mapping import Mapping; fd = int(sys.argv[1]);"
            "m = Mapping(fd, int(sys.argv[2]), writable=False); os.close(fd);"
            "print('mapped', flush=True); sys.stdin.read()"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, str(segment.read_fd), str(segment.nbytes)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[segment.read_fd],
        )
        assert self.process.stdout.readline() == b"mapped\\n"

    def end(self):
        self.process.communicate()
"""


def in_small_shm(script: str, options: str = "size=100m") -> None:
    """Run *script* with a private /dev/shm; a failure shows its output and ends the test."""
    # Without root a user namespace of one's own is enough.
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "-r"]
    mount = f"mount -t tmpfs -o {options} tmpfs /dev/shm"
    tried = subprocess.run([*unshare, "sh", "-c", mount], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"NO PRIVATE /dev/shm HERE, NOT TESTED: {tried.stderr.strip()}")
    # Not the current directory's modules but those of this test run.
    done = subprocess.run(
        [*unshare, "sh", "-c", mount + ' && exec "$0" -c "$1"', sys.executable, PRELUDE + script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        cwd=Path(__file__).parent,
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("options", ["size=100m", "size=100m,huge=advise", "size=100m,huge=always"])
def test_a_pool_that_does_not_fit_fails_with_numbers_and_leaves_nothing(options: str) -> None:
    script = """
for asked, filled in ((200 * MIB, 0), (80 * MIB, 50 * MIB)):
    if filled:
        fill(nbytes=filled)
    before = sorted(SHM.iterdir())
    # The check says so at once, the reservation if room was lost in between.
    with pytest.raises(PoolError) as checked:
        check_room(asked, SHM)
    segment = Segment(asked)
    with pytest.raises(PoolError) as reserved:
        segment.reserve()
    for caught in (checked, reserved):
        message = str(caught.value)
        for part in (str(asked), "/dev/shm", "--shm-size", "medium: Memory", "104857600"):
            assert part in message, (part, message)
    assert f"{100 * MIB - filled} bytes" in str(checked.value)
    assert sorted(SHM.iterdir()) == before
    assert used() == filled, used()
"""
    in_small_shm(script, options)


@pytest.mark.parametrize("options", ["size=100m", "size=100m,huge=advise"])
def test_a_reserved_pool_is_never_a_sigbus_however_full_the_mount(options: str) -> None:
    script = """
segment = Segment(60 * MIB)
segment.reserve()
fill()
assert os.statvfs(SHM).f_bfree == 0
mapping = Mapping(segment.write_fd, segment.nbytes, writable=True)
assert mapping.populate(0, 1)
ctypes.memset(mapping.address, 0xA5, segment.nbytes)
warmup = Warmup(mapping)
warmup.start()
warmup.join()
assert warmup.status().state is WarmupState.DONE, warmup.status()
reader = Mapping(segment.read_fd, segment.nbytes, writable=False)
assert ctypes.string_at(reader.address, segment.nbytes) == b"\\xa5" * segment.nbytes
print(warmup.status())
"""
    in_small_shm(script, options)


def test_a_stopped_reservation_gives_its_memory_back() -> None:
    script = """
stop = threading.Event()
segment = Segment(90 * MIB)
with pytest.raises(PoolStoppedError) as kept:
    segment.reserve(lambda done, total: stop.set(), stop)
assert used() == 0
"""
    in_small_shm(script)


@pytest.mark.parametrize(("policy", "method"), [("advise", "mount"), ("always", "mount")])
def test_a_mount_that_offers_huge_pages_gives_them_without_a_copy(policy: str, method: str) -> None:
    script = f"""
segment = Segment(64 * MIB)
segment.reserve()
mapping = Mapping(segment.write_fd, segment.nbytes, writable=True)
warmup = Warmup(mapping)
warmup.start()
warmup.join()
status = warmup.status()
assert status.method == {method!r}, status
assert status.bytes_huge == segment.nbytes, status
"""
    in_small_shm(script, f"size=100m,huge={policy}")


def test_the_start_waits_for_a_client_of_a_dead_daemon_and_goes_on_when_it_ends() -> None:
    script = """
old = Segment(60 * MIB)
old.reserve()
client = Client(old)
old.close()
looks = []

def on_wait(holders):
    looks.append(holders)
    if len(looks) == 2:
        client.end()

wait_for_room(60 * MIB, start_wait_s=1e6, stop=threading.Event(), on_wait=on_wait)
assert len(looks) >= 2
assert [(h.pid, h.nbytes) for h in looks[0]] == [(client.process.pid, 60 * MIB)]
new = Segment(60 * MIB)
new.reserve()
"""
    in_small_shm(script)


def test_the_wait_is_bounded_and_its_end_names_the_holders() -> None:
    script = """
old = Segment(60 * MIB)
old.reserve()
client = Client(old)
old.close()
with pytest.raises(PoolError) as caught:
    wait_for_room(60 * MIB, start_wait_s=0.25, stop=threading.Event())
message = str(caught.value)
comm = Path(f"/proc/{client.process.pid}/comm").read_text().strip()
for part in (f"{comm} (pid {client.process.pid}, {60 * MIB} bytes", str(40 * MIB), "/dev/shm"):
    assert part in message, message
client.end()
"""
    in_small_shm(script)


def test_a_stop_ends_the_wait() -> None:
    script = """
old = Segment(60 * MIB)
old.reserve()
client = Client(old)
old.close()
stop = threading.Event()
with pytest.raises(PoolStoppedError):
    wait_for_room(60 * MIB, start_wait_s=1e6, stop=stop, on_wait=lambda holders: stop.set())
client.end()
"""
    in_small_shm(script)


@pytest.mark.parametrize("filled", [0, 60])
def test_room_that_can_never_come_is_not_waited_for(filled: int) -> None:
    """Nothing nameless is big enough: a named file stays, and so does the size of the mount."""
    script = f"""
fill(nbytes={filled} * MIB)
asked = (60 if {filled} else 200) * MIB
old = Segment(10 * MIB)
old.reserve()
client = Client(old)
old.close()

def on_wait(holders):
    raise AssertionError("waited")

with pytest.raises(PoolError) as caught:
    wait_for_room(asked, start_wait_s=1e6, stop=threading.Event(), on_wait=on_wait)
assert str(asked) in str(caught.value)
client.end()
"""
    in_small_shm(script)


def test_holders_that_cannot_be_seen_are_waited_for_and_said_to_be_unseen() -> None:
    """As from inside a container: /dev/shm is shared, /proc is not."""
    script = """
from mooncake_node.pool import holders as room
old = Segment(60 * MIB)
old.reserve()
client = Client(old)
old.close()
room.who_maps_deleted_pools = lambda directory: []
with pytest.raises(PoolError, match="cannot be seen") as caught:
    wait_for_room(60 * MIB, start_wait_s=0, stop=threading.Event())
assert str(60 * MIB) in str(caught.value)
client.end()
"""
    in_small_shm(script)


def test_enough_room_is_no_wait() -> None:
    script = """
wait_for_room(60 * MIB, start_wait_s=0, stop=threading.Event())
"""
    in_small_shm(script)
