"""A local master with its clock in the test's hand, audited after every call."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from mooncake_client.codes import Code
from mooncake_node.core.audit import check_invariants
from mooncake_node.core.config import MasterConfig
from mooncake_node.core.generations import EPOCH_MS, GenerationClock
from mooncake_node.core.jobs import Amend, Job, Load, Offload
from mooncake_node.core.master import Master
from mooncake_node.core.pins import contract_for
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.replica import PLAIN, Replica
from mooncake_node.core.report import stats
from mooncake_node.core.sessions import Handle, Session
from mooncake_node.core.waiting import Outcome, Put, PutMode, Waiter, Want
from tests.core.fake_readers import FakeReaders, IndexPin
from tests.core.far import Far

PAGE = 4096


class Core:
    """What the shell does with a master, in one line each.

    Time stands still between calls: `now` moves by `tick` alone. Every call is followed by a full audit, also when
    it is refused.
    """

    def __init__(
        self, pages: int, *, pinned: bool = False, readers: FakeReaders | None = None, **limits: object
    ) -> None:
        """*pinned*: what a put does not say otherwise of is pinned softly; without a tier such an object stays.

        *readers*: those by the shared index, if there is one.
        """
        self.pinned = pinned
        self.readers = readers
        config = MasterConfig(pool_nbytes=pages * PAGE, **limits)
        self.master = Master(config, GenerationClock(EPOCH_MS * 1_000_000), readers=readers)
        self.now = 1_000
        # Replicas whose job was taken and has not ended.
        self.under_way: dict[int, Replica] = {}
        self.amended: list[Replica] = []  # contracts to be changed on disk too, in order
        self.far = Far(self)

    def open(self, name: str = "client", *, readonly: bool = False) -> Session:
        with self.audited():
            return self.master.open_session(name, 4711, readonly=readonly)

    def end_session(self, session: Session) -> None:
        with self.audited():
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
        softpin: bool | None = None,
        softpin_ttl: int | None = None,
        hardpin: bool = False,
        scope: str = "cluster",
    ) -> Replica | Handle | Waiter | Want:
        """Ask for room; with *timeout* None nothing is entered."""
        softpin = self.pinned if softpin is None else softpin
        contract = contract_for(softpin=softpin, softpin_ttl_ns=softpin_ttl, hardpin=hardpin, scope=scope)
        put = Put(key=key, nbytes=nbytes, kind=kind, contract=contract, mode=mode)
        deadline = None if timeout is None else self.now + timeout
        with self.audited():
            return self.master.put_start(session, put, self.now, deadline)

    def end(self, session: Session, replica: Replica) -> Replica:
        with self.audited():
            return self.master.put_end(session, replica.replica_id, self.now)

    def end_and_acquire(self, session: Session, replica: Replica) -> Handle:
        with self.audited():
            return self.master.put_end_and_acquire(session, replica.replica_id, self.now)

    def revoke(self, session: Session, replica: Replica) -> None:
        with self.audited():
            self.master.put_revoke(session, replica.replica_id, self.now)

    def store(self, session: Session, key: str, nbytes: int = PAGE, **how: object) -> Replica:
        """A put from its start to its end."""
        replica = self.put(session, key, nbytes, **how)
        assert isinstance(replica, Replica)
        return self.end(session, replica)

    def place(
        self, session: Session, key: str, nbytes: int = PAGE, *, mode: PutMode = PutMode.PUT, **pins: object
    ) -> Replica | None:
        """A put whose bytes are here already, if it need not wait."""
        plain = {"softpin": False, "softpin_ttl_ns": None, "hardpin": False, "scope": "cluster"}
        put = Put(key=key, nbytes=nbytes, contract=contract_for(**plain | pins), mode=mode)
        with self.audited():
            replica = self.master.place(session, put, self.now)
            if replica is not None:
                self.master.publish_placed(replica, self.now)
            return replica

    def place_all(
        self, session: Session, keys: Sequence[str], nbytes: int = PAGE, *, odd: Put | None = None
    ) -> list[Replica] | None:
        """Puts of one size in one step, if nothing stands in the way of any; *odd*: one of another kind, the last."""
        puts = [Put(key=key, nbytes=nbytes, contract=PLAIN) for key in keys] + ([] if odd is None else [odd])
        with self.audited():
            replicas = self.master.place_all(session, puts, self.now)
            if replicas is not None:
                self.master.publish_all(replicas, self.now)
            return replicas

    def begin_all(
        self, session: Session, keys: Sequence[str], nbytes: int = PAGE, *, odd: Put | None = None
    ) -> list[Replica] | None:
        """Reservations of one size in one step, as `place_all`."""
        puts = [Put(key=key, nbytes=nbytes, contract=PLAIN) for key in keys] + ([] if odd is None else [odd])
        with self.audited():
            return self.master.begin_all(session, puts, self.now)

    def end_all(self, session: Session, replicas: Sequence[Replica]) -> list[Replica] | None:
        """The end of several in one step."""
        with self.audited():
            return self.master.end_all(session, [replica.replica_id for replica in replicas], self.now)

    def get(self, session: Session, key: str, *, timeout: int = 100) -> Handle | Waiter:
        with self.audited():
            return self.master.acquire(session, key, self.now, self.now + timeout)

    def release(self, session: Session, *handles: Handle) -> None:
        self.release_ids(session, [handle.handle_id for handle in handles])

    def release_ids(self, session: Session, handle_ids: list[int]) -> None:
        with self.audited():
            self.master.release(session, handle_ids, self.now)

    def wait(self, session: Session, key: str, *, timeout: int = 100) -> Waiter | None:
        with self.audited():
            return self.master.wait(session, key, self.now, self.now + timeout)

    def remove(self, key: str, generation: int | None = None) -> bool:
        with self.audited():
            return self.master.remove(key, self.now, generation)

    def clear(self, epoch: int | None = None) -> int:
        with self.audited():
            return self.master.clear(self.now, epoch)

    def reap(self, count_max: int = 100) -> bool:
        with self.audited():
            return self.master.reap(count_max, self.now)

    def pin(self, key: str, ttl: int | None = None) -> None:
        with self.audited():
            self.master.pin(key, ttl, self.now)

    def unpin(self, key: str) -> None:
        with self.audited():
            self.master.unpin(key, self.now)

    def cancel(self, waiter: Waiter) -> None:
        with self.audited():
            self.master.cancel(waiter, self.now)

    def tick(self, *, later: int = 0) -> None:
        """Time passes, and the timer rings."""
        self.now += later
        with self.audited():
            self.master.tick(self.now)

    def answers(self) -> list[tuple[Waiter, Outcome]]:
        """What was decided for others since the last look, in order."""
        outbox = self.master.outbox[:]
        self.master.outbox.clear()
        return outbox

    # -- the shared index --------------------------------------------------------------------------------------------

    def look(self, session: Session, key: str) -> IndexPin:
        """A get by way of the index."""
        pin = self.readers.pin(session, key)
        assert pin is not None, f"{key} is not in the index"
        return pin

    def let_go(self, *pins: IndexPin) -> bool:
        """The views are dead; whether the daemon was told."""
        told = [self.readers.unpin(pin) for pin in pins]
        if any(told):
            self.nudge()
        return any(told)

    def nudge(self) -> None:
        with self.audited():
            self.master.unpinned(self.now)

    # -- leases and jobs ---------------------------------------------------------------------------------------------

    def lease(self, key: str) -> int:
        """A lease for a remote reader; its token."""
        with self.audited():
            return self.master.peers.get_replica_list(key, self.now)[1]

    def release_lease(self, replica: Replica, token: int, key: str | None = None) -> None:
        with self.audited():
            self.master.peers.release_lease(key or replica.key, replica.replica_id, token, self.now)

    def take_jobs(self) -> list[Job]:
        """What the shell was asked to do since the last look, in order; amendments go to `amended`."""
        self.amended += [job.replica for job in self.master.jobs if isinstance(job, Amend)]
        jobs = [job for job in self.master.jobs if not isinstance(job, Amend)]
        self.master.jobs.clear()
        self.under_way |= {job.replica.replica_id: job.replica for job in jobs if isinstance(job, Offload | Load)}
        return jobs

    def job(self) -> Job:
        """The only job since the last look."""
        [job] = self.take_jobs()
        return job

    def written(self, replica: Replica, record: object | None = "record") -> None:
        """An offload has ended, well or (None) not."""
        self.under_way.pop(replica.replica_id, None)
        with self.audited():
            self.master.offload_done(replica, record, self.now)

    def rescue(self, replica: Replica) -> bool:
        with self.audited():
            return self.master.rescue(replica, self.now)

    def loaded(self, replica: Replica, failure: Refusal | None = None, *, gone: bool = False) -> None:
        """A load has ended, well or not."""
        self.under_way.pop(replica.replica_id, None)
        with self.audited():
            self.master.load_done(replica, failure, self.now, gone=gone)

    def fill(
        self, session: Session, count: int, nbytes: int = PAGE, *, prefix: str = "k", **how: object
    ) -> list[Replica]:
        """Objects *prefix*0, *prefix*1, …, the first the coldest."""
        return [self.store(session, f"{prefix}{number}", nbytes, **how) for number in range(count)]

    def offload(self, session: Session, key: str, nbytes: int = PAGE, **how: object) -> Replica:
        """An object that is on disk alone."""
        replica = self.store(session, key, nbytes, softpin=True, **how)
        assert self.rescue(replica)
        job = self.job()
        assert isinstance(job, Offload)
        self.written(job.replica)
        return replica

    def bring_back(self, session: Session, key: str) -> Replica:
        """Load an object that is on disk; it stays in memory with its copy there, and nobody reads it."""
        waiter = self.get(session, key)
        job = self.job()
        assert isinstance(job, Load)
        self.loaded(job.replica)
        self.release(session, self.handle_for(waiter))
        return job.replica

    def adopt(self, key: str, nbytes: int = PAGE, *, softpin: bool = False, until: int | None = None) -> None:
        """An object was found in the tier at the start."""
        with self.audited():
            self.master.adopt(
                key=key,
                generation=1,
                nbytes=nbytes,
                kind=0,
                contract=contract_for(softpin=softpin, softpin_ttl_ns=None, hardpin=False, scope="cluster"),
                softpin_until_ns=until,
                record="found",
                now_ns=self.now,
            )

    def gone(self, count: int) -> list[int]:
        """Which of k0, k1, … are not readable."""
        return [number for number in range(count) if self.readable(f"k{number}") is None]

    def state(self, key: str) -> str | None:
        """How *key* is readable, if it is."""
        replica = self.readable(key)
        return None if replica is None else replica.state.name

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
            return self.master.readable(key, self.now)
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
        """When everyone has gone, every job has failed, every lease run out and all is cleared, the pool is whole."""
        self.fail_jobs()
        self.far.end_all()
        for session in list(self.master.sessions.values()):
            self.end_session(session)
        self.tick(later=self.master.config.lease_ttl_ns)
        self.clear()
        while self.reap():
            pass
        self.fail_jobs()
        self.far.end_all()
        assert self.used == 0
        assert len(self.master.waiting) == 0
        assert self.master.table.all_replicas() == []
        assert (self.master.pins.soft_nbytes, self.master.pins.hard_nbytes) == (0, 0)

    def fail_jobs(self) -> None:
        """Everything the shell was asked for comes to nothing."""
        self.take_jobs()
        for replica in list(self.under_way.values()):
            if replica.transfers:
                self.written(replica, None)
            else:
                self.loaded(replica, Refusal(Code.TRANSFER_FAILED, "failed"))

    @contextmanager
    def audited(self) -> Iterator[None]:
        try:
            yield
        finally:
            check_invariants(self.master)
            if self.readers is not None:
                self.readers.check(self.master)
            self.far.check()


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
def far_core(make_core) -> Core:
    """A master with room for four objects of a page, that knows of other nodes."""
    return make_core(has_peers=True)


@pytest.fixture
def core(make_core) -> Core:
    """A master with room for four objects of a page."""
    return make_core()


@pytest.fixture
def make_doomed_core() -> type[Core]:
    """Make masters nobody looks at again, for tests that damage them."""
    return Core


@pytest.fixture
def make(make_core):
    """Make masters whose clients read by the index; their readers are at `core.readers`."""
    return lambda pages=4, records=1000, **limits: make_core(pages, readers=FakeReaders(records), **limits)
