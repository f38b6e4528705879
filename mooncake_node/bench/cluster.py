"""Two nodes: what a copy from one to the other costs, beside iperf3 over the same loopback."""

import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from mooncake_client import Client
from mooncake_node.bench.directory import KEYS, Lookups
from mooncake_node.bench.measure import Result, judge
from mooncake_node.bench.network import Network
from mooncake_node.local import LocalNode
from mooncake_node.local_directory import LocalDirectory

_MIB = 1 << 20
_GIB = 1 << 30
_LARGE_NBYTES = 256 * _MIB
_INFLIGHT = 16
_ASKERS = 16
_IPERF_PORT = 5201
_PUTS = 200


def measure(*, quick: bool) -> Iterator[Result]:
    """Copies, leases and latencies of two nodes and a directory on one loopback."""
    with (
        Network() as network,
        LocalDirectory(network.prefix) as directory,
        _nodes(network, directory) as (one, two, socket),
    ):
        bench = _Bench(network, directory, one, two, socket, quick=quick)
        if shutil.which("iperf3"):
            yield from bench.bandwidth()
            yield bench.latency()
        else:
            yield judge("iperf3", 0, "", "", "not installed: copies were not measured against it")
        yield from bench.coalescing()
        yield from bench.directory_costs()


@contextmanager
def _nodes(network: Network, directory: LocalDirectory) -> Iterator[tuple[Client, Client, Path]]:
    def flags(name: str) -> tuple[str, ...]:
        return ("--name", name, "--directory", directory.url, "--listen", "127.0.0.1:0")

    pool_nbytes = 2 * _GIB + _GIB // 2
    with (
        LocalNode(pool_nbytes, *flags("bench-1"), prefix=network.prefix) as first,
        LocalNode(pool_nbytes, *flags("bench-2"), prefix=network.prefix) as second,
        Client(first.socket, name="bench") as one,
        Client(second.socket, name="bench", readonly=True) as two,
    ):
        for client in (one, two):
            while not _is_ready(client.stats()):
                time.sleep(0.05)
        yield one, two, second.socket


def _is_ready(stats: dict[str, Any]) -> bool:
    return len(stats["cluster"]["nodes"]) == 2 and stats["pages"]["prefault"] in ("done", "failed")


