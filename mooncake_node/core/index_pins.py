"""What readers by the shared index have pinned, as far as the core has to know.

A reader pins without telling anybody. So the core asks when it matters: before memory is freed a replica is hidden, and
then looked for among the pins. What is found pinned is kept, and marked, so that whoever lets go of it says so.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mooncake_node.core.readers import Readers
from mooncake_node.core.replica import Replica


class IndexPins:
    """Writes `pinned` of every replica, and what the index says."""

    def __init__(self, readers: Readers, *, elsewhere: int = 0) -> None:
        """*elsewhere*: 1 if what is not on this node may be on another, so that not to find it says nothing."""
        self.readers = readers
        self.elsewhere = elsewhere
        # All and only the replicas that are `pinned`.
        self.kept: dict[int, Replica] = {}
        # Some of them have just been hidden and not been looked for yet, or a reader has let go of one.
        self.sweep_due = False
        # Of the objects readable by key, how many have no place in the index; those elsewhere count as one more.
        self.unlisted = elsewhere
        self._tells_later = False
        if elsewhere:
            readers.set_unlisted(elsewhere)

    def publish(self, replica: Replica) -> None:
        """*replica*, in memory, is readable by key from here on."""
        # A secondary one may have to be hidden at any time, from readers who ask nobody.
        if replica.owner is None:
            self.readers.list(replica)
        if replica.record < 0:
            self.count_unlisted(1)

    def publish_many(self, replicas: Sequence[Replica]) -> None:
        """`publish` for each of *replicas*, this node's own."""
        self.readers.list_many(replicas)
        self.count_unlisted(sum(replica.record < 0 for replica in replicas))

    def promote(self, replica: Replica) -> None:
        """*replica*, which was secondary, is this node's own."""
        self.readers.list(replica)
        if replica.record >= 0:
            self.count_unlisted(-1)

    def withdraw(self, replica: Replica, *, is_cleared: bool = False) -> None:
        """*replica* is no longer readable by key. Kept as pinned until `sweep` has looked, if somebody may have it."""
        if replica.record < 0:
            if not is_cleared:
                # As count_unlisted does it; one call less for each object that is dropped.
                self.unlisted -= 1
                if not self._tells_later:
                    self.readers.set_unlisted(self.unlisted)
        elif self.readers.hide([replica]):
            self._keep(replica)
            self.sweep_due = True
        else:
            self.readers.unlist([replica])

    def clear(self) -> None:
        """Nothing is readable by key any more; `withdraw` follows for each."""
        self.readers.hide_all()
        self.unlisted = self.elsewhere
        self.readers.set_unlisted(self.unlisted)

    def take_out(self, replicas: Sequence[Replica]) -> list[Replica]:
        """Take replicas out of the index that are to leave memory, but for those that are pinned; the ones taken out.

        They are readable by key all the while, by request.
        """
        listed = [replica for replica in replicas if replica.record >= 0]
        # Before they are hidden: whoever does not find them must know that this says nothing.
        self.count_unlisted(len(listed))
        pinned = self.readers.pinned(listed) if self.readers.hide(listed) else set()
        if not pinned:
            self.readers.unlist(listed)
            return list(replicas)
        self.readers.unlist([replica for replica in listed if replica.replica_id not in pinned])
        for replica in listed:
            if replica.replica_id in pinned:
                self.readers.show(replica, wanted=True)
                self.count_unlisted(-1)
                self._keep(replica)
        return [replica for replica in replicas if replica.replica_id not in pinned]

    def sweep(self) -> list[Replica]:
        """Look again for what is kept; those that nobody has pinned any more."""
        self.sweep_due = False
        kept = list(self.kept.values())
        pinned = self.readers.pinned(kept) if kept else set()
        free = [replica for replica in kept if replica.replica_id not in pinned]
        for replica in free:
            del self.kept[replica.replica_id]
            replica.pinned = False
        return free

    def count_unlisted(self, change: int) -> None:
        """So many more objects, or fewer, are readable by key and not in the index."""
        self.unlisted += change
        if change > 0 or (change and not self._tells_later):
            self.readers.set_unlisted(self.unlisted)

    @contextmanager
    def telling_later(self) -> Iterator[None]:
        """Within, readers are not told that fewer are unlisted: who believes in more than there are asks in vain."""
        self._tells_later = True
        try:
            yield
        finally:
            self._tells_later = False
            self.readers.set_unlisted(self.unlisted)

    def _keep(self, replica: Replica) -> None:
        replica.pinned = True
        self.kept[replica.replica_id] = replica
