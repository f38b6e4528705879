"""Timing by turns, so that what else the machine does falls on both sides of a ratio."""

import gc
import statistics
import time
from collections.abc import Callable, Sequence

import msgspec


class Sample(msgspec.Struct, frozen=True):
    """Durations of one thing, in microseconds, summed up."""

    median_us: float
    p99_us: float
    count: int


class Result(msgspec.Struct, frozen=True):
    """One figure beside the goal it was set."""

    name: str
    value: float
    unit: str  # "x": times the reference; "MiB", "KiB/object", …
    goal: str  # e.g. "<= 1.6"; empty: shown for information
    met: bool | None
    detail: str


def judge(name: str, value: float, unit: str, goal: str, detail: str) -> Result:
    """A result, met or not by *goal*: an operator and a number."""
    if not goal:
        return Result(name, value, unit, goal, None, detail)
    operator, number = goal.split()
    met = value <= float(number) if operator == "<=" else value >= float(number)
    return Result(name, value, unit, goal, met, detail)


def by_turns(
    things: Sequence[Callable[[], object]], *, rounds: int, calls_per_round: int
) -> list[tuple[Sample, list[float]]]:
    """Time each of *things* in turn, round by round; for each its sample and its median of every round (µs)."""
    clock = time.perf_counter_ns
    durations: list[list[int]] = [[] for _ in things]
    medians: list[list[float]] = [[] for _ in things]
    for thing in things:
        thing()
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for index, thing in enumerate(things):
                turn: list[int] = []
                for _ in range(calls_per_round):
                    begin = clock()
                    thing()
                    turn.append(clock() - begin)
                durations[index] += turn
                medians[index].append(statistics.median(turn) / 1000)
    finally:
        gc.enable()
    return [(_sample(all_ns), per_round) for all_ns, per_round in zip(durations, medians, strict=True)]


def ratio(over: list[float], under: list[float]) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def _sample(durations_ns: list[int]) -> Sample:
    ordered = sorted(durations_ns)
    count = len(ordered)
    return Sample(ordered[count // 2] / 1000, ordered[min(count - 1, count * 99 // 100)] / 1000, count)
