"""Copies into G against memcpy: the writer's second put of an extent, and its first."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mooncake_client import Client
from mooncake_node.bench.measure import Result, by_turns, judge, ratio

_NBYTES = 256 << 20


def measure_again(client: Client, *, quick: bool) -> list[Result]:
    """Put into an extent this client has written before."""
    source = np.arange(_NBYTES // 8, dtype=np.int64)
    target = np.empty_like(source)
    target[:] = source

    def put() -> None:
        client.put("again", source)
        client.remove("again")

    (ours, our_rounds), (memcpy, memcpy_rounds) = by_turns(
        [put, lambda: np.copyto(target, source)], rounds=3 if quick else 11, calls_per_round=3
    )
    detail = f"{_gbps(ours.median_us):.1f} GB/s against memcpy {_gbps(memcpy.median_us):.1f}"
    return [
        judge("put of 256 MiB, extent written before", ratio(memcpy_rounds, our_rounds), "x memcpy", ">= 0.8", detail)
    ]


def measure_first(socket: Path, *, huge: bool, quick: bool) -> list[Result]:
    """A new client's first put, after the pre-fault has ended; one client a try, each at another extent."""
    source = np.arange(_NBYTES // 8, dtype=np.int64)
    target = np.empty_like(source)
    target[:] = source
    ratios: list[float] = []
    speeds: list[float] = []
    for number in range(2 if quick else 5):
        with Client(socket, name="bench-first") as client:
            # Its mapping exists, its pages do not: only the copy below touches this range.
            key = f"first/{number}"

            def put(key: str = key, client: Client = client) -> None:
                client.put(key, source)

            begin_to_end = _once(put)
            memcpy = min(_once(lambda: np.copyto(target, source)) for _ in range(3))
            ratios.append(memcpy / begin_to_end)
            speeds.append(_gbps(begin_to_end))
            client.remove(key)
    ratios.sort()
    speeds.sort()
    pages, goal = ("huge pages", ">= 0.5") if huge else ("4 KiB pages", ">= 0.2")
    return [
        judge(
            f"first put of 256 MiB by a client, {pages}",
            ratios[len(ratios) // 2],
            "x memcpy",
            goal,
            f"{speeds[len(speeds) // 2]:.1f} GB/s, memcpy right after it as reference",
        )
    ]


def _once(call: Callable[[], object]) -> float:
    begin = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - begin) / 1000


def _gbps(duration_us: float) -> float:
    return _NBYTES / duration_us / 1000
