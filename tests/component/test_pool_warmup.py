"""The warm-up touches every page, gets what huge pages it can, and disturbs nobody."""

import ctypes
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from mooncake_client.mapping import CHUNK, Mapping
from mooncake_node.pool import Segment, Warmup, WarmupState, huge_bytes

MIB = 1 << 20
NBYTES = 64 * MIB


@pytest.fixture
def segment() -> Iterator[Segment]:
    made = Segment(NBYTES)
    made.reserve()
    yield made
    made.close()


class Gated(Mapping):
    """Lets populate go on only when the test says so."""

    def __init__(self, fd: int, nbytes: int) -> None:
        super().__init__(fd, nbytes, writable=True)
        self.entered, self.gate = threading.Event(), threading.Event()

    def populate(self, offset: int, nbytes: int) -> bool:
        self.entered.set()
        self.gate.wait()
        return super().populate(offset, nbytes)


class Unwilling(Mapping):
    """A kernel that populates or collapses only as it is told to."""

    def __init__(self, fd: int, nbytes: int, *, populates: bool = True, collapses: int = 0) -> None:
        super().__init__(fd, nbytes, writable=True)
        self.populates, self.collapses = populates, collapses
        self.collapse_calls: list[tuple[int, int]] = []

    def populate(self, offset: int, nbytes: int) -> bool:
        return self.populates

    def collapse(self, offset: int, nbytes: int) -> bool:
        self.collapse_calls.append((offset, nbytes))
        return nbytes == CHUNK and self.collapses > 0 and offset // CHUNK % self.collapses == 0


def run(mapping: Mapping, **settings: str) -> Warmup:
    warmup = Warmup(mapping, **settings)  # type: ignore[arg-type]
    assert warmup.status().state is WarmupState.PENDING
    warmup.start()
    warmup.join()
    return warmup


def test_a_warmed_pool_is_mapped_whole_and_says_how(segment: Segment) -> None:
    mapping = Mapping(segment.write_fd, NBYTES, writable=True)
    status = run(mapping).status()
    assert (status.state, status.error) == (WarmupState.DONE, "")
    assert status.bytes_prefaulted == NBYTES
    assert status.bytes_huge == huge_bytes(mapping)
    assert (status.method == "none") == (status.bytes_huge == 0)
    assert status.seconds > 0


def test_huge_pages_are_measured_where_the_kernel_can_collapse(segment: Segment) -> None:
    probe = Segment(CHUNK)
    probe.reserve()
    scratch = Mapping(probe.write_fd, CHUNK, writable=True)
    probe.close()
    assert scratch.populate(0, CHUNK)
    if not scratch.collapse(0, CHUNK):
        pytest.skip("THE KERNEL REFUSES MADV_COLLAPSE HERE")
    status = run(Mapping(segment.write_fd, NBYTES, writable=True)).status()
    assert status.bytes_huge > 0
    assert status.method in {"collapse", "mount"}


def test_off_collapses_nothing(segment: Segment) -> None:
    mapping = Unwilling(segment.write_fd, NBYTES)
    status = run(mapping, huge_pages="off").status()
    assert mapping.collapse_calls == []
    assert (status.state, status.method) == (WarmupState.DONE, "none")


def test_a_writer_meanwhile_loses_nothing() -> None:
    """Another process writes and checks the whole pool over and over, through its own mapping."""
    child = """
import select, struct, sys, ctypes
from mooncake_client.mapping import Mapping
fd, nbytes = map(int, sys.argv[1:])
m = Mapping(fd, nbytes, writable=True)
mv = memoryview((ctypes.c_char * nbytes).from_address(m.address)).cast("B")
word = struct.Struct("<QQ")
rounds = lost = 0
while rounds < 2 or not select.select([sys.stdin], [], [], 0)[0]:
    for at in range(0, nbytes, 4096):
        if rounds and word.unpack_from(mv, at + 64) != (rounds, at):
            lost += 1
        word.pack_into(mv, at + 64, rounds + 1, at)
    rounds += 1
    if rounds == 1:
        print("writing", flush=True)
lost += sum(word.unpack_from(mv, at + 64) != (rounds, at) for at in range(0, nbytes, 4096))
print(rounds, lost, flush=True)
"""
    segment = Segment(NBYTES)
    segment.reserve()
    with subprocess.Popen(
        [sys.executable, "-c", child, str(segment.write_fd), str(NBYTES)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[segment.write_fd],
    ) as process:
        mapping = Mapping(segment.write_fd, NBYTES, writable=True)
        segment.close()
        before = b"written before"
        ctypes.memmove(mapping.address + 4096 * 7 + 1024, before, len(before))
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "writing\n"
        warmup = run(mapping)
        process.stdin.close()
        rounds, lost = map(int, process.stdout.readline().split())
    assert warmup.status().state is WarmupState.DONE
    assert rounds >= 2
    assert lost == 0
    assert ctypes.string_at(mapping.address + 4096 * 7 + 1024, len(before)) == before


def test_stop_ends_it_after_the_step_it_is_in(segment: Segment) -> None:
    mapping = Gated(segment.write_fd, NBYTES)
    warmup = Warmup(mapping)
    warmup.start()
    mapping.entered.wait()
    assert warmup.status().state is WarmupState.RUNNING
    stopper = threading.Thread(target=warmup.stop)
    stopper.start()
    warmup._stop.wait()
    mapping.gate.set()
    stopper.join()
    status = warmup.status()
    assert status.state is WarmupState.STOPPED
    assert 0 < status.bytes_prefaulted < NBYTES
    warmup.stop()
    mapping.unmap()


def test_stop_before_start_is_harmless(segment: Segment) -> None:
    mapping = Mapping(segment.write_fd, NBYTES, writable=True)
    warmup = Warmup(mapping)
    warmup.stop()
    warmup.start()
    warmup.join()
    assert warmup.status().state is WarmupState.STOPPED
    assert warmup.status().bytes_prefaulted == 0


def test_a_kernel_that_cannot_prefault_is_a_failed_warmup_and_nothing_else(
    segment: Segment,
) -> None:
    status = run(Unwilling(segment.write_fd, NBYTES, populates=False)).status()
    assert status.state is WarmupState.FAILED
    assert status.bytes_prefaulted == 0
    assert "pre-fault" in status.error


def test_collapse_is_given_up_after_64_refusals_in_a_row() -> None:
    segment = Segment(512 * MIB)  # sparse: the fake touches nothing
    mapping = Unwilling(segment.write_fd, segment.nbytes)
    segment.close()
    status = run(mapping).status()
    assert sum(nbytes == CHUNK for _, nbytes in mapping.collapse_calls) == 64
    assert (status.state, status.method, status.bytes_huge) == (WarmupState.DONE, "none", 0)


def test_single_refusals_do_not_end_it() -> None:
    segment = Segment(512 * MIB + 4096)  # and a tail that can never be huge
    mapping = Unwilling(segment.write_fd, segment.nbytes, collapses=3)
    segment.close()
    run(mapping)
    tried = [offset for offset, nbytes in mapping.collapse_calls if nbytes == CHUNK]
    assert tried == list(range(0, 512 * MIB, CHUNK))
