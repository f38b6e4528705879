"""Copies in the offload tier: which objects have one, what they take of its limit, which of them may be given up."""

from collections import OrderedDict
from collections.abc import Callable

from mooncake_node.core.replica import DiskCopy, Replica, ReplicaState


class Disk:
    """The tier as the core counts it. The files themselves are the shell's."""

    def __init__(self, nbytes_max: int, cost: Callable[[Replica], int], retry_ns: int) -> None:
        """*cost*: bytes of the limit that an object's copy takes."""
        self.nbytes_max = nbytes_max
        self.cost = cost
        self.retry_ns = retry_ns
        self.copies = 0
        self.nbytes = 0  # of the copies there are
        self.writing_nbytes = 0  # of those being written
        # Objects readable from disk alone, and their own bytes.
        self.only_count = 0
        self.only_nbytes = 0
        # All and only the objects with a copy that are not soft-pinned nor being loaded, least recently loaded first.
        self.spare: OrderedDict[int, Replica] = OrderedDict()
        # A write failed or found no room: until then, or until a copy is given up, none is begun.
        self.blocked_until_ns = 0
        self.failures = 0  # writes and reads that did not end as they should

    def takes(self, now_ns: int) -> bool:
        """Whether a write may be begun."""
        return self.nbytes_max > 0 and now_ns >= self.blocked_until_ns

    def block(self, now_ns: int) -> None:
        """Begin no write for a while."""
        self.blocked_until_ns = now_ns + self.retry_ns

    def has_room(self, nbytes: int) -> bool:
        """Whether a copy of that cost fits in beside all others."""
        return self.nbytes + self.writing_nbytes + nbytes <= self.nbytes_max

    def add(self, replica: Replica, record: object) -> None:
        """A copy of *replica* is complete."""
        assert replica.copy is None
        replica.copy = DiskCopy(record, self.cost(replica))
        self.copies += 1
        self.nbytes += replica.copy.nbytes
        self.judge(replica)
        if replica.state is ReplicaState.ON_DISK:
            self.memory_gone(replica)

    def judge(self, replica: Replica) -> None:
        """The contract of an object with a copy may have changed: whether the copy may be given up."""
        # One that is being loaded is read.
        if replica.copy is None or replica.contract.softpin or replica.transfers:
            self.spare.pop(replica.replica_id, None)
        else:
            self.spare.setdefault(replica.replica_id, replica)

    def memory_gone(self, replica: Replica) -> None:
        """From here on the object is on disk alone."""
        self.only_count += 1
        self.only_nbytes += replica.nbytes

    def hand_over(self, on_disk: Replica, replica: Replica) -> None:
        """*replica* is the same object, in memory again; the copy is its now, as the one used most recently."""
        replica.copy, on_disk.copy = on_disk.copy, None
        self.spare.pop(on_disk.replica_id, None)
        self.only_count -= 1
        self.only_nbytes -= replica.nbytes
        self.judge(replica)

    def forget(self, replica: Replica) -> DiskCopy:
        """The copy of *replica* is given up; what it was."""
        copy = replica.copy
        assert copy is not None
        replica.copy = None
        self.copies -= 1
        self.nbytes -= copy.nbytes
        self.spare.pop(replica.replica_id, None)
        if replica.state is ReplicaState.ON_DISK:
            self.only_count -= 1
            self.only_nbytes -= replica.nbytes
        self.blocked_until_ns = 0
        return copy

    def check(self, readable: list[Replica], cut_off: list[Replica]) -> None:
        """Assert that all is counted right, of all the replicas there are; those a clear *cut_off* are not spare."""
        replicas = readable + cut_off
        copied = [replica for replica in replicas if replica.copy is not None]
        assert self.copies == len(copied)
        assert self.nbytes == sum(replica.copy.nbytes for replica in copied if replica.copy is not None)
        alone = [replica for replica in replicas if replica.state is ReplicaState.ON_DISK]
        assert (self.only_count, self.only_nbytes) == (len(alone), sum(replica.nbytes for replica in alone))
        assert all(replica.copy is not None for replica in alone)
        spare = [r for r in readable if not (r.copy is None or r.contract.softpin or r.transfers)]
        assert self.spare == {replica.replica_id: replica for replica in spare}
