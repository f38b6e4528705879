"""One local master and the least of a shell around it that keeps the rules of order (SPEC 6).

Drops, clears and what was located are delivered twice. A call of the directory may lose its answer.
"""

from mooncake_client.codes import Code
from mooncake_node.core.audit import check_invariants
from mooncake_node.core.config import MasterConfig
from mooncake_node.core.generations import EPOCH_MS, GenerationClock
from mooncake_node.core.jobs import Found, Locate, Pull, Withdraw
from mooncake_node.core.master import Master
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.replica import PLAIN, Contract, ReplicaState
from mooncake_node.core.sessions import Handle
from mooncake_node.core.waiting import Put, PutMode, Waiter
from mooncake_node.directory.memory import MemoryDirectory
from mooncake_node.directory.port import Created, Creation, DirectoryAwayError, Holding, TooOld
from tests.stateful.cluster import MS, at_once, others
from tests.stateful.cluster_lives import FOR_EVER, Lives

PAGE = 4096
PAGES = 4
LEASE_TTL = 50 * MS
LOOKS_MAX = 3
_IN_MEMORY = (ReplicaState.COMPLETE, ReplicaState.ISOLATED, ReplicaState.STASHED)


class Node(Lives):
    """One life or several of one master."""

    def __init__(self, cluster, name):
        self.cluster = cluster
        self.name = name
        self.directory = MemoryDirectory(cluster.server)
        self.life = at_once(self.directory.join(name, "here:1"))
        config = MasterConfig(
            pool_nbytes=PAGES * PAGE, has_peers=True, lease_ttl_ns=LEASE_TTL, quarantine_nbytes_max=2 * PAGE
        )
        self.master = Master(config, GenerationClock(EPOCH_MS * 1_000_000, slot=self.life.slot))
        self.master.clear_epoch = cluster.server.clear_epoch
        self.master.peers.serve_secondaries_until(FOR_EVER)
        self.is_serving = True
        self.session = self.master.open_session(name, 1)
        self.memory: dict[int, object] = {}  # what lies at an offset
        self.asked: dict[Waiter, object] = {}  # gets that wait, and the floors when they began
        self.handles: list[Handle] = []

    # -- clients -----------------------------------------------------------------------------------------------------

    def get(self, key):
        floors = self.cluster.floors(key)
        try:
            answer = self.master.acquire(self.session, key, self.now, self.now + 40 * MS)
        except Refusal:
            answer = None
        if isinstance(answer, Waiter):
            self.asked[answer] = floors
        elif answer is not None:
            self.got(answer, floors)
        self.settle()

    def got(self, handle, floors):
        replica = handle.replica
        if self.is_serving or replica.owner is not None:
            assert self.cluster.may_be_served(replica.key, replica.generation, floors), "older than what was promised"
        self.handles.append(handle)

    def let_go(self, handle):
        self.handles.remove(handle)
        self.master.release(self.session, [handle.handle_id], self.now)
        self.settle()

    def put(self, key, *, mode, softpin):
        self.cluster.now += MS  # no two nodes, nor two lives of one, give generations in the same millisecond
        contract = Contract(softpin=True) if softpin else PLAIN
        try:
            replica = self.master.put_start(
                self.session, Put(key=key, nbytes=PAGE, contract=contract, mode=mode), self.now, None
            )
        except Refusal:
            replica = None
        if hasattr(replica, "replica_id"):
            self.memory[replica.offset] = "being written"
            self.cluster.epoch_of[key, replica.generation] = self.master.clear_epoch
            self.cluster.run(self, self._publish(replica, mode), is_change=True)
        self.settle()

    async def _publish(self, replica, mode):
        key, cluster = replica.key, self.cluster
        incarnation = self.life.incarnation
        replaced = await self._create(replica, replaces=mode is PutMode.UPSERT)
        # A life that has lapsed meanwhile: who removed it did not wait for this node.
        is_good = replaced is not None and incarnation == self.life.incarnation and not self.directory.is_away
        self.memory[replica.offset] = (key, replica.generation)
        current = self.master.table.current.get(key)
        try:
            if is_good:
                if current is not None:
                    current.told = False
                self.master.put_end(self.session, replica.replica_id, self.now)
                for generation in replaced:
                    cluster.is_removed(key, generation)
        except Refusal:
            is_good = False
        if not is_good:
            replica.told = False
            if replica.replica_id in self.session.reservations:
                self.master.put_revoke(self.session, replica.replica_id, self.now)
            self.settle()
            await self._forget(key, replica.generation)
            await self._tell(key)
        self.settle()

    async def _create(self, replica, *, replaces):
        """The generations that nobody serves any more; None: the directory does not have it, as far as is known."""
        dead = ()
        for _ in range(5):
            holding = self._holding(replica, is_owner=True)
            creation = Creation(key=replica.key, holding=holding, replaces=replaces, dead=dead)
            try:
                [outcome] = await self.ask(lambda c=creation: self.directory.create([c]))
            except DirectoryAwayError:
                await self._drop_unheard(replica.key)
                return None
            if isinstance(outcome, Created):
                replica.told = True
                await self._drop_elsewhere(replica.key, outcome.replaced)
                return {holding.generation for holding in outcome.replaced}
            if isinstance(outcome, TooOld):
                if self.master.table.writing.get(replica.key) is not replica:
                    return None
                epoch = self.cluster.epoch_of[replica.key, replica.generation]
                self.master.peers.renumber(replica, outcome.newest, self.now)
                self.cluster.epoch_of[replica.key, replica.generation] = epoch
            elif self.cluster.lives(outcome.by) and outcome.by.node != self.name:
                return None
            else:
                dead = (*dead, (outcome.by.node, outcome.by.incarnation))
        return None

    async def remove(self, key):
        """Answered when every living holder has acknowledged; never, if it is not known what the directory did."""
        try:
            [entry] = await self.ask(lambda: self.directory.remove([(key, None)]))
        except DirectoryAwayError:
            await self._drop_unheard(key)
            return
        if not entry.holdings:
            return
        generation = entry.holdings[0].generation
        self.master.peers.drop(key, generation, self.now)
        self.settle()
        await self._drop_elsewhere(key, entry.holdings)
        self.cluster.is_removed(key, generation)

    async def _drop_elsewhere(self, key, holdings):
        """Each is asked until it has acknowledged, or its life is over."""
        asked = [
            self.cluster.run(None, self._drop_at(key, holding)) for holding in holdings if holding.node != self.name
        ]
        while not all(task.done for task in asked):
            await others()

    async def _drop_unheard(self, key):
        """Who has what was removed or replaced is not known: whoever lives drops what the directory has no more."""
        while True:
            try:
                [entry] = await self.ask(lambda: self.directory.lookup([key]))
            except DirectoryAwayError:
                continue
            generation = entry.owner.generation - 1 if entry.owner is not None else entry.tombstone
            for life in self.cluster.server.living():
                await others()
                if self.cluster.server.life(life.name) and self.cluster.nodes[life.name].life == life:
                    self.cluster.nodes[life.name].master.peers.drop(key, generation, self.now)
                    self.cluster.nodes[life.name].settle()
            return

    async def _drop_at(self, key, holding):
        for _ in range(2):
            await others()
            if self.cluster.lives(holding):
                node = self.cluster.nodes[holding.node]
                node.master.peers.drop(key, holding.generation, self.now)
                node.settle()

    async def remove_all(self):
        try:
            epoch = await self.ask(self.directory.raise_clear_epoch)
        except DirectoryAwayError:
            return
        lives = self.cluster.server.living()
        asked = [self.cluster.run(None, self._clear_at(life, epoch)) for life in lives]
        while not all(task.done for task in asked):
            await others()
        self.cluster.cleared = max(self.cluster.cleared, epoch)

    async def _clear_at(self, life, epoch):
        for _ in range(2):
            await others()
            if self.cluster.server.life(life.name) and self.cluster.nodes[life.name].life == life:
                self.cluster.nodes[life.name].clear(epoch)

    def clear(self, epoch):
        if epoch > self.master.clear_epoch:
            self.master.clear(self.now, epoch)
            self.settle()

    # -- errands -----------------------------------------------------------------------------------------------------

    def settle(self):
        """Begin what the core asks for, and hear what it has decided."""
        for waiter, outcome in self.master.outbox:
            floors = self.asked.pop(waiter)
            if isinstance(outcome, Handle):
                self.got(outcome, floors)
        self.master.outbox.clear()
        errands, self.master.errands[:] = self.master.errands[:], []
        for errand in errands:
            match errand:
                case Locate():
                    self.cluster.run(self, self._locate(errand))
                case Pull():
                    self.memory[errand.replica.offset] = "being filled"
                    self.cluster.run(self, self._pull(errand.replica, errand.found))
                case Withdraw():
                    self.cluster.run(self, self._withdraw(errand))

    async def _locate(self, errand):
        key = errand.loading.key
        try:
            [entry] = await self.ask(lambda: self.directory.lookup([key]))
        except DirectoryAwayError:
            found = None
        else:
            found = self._found(entry, 0)
        for _ in range(2):
            self.master.peers.located(errand.loading, found, Refusal(Code.NOT_FOUND, "nowhere"), self.now)
            self.settle()

    def _found(self, entry, looks):
        living = [
            h
            for h in entry.holdings
            if self.cluster.lives(h) and h.epoch >= self.master.clear_epoch and h.node != self.name
        ]
        if not living or looks >= LOOKS_MAX:
            return None
        owner, source = entry.owner, min(living, key=lambda h: (not h.is_owner, h.node))
        contract = Contract(softpin=True) if source.softpin else PLAIN
        return Found(
            generation=source.generation,
            nbytes=source.nbytes,
            kind=0,
            owner=owner.node,
            contract=contract,
            softpin_until_ns=None,
            sources=(source, looks),
        )

    async def _pull(self, into, found):
        key, (holding, looks), incarnation = into.key, found.sources, self.life.incarnation
        epoch, failure, again, quiesced = self.master.clear_epoch, None, None, True
        try:
            source = await self._reach(holding)
            replica, token = source.master.peers.get_replica_list(key, self.now)
            source.settle()
            if replica.generation != into.generation:
                source.master.peers.release_lease(key, replica.replica_id, token, self.now)
                source.settle()
                raise Refusal(Code.NOT_FOUND, "replaced")
            source = await self._reach(holding)
            lent = source.master.peers.lend(key, replica.replica_id, into.generation, token, self.now)
            quiesced = await self._transfer(source, lent, into)
            source.master.peers.release_lease(key, replica.replica_id, token, self.now)
            source.settle()
            if not quiesced:
                raise Refusal(Code.TRANSFER_FAILED, "broken off")
            await self._publish_copy(into, found, epoch)
        except (Refusal, DirectoryAwayError) as error:
            failure = Refusal(Code.NOT_FOUND, str(error))
            try:
                [entry] = await self.ask(lambda: self.directory.lookup([key]))
                again = self._found(entry, looks + 1)
            except DirectoryAwayError:
                pass
        if failure is None and incarnation != self.life.incarnation:
            failure = Refusal(Code.NOT_FOUND, "this node was taken for dead while it was copied")
        self.master.peers.pull_done(into, failure, self.now, again=again, quiesced=quiesced)
        current = self.master.table.current.get(key)
        self.settle()
        if not quiesced:
            await others()
            self.memory[into.offset] = "what was sent last"
            self.master.peers.pull_quiesced(into, self.now)
            self.settle()
        if current is None or current.generation != into.generation:
            await self._forget(key, into.generation)

    async def _reach(self, holding):
        await others()
        if not self.cluster.lives(holding) or self.directory.is_away:
            raise Refusal(Code.TRANSFER_FAILED, "not reached")
        return self.cluster.nodes[holding.node]

    async def _transfer(self, source, lent, into):
        """True if nothing is written any more."""
        try:
            await others()
            assert source.memory[lent.offset] == (lent.key, lent.generation), "freed under a transfer"
            how = self.cluster.transfers.pop() if self.cluster.transfers else "well"
            if how == "failed":
                raise Refusal(Code.TRANSFER_FAILED, "failed")
            self.memory[into.offset] = source.memory[lent.offset]
            await others()
            return how == "well"
        finally:
            source.master.peers.give_back(lent, self.now)
            source.settle()

    async def _publish_copy(self, into, found, epoch):
        holding = Holding(
            node=self.name,
            incarnation=self.life.incarnation,
            generation=into.generation,
            nbytes=PAGE,
            kind=0,
            epoch=epoch,
            is_owner=False,
            softpin=found.contract.softpin,
        )
        [is_there] = await self.ask(lambda: self.directory.publish([(into.key, holding)]))
        if not is_there:
            raise Refusal(Code.NOT_FOUND, "removed or replaced while it was copied")

    async def _withdraw(self, errand):
        await self._forget(errand.replica.key, errand.replica.generation)
        if errand.is_held:
            self.master.peers.withdrawn(errand.replica, self.now)
            self.settle()

    async def _forget(self, key, generation):
        """The directory has no holding of this node of that generation, unless it is readable here again."""
        while True:
            incarnation = self.life.incarnation
            try:
                await self.ask(lambda i=incarnation: self.directory.withdraw([(key, self.name, i, generation)]))
            except DirectoryAwayError:
                continue
            if incarnation == self.life.incarnation:
                return

    async def ask(self, call):
        """Call the directory: it acts at some time, and its answer comes at some later time, or is lost."""
        await others()
        answer = await call()
        if self.cluster.lose_answers:
            self.cluster.lose_answers -= 1
            raise DirectoryAwayError("no answer")
        await others()
        return answer

    # -- what must be so ---------------------------------------------------------------------------------------------

    def check(self):
        check_invariants(self.master)
        for handle in self.handles:
            replica = handle.replica
            assert replica.state in _IN_MEMORY, "freed under a handle"
            assert self.memory[replica.offset] == (replica.key, replica.generation), "changed under a handle"
        for key, replica in self.master.table.current.items():
            # What it owns itself a node serves also while others take it for dead.
            if self.is_serving or replica.owner is not None:
                floors = self.cluster.floors(key)
                if self.master.is_readable(key, self.now):
                    assert self.cluster.may_be_served(key, replica.generation, floors), "served after it was removed"

    def _holding(self, replica, *, is_owner):
        contract = replica.contract if replica.owner is None else (replica.remembered or PLAIN)
        return Holding(
            node=self.name,
            incarnation=self.life.incarnation,
            generation=replica.generation,
            nbytes=replica.nbytes,
            kind=0,
            epoch=self.cluster.epoch_of[replica.key, replica.generation],
            is_owner=is_owner,
            softpin=contract.softpin,
        )

    @property
    def now(self):
        return self.cluster.now
