"""Reads by way of the shared index, beside the same reads by request."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from mooncake_client import Client
from mooncake_node.bench.measure import Result, by_turns, judge, ratio

_BATCH = 256
_MANY = 4096


def measure(socket: Path, cpus: list[int], *, quick: bool) -> list[Result]:
    """A client that pins, and one that may not and so asks for everything: a read-only one."""
    rounds, calls = (8, 200) if quick else (40, 500)
    results: list[Result] = []
    with Client(socket, name="bench") as client, Client(socket, name="bench-asking", readonly=True) as asking:
        for nbytes, label in ((4096, "4 KiB"), (1 << 30, "1 GiB")):
            with client.create(f"index/{nbytes}", nbytes) as buffer:
                buffer.view[:8] = b"measured"
            key = f"index/{nbytes}"
            (ours, our_rounds), (theirs, their_rounds) = by_turns(
                [lambda key=key: client.get(key), lambda key=key: asking.get(key)],  # type: ignore[misc]
                rounds=rounds,
                calls_per_round=calls,
            )
            detail = f"p99 {ours.p99_us:.1f} µs; by request {theirs.median_us:.1f} µs (p99 {theirs.p99_us:.1f})"
            results.append(judge(f"get of {label} by the index", ours.median_us, "µs", "<= 2.5", detail))
            results.append(judge(f"p99 of it, {label}", ours.p99_us, "µs", "<= 8", ""))
            results.append(
                judge(f"by request against it, {label}", ratio(their_rounds, our_rounds), "x", ">= 10", detail)
            )
        keys = [f"many/{number}" for number in range(_BATCH)]
        client.put_many(dict.fromkeys(keys, bytes(200)))
        for name, goal, per, call in _batches(client, keys):
            ((sample, _),) = by_turns([call], rounds=rounds, calls_per_round=max(5, calls // 10))
            detail = f"p99 {sample.p99_us / per:.2f} µs"
            results.append(judge(name, sample.median_us / per, "µs", goal, detail))
        client.remove_prefix("index/")
        results.append(_measure_put_rate(client, quick=quick))
    results.append(_measure_processes(socket, cpus, quick=quick))
    return results


def _batches(client: Client, keys: list[str]) -> list[tuple[str, str, int, Callable[[], object]]]:
    return [
        (f"get_many of {len(keys)} by the index, per key", "<= 1.5", len(keys), lambda: client.get_many(keys)),
        ("exists by the index", "<= 1", 1, lambda: client.exists(keys[0])),
    ]


def _measure_put_rate(client: Client, *, quick: bool) -> Result:
    payload = bytes(4096)
    rates = []
    for turn in range(3 if quick else 9):
        objects = {f"rate/{turn}/{number}": payload for number in range(_MANY)}
        begin = time.perf_counter()
        client.put_many(objects)
        rates.append(_MANY / (time.perf_counter() - begin))
        client.remove_prefix("rate/")
    rates.sort()
    return judge("put_many of 4 KiB", rates[len(rates) // 2], "objects/s", ">= 100000", f"batches of {_MANY}")


def _measure_processes(socket: Path, cpus: list[int], *, quick: bool) -> Result:
    """Gets a second of two processes together, each on a processor of its own, against one alone."""
    seconds = 1.0 if quick else 3.0

    def rate(pinned: list[int]) -> float:
        command = [sys.executable, "-m", "mooncake_node.bench.index", str(socket), str(seconds)]
        readers = [
            subprocess.Popen([*command, str(cpu)], stdout=subprocess.PIPE, text=True) for cpu in pinned
        ]  # each prints its own rate
        return sum(float(reader.communicate()[0]) for reader in readers)

    with Client(socket, name="bench") as client:
        client.put("process", bytes(4096))
        alone, together = rate([cpus[0]]), rate([cpus[0], cpus[-1]])
        client.remove("process")
    detail = f"{alone:,.0f} gets/s by one, {together:,.0f} by two"
    return judge("gets of two processes against one", together / alone, "x", ">= 1.6", detail)


def _get_for(socket: str, seconds: float, cpu: int) -> None:
    os.sched_setaffinity(0, {cpu})
    with Client(socket, name="bench-reader") as client:
        count, until = 0, time.perf_counter() + seconds
        while time.perf_counter() < until:
            for _ in range(1000):
                client.get("process")
            count += 1000
    print(count / seconds)


if __name__ == "__main__":
    _get_for(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