class _Bench:
    """Client *one* puts on the first node, *two* gets on the second, always by request."""

    def __init__(
        self, network: Network, directory: LocalDirectory, one: Client, two: Client, socket: Path, *, quick: bool
    ) -> None:
        self._network = network
        self._directory = directory
        self._one, self._two, self._socket = one, two, socket
        self._rounds = 3 if quick else 9
        self._seconds = 1 if quick else 2
        where = "a network namespace of the bench's own" if network.is_own else "this machine's network"
        self._detail = f"TCP congestion control {network.congestion}, {where}"

    def bandwidth(self) -> Iterator[Result]:
        """A large object, and many of 1 MiB, against iperf3 in the same run."""
        large, small, bare = [], [], []
        for number in range(self._rounds):
            bare.append(self._iperf())
            large.append(self._copy([f"large/{number}"], _LARGE_NBYTES))
            small.append(self._copy([f"small/{number}/{i}" for i in range(8 * _INFLIGHT)], _MIB))
        for name, goal, rates in (
            ("copy of 256 MiB from the other node, against iperf3", ">= 0.6", large),
            (f"copies of 1 MiB, {_INFLIGHT} in flight, against iperf3", ">= 0.4", small),
        ):
            value = statistics.median(a / b for a, b in zip(rates, bare, strict=True))
            detail = (
                f"{statistics.median(rates) / 1e9:.1f} GB/s, iperf3 {statistics.median(bare) / 1e9:.1f}; {self._detail}"
            )
            yield judge(name, value, "x", goal, detail)

    def _copy(self, keys: list[str], nbytes: int) -> float:
        """Bytes a second, from the first question to the last view."""
        for key in keys:
            with self._one.create(key, nbytes) as buffer:
                buffer.view[:8] = b"measured"
        # Two who ask for half of them at a time: so many are under way at every moment, not only when a batch begins.
        half = _INFLIGHT // 2
        batches = [keys[start : start + half] for start in range(0, len(keys), half)]
        with ThreadPoolExecutor(2) as askers:
            begin = time.perf_counter()
            for _ in askers.map(self._read, batches):
                pass
            rate = nbytes * len(keys) / (time.perf_counter() - begin)
        self._one.remove_many(keys)
        return rate

    def _read(self, keys: list[str]) -> None:
        for handle in self._two.get_buffers(keys):
            if isinstance(handle, Exception):
                raise handle
            handle.release()

    def _iperf(self) -> float:
        """Bytes a second over one stream."""
        with self._iperf_running(self._seconds) as client:
            report = msgspec.json.decode(client.communicate()[0])
        return float(report["end"]["sum_received"]["bits_per_second"]) / 8

    @contextmanager
    def _iperf_running(self, seconds: int) -> Iterator[subprocess.Popen[bytes]]:
        prefix = self._network.prefix
        server = subprocess.Popen(
            [*prefix, "iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", str(_IPERF_PORT), "--forceflush"],
            stdout=subprocess.PIPE,
        )
        try:
            assert server.stdout is not None
            while b"listening" not in server.stdout.readline():
                pass
            with subprocess.Popen(
                [*prefix, "iperf3", "-c", "127.0.0.1", "-p", str(_IPERF_PORT), "-t", str(seconds), "-J"],
                stdout=subprocess.PIPE,
            ) as client:
                yield client
        finally:
            server.terminate()
            server.communicate()

    # -- latency -----------------------------------------------------------------------------------------------------

    def latency(self) -> Result:
        """Requests of the receiving node while 1 GiB comes in, and while iperf3 runs instead."""
        self._one.put("local", bytes(4096))
        self._two.get("local")
        with self._one.create("huge", _GIB) as buffer:
            buffer.view[:8] = b"measured"
        during_copy: list[int] = []
        during_iperf: list[int] = []
        for _ in range(self._rounds):
            with self._iperf_running(1) as client:
                during_iperf += self._requests(lambda client=client: client.poll() is None)  # type: ignore[misc]
                client.communicate()
            # By a client of its own: two threads of one wait for each other, too.
            asker = Client(self._socket, name="asker", readonly=True)
            asking = threading.Thread(target=lambda: asker.get_buffer("huge").release())  # noqa: B023
            asking.start()
            during_copy += self._requests(asking.is_alive)
            asking.join()
            asker.close()
            # Only there: so the next round copies it anew.
            self._two_drops("huge")
        self._one.remove_many(["local", "huge"])
        ours, theirs = _p99_us(during_copy), _p99_us(during_iperf)
        detail = f"p99 {ours:.0f} µs of {len(during_copy)}, while iperf3 runs {theirs:.0f} µs of {len(during_iperf)}"
        return judge("p99 of a request while 1 GiB comes in, against iperf3", ours / theirs, "x", "<= 3", detail)

    def _requests(self, goes_on: Callable[[], bool]) -> list[int]:
        clock, took = time.perf_counter_ns, []
        while goes_on():
            begin = clock()
            self._two.get("local")
            took.append(clock() - begin)
        return took

    def _two_drops(self, key: str) -> None:
        """The second node gives its copy up: the object is replaced by one of the same bytes."""
        self._one.remove(key)
        with self._one.create(key, _GIB) as buffer:
            buffer.view[:8] = b"measured"

    # -- counts ------------------------------------------------------------------------------------------------------

    def coalescing(self) -> Iterator[Result]:
        """Many clients of one node ask at once for one object of the other."""
        with self._one.create("shared", _GIB) as buffer:
            buffer.view[:8] = b"measured"
        before = self._two.stats()
        clients = [Client(self._socket, name=f"asker-{number}") for number in range(_ASKERS)]
        handles: list[Any] = [None] * _ASKERS

        def ask(number: int) -> None:
            handles[number] = clients[number].get_buffer("shared")

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(_ASKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        leases = self._one.stats()["leases"]
        after = self._two.stats()
        crossed = after["cluster"]["plane"]["received_nbytes"] - before["cluster"]["plane"]["received_nbytes"]
        taken = after["pool"]["bytes_used"] - before["pool"]["bytes_used"]
        for handle, client in zip(handles, clients, strict=True):
            handle.release()
            client.close()
        self._one.remove("shared")
        coalesced = after["load"]["coalesced"] - before["load"]["coalesced"]
        detail = f"{_ASKERS} clients at once, {coalesced} found the load under way; {taken / _GIB:.2f} GiB taken there"
        yield judge("GiB that cross for one of 1 GiB", crossed / _GIB, "GiB", "<= 1.01", detail)
        copies = after["cluster"]["copies"]
        detail = f"{copies['leases_taken']} taken, {copies['leases_released']} released in this run"
        yield judge("leases left when the readers have their answers", leases, "", "<= 0", detail)

    def directory_costs(self) -> Iterator[Result]:
        """Look-ups against the bare pipeline; what a put sends."""
        raw = self._in_network(self._directory.url, str(20 * self._rounds))
        lookups = msgspec.json.decode(raw, type=Lookups)
        detail = f"{lookups.ours_us:.0f} µs for {KEYS} keys, {lookups.bare_us:.0f} µs by the bare pipeline"
        yield judge("look-up of 256 keys, against a bare pipeline", lookups.ratio, "x", "<= 1.5", detail)
        before = int(self._in_network(self._directory.url))
        for number in range(_PUTS):
            self._one.put(f"counted/{number}", number)
        scripts = int(self._in_network(self._directory.url)) - before
        self._one.remove_prefix("counted/")
        # The nodes renew their lives meanwhile, a few times.
        yield judge(
            "round trips to the directory of one put", scripts / _PUTS, "", "<= 1.2", "renewals of lives included"
        )

    def _in_network(self, *args: str) -> bytes:
        command = [*self._network.prefix, sys.executable, "-m", "mooncake_node.bench.directory", *args]
        return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout


def _p99_us(took_ns: list[int]) -> float:
    ordered = sorted(took_ns)
    return ordered[len(ordered) * 99 // 100] / 1000
