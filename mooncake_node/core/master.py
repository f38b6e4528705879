"""The local master: joins table, room, handles and waiters; the only authority over G.

Each public method is one atomic step. What it decides for others than its caller goes to `outbox`, which the shell
empties after each call. A method that may have to wait returns the `Waiter` it entered; its outcome comes through
the outbox exactly once, unless the waiter is cancelled.
"""

from itertools import islice

from mooncake_client.codes import Code
from mooncake_node.core.config import MasterConfig
from mooncake_node.core.generations import GenerationClock
from mooncake_node.core.pins import Pins
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.replica import PLAIN, Replica, ReplicaState
from mooncake_node.core.report import room_report
from mooncake_node.core.sessions import Handle, Held, Session
from mooncake_node.core.space import Space
from mooncake_node.core.table import MetaMap
from mooncake_node.core.waiting import PUTS_RETRIED_MAX, Outcome, Put, PutMode, Waiter, WaitingRoom, Want


class Master:
    """One node's objects: who may write, who reads, what is kept, what is free."""

    def __init__(self, config: MasterConfig, clock: GenerationClock) -> None:
        self.config = config
        self.space = Space(config.pool_nbytes)
        self.table = MetaMap()
        self.waiting = WaitingRoom()
        self.pins = Pins(config)
        self.sessions: dict[int, Session] = {}
        self.outbox: list[tuple[Waiter, Outcome]] = []
        # Raised by every clear; a put that began under a lower one never shows up (SPEC 6, rule 6).
        self.clear_epoch = 0
        self.handle_count = 0
        self.held = Held()
        # Gets answered at once from this node's memory.
        self.local_hits = 0
        self._clock = clock
        self._last_replica_id = 0
        self._last_session_id = 0
        self._room_came_back = False

    # -- sessions ------------------------------------------------------------------------------------------------

    def open_session(self, name: str, pid: int, *, readonly: bool = False) -> Session:
        """Attach a client."""
        self._last_session_id += 1
        session = Session(self._last_session_id, name, pid, readonly=readonly)
        self.sessions[session.session_id] = session
        return session

    def end_session(self, session: Session, now_ns: int) -> None:
        """The client is dead or has let go of everything: give back all it held. A second call does nothing."""
        if not session.open:
            return
        session.open = False
        del self.sessions[session.session_id]
        for waiter in self.waiting.of_session(session):
            self.waiting.close(waiter)
        for replica in list(session.reservations.values()):
            self._abandon(session, replica, now_ns)
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
        answer = self._begin(session, put, now_ns)
        if isinstance(answer, Want) and deadline_ns is not None:
            return self._wait(session, answer, put.key, now_ns, deadline_ns, put)
        return answer

    def put_end(self, session: Session, replica_id: int, now_ns: int) -> Replica:
        """Publish (COMPLETE): visible to everyone at once. Readers that waited for it get their handles here."""
        replica = self._reservation(session, replica_id)
        if replica.state is ReplicaState.DOOMED:
            self._abandon(session, replica, now_ns)
            self._retry_puts(now_ns)
            raise Refusal(Code.NOT_FOUND, "cleared by remove_all while it was being written")
        del session.reservations[replica_id]
        replaced = self.table.publish(replica, now_ns)
        self.pins.start(replica, now_ns)
        if replaced is not None:
            self._retire(replaced)
        if replica.key in self.waiting.by_key:
            self._settle_key(replica.key, now_ns)
        self._retry_puts(now_ns)
        return replica

    def put_end_and_acquire(self, session: Session, replica_id: int, now_ns: int) -> Handle:
        """`put_end`, and a handle for the caller in the same step, so that nothing can come in between."""
        replica = self._reservation(session, replica_id)
        self._check_handle(session)
        if replica.state is ReplicaState.DOOMED:
            self.put_end(session, replica_id, now_ns)
        # Taken first: else a waiter of the same session might take its last handle within the step.
        handle = self._take(session, replica, now_ns)
        self.put_end(session, replica_id, now_ns)
        return handle

    def put_revoke(self, session: Session, replica_id: int, now_ns: int) -> None:
        """Give a reservation back; the caller stores into it no more. Exactly one waiting put takes over."""
        self._abandon(session, self._reservation(session, replica_id), now_ns)
        self._retry_puts(now_ns)

    # -- get -----------------------------------------------------------------------------------------------------

    def acquire(self, session: Session, key: str, now_ns: int, deadline_ns: int) -> Handle | Waiter:
        """A reference on the readable replica of *key*; a `Waiter` while its first generation is being written."""
        replica = self.table.current.get(key)
        if replica is not None:
            self._check_handle(session)
            self.local_hits += 1
            return self._take(session, replica, now_ns)
        if key in self.table.writing:
            return self._wait(session, Want.READ, key, now_ns, deadline_ns)
        raise Refusal(Code.NOT_FOUND, "no such object")

    def release(self, session: Session, handle_ids: list[int], now_ns: int) -> None:
        """Give references back. Ids that were given back before change nothing."""
        for handle_id in handle_ids:
            replica = session.let_go(handle_id)
            if replica is not None:
                self.handle_count -= 1
                if replica.refs == 0:
                    self.held.count -= 1
                    self.held.nbytes -= replica.nbytes
                    if replica.state is ReplicaState.STASHED:
                        self._forget(replica)
        self._retry_puts(now_ns)

    def wait(self, session: Session, key: str, now_ns: int, deadline_ns: int) -> Waiter | None:
        """None if *key* is readable, else a waiter that is answered when it is."""
        if key in self.table.current:
            return None
        return self._wait(session, Want.PRESENCE, key, now_ns, deadline_ns)

    def readable(self, key: str) -> Replica:
        """The readable replica of *key*, without a reference and without touching recency."""
        replica = self.table.current.get(key)
        if replica is not None:
            return replica
        if key in self.table.writing:
            raise Refusal(Code.NOT_READY, "being written")
        raise Refusal(Code.NOT_FOUND, "no such object")

    # -- remove --------------------------------------------------------------------------------------------------

    def remove(self, key: str, now_ns: int, generation: int | None = None) -> bool:
        """Take *key* away for every reader and put; never refused because someone reads.

        False if there was nothing readable of that key, or not of that *generation*.
        """
        replica = self.table.current.get(key)
        if replica is None or (generation is not None and replica.generation != generation):
            return False
        self.table.unname(key)
        self._retire(replica)
        self._retry_puts(now_ns)
        return True

    def clear(self, now_ns: int) -> int:
        """Take every key away in one step: nothing put or begun before can be read from here on.

        Returns how many objects were readable. Their room comes back through `reap`, in bounded steps.
        """
        self.clear_epoch += 1
        for replica in list(self.table.writing.values()):
            self.table.doom(replica)
        for waiter in self.waiting.all_open():
            if waiter.want is not Want.PRESENCE:
                refusal = Refusal(Code.NOT_FOUND, "cleared by remove_all while it waited")
                self._answer(waiter, refusal)
        return self.table.condemn_all()

    def reap(self, count_max: int, now_ns: int) -> bool:
        """Free or stash up to *count_max* replicas that a clear cut off; False when none is left."""
        for replica in self.table.take_condemned(count_max):
            self._retire(replica)
        self._retry_puts(now_ns)
        return bool(self.table.condemned)

    # -- pins ----------------------------------------------------------------------------------------------------

    def pin(self, key: str, ttl_ns: int | None, now_ns: int) -> None:
        """Give a readable object a soft pin from now on (None: until removed; 0: none), replacing the one it has."""
        self.pins.pin(self.readable(key), ttl_ns, now_ns)

    def unpin(self, key: str) -> None:
        """End the soft pin of a readable object."""
        self.pins.unpin(self.readable(key))

    # -- time and waiters ----------------------------------------------------------------------------------------

    def cancel(self, waiter: Waiter) -> None:
        """The caller has given up; nothing will be answered."""
        self.waiting.close(waiter)

    def next_deadline_ns(self) -> int | None:
        """When `tick` has something to do; 0: at once."""
        return 0 if self.waiting.moved_up else self.waiting.next_deadline_ns()

    def tick(self, now_ns: int) -> None:
        """Answer those whose time is up, and look at the puts that came into view."""
        for waiter in self.waiting.close_expired(now_ns):
            self.outbox.append((waiter, self._too_late(waiter)))
        self._retry_puts(now_ns)

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

    def _begin(self, session: Session, put: Put, now_ns: int) -> Replica | Handle | Want:
        """Reserve, or say what has to be waited for."""
        current = self.table.current.get(put.key)
        if current is not None and put.mode is not PutMode.UPSERT:
            if put.mode is PutMode.PUT:
                raise Refusal(Code.EXISTS, "an object of that key exists")
            self._check_handle(session)
            return self._take(session, current, now_ns)
        if put.key in self.table.writing:
            return Want.TURN
        # Looked at here, not when the put came: others of its client may have begun while it waited.
        if len(session.reservations) >= self.config.reservations_max:
            raise Refusal(
                Code.NO_SPACE,
                f"this client has {len(session.reservations)} unpublished puts; publish or abort some first",
            )
        if put.contract is not PLAIN:
            self.pins.check_cap(put)
        offset = self.space.reserve(put.nbytes)
        if offset is None:
            return Want.ROOM
        self._last_replica_id += 1
        replica = Replica(
            self._last_replica_id,
            put.key,
            self._clock.next(now_ns),
            offset,
            put.nbytes,
            put.kind,
            put.contract,
            ReplicaState.WRITING,
            session.session_id,
            now_ns,
        )
        self.table.add_writing(replica)
        self.pins.reserve(replica)
        session.reservations[replica.replica_id] = replica
        return replica

    def _continue(self, waiter: Waiter, now_ns: int) -> None:
        """Try a waiting put again: it is answered, or waits on for what now stands in its way."""
        assert waiter.put is not None
        try:
            answer = self._begin(waiter.session, waiter.put, now_ns)
        except Refusal as refusal:
            self._answer(waiter, refusal)
            return
        if isinstance(answer, Want):
            self.waiting.turn_into(waiter, answer)
        else:
            self._answer(waiter, answer)

    def _settle_key(self, key: str, now_ns: int) -> None:
        """The writer of *key* has published or given up: answer those who waited for that."""
        waiters = self.waiting.of_key(key)
        if not waiters:
            return
        current = self.table.current.get(key)
        # Readers first: what is readable now may be replaced by a put that waits for its turn, but not before they
        # hold it.
        if current is not None:
            for waiter in waiters:
                if waiter.want is Want.READ:
                    self._grant(waiter, current, now_ns)
                elif waiter.want is Want.PRESENCE:
                    self._answer(waiter, None)
        for waiter in waiters:
            if waiter.put is not None:
                self._continue(waiter, now_ns)
        if current is None and key not in self.table.writing:
            for waiter in waiters:
                if waiter.open and waiter.want is Want.READ:
                    self._answer(waiter, Refusal(Code.NOT_FOUND, "its writer gave up"))

    def _retry_puts(self, now_ns: int) -> None:
        """Room came back, or others came into view: try the puts that wait for room, first come first."""
        if not (self._room_came_back or self.waiting.moved_up):
            return
        passed_over = 0  # they stay at the front of the queue
        while batch := list(islice(self.waiting.for_room.values(), passed_over, PUTS_RETRIED_MAX)):
            for waiter in batch:
                self._continue(waiter, now_ns)
                passed_over += waiter.open and waiter.want is Want.ROOM
        self._room_came_back = self.waiting.moved_up = False

    def _wait(
        self,
        session: Session,
        want: Want,
        key: str,
        now_ns: int,
        deadline_ns: int,
        put: Put | None = None,
    ) -> Waiter:
        waiter = Waiter(
            session=session,
            want=want,
            key=key,
            put=put,
            deadline_ns=deadline_ns,
            began_ns=now_ns,
        )
        if deadline_ns <= now_ns:
            raise self._too_late(waiter)
        if len(self.waiting) >= self.config.waiters_max:
            raise Refusal(Code.NOT_READY, f"{len(self.waiting)} requests wait already; try again later")
        self.waiting.add(waiter)
        return waiter

    def _too_late(self, waiter: Waiter) -> Refusal:
        waited_s = max(0, waiter.deadline_ns - waiter.began_ns) / 1e9
        if waiter.want is Want.PRESENCE:
            return Refusal(Code.TIMEOUT, f"not there after {waited_s:g} s")
        if waiter.want is not Want.ROOM:
            writer = self.table.writing[waiter.key].writer
            session = self.sessions[writer]
            return Refusal(
                Code.NOT_READY,
                f"still being written by {session.name} (pid {session.pid}) after {waited_s:g} s",
            )
        assert waiter.put is not None
        room = room_report(self.space, self.table, self.held)
        return Refusal(Code.NO_SPACE, f"no room for {waiter.put.nbytes} bytes within {waited_s:g} s: {room}")

    def _check_handle(self, session: Session) -> None:
        if len(session.handles) >= self.config.handles_max:
            raise Refusal(
                Code.INVALID_ARGUMENT,
                f"this client holds {len(session.handles)} views; release some first",
            )

    def _take(self, session: Session, replica: Replica, now_ns: int) -> Handle:
        self.handle_count += 1
        if replica.refs == 0:
            self.held.count += 1
            self.held.nbytes += replica.nbytes
        return session.take(replica, now_ns)

    def _grant(self, waiter: Waiter, replica: Replica, now_ns: int) -> None:
        try:
            self._check_handle(waiter.session)
        except Refusal as refusal:
            self._answer(waiter, refusal)
        else:
            self._answer(waiter, self._take(waiter.session, replica, now_ns))

    def _answer(self, waiter: Waiter, outcome: Outcome) -> None:
        self.waiting.close(waiter)
        self.outbox.append((waiter, outcome))

    @staticmethod
    def _reservation(session: Session, replica_id: int) -> Replica:
        replica = session.reservations.get(replica_id)
        if replica is None:
            raise Refusal(Code.ILLEGAL_CLIENT, f"this client has no reservation {replica_id}")
        return replica

    def _abandon(self, session: Session, replica: Replica, now_ns: int) -> None:
        """Free a reservation that its writer no longer stores into."""
        del session.reservations[replica.replica_id]
        self.pins.stop(replica)
        was_writing = replica.state is ReplicaState.WRITING
        self.table.abandon_writing(replica)
        self._free(replica)
        if was_writing:
            self._settle_key(replica.key, now_ns)

    def _retire(self, replica: Replica) -> None:
        """A replica without a name: free, or stashed while it is read."""
        self.pins.stop(replica)
        if replica.refs:
            self.table.stash_away(replica)
        else:
            self._forget(replica)

    def _forget(self, replica: Replica) -> None:
        self.table.forget(replica)
        self._free(replica)

    def _free(self, replica: Replica) -> None:
        self.space.free(replica.offset, replica.nbytes)
        self._room_came_back = True
