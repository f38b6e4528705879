"""The load of remote readers' leases on a tight pool, on virtual time: how often reclaim looks, and how often in vain.

The load is that of the second post (`SPEC.md`, section 4): leases of 30 s, a pool smaller than what is leased at a
time, remote readers that release early, late or never, some local readers besides. In its system every pass went over
the whole inactive list, and nearly all passes found only what could not go.
"""

import heapq
import os
import random
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import msgspec

from mooncake_client import Client
from mooncake_node.bench.measure import Result, judge
from mooncake_node.core.config import SECOND_NS, MasterConfig
from mooncake_node.core.generations import GenerationClock
from mooncake_node.core.jobs import Job
from mooncake_node.core.master import Master
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.replica import PLAIN, Replica
from mooncake_node.core.report import stats
from mooncake_node.core.sessions import Handle
from mooncake_node.core.waiting import Put, Waiter
from mooncake_node.local import LocalNode

_MIB = 1 << 20
_POOL_OBJECTS = 512
_PUTS_PER_S = 24.0
_SECONDS = 600
_LEASED_SHARE = 0.9
_REFERENCED_SHARE = 0.1
_READS_MAX = 3

# What the post counted: name -> value.
POST = {
    "passes": 10_460_000.0,
    "productive passes": 4_911.0,
    "productive, %": 0.047,
    "empty by leases alone, %": 98.3,
    "empty by references alone, %": 0.95,
    "empty by both, %": 0.69,
    "earliest lease expires, p50, s": 17.0,
    "earliest lease expires, p90, s": 26.4,
}


class Outcome(msgspec.Struct, frozen=True):
    """What a run came to."""

    figures: dict[str, float]  # beside the names of POST, where they say the same
    passes: int
    productive_passes: int


class _Load:
    """One node's core, its users, and a clock that jumps from one event to the next."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311  a load, not a secret
        pool = _POOL_OBJECTS * _MIB
        low = pool // 64
        config = MasterConfig(pool_nbytes=pool, free_min_nbytes=low // 4, free_low_nbytes=low, free_high_nbytes=2 * low)
        self._master = Master(config, GenerationClock(0))
        self._session = self._master.open_session("load", 1)
        self._now_ns = 0
        self._numbers = count()
        # When, tie-break, what.
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self.puts = self.refused = self.waited = 0

    def run(self) -> Outcome:
        """All of it."""
        self._at(0.0, self._put)
        while self._events and self._now_ns < _SECONDS * SECOND_NS:
            due_ns, _, event = heapq.heappop(self._events)
            self._tick_until(due_ns)
            self._now_ns = due_ns
            event()
            self._settle()
        facts = stats(self._master)["reclaim"]
        assert isinstance(facts, dict)
        passes, productive = int(facts["passes"]), int(facts["productive_passes"])
        parked = {name: float(facts[f"parked_{name}"]) for name in ("lease_only", "ref_only", "lease_and_ref")}
        figures = {
            "passes": float(passes),
            "productive passes": float(productive),
            "productive, %": 100 * productive / max(1, passes),
            "empty passes": float(passes - productive),
            "replicas looked at": float(facts["examined"]),
            "replicas dropped": float(facts["dropped"]),
            "parked by a lease alone": parked["lease_only"],
            "parked by a reference alone": parked["ref_only"],
            "parked by both": parked["lease_and_ref"],
            "times nothing could go": float(sum(self._master.reclaim.earliest_lease_expire_ms.values())),
            "puts": float(self.puts),
            "puts that had to wait": float(self.waited),
            "puts refused at their deadline": float(self.refused),
        }
        return Outcome(figures, passes, productive)

    def _tick_until(self, due_ns: int) -> None:
        while (deadline_ns := self._master.next_deadline_ns(self._now_ns)) is not None and deadline_ns <= due_ns:
            self._now_ns = max(self._now_ns, deadline_ns)
            self._master.tick(self._now_ns)
            self._settle()

    def _settle(self) -> None:
        outbox = self._master.outbox[:]
        self._master.outbox.clear()
        jobs: list[Job] = self._master.jobs
        assert not jobs, "there is no tier here"
        for _waiter, outcome in outbox:
            if isinstance(outcome, Replica):
                self._publish(outcome)
            else:
                self.refused += isinstance(outcome, Refusal)

    def _put(self) -> None:
        self._at(self._random.expovariate(_PUTS_PER_S), self._put)
        self.puts += 1
        put = Put(key=f"k{next(self._numbers)}", nbytes=_MIB, contract=PLAIN)
        answer = self._master.put_start(self._session, put, self._now_ns, self._now_ns + 30 * SECOND_NS)
        if isinstance(answer, Waiter):
            self.waited += 1
        elif isinstance(answer, Replica):
            self._publish(answer)

    def _publish(self, replica: Replica) -> None:
        self._master.put_end(self._session, replica.replica_id, self._now_ns)
        if self._random.random() < _LEASED_SHARE:
            # The first of them has waited for it.
            self._read_remotely(replica.key)
            for _ in range(self._random.randint(0, _READS_MAX - 1)):
                self._at(self._random.uniform(0.0, 5.0), lambda: self._read_remotely(replica.key))
        if self._random.random() < _REFERENCED_SHARE:
            self._read_here(replica.key)

    def _read_remotely(self, key: str) -> None:
        try:
            replica, token = self._master.peers.get_replica_list(key, self._now_ns)
        except Refusal:
            return
        kind = self._random.random()
        if kind < 0.4:  # early
            after_s = self._random.uniform(0.05, 5.0)
        elif kind < 0.7:  # late
            after_s = self._random.uniform(30.0, 60.0)
        else:  # never
            return
        replica_id = replica.replica_id
        self._at(after_s, lambda: self._master.peers.release_lease(key, replica_id, token, self._now_ns))

    def _read_here(self, key: str) -> None:
        try:
            handle = self._master.acquire(self._session, key, self._now_ns, self._now_ns + SECOND_NS)
        except Refusal:
            return
        assert isinstance(handle, Handle)
        handle_id = handle.handle_id
        self._at(
            self._random.uniform(0.5, 10.0),
            lambda: self._master.release(self._session, [handle_id], self._now_ns),
        )

    def _at(self, after_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._now_ns + int(after_s * SECOND_NS), next(self._numbers), event))


def measure_parked(*, quick: bool) -> Result:
    """Processor time of a daemon with 100,000 referenced objects, beside that of an empty one meanwhile."""
    seconds = 5 if quick else 30
    keys = [f"parked/{number}" for number in range(100_000)]
    with (
        LocalNode(256 * _MIB) as empty,
        LocalNode(256 * _MIB) as full,
        Client(full.socket, name="bench") as client,
    ):
        for start in range(0, len(keys), 10_000):
            client.put_many(dict.fromkeys(keys[start : start + 10_000], b"x" * 200))
        views = client.get_buffers(keys)
        time.sleep(2.0)  # until all is told and the pools are touched
        before = [_cpu_s(node.pid) for node in (full, empty)]
        time.sleep(seconds)
        spent = [_cpu_s(node.pid) - was for node, was in zip((full, empty), before, strict=True)]
        del views
    detail = f"{spent[0]:.2f} s of processor time in {seconds} s, the empty daemon {spent[1]:.2f} s"
    return judge("100,000 parked replicas", spent[0] - spent[1], "s more than an empty daemon", "<= 0.05", detail)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def simulate(seed: int = 7) -> Outcome:
    """Ten minutes of that load."""
    return _Load(seed).run()
