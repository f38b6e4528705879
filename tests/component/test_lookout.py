"""When the daemon looks for the next request instead of sleeping, and when it does not."""

import pytest

from mooncake_node.server import lookout
from mooncake_node.server.lookout import LOOK_S, REST_MAX_S, REST_MIN_S, YIELD_S, Lookout

CLIENT_S = LOOK_S / 4  # from a reply to the next request, of a client that goes on at once


class World:
    """A loop with one callback, a clock, and a processor that others may want."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        self.ready: list = []
        self.yield_s = 0.0
        monkeypatch.setattr(lookout.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(lookout.os, "sched_yield", lambda: self.pass_time(self.yield_s))

    def call_soon(self, callback) -> None:
        self.ready.append(callback)

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds

    @property
    def looks(self) -> bool:
        """The loop does not sleep."""
        assert len(self.ready) <= 1
        return bool(self.ready)

    def turn(self) -> None:
        """The loop runs what is ready; a turn takes a moment."""
        ready, self.ready = self.ready, []
        for callback in ready:
            callback()
        self.pass_time(1e-6)


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


@pytest.fixture
def watched(world):
    return Lookout(world, cpus=2)


def ask(world, watched, after_s=CLIENT_S, count=2):
    """So many requests, each so long after the one before."""
    for _ in range(count):
        until_s = world.now_s + after_s
        while world.looks and world.now_s < until_s:
            world.turn()
        world.now_s = max(world.now_s, until_s)
        watched.served()


def test_one_request_is_no_reason_to_look(world, watched):
    watched.served()
    assert not world.looks


def test_who_asks_one_thing_after_the_other_is_looked_for(world, watched):
    ask(world, watched, count=50)
    assert world.looks


def test_looking_ends_when_nothing_has_come_for_so_long(world, watched):
    ask(world, watched)
    begin_s = world.now_s
    while world.looks:
        world.turn()
    assert LOOK_S <= world.now_s - begin_s < 2 * LOOK_S


def test_who_takes_longer_than_that_costs_nothing(world, watched):
    for _ in range(50):
        ask(world, watched, after_s=2 * LOOK_S, count=1)
        assert not world.looks


def test_a_request_after_a_while_is_no_reason_but_the_next_is(world, watched):
    ask(world, watched)
    ask(world, watched, after_s=1.0, count=1)
    assert not world.looks
    ask(world, watched, count=1)
    assert world.looks


def test_with_one_processor_it_never_looks(world):
    ask(world, Lookout(world, cpus=1), count=50)
    assert not world.looks


def rest_of(world, watched) -> float:
    """How long it rests after somebody else has run."""
    ask(world, watched)
    assert world.looks
    world.yield_s = 2 * YIELD_S
    world.turn()
    assert not world.looks
    world.yield_s, begin_s = 0.0, world.now_s
    while not world.looks:
        ask(world, watched, count=1)
    return world.now_s - begin_s


def test_it_rests_longer_and_longer_where_others_want_the_processor(world, watched):
    rests = [rest_of(world, watched) for _ in range(6)]
    assert rests[0] == pytest.approx(REST_MIN_S, abs=2 * CLIENT_S)
    assert rests == sorted(rests)
    # Those found in between have shortened it a little.
    assert 0.9 * REST_MAX_S < rests[-1] <= REST_MAX_S + CLIENT_S


def test_requests_that_are_found_make_the_rests_short_again(world, watched):
    for _ in range(6):
        rest_of(world, watched)
    ask(world, watched, count=1000)
    assert rest_of(world, watched) == pytest.approx(REST_MIN_S, abs=2 * CLIENT_S)
