"""What must hold between any two calls of the local master, whatever they were."""

from collections import Counter

from hypothesis.stateful import RuleBasedStateMachine, invariant

from mooncake_client.codes import Code
from mooncake_node.core.audit import check_invariants
from mooncake_node.core.jobs import Load, Offload
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.replica import ReplicaState
from mooncake_node.core.report import holders, stats
from mooncake_node.core.scan import Scan
from tests.stateful.promises import IN_MEMORY
from tests.stateful.setups import FILL, KEYS, PAGE
from tests.stateful.tier import name_of
from tests.stateful.waiters import Waiters


class Checked(Waiters, RuleBasedStateMachine):
    """The model, and its checks of the master after each step."""

    @invariant()
    def the_master_agrees_with_itself(self):
        check_invariants(self.master)
        assert self.master.jobs == []
        assert self.master.outbox == []

    @invariant()
    def nothing_pinned_is_touched_and_what_is_not_pinned_is_not_kept_for_ever(self):
        self.readers.check(self.master)
        index = self.master.objects.index
        unpinned = {replica_id for replica_id, r in index.kept.items() if not self.readers.holders(r)}
        assert index.sweep_due or unpinned <= self.untold

    @invariant()
    def every_key_shows_what_was_promised(self):
        for key in [*KEYS, FILL]:
            found, obj = self.readable(key), self.shown.get(key)
            if obj is None:
                assert found is self.code_of(key)
                continue
            assert found is obj.replica
            if obj.in_memory:
                assert found.state in IN_MEMORY
                assert found.offset == obj.offset
                assert (found.state is ReplicaState.ISOLATED) == obj.offloaded
            else:
                assert found.state is ReplicaState.ON_DISK
                assert obj.name in self.tier.records, "readable from nowhere"
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
        nameless = self.nameless()
        stash = [obj for obj in nameless if obj.writer is None]
        doomed = [obj for obj in nameless if obj.writer and self.written.get(obj.put.key) is not obj]
        doomed += [job.replica for job in self.rooms.values() if not self.is_wanted(job)]
        assert facts["stash"] == {"objects": len(stash), "bytes": sum(obj.nbytes for obj in stash)}
        assert facts["pool"]["doomed_bytes"] == sum(obj.nbytes for obj in doomed)
        assert facts["unpublished"] == len(self.written) + len(doomed)
        assert facts["objects"] == len(self.shown)
        assert facts["handles"] == sum(len(obj.handles) for obj in self.live.values()) + len(self.readers.live)
        assert facts["clients"] == len(self.open)
        assert facts["pinned"] == {
            "soft_bytes": sum(obj.nbytes for obj in self.named() if obj.soft),
            "hard_bytes": self.hard_nbytes(),
        }

    @invariant()
    def leases_are_counted(self):
        leases = [expiry for obj in self.live.values() for expiry in obj.leases.values()]
        running = sum(expiry > self.now for expiry in leases)
        assert running <= stats(self.master)["leases"] <= len(leases)

    @invariant()
    def loads_and_those_who_wait_are_counted(self):
        facts, waiting = stats(self.master), self.loads_waiting(self.waiting)
        assert facts["load"]["under_way"] == len(waiting) + sum(map(self.is_wanted, self.rooms.values()))
        assert facts["waiting"] == len(self.waiting) + len(waiting)

    @invariant()
    def the_tier_has_what_was_promised_and_nothing_else(self):
        facts, copied = stats(self.master)["offload"], [obj for obj in self.named() if obj.copied]
        assert (facts["objects"], facts["bytes"]) == (len(copied), sum(obj.nbytes for obj in copied))
        assert facts["bytes"] <= self.config.tier_nbytes_max
        assert facts["only_on_disk"] == sum(not obj.in_memory for obj in self.named())
        promised = {obj.name for obj in self.shown.values() if obj.copied}
        assert promised <= set(self.tier.records)
        if not self.tier.deletions:
            assert promised == set(self.tier.records), "something came back"

    def is_wanted(self, job):
        """Somebody will get what that load brings."""
        obj = self.shown.get(job.replica.key)
        return obj is not None and obj.name == name_of(job.replica)

    @invariant()
    def the_timer_rings_in_time(self):
        events = [entry.waiter.deadline_ns for entry in self.waiting]
        events += [max(obj.leases.values()) for obj in self.live.values() if self.leased(obj)]
        events += [obj.soft_until for obj in self.shown.values() if obj.soft and obj.soft_until is not None]
        if events:
            assert self.master.next_deadline_ns(self.now) <= min(events)

    @invariant()
    def the_holders_of_a_key_are_those_with_handles(self):
        for key in [*KEYS, FILL]:
            counted = Counter()
            for report in holders(self.master, key):
                counted[report.session.session_id, report.replica.replica_id] += report.handles
            named = [obj for obj in self.live.values() if obj.put.key == key]
            expected = Counter((sid, obj.replica.replica_id) for obj in named for sid, _ in obj.handles)
            expected += Counter((pin.session_id, pin.replica.replica_id) for pin in self.pins_shown(key))
            assert counted == expected

    def teardown(self):
        """When all have gone, every job has ended and all is cleared and reaped, nothing is left."""
        for session in self.open:
            self.master.end_session(session, self.now)
        self.now += 1_000
        self.master.tick(self.now)
        self.master.clear(self.now)
        while self.master.reap(2, self.now):
            pass
        for write in self.tier.writes:
            self.master.offload_done(write.job.replica, None, self.now)
        jobs, self.master.jobs[:] = [*self.rooms.values(), *self.master.jobs], []
        for job in jobs:
            if isinstance(job, Offload):
                self.master.offload_done(job.replica, None, self.now)
            elif isinstance(job, Load):
                self.master.load_done(job.replica, Refusal(Code.TRANSFER_FAILED, "failed"), self.now)
        check_invariants(self.master)
        assert self.master.space.bytes_used == 0
        facts = stats(self.master)
        assert facts["handles"] == facts["leases"] == facts["offload"]["bytes"] == 0
        assert len(self.master.waiting) == 0
        assert self.master.next_deadline_ns(self.now) is None
        assert self.master.table.all_replicas() == []
