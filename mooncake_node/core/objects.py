"""The life of replicas: joins table, room, pins, leases, lists and disk copies, so that they never disagree.

Every method is one whole step of one replica's life. Who may take it, and who waits for it, is the master's business.
"""

from collections.abc import Sequence

import msgspec

from mooncake_node.core.config import MasterConfig
from mooncake_node.core.disk import Disk
from mooncake_node.core.generations import GenerationClock
from mooncake_node.core.index_pins import IndexPins
from mooncake_node.core.jobs import Delete, Errand, Found, Job, Retell, Withdraw
from mooncake_node.core.leases import Leases
from mooncake_node.core.lists import Lists
from mooncake_node.core.pins import Pins
from mooncake_node.core.readers import Readers
from mooncake_node.core.replica import PLAIN, Rank, Replica, ReplicaState, Shelf
from mooncake_node.core.sessions import Handle, Held, Session
from mooncake_node.core.space import Space, footprint
from mooncake_node.core.table import MetaMap
from mooncake_node.core.waiting import Put, PutMode

_COMPLETE, _ISOLATED, _STASHED, _ON_DISK = (
    ReplicaState.COMPLETE,
    ReplicaState.ISOLATED,
    ReplicaState.STASHED,
    ReplicaState.ON_DISK,
)


class Counters(msgspec.Struct):
    """What reclaim has done, in replicas."""

    dropped: int = 0  # memory freed at once: nothing had to be kept, or it was on disk already
    offloaded: int = 0  # memory freed after a copy was written
    parked_lease_only: int = 0  # taken off the lists by a lease
    parked_ref_only: int = 0  # by a reference
    parked_lease_and_ref: int = 0  # parked by one, then kept by the other too


