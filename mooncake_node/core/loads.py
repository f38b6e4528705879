"""Objects on their way back from disk: one load of a key at a time, however many ask for it."""

import msgspec

from mooncake_node.core.jobs import Load
from mooncake_node.core.objects import Objects
from mooncake_node.core.reclaim import Reclaim
from mooncake_node.core.replica import Replica, ReplicaState
from mooncake_node.core.waiting import Waiter


class Loading(msgspec.Struct, eq=False):
    """One load under way."""

    on_disk: Replica
    into: Replica | None = None  # None: it waits for room
    waiter: Waiter | None = None  # its place in the queue for room, while it waits there


class Loads:
    """All and only the loads under way, by key. Who waits for them is the master's business."""

    def __init__(self, objects: Objects, reclaim: Reclaim) -> None:
        self._objects = objects
        self._reclaim = reclaim
        self.by_key: dict[str, Loading] = {}
        self.coalesced = 0  # askers who found a load under way
        self.completed = 0

    def begin(self, on_disk: Replica, now_ns: int) -> Loading:
        """Start to bring *on_disk* back. If its `into` is None it waits for room, and needs a place in the queue."""
        loading = self.by_key[on_disk.key] = Loading(on_disk)
        on_disk.transfers += 1
        self._objects.disk.judge(on_disk)
        self.go_on(loading, now_ns)
        return loading

    def go_on(self, loading: Loading, now_ns: int) -> bool:
        """Find room and begin to read; False if there is none yet."""
        on_disk = loading.on_disk
        offset = self._reclaim.find_room(on_disk.nbytes, now_ns, loading.waiter)
        if offset is None:
            return False
        assert on_disk.copy is not None
        loading.into = self._objects.begin_load(on_disk, offset, now_ns)
        self._objects.jobs.append(Load(loading.into, on_disk.copy.record))
        return True

    def give_up(self, key: str) -> Loading:
        """End the load of *key*: nobody wants it any more. Its room is kept as long as it is being filled."""
        loading = self.by_key.pop(key)
        self._let_go(loading.on_disk)
        if loading.into is not None:
            self._objects.table.doom(loading.into)
        return loading

    def done(self, into: Replica, *, complete: bool) -> bool:
        """A `Load` has ended. False: it was given up meanwhile, and its room is free now."""
        if into.state is ReplicaState.DOOMED:
            self._objects.abandon(into)
            return False
        self._let_go(self.by_key.pop(into.key).on_disk)
        if complete:
            self._objects.publish_loaded(into)
            self.completed += 1
        else:
            self._objects.abandon(into)
        return True

    def _let_go(self, on_disk: Replica) -> None:
        on_disk.transfers -= 1
        self._objects.disk.judge(on_disk)
