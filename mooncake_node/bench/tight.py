"""Tight memory: puts into a full pool, with and without the offload directory, and reads back from it."""

import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from mooncake_client import Client
from mooncake_node.bench.measure import Result, by_turns, judge, ratio
from mooncake_node.bench.pingpong import PingPong
from mooncake_node.local import LocalNode

_MIB = 1 << 20
_POOL = 256 * _MIB
_FILL = _POOL // _MIB - 16  # objects of 1 MiB that fill the pool, but for what is kept free
_LARGE = 64 * _MIB
_BLOCK = 4096
_READ_STEP = 32 * _MIB


def measure(wait_for_warmup: Callable[[Path], None], daemon_cpu: int, *, quick: bool) -> list[Result]:
    """On two nodes of their own: one that drops, one that offloads."""
    results: list[Result] = []
    with LocalNode(_POOL, cpu=daemon_cpu) as node, Client(node.socket, name="bench") as client:
        wait_for_warmup(node.socket)
        results.append(_measure_dropping(client, quick=quick))
    with tempfile.TemporaryDirectory(prefix="mooncake-bench-", dir=_disk()) as directory:
        tier = Path(directory) / "tier"
        with (
            LocalNode(_POOL, "--offload-dir", str(tier), cpu=daemon_cpu) as node,
            Client(node.socket, name="bench") as client,
        ):
            wait_for_warmup(node.socket)
            results.append(_measure_offloading(client, Path(directory), quick=quick))
            client.remove_all()
            results.append(_measure_restoring(client, tier, quick=quick))
            client.remove_all()
            results.append(_measure_under_load(client, node, daemon_cpu, quick=quick))
    return results


def _measure_dropping(client: Client, *, quick: bool) -> Result:
    payload, numbers = bytes(_MIB), count()

    def fill() -> None:
        for _ in range(_FILL):
            client.put(f"drop/{next(numbers)}", payload)

    fill()
    fills: list[float] = []
    sustained: list[float] = []
    for _ in range(3 if quick else 10):
        client.remove_all()
        fills.append(_seconds(fill))
        sustained += [_seconds(fill), _seconds(fill)]
    value = _median(fills) / _median(sustained)
    rates = [_FILL / _median(sustained), _FILL / _median(fills)]
    detail = f"{rates[0]:,.0f} puts/s of 1 MiB into a full pool, {rates[1]:,.0f} into an empty one"
    return judge("puts into a full pool, dropping", value, "x an empty pool's rate", ">= 0.7", detail)


def _measure_offloading(client: Client, directory: Path, *, quick: bool) -> Result:
    """Soft-pinned objects of 1 MiB against the files that they become, written by one plain writer."""
    payload, numbers = bytes(_MIB), count()
    plain = directory / "plain"
    plain.mkdir()
    source = memoryview(mmap.mmap(-1, _MIB + _BLOCK))
    client.put_many({f"warm/{number}": payload for number in range(_FILL)}, softpin=True)

    def put() -> None:
        for _ in range(_FILL):
            client.put(f"offload/{next(numbers)}", payload, softpin=True)

    def write() -> None:
        for number in range(_FILL):
            _write_file(plain, str(number), source)

    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(2 if quick else 7):
        ours.append(_seconds(put))
        theirs.append(_seconds(write))
        client.remove_prefix("offload/")
        for number in range(_FILL):
            (plain / str(number)).unlink()
        # Full again, of what has to be written before it can go.
        client.put_many({f"again/{next(numbers)}": payload for _ in range(_FILL)}, softpin=True)
    value = _median(theirs) / _median(ours)
    detail = f"{_FILL / _median(ours):,.0f} MiB/s, the plain writer {_FILL / _median(theirs):,.0f} MiB/s"
    return judge("soft-pinned puts into a full pool, offloading", value, "x a plain writer's rate", ">= 0.7", detail)


