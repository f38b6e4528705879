"""The demo from start to end: a node, a publisher, readers, a transit loop, and the look at what is left."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from mooncake_client import Client
from mooncake_node.demo.errors import DemoError
from mooncake_node.demo.findings import Findings, Ledger, Proof, copies, get_us, prove
from mooncake_node.demo.memory import Usage
from mooncake_node.demo.messages import Measured, Publication, Reading, Transit
from mooncake_node.demo.nodes import wait_until_warm
from mooncake_node.demo.processes import child, terminable
from mooncake_node.demo.show import type_counts
from mooncake_node.demo.source import Source, look_at
from mooncake_node.local import LocalNode, LocalNodeError
from mooncake_node.settings import format_size

# Beside the tensors: objects in transit, headers, and the gaps before 2 MiB boundaries.
_POOL_SPARE_NBYTES = 64 << 20
_HEADER_NBYTES_MAX = 8192

# What the environment may say for the user's own node is not meant for this one.
_FLAGS = ("--name", "demo", "--log-level", "warning", "--set", "start_wait=0", "--set", "prefault=true")

Say = Callable[[str, str], None]


def run(path: Path | None, *, readers: int, pool_nbytes: int | None, transit_s: float, say: Say) -> Findings:
    """Run it all; *say* is told the step and what came of it. Everything started is gone when this returns or raises.

    DemoError: the input, the machine or a process of the demo is at fault.
    """
    source = look_at(path)
    say("input", f"{source.path}: {_counted(source.ntensors)}, {format_size(source.nbytes)}")
    if pool_nbytes is None:
        pool_nbytes = source.nbytes + source.nbytes // 10 + source.ntensors * _HEADER_NBYTES_MAX + _POOL_SPARE_NBYTES
    elif pool_nbytes < source.nbytes:
        raise DemoError(f"{format_size(source.nbytes)} cannot lie in a pool of {format_size(pool_nbytes)}")
    try:
        with terminable():
            begun_s = time.monotonic()
            with LocalNode(pool_nbytes, *_FLAGS) as node:
                found = _Demo(source, node, readers, say).run(begun_s, transit_s)
    except LocalNodeError as error:
        raise DemoError(f"the node did not start: {error}") from error
    say("clean", "the processes, the pool and the temporary directory are gone")
    return found


class _Demo:
    """One run on a node of its own."""

    def __init__(self, source: Source, node: LocalNode, readers: int, say: Say) -> None:
        self._source = source
        self._directory, self._socket = node.directory, str(node.socket)
        self._readers = readers
        self._say = say

    def run(self, begun_s: float, transit_s: float) -> Findings:
        with Client(self._socket, name="demo") as client:
            stats = wait_until_warm(client)
            pid, pool_nbytes = stats["node"]["pid"], stats["pool"]["bytes_total"]
            took_s = time.monotonic() - begun_s
            self._say(
                "node", f"pid {pid} serves a pool of {format_size(pool_nbytes)}; ready and warm in {took_s:.1f} s"
            )
            published = self._publish()
            readings, extra, ledger = self._read(client, published)
            transit = self._transit(transit_s) if transit_s else None
            client.remove_all()
            left = client.stats()
        proofs = prove(published, readings, extra, ledger)
        proofs.append(_nothing_left(left))
        return Findings(
            input=str(self._source.path),
            pool_nbytes=pool_nbytes,
            published=published,
            used_nbytes=ledger.used_nbytes,
            footprint_nbytes=ledger.footprint_nbytes,
            readers=readings,
            extra=extra,
            copies=copies(readings),
            transit=transit,
            proofs=proofs,
        )

    def _publish(self) -> Publication:
        with child("publisher", self._directory, self._socket, str(self._source.path)) as publisher:
            published = publisher.hear(Publication)
        types = type_counts([tensor.dtype for tensor in published.tensors])
        self._say(
            "publish",
            f"pid {publisher.pid} put {_counted(len(published.tensors))} ({types}) "
            f"in {published.put_ns / 1e6:.1f} ms, and has ended",
        )
        return published

    def _read(self, client: Client, published: Publication) -> tuple[list[Reading], list[Usage], Ledger]:
        with ExitStack() as stack:
            readers = [
                stack.enter_context(child("reader", self._directory, self._socket)) for _ in range(self._readers)
            ]
            for reader in readers:
                reader.hear(str)
            # One after the other, so that each get is timed alone.
            readings: list[Reading] = []
            for reader in readers:
                reader.tell(published)
                readings.append(reader.hear(Reading))
            for reader in readers:
                reader.tell("measure")
            extra = [reader.hear(Measured).extra for reader in readers]
            ledger = _ledger(client, published)
            median_us = median(map(get_us, readings))
            self._say(
                "read",
                f"{len(readers)} other processes hold every tensor and have checked it; {median_us:.0f} µs a get",
            )
        return readings, extra, ledger

    def _transit(self, seconds: float) -> Transit:
        with child("transit", self._directory, self._socket, str(seconds)) as station:
            transit = station.hear(Transit)
        self._say(
            "transit",
            f"pid {station.pid} put, got and removed {transit.rounds:,} objects of {format_size(transit.nbytes)} "
            f"in {transit.seconds:.1f} s",
        )
        return transit


def _ledger(client: Client, published: Publication) -> Ledger:
    stats = client.stats()
    return Ledger(
        stats["objects"],
        stats["unpublished"] + stats["stash"]["objects"],
        stats["pool"]["bytes_used"],
        [client.size(tensor.key) for tensor in published.tensors],
    )


def _nothing_left(stats: dict[str, Any]) -> Proof:
    used, handles = stats["pool"]["bytes_used"], stats["handles"]
    return Proof(
        "nothing left",
        used == 0 and handles == 0,
        f"after remove_all {used} bytes of the pool are taken and {handles} handles are held",
    )


def _counted(ntensors: int) -> str:
    return f"{ntensors} tensor{'' if ntensors == 1 else 's'}"
