"""Round trips: get, put and batches of small objects against a bare ping-pong."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

from mooncake_client import Client
from mooncake_node.bench.measure import Result, by_turns, judge, ratio
from mooncake_node.bench.pingpong import PingPong

_BATCH = 256
_MIB = 1 << 20


def measure(client: Client, socket: Path, directory: Path, cpu: int, *, quick: bool) -> list[Result]:
    """Client here, daemon and wall on *cpu*."""
    rounds, calls = (8, 100) if quick else (40, 250)
    results: list[Result] = []
    # A read-only client has no pins: it asks for everything.
    with PingPong(directory, cpu) as pingpong, Client(socket, name="bench-asking", readonly=True) as asking:

        def against(name: str, goal: str, call: Callable[[], object], *, per: int = 1, calls: int = calls) -> None:
            (ours, our_rounds), (bare, bare_rounds) = by_turns(
                [call, pingpong.play], rounds=rounds, calls_per_round=calls
            )
            value = ratio(our_rounds, bare_rounds) / per
            detail = (
                f"{ours.median_us / per:.1f} µs (p99 {ours.p99_us / per:.1f}) "
                f"against a ping-pong of {bare.median_us:.1f} µs (p99 {bare.p99_us:.1f})"
            )
            results.append(judge(name, value, "x ping-pong", goal, detail))

        for nbytes, label in ((4096, "4 KiB"), (1 << 30, "1 GiB")):
            with client.create(f"get/{nbytes}", nbytes) as buffer:
                buffer.view[:8] = b"measured"
            against(f"get of {label} by request", "<= 1.6", lambda key=f"get/{nbytes}": asking.get(key))  # type: ignore[misc]
        client.remove_prefix("get/")

        payload, numbers = bytes(4096), count()
        against("put of 4 KiB", "<= 1.4", lambda: client.put(f"put/{next(numbers)}", payload))
        client.remove_all()

        small = bytes(200)
        keys = [f"many/{number}" for number in range(_BATCH)]
        client.put_many(dict.fromkeys(keys, small))
        against(
            f"get_many of {_BATCH} by request, per object",
            "<= 0.4",
            lambda: asking.get_many(keys),
            per=_BATCH,
            calls=20,
        )
        client.remove_all()

        def put_batch() -> None:
            number = next(numbers)
            client.put_many({f"batch/{number}/{index}": small for index in range(_BATCH)})

        against(f"put_many of {_BATCH}, per object", "<= 0.4", put_batch, per=_BATCH, calls=20)
        client.remove_all()

        results.append(_measure_transit(client, pingpong, rounds))
    return results


def _measure_transit(client: Client, pingpong: PingPong, rounds: int) -> Result:
    """Put, get, remove of 1 MiB, against what it cannot do without: one copy, and three requests and a half."""
    megabyte, copy = bytes(_MIB), bytearray(_MIB)

    def transit() -> None:
        client.put("transit", megabyte)
        client.get("transit")
        client.remove("transit")

    def memcpy() -> None:
        copy[:] = megabyte

    (loop, loop_rounds), (bare, bare_rounds), (copied, copied_rounds) = by_turns(
        [transit, pingpong.play, memcpy], rounds=rounds, calls_per_round=50
    )
    needed = [memory + 3.5 * ball for memory, ball in zip(copied_rounds, bare_rounds, strict=True)]
    detail = (
        f"{loop.median_us:.0f} µs, {1e6 / loop.median_us:,.0f}/s; memcpy {copied.median_us:.0f} µs, "
        f"ping-pong {bare.median_us:.1f} µs"
    )
    return judge(
        "put, get, remove of 1 MiB, against memcpy and 3.5 ping-pongs", ratio(loop_rounds, needed), "x", "<= 1", detail
    )
