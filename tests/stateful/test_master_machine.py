"""The whole local master against a model that knows only what was promised, and to whom.

The model is in `promises` (what must be so), `waiters` (who must be told what), `tier` (what lies on disk) and `checks`
(what must hold at any time). What the master answers is either exactly what the model says, or (for those who waited,
and where reclaim may choose) one of the outcomes the model allows at that moment. The steps of clients are in
`clients`. Calls that come late, twice or from strangers are steps like any other, and so are jobs that end late, badly,
or after what they were for is gone.
"""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from mooncake_client.codes import Code
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.waiting import PutMode
from tests.stateful.clients import STEPS, Clients, picks, sessions, step
from tests.stateful.setups import PAGE, Setup
from tests.stateful.tier import name_of

SETUPS = {
    "no_tier": Setup(),
    "tier": Setup(tier=3, free=(0, 1, 2)),
    "all_offloaded": Setup(tier=3, free=(1, 2, 3), offload_unpinned=True),
    "windows": Setup(unit=16 * PAGE, tier=4, free=(1, 1, 2)),
}


class MasterMachine(Clients):
    """The steps of clients, and those of the shell: jobs, the timer, the death of clients."""

    def __init__(self):
        super().__init__()
        if self.setup.tier:
            self.adopt("a", self.unit, self.now + 15)

    # -- jobs ----------------------------------------------------------------------------------------------------

    @step(pick=picks)
    def begin_write(self, pick):
        if self.tier.writes:
            self.tier.begin(self.tier.writes[pick % len(self.tier.writes)], self.master)

    @step(weight=4, pick=picks, well=st.sampled_from([True, True, True, False]))
    def end_write(self, pick, well):
        """Early or late, well or not, and whatever became of the object meanwhile."""
        if not self.tier.writes:
            return
        write = self.tier.writes[pick % len(self.tier.writes)]
        self.tier.begin(write, self.master)
        record = self.tier.end(write, well=well)
        obj = self.live[write.job.replica.replica_id]
        self.master.offload_done(obj.replica, record, self.now)
        obj.offloaded = False
        obj.copied = record is not None and self.shown.get(obj.put.key) is obj
        self.settle(obj)
        self.deliver()

    @step(weight=4, pick=picks, how=st.sampled_from(["well", "well", "well", "failed", "gone"]))
    def end_read(self, pick, how):
        if not self.rooms:
            return
        job = [*self.rooms.values()][pick % len(self.rooms)]
        obj = self.shown.get(job.replica.key)
        if obj is None or obj.name != name_of(job.replica):
            obj = None  # given up; nothing that comes of it counts
        elif how == "well":
            assert self.tier.records[obj.name] == job.record
        elif how == "gone":
            del self.tier.records[obj.name]
        failure = None if how == "well" else Refusal(Code.TRANSFER_FAILED, how)
        self.master.load_done(job.replica, failure, self.now, gone=how == "gone")
        del self.rooms[job.replica.replica_id]
        if obj is not None:
            self.was_read(obj, job, how)
        self.deliver()

    def was_read(self, obj, job, how):
        key = obj.put.key
        if how == "well":
            obj.replica, obj.offset, obj.in_memory = job.replica, job.replica.offset, True
            self.live[obj.replica.replica_id] = obj
            self.published.add(key)
        elif how == "failed":
            self.failed[key] = Code.TRANSFER_FAILED
        else:
            self.failed[key] = Code.OBJECT_LOST if obj.soft else Code.NOT_FOUND
            if obj.soft:
                self.lost.add(key)
            self.unname(obj)

    @step(weight=2, pick=picks)
    def end_deletion(self, pick):
        if self.tier.deletions:
            self.tier.delete(self.tier.deletions[pick % len(self.tier.deletions)])

    @step(pick=picks)
    def rescue(self, pick):
        unsaved = self.master.unsaved()
        expected = [obj for obj in self.shown.values() if obj.soft and not obj.copied]
        assert {id(replica) for replica in unsaved} == {id(obj.replica) for obj in expected}
        if not unsaved:
            return
        self.may_rescue = expected[pick % len(expected)]
        self.may_drop = True  # what is on disk, for another copy
        was = self.may_rescue.offloaded
        begun = self.master.rescue(self.may_rescue.replica, self.now)
        assert begun <= (self.config.tier_nbytes_max > 0)
        self.learn()
        assert self.may_rescue.offloaded is (was or begun)
        self.deliver()

    # -- time, waiters, sessions ---------------------------------------------------------------------------------

    @step(ns=st.integers(1, 5))
    def idle(self, ns):
        """The timer is late."""
        self.now += ns

    @step(weight=4, ns=st.sampled_from([0, 1, 5, 5, 12]), till_done=st.booleans())
    def tick(self, ns, till_done):
        self.now += ns
        self.tick_once()
        if not till_done:
            return
        for _ in range(100):
            if self.master.next_deadline_ns(self.now) != 0:
                break
            self.tick_once()
        else:
            raise AssertionError("reclaim never comes to rest")
        head = self.master.waiting.head
        if not self.tier.writes and head is not None:
            upserts = head.put is not None and head.put.mode is PutMode.UPSERT
            replaced = self.shown.get(head.key) if upserts else None
            assert self.can_go(surely=True, replaced=replaced) == [], "somebody waits for room beside what could go"

    def tick_once(self):
        self.ticked = True
        self.may_drop |= self.free_nbytes() < self.config.free_high_nbytes
        self.master.tick(self.now)
        self.look_at_the_clock()
        self.deliver()

    @step(pick=picks, twice=st.booleans())
    def cancel(self, pick, twice):
        if not self.waiting:
            return
        entry = self.waiting.pop(pick % len(self.waiting))
        for _ in range(1 + twice):
            self.master.cancel(entry.waiter, self.now)
        self.deliver()

    @step(i=sessions, rarely=st.integers(0, 2))
    def die(self, i, rarely):
        if rarely:
            return
        session = self.session(i)
        self.master.end_session(session, self.now)
        self.waiting = [entry for entry in self.waiting if entry.waiter.session is not session]
        for obj in self.reservations(session):
            self.give_up(obj)
        for handle_id in self.handles(session):
            self.let_go(session, handle_id)
        self.untold.clear()  # the end of a row is a look at all of them
        self.settle_all()
        self.open.remove(session)
        self.dead.append(session)
        self.open.append(self.master.open_session("next", 99))
        self.deliver()

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
            assert self.call(call, caller, replica_id, self.now) is Code.ILLEGAL_CLIENT
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


def run(setup, **how):
    limits = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], report_multiple_bugs=False, **how)
    machine = type("Machine", (MasterMachine,), {"setup": SETUPS[setup]})
    run_state_machine_as_test(machine, settings=limits)


@pytest.mark.parametrize("setup", SETUPS)
def test_master_does_as_the_model_says(setup):
    run(setup, max_examples=60, stateful_step_count=70, derandomize=True)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("setup", SETUPS)
def test_master_does_as_the_model_says_at_length(setup):
    run(setup, max_examples=600, stateful_step_count=100)
