"""Nodes joined by a directory in memory, and what goes on between them, in steps that the machine chooses.

What a node does for others is a coroutine; any of those under way may go on next, so messages come late and in any
order. What must never be served again is kept here.
"""

import types
from contextlib import contextmanager

from mooncake_node.directory.memory import MemoryCluster

MS = 1_000_000


@types.coroutine
def others():
    """Let others go on."""
    yield


def at_once(work):
    """What a coroutine returns that waits for nothing but its turn."""
    while True:
        try:
            work.send(None)
        except StopIteration as end:
            return end.value


class Task:
    """One coroutine that has not ended."""

    def __init__(self, node, work, *, is_change):
        self.node = node
        self.work = work
        self.is_change = is_change  # others have to hear of what it has done in the directory
        self.done = False

    def go_on(self):
        try:
            self.work.send(None)
        except StopIteration:
            self.done = True
        except BaseException:
            self.done = True
            raise


class Server(MemoryCluster):
    """Remembers what was removed, or replaced from elsewhere, beyond the life of the generation that came after it.

    The directory as it is does not: a node taken for dead that comes back after that may bring the old one back.
    """

    def __init__(self, clock_ns):
        super().__init__(clock_ns, liveness_ttl_s=1e9, tombstone_s=1e9)
        self._gone = {}  # key -> the newest such generation

    @contextmanager
    def changing(self, key):
        with super().changing(key) as state:
            before = list(state.held.values())
            yield state
            after = [holding.generation for holding in state.held.values()]
            gone = [h.generation for h in before if after and h.node not in state.held and h.generation < min(after)]
            self._gone[key] = max(self._gone.get(key, 0), state.tombstone, *gone, 0)
            state.tombstone = self._gone[key]


class Cluster:
    """The directory, the nodes, what was promised to those who were answered."""

    def __init__(self, make_node):
        self.make_node = make_node
        self.now = 1_000
        self.server = Server(lambda: self.now)
        self.tasks: list[Task] = []
        self.nodes = {}
        self.removed: dict[str, frozenset[int]] = {}  # generations that may be served no more
        self.cleared = 0  # nothing of a lower epoch
        self.epoch_of: dict[tuple[str, int], int] = {}  # of its put_start, by key and generation
        self.lose_answers = 0  # of the next calls of the directory
        self.transfers: list[str] = []  # how the next ones end, if not well

    def join(self, name):
        self.nodes[name] = self.make_node(self, name)

    def floors(self, key):
        return self.removed.get(key, frozenset()), self.cleared

    def may_be_served(self, key, generation, floors):
        removed, cleared = floors
        return generation not in removed and self.epoch_of[key, generation] >= cleared

    def is_removed(self, key, generation):
        """Whoever removed or replaced that generation has been answered."""
        self.removed[key] = self.removed.get(key, frozenset()) | {generation}

    def run(self, node, work, *, is_change=False):
        task = Task(node, work, is_change=is_change)
        self.tasks.append(task)
        return task

    def go_on(self, pick):
        if self.tasks:
            task = self.tasks[pick % len(self.tasks)]
            task.go_on()
            if task.done:
                self.tasks.remove(task)

    def go_on_to_the_end(self):
        """But for what waits for the directory to answer a node that is cut off."""
        for _ in range(1_000):
            if all(task.node is not None and task.node.directory.is_away for task in self.tasks):
                return
            for task in self.tasks[:]:
                task.go_on()
            self.tasks = [task for task in self.tasks if not task.done]
        raise AssertionError("something goes on for ever")

    def lives(self, holding):
        life = self.server.life(holding.node)
        return life is not None and life.node.incarnation == holding.incarnation
