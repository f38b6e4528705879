"""Those who were told to wait: each gets exactly one outcome, one that fits what has happened, in time and in order."""

import msgspec

from mooncake_client.codes import Code
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.replica import Replica
from mooncake_node.core.sessions import Handle
from mooncake_node.core.waiting import PutMode, Waiter, Want
from tests.stateful.promises import Promises
from tests.stateful.setups import LIMITS, PAGE


class Waiting(msgspec.Struct, eq=False):
    """Someone who was told to wait."""

    waiter: Waiter
    want: str  # "read" | "presence" | "put"
    first: Want  # what a put waited for when it came


class Waiters(Promises):
    """The promises, and those who wait for them to change."""

    def __init__(self):
        super().__init__()
        self.waiting: list[Waiting] = []  # in order of arrival

    def entered(self, answer, want, first=None):
        assert isinstance(answer, Waiter)
        self.waiting.append(Waiting(answer, want, first or answer.want))

    @property
    def queue_full(self):
        return len(self.waiting) + len(self.loads_waiting(self.waiting)) >= LIMITS["waiters_max"]

    def learn(self):
        # Any of them may be given room in any step, and reclaim runs for it.
        self.may_drop |= any(entry.want == "put" or entry.waiter.want is Want.LOAD for entry in self.waiting)
        super().learn()

    def deliver(self):
        """Check what those who waited were told, and that nobody waits without need."""
        self.learn()
        outbox, self.master.outbox[:] = self.master.outbox[:], []
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
        for entry in self.waiting:
            self.check_still_waits(entry)
        self.begin_step()

    def check_presence(self, waiter, outcome):
        if isinstance(outcome, Refusal):
            assert outcome.code is Code.TIMEOUT
            assert self.late(waiter)
        else:
            assert outcome is None
            assert waiter.key in self.published

    def check_read(self, waiter, outcome):
        key = waiter.key
        if isinstance(outcome, Handle):
            assert key in self.published
            self.held(waiter.session, self.shown[key], outcome)
            assert len(self.handles(waiter.session)) <= LIMITS["handles_max"]
        elif outcome.code is Code.INVALID_ARGUMENT:
            assert key in self.published
            assert len(self.handles(waiter.session)) == LIMITS["handles_max"]
        elif key in self.failed:
            assert outcome.code is self.failed[key]
        elif outcome.code is Code.NOT_READY:
            assert self.late(waiter)
        elif outcome.code is Code.NO_SPACE:
            assert self.late(waiter)
            assert waiter.want is Want.LOAD
        else:
            assert outcome.code is Code.NOT_FOUND
            assert self.cleared or (key in self.freed_keys | self.removed and key not in self.written)

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
        elif outcome.code is Code.TRANSFER_FAILED:
            assert put.mode is PutMode.PUT_OR_ACQUIRE
            assert outcome.code is self.failed[key]
        elif outcome.code is Code.NOT_READY:
            assert self.late(waiter)
            assert key in self.written or waiter.want is Want.LOAD
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
            if earlier.want != "put" or earlier.waiter.number > entry.waiter.number:
                continue
            other = earlier.waiter.put
            # One that waits for a load takes no room yet. Of slots one pass of reclaim may free too few for the first.
            if other.nbytes != put.nbytes or other.nbytes < PAGE or earlier.first is Want.LOAD:
                continue
            assert other.key != put.key, "a later put took the turn"
            # Those of a key that has become free are looked at first.
            if earlier.first is entry.first is Want.ROOM and put.key not in self.freed_keys | self.removed:
                assert other.key in self.written, "a later put took the room"

    def check_still_waits(self, entry):
        waiter = entry.waiter
        key = waiter.key
        assert waiter.open
        assert not self.cleared or entry.want == "presence"
        assert not self.late(waiter)
        if entry.want == "presence":
            assert key not in self.shown
        elif waiter.want is Want.LOAD:
            obj = self.shown[key]
            assert not obj.in_memory
            assert self.is_loaded(obj) or not self.fits(obj.nbytes), "a load waits beside room for it"
        elif entry.want == "read":
            assert key not in self.shown
            assert key in self.written
        else:
            assert key not in self.shown or waiter.put.mode is PutMode.UPSERT
            assert key in self.written or not self.fits(waiter.put.nbytes), "a put waits beside room for it"
