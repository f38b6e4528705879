"""The whole local master against a model that knows only what was promised, and to whom.

The model has no tables of states: it keeps what each key shows, who writes it, who holds which bytes, and who still
waits. What the master answers is either exactly what the model says, or (for those who waited) one of the outcomes
the model allows at that moment. Calls that come late, twice or from strangers are rules like any other.
"""

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from mooncake_client.codes import Code
from mooncake_node.core.audit import check_invariants
from mooncake_node.core.config import MasterConfig
from mooncake_node.core.generations import EPOCH_MS, GenerationClock
from mooncake_node.core.master import Master
from mooncake_node.core.pins import contract_for
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.replica import Replica, ReplicaState
from mooncake_node.core.report import holders, stats
from mooncake_node.core.scan import Scan
from mooncake_node.core.sessions import Handle, Session
from mooncake_node.core.waiting import Put, PutMode, Waiter, Want

PAGE = 4096
PAGES = 4
KEYS = ["a", "ab", "\u00e4"]
FILL = "all the rest"
SIZES = [0, 64, 200, PAGE, PAGE, PAGE + 1, 2 * PAGE, 3 * PAGE, PAGES * PAGE]
TTL_MAX = 50
LIMITS = {
    "handles_max": 3,
    "reservations_max": 2,
    "waiters_max": 9,
    "softpin_ttl_max_ns": TTL_MAX,
    "hard_pin_nbytes_max": 2 * PAGE,
}
CONTRACTS = [
    contract_for(softpin=softpin, softpin_ttl_ns=ttl, hardpin=hardpin, scope="cluster")
    for softpin, ttl, hardpin in [
        *[(False, None, False)] * 5, (True, None, False), (True, TTL_MAX, False),
        (False, None, True), (True, TTL_MAX + 1, False),
    ]
]  # fmt: skip

sessions = st.integers(0, 2)
keys = st.sampled_from(KEYS)
timeouts = st.sampled_from([0, 5, 30, 30])
picks = st.integers(0, 1 << 16)  # one of those there are, whatever their number


STEPS: dict[str, st.SearchStrategy] = {}


def step(weight=1, **arguments):
    """A rule of the machine below.

    Not Hypothesis's own, since that leaves out about half of the rules in each run: what goes wrong here needs a put, a
    get, a remove and a release to come together.
    """

    def register(method):
        calls = st.tuples(st.just(method.__name__), st.fixed_dictionaries(arguments))
        STEPS.update({f"{method.__name__}/{n}": calls for n in range(weight)})
        return method

    return register


class Object(msgspec.Struct, eq=False):
    """One generation, from its reservation until nobody may touch its bytes any more."""

    replica: Replica
    offset: int
    nbytes: int
    writer: Session | None
    put: Put
    soft: bool = False
    cut: bool = False  # a clear has taken its name, its room has not come back yet
    handles: set[tuple[int, int]] = msgspec.field(default_factory=set)


class Waiting(msgspec.Struct, eq=False):
    """Someone who was told to wait."""

    waiter: Waiter
    want: str  # "read" | "presence" | "put"
    for_room: bool  # what a put waited for when it came


class MasterMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.now = 100
        config = MasterConfig(pool_nbytes=PAGES * PAGE, **LIMITS)
        self.master = Master(config, GenerationClock(EPOCH_MS * 1_000_000))
        self.open = [self.master.open_session(f"s{i}", 100 + i) for i in range(3)]
        self.dead: list[Session] = []
        self.shown: dict[str, Object] = {}
        self.written: dict[str, Object] = {}  # by the key its writer will give a name to
        self.live: dict[int, Object] = {}  # every one whose bytes must stay, by replica_id
        self.past: list[int] = []  # replica_ids that were once reserved
        self.waiting: list[Waiting] = []  # in order of arrival
        self.generation = 0
        # What the present step did, for those who waited for it.
        self.published: set[str] = set()
        self.freed_keys: set[str] = set()
        self.cleared = False
        self.ticked = False

    # -- room, as a map of pages ---------------------------------------------------------------------------------

    def pages_of(self, obj):
        return range(obj.offset // PAGE, -(-(obj.offset + obj.nbytes) // PAGE))

    def used_pages(self):
        return {page for obj in self.live.values() for page in self.pages_of(obj)}

    def fits(self, nbytes):
        """Whether there is room: a run of free pages, or a slot in a page of slots of that size."""
        used = self.used_pages()
        if nbytes == 0:
            return True
        if nbytes <= PAGE - 64:
            slot = -(-nbytes // 64) * 64
            if len(used) < PAGES:
                return True
            per_page: dict[int, int] = {}
            for obj in self.live.values():
                if obj.nbytes and obj.nbytes <= PAGE - 64 and -(-obj.nbytes // 64) * 64 == slot:
                    page = obj.offset // PAGE
                    per_page[page] = per_page.get(page, 0) + 1
            return any(count < PAGE // slot for count in per_page.values())
        want = -(-nbytes // PAGE)
        return any(not used & set(range(at, at + want)) for at in range(PAGES - want + 1))

    # -- what the model notes down -------------------------------------------------------------------------------

    def reserved(self, session, put, replica):
        assert isinstance(replica, Replica)
        assert replica.key not in self.written, "two writers of one key"
        assert (replica.key, replica.nbytes, replica.contract) == (put.key, put.nbytes, put.contract)
        assert replica.state is ReplicaState.WRITING
        assert replica.replica_id not in self.past, "a replica_id came twice"
        assert replica.generation > self.generation, "generations go back"
        assert replica.offset + replica.nbytes <= PAGES * PAGE
        for other in self.live.values():
            assert (
                not put.nbytes
                or not other.nbytes
                or replica.offset >= other.offset + other.nbytes
                or other.offset >= replica.offset + put.nbytes
            ), "bytes that someone may still touch were given away"
        self.generation = replica.generation
        obj = Object(replica, replica.offset, replica.nbytes, session, put)
        self.written[put.key] = self.live[replica.replica_id] = obj
        self.past.append(replica.replica_id)
        assert len(self.reservations(session)) <= LIMITS["reservations_max"]
        assert self.hard_nbytes() <= LIMITS["hard_pin_nbytes_max"]

    def held(self, session, obj, handle):
        assert isinstance(handle, Handle)
        assert handle.replica is obj.replica, "a handle on another generation than the key shows"
        assert (handle.replica.offset, handle.replica.nbytes) == (obj.offset, obj.nbytes)
        assert all((session.session_id, handle.handle_id) not in other.handles for other in self.live.values())
        obj.handles.add((session.session_id, handle.handle_id))

    def settle(self, obj):
        """Its bytes are free as soon as it has no name, no writer and no handle."""
        if obj.writer is None and not obj.cut and not obj.handles and self.shown.get(obj.put.key) is not obj:
            self.live.pop(obj.replica.replica_id, None)

    def unname(self, key):
        obj = self.shown.pop(key)
        self.settle(obj)

    def publish(self, obj):
        key = obj.put.key
        assert self.written.pop(key) is obj
        obj.writer = None
        old = self.shown.get(key)
        self.shown[key] = obj
        obj.soft = obj.put.contract.softpin
        if old is not None:
            self.settle(old)
        self.published.add(key)

    def give_up(self, obj):
        if self.written.get(obj.put.key) is obj:
            del self.written[obj.put.key]
            self.freed_keys.add(obj.put.key)
        obj.writer = None
        self.settle(obj)

    def let_go(self, session, handle_id):
        for obj in list(self.live.values()):
            if (session.session_id, handle_id) in obj.handles:
                obj.handles.remove((session.session_id, handle_id))
                self.settle(obj)

    def writers(self):
        return [obj for obj in self.live.values() if obj.writer]

    def reservations(self, session):
        return [obj for obj in self.live.values() if obj.writer is session]

    def handles(self, session):
        sid = session.session_id
        return sorted(hid for obj in self.live.values() for holder, hid in obj.handles if holder == sid)

    def named(self):
        return [obj for obj in self.live.values() if obj.cut or self.shown.get(obj.put.key) is obj]

    def hard_nbytes(self):
        counted = [*self.named(), *self.writers()]
        return sum(obj.nbytes for obj in counted if obj.put.contract.hardpin)

    def over_a_limit(self, session, put):
        too_hard = put.contract.hardpin and self.hard_nbytes() + put.nbytes > LIMITS["hard_pin_nbytes_max"]
        return too_hard or len(self.reservations(session)) >= LIMITS["reservations_max"]

    # -- those who waited ----------------------------------------------------------------------------------------

    def deliver(self):
        """Check what those who waited were told, and that nobody waits without need."""
        outbox, self.master.outbox = self.master.outbox, []
        granted: list[Waiting] = []
        for waiter, outcome in outbox:
            [entry] = [entry for entry in self.waiting if entry.waiter is waiter]
            self.waiting.remove(entry)
            assert not waiter.open
            if entry.want == "presence":
                self.check_presence(waiter, outcome)
            elif entry.want == "read":
                self.check_read(waiter, outcome)
            else:
                self.check_put(waiter, outcome)
                if isinstance(outcome, Replica):
                    self.check_order(entry)
                    granted.append(entry)
        for entry in self.waiting:
            self.check_still_waits(entry)
        self.published.clear()
        self.freed_keys.clear()
        self.cleared = self.ticked = False

    def check_presence(self, waiter, outcome):
        if isinstance(outcome, Refusal):
            assert outcome.code is Code.TIMEOUT
            assert self.late(waiter)
        else:
            assert outcome is None
            assert waiter.key in self.published

    def check_read(self, waiter, outcome):
        if isinstance(outcome, Handle):
            assert waiter.key in self.published
            self.held(waiter.session, self.shown[waiter.key], outcome)
            assert len(self.handles(waiter.session)) <= LIMITS["handles_max"]
        elif outcome.code is Code.INVALID_ARGUMENT:
            assert waiter.key in self.published
            assert len(self.handles(waiter.session)) == LIMITS["handles_max"]
        elif outcome.code is Code.NOT_READY:
            assert self.late(waiter)
        else:
            assert outcome.code is Code.NOT_FOUND
            assert self.cleared or (waiter.key in self.freed_keys and waiter.key not in self.written)

    def check_put(self, waiter, outcome):
        key, put = waiter.key, waiter.put
        if isinstance(outcome, Replica):
            assert put.mode is PutMode.UPSERT or key not in self.shown
            self.reserved(waiter.session, put, outcome)
        elif isinstance(outcome, Handle):
            assert put.mode is PutMode.PUT_OR_ACQUIRE
            assert key in self.published
            self.held(waiter.session, self.shown[key], outcome)
            assert len(self.handles(waiter.session)) <= LIMITS["handles_max"]
        elif outcome.code is Code.EXISTS:
            assert put.mode is PutMode.PUT
            assert key in self.published
        elif outcome.code is Code.INVALID_ARGUMENT:
            assert put.mode is PutMode.PUT_OR_ACQUIRE
            assert len(self.handles(waiter.session)) == LIMITS["handles_max"]
        elif outcome.code is Code.NOT_READY:
            assert self.late(waiter)
            assert key in self.written
        elif outcome.code is Code.NO_SPACE:
            assert self.late(waiter) or self.over_a_limit(waiter.session, put)
        else:
            assert outcome.code is Code.NOT_FOUND
            assert self.cleared

    def late(self, waiter):
        return self.ticked and waiter.deadline_ns <= self.now

    def check_order(self, entry):
        """Of puts that want the same, who came first is served first."""
        put = entry.waiter.put
        for earlier in self.waiting:
            if earlier.want == "put" and earlier.waiter.number < entry.waiter.number:
                other = earlier.waiter.put
                if other.nbytes != put.nbytes:
                    continue
                assert other.key != put.key, "a later put took the turn"
                if earlier.for_room and entry.for_room and put.key not in self.freed_keys:
                    assert other.key in self.written, "a later put took the room"

    def check_still_waits(self, entry):
        waiter = entry.waiter
        key = waiter.key
        assert waiter.open
        assert not self.cleared or entry.want == "presence"
        assert not self.late(waiter)
        if entry.want == "presence":
            assert key not in self.shown
        elif entry.want == "read":
            assert key not in self.shown
            assert key in self.written
        else:
            assert key not in self.shown or waiter.put.mode is PutMode.UPSERT
            assert key in self.written or not self.fits(waiter.put.nbytes), "a put waits beside room for it"

    def entered(self, answer, want, *, for_room=False):
        assert isinstance(answer, Waiter)
        self.waiting.append(Waiting(answer, want, for_room))

    @property
    def queue_full(self):
        return len(self.waiting) >= LIMITS["waiters_max"]

    def contended(self, key):
        return min(self.written, default=key)

    def session(self, i):
        return self.open[i % len(self.open)]

    # -- put -----------------------------------------------------------------------------------------------------

    @step(
        weight=6, i=sessions, key=keys, nbytes=st.sampled_from(SIZES), mode=st.sampled_from(PutMode),
        contract=st.sampled_from(CONTRACTS), timeout=st.none() | timeouts, contend=st.booleans(),
    )  # fmt: skip
    def put_start(self, i, key, nbytes, mode, contract, timeout, contend):
        self.start(i, self.contended(key) if contend else key, nbytes, mode, contract, timeout)

    def start(self, i, key, nbytes, mode, contract, timeout):
        session = self.session(i)
        put = Put(key=key, nbytes=nbytes, contract=contract, mode=mode)
        deadline = None if timeout is None else self.now + timeout
        try:
            answer = self.master.put_start(session, put, self.now, deadline)
        except Refusal as refusal:
            answer = refusal.code
        shown = self.shown.get(key)
        if (contract.softpin_ttl_ns or 0) > TTL_MAX:
            assert answer is Code.INVALID_ARGUMENT
        elif shown is not None and mode is PutMode.PUT:
            assert answer is Code.EXISTS
        elif shown is not None and mode is PutMode.PUT_OR_ACQUIRE:
            if len(self.handles(session)) >= LIMITS["handles_max"]:
                assert answer is Code.INVALID_ARGUMENT
            else:
                self.held(session, shown, answer)
        elif key in self.written:
            self.expect_to_wait(answer, timeout, Want.TURN)
        elif self.over_a_limit(session, put):
            assert answer is Code.NO_SPACE
        elif self.fits(nbytes):
            self.reserved(session, put, answer)
        else:
            self.expect_to_wait(answer, timeout, Want.ROOM)
        self.deliver()

    def expect_to_wait(self, answer, timeout, want):
        if timeout is None:
            assert answer is want
        elif timeout == 0:
            assert answer is (Code.NOT_READY if want is Want.TURN else Code.NO_SPACE)
        elif self.queue_full:
            assert answer is Code.NOT_READY
        else:
            assert answer.want is want
            self.entered(answer, "put", for_room=want is Want.ROOM)

    @step(i=sessions, key=keys, nbytes=st.sampled_from(SIZES), acquire=st.booleans())
    def store(self, i, key, nbytes, acquire):
        """A put from its start to its end, if nothing is in its way."""
        self.start(i, key, nbytes, PutMode.UPSERT, CONTRACTS[0], None)
        obj = self.written.get(key)
        if obj is not None and obj.writer is self.session(i):
            self.end(obj, acquire=acquire)

    @step(i=sessions, leave=st.integers(0, 1))
    def fill(self, i, leave):
        """Leave as little room as there can be, so that others have to wait for it."""
        if not self.fits(PAGE):
            return
        pages = max(n for n in range(1, PAGES + 1) if self.fits(n * PAGE))
        self.store(i, FILL, max(1, pages - leave) * PAGE, False)

    @step(weight=3, pick=picks, acquire=st.booleans())
    def put_end(self, pick, acquire):
        if not self.writers():
            return
        self.end(self.writers()[pick % len(self.writers())], acquire=acquire)

    def end(self, obj, *, acquire):
        session = obj.writer
        replica_id = obj.replica.replica_id
        doomed = self.written.get(obj.put.key) is not obj
        end = self.master.put_end_and_acquire if acquire else self.master.put_end
        try:
            answer = end(session, replica_id, self.now)
        except Refusal as refusal:
            answer = refusal.code
        if acquire and len(self.handles(session)) >= LIMITS["handles_max"]:
            assert answer is Code.INVALID_ARGUMENT
        elif doomed:
            assert answer is Code.NOT_FOUND
            self.give_up(obj)
        else:
            self.publish(obj)
            if acquire:
                self.held(session, obj, answer)
            else:
                assert answer is obj.replica
            assert obj.replica.state is ReplicaState.COMPLETE
        self.deliver()

    @step(weight=2, pick=picks)
    def put_revoke(self, pick):
        if not self.writers():
            return
        obj = self.writers()[pick % len(self.writers())]
        self.master.put_revoke(obj.writer, obj.replica.replica_id, self.now)
        self.give_up(obj)
        self.deliver()

    # -- get -----------------------------------------------------------------------------------------------------

    @step(
        weight=5,
        i=sessions,
        key=keys,
        timeout=timeouts,
        contend=st.booleans(),
        presence=st.sampled_from([False, False, True]),
    )
    def get(self, i, key, timeout, contend, presence):
        key = self.contended(key) if contend else key
        ask = self.wait if presence else self.acquire
        ask(self.session(i), key, timeout)
        self.deliver()

    def acquire(self, session, key, timeout):
        try:
            answer = self.master.acquire(session, key, self.now, self.now + timeout)
        except Refusal as refusal:
            answer = refusal.code
        if key in self.shown:
            if len(self.handles(session)) >= LIMITS["handles_max"]:
                assert answer is Code.INVALID_ARGUMENT
            else:
                self.held(session, self.shown[key], answer)
        elif key not in self.written:
            assert answer is Code.NOT_FOUND
        elif timeout == 0 or self.queue_full:
            assert answer is Code.NOT_READY
        else:
            self.entered(answer, "read")

    def wait(self, session, key, timeout):
        try:
            answer = self.master.wait(session, key, self.now, self.now + timeout)
        except Refusal as refusal:
            answer = refusal.code
        if key in self.shown:
            assert answer is None
        elif timeout == 0:
            assert answer is Code.TIMEOUT
        elif self.queue_full:
            assert answer is Code.NOT_READY
        else:
            self.entered(answer, "presence")

    @step(weight=3, pick=picks)
    def release_one(self, pick):
        held = sorted(holder for obj in self.live.values() for holder in obj.handles)
        if not held:
            return
        session_id, handle_id = held[pick % len(held)]
        [session] = [session for session in self.open if session.session_id == session_id]
        self.master.release(session, [handle_id], self.now)
        self.let_go(session, handle_id)
        self.deliver()

    # -- remove --------------------------------------------------------------------------------------------------

    @step(weight=3, key=keys, back=st.none() | st.integers(0, 2))
    def remove(self, key, back):
        """With *back* only that generation, counted from the newest there ever was."""
        key = min(self.shown, default=key) if back is None else key
        generation = None if back is None else self.generation - (back << 11)
        there = key in self.shown and generation in (None, self.shown[key].replica.generation)
        assert self.master.remove(key, self.now, generation) is there
        if there:
            self.unname(key)
        self.deliver()

    @step(rarely=st.integers(0, 1))
    def clear(self, rarely):
        if rarely:
            return
        assert self.master.clear(self.now) == len(self.shown)
        for obj in self.shown.values():
            obj.cut = True
        self.shown.clear()
        self.written.clear()
        self.cleared = True
        self.deliver()

    @step(count_max=st.integers(1, 3))
    def reap(self, count_max):
        cut = [obj for obj in self.live.values() if obj.cut]
        more = self.master.reap(count_max, self.now)
        reaped = [obj for obj in cut if obj.replica.state is not ReplicaState.COMPLETE]
        assert len(reaped) == min(count_max, len(cut))
        assert more is (len(cut) > count_max)
        for obj in reaped:
            assert obj.replica.state is (ReplicaState.STASHED if obj.handles else ReplicaState.GONE)
            obj.cut = False
            self.settle(obj)
        self.deliver()

    # -- pins ----------------------------------------------------------------------------------------------------

    @step(key=keys, ttl=st.sampled_from([None, 0, TTL_MAX, TTL_MAX + 1, "unpin"]))
    def pin(self, key, ttl):
        try:
            answer = self.master.unpin(key) if ttl == "unpin" else self.master.pin(key, ttl, self.now)
        except Refusal as refusal:
            answer = refusal.code
        if key not in self.shown:
            assert answer is (Code.NOT_READY if key in self.written else Code.NOT_FOUND)
        elif ttl == TTL_MAX + 1:
            assert answer is Code.INVALID_ARGUMENT
        else:
            assert answer is None
            self.shown[key].soft = ttl in (None, TTL_MAX)

    # -- time, waiters, sessions ---------------------------------------------------------------------------------

    @step(ns=st.sampled_from([0, 1, 5, 5, 12]))
    def tick(self, ns):
        self.now += ns
        self.ticked = True
        self.master.tick(self.now)
        self.deliver()

    @step(pick=picks, twice=st.booleans())
    def cancel(self, pick, twice):
        if not self.waiting:
            return
        entry = self.waiting.pop(pick % len(self.waiting))
        for _ in range(1 + twice):
            self.master.cancel(entry.waiter)
        self.deliver()

    @step(i=sessions, rarely=st.integers(0, 1))
    def die(self, i, rarely):
        if rarely:
            return
        session = self.session(i)
        self.master.end_session(session, self.now)
        self.gone(session)
        self.open.remove(session)
        self.dead.append(session)
        self.open.append(self.master.open_session("next", 99))
        self.deliver()

    def gone(self, session):
        self.waiting = [entry for entry in self.waiting if entry.waiter.session is not session]
        for obj in self.reservations(session):
            self.give_up(obj)
        for handle_id in self.handles(session):
            self.let_go(session, handle_id)

    # -- calls that come late, twice, or from strangers ------------------------------------------------------------

    def anyone(self, i):
        return [*self.open, *self.dead][i % (len(self.open) + len(self.dead))]

    @step(i=picks, pick=picks, call=st.sampled_from(["put_end", "put_end_and_acquire", "put_revoke"]))
    def end_late_or_as_a_stranger(self, i, pick, call):
        """What is no reservation of the caller's (any more) is refused, and changes nothing."""
        if not self.past:
            return
        caller, replica_id = self.anyone(i), self.past[pick % len(self.past)]
        if replica_id not in self.live or self.live[replica_id].writer is not caller:
            with pytest.raises(Refusal) as caught:
                getattr(self.master, call)(caller, replica_id, self.now)
            assert caught.value.code is Code.ILLEGAL_CLIENT
            assert self.master.outbox == []

    @step(i=picks, first=st.integers(0, 12), count=st.integers(1, 3))
    def release_twice_or_as_a_stranger(self, i, first, count):
        """Whatever ids a client names: its live ones go, all others change nothing."""
        caller, handle_ids = self.anyone(i), [*range(first, first + count)] * 2
        self.master.release(caller, handle_ids, self.now)
        for handle_id in handle_ids:
            self.let_go(caller, handle_id)
        self.deliver()

    @step(pick=picks)
    def die_again(self, pick):
        if not self.dead:
            return
        self.master.end_session(self.dead[pick % len(self.dead)], self.now)
        assert self.master.outbox == []

    @rule(call=st.deferred(lambda: st.sampled_from(sorted(STEPS)).flatmap(STEPS.__getitem__)))
    def do(self, call):
        name, arguments = call
        getattr(self, name)(**arguments)

    # -- what must hold at any time ------------------------------------------------------------------------------

    @invariant()
    def the_master_agrees_with_itself(self):
        check_invariants(self.master)

    @invariant()
    def every_key_shows_what_was_promised(self):
        for key in [*KEYS, FILL]:
            if key in self.shown:
                assert self.master.readable(key) is self.shown[key].replica
            else:
                with pytest.raises(Refusal) as caught:
                    self.master.readable(key)
                assert caught.value.code is (Code.NOT_READY if key in self.written else Code.NOT_FOUND)
        scan = Scan(self.master.table, "a")
        found = scan.next(len(KEYS) + 1)
        assert scan.done
        assert {r.key: r.replica_id for r in found} == {
            key: obj.replica.replica_id for key, obj in self.shown.items() if key.startswith("a")
        }

    @invariant()
    def exactly_the_promised_bytes_are_taken(self):
        facts = stats(self.master)
        assert facts["pool"]["bytes_used"] == len(self.used_pages()) * PAGE
        nameless = [obj for obj in self.live.values() if obj not in self.named()]
        stash = [obj for obj in nameless if obj.writer is None]
        doomed = [obj for obj in nameless if obj.writer and self.written.get(obj.put.key) is not obj]
        assert facts["stash"] == {"objects": len(stash), "bytes": sum(obj.nbytes for obj in stash)}
        assert facts["pool"]["doomed_bytes"] == sum(obj.nbytes for obj in doomed)
        assert facts["unpublished"] == len(self.written) + len(doomed)
        assert facts["objects"] == len(self.shown)
        assert facts["handles"] == sum(len(obj.handles) for obj in self.live.values())
        assert facts["clients"] == len(self.open)
        assert facts["waiting"] == len(self.waiting)
        assert facts["pinned"] == {
            "soft_bytes": sum(obj.nbytes for obj in self.named() if obj.soft),
            "hard_bytes": self.hard_nbytes(),
        }

    @invariant()
    def the_next_deadline_is_that_of_a_waiter(self):
        assert self.master.next_deadline_ns() == min((entry.waiter.deadline_ns for entry in self.waiting), default=None)

    @invariant()
    def the_holders_of_a_key_are_those_with_handles(self):
        for key in [*KEYS, FILL]:
            counted = {
                (report.session.session_id, report.replica.replica_id): report.handles
                for report in holders(self.master, key)
            }
            expected: dict[tuple[int, int], int] = {}
            for obj in self.live.values():
                for sid, _ in obj.handles if obj.put.key == key else ():
                    slot = (sid, obj.replica.replica_id)
                    expected[slot] = expected.get(slot, 0) + 1
            assert counted == expected

    def teardown(self):
        """When all have gone and all is cleared and reaped, nothing is left."""
        for session in self.open:
            self.master.end_session(session, self.now)
        self.master.clear(self.now)
        while self.master.reap(2, self.now):
            pass
        check_invariants(self.master)
        assert self.master.space.bytes_used == 0
        assert self.master.handle_count == 0
        assert len(self.master.waiting) == 0
        assert self.master.next_deadline_ns() is None
        assert self.master.table.all_replicas() == []


def run(**how):
    limits = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], report_multiple_bugs=False, **how)
    run_state_machine_as_test(MasterMachine, settings=limits)


def test_master_does_as_the_model_says():
    run(max_examples=200, stateful_step_count=70, derandomize=True)


@pytest.mark.long
def test_master_does_as_the_model_says_at_length():
    run(max_examples=5000, stateful_step_count=100)
