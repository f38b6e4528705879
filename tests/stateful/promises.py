"""What was promised, and to whom: the model of the local master.

It has no tables of states. It keeps what each key shows, who writes it, who holds which bytes, until when, and what
lies in the offload tier. Where the master may choose (which of the objects nobody reads has to go, and when), the model
learns by asking, and checks that the choice was allowed and that there was need for it.
"""

import msgspec

from mooncake_client.codes import Code
from mooncake_node.core.generations import EPOCH_MS, GenerationClock
from mooncake_node.core.jobs import Amend, Delete, Load, Offload
from mooncake_node.core.master import Master
from mooncake_node.core.pins import contract_for
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.replica import PLAIN, Replica, ReplicaState
from mooncake_node.core.sessions import Handle, Session
from mooncake_node.core.waiting import Put, Want
from tests.core.fake_readers import FakeReaders
from tests.stateful.setups import ADOPTED, LIMITS, PAGE, SLAB, Setup
from tests.stateful.tier import Tier, name_of

IN_MEMORY = (ReplicaState.COMPLETE, ReplicaState.ISOLATED)


class Object(msgspec.Struct, eq=False):
    """One generation, from its reservation until nobody may touch its bytes any more."""

    replica: Replica
    offset: int
    nbytes: int
    writer: Session | None
    put: Put
    in_memory: bool = True
    soft: bool = False
    soft_until: int | None = None
    cut: bool = False  # a clear has taken its name, its room has not come back yet
    copied: bool = False  # the master was told of a copy in the tier, and has not given it up
    offloaded: bool = False  # a copy is being written
    handles: set[tuple[int, int]] = msgspec.field(default_factory=set)
    leases: dict[int, int] = msgspec.field(default_factory=dict)  # token -> expiry

    @property
    def name(self):
        return (self.replica.key, self.replica.generation)

    @property
    def hard(self):
        return self.put.contract.hardpin


