"""Look-ups of the directory against the bare pipeline, in a process of its own that stands in the bench's network.

`python -m mooncake_node.bench.directory URL ROUNDS` prints the medians of both, in microseconds; `... URL` how many
scripts the server has run.
"""

import asyncio
import importlib
import statistics
import sys
import time
from typing import Any

import msgspec
import uvloop

from mooncake_node.directory import Creation, Directory, Holding, open_directory

KEYS = 256


class Lookups(msgspec.Struct, frozen=True):
    """Medians of a look-up of `KEYS` keys, in microseconds; the ratio is the median of the rounds' ratios."""

    ours_us: float
    bare_us: float
    ratio: float


async def measure(url: str, rounds: int) -> Lookups:
    """By turns."""
    directory = open_directory(url, namespace="bench", liveness_ttl_s=3, tombstone_s=10, timeout_s=5)
    # By name: redis is an extra.
    redis = importlib.import_module("redis.asyncio").Redis.from_url(url.replace("valkey", "redis", 1))
    keys = [f"layers.{number}.attention.output.weight" for number in range(KEYS)]
    try:
        await directory.create([Creation(key=key, holding=_holding()) for key in keys])
        names = [name async for name in redis.scan_iter("o:bench:*", count=1000)]
        ours, bare = [], []
        for _ in range(rounds):
            ours.append(await _time_ours(directory, keys))
            bare.append(await _time_bare(redis, names))
    finally:
        await directory.close()
        await redis.aclose()
    ratio = statistics.median(a / b for a, b in zip(ours, bare, strict=True))
    return Lookups(statistics.median(ours), statistics.median(bare), ratio)


async def count_scripts(url: str) -> int:
    """How many scripts the server has run since its start."""
    redis = importlib.import_module("redis.asyncio").Redis.from_url(url.replace("valkey", "redis", 1))
    try:
        stats = await redis.info("commandstats")
    finally:
        await redis.aclose()
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval"))


async def _time_ours(directory: Directory, keys: list[str]) -> float:
    begin = time.perf_counter_ns()
    entries = await directory.lookup(keys)
    took_us = (time.perf_counter_ns() - begin) / 1000
    assert all(entry.owner for entry in entries)
    return took_us


async def _time_bare(redis: Any, names: list[bytes]) -> float:
    begin = time.perf_counter_ns()
    pipeline = redis.pipeline(transaction=False)
    for name in names:
        pipeline.hgetall(name)
    found = await pipeline.execute()
    took_us = (time.perf_counter_ns() - begin) / 1000
    assert all(found)
    return took_us


def _holding() -> Holding:
    return Holding(node="bench", incarnation=1, generation=1, nbytes=4096, kind=0, epoch=0, is_owner=True)


def main() -> None:
    """For the process of its own."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if len(sys.argv) > 2:
            answer: object = runner.run(measure(sys.argv[1], int(sys.argv[2])))
        else:
            answer = runner.run(count_scripts(sys.argv[1]))
    print(msgspec.json.encode(answer).decode())


if __name__ == "__main__":
    main()
