"""The local master: the only authority over G; joins sessions, objects, admission and reclaim.

Each public method is one atomic step. What it decides for others than its caller goes to `outbox`, and what takes time
to `jobs`; the shell empties both after each call. A method that may have to wait returns the `Waiter` it entered; its
outcome comes through the outbox exactly once, unless the waiter is cancelled.
"""

from collections.abc import Callable, Sequence

from mooncake_client.codes import Code
from mooncake_node.core.admission import Admission
from mooncake_node.core.bulk import Bulk
from mooncake_node.core.config import MasterConfig
from mooncake_node.core.disk import Disk
from mooncake_node.core.eviction import Eviction
from mooncake_node.core.generations import GenerationClock
from mooncake_node.core.jobs import Amend, Errand, Job
from mooncake_node.core.objects import Objects
from mooncake_node.core.peering import Peering
from mooncake_node.core.readers import NoReaders, Readers
from mooncake_node.core.reclaim import Reclaim
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.replica import PLAIN, Contract, Replica, ReplicaState
from mooncake_node.core.sessions import Handle, Session
from mooncake_node.core.waiting import Outcome, Put, Waiter, Want


class Master:
    """One node's objects: who may write, who reads, what is kept, what is free."""

    def __init__(
        self,
        config: MasterConfig,
        clock: GenerationClock,
        tier_cost: Callable[[Replica], int] | None = None,
        readers: Readers | None = None,
    ) -> None:
        """*tier_cost*: bytes of the tier's limit that an object takes there; by default its length.

        *readers*: those by the shared index; None: there is none.
        """
        self.config = config
        disk = Disk(config.tier_nbytes_max, tier_cost or _length, config.tier_retry_ns)
        self.objects = Objects(config, clock, disk, readers or NoReaders())
        self.table = self.objects.table
        self.space = self.objects.space
        self.pins = self.objects.pins
        self.eviction = Eviction(config, self.objects)
        self.reclaim = Reclaim(config, self.objects, self.eviction)
        self.sessions: dict[int, Session] = {}
        self.admission = Admission(config, self.objects, self.reclaim, self.sessions)
        self.bulk = Bulk(config, self.objects, self.admission)
        self.peers = Peering(self.objects, self.admission)
        self.waiting = self.admission.waiting
        # What others than the caller are to be told.
        self.outbox: list[tuple[Waiter, Outcome]] = self.admission.outbox
        # What the shell is to do.
        self.jobs: list[Job] = self.objects.jobs
        self.errands: list[Errand] = self.objects.errands
        # Raised by every clear; a put that began under a lower one never shows up (SPEC 6, rule 6).
        self.clear_epoch = 0
        self._last_session_id = 0

    # -- sessions ------------------------------------------------------------------------------------------------

    def open_session(self, name: str, pid: int, *, readonly: bool = False) -> Session:
        """Attach a client."""
        self._last_session_id += 1
        session = Session(self._last_session_id, name, pid, readonly=readonly)
        self.sessions[session.session_id] = session
        return session

    def holds(self, session: Session) -> bool:
        """Whether the client may still read or write memory that was given to it."""
        return bool(session.handles or session.reservations) or self.objects.index.readers.has_pins(session.session_id)

    def end_session(self, session: Session, now_ns: int) -> None:
        """The client is dead or has let go of everything: give back all it held. A second call does nothing."""
        if not session.open:
            return
        session.open = False
        del self.sessions[session.session_id]
        for waiter in self.waiting.of_session(session):
            self.admission.cancel(waiter)
        for replica in list(session.reservations.values()):
            self._abandon(session, replica, now_ns)
        if self.objects.index.readers.close_row(session.session_id):
            self.unpinned(now_ns)
        self.release(session, list(session.handles), now_ns)

    # -- put -----------------------------------------------------------------------------------------------------

    def put_start(
        self, session: Session, put: Put, now_ns: int, deadline_ns: int | None
    ) -> Replica | Handle | Waiter | Want:
        """Room for a new generation (WRITING), or what stands in its way.

        A `Handle` answers only PUT_OR_ACQUIRE: the key is readable already. A `Waiter`: the key is being written by
        another, or there is no room yet. Without a deadline nothing is entered and `Want` says what it would wait for.
        """
        self._check_put(session, put)
        try:
            return self.admission.put(session, put, now_ns, deadline_ns)
        finally:
            if self.waiting.for_room:
                # What was dropped for it may leave room for one that waits, also if it is refused in the end.
                self.admission.retry(now_ns)

    def put_end(self, session: Session, replica_id: int, now_ns: int) -> Replica:
        """Publish (COMPLETE): visible to everyone at once. Readers that waited for it get their handles here."""
        replica = self._reservation(session, replica_id)
        if replica.state is ReplicaState.DOOMED:
            self._abandon(session, replica, now_ns)
            self.admission.retry(now_ns)
            raise Refusal(Code.NOT_FOUND, "removed, or cleared by remove_all, while it was being written")
        del session.reservations[replica_id]
        self.objects.publish(replica, now_ns)
        self.admission.lost.pop(replica.key, None)
        self.admission.changed(replica.key, now_ns)
        return replica

    def place(self, session: Session, put: Put, now_ns: int) -> Replica | None:
        """Room for an object whose bytes are here already; None if it would have to wait.

        The caller stores them and calls `publish_placed` in the same breath: nothing else may come in between, so no
        table need know of it before.
        """
        self._check_put(session, put)
        replica = self.admission.place(put, now_ns)
        if replica is None and self.waiting.for_room:
            self.admission.retry(now_ns)  # as in put_start
        return replica

    def publish_placed(self, replica: Replica, now_ns: int) -> None:
        """`put_end` of what `place` gave."""
        self.objects.publish_placed(replica, now_ns)
        self.admission.lost.pop(replica.key, None)
        self.admission.changed(replica.key, now_ns)

    def place_all(self, session: Session, puts: Sequence[Put], now_ns: int) -> list[Replica] | None:
        """`place` for many in one step; None: each is to be placed by itself. Then `publish_all`, as there."""
        if not self.bulk.has_room(puts):
            return None
        for put in puts:
            self._check_put(session, put)
        return self.bulk.place(puts, now_ns)

    def publish_all(self, replicas: Sequence[Replica], now_ns: int) -> None:
        """`put_end` of what `place_all` gave."""
        self.bulk.publish(replicas, now_ns)

    def begin_all(self, session: Session, puts: Sequence[Put], now_ns: int) -> list[Replica] | None:
        """`put_start` for many in one step; None: each is to be asked for by itself."""
        if not self.bulk.has_room(puts):
            return None
        for put in puts:
            self._check_put(session, put)
        return self.bulk.begin(session, puts, now_ns)

    def end_all(self, session: Session, replica_ids: Sequence[int], now_ns: int) -> list[Replica] | None:
        """`put_end` for many in one step; None: each is to be ended by itself."""
        return self.bulk.end(session, replica_ids, now_ns)

    def put_end_and_acquire(self, session: Session, replica_id: int, now_ns: int) -> Handle:
        """`put_end`, and a handle for the caller in the same step, so that nothing can come in between."""
        replica = self._reservation(session, replica_id)
        self.admission.check_handle(session)
        if replica.state is ReplicaState.DOOMED:
            self.put_end(session, replica_id, now_ns)
        # Taken first: else a waiter of the same session might take its last handle within the step.
        handle = self.objects.take(session, replica, now_ns)
        self.put_end(session, replica_id, now_ns)
        return handle

    def put_revoke(self, session: Session, replica_id: int, now_ns: int) -> None:
        """Give a reservation back; the caller stores into it no more. Exactly one waiting put takes over."""
        self._abandon(session, self._reservation(session, replica_id), now_ns)
        self.admission.retry(now_ns)

    # -- get -----------------------------------------------------------------------------------------------------

    def acquire(self, session: Session, key: str, now_ns: int, deadline_ns: int) -> Handle | Waiter:
        """A reference on the readable replica of *key*.

        A `Waiter` while its first generation is being written, or while it is brought back from disk.
        """
        answer = self.admission.acquire(session, key, now_ns, deadline_ns)
        if isinstance(answer, Waiter) and self.waiting.for_room:
            self.admission.retry(now_ns)  # as in put_start
        return answer

    def release(self, session: Session, handle_ids: list[int], now_ns: int) -> None:
        """Give references back. Ids that were given back before change nothing."""
        for handle_id in handle_ids:
            self.objects.let_go(session, handle_id, now_ns)
        self.admission.retry(now_ns)

    def wait(self, session: Session, key: str, now_ns: int, deadline_ns: int) -> Waiter | None:
        """None if *key* is readable, else a waiter that is answered when it is."""
        return self.admission.wait(session, key, now_ns, deadline_ns)

    def is_readable(self, key: str, now_ns: int) -> bool:
        """Whether *key* can be read from this node: no reference, no lease, no recency."""
        return self.admission.is_readable(key, now_ns)

    def readable(self, key: str, now_ns: int) -> Replica:
        """The readable replica of *key*, without a reference and without touching recency."""
        return self.admission.readable(key, now_ns)

    def unpinned(self, now_ns: int) -> None:
        """A reader by the shared index has let go of something that somebody waits for."""
        self.objects.sweep(now_ns)
        self.admission.retry(now_ns)

    # -- remove --------------------------------------------------------------------------------------------------

    def remove(self, key: str, now_ns: int, generation: int | None = None) -> bool:
        """Take *key* away for every reader and put; never refused because someone reads.

        False if there was nothing readable of that key, or not of that *generation*.
        """
        replica = self.table.current.get(key)
        if replica is None or (generation is not None and replica.generation != generation):
            self.admission.lost.pop(key, None)
            return False
        self.objects.remove(replica, now_ns)
        self.admission.changed(key, now_ns)
        return True

    def clear(self, now_ns: int, epoch: int | None = None) -> int:
        """Take every key away in one step: nothing put or begun before can be read from here on.

        *epoch*: the clear epoch from here on; None: the next.

        Returns how many objects were readable. Their room comes back through `reap`, in bounded steps. What the tier
        has is the shell's to remove, in one go.
        """
        del now_ns
        self.clear_epoch = self.clear_epoch + 1 if epoch is None else epoch
        self.admission.refuse_all(Refusal(Code.NOT_FOUND, "cleared by remove_all while it waited"))
        self.admission.lost.clear()
        for replica in list(self.table.writing.values()):
            self.table.doom(replica)
        self.objects.forget_lists()
        return self.table.condemn_all()

    def reap(self, count_max: int, now_ns: int) -> bool:
        """Free or stash up to *count_max* replicas that a clear cut off; False when none is left."""
        for replica in self.table.take_condemned(count_max):
            self.objects.retire(replica, now_ns, is_cleared=True)
        self.admission.retry(now_ns)
        return bool(self.table.condemned)

    # -- pins ----------------------------------------------------------------------------------------------------

    def pin(self, key: str, ttl_ns: int | None, now_ns: int) -> None:
        """Give a readable object a soft pin from now on (None: until removed; 0: none), replacing the one it has."""
        replica = self._owned(key, now_ns)
        self.pins.pin(replica, ttl_ns, now_ns)
        self._amend(replica)

    def unpin(self, key: str, now_ns: int) -> None:
        """End the soft pin of a readable object."""
        replica = self._owned(key, now_ns)
        self.pins.unpin(replica)
        self._amend(replica)

    def _owned(self, key: str, now_ns: int) -> Replica:
        """The readable replica of *key*, if this node's carries the contract."""
        replica = self.readable(key, now_ns)
        if replica.owner is not None:
            raise Refusal(Code.NOT_FOUND, f"node {replica.owner} owns it")
        return replica

    def _amend(self, replica: Replica) -> None:
        self.objects.contract_changed(replica)
        if replica.copy is not None or replica.transfers:
            self.jobs.append(Amend(replica))

    # -- jobs ----------------------------------------------------------------------------------------------------

    def is_wanted(self, replica: Replica) -> bool:
        """Whether a copy of *replica* still makes sense; asked immediately before it is written."""
        return self.table.current.get(replica.key) is replica

    def offload_done(self, replica: Replica, record: object | None, now_ns: int) -> None:
        """An `Offload` has ended: with the tier's record of a complete copy, or with None."""
        self.eviction.offload_done(replica, record, now_ns)
        self.admission.retry(now_ns)

    def load_done(self, replica: Replica, failure: Refusal | None, now_ns: int, *, gone: bool = False) -> None:
        """A `Load` has ended: its room is filled, or it failed; *gone*: the copy is no more, nor will it come back."""
        self.admission.load_done(replica, failure, gone=gone, now_ns=now_ns)
        self.admission.retry(now_ns)

    def reserved(self, session: Session, replica_id: int) -> Replica:
        """The reservation of that client."""
        return self._reservation(session, replica_id)

    def adopt(
        self,
        *,
        key: str,
        generation: int,
        nbytes: int,
        kind: int,
        contract: Contract,
        softpin_until_ns: int | None,
        record: object,
        now_ns: int,
    ) -> None:
        """An object was found in the tier at the start: readable from here on."""
        found = Replica(0, key, generation, 0, nbytes, kind, now_ns, contract, ReplicaState.ON_DISK)
        found.softpin_until_ns = softpin_until_ns
        self.objects.adopt(found, record)

    def unsaved(self) -> list[Replica]:
        """The soft-pinned objects that are in memory alone."""
        return [r for r in self.table.current.values() if r.contract.softpin and r.copy is None]

    def rescue(self, replica: Replica, now_ns: int) -> bool:
        """Begin to write an unsaved object to the tier, even while it is read; False if that cannot be."""
        return self.eviction.rescue(replica, now_ns)

    # -- time and waiters ----------------------------------------------------------------------------------------

    def cancel(self, waiter: Waiter, now_ns: int) -> None:
        """The caller has given up; nothing will be answered."""
        self.admission.cancel(waiter)
        self.admission.retry(now_ns)

    def next_deadline_ns(self, now_ns: int) -> int | None:
        """When `tick` has something to do; 0: at once."""
        if self.objects.index.sweep_due or self.waiting.moved_up:
            return 0
        earliest_ns = self.reclaim.due_at_ns(self.waiting.head, now_ns)
        if earliest_ns == 0:
            return 0
        for deadline_ns in (
            self.waiting.next_deadline_ns(),
            self.objects.leases.next_expiry_ns(),
            self.pins.next_deadline_ns(),
        ):
            if deadline_ns is not None and (earliest_ns is None or deadline_ns < earliest_ns):
                earliest_ns = deadline_ns
        return earliest_ns

    def tick(self, now_ns: int) -> None:
        """Do what is due: answer those whose time is up, end leases and pins, reclaim a little, try those who wait."""
        self.admission.expire(now_ns)
        self.objects.expire(now_ns)
        if self.objects.index.sweep_due:
            self.objects.sweep(now_ns)
        self.reclaim.run(self.waiting.head, now_ns)
        self.admission.retry(now_ns)

    # -- how it is done ------------------------------------------------------------------------------------------

    def _check_put(self, session: Session, put: Put) -> None:
        if session.readonly:
            raise Refusal(Code.INVALID_ARGUMENT, "this client attached with readonly=True")
        key_nbytes = len(put.key) if put.key.isascii() else len(put.key.encode())
        if not 0 < key_nbytes <= self.config.key_nbytes_max:
            raise Refusal(
                Code.INVALID_ARGUMENT,
                f"a key has 1 to {self.config.key_nbytes_max} bytes, not {key_nbytes}",
            )
        if put.nbytes < 0:
            raise Refusal(Code.INVALID_ARGUMENT, f"an object cannot have {put.nbytes} bytes")
        if not self.space.could_fit(put.nbytes):
            raise Refusal(
                Code.NO_SPACE,
                f"{put.nbytes} bytes can never fit a pool of {self.space.bytes_total} bytes",
            )
        if put.contract is not PLAIN:
            self.pins.check(put)

    @staticmethod
    def _reservation(session: Session, replica_id: int) -> Replica:
        replica = session.reservations.get(replica_id)
        if replica is None:
            raise Refusal(Code.ILLEGAL_CLIENT, f"this client has no reservation {replica_id}")
        return replica

    def _abandon(self, session: Session, replica: Replica, now_ns: int) -> None:
        """Free a reservation that its writer no longer stores into."""
        del session.reservations[replica.replica_id]
        was_writing = replica.state is ReplicaState.WRITING
        self.objects.abandon(replica)
        if was_writing:
            self.admission.settle_key(replica.key, now_ns)


def _length(replica: Replica) -> int:
    return replica.nbytes
