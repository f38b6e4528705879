"""Processes that read without a request while everything they read is evicted, replaced and overwritten at once."""

import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from mooncake_client import membarrier
from mooncake_node.core.replica import Replica
from mooncake_node.readers import SharedReaders
from tests.proof.board import POOL_NBYTES
from tests.proof.daemon import Daemon

SHORT_S, LONG_S = 5, 120
CAUGHT_WITHIN_S = 60
READERS = 2
READS_BEFORE_KILL = 2_000

pytestmark = pytest.mark.skipif(
    not membarrier.register(), reason="NOT TESTED: this machine has no membarrier, or is no x86-64; nothing is pinned"
)


class LooksAtNoPins(SharedReaders):
    """Takes everything for unpinned."""

    def pinned(self, replicas: Sequence[Replica]) -> set[int]:
        return set()


class LooksBeforeHiding(SharedReaders):
    """Looks for pins first, and hides then."""

    def __init__(self, pool_nbytes: int) -> None:
        super().__init__(pool_nbytes)
        self._seen: dict[int, bool] = {}

    def hide(self, replicas: Sequence[Replica]) -> bool:
        for replica in replicas:
            self._seen[replica.replica_id] = bool(super().pinned([replica]))
        return super().hide(replicas)

    def pinned(self, replicas: Sequence[Replica]) -> set[int]:
        before = {r.replica_id: self._seen.pop(r.replica_id) for r in replicas if r.replica_id in self._seen}
        now = super().pinned([r for r in replicas if r.replica_id not in before])
        return now | {replica_id for replica_id, was_pinned in before.items() if was_pinned}


@pytest.fixture
def start() -> Iterator[Callable[..., Daemon]]:
    daemons: list[Daemon] = []

    def start(readers: type[SharedReaders] = SharedReaders, **how: bool) -> Daemon:
        daemon = Daemon(readers(POOL_NBYTES), **how)
        daemons.append(daemon)
        for _ in range(READERS):
            daemon.start_reader()
        return daemon

    yield start
    for daemon in daemons:
        daemon.close()


@pytest.mark.parametrize(
    "seconds", [SHORT_S, pytest.param(LONG_S, marks=[pytest.mark.long, pytest.mark.timeout(3 * LONG_S)])]
)
def test_what_is_pinned_is_never_overwritten_whoever_dies(start, seconds):
    """One reader lives through it all; others are killed in the middle of it."""
    daemon = start()
    end_s = time.monotonic() + seconds
    killed = 0
    while time.monotonic() < end_s or killed < 2:
        for _ in range(100):
            daemon.step()
        youngest = max(daemon.processes)
        if daemon.reads(youngest) > READS_BEFORE_KILL:
            daemon.kill_reader(youngest)
            daemon.start_reader()
            killed += 1
        assert not daemon.wrong
        assert not daemon.false
    daemon.end_readers()
    assert not daemon.wrong
    assert not daemon.false
    assert not daemon.readers.pins
    # Nothing but what readers have told brought it about.
    assert daemon.everything_can_go()
    for name in ("total", "evicted", "kept", "replaced", "pins_of_killed"):
        print(name, count := getattr(daemon, name))
        assert count, f"{name}: this has tried nothing"


def test_a_reader_that_does_not_look_again_is_caught(start):
    assert_caught(start(is_careless=True))


def test_a_daemon_that_looks_at_no_pins_is_caught(start):
    assert_caught(start(LooksAtNoPins))


def test_a_daemon_that_looks_before_it_hides_is_caught(start):
    assert_caught(start(LooksBeforeHiding))


def assert_caught(daemon: Daemon) -> None:
    end_s = time.monotonic() + CAUGHT_WITHIN_S
    while not daemon.wrong:
        for _ in range(100):
            daemon.step()
        assert time.monotonic() < end_s, f"nothing found in {daemon.total} looks, {daemon.evicted} evictions"
