"""Several local masters and a directory: whatever comes late, twice, in another order or never, nobody is served what
was removed, replaced or cleared before they asked (SPEC 6, rules 1, 2, 4, 6, 8).

The masters are real, and so is the directory's model in memory; the shell between them is in `cluster`, `cluster_node`
and `cluster_lives`.
"""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from mooncake_node.core.replica import ReplicaState
from mooncake_node.core.waiting import PutMode
from tests.stateful.cluster import MS, Cluster
from tests.stateful.cluster_node import LEASE_TTL, Node

NODES = ("n1", "n2", "n3")
nodes = st.sampled_from(NODES)
keys = st.sampled_from(["a", "b"])
picks = st.integers(0, 1 << 16)

STEPS: dict[str, st.SearchStrategy] = {}


def step(weight=1, **arguments):
    """A rule of the machine; see `clients.step`."""

    def register(method):
        calls = st.tuples(st.just(method.__name__), st.fixed_dictionaries(arguments))
        STEPS.update({f"{method.__name__}/{n}": calls for n in range(weight)})
        return method

    return register


class ClusterMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.cluster = Cluster(Node)
        for name in NODES:
            self.cluster.join(name)

    @step(weight=3, node=nodes, key=keys, upsert=st.booleans(), softpin=st.booleans(), whole=st.booleans())
    def put(self, node, key, upsert, softpin, whole):
        mode = PutMode.UPSERT if upsert else PutMode.PUT
        self.cluster.nodes[node].put(key, mode=mode, softpin=softpin)
        self.finish(whole)

    @step(weight=4, node=nodes, key=keys, whole=st.booleans())
    def get(self, node, key, whole):
        self.cluster.nodes[node].get(key)
        self.finish(whole)

    def finish(self, whole):
        """As a rule little is under way at a time; else nothing would ever be everywhere."""
        if whole:
            self.cluster.go_on_to_the_end()

    @step(weight=8, pick=picks, count=st.integers(1, 6))
    def go_on(self, pick, count):
        """Some of what is under way goes on, in any order."""
        for number in range(count):
            self.cluster.go_on(pick * (number + 1))

    @step(weight=2)
    def go_on_to_the_end(self):
        self.cluster.go_on_to_the_end()

    @step(weight=3, node=nodes, key=keys)
    def remove(self, node, key):
        node = self.cluster.nodes[node]
        self.cluster.run(node, node.remove(key), is_change=True)

    @step(node=nodes)
    def remove_all(self, node):
        node = self.cluster.nodes[node]
        self.cluster.run(node, node.remove_all(), is_change=True)

    @step(node=nodes)
    def reap(self, node):
        node = self.cluster.nodes[node]
        node.master.reap(1, node.now)
        node.settle()

    @step(weight=2, node=nodes, pick=picks)
    def let_go(self, node, pick):
        node = self.cluster.nodes[node]
        if node.handles:
            node.let_go(node.handles[pick % len(node.handles)])

    @step(count=st.integers(1, 2))
    def lose_answers(self, count):
        """Of the directory: what was asked for is carried out, and nobody hears of it."""
        self.cluster.lose_answers = count

    @step(how=st.sampled_from(["failed", "still written"]))
    def break_a_transfer(self, how):
        self.cluster.transfers = [how]

    @step(node=nodes, key=keys)
    def evict(self, node, key):
        """As reclaim would, and as a removal on this node alone."""
        node = self.cluster.nodes[node]
        replica = node.master.table.current.get(key)
        if replica is not None and replica.state is ReplicaState.COMPLETE and replica in node.master.objects.lists:
            node.master.objects.lists.leave(replica)
            node.master.eviction.evict([replica], node.now)
            node.settle()

    @step(node=nodes, key=keys)
    def inherit(self, node, key):
        node = self.cluster.nodes[node]
        self.cluster.run(node, node.inherit(key))

    @step(node=nodes, rarely=st.integers(0, 1))
    def cut_off_or_come_back(self, node, rarely):
        node = self.cluster.nodes[node]
        if node.directory.is_away:
            self.come_back(node)
        elif node.is_serving and not rarely:
            node.cut_off()

    def come_back(self, node):
        node.directory.is_away = False
        self.cluster.run(node, node.come_back())

    @step(node=nodes, rarely=st.integers(0, 2))
    def die(self, node, rarely):
        """All it had is gone, and what it did ends where it was; another of its name takes its place.

        Not while it changes something: who was to hear of that from it alone would not.
        """
        old = self.cluster.nodes[node]
        if rarely or not old.is_serving or any(task.node is old and task.is_change for task in self.cluster.tasks):
            return
        for task in self.cluster.tasks:
            if task.node is old:
                task.work.close()
        self.cluster.tasks = [task for task in self.cluster.tasks if task.node is not old]
        self.cluster.server.end(old.life)
        self.cluster.join(node)

    @step(ms=st.sampled_from([5, 20, 50]))
    def tick(self, ms):
        self.cluster.now += ms * MS
        for node in self.cluster.nodes.values():
            node.master.tick(node.now)
            node.settle()

    @step()
    def renew(self):
        """Whoever lives on hears of clears that did not reach it."""
        for node in self.cluster.nodes.values():
            if not node.directory.is_away:
                node.clear(self.cluster.server.clear_epoch)

    @rule(call=st.deferred(lambda: st.sampled_from(sorted(STEPS)).flatmap(STEPS.__getitem__)))
    def do(self, call):
        name, arguments = call
        getattr(self, name)(**arguments)

    @invariant()
    def every_node_keeps_what_was_promised(self):
        for node in self.cluster.nodes.values():
            node.check()

    def teardown(self):
        """When everything has arrived, the directory has what the nodes have, and their pools are whole."""
        cluster = self.cluster
        cluster.lose_answers, cluster.transfers = 0, []
        for node in cluster.nodes.values():
            if node.directory.is_away:
                self.come_back(node)
        cluster.go_on_to_the_end()
        self.renew()
        cluster.go_on_to_the_end()
        for key in ("a", "b"):
            for node in cluster.nodes.values():
                cluster.run(node, node.inherit(key))
                cluster.go_on_to_the_end()
            self.the_directory_has_what_the_nodes_have(key)
        for node in cluster.nodes.values():
            self.everything_comes_back(node)

    def the_directory_has_what_the_nodes_have(self, key):
        cluster = self.cluster
        entry = cluster.server.entry(key).entry
        told = {
            (h.node, h.generation, h.is_owner)
            for h in entry.holdings
            if cluster.lives(h) and h.epoch >= cluster.server.clear_epoch
        }
        here = {
            (name, node.master.table.current[key].generation, node.master.table.current[key].owner is None)
            for name, node in cluster.nodes.items()
            if key in node.master.table.current
        }
        assert told == here

    def everything_comes_back(self, node):
        while node.handles:
            node.let_go(node.handles[0])
        self.cluster.now += LEASE_TTL
        node.master.tick(node.now)
        node.clear(node.master.clear_epoch + 1)
        while node.master.reap(2, node.now):
            pass
        node.settle()
        self.cluster.go_on_to_the_end()
        node.check()
        assert node.master.table.all_replicas() == []
        assert node.master.space.bytes_used == 0
        assert node.master.objects.leaving_nbytes == 0


def run(**how):
    limits = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], report_multiple_bugs=False, **how)
    run_state_machine_as_test(ClusterMachine, settings=limits)


def test_no_node_serves_what_was_removed_replaced_or_cleared():
    run(max_examples=150, stateful_step_count=60, derandomize=True)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_no_node_serves_what_was_removed_replaced_or_cleared_at_length():
    run(max_examples=2_000, stateful_step_count=100)