class Objects:
    """Every replica of this node and the room it takes."""

    def __init__(self, config: MasterConfig, clock: GenerationClock, disk: Disk, readers: Readers) -> None:
        self.space = Space(config.pool_nbytes)
        self.table = MetaMap()
        self.pins = Pins(config)
        self.leases = Leases(config.lease_ttl_ns)
        self.lists = Lists(readers)
        self.disk = disk
        self.held = Held()
        self.counters = Counters()
        # For the shell, which empties it after each call.
        self.jobs: list[Job] = []
        self.errands: list[Errand] = []
        # All and only the replicas with bytes in G, by offset.
        self.at: dict[int, Replica] = {}
        # On their way to disk; their room comes back if that succeeds.
        self.isolated_nbytes = 0
        # Without a name, and kept until their entries are withdrawn from the directory.
        self.leaving_nbytes = 0
        # Somebody who waits for room may find some.
        self.room_came_back = False
        self.index = IndexPins(readers, elsewhere=int(config.has_peers))
        self._offload_unpinned = config.offload_unpinned
        self.clock = clock
        self._last_replica_id = 0

    # -- put ---------------------------------------------------------------------------------------------------------

    def begin(self, put: Put, offset: int, writer: int, now_ns: int) -> Replica:
        """A reservation of a new generation, at *offset*."""
        replica = self._make(put.key, self.clock.next(now_ns), put.nbytes, put.kind, offset, now_ns)
        replica.contract = put.contract
        replica.writer = writer
        replica.replaces = put.mode is PutMode.UPSERT
        self.table.add_writing(replica)
        self.pins.reserve(replica)
        return replica

    def publish(self, replica: Replica, now_ns: int) -> None:
        """The reservation becomes readable and replaces what was."""
        self._published(replica, self.table.publish(replica, now_ns), now_ns)

    def place(self, put: Put, offset: int, now_ns: int) -> Replica:
        """A new generation at *offset* that no table knows of until `publish_placed`."""
        replica = self._make(put.key, self.clock.next(now_ns), put.nbytes, put.kind, offset, now_ns)
        replica.contract = put.contract
        return replica

    def publish_placed(self, replica: Replica, now_ns: int) -> None:
        """`publish` of what `place` gave."""
        self.pins.reserve(replica)
        self._published(replica, self.table.publish_placed(replica), now_ns)

    def place_many(self, puts: Sequence[Put], offsets: Sequence[int], now_ns: int) -> list[Replica]:
        """`place` for each."""
        make, next_generation = self._make, self.clock.next
        return [
            make(put.key, next_generation(now_ns), put.nbytes, put.kind, offset, now_ns)
            for put, offset in zip(puts, offsets, strict=True)
        ]

    def publish_many(self, replicas: Sequence[Replica]) -> None:
        """`publish_placed` for each of *replicas*, which have no contract and replace nothing."""
        self.table.publish_new(replicas)
        self.index.publish_many(replicas)
        if replicas[0].nbytes:
            self.lists.enter_many(replicas, Rank.PLAIN)

    def _published(self, replica: Replica, replaced: Replica | None, now_ns: int) -> None:
        self.pins.start(replica, now_ns)
        if replaced is None:
            self.index.publish(replica)
        else:
            # In between neither is in the index: whoever looks there meanwhile must know that this says nothing.
            self.index.count_unlisted(1)
            self.retire(replaced, now_ns)
            self.index.publish(replica)
            self.index.count_unlisted(-1)
        self.shelve(replica, now_ns)

    def abandon(self, replica: Replica) -> None:
        """Free a reservation that nobody stores into any more."""
        self.pins.stop(replica)
        self.table.abandon_writing(replica)
        self._free(replica)

    # -- use ---------------------------------------------------------------------------------------------------------

    def take(self, session: Session, replica: Replica, now_ns: int) -> Handle:
        """One more reference; a listed replica is parked."""
        if not replica.refs:
            self.held.count += 1
            self.held.nbytes += replica.nbytes
            if replica.shelf is not Shelf.NONE:
                self.park(replica, by_lease=False, kept=replica.shelf is Shelf.PARKED)
        return session.take(replica, now_ns)

    def let_go(self, session: Session, handle_id: int, now_ns: int) -> bool:
        """Give one reference back; False if it was given back before."""
        replica = session.let_go(handle_id)
        if replica is None:
            return False
        if not replica.refs:
            self.held.count -= 1
            self.held.nbytes -= replica.nbytes
            self.released(replica, now_ns)
        return True

    def lease(self, replica: Replica, now_ns: int) -> int:
        """Promise a remote reader that *replica* stays readable for a while; the token that ends the promise."""
        assert replica.state in (_COMPLETE, _ISOLATED)
        leased = replica.leased_until_ns > now_ns
        token = self.leases.grant(replica, now_ns)
        if not leased and replica.shelf is not Shelf.NONE:
            self.park(replica, by_lease=True, kept=replica.shelf is Shelf.PARKED)
        return token

    def release_lease(self, replica: Replica, token: int, now_ns: int) -> None:
        """End a lease early; a token that is not running changes nothing."""
        if self.leases.release(replica, token, now_ns):
            self.released(replica, now_ns)

    def expire(self, now_ns: int) -> None:
        """End the leases and soft pins whose time has come."""
        for replica in self.leases.expire(now_ns):
            self.released(replica, now_ns)
        for replica in self.pins.expire(now_ns):
            self.contract_changed(replica)
            self._retell(replica)

    def contract_changed(self, replica: Replica) -> None:
        """List a readable replica as its present contract says."""
        if self.table.current.get(replica.key) is not replica:
            return
        self.disk.judge(replica)
        if replica.shelf in (Shelf.INACTIVE, Shelf.ACTIVE):
            self.lists.leave(replica)
            self.enlist(replica)

    # -- the end -----------------------------------------------------------------------------------------------------

    def remove(self, replica: Replica, now_ns: int) -> None:
        """Take the name of a readable replica away."""
        self.table.unname(replica.key)
        self.retire(replica, now_ns)

    def retire(self, replica: Replica, now_ns: int, *, is_cleared: bool = False) -> None:
        """A replica without a name: free, or stashed while it is read. Its copy on disk goes too.

        *is_cleared*: with all others at once; then the copy is the business of whoever cleared.
        """
        self.pins.stop(replica)
        self.lists.leave(replica)
        self.index.withdraw(replica, is_cleared=is_cleared)
        if not is_cleared and (replica.copy is not None or replica.transfers):
            self.jobs.append(Delete(replica))
        if replica.told:
            self._withdraw(replica, is_cleared=is_cleared)
        if replica.copy is not None:
            self.disk.forget(replica)
        if replica.state is _ISOLATED:
            self.isolated_nbytes -= footprint(replica.nbytes)
        if replica.state is _ON_DISK:
            self.table.forget(replica)
        elif replica.is_kept(now_ns):
            self.table.stash_away(replica)
        else:
            self._forget(replica)

    def forget_lists(self) -> None:
        """Every object has lost its name: none of them is found or a victim any more, nor is its copy."""
        self.index.clear()
        self.lists.clear()
        self.disk.spare.clear()

    def sweep(self, now_ns: int) -> None:
        """Readers by the index have let go of something, or may never have had it: let go of that too."""
        for replica in self.index.sweep():
            if replica.state is _STASHED:
                self.index.readers.unlist([replica])
            else:
                self.index.readers.want(replica, wanted=False)
            self.released(replica, now_ns)

    # -- load --------------------------------------------------------------------------------------------------------

    def begin_load(self, on_disk: Replica, offset: int, now_ns: int) -> Replica:
        """Room, at *offset*, for an object that is on disk alone."""
        replica = self._make(on_disk.key, on_disk.generation, on_disk.nbytes, on_disk.kind, offset, now_ns)
        self.table.add_loading(replica)
        return replica

    def publish_loaded(self, replica: Replica) -> None:
        """The object is in memory again, and its copy stays: clean."""
        on_disk = self.table.publish_loaded(replica)
        replica.since_ns, replica.told, replica.checksum = on_disk.since_ns, on_disk.told, on_disk.checksum
        self.pins.hand_over(on_disk, replica)
        self.disk.hand_over(on_disk, replica)
        self.index.publish(replica)
        self.index.withdraw(on_disk)
        self.enlist(replica)
        self._retell(replica)

    def begin_pull(self, key: str, found: Found, offset: int, now_ns: int) -> Replica:
        """Room, at *offset*, for a copy of what another node has."""
        self.clock.observe(found.generation)
        replica = self._make(key, found.generation, found.nbytes, found.kind, offset, now_ns)
        self.table.add_loading(replica)
        return replica

    def publish_pulled(self, replica: Replica, found: Found) -> None:
        """The copy is complete, and the directory has it: a secondary replica."""
        replica.owner, replica.told = found.owner, True
        replica.remembered, replica.softpin_until_ns = found.contract, found.softpin_until_ns
        self.table.publish_pulled(replica)
        self.index.publish(replica)
        self.enlist(replica)

    def set_in_quarantine(self, replica: Replica) -> None:
        """The transfer into *replica* has failed and may still write."""
        self.table.set_in_quarantine(replica)

    def drop_copy(self, replica: Replica) -> None:
        """The copy of a replica in memory is there no more."""
        self.disk.forget(replica)
        self.contract_changed(replica)

    def adopt(self, found: Replica, record: object) -> None:
        """An object was found in the tier when the node started."""
        self._last_replica_id += 1
        found.replica_id = self._last_replica_id
        assert found.key not in self.table.current
        self.table.current[found.key] = found
        self.pins.adopt(found)
        self.disk.add(found, record)
        self.index.count_unlisted(1)

    # -- other nodes -------------------------------------------------------------------------------------------------

    def lend(self, replica: Replica) -> None:
        """A transfer to another node reads the memory of a leased replica from here on."""
        replica.loans += 1

    def give_back(self, replica: Replica, now_ns: int) -> None:
        """That transfer is over."""
        replica.loans -= 1
        self.released(replica, now_ns)

    def withdrawn(self, replica: Replica, now_ns: int) -> None:
        """The directory has *replica* no more; it was kept for that."""
        self.leaving_nbytes -= footprint(replica.nbytes)
        self.give_back(replica, now_ns)

    def promote(self, replica: Replica) -> None:
        """A secondary replica is the owner's from here on, under the contract it has remembered."""
        replica.owner = None
        replica.contract, replica.remembered = replica.remembered or PLAIN, None
        self.pins.adopt(replica)
        self.index.promote(replica)
        self.contract_changed(replica)

    def _withdraw(self, replica: Replica, *, is_cleared: bool) -> None:
        """An entry is withdrawn before the memory is freed; after a clear nobody believes it any more."""
        replica.told = False
        is_held = not is_cleared and replica.state is not _ON_DISK
        if is_held:
            replica.loans += 1
            self.leaving_nbytes += footprint(replica.nbytes)
        self.errands.append(Withdraw(replica, is_held))

    def _retell(self, replica: Replica) -> None:
        if replica.told:
            self.errands.append(Retell(replica))

    # -- how it is done ----------------------------------------------------------------------------------------------

    def _make(self, key: str, generation: int, nbytes: int, kind: int, offset: int, now_ns: int) -> Replica:
        self._last_replica_id += 1
        replica = Replica(self._last_replica_id, key, generation, offset, nbytes, kind, now_ns)
        if nbytes:
            self.at[offset] = replica
        return replica

    def shelve(self, replica: Replica, now_ns: int) -> None:
        """List a replica in memory, or park it while somebody reads it."""
        if replica.is_kept(now_ns) and _is_victim(replica):
            replica.shelf = Shelf.PARKED
        else:
            self.enlist(replica)

    def enlist(self, replica: Replica) -> None:
        """List a replica that nobody reads, where its contract says."""
        # Not if a clear has cut it off: a victim is found by its name.
        if _is_victim(replica) and self.table.current.get(replica.key) is replica:
            rank = Rank.PLAIN
            if replica.copy is not None or replica.owner is not None:
                rank = Rank.CLEAN
            elif replica.contract.softpin:
                rank = Rank.PINNED
            self.lists.enter(replica, rank)

    def park(self, replica: Replica, *, by_lease: bool, kept: bool) -> None:
        """Take a replica off the lists while it is read; *kept*: it was parked before, for another reason."""
        counters = self.counters
        if kept:
            counters.parked_lease_and_ref += 1
        elif by_lease:
            counters.parked_lease_only += 1
        else:
            counters.parked_ref_only += 1
        self.lists.leave(replica, Shelf.PARKED)

    def released(self, replica: Replica, now_ns: int) -> None:
        """The last of something that kept a replica is gone: if nothing else does, it may go."""
        if replica.is_kept(now_ns):
            return
        if replica.state is _STASHED:
            self._forget(replica)
        elif replica.shelf is Shelf.PARKED:
            # Second chance. Only a reader sets the flag, so what nobody reads still ages.
            replica.accessed = True
            self.enlist(replica)
            self.room_came_back = True

    def leave_memory(self, replica: Replica) -> None:
        """A replica with a copy on disk that nobody reads is there alone from here on."""
        self.table.leave_memory(replica)
        self.disk.memory_gone(replica)
        self._free(replica)
        self._retell(replica)

    def _forget(self, replica: Replica) -> None:
        self.table.forget(replica)
        self._free(replica)

    def _free(self, replica: Replica) -> None:
        self.leases.forget(replica)
        if replica.nbytes:
            del self.at[replica.offset]
        self.space.free(replica.offset, replica.nbytes)
        self.room_came_back = True


def _is_victim(replica: Replica) -> bool:
    """Whether reclaim may ever take it: it takes room, and is not pinned hard."""
    return replica.nbytes > 0 and not replica.contract.hardpin
