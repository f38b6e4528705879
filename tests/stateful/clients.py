"""What clients and remote readers do to the local master, each step with what the model says comes of it."""

from operator import attrgetter

from hypothesis import strategies as st

from mooncake_client.codes import Code
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.replica import PLAIN, Replica, ReplicaState
from mooncake_node.core.waiting import Put, PutMode, Want
from tests.stateful.checks import Checked
from tests.stateful.promises import IN_MEMORY
from tests.stateful.setups import CONTRACTS, FILL, KEYS, LEASE_TTL, LIMITS, PAGE, TTL_MAX, Setup

sessions = st.integers(0, 2)
keys = st.sampled_from(KEYS)
sizes = st.integers(0, len(Setup().sizes) - 1)  # one of the setup's
timeouts = st.sampled_from([0, 5, 30, 30])
picks = st.integers(0, 1 << 16)  # one of those there are, whatever their number

STEPS: dict[str, st.SearchStrategy] = {}


def step(weight=1, **arguments):
    """A rule of the machine.

    Not Hypothesis's own, since that leaves out about half of the rules in each run: what goes wrong here needs a put, a
    get, a remove and a release to come together.
    """

    def register(method):
        calls = st.tuples(st.just(method.__name__), st.fixed_dictionaries(arguments))
        STEPS.update({f"{method.__name__}/{n}": calls for n in range(weight)})
        return method

    return register