class Promises:
    """What must be so now; changed by the steps of the machine, checked against the master."""

    setup = Setup()

    def __init__(self):
        super().__init__()
        self.now = 100
        self.config = self.setup.config
        self.unit, self.pages = self.setup.unit, self.config.pool_nbytes // PAGE
        # Clients pin in there; not every object finds a place in it.
        self.readers = FakeReaders(records=5)
        self.master = Master(
            self.config, GenerationClock(EPOCH_MS * 1_000_000, floor=ADOPTED), readers=self.readers
        )  # fmt: skip
        self.open = [self.master.open_session(f"s{i}", 100 + i) for i in range(3)]
        self.dead: list[Session] = []
        self.shown: dict[str, Object] = {}
        self.written: dict[str, Object] = {}  # by the key its writer will give a name to
        self.live: dict[int, Object] = {}  # every one whose bytes must stay, by replica_id
        self.rooms: dict[int, Load] = {}  # being filled from the tier, or not known not to be, by replica_id
        self.cut_off: list[Object] = []  # by a clear, whether reaped since or not
        self.lost: set[str] = set()  # keys whose last copy the tier could not read
        self.tier = Tier()
        self.past: list[int] = []  # replica_ids that were once reserved
        self.tokens: list[tuple[str, int, int]] = []  # of every lease there was: key, replica_id, token
        self.untold: set[int] = set()  # replicas unpinned, and nobody has told the master
        self.generation = 0
        self.begin_step()

    def begin_step(self):
        """Nothing is known yet of what the next step will do."""
        # What a step did, for those who waited for it.
        self.published: set[str] = set()  # readable in memory: put, or loaded
        self.freed_keys: set[str] = set()  # no longer written
        self.removed: set[str] = set()
        self.failed: dict[str, Code] = {}  # loads that failed, and what their readers are told
        self.cleared = self.ticked = False
        self.may_drop = False  # whether reclaim had a reason to run
        self.may_rescue: Object | None = None

    # -- room, as a map of pages ---------------------------------------------------------------------------------

    def slabs(self):
        """Each page that is the first of a slab, with the pages of that slab."""
        found = {}
        for page in range(self.pages):
            slab = self.master.space.slab_at(page)
            if slab is not None:
                found[page] = range(page, page + slab[0])
        return found

    def used_pages(self, without=()):
        """Pages with bytes in them that must stay, and those kept for the head of the queue."""
        used: set[int] = set()
        page_of_slab = {page: pages for pages in self.slabs().values() for page in pages}
        taken = [(obj.offset, obj.nbytes) for obj in self.live.values() if obj not in without]
        taken += [(job.replica.offset, job.replica.nbytes) for job in self.rooms.values()]
        for offset, nbytes in taken:
            if nbytes > PAGE - 64:
                used.update(range(offset // PAGE, -(-(offset + nbytes) // PAGE)))
            elif nbytes:
                used.update(page_of_slab[offset // PAGE])
        return used | self.kept_pages()

    def kept_pages(self):
        return {page for start, count in self.master.reclaim.windows._held for page in range(start, start + count)}

    def free_nbytes(self):
        return (self.pages - len(self.used_pages())) * PAGE

    def fits(self, nbytes, without=()):
        """Whether there is room: a run of free pages, or a slot in a slab of that size."""
        used = self.used_pages(without)
        if nbytes == 0:
            return True
        if nbytes <= PAGE - 64:
            slot = -(-nbytes // 64) * 64
            if len(used) < self.pages:
                return True
            small = [obj for obj in self.live.values() if obj not in without and 0 < obj.nbytes <= PAGE - 64]
            small = [(obj.offset, obj.nbytes) for obj in small]
            small += [(j.replica.offset, j.replica.nbytes) for j in self.rooms.values() if 0 < j.replica.nbytes < PAGE]
            slots = [offset // PAGE for offset, other in small if -(-other // 64) * 64 == slot]
            for pages in self.slabs().values():
                count = sum(page in pages for page in slots)
                if count and count < len(pages) * PAGE // slot:
                    return True
            return False
        want, run = -(-nbytes // PAGE), 0
        for page in range(self.pages):
            run = 0 if page in used else run + 1
            if run == want:
                return True
        return False

    def can_go(self, *, surely=False, replaced=None):
        """Objects whose memory a put may have at once, but for the one that it is to replace.

        *surely*: whatever the timer and the tier are like.
        """
        found = [
            obj for obj in self.shown.values() if obj.in_memory and obj.nbytes and not (self.kept(obj) or obj.hard)
        ]
        found = [obj for obj in found if not obj.offloaded and (obj.copied or not (obj.soft or obj is replaced))]
        if surely:
            found = [obj for obj in found if not obj.leases and (obj.copied or not self.setup.offload_unpinned)]
            return [obj for obj in found if not obj.replica.pinned]
        stash = [obj for obj in self.nameless() if obj.replica.pinned and not (self.kept(obj) or obj.offloaded)]
        return found + stash

    def may_need_room(self, nbytes):
        """A put or a load of that size is about to begin."""
        left = self.free_nbytes() - (SLAB if 0 < nbytes < PAGE else -(-nbytes // PAGE) * PAGE)
        self.may_drop |= not self.fits(nbytes) or left < self.config.free_min_nbytes

    # -- what the model notes down -------------------------------------------------------------------------------

    def leased(self, obj):
        return any(expiry > self.now for expiry in obj.leases.values())

    def kept(self, obj, *, unasked=False):
        """Somebody may read its bytes in memory; *unasked*: and the master knows that without asking.

        The master may go on to believe that a pin is there (`Replica.pinned`) until it looks again.
        """
        return bool(obj.handles) or self.leased(obj) or (not unasked and bool(self.readers.holders(obj.replica)))

    def check_apart(self, replica):
        """Its bytes are nobody else's."""
        assert replica.replica_id not in self.past, "a replica_id came twice"
        self.past.append(replica.replica_id)
        assert replica.offset + replica.nbytes <= self.config.pool_nbytes
        others = [obj.replica for obj in self.live.values()] + [job.replica for job in self.rooms.values()]
        for other in others:
            assert (
                not replica.nbytes
                or not other.nbytes
                or replica.offset >= other.offset + other.nbytes
                or other.offset >= replica.offset + replica.nbytes
            ), "bytes that someone may still touch were given away"

    def reserved(self, session, put, replica):
        assert isinstance(replica, Replica)
        assert replica.key not in self.written, "two writers of one key"
        assert (replica.key, replica.nbytes, replica.contract) == (put.key, put.nbytes, put.contract)
        assert replica.state is ReplicaState.WRITING
        assert replica.generation > self.generation, "generations go back"
        self.check_apart(replica)
        self.generation = replica.generation
        obj = Object(replica, replica.offset, replica.nbytes, session, put)
        self.written[put.key] = self.live[replica.replica_id] = obj
        assert len(self.reservations(session)) <= LIMITS["reservations_max"]
        assert self.hard_nbytes() <= self.config.hard_pin_nbytes_max

    def held(self, session, obj, handle):
        assert isinstance(handle, Handle)
        assert obj.in_memory
        assert handle.replica is obj.replica, "a handle on another generation than the key shows"
        assert (handle.replica.offset, handle.replica.nbytes) == (obj.offset, obj.nbytes)
        assert all((session.session_id, handle.handle_id) not in other.handles for other in self.live.values())
        obj.handles.add((session.session_id, handle.handle_id))

    def settle(self, obj):
        """Its bytes are free as soon as it has no name, no writer, no reader and is not being copied."""
        if obj.writer or obj.cut or self.shown.get(obj.put.key) is obj or self.kept(obj) or obj.offloaded:
            return
        # One whose lease ran out may be kept until the next look at the clock; one that was pinned, at the pins.
        if not (obj.leases or obj.replica.pinned) or obj.replica.state is not ReplicaState.STASHED:
            self.live.pop(obj.replica.replica_id, None)

    def unname(self, obj):
        assert self.shown.pop(obj.put.key) is obj
        self.removed.add(obj.put.key)
        obj.copied = False
        self.settle(obj)

    def publish(self, obj):
        key = obj.put.key
        assert self.written.pop(key) is obj
        obj.writer = None
        old = self.shown.get(key)
        if old is not None:
            self.unname(old)
        self.shown[key] = obj
        self.lost.discard(key)
        if obj.put.contract.softpin:
            self.pinned(obj, obj.put.contract.softpin_ttl_ns)
        self.published.add(key)

    def pinned(self, obj, ttl):
        obj.soft, obj.soft_until = ttl != 0, None if ttl is None else self.now + ttl

    def give_up(self, obj):
        if self.written.get(obj.put.key) is obj:
            del self.written[obj.put.key]
            self.freed_keys.add(obj.put.key)
        obj.writer = None
        self.settle(obj)

    def let_go(self, session, handle_id):
        for obj in list(self.live.values()):
            if (session.session_id, handle_id) in obj.handles:
                obj.handles.remove((session.session_id, handle_id))
                self.settle(obj)

    def settle_all(self):
        for obj in [*self.live.values()]:
            self.settle(obj)

    def look_at_the_clock(self):
        """Leases and soft pins whose time is up have ended."""
        for obj in {id(obj): obj for obj in [*self.live.values(), *self.shown.values(), *self.cut()]}.values():
            obj.leases = {token: expiry for token, expiry in obj.leases.items() if expiry > self.now}
            if obj.soft and obj.soft_until is not None and obj.soft_until <= self.now:
                obj.soft = False
            self.settle(obj)

    def cut(self):
        return [obj for obj in self.cut_off if obj.cut]

    def named(self):
        return [*self.shown.values(), *self.cut()]

    def nameless(self):
        named = self.named()
        return [obj for obj in self.live.values() if obj not in named]

    def writers(self):
        return [obj for obj in self.live.values() if obj.writer]

    def reservations(self, session):
        return [obj for obj in self.live.values() if obj.writer is session]

    def handles(self, session):
        sid = session.session_id
        return sorted(hid for obj in self.live.values() for holder, hid in obj.handles if holder == sid)

    def hard_nbytes(self):
        return sum(obj.nbytes for obj in [*self.named(), *self.writers()] if obj.hard)

    def over_a_limit(self, session, put):
        too_hard = put.contract.hardpin and self.hard_nbytes() + put.nbytes > self.config.hard_pin_nbytes_max
        return too_hard or len(self.reservations(session)) >= LIMITS["reservations_max"]

    def pins_shown(self, key):
        """Pins on any generation of *key*, but for those of a clear, which nobody finds until they are reaped."""
        return [
            pin for pin in self.readers.live if pin.replica.key == key and not self.live[pin.replica.replica_id].cut
        ]

    def readable(self, key):
        try:
            return self.master.readable(key, self.now)
        except Refusal as refusal:
            return refusal.code

    def code_of(self, key):
        """What is said of a key that nothing is readable of."""
        if key in self.written:
            return Code.NOT_READY
        return Code.OBJECT_LOST if key in self.lost else Code.NOT_FOUND

    # -- what the master chose -----------------------------------------------------------------------------------

    def learn(self):
        """See what reclaim has done, and whether it was allowed to. Called first after each call, and when it is known
        what the call did to the promises themselves."""
        for obj in list(self.shown.values()):
            found = self.readable(obj.put.key)
            if isinstance(found, Code):
                self.was_dropped(obj)
                continue
            assert found is obj.replica
            if found.state is ReplicaState.ON_DISK and obj.in_memory:
                self.left_memory(obj)
        for obj in self.nameless():
            self.settle(obj)
        jobs, self.master.jobs[:] = self.master.jobs[:], []
        for job in jobs:
            if isinstance(job, Offload):
                self.is_to_be_written(job)
            elif isinstance(job, Load):
                self.is_to_be_read(job)
            elif isinstance(job, Amend):
                obj = self.shown[job.replica.key]
                assert obj.replica is job.replica
                assert obj.copied or obj.offloaded
            else:
                self.is_to_be_deleted(job)

    def was_dropped(self, obj):
        assert self.may_drop, "dropped without need"
        assert not obj.soft, "a soft-pinned object is gone"
        assert not obj.hard
        assert not self.kept(obj), "dropped while somebody reads it"
        assert not self.is_loaded(obj), "dropped while it is brought back"
        self.unname(obj)

    def left_memory(self, obj):
        assert obj.copied, "memory freed before the copy is safe"
        assert not obj.hard
        assert not self.kept(obj), "moved while somebody reads it"
        obj.in_memory = False
        obj.leases.clear()
        del self.live[obj.replica.replica_id]

    def is_to_be_written(self, job):
        obj = self.live[job.replica.replica_id]
        assert obj.replica is job.replica
        assert self.shown.get(obj.put.key) is obj
        assert not obj.offloaded
        assert not obj.copied
        if obj is not self.may_rescue:
            assert obj.soft or self.setup.offload_unpinned
            assert not obj.hard
            assert not self.kept(obj, unasked=True), "reclaim works on what is read"
            assert not obj.replica.pinned
        obj.offloaded = True
        self.tier.ask(job)

    def is_to_be_read(self, job):
        obj = self.shown[job.replica.key]
        assert obj.name == name_of(job.replica)
        assert not obj.in_memory
        assert job.record == self.tier.records[obj.name]
        assert not self.is_loaded(obj), "two loads of one object"
        self.check_apart(job.replica)
        self.rooms[job.replica.replica_id] = job

    def is_to_be_deleted(self, job):
        assert isinstance(job, Delete)
        obj = self.shown.get(job.replica.key)
        if obj is not None and obj.name == name_of(job.replica):
            assert obj.in_memory
            assert not obj.soft
            obj.copied = False
        self.tier.deletions.append(name_of(job.replica))

    def is_loaded(self, obj):
        """A job fills room for it."""
        if self.shown.get(obj.put.key) is not obj or obj.in_memory:
            return False
        return any(name_of(job.replica) == obj.name for job in self.rooms.values())

    def adopt(self, key, nbytes, soft_until):
        """An object that was in the tier when the node started."""
        record = self.tier.put((key, ADOPTED))
        contract = contract_for(softpin=True, softpin_ttl_ns=None, hardpin=False, scope="cluster")
        self.master.adopt(
            key=key, generation=ADOPTED, nbytes=nbytes, kind=0, contract=contract, softpin_until_ns=soft_until,
            record=record, now_ns=self.now,
        )  # fmt: skip
        put = Put(key=key, nbytes=nbytes, contract=PLAIN)
        self.shown[key] = Object(
            self.master.readable(key, self.now), 0, nbytes, None, put, False, True, soft_until, copied=True
        )  # fmt: skip

    def loads_waiting(self, entries):
        """Keys that are to be brought back and wait for room."""
        keys = {entry.waiter.key for entry in entries if entry.waiter.want is Want.LOAD}
        return {key for key in keys if not self.is_loaded(self.shown[key])}
