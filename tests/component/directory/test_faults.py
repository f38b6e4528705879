"""The directory that a drill makes lose calls or answers, and the breaker before the real one."""

import asyncio

import pytest

from mooncake_client.faults import FaultTable
from mooncake_node.directory import (
    POINTS,
    Created,
    Creation,
    DirectoryAwayError,
    Entry,
    FaultyDirectory,
    MemoryCluster,
    MemoryDirectory,
)
from mooncake_node.directory.breaker import Breaker
from tests.support.directories import create, holding, look, owned

CALLS = {
    "Join": lambda directory, node: directory.join("b", "h:2"),
    "Renew": lambda directory, node: directory.renew(node),
    "Members": lambda directory, node: directory.members(),
    "Lookup": lambda directory, node: directory.lookup(["k"]),
    "Create": lambda directory, node: directory.create([Creation(key="new", holding=owned("a", 9))]),
    "Publish": lambda directory, node: directory.publish([("k", holding("c", 5))]),
    "Update": lambda directory, node: directory.update([("k", owned("a", 5, on_disk=True))]),
    "Transfer": lambda directory, node: directory.transfer("k", node="a", incarnation=1, to=owned("b", 5)),
    "Remove": lambda directory, node: directory.remove([("k", None)]),
    "Withdraw": lambda directory, node: directory.withdraw([("k", "a", 1, 5)]),
    "RaiseClearEpoch": lambda directory, node: directory.raise_clear_epoch(),
}
CHANGING = CALLS.keys() - {"Renew", "Members", "Lookup"}


@pytest.fixture
def faults():
    return FaultTable(POINTS, enabled=True)


@pytest.fixture
def cluster():
    return MemoryCluster()


@pytest.fixture
def directory(cluster, faults):
    return FaultyDirectory(MemoryDirectory(cluster), faults)


async def seen(cluster) -> tuple:
    plain = MemoryDirectory(cluster)
    return await plain.members(), await plain.lookup(["k", "new"])


def test_every_call_has_its_two_points():
    assert set(POINTS) == {f"Directory{when}{call}" for when in ("Before", "After") for call in CALLS}
    assert all(POINTS.values())


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("when", ["Before", "After"])
async def test_an_error_is_a_directory_that_is_away_and_the_call_was_or_was_not_carried_out(
    directory, cluster, faults, call, when
):
    node = await directory.join("a", "h:1")
    await create(directory, owned("a", 5))
    before = await seen(cluster)
    faults.inject(f"Directory{when}{call}", "return_error", -900)
    with pytest.raises(DirectoryAwayError, match=f"Directory{when}{call}"):
        await CALLS[call](directory, node)
    assert (await seen(cluster) != before) == (when == "After" and call in CHANGING)
    assert directory.state == "up"
    await directory.leave(node)
    await directory.close()


@pytest.mark.parametrize("call", CALLS)
async def test_without_an_armed_point_the_answer_is_the_inner_ones(cluster, faults, call):
    answers = []
    for wrap in (lambda inner: inner, lambda inner: FaultyDirectory(inner, faults)):
        cluster = MemoryCluster(lambda: 0)
        directory = wrap(MemoryDirectory(cluster))
        node = await directory.join("a", "h:1")
        await create(directory, owned("a", 5))
        answers.append((await CALLS[call](directory, node), await seen(cluster)))
    assert answers[0] == answers[1]
    assert faults.status(f"DirectoryBefore{call}").hits >= 1
    assert faults.status(f"DirectoryAfter{call}").hits >= 1


async def test_a_slow_point_holds_the_call_there(directory, cluster, faults):
    faults.inject("DirectoryAfterCreate", "sleep", 3_600_000)
    creating = asyncio.create_task(create(directory, owned("a", 5)))
    while await look(MemoryDirectory(cluster)) == Entry():
        await asyncio.sleep(0)
    assert not creating.done()
    creating.cancel()
    await asyncio.wait([creating])
    assert await create(directory, owned("a", 5)) == Created()


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def breaker(clock):
    return Breaker(pause_s=10.0, clock=clock)


def test_a_breaker_is_closed_until_a_failure_and_open_for_the_pause(breaker, clock):
    for _ in range(3):
        assert breaker.begin()
        breaker.end(answered=True)
    assert breaker.begin()
    assert breaker.is_closed
    breaker.end(answered=False)
    assert not breaker.is_closed
    for clock.now_s in (0.0, 9.9):
        assert not breaker.lets_through
        assert not breaker.begin()


def test_after_the_pause_one_probe_goes_and_its_end_decides(breaker, clock):
    assert breaker.begin()
    breaker.end(answered=False)
    clock.now_s = 10.0
    assert breaker.lets_through
    assert breaker.begin()
    assert not breaker.begin()
    assert not breaker.lets_through
    clock.now_s = 12.0
    breaker.end(answered=False)
    clock.now_s = 21.9
    assert not breaker.begin()
    clock.now_s = 22.0
    assert breaker.begin()
    breaker.end(answered=True)
    assert breaker.is_closed
    assert breaker.begin()
    assert breaker.begin()


def test_a_probe_that_went_away_lets_another_go(breaker, clock):
    assert breaker.begin()
    breaker.end(answered=False)
    clock.now_s = 10.0
    assert breaker.begin()
    breaker.end(answered=None)
    assert not breaker.is_closed
    assert breaker.begin()


def test_calls_that_went_away_do_not_open_a_closed_one(breaker):
    assert breaker.begin()
    breaker.end(answered=None)
    assert breaker.is_closed
