"""A Mapping is where huge pages can be, shared, and unmapped exactly once."""

import ctypes
import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mooncake_client.mapping import CHUNK, Mapping

MIB = 1 << 20


@contextmanager
def memory(nbytes: int) -> Iterator[int]:
    fd = os.memfd_create("mapping-test")
    try:
        os.ftruncate(fd, nbytes)
        yield fd
    finally:
        os.close(fd)


def view(mapping: Mapping) -> memoryview:
    return memoryview((ctypes.c_char * mapping.nbytes).from_address(mapping.address)).cast("B")


def is_mapped(address: int) -> bool:
    lines = Path("/proc/self/maps").read_text().splitlines()
    extents = (line.split()[0].split("-") for line in lines)
    return any(int(start, 16) <= address < int(end, 16) for start, end in extents)


def inaccessible_bytes() -> int:
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        extent, protection = line.split()[:2]
        if protection == "---p":
            start, end = extent.split("-")
            total += int(end, 16) - int(start, 16)
    return total


def resident_bytes(address: int) -> int:
    """Rss of the mapping that starts at *address*."""
    found = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.startswith(f"{address:x}-"):
            found = True
        elif found and line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("not mapped")


class Recording(Mapping):
    """Notes which runs of chunks reach the kernel."""

    def __init__(self, fd: int, nbytes: int, *, writable: bool) -> None:
        self.runs: list[tuple[int, int]] = []
        super().__init__(fd, nbytes, writable=writable)

    def _populate_chunks(self, first: int, end: int) -> bool:
        self.runs.append((first, end))
        return super()._populate_chunks(first, end)


@pytest.mark.parametrize("nbytes", [1, 4096, 2 * MIB, 2 * MIB + 5, 7 * MIB])
@pytest.mark.parametrize("writable", [False, True])
def test_every_mapping_starts_on_a_huge_page_boundary(nbytes: int, writable: bool) -> None:
    with memory(nbytes) as fd:
        mappings = [Mapping(fd, nbytes, writable=writable) for _ in range(5)]
    assert all(m.address % CHUNK == 0 for m in mappings)
    assert all(view(m)[nbytes - 1] == 0 for m in mappings)


def test_nothing_of_the_reserved_range_is_left_around_the_mapping() -> None:
    with memory(4096) as fd:
        before = inaccessible_bytes()
        mapping = Mapping(fd, 4096, writable=False)
        assert inaccessible_bytes() == before
    del mapping


def test_a_write_is_seen_by_another_process_and_after_the_descriptor_is_closed() -> None:
    child = """
import ctypes, sys
from mooncake_client.mapping import Mapping
fd, nbytes = map(int, sys.argv[1:])
m = Mapping(fd, nbytes, writable=True)
got = ctypes.string_at(m.address + nbytes - 5, 5)
ctypes.memmove(m.address, got[::-1], 5)
"""
    nbytes = 4 * MIB + 4096
    with memory(nbytes) as fd:
        mapping = Mapping(fd, nbytes, writable=True)
        view(mapping)[-5:] = b"hello"
        subprocess.run([sys.executable, "-c", child, str(fd), str(nbytes)], pass_fds=[fd], check=True)
    assert bytes(view(mapping)[:5]) == b"olleh"


def test_a_read_only_descriptor_cannot_be_mapped_writable() -> None:
    with memory(4096) as fd:
        read_fd = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
        before = inaccessible_bytes()
        with pytest.raises(PermissionError):
            Mapping(read_fd, 4096, writable=True)
        assert inaccessible_bytes() == before
        Mapping(read_fd, 4096, writable=False)
        os.close(read_fd)


@pytest.mark.parametrize("nbytes", [0, -1, 4097])
def test_a_size_the_file_does_not_have_is_refused_instead_of_a_later_sigbus(nbytes: int) -> None:
    with memory(4096) as fd, pytest.raises(ValueError, match="cannot map"):
        Mapping(fd, nbytes, writable=False)


def test_an_init_that_fails_half_way_leaves_nothing_to_unmap() -> None:
    """filterwarnings makes an exception in __del__ a failure."""
    with pytest.raises(OSError, match="Bad file"):
        Mapping(-1, 4096, writable=False)
    with pytest.raises(TypeError):
        Mapping()  # type: ignore[call-arg]
    gc.collect()


def test_terabytes_are_mapped_and_reached_at_their_far_end() -> None:
    nbytes = 3 << 40
    with memory(nbytes) as fd:
        one = Mapping(fd, nbytes, writable=True)
        two = Mapping(fd, nbytes, writable=False)
        ctypes.memmove(one.address + nbytes - 3, b"end", 3)
        assert ctypes.string_at(two.address + nbytes - 3, 3) == b"end"