class Clients(Checked):
    """Puts, gets, leases, removals and pins."""

    def contended(self, key):
        """A key that is being written, or else one that has to be brought back."""
        on_disk = [key for key, obj in self.shown.items() if not obj.in_memory]
        return min(self.written, default=min(on_disk, default=key))

    def session(self, i):
        return self.open[i % len(self.open)]

    def call(self, method, *args):
        """What the master answers, or the code of its refusal; the model hears of what it chose."""
        try:
            return attrgetter(method)(self.master)(*args)
        except Refusal as refusal:
            return refusal.code

    # -- put -----------------------------------------------------------------------------------------------------

    @step(
        weight=4, i=sessions, key=keys, size=sizes, mode=st.sampled_from(PutMode),
        contract=st.sampled_from(CONTRACTS), timeout=st.none() | timeouts, contend=st.booleans(),
    )  # fmt: skip
    def put_start(self, i, key, size, mode, contract, timeout, contend):
        nbytes = self.setup.sizes[size]
        self.start(i, self.contended(key) if contend else key, nbytes, mode, contract, timeout)

    def start(self, i, key, nbytes, mode, contract, timeout):
        session = self.session(i)
        put = Put(key=key, nbytes=nbytes, contract=contract, mode=mode)
        shown = self.shown.get(key)
        over_a_limit = self.over_a_limit(session, put)
        fits = self.fits(nbytes)
        replaced = shown if mode is PutMode.UPSERT else None
        fits_at_most = fits or self.fits(nbytes, without=self.can_go(replaced=replaced))
        # One pass after the other frees slots as they are cold, not as they lie.
        fits_at_least = fits or (
            nbytes >= PAGE and self.fits(nbytes, without=self.can_go(surely=True, replaced=replaced))
        )
        if shown is None or mode is PutMode.UPSERT:
            self.may_need_room(nbytes)
        elif mode is PutMode.PUT_OR_ACQUIRE and not shown.in_memory:
            self.may_need_room(shown.nbytes)
        answer = self.call("put_start", session, put, self.now, None if timeout is None else self.now + timeout)
        self.learn()
        if replaced is not None and not self.waiting:
            assert self.shown.get(key) is replaced, "dropped for the sake of what may not come"
        if (contract.softpin_ttl_ns or 0) > TTL_MAX:
            assert answer is Code.INVALID_ARGUMENT
        elif shown is not None and mode is PutMode.PUT:
            assert answer is Code.EXISTS
        elif shown is not None and mode is PutMode.PUT_OR_ACQUIRE:
            if len(self.handles(session)) >= LIMITS["handles_max"]:
                assert answer is Code.INVALID_ARGUMENT
            elif shown.in_memory:
                self.held(session, shown, answer)
            else:
                self.expect_to_wait(answer, timeout, Want.LOAD, self.code_of_load(key))
        elif key in self.written:
            self.expect_to_wait(answer, timeout, Want.TURN, Code.NOT_READY)
        elif over_a_limit:
            assert answer is Code.NO_SPACE
        elif fits_at_least or (fits_at_most and isinstance(answer, Replica)):
            self.reserved(session, put, answer)
        else:
            self.expect_to_wait(answer, timeout, Want.ROOM, Code.NO_SPACE)
        self.deliver()

    def expect_to_wait(self, answer, timeout, want, too_late):
        if timeout is None:
            assert answer is want
        elif timeout == 0:
            assert answer is too_late
        elif self.queue_full:
            assert answer is Code.NOT_READY
        else:
            self.entered(answer, "put", want)

    @step(weight=3, i=sessions, key=keys, size=sizes, contract=st.sampled_from(CONTRACTS), acquire=st.booleans())
    def store(self, i, key, size, contract, acquire):
        self.put_whole(i, key, self.setup.sizes[size], contract, acquire=acquire)

    def put_whole(self, i, key, nbytes, contract, *, acquire):
        """A put from its start to its end, if nothing is in its way."""
        self.start(i, key, nbytes, PutMode.UPSERT, contract, None)
        obj = self.written.get(key)
        if obj is not None and obj.writer is self.session(i):
            self.end(obj, acquire=acquire)

    @step(i=sessions, leave=st.integers(0, 1), contract=st.sampled_from(CONTRACTS), acquire=st.booleans())
    def fill(self, i, leave, contract, acquire):
        """Leave as little room as there can be, so that others have to wait for it."""
        if not self.fits(self.unit):
            return
        units = max(n for n in range(1, self.setup.units + 1) if self.fits(n * self.unit))
        self.put_whole(i, FILL, max(1, units - leave) * self.unit, contract, acquire=acquire)

    @step(weight=3, i=sessions, contract=st.sampled_from(CONTRACTS), units=st.integers(1, 3))
    def crowd(self, i, contract, units):
        """Fill the pool with many objects, then ask for the room of several."""
        for key in [*KEYS, FILL]:
            if key not in self.shown and key not in self.written and self.fits(self.unit):
                self.put_whole(i, key, self.unit, contract, acquire=False)
        self.start(i, KEYS[units - 1], units * self.unit, PutMode.UPSERT, contract, 30)

    @step(weight=4, pick=picks, acquire=st.booleans())
    def put_end(self, pick, acquire):
        if self.writers():
            self.end(self.writers()[pick % len(self.writers())], acquire=acquire)

    def end(self, obj, *, acquire):
        session = obj.writer
        doomed = self.written.get(obj.put.key) is not obj
        full = acquire and len(self.handles(session)) >= LIMITS["handles_max"]
        method = "put_end_and_acquire" if acquire else "put_end"
        answer = self.call(method, session, obj.replica.replica_id, self.now)
        if full:
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
        self.deliver()

    @step(weight=2, i=sessions, size=sizes, count=st.integers(1, 3))
    def put_start_all(self, i, size, count):
        """Room for several in one step; where that cannot be, nothing has happened."""
        session, nbytes = self.session(i), self.setup.sizes[size]
        puts = [Put(key=key, nbytes=nbytes, contract=PLAIN) for key in KEYS[:count]]
        answer = self.call("begin_all", session, puts, self.now)
        if isinstance(answer, list):
            for put, replica in zip(puts, answer, strict=True):
                assert put.key not in self.shown
                assert put.key not in self.written
                self.reserved(session, put, replica)
        else:
            assert answer in (None, Code.NO_SPACE)
        self.deliver()

    @step(weight=2, i=sessions)
    def put_end_all(self, i):
        """As one after the other, or nothing has happened."""
        session = self.session(i)
        ended = self.reservations(session)
        if ended and self.call("end_all", session, [obj.replica.replica_id for obj in ended], self.now) is not None:
            for obj in ended:
                self.publish(obj)
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
        weight=5, i=sessions, key=keys, timeout=timeouts, contend=st.booleans(),
        presence=st.sampled_from([False, False, True]),
    )  # fmt: skip
    def get(self, i, key, timeout, contend, presence):
        key = self.contended(key) if contend else key
        ask = self.wait if presence else self.acquire
        ask(self.session(i), key, timeout)
        self.deliver()

    def acquire(self, session, key, timeout):
        obj = self.shown.get(key)
        if obj is not None and not obj.in_memory:
            self.may_need_room(obj.nbytes)
        answer = self.call("acquire", session, key, self.now, self.now + timeout)
        if obj is not None and len(self.handles(session)) >= LIMITS["handles_max"]:
            assert answer is Code.INVALID_ARGUMENT
        elif obj is not None and obj.in_memory:
            self.held(session, obj, answer)
        elif obj is None and key not in self.written:
            assert answer is self.code_of(key)
        elif timeout == 0:
            assert answer is (self.code_of_load(key) if obj is not None else Code.NOT_READY)
        elif self.queue_full:
            assert answer is Code.NOT_READY
        else:
            self.learn()
            self.entered(answer, "read")

    def code_of_load(self, key):
        """What one is told whose time is up while *key* is to be brought back."""
        return Code.NO_SPACE if key in self.loads_waiting(self.waiting) else Code.NOT_READY

    def wait(self, session, key, timeout):
        answer = self.call("wait", session, key, self.now, self.now + timeout)
        if key in self.shown:
            assert answer is None
        elif timeout == 0:
            assert answer is Code.TIMEOUT
        elif self.queue_full:
            assert answer is Code.NOT_READY
        else:
            self.entered(answer, "presence")

    @step(weight=4, pick=picks)
    def release_one(self, pick):
        held = sorted(holder for obj in self.live.values() for holder in obj.handles)
        if not held:
            return
        session_id, handle_id = held[pick % len(held)]
        [session] = [session for session in self.open if session.session_id == session_id]
        self.master.release(session, [handle_id], self.now)
        self.let_go(session, handle_id)
        self.deliver()

    # -- the shared index ----------------------------------------------------------------------------------------

    @step(weight=4, i=sessions, key=keys, contend=st.booleans())
    def look(self, i, key, contend):
        """A get by way of the index, which the master does not hear of."""
        key = min(self.shown, default=key) if contend else key
        obj = self.shown.get(key)
        pin = self.readers.pin(self.session(i), key)
        if obj is not None and obj.in_memory and obj.replica.record >= 0:
            assert pin.replica is obj.replica
            assert pin.place == (obj.offset, obj.nbytes)
        else:
            assert pin is None
            assert obj is None or self.readers.unlisted, "a reader would take it for not there"

    @step(weight=4, pick=picks, told=st.sampled_from([True, True, False]))
    def unpin(self, pick, told):
        """The views are dead; the daemon is told if that is wanted, unless that comes late or never."""
        if not self.readers.live:
            return
        pin = self.readers.live[pick % len(self.readers.live)]
        if self.readers.unpin(pin):
            self.untold.add(pin.replica.replica_id)
            if told:
                self.nudge()

    @step()
    def nudge(self):
        """Whether there is anything to tell or not."""
        self.master.unpinned(self.now)
        self.untold.clear()
        self.settle_all()
        self.deliver()

    # -- leases --------------------------------------------------------------------------------------------------

    @step(weight=3, key=keys, again=st.booleans())
    def grant_lease(self, key, again):
        key = self.tokens[-1][0] if again and self.tokens else key
        answer = self.call("peers.get_replica_list", key, self.now)
        obj = self.shown.get(key)
        if obj is None:
            assert answer is self.code_of(key)
        elif obj.in_memory:
            replica, token = answer
            assert replica is obj.replica
            assert token not in {old for _, _, old in self.tokens}
            obj.leases = {old: expiry for old, expiry in obj.leases.items() if expiry > self.now}
            obj.leases[token] = self.now + LEASE_TTL
            self.tokens.append((key, replica.replica_id, token))
        else:
            assert answer == (obj.replica, 0)
        self.deliver()

    @step(weight=3, picks=st.tuples(picks, picks, picks), foreign=st.sampled_from([False, False, True]))
    def release_lease(self, picks, foreign):
        """Of one of the youngest leases, which may have ended, or of a mixture of several."""
        if not self.tokens:
            return
        tokens = self.tokens[-5:]
        key, replica_id, token = (
            tokens[pick % len(tokens)][place] for place, pick in enumerate(picks if foreign else [picks[0]] * 3)
        )
        self.master.peers.release_lease(key, replica_id, token, self.now)
        obj = self.live.get(replica_id)
        if obj is not None and obj.put.key == key and obj.leases.get(token, 0) > self.now:
            del obj.leases[token]
            obj.leases = {old: expiry for old, expiry in obj.leases.items() if expiry > self.now}
            self.settle(obj)
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
            self.unname(self.shown[key])
        self.lost.discard(key)
        self.deliver()

    @step(rarely=st.integers(0, 2))
    def clear(self, rarely):
        if rarely:
            return
        assert self.master.clear(self.now) == len(self.shown)
        self.cut_off = [*self.cut(), *self.shown.values()]
        for obj in self.shown.values():
            obj.cut = True
        self.shown.clear()
        self.written.clear()
        self.lost.clear()
        self.tier.clear()
        self.cleared = True
        self.deliver()

    @step(count_max=st.integers(1, 3))
    def reap(self, count_max):
        cut = self.cut()
        more = self.master.reap(count_max, self.now)
        reaped = [obj for obj in cut if obj.replica.state not in (*IN_MEMORY, ReplicaState.ON_DISK)]
        assert len(reaped) == min(count_max, len(cut))
        assert more is (len(cut) > count_max)
        for obj in reaped:
            stays = self.kept(obj) or obj.offloaded or obj.replica.pinned
            assert obj.replica.state is (ReplicaState.STASHED if stays else ReplicaState.GONE)
            obj.cut = obj.copied = False
            self.settle(obj)
        self.deliver()

    # -- pins ----------------------------------------------------------------------------------------------------

    @step(weight=2, key=keys, ttl=st.sampled_from([None, 0, 10, TTL_MAX, TTL_MAX + 1, "unpin", "unpin"]))
    def pin(self, key, ttl):
        answer = self.call("unpin", key, self.now) if ttl == "unpin" else self.call("pin", key, ttl, self.now)
        if key not in self.shown:
            assert answer is self.code_of(key)
        elif ttl == TTL_MAX + 1:
            assert answer is Code.INVALID_ARGUMENT
        else:
            assert answer is None
            self.pinned(self.shown[key], 0 if ttl == "unpin" else ttl)
        self.deliver()