def _measure_restoring(client: Client, tier: Path, *, quick: bool) -> Result:
    """A get of an object on disk alone against a read of its file."""
    objects = 3 if quick else 6
    payload = os.urandom(_LARGE)
    for number in range(objects):
        client.put(f"large/{number}", payload, softpin=True)
    # What is on disk alone is so for good once the pool is full of others.
    client.put_many({f"push/{number}": bytes(_MIB) for number in range(_FILL)})
    into = memoryview(mmap.mmap(-1, _LARGE, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE))
    files = sorted((path for path in tier.rglob("*") if path.is_file() and path.stat().st_size > _LARGE), key=str)
    ours: list[float] = []
    theirs: list[float] = []
    for turn in range(objects if quick else 3 * objects):
        key = f"large/{turn % objects}"
        if client.info(key).state != "on_disk":
            continue
        ours.append(_seconds(lambda key=key: client.get_buffer(key).release()))  # type: ignore[misc]
        path = files[turn % len(files)]
        theirs.append(_seconds(lambda path=path: _read_file(path, into)))  # type: ignore[misc]
        client.put_many({f"push/{turn}/{number}": bytes(_MIB) for number in range(_FILL)})
    into.release()
    value = _median(theirs) / _median(ours)
    detail = f"{64 / _median(ours):,.0f} MiB/s against {64 / _median(theirs):,.0f} MiB/s, {len(ours)} reads each"
    return judge("get of 64 MiB from the offload directory", value, "x a plain read's rate", ">= 0.8", detail)


def _measure_under_load(client: Client, node: LocalNode, daemon_cpu: int, *, quick: bool) -> Result:
    """Gets of what is in memory while others keep reclaim and offload busy."""
    client.put("hot", bytes(_BLOCK), softpin=True)
    load = [
        subprocess.Popen([sys.executable, "-m", "mooncake_node.bench.tight", str(node.socket), name])
        for name in ("a", "b")
    ]
    try:
        with PingPong(node.directory, daemon_cpu) as pingpong:
            # Until reclaim runs.
            while not client.stats()["reclaim"]["offloaded"]:
                client.get("hot")
            (ours, our_rounds), (bare, bare_rounds) = by_turns(
                [lambda: client.get("hot"), pingpong.play], rounds=5 if quick else 20, calls_per_round=200
            )
    finally:
        for process in load:
            process.terminate()
            process.wait()
    value = ours.p99_us / bare.p99_us
    detail = (
        f"p99 {ours.p99_us:.0f} µs against {bare.p99_us:.0f}; median {ours.median_us:.0f} against {bare.median_us:.0f}"
        f" ({ratio(our_rounds, bare_rounds):.1f} x)"
    )
    return judge("p99 of a local get under full reclaim and offload", value, "x ping-pong's p99", "<= 3", detail)


def _put_for_ever(socket: str, name: str) -> None:
    payload = bytes(_MIB)
    with Client(socket, name=f"load-{name}") as client:
        for number in count():
            client.put(f"load/{name}/{number}", payload, softpin=True)
            if number >= 512:
                client.remove(f"load/{name}/{number - 512}")


def _write_file(directory: Path, name: str, source: memoryview) -> None:
    temporary = directory / f"{name}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o600)
    try:
        if os.write(fd, source) != source.nbytes:
            raise OSError("short write")
    finally:
        os.close(fd)
    temporary.rename(directory / name)


def _read_file(path: Path, into: memoryview) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        for start in range(0, into.nbytes, _READ_STEP):
            os.preadv(fd, [into[start : start + _READ_STEP]], start)
    finally:
        os.close(fd)


def _disk() -> str | None:
    """A directory on a real disk: where the user says, else the working directory, which is seldom in memory."""
    return os.environ.get("TMPDIR") or str(Path.cwd())


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


if __name__ == "__main__":
    _put_for_ever(sys.argv[1], sys.argv[2])
