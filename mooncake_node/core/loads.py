"""Objects on their way into memory, from disk or from another node: one load of a key at a time, however many ask."""

from mooncake_node.core.jobs import Load, Loading, Locate, Pull
from mooncake_node.core.objects import Objects
from mooncake_node.core.reclaim import Reclaim
from mooncake_node.core.replica import Replica, ReplicaState
from mooncake_node.core.waiting import Waiter


class Loads:
    """All and only the loads under way, by key. Who waits for them is the master's business."""

    def __init__(self, objects: Objects, reclaim: Reclaim, *, has_peers: bool) -> None:
        """*has_peers*: other nodes are asked first."""
        self._objects = objects
        self._reclaim = reclaim
        self._has_peers = has_peers
        self.by_key: dict[str, Loading] = {}
        self.coalesced = 0  # askers who found a load under way
        self.from_disk = 0
        self.copied = 0  # from another node's memory
        self.copied_from_disk = 0  # from another node's tier

    def begin(self, key: str, on_disk: Replica | None, now_ns: int) -> Loading:
        """Start to bring *key* in. If its `into` is None it is sought, or waits for room and needs a place for that."""
        loading = self.by_key[key] = Loading(key, on_disk)
        if on_disk is not None:
            on_disk.transfers += 1
            self._objects.disk.judge(on_disk)
        if self._has_peers:
            loading.seeking = True
            self._objects.errands.append(Locate(loading))
        else:
            self.go_on(loading, now_ns)
        return loading

    def go_on(self, loading: Loading, now_ns: int) -> bool:
        """Find room and begin to read; False if there is none yet."""
        waiter = loading.waiter
        assert waiter is None or isinstance(waiter, Waiter)
        offset = self._reclaim.find_room(loading.nbytes, now_ns, waiter)
        if offset is None:
            return False
        if loading.found is not None:
            loading.into = self._objects.begin_pull(loading.key, loading.found, offset, now_ns)
            self._objects.errands.append(Pull(loading.into, loading.found))
        else:
            on_disk = loading.on_disk
            assert on_disk is not None
            assert on_disk.copy is not None
            loading.into = self._objects.begin_load(on_disk, offset, now_ns)
            self._objects.jobs.append(Load(loading.into, on_disk.copy.record))
        return True

    def give_up(self, key: str) -> Loading:
        """End the load of *key*: nobody wants it any more. Its room is kept as long as it is being filled."""
        loading = self.by_key.pop(key)
        self._let_go(loading)
        if loading.into is not None:
            self._objects.table.doom(loading.into)
        return loading

    def failed(self, loading: Loading) -> None:
        """It has come to nothing, and nothing is filled any more."""
        del self.by_key[loading.key]
        self._let_go(loading)

    def done(self, into: Replica, *, complete: bool) -> Loading | None:
        """A `Load` has ended. None: it was given up meanwhile, and its room is free now."""
        if into.state is ReplicaState.DOOMED:
            self._objects.abandon(into)
            return None
        loading = self.by_key.pop(into.key)
        self._let_go(loading)
        if complete:
            self._objects.publish_loaded(into)
            self.from_disk += 1
        else:
            self._objects.abandon(into)
        return loading

    def pulled(self, into: Replica, *, from_disk: bool) -> None:
        """A `Pull` is complete, and was not given up."""
        loading = self.by_key.pop(into.key)
        self._let_go(loading)
        assert loading.found is not None
        if loading.on_disk is not None:
            self._objects.publish_loaded(into)
        else:
            self._objects.publish_pulled(into, loading.found)
        if from_disk:
            self.copied_from_disk += 1
        else:
            self.copied += 1

    def _let_go(self, loading: Loading) -> None:
        if loading.on_disk is not None:
            loading.on_disk.transfers -= 1
            self._objects.disk.judge(loading.on_disk)
