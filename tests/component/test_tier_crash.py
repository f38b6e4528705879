"""A process that has a tier and is killed: what it was told is there, is there, and nothing else."""

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from mooncake_node.tiers import TierLockedError
from tests.support.tiers import DirectoryKit, assert_holds, meta, opened, write
from tests.tidy.source import ROOT

# Runs in a process of its own with a tier in argv[1] and a number in argv[2]. Says what has been answered.
CHILD = """
import asyncio, os, random, sys
import structlog, uvloop
from mooncake_node.tiers import *
from tests.support.tiers import DirectoryKit, meta, write

structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

kit = DirectoryKit(sys.argv[1])

async def main():
    tier = kit.make()
    await tier.open()
    say("open")
    await run(tier)
"""

WRITES = """
async def run(tier):
    rng = random.Random(int(sys.argv[2]))
    base = 1000 * int(sys.argv[2])

    async def go(lane):
        for n in range(1000):
            sizes = rng.choices([0, 9, 900, 70_000, 300_000], k=rng.randrange(1, 6))
            metas = [meta(f"{base}/{lane}/{n}/{i}", nbytes) for i, nbytes in enumerate(sizes)]
            for record in await write(tier, *metas):
                say("written", record.key, record.nbytes)
                if rng.random() < 0.4:
                    say("removing", record.key, record.nbytes)
                    await tier.remove(record)
                    say("removed", record.key, record.nbytes)

    await asyncio.gather(*(go(lane) for lane in range(6)))

uvloop.run(main())
"""

HELD = """
async def run(tier):
    for record in await write(tier, meta("s", 9), meta("l", 200_000)):
        say("written", record.key, record.nbytes)
    with kit.gate.closed(sys.argv[2]):
        writing = asyncio.create_task(write(tier, meta("s2", 9), meta("l2", 200_000)))
        await kit.gate.somebody_is_held()
        say("held")
        await writing

uvloop.run(main())
"""

AMENDS = """
async def run(tier):
    rng = random.Random(int(sys.argv[2]))
    base = f"a{sys.argv[2]}"

    async def go(lane):
        keys = []
        for n in range(1000):
            for record in await write(tier, meta(f"{base}/{lane}/{n}", rng.choice([0, 9, 900, 70_000]))):
                say("written", record.key)
                keys.append(record.key)
            for key in rng.sample(keys, min(3, len(keys))):
                until = 1 + 1000 * n + rng.randrange(1000)
                say("amending", key, until)
                await tier.amend(meta(key, 0, softpin=True, softpin_until_unix_ms=until))
                say("amended", key, until)
            if rng.random() < 0.3:
                key = keys.pop(rng.randrange(len(keys)))
                say("removing", key)
                await tier.remove(meta(key, 0))
                say("removed", key)

    await asyncio.gather(*(go(lane) for lane in range(6)))

uvloop.run(main())
"""

HELD_AMEND = """
async def run(tier):
    await write(tier, meta("s", 9), meta("l", 200_000), meta("s/pinned", 9), meta("l/pinned", 200_000))
    for key in ("s/pinned", "l/pinned"):
        await tier.amend(meta(key, 0, scope="before"))
    key, point = sys.argv[2].split()
    with kit.gate.closed(point):
        amending = asyncio.create_task(tier.amend(meta(key, 0, scope="after")))
        await kit.gate.somebody_is_held()
        say("held")
        await amending

uvloop.run(main())
"""

IDLE = """
async def run(tier):
    await asyncio.Event().wait()

uvloop.run(main())
"""


@pytest.fixture
def kit(tmp_path):
    return DirectoryKit(tmp_path / "tier")


@pytest.fixture
def start(kit) -> Iterator[Callable[..., subprocess.Popen]]:
    """Run a script on the kit's place; it ends with the test."""
    processes: list[subprocess.Popen] = []

    def run(script: str, argument: object = "") -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD + script, str(kit.root), str(argument)],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def kill_after(process: subprocess.Popen, enough) -> list[list[str]]:
    """Read what it says until *enough* of the lines, kill it, and read the rest."""
    lines = []
    for line in process.stdout:
        lines.append(line.decode().split())
        if enough(lines):
            break
    process.kill()
    lines += [line.decode().split() for line in process.stdout]
    process.wait()
    return lines


@pytest.mark.parametrize("point", ["TierBeforeWrite", "TierAfterWrite", "TierBeforeRename", "TierAfterRename"])
async def test_killed_in_the_middle_of_a_write_each_object_is_whole_or_absent(kit, start, point):
    process = start(HELD, point)
    said = kill_after(process, lambda lines: lines[-1] == ["held"])
    assert said[-1] == ["held"]
    temporary = [path for path in kit.files() if path.suffix == ".tmp"]
    # Two threads were at it, and only one of them is known to have come to the point.
    assert temporary or point in ("TierBeforeWrite", "TierAfterRename")
    async with opened(kit) as tier:
        records = [entry.record for entry in tier._contents.index.values()]
        assert {"s", "l"} <= {record.key for record in records}
        assert tier.counters.scan_temporary == len(temporary)
        assert tier.counters.scan_bad == 0
        await assert_holds(tier, *records)
        await write(tier, meta("s2", 9), meta("l2", 200_000))
        assert tier.objects == 4


