"""A local master with its clock in the test's hand, audited after every call."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mooncake_client.codes import Code
from mooncake_node.core.audit import check_invariants
from mooncake_node.core.config import MasterConfig
from mooncake_node.core.generations import EPOCH_MS, GenerationClock
from mooncake_node.core.master import Master
from mooncake_node.core.pins import contract_for
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.replica import Replica
from mooncake_node.core.report import stats
from mooncake_node.core.sessions import Handle, Session
from mooncake_node.core.waiting import Outcome, Put, PutMode, Waiter, Want

PAGE = 4096


class Core:
    """What the shell does with a master, in one line each.

    Time stands still between calls: `now` moves by `tick` alone. Every call is followed by a full audit, also when
    it is refused.
    """

    def __init__(self, pages: int, **limits: object) -> None:
        config = MasterConfig(pool_nbytes=pages * PAGE, **limits)
        self.master = Master(config, GenerationClock(EPOCH_MS * 1_000_000))
        self.now = 1_000

    def open(self, name: str = "client", *, readonly: bool = False) -> Session:
        with self._audited():
            return self.master.open_session(name, 4711, readonly=readonly)

    def end_session(self, session: Session) -> None:
        with self._audited():
            self.master.end_session(session, self.now)

    def put(
        self,
        session: Session,
        key: str,
        nbytes: int = PAGE,
        *,
        mode: PutMode = PutMode.PUT,
        timeout: int | None = 100,
        kind: int = 0,
        softpin: bool = False,
        softpin_ttl: int | None = None,
        hardpin: bool = False,
        scope: str = "cluster",
    ) -> Replica | Handle | Waiter | Want:
        """Ask for room; with *timeout* None nothing is entered."""
        contract = contract_for(softpin=softpin, softpin_ttl_ns=softpin_ttl, hardpin=hardpin, scope=scope)
        put = Put(key=key, nbytes=nbytes, kind=kind, contract=contract, mode=mode)
        deadline = None if timeout is None else self.now + timeout
        with self._audited():
            return self.master.put_start(session, put, self.now, deadline)

    def end(self, session: Session, replica: Replica) -> Replica:
        with self._audited():
            return self.master.put_end(session, replica.replica_id, self.now)

    def end_and_acquire(self, session: Session, replica: Replica) -> Handle:
        with self._audited():
            return self.master.put_end_and_acquire(session, replica.replica_id, self.now)

    def revoke(self, session: Session, replica: Replica) -> None:
        with self._audited():
            self.master.put_revoke(session, replica.replica_id, self.now)

    def store(self, session: Session, key: str, nbytes: int = PAGE, **how: object) -> Replica:
        """A put from its start to its end."""
        replica = self.put(session, key, nbytes, **how)
        assert isinstance(replica, Replica)
        return self.end(session, replica)

    def get(self, session: Session, key: str, *, timeout: int = 100) -> Handle | Waiter:
        with self._audited():
            return self.master.acquire(session, key, self.now, self.now + timeout)

    def release(self, session: Session, *handles: Handle) -> None:
        self.release_ids(session, [handle.handle_id for handle in handles])

    def release_ids(self, session: Session, handle_ids: list[int]) -> None:
        with self._audited():
            self.master.release(session, handle_ids, self.now)

    def wait(self, session: Session, key: str, *, timeout: int = 100) -> Waiter | None:
        with self._audited():
            return self.master.wait(session, key, self.now, self.now + timeout)

    def remove(self, key: str, generation: int | None = None) -> bool:
        with self._audited():
            return self.master.remove(key, self.now, generation)

    def clear(self) -> int:
        with self._audited():
            return self.master.clear(self.now)

    def reap(self, count_max: int = 100) -> bool:
        with self._audited():
            return self.master.reap(count_max, self.now)

    def pin(self, key: str, ttl: int | None = None) -> None:
        with self._audited():
            self.master.pin(key, ttl, self.now)

    def unpin(self, key: str) -> None:
        with self._audited():
            self.master.unpin(key)

    def cancel(self, waiter: Waiter) -> None:
        with self._audited():
            self.master.cancel(waiter)

    def tick(self, *, later: int = 0) -> None:
        """Time passes, and the timer rings."""
        self.now += later
        with self._audited():
            self.master.tick(self.now)

    def answers(self) -> list[tuple[Waiter, Outcome]]:
        """What was decided for others since the last look, in order."""
        outbox, self.master.outbox = self.master.outbox, []
        return outbox

    def handle_for(self, waiter: Waiter) -> Handle:
        """The only answer since the last look: a handle for *waiter*."""
        [(answered, handle)] = self.answers()
        assert answered is waiter
        assert isinstance(handle, Handle)
        return handle

    def replica_for(self, waiter: Waiter) -> Replica:
        """The only answer since the last look: a reservation for *waiter*."""
        [(answered, replica)] = self.answers()
        assert answered is waiter
        assert isinstance(replica, Replica)
        return replica

    def refusal_for(self, waiter: Waiter) -> Refusal:
        """The only answer since the last look: a refusal for *waiter*."""
        [(answered, refusal)] = self.answers()
        assert answered is waiter
        assert isinstance(refusal, Refusal)
        return refusal

    def readable(self, key: str) -> Replica | None:
        """What a get of *key* would show."""
        try:
            return self.master.readable(key)
        except Refusal:
            return None

    @property
    def used(self) -> int:
        return self.master.space.bytes_used

    def stat(self, path: str) -> object:
        """One number of the statistics, such as ``stash.bytes``."""
        value: object = stats(self.master)
        for name in path.split("."):
            assert isinstance(value, dict)
            value = value[name]
        return value

    @contextmanager
    def refuses(self, code: Code, match: str | None = None) -> Iterator[None]:
        """The call inside is refused with *code*."""
        with pytest.raises(Refusal, match=match) as caught:
            yield
        assert caught.value.code is code

    def give_all_back(self) -> None:
        """When everyone has gone and all is cleared, the pool is whole again."""
        for session in list(self.master.sessions.values()):
            self.end_session(session)
        self.clear()
        while self.reap():
            pass
        assert self.used == 0
        assert self.master.handle_count == 0
        assert len(self.master.waiting) == 0
        assert self.master.table.all_replicas() == []
        assert (self.master.pins.soft_nbytes, self.master.pins.hard_nbytes) == (0, 0)

    @contextmanager
    def _audited(self) -> Iterator[None]:
        try:
            yield
        finally:
            check_invariants(self.master)


@pytest.fixture
def make_core() -> Iterator[object]:
    """Make masters; at the end of the test each must be able to give everything back."""
    cores: list[Core] = []

    def make(pages: int = 4, **limits: object) -> Core:
        cores.append(Core(pages, **limits))
        return cores[-1]

    yield make
    for core in cores:
        core.give_all_back()


@pytest.fixture
def core(make_core) -> Core:
    """A master with room for four objects of a page."""
    return make_core()


@pytest.fixture
def make_doomed_core() -> type[Core]:
    """Make masters nobody looks at again, for tests that damage them."""
    return Core