@pytest.mark.parametrize("writable", [False, True])
def test_populate_maps_every_page_and_changes_no_byte(writable: bool) -> None:
    nbytes = 5 * MIB
    with memory(nbytes) as fd:
        os.pwrite(fd, b"x" * nbytes, 0)
        mapping = Mapping(fd, nbytes, writable=writable)
        assert resident_bytes(mapping.address) == 0
        assert mapping.populate(0, nbytes)
        assert resident_bytes(mapping.address) == nbytes
        assert bytes(view(mapping)) == b"x" * nbytes


def test_populate_asks_the_kernel_once_for_each_chunk_whatever_the_overlap() -> None:
    nbytes = 129 * MIB
    with memory(nbytes) as fd:
        mapping = Recording(fd, nbytes, writable=True)
        assert mapping.populate(5 * MIB + 1, 10)  # chunk 2
        assert mapping.runs == [(2, 3)]
        assert mapping.populate(4 * MIB, 2 * MIB)
        assert mapping.runs == [(2, 3)]
        assert mapping.populate(0, 1 << 60)  # clipped
        asked = [chunk for first, end in mapping.runs for chunk in range(first, end)]
        assert sorted(asked) == list(range(65))
        assert max(end - first for first, end in mapping.runs) <= 32  # 64 MiB under the lock
        before = len(mapping.runs)
        assert mapping.populate(0, nbytes)
        assert mapping.populate(nbytes, 1)
        assert len(mapping.runs) == before


def test_populate_that_the_kernel_refuses_returns_false_and_is_tried_again() -> None:
    """Behind the end of the file there is nothing to map."""
    with memory(4 * MIB) as fd:
        mapping = Mapping(fd, 4 * MIB, writable=True)
        os.ftruncate(fd, 2 * MIB)
        assert not mapping.populate(0, 4 * MIB)
        os.ftruncate(fd, 4 * MIB)
        assert mapping.populate(0, 4 * MIB)


def test_collapse_covers_only_whole_chunks_and_keeps_the_bytes() -> None:
    nbytes = 9 * MIB
    with memory(nbytes) as fd:
        pattern = os.urandom(nbytes)
        os.pwrite(fd, pattern, 0)
        mapping = Mapping(fd, nbytes, writable=True)
        assert not mapping.collapse(1, 2 * MIB)  # holds no whole chunk
        assert not mapping.collapse(8 * MIB, 2 * MIB)  # the tail is none
        done = mapping.collapse(0, nbytes)
        if not done:
            pytest.skip("THE KERNEL REFUSES MADV_COLLAPSE HERE")
        assert mapping.collapse(0, nbytes), "what is huge already counts as done"
        assert bytes(view(mapping)) == pattern


def test_unmap_gives_the_range_back_and_further_use_is_an_error() -> None:
    with memory(4096) as fd:
        mapping = Mapping(fd, 4096, writable=False)
    address = mapping.address
    assert is_mapped(address)
    mapping.unmap()
    assert not is_mapped(address)
    assert mapping.address == 0
    for call in (mapping.populate, mapping.collapse):
        with pytest.raises(ValueError, match="unmapped"):
            call(0, 4096)


def test_the_last_reference_unmaps() -> None:
    with memory(4096) as fd:
        mapping = Mapping(fd, 4096, writable=False)
    address = mapping.address
    other = mapping
    del mapping
    assert is_mapped(address)
    del other
    assert not is_mapped(address)


def test_a_second_unmap_spares_whoever_got_the_range_meanwhile() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    with memory(2 * MIB) as fd:
        mapping = Mapping(fd, 2 * MIB, writable=False)
    address = mapping.address
    mapping.unmap()
    fixed_noreplace, private_anonymous = 0x100000, 0x22
    taken = libc.mmap(address, 2 * MIB, 3, private_anonymous | fixed_noreplace, -1, 0)
    assert taken == address
    mapping.unmap()
    del mapping
    assert is_mapped(address)
    libc.munmap(address, 2 * MIB)


def test_the_end_of_the_interpreter_is_quiet_and_left_to_the_kernel() -> None:
    """Threads frozen by the interpreter may still be copying through the address."""
    child = """
import os
from mooncake_client.mapping import Mapping
class Loud(Mapping):
    def unmap(self, write=os.write):
        write(1, b"unmapped")
fd = os.memfd_create("x"); os.ftruncate(fd, 4096)
class Node: pass
kept = Loud(fd, 4096, writable=True)
cycle = Node(); cycle.me = cycle; cycle.mapping = Mapping(fd, 4096, writable=False)
"""
    done = subprocess.run([sys.executable, "-c", child], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_core_dumps_leave_the_mapping_out() -> None:
    with memory(4096) as fd:
        mapping = Mapping(fd, 4096, writable=True)
    smaps = Path("/proc/self/smaps").read_text().split(f"\n{mapping.address:x}-")[1]
    flags = next(line for line in smaps.splitlines() if line.startswith("VmFlags:"))
    assert "dd" in flags.split()
