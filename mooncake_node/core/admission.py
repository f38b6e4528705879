"""Who may begin a put or a read now, who has to wait and for what, and what those who waited are told.

Readers wait for a writer or for a load; puts wait for a writer or for room, in order of arrival. Every waiter is
answered exactly once, through the outbox, unless it is cancelled.
"""

from itertools import islice

from mooncake_client.codes import Code
from mooncake_node.core.config import MasterConfig
from mooncake_node.core.jobs import Found, Loading
from mooncake_node.core.loads import Loads
from mooncake_node.core.objects import Objects
from mooncake_node.core.reclaim import Reclaim
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.replica import PLAIN, Replica, ReplicaState
from mooncake_node.core.report import room_report
from mooncake_node.core.sessions import Handle, Session
from mooncake_node.core.waiting import PUTS_RETRIED_MAX, Outcome, Put, PutMode, Waiter, WaitingRoom, Want

# Of a load that waits for room: it ends when nobody waits for it any more.
_NEVER_NS = 1 << 62
# Keys known to have been lost are remembered, so that whoever asks for one is told; the oldest are forgotten.
LOST_MAX = 65_536


class Admission:
    """Begins what can begin, keeps the rest waiting."""

    def __init__(self, config: MasterConfig, objects: Objects, reclaim: Reclaim, sessions: dict[int, Session]) -> None:
        self._config = config
        self._objects = objects
        self._table = objects.table
        self._reclaim = reclaim
        self._sessions = sessions
        self.waiting = WaitingRoom()
        self.loads = Loads(objects, reclaim, has_peers=config.has_peers)
        self.outbox: list[tuple[Waiter, Outcome]] = []
        # Secondary replicas are served until then: whoever is cut off for longer would not hear of a remove.
        self.secondaries_until_ns = 1 << 62
        # Gets answered at once from this node's memory.
        self.local_hits = 0
        # Soft-pinned objects whose last copy could not be read, in order of loss: key -> what happened.
        self.lost: dict[str, str] = {}
        # Loads wait for room among the puts, under this name.
        self._loader = Session(0, "loads", 0, readonly=False)

    # -- put -----------------------------------------------------------------------------------------------------

    def put(self, session: Session, put: Put, now_ns: int, deadline_ns: int | None) -> Replica | Handle | Waiter | Want:
        """See Master.put_start; *put* is allowed as such."""
        answer = self._begin(session, put, now_ns)
        if not isinstance(answer, Want) or deadline_ns is None:
            return answer
        waiter = self._enter(session, answer, put.key, now_ns, deadline_ns, put)
        if answer is Want.LOAD:
            self._begin_load(put.key, self._table.current[put.key], now_ns)
        return waiter

    def place(self, put: Put, now_ns: int) -> Replica | None:
        """See Master.place; *put* is allowed as such."""
        if put.key in self._table.current and put.mode is not PutMode.UPSERT:
            raise Refusal(Code.EXISTS, "an object of that key exists")
        if put.key in self._table.writing:
            return None
        if put.contract is not PLAIN:
            self._objects.pins.check_cap(put)
        offset = self._reclaim.find_room_for(put, now_ns)
        return None if offset is None else self._objects.place(put, offset, now_ns)

    def _begin(self, session: Session, put: Put, now_ns: int, waiter: Waiter | None = None) -> Replica | Handle | Want:
        """Reserve, or say what has to be waited for."""
        current = self._table.current.get(put.key)
        if current is not None and put.mode is not PutMode.UPSERT:
            if put.mode is PutMode.PUT:
                raise Refusal(Code.EXISTS, "an object of that key exists")
            self.check_handle(session)
            self.check_served(current, now_ns)
            if current.state is ReplicaState.ON_DISK:
                return Want.LOAD
            return self._objects.take(session, current, now_ns)
        if put.key in self._table.writing:
            return Want.TURN
        # Looked at here, not when the put came: others of its client may have begun while it waited.
        if len(session.reservations) >= self._config.reservations_max:
            raise Refusal(
                Code.NO_SPACE,
                f"this client has {len(session.reservations)} unpublished puts; publish or abort some first",
            )
        if put.contract is not PLAIN:
            self._objects.pins.check_cap(put)
        offset = self._reclaim.find_room_for(put, now_ns, waiter)
        if offset is None:
            return Want.ROOM
        replica = self._objects.begin(put, offset, session.session_id, now_ns)
        session.reservations[replica.replica_id] = replica
        return replica

    # -- get -----------------------------------------------------------------------------------------------------

    def acquire(self, session: Session, key: str, now_ns: int, deadline_ns: int) -> Handle | Waiter:
        """See Master.acquire."""
        replica = self._table.current.get(key)
        if replica is not None:
            self.check_handle(session)
            self.check_served(replica, now_ns)
            if replica.state is not ReplicaState.ON_DISK:
                self.local_hits += 1
                return self._objects.take(session, replica, now_ns)
        elif key in self._table.writing and not self._may_replace_far(key):
            return self._enter(session, Want.READ, key, now_ns, deadline_ns)
        elif not self._config.has_peers:
            raise self.missing(key)
        else:
            self.check_handle(session)
        waiter = self._enter(session, Want.LOAD, key, now_ns, deadline_ns)
        self._begin_load(key, replica, now_ns)
        return waiter

    def wait(self, session: Session, key: str, now_ns: int, deadline_ns: int) -> Waiter | None:
        """See Master.wait."""
        if self.is_readable(key, now_ns):
            return None
        return self._enter(session, Want.PRESENCE, key, now_ns, deadline_ns)

    def is_readable(self, key: str, now_ns: int) -> bool:
        """Whether *key* can be read from this node, from its memory or its tier."""
        replica = self._table.current.get(key)
        return replica is not None and (replica.owner is None or now_ns < self.secondaries_until_ns)

    def readable(self, key: str, now_ns: int) -> Replica:
        """See Master.readable."""
        replica = self._table.current.get(key)
        if replica is not None:
            self.check_served(replica, now_ns)
            return replica
        if key in self._table.writing and not self._may_replace_far(key):
            raise Refusal(Code.NOT_READY, "being written")
        raise self.missing(key)

    def _may_replace_far(self, key: str) -> bool:
        """What is written may replace what another node has, which can be read until then."""
        return self._config.has_peers and self._table.writing[key].replaces

    def check_served(self, replica: Replica, now_ns: int) -> None:
        """Refuse a secondary replica while this node is cut off: it may be removed elsewhere."""
        if replica.owner is not None and now_ns >= self.secondaries_until_ns:
            raise Refusal(Code.NOT_FOUND, f"this node is cut off from {replica.owner}, which owns the object")

    def missing(self, key: str) -> Refusal:
        """What is said of a key that is not readable, nor being written."""
        if key in self.lost:
            return Refusal(Code.OBJECT_LOST, self.lost[key])
        return Refusal(Code.NOT_FOUND, "no such object")

    def check_handle(self, session: Session) -> None:
        """Refuse one more reference to a client that has too many."""
        if len(session.handles) >= self._config.handles_max:
            raise Refusal(Code.INVALID_ARGUMENT, f"this client holds {len(session.handles)} views; release some first")

    # -- load ----------------------------------------------------------------------------------------------------

    def _begin_load(self, key: str, on_disk: Replica | None, now_ns: int) -> None:
        if key in self.loads.by_key:
            self.loads.coalesced += 1
            return
        loading = self.loads.begin(key, on_disk, now_ns)
        if loading.into is None and not loading.seeking:
            self._queue(loading, now_ns)

    def _queue(self, loading: Loading, now_ns: int) -> None:
        """A load waits for room, among the puts."""
        waiter = loading.waiter = Waiter(
            session=self._loader, want=Want.ROOM, key=loading.key, deadline_ns=_NEVER_NS, began_ns=now_ns
        )
        waiter.nbytes = loading.nbytes
        self.waiting.add(waiter)

    def located(self, loading: Loading, found: Found | None, refusal: Refusal, now_ns: int) -> None:
        """What other nodes have of a key; None: nothing, and *refusal* is what its readers are told."""
        if self.loads.by_key.get(loading.key) is not loading or not loading.seeking:
            return
        loading.seeking = False
        self._take_from(loading, found, refusal, now_ns)

    def _take_from(self, loading: Loading, found: Found | None, refusal: Refusal, now_ns: int) -> None:
        on_disk = loading.on_disk
        # Of another generation: what this node has is being removed or replaced, and it will hear of that.
        loading.found = None if on_disk and found and found.generation != on_disk.generation else found
        quarantined_nbytes = self._table.quarantine_nbytes
        if loading.found is not None and quarantined_nbytes > self._config.quarantine_nbytes_max:
            loading.found = None
            refusal = Refusal(Code.NO_SPACE, f"{quarantined_nbytes} bytes wait for failed transfers to end")
        if loading.found is None and on_disk is None:
            self._fail(loading, self.missing(loading.key) if loading.key in self.lost else refusal, now_ns)
        elif not self._objects.space.could_fit(loading.nbytes):
            self._fail(loading, Refusal(Code.NO_SPACE, f"{loading.nbytes} bytes can never fit this pool"), now_ns)
        elif not self.loads.go_on(loading, now_ns):
            self._queue(loading, now_ns)

    def _fail(self, loading: Loading, refusal: Refusal, now_ns: int) -> None:
        self.loads.failed(loading)
        for waiter in self.waiting.of_key(loading.key):
            # Those who wait for what is not there wait on for one who writes it.
            if waiter.want is Want.LOAD and loading.key not in self._table.writing:
                self._answer(waiter, refusal)
        self.settle_key(loading.key, now_ns)

    def pull_done(
        self,
        into: Replica,
        failure: Refusal | None,
        now_ns: int,
        *,
        again: Found | None,
        from_disk: bool,
        quiesced: bool,
    ) -> None:
        """A pull has ended; see Master.pull_done."""
        if into.state is ReplicaState.DOOMED:
            if quiesced:
                self._objects.abandon(into)
            return
        loading = self.loads.by_key[into.key]
        if failure is None and loading.on_disk is None and now_ns >= self.secondaries_until_ns:
            # Cut off since the directory took it: whoever asked after that might get what was removed meanwhile.
            failure, again = Refusal(Code.NOT_FOUND, "this node was cut off while it was copied"), None
        if failure is None:
            self.loads.pulled(into, from_disk=from_disk)
            self.settle_key(into.key, now_ns)
            return
        loading.into = loading.waiter = None
        if quiesced:
            self._objects.abandon(into)
        else:
            self._objects.set_in_quarantine(into)
        if not quiesced and self._table.quarantine_nbytes + loading.nbytes > self._config.quarantine_nbytes_max:
            again = None  # it might end there too
        if self._is_wanted(loading):
            self._take_from(loading, again, failure, now_ns)
        else:
            self._fail(loading, failure, now_ns)

    def load_done(self, into: Replica, failure: Refusal | None, *, gone: bool, now_ns: int) -> None:
        """A load has ended: those who waited for it hear of it. *gone*: there is no copy any more."""
        if self.loads.done(into, complete=failure is None) and failure is not None:
            on_disk = self._table.current[into.key]
            self._objects.disk.failures += 1
            if gone:
                failure = self._lose(on_disk, failure, now_ns)
            for waiter in self.waiting.of_key(into.key):
                # A put that would have taken what is there writes, now that there is nothing.
                if waiter.want is Want.LOAD and (waiter.put is None or not gone):
                    self._answer(waiter, failure)
        self.settle_key(into.key, now_ns)

    def end_load(self, key: str) -> None:
        """The load of *key* is for nothing: the object lost its name, or nobody waits for it."""
        loading = self.loads.give_up(key)
        if isinstance(loading.waiter, Waiter):
            self.waiting.close(loading.waiter)

    def seek_anew(self, key: str, now_ns: int) -> None:
        """What is being loaded was replaced on another node: those who wait for it are to get what is there now."""
        self.end_load(key)
        if key not in self._table.writing and any(w.want is Want.LOAD for w in self.waiting.of_key(key)):
            self._begin_load(key, None, now_ns)
        self.settle_key(key, now_ns)
        self.retry(now_ns)

    def _lose(self, on_disk: Replica, failure: Refusal, now_ns: int) -> Refusal:
        """The last copy of an object could not be read and is no more; what its readers are told."""
        key, pinned = on_disk.key, on_disk.contract.softpin
        self._objects.remove(on_disk, now_ns)
        if not pinned:
            return Refusal(Code.NOT_FOUND, f"no such object any more: {failure.message}")
        while len(self.lost) >= LOST_MAX:
            del self.lost[next(iter(self.lost))]
        self.lost[key] = f"its last copy could not be read: {failure.message}"
        return self.missing(key)

    # -- those who wait --------------------------------------------------------------------------------------------

    def changed(self, key: str, now_ns: int) -> None:
        """*key* has another readable replica than before, or none."""
        if key in self.loads.by_key:
            self.end_load(key)
        if key in self.waiting.by_key:
            self.settle_key(key, now_ns)
        self.retry(now_ns)

    def settle_key(self, key: str, now_ns: int) -> None:
        """What can be read or written of *key* has changed: answer those who waited for that."""
        waiters = self.waiting.of_key(key)
        if not waiters:
            return
        current = self._table.current.get(key)
        # Readers first: what is readable now may be replaced by a put that waits for its turn, but not before they
        # hold it.
        if current is not None:
            for waiter in waiters:
                if waiter.want is Want.PRESENCE:
                    self._answer(waiter, None)
                elif waiter.want in (Want.READ, Want.LOAD) and current.state is not ReplicaState.ON_DISK:
                    self._grant(waiter, current, now_ns)
        for waiter in waiters:
            if waiter.open and waiter.put is not None:
                self._continue(waiter, now_ns)
        if current is None:
            for waiter in waiters:
                if waiter.open and waiter.want in (Want.READ, Want.LOAD):
                    self._wait_on(waiter, now_ns)

    def _wait_on(self, waiter: Waiter, now_ns: int) -> None:
        """A reader of a key that is not readable waits on, if there is anything to wait for."""
        key, was_loading = waiter.key, waiter.want is Want.LOAD
        if was_loading and key in self.loads.by_key:
            return
        if key in self._table.writing:
            self.waiting.turn_into(waiter, Want.READ)
        elif self._config.has_peers and not was_loading:
            # Its writer gave up, perhaps because another node has it.
            self.waiting.turn_into(waiter, Want.LOAD)
            self._begin_load(key, None, now_ns)
        else:
            told = "it was removed" if was_loading else "its writer gave up"
            self._answer(waiter, Refusal(Code.NOT_FOUND, f"{told} before it could be read"))

    def appeared(self, key: str) -> None:
        """*key* is readable on another node."""
        for waiter in self.waiting.of_key(key):
            if waiter.want is Want.PRESENCE:
                self._answer(waiter, None)

    def retry(self, now_ns: int) -> None:
        """Room came back, or others came into view: try those who wait for room, first come first."""
        self._reclaim.windows.gather()
        if not (self._objects.room_came_back or self.waiting.moved_up):
            return
        passed_over, too_large_nbytes = 0, 1 << 62  # they stay at the front of the queue; no room for that much
        while batch := list(islice(self.waiting.for_room.values(), passed_over, PUTS_RETRIED_MAX)):
            for waiter in batch:
                if waiter.nbytes < too_large_nbytes:
                    self._continue(waiter, now_ns)
                if waiter.open and waiter.want is Want.ROOM:
                    passed_over += 1
                    too_large_nbytes = min(too_large_nbytes, waiter.nbytes)
        # What was dropped for one of them may have left room for one before it.
        while fitting := self.waiting.first_within(self._objects.space.largest_free_extent):
            self._continue(fitting, now_ns)
            assert fitting.want is not Want.ROOM or not fitting.open, "there was room"
        self._objects.room_came_back = self.waiting.moved_up = False

    def expire(self, now_ns: int) -> None:
        """Answer those whose time is up."""
        late = self.waiting.close_expired(now_ns)
        self.outbox += [(waiter, self._too_late(waiter, now_ns)) for waiter in late]
        for waiter in late:
            self._left(waiter)

    def cancel(self, waiter: Waiter) -> None:
        """The caller has given up; nothing will be answered."""
        self.waiting.close(waiter)
        self._left(waiter)

    def refuse_all(self, refusal: Refusal) -> None:
        """Everything is cleared: nothing that was begun goes on, but for those who wait for a key to be there."""
        for key in list(self.loads.by_key):
            self.end_load(key)
        for waiter in self.waiting.all_open():
            if waiter.want is not Want.PRESENCE:
                self._answer(waiter, refusal)

    def _left(self, waiter: Waiter) -> None:
        """Somebody waits no more: a load that nobody waits for need not wait for room either."""
        loading = self.loads.by_key.get(waiter.key)
        if loading is not None and loading.into is None and not self._is_wanted(loading):
            self.end_load(waiter.key)

    def _is_wanted(self, loading: Loading) -> bool:
        return any(waiter.want is Want.LOAD for waiter in self.waiting.of_key(loading.key))

    def _continue(self, waiter: Waiter, now_ns: int) -> None:
        """Try one that waits for its turn or for room again: it is answered, or waits on for what is in its way now."""
        if waiter.put is None:
            if self.loads.go_on(self.loads.by_key[waiter.key], now_ns):
                self.waiting.close(waiter)
            return
        try:
            answer = self._begin(waiter.session, waiter.put, now_ns, waiter)
        except Refusal as refusal:
            self._answer(waiter, refusal)
            return
        if not isinstance(answer, Want):
            self._answer(waiter, answer)
            return
        # A key that puts wait for cannot be on disk but for one whose load they wait for.
        assert answer is not Want.LOAD or waiter.want is Want.LOAD
        self.waiting.turn_into(waiter, answer)

    def _enter(
        self, session: Session, want: Want, key: str, now_ns: int, deadline_ns: int, put: Put | None = None
    ) -> Waiter:
        waiter = Waiter(
            session=session,
            want=want,
            key=key,
            put=put,
            deadline_ns=deadline_ns,
            began_ns=now_ns,
            nbytes=0 if put is None else put.nbytes,
        )
        if deadline_ns <= now_ns:
            raise self._too_late(waiter, now_ns)
        if len(self.waiting) >= self._config.waiters_max:
            raise Refusal(Code.NOT_READY, f"{len(self.waiting)} requests wait already; try again later")
        self.waiting.add(waiter)
        return waiter

    def _too_late(self, waiter: Waiter, now_ns: int) -> Refusal:
        waited_s = max(0, waiter.deadline_ns - waiter.began_ns) / 1e9
        if waiter.want is Want.PRESENCE:
            return Refusal(Code.TIMEOUT, f"not there after {waited_s:g} s")
        if waiter.want is Want.ROOM:
            return self._no_room(waiter.nbytes, waited_s, now_ns)
        if waiter.want is Want.LOAD:
            loading = self.loads.by_key.get(waiter.key)
            if loading is not None and loading.into is None and not loading.seeking:
                return self._no_room(loading.nbytes, waited_s, now_ns)
            return Refusal(Code.NOT_READY, f"still on its way into memory after {waited_s:g} s")
        writer = self._sessions[self._table.writing[waiter.key].writer]
        return Refusal(Code.NOT_READY, f"still being written by {writer.name} (pid {writer.pid}) after {waited_s:g} s")

    def _no_room(self, nbytes: int, waited_s: float, now_ns: int) -> Refusal:
        report = room_report(self._objects, self._sessions.values(), now_ns)
        return Refusal(Code.NO_SPACE, f"no room for {nbytes} bytes within {waited_s:g} s: {report}")

    def _grant(self, waiter: Waiter, replica: Replica, now_ns: int) -> None:
        try:
            self.check_handle(waiter.session)
        except Refusal as refusal:
            self._answer(waiter, refusal)
        else:
            self._answer(waiter, self._objects.take(waiter.session, replica, now_ns))

    def _answer(self, waiter: Waiter, outcome: Outcome) -> None:
        self.waiting.close(waiter)
        self.outbox.append((waiter, outcome))
