"""What the shell does with a master about other nodes and the directory, in one line each.

The other nodes are the test: it says what they have, and when, how often and how well an errand ends.
"""

from typing import TYPE_CHECKING

from mooncake_client.codes import Code
from mooncake_node.core.jobs import Errand, Found, Loading, Locate, Pull, Retell, Withdraw
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.replica import PLAIN, Contract, Replica, ReplicaState
from mooncake_node.core.sessions import Handle, Session
from mooncake_node.core.space import footprint
from mooncake_node.core.waiting import Waiter

if TYPE_CHECKING:
    from tests.core.conftest import Core

PAGE = 4096
NOT_THERE = Refusal(Code.NOT_FOUND, "nobody has it")
BROKEN = Refusal(Code.TRANSFER_FAILED, "the other end is gone")
AFTER = 1 << 60  # a generation above every one of this node's


def found(
    generation: int = 1 << 40,
    nbytes: int = PAGE,
    *,
    kind: int = 0,
    contract: Contract = PLAIN,
    until: int | None = None,
    owner: str = "n2",
) -> Found:
    """What another node has."""
    return Found(
        generation=generation,
        nbytes=nbytes,
        kind=kind,
        owner=owner,
        contract=contract,
        softpin_until_ns=until,
        sources=(),
    )