async def test_killed_at_any_moment_what_was_answered_is_there_and_what_was_removed_is_not(kit, start):
    written, removing, removed = set(), set(), set()
    rng = random.Random(5)
    for round_number in range(6):
        enough = rng.randrange(5, 150)
        said = kill_after(start(WRITES, round_number), lambda lines, enough=enough: len(lines) >= enough)
        assert len(said) >= enough
        for word, *facts in said:
            {"open": set(), "written": written, "removing": removing, "removed": removed}[word].add(tuple(facts))
        async with opened(kit) as tier:
            records = [entry.record for entry in tier._contents.index.values()]
            found = {(record.key, str(record.nbytes)) for record in records}
            assert written - removing <= found
            assert not found & removed
            assert tier.counters.scan_bad == 0
            await assert_holds(tier, *records)
            assert tier.counters.failures == 0


@pytest.mark.parametrize("key", ["s", "l", "s/pinned", "l/pinned"])
@pytest.mark.parametrize("point", ["TierBeforeAmend", "TierBeforeAmendRename", "TierAfterAmendRename"])
async def test_killed_in_the_middle_of_an_amendment_the_old_contract_or_the_new_one_is_found(kit, start, key, point):
    said = kill_after(start(HELD_AMEND, f"{key} {point}"), lambda lines: lines[-1] == ["held"])
    assert said[-1] == ["held"]
    temporary = [path for path in kit.files() if path.suffix == ".tmp"]
    assert len(temporary) == (point == "TierBeforeAmendRename")
    scopes = {"s": "cluster", "l": "cluster", "s/pinned": "before", "l/pinned": "before"}
    if point == "TierAfterAmendRename":
        scopes[key] = "after"
    async with opened(kit) as tier:
        records = [entry.record for entry in tier._contents.index.values()]
        assert {record.key: record.scope for record in records} == scopes
        assert (tier.counters.scan_temporary, tier.counters.failures) == (len(temporary), 0)
        await assert_holds(tier, *records)
        await tier.amend(meta(key, 0, scope="at last"))
    async with opened(kit) as tier:
        assert tier._contents.index[key, 1].record.scope == "at last"


async def test_killed_at_any_moment_an_object_has_the_contract_answered_last_or_one_asked_for_since(kit, start):
    """While packs are written anew, and objects removed."""
    written, gone, removed = set(), set(), set()
    allowed: dict[str, set[int | None]] = {}
    rng = random.Random(7)
    for round_number in range(8):
        enough = rng.randrange(20, 500)
        said = kill_after(start(AMENDS, round_number), lambda lines, enough=enough: len(lines) >= enough)
        assert len(said) >= enough
        for word, *facts in said[1:]:
            key = facts[0]
            if word == "written":
                written.add(key)
                allowed[key] = {None}
            elif word == "amending":
                allowed[key].add(int(facts[1]))
            elif word == "amended":
                allowed[key] = {int(facts[1])}
            else:
                {"removing": gone, "removed": removed}[word].add(key)
        async with opened(kit) as tier:
            found = {entry.record.key: entry.record for entry in tier._contents.index.values()}
            assert written - gone <= found.keys()
            assert not found.keys() & removed
            for key in found.keys() & allowed.keys():
                until = found[key].softpin_until_unix_ms
                assert until in allowed[key]
                assert found[key].softpin == (until is not None)
                allowed[key] = {until}
            assert tier.counters.scan_bad == 0
            await assert_holds(tier, *found.values())
            assert tier.counters.failures == 0
            assert len(list((kit.root / "contracts").iterdir())) <= len(found)


async def test_a_second_daemon_on_a_directory_is_refused_and_told_who_has_it(kit, start):
    process = start(IDLE)
    assert process.stdout.readline() == b"open\n"
    tier = kit.make()
    with pytest.raises(TierLockedError) as caught:
        await tier.open()
    assert str(process.pid) in str(caught.value)
    assert str(kit.root) in str(caught.value)
    await tier.close()
    process.kill()
    process.wait()
    async with opened(kit):
        pass


def test_a_child_of_the_process_does_not_inherit_the_lock(kit, start):
    process = start(
        """
async def run(tier):
    import subprocess
    child = subprocess.Popen([sys.executable, "-c", "import os; print(*map(os.readlink, os.scandir('/proc/self/fd')))"],
        stdout=subprocess.PIPE, close_fds=False, text=True)
    say(str(kit.root) in child.communicate()[0], len(os.listdir("/proc/self/fd")) > 3)

uvloop.run(main())
"""
    )
    out, _ = process.communicate()
    assert out.splitlines() == [b"open", b"False True"]
