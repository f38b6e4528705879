"""Runs the measurements on daemons of their own and gathers what they were made on."""

import importlib.metadata
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from mooncake_client import Client
from mooncake_node.bench import bandwidth, cluster, index, latency, leases, memory, reclaim_index, tight
from mooncake_node.bench.measure import Result, judge
from mooncake_node.local import LocalNode

_GIB = 1 << 30
_PACKAGES = ("mooncake-node", "uvloop", "msgspec", "numpy", "posix_ipc", "xxhash")


class Machine(msgspec.Struct, frozen=True):
    """Where the figures come from."""

    cpu: str
    cores: int
    kernel: str
    python: str
    packages: dict[str, str]
    placement: str


class Report(msgspec.Struct, frozen=True):
    """One run."""

    machine: Machine
    results: list[Result]
    # Counts of the lease load, here and in the system that the second post describes; empty: it was not run.
    lease_load: dict[str, float]
    lease_load_of_the_post: dict[str, float]


Say = Callable[[str], None]


PARTS = ("latency", "index", "bandwidth", "memory", "tight", "reclaim", "cluster")


def run(say: Say, parts: Sequence[str] = PARTS, *, quick: bool) -> Report:
    """Measure *parts*; *say* hears what is being done."""
    cpus = sorted(os.sched_getaffinity(0))
    client_cpu, daemon_cpu = cpus[0], cpus[-1]
    os.sched_setaffinity(0, {client_cpu})
    try:
        results = list(_measure(say, parts, daemon_cpu, quick=quick))
        load = _lease_load(say, results) if "reclaim" in parts else {}
    finally:
        os.sched_setaffinity(0, cpus)
    placement = f"client pinned to cpu {client_cpu}, daemon and ping-pong to cpu {daemon_cpu}; readers likewise free"
    return Report(_machine(placement), results, load, leases.POST if load else {})


def _measure(say: Say, parts: Sequence[str], daemon_cpu: int, *, quick: bool) -> Iterator[Result]:
    if {"latency", "index", "bandwidth", "memory"} & set(parts):
        yield from _measure_on_large_node(say, parts, daemon_cpu, quick=quick)
    if "index" in parts:
        say("index: what reclaim costs with it")
        yield reclaim_index.measure(quick=quick)
    if "memory" in parts:
        say("memory: the daemon with many small objects")
        with (
            LocalNode(_GIB // 2, "--set", "prefault=false", cpu=daemon_cpu) as node,
            Client(node.socket, name="bench") as client,
        ):
            yield from memory.measure_objects(client, quick=quick)
    if "tight" in parts:
        say("tight memory: a full pool that drops, offloads and restores")
        yield from tight.measure(_wait_for_warmup, daemon_cpu, quick=quick)
    if "reclaim" in parts:
        say("reclaim: what 100,000 parked replicas cost")
        yield leases.measure_parked(quick=quick)
    if "cluster" in parts:
        say("cluster: copies from one node to another")
        # Nodes and clients share what processors there are: a copy keeps two of them busy.
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        yield from cluster.measure(quick=quick)


def _lease_load(say: Say, results: list[Result]) -> dict[str, float]:
    say("reclaim: leases of remote readers on a tight pool, ten minutes of virtual time")
    outcome = leases.simulate()
    value = 100 * outcome.productive_passes / max(1, outcome.passes)
    detail = f"{outcome.passes:,} passes, {outcome.passes - outcome.productive_passes:,} in vain"
    results.append(judge("passes that found a victim, lease load", value, "%", ">= 99", detail))
    return outcome.figures


def _measure_on_large_node(say: Say, parts: Sequence[str], daemon_cpu: int, *, quick: bool) -> Iterator[Result]:
    with LocalNode(2 * _GIB, cpu=daemon_cpu) as node:
        _wait_for_warmup(node.socket)
        with Client(node.socket, name="bench") as client:
            if "latency" in parts:
                say("latency: gets, puts and batches against a bare ping-pong")
                yield from latency.measure(client, node.socket, node.directory, daemon_cpu, quick=quick)
            if "index" in parts:
                say("index: gets that need no request")
                yield from index.measure(node.socket, [*os.sched_getaffinity(0), daemon_cpu], quick=quick)
            if "bandwidth" in parts:
                say("bandwidth: puts of 256 MiB against memcpy")
                yield from bandwidth.measure_again(client, quick=quick)
            if "memory" in parts:
                say("memory: four readers of one object")
                yield from memory.measure_readers(client, node.socket)
        if "bandwidth" not in parts:
            return
        say("bandwidth: first puts of new clients")
        huge = _huge_pages(node.socket)
        yield from bandwidth.measure_first(node.socket, huge=huge, quick=quick)
    if huge:
        with LocalNode(2 * _GIB, "--set", "huge_pages=off", cpu=daemon_cpu) as node:
            _wait_for_warmup(node.socket)
            yield from bandwidth.measure_first(node.socket, huge=False, quick=quick)


def _wait_for_warmup(socket: Path) -> None:
    with Client(socket, name="bench") as client:
        while client.stats()["pages"]["prefault"] not in ("done", "failed"):
            try:
                client.wait("until a moment has passed", timeout=0.2)
            except TimeoutError:
                continue


def _huge_pages(socket: Path) -> bool:
    with Client(socket, name="bench") as client:
        stats = client.stats()
    return bool(stats["pages"]["huge_bytes"] == stats["pool"]["bytes_total"])


def _machine(placement: str) -> Machine:
    return Machine(
        cpu=_cpu_name(),
        cores=os.cpu_count() or 0,
        kernel=platform.release(),
        python=platform.python_version(),
        packages={name: importlib.metadata.version(name) for name in _PACKAGES},
        placement=placement,
    )


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
