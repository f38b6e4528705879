"""What objects and readers cost in memory."""

import os
import subprocess
import sys
from pathlib import Path

from mooncake_client import Client
from mooncake_node.bench.measure import Result, judge

_READERS = 4
_READER = """
import sys
from mooncake_client import Client
client = Client(sys.argv[1], name="bench-reader")
print("ready", flush=True)
for line in sys.stdin:
    view = client.get("shared")
    total = sum(view[::4096])
    print("read", flush=True)
"""


def measure_readers(client: Client, socket: Path) -> list[Result]:
    """Four processes read every page of one 1 GiB object: what that adds over all processes and the daemon."""
    with client.create("shared", 1 << 30) as buffer:
        buffer.view[:8] = b"measured"
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", _READER, str(socket)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(_READERS)
    ]
    try:
        # Everyone who maps the object: a shared page counts in parts that add up to one.
        pids = [os.getpid(), int(client.stats()["node"]["pid"]), *(reader.pid for reader in readers)]
        for reader in readers:
            _expect(reader, "ready")
        before = [_memory(pid) for pid in pids]
        for reader in readers:
            assert reader.stdin is not None
            reader.stdin.write("go\n")
            reader.stdin.flush()
        for reader in readers:
            _expect(reader, "read")
        after = [_memory(pid) for pid in pids]
    finally:
        for reader in readers:
            reader.kill()
            reader.communicate()
    client.remove("shared")
    added = sum(own for own, _ in after) - sum(own for own, _ in before)
    tables = sum(pte for _, pte in after) - sum(pte for _, pte in before)
    return [
        judge(
            f"{_READERS} readers of one 1 GiB object, memory added",
            added / (1 << 20),
            "MiB",
            "<= 32",
            f"Private + Pss_Shmem over all processes; page tables added {tables / (1 << 20):.1f} MiB",
        )
    ]


def measure_objects(client: Client, *, quick: bool) -> list[Result]:
    """The daemon's own memory at a million objects with 40-byte keys and no handles."""
    count = 100_000 if quick else 1_000_000
    before = client.stats()["node"]
    for begin in range(0, count, 4096):
        client.put_many({f"{number:040d}": b"12345678" for number in range(begin, min(count, begin + 4096))})
    after = client.stats()["node"]
    client.remove_all()
    own = (after["rss_bytes"] - after["rss_shmem_bytes"]) - (before["rss_bytes"] - before["rss_shmem_bytes"])
    return [
        judge(
            f"daemon memory at {count:,} objects",
            own / count / 1024,
            "KiB/object",
            "<= 1.2",
            "VmRSS - RssShmem, after minus before; 40-byte keys, no handles",
        )
    ]


def _expect(process: "subprocess.Popen[str]", word: str) -> None:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line == word, f"a reader said {line!r} instead of {word!r}"


def _memory(pid: int) -> tuple[int, int]:
    """Private + Pss_Shmem, and page tables, in bytes."""
    own = tables = 0
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(("Private_Clean", "Private_Dirty", "Pss_Shmem")):
            own += int(line.split()[1]) * 1024
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmPTE"):
            tables = int(line.split()[1]) * 1024
    return own, tables
