"""The local master towards other nodes: what they ask of it, and what comes of what it asks of them.

As in `Master`, each public method is one atomic step.
"""

from mooncake_client.codes import Code
from mooncake_node.core.admission import Admission
from mooncake_node.core.jobs import Found, Loading
from mooncake_node.core.objects import Objects
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.replica import Replica, ReplicaState


class Peering:
    """Leases, loans and copies, and what was removed or replaced elsewhere."""

    def __init__(self, objects: Objects, admission: Admission) -> None:
        self._objects = objects
        self._admission = admission

    # -- what others ask -------------------------------------------------------------------------------------------

    def get_replica_list(self, key: str, now_ns: int) -> tuple[Replica, int]:
        """The replica of *key*, and the token of a lease on its memory; 0 if it is on disk, where nothing is leased."""
        replica = self._admission.readable(key, now_ns)
        if replica.state is ReplicaState.ON_DISK:
            return replica, 0
        return replica, self._objects.lease(replica, now_ns)

    def release_lease(self, key: str, replica_id: int, token: int, now_ns: int) -> None:
        """A remote reader needs its lease no more. A hint: what fits no running lease changes nothing."""
        replica = self._objects.leases.find(replica_id)
        if replica is not None and replica.key == key:
            self._objects.release_lease(replica, token, now_ns)
            self._admission.retry(now_ns)

    def lend(self, key: str, replica_id: int, generation: int, token: int, now_ns: int) -> Replica:
        """A transfer to another node reads that replica, under its lease; until `give_back`."""
        replica = self._objects.leases.find(replica_id)
        if replica is None or replica.key != key or replica.generation != generation:
            raise Refusal(Code.NOT_FOUND, "no such replica here any more")
        if not self._objects.leases.is_running(replica, token, now_ns):
            raise Refusal(Code.LEASE_EXPIRED, "the lease has ended")
        self._objects.lend(replica)
        return replica

    def give_back(self, replica: Replica, now_ns: int) -> None:
        """That transfer is over."""
        self._objects.give_back(replica, now_ns)
        self._admission.retry(now_ns)

    def drop(self, key: str, generation: int, now_ns: int, *, is_replaced: bool = False) -> bool:
        """*generation* of *key* and all before it were removed or replaced, and the directory has them no more.

        False if there was none of them here. A put under way is not touched, since what it makes is newer, unless it
        makes that generation: the directory has had it, and only its end is missing here. *is_replaced*: there is a
        newer one on another node, which those get who wait for a copy.
        """
        self._objects.clock.observe(generation)
        replica = self._objects.table.current.get(key)
        loading = self._admission.loads.by_key.get(key)
        writing = self._objects.table.writing.get(key)
        is_there = replica is not None and replica.generation <= generation
        is_made = writing is not None and writing.generation == generation
        is_copied = loading is not None and loading.found is not None and loading.found.generation <= generation
        if is_made:
            assert writing is not None
            self._objects.table.doom(writing)
        if is_there:
            assert replica is not None
            replica.told = False
            self._objects.remove(replica, now_ns)
        if is_replaced and loading is not None and (is_there or is_made or is_copied):
            self._admission.seek_anew(key, now_ns)
        elif is_there or is_made or is_copied:
            self._admission.changed(key, now_ns)
        return is_there

    def appeared(self, key: str) -> None:
        """*key* is readable on another node: whoever waits for that is told."""
        self._admission.appeared(key)

    def serve_secondaries_until(self, until_ns: int) -> None:
        """Secondary replicas may be read up to that time; who is cut off for longer might not hear of a remove."""
        self._admission.secondaries_until_ns = until_ns

    # -- what this node asks of others -----------------------------------------------------------------------------

    def located(self, loading: Loading, found: Found | None, refusal: Refusal, now_ns: int) -> None:
        """A `Locate` has ended: what other nodes have. None: nothing, and *refusal* is what readers are told."""
        self._admission.located(loading, found, refusal, now_ns)
        self._admission.retry(now_ns)

    def pull_done(
        self,
        into: Replica,
        failure: Refusal | None,
        now_ns: int,
        *,
        again: Found | None = None,
        from_disk: bool = False,
        quiesced: bool = True,
    ) -> None:
        """A `Pull` has ended: its room is filled and the directory knows, or it failed.

        *again*: where it is to be tried once more, in another room. Not *quiesced*: it may still write; then
        `pull_quiesced` follows. If the pull was given up meanwhile the directory has to be told by the caller.
        """
        self._admission.pull_done(into, failure, now_ns, again=again, from_disk=from_disk, quiesced=quiesced)
        self._admission.retry(now_ns)

    def pull_quiesced(self, into: Replica, now_ns: int) -> None:
        """Nothing is written any more into the room of a pull that had ended before."""
        self._objects.abandon(into)
        self._admission.retry(now_ns)

    def promote(self, replica: Replica) -> None:
        """The owner of a secondary replica is no more, and this node was made the owner."""
        self._objects.promote(replica)

    def renumber(self, replica: Replica, newest: int, now_ns: int) -> None:
        """Give an unpublished replica a generation above *newest*, which another node has given."""
        assert replica.state is ReplicaState.WRITING
        self._objects.clock.observe(newest)
        replica.generation = self._objects.clock.next(now_ns)

    def withdrawn(self, replica: Replica, now_ns: int) -> None:
        """A `Withdraw` has ended that held its replica."""
        self._objects.withdrawn(replica, now_ns)
        self._admission.retry(now_ns)