class Far:
    """The errands of one core. Every call is followed by a full audit, also when it is refused."""

    def __init__(self, core: "Core") -> None:
        self._core = core
        # Taken from the core and not ended yet; a `Withdraw` only if it holds its replica.
        self.locates: list[Locate] = []
        self.pulls: list[Pull] = []
        self.withdrawals: list[Withdraw] = []
        self.told: list[Replica] = []  # of `Retell`, in order
        self.taken: list[Withdraw] = []  # every `Withdraw`, in order
        self.quarantined: list[Replica] = []
        self.lent: list[Replica] = []

    def take(self) -> list[Errand]:
        """What was asked for since the last look, in order."""
        errands = self._core.master.errands[:]
        self._core.master.errands.clear()
        for errand in errands:
            match errand:
                case Locate():
                    self.locates.append(errand)
                case Pull():
                    self.pulls.append(errand)
                case Withdraw():
                    self.taken.append(errand)
                    if errand.is_held:
                        self.withdrawals.append(errand)
                case Retell():
                    self.told.append(errand.replica)
        return errands

    def sought(self) -> Loading:
        """The only errand since the last look: a `Locate`."""
        [errand] = self.take()
        assert isinstance(errand, Locate)
        return errand.loading

    def pull(self) -> Pull:
        """The only errand since the last look: a `Pull`."""
        [errand] = self.take()
        assert isinstance(errand, Pull)
        return errand

    def located(self, loading: Loading, what: Found | None, refusal: Refusal = NOT_THERE) -> None:
        self.locates = [errand for errand in self.locates if errand.loading is not loading]
        with self._core.audited():
            self._core.master.peers.located(loading, what, refusal, self._core.now)

    def pulled(
        self,
        into: Replica,
        failure: Refusal | None = None,
        *,
        again: Found | None = None,
        from_disk: bool = False,
        quiesced: bool = True,
    ) -> None:
        self.pulls = [errand for errand in self.pulls if errand.replica is not into]
        if not quiesced:
            self.quarantined.append(into)
        with self._core.audited():
            self._core.master.peers.pull_done(
                into, failure, self._core.now, again=again, from_disk=from_disk, quiesced=quiesced
            )

    def quiesced(self, into: Replica) -> None:
        self.quarantined.remove(into)
        with self._core.audited():
            self._core.master.peers.pull_quiesced(into, self._core.now)

    def begin(self, session: Session, key: str, what: Found, *, timeout: int = 100) -> tuple[Waiter, Pull]:
        """A get of what is elsewhere, up to the transfer."""
        waiter = self._core.get(session, key, timeout=timeout)
        assert isinstance(waiter, Waiter)
        self.located(self.sought(), what)
        return waiter, self.pull()

    def copy(self, session: Session, key: str, what: Found | None = None) -> Handle:
        """A get of what is elsewhere, from its start to its end."""
        waiter, pull = self.begin(session, key, what or found())
        self.pulled(pull.replica)
        return self._core.handle_for(waiter)

    def cache(self, session: Session, key: str, what: Found | None = None) -> Replica:
        """A secondary replica that nobody reads."""
        handle = self.copy(session, key, what)
        self._core.release(session, handle)
        return handle.replica

    def store(self, session: Session, key: str, nbytes: int = PAGE, **how: object) -> Replica:
        """A put of which the directory is told before it is readable."""
        replica = self._core.put(session, key, nbytes, **how)
        assert isinstance(replica, Replica)
        replica.told = True
        replaced = self._core.master.table.current.get(key)
        if replaced is not None:
            replaced.told = False
        return self._core.end(session, replica)

    def withdrawn(self, replica: Replica) -> None:
        """The directory has it no more."""
        [errand] = [errand for errand in self.withdrawals if errand.replica is replica]
        self.withdrawals.remove(errand)
        with self._core.audited():
            self._core.master.peers.withdrawn(replica, self._core.now)

    def drop(self, key: str, generation: int, *, is_replaced: bool = False) -> bool:
        with self._core.audited():
            return self._core.master.peers.drop(key, generation, self._core.now, is_replaced=is_replaced)

    def promote(self, replica: Replica) -> None:
        with self._core.audited():
            self._core.master.peers.promote(replica)

    def cut_off(self) -> None:
        """This node's life is over as far as others know."""
        self.serve_until(self._core.now)

    def serve_until(self, until: int) -> None:
        with self._core.audited():
            self._core.master.peers.serve_secondaries_until(until)

    def appeared(self, key: str) -> None:
        with self._core.audited():
            self._core.master.peers.appeared(key)

    def lend(self, replica: Replica, token: int, **other: object) -> Replica:
        """A transfer to another node begins; *other* is what it names wrongly."""
        name = {"key": replica.key, "replica_id": replica.replica_id, "generation": replica.generation, **other}
        with self._core.audited():
            lent = self._core.master.peers.lend(**name, token=token, now_ns=self._core.now)
        self.lent.append(lent)
        return lent

    def give_back(self, replica: Replica) -> None:
        self.lent.remove(replica)
        with self._core.audited():
            self._core.master.peers.give_back(replica, self._core.now)

    def renumber(self, replica: Replica, newest: int) -> None:
        with self._core.audited():
            self._core.master.peers.renumber(replica, newest, self._core.now)

    def check(self) -> None:
        """Assert that what leaves is what has a `Withdraw` to wait for."""
        asked = [errand for errand in self._core.master.errands if isinstance(errand, Withdraw) and errand.is_held]
        leaving = [errand.replica for errand in [*self.withdrawals, *asked]]
        assert self._core.master.objects.leaving_nbytes == sum(footprint(replica.nbytes) for replica in leaving)
        for replica in leaving:
            assert replica.state is ReplicaState.STASHED, "freed before its entry is withdrawn"
        for replica in self.lent:
            assert replica.state is not ReplicaState.GONE, "freed under a transfer"
        for pull in self.pulls:
            assert pull.replica.state in (ReplicaState.WRITING, ReplicaState.DOOMED), "freed under a transfer"

    def end_all(self) -> None:
        """Every errand and every transfer ends, one way or another."""
        while True:
            self.take()
            if self.locates:
                self.located(self.locates[0].loading, None)
            elif self.pulls:
                self.pulled(self.pulls[0].replica, BROKEN)
            elif self.withdrawals:
                self.withdrawn(self.withdrawals[0].replica)
            elif self.quarantined:
                self.quiesced(self.quarantined[0])
            elif self.lent:
                self.give_back(self.lent[0])
            else:
                return
