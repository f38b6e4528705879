"""The barrier on this very machine: with it nothing is read wrong, and without it something is.

In C, since what Python does between two words of shared memory takes so long that the store is visible by then: it
cannot show that the barrier is needed, and must not rely on it either.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from mooncake_client import membarrier

SHORT_S, LONG_S = 5, 60
FOUND_WITHIN_S = 60
WRONG_MAX = 100
CPUS = sorted(os.sched_getaffinity(0))
COMPILER = shutil.which("cc") or shutil.which("gcc")

pytestmark = [
    pytest.mark.skipif(not membarrier.register(), reason="NOT TESTED: this machine has no membarrier, or is no x86-64"),
    pytest.mark.skipif(COMPILER is None, reason="NOT TESTED: the barrier, for want of a C compiler (cc or gcc)"),
    pytest.mark.skipif(len(CPUS) < 2, reason="NOT TESTED: the barrier, which takes two processors to see"),
]


class Counts(NamedTuple):
    reads: int
    replaced: int
    pinned: int
    wrong: int


@pytest.fixture(scope="module")
def litmus(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Counts]:
    """Runs it on two processors for a while."""
    program = tmp_path_factory.mktemp("litmus") / "litmus"
    source = Path(__file__).with_name("litmus.c")
    subprocess.run([COMPILER, "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, source], check=True)

    def run(seconds: float, *, barrier: bool, wrong_max: int = 0) -> Counts:
        arguments = (CPUS[0], CPUS[1], seconds, int(barrier), wrong_max)
        done = subprocess.run(
            [program, *map(str, arguments)], capture_output=True, text=True, timeout=seconds + 60, check=False
        )
        assert done.returncode == 0, done.stderr
        return Counts(*map(int, done.stdout.split()))

    return run


@pytest.mark.parametrize(
    "seconds", [SHORT_S, pytest.param(LONG_S, marks=[pytest.mark.long, pytest.mark.timeout(3 * LONG_S)])]
)
def test_with_the_barrier_nothing_is_read_wrong(litmus, seconds):
    """Tried again, as the two may for once not have run at the same time."""
    end_s = time.monotonic() + seconds + FOUND_WITHIN_S
    counts = litmus(seconds, barrier=True)
    while counts.wrong == 0 and not counts.pinned and time.monotonic() < end_s:
        counts = litmus(seconds, barrier=True)
    print(counts)
    assert counts.wrong == 0, counts
    assert min(counts.reads, counts.replaced, counts.pinned) > 0, f"{counts}: this has tried nothing"


def test_without_the_barrier_something_is(litmus):
    """Else the test above would say nothing."""
    end_s = time.monotonic() + FOUND_WITHIN_S
    counts = litmus(SHORT_S, barrier=False, wrong_max=WRONG_MAX)
    while not counts.wrong and time.monotonic() < end_s:
        counts = litmus(SHORT_S, barrier=False, wrong_max=WRONG_MAX)
    print(counts)
    assert counts.wrong > 0, counts
