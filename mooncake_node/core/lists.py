"""Active and inactive lists: which replicas reclaim may take, and in what order.

All and only the replicas that nobody reads are here: one that is referenced or leased is parked off the lists and comes
back by event, so that no pass ever looks at what cannot go.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice

from mooncake_node.core.readers import NoReaders, Readers
from mooncake_node.core.replica import Rank, Replica, Shelf

# How many replicas one pass looks at. A bound, so that no request waits for a long one.
EXAMINED_MAX = 128
# The inactive list is refilled from the active one when it is shorter than so much of it.
_ACTIVE_PER_INACTIVE_MAX = 2


class _Pair:
    """The two lists of one rank, coldest first, by replica_id."""

    __slots__ = ("active", "inactive", "nbytes")

    def __init__(self) -> None:
        self.nbytes = 0  # of all in them
        self.active: OrderedDict[int, Replica] = OrderedDict()
        self.inactive: OrderedDict[int, Replica] = OrderedDict()

    def coldest(self) -> Replica | None:
        """The inactive replica that was used least recently."""
        if len(self.active) > _ACTIVE_PER_INACTIVE_MAX * len(self.inactive):
            self.age()
        return next(iter(self.inactive.values()), None)

    def age(self) -> None:
        """The coldest active replica is inactive from here on."""
        if self.active:
            _, replica = self.active.popitem(last=False)
            replica.shelf = Shelf.INACTIVE
            self.inactive[replica.replica_id] = replica


class Lists:
    """The replicas that may go, by rank; writes `shelf`, `rank` and `accessed` of all of them."""

    def __init__(self, readers: Readers | None = None) -> None:
        self._readers = readers or NoReaders()
        self._pairs = {rank: _Pair() for rank in Rank}
        self.passes = 0  # looked at one replica at least
        self.productive_passes = 0  # and took one at least
        self.examined = 0
        self.isolated = 0

    def __len__(self) -> int:
        return sum(len(pair.active) + len(pair.inactive) for pair in self._pairs.values())

    def __contains__(self, replica: Replica) -> bool:
        # By its list, not by its shelf: a clear empties the lists without a look at those in them.
        if replica.shelf not in (Shelf.INACTIVE, Shelf.ACTIVE):
            return False
        pair = self._pairs[replica.rank]
        return replica.replica_id in (pair.active if replica.shelf is Shelf.ACTIVE else pair.inactive)

    def enter(self, replica: Replica, rank: Rank) -> None:
        """List *replica*, which nobody reads and which is in no list, as the one used most recently."""
        replica.rank = rank
        replica.shelf = Shelf.INACTIVE
        pair = self._pairs[rank]
        pair.inactive[replica.replica_id] = replica
        pair.nbytes += replica.nbytes

    def enter_many(self, replicas: Sequence[Replica], rank: Rank) -> None:
        """`enter`, in that order."""
        pair = self._pairs[rank]
        for replica in replicas:
            replica.rank = rank
            replica.shelf = Shelf.INACTIVE
            pair.inactive[replica.replica_id] = replica
            pair.nbytes += replica.nbytes

    def leave(self, replica: Replica, to: Shelf = Shelf.NONE) -> None:
        """Take *replica* off whatever list it is in."""
        if replica.shelf in (Shelf.INACTIVE, Shelf.ACTIVE):
            pair = self._pairs[replica.rank]
            listed = pair.active if replica.shelf is Shelf.ACTIVE else pair.inactive
            # Tolerant: a clear empties the lists without a look at those in them.
            if listed.pop(replica.replica_id, None) is not None:
                pair.nbytes -= replica.nbytes
        replica.shelf = to

    def clear(self) -> None:
        """Empty the lists at once, however long; those that were in them `leave` later."""
        self._pairs = {rank: _Pair() for rank in Rank}

    def nbytes(self, ranks: Sequence[Rank]) -> int:
        """Of all that are listed in *ranks*."""
        return sum(self._pairs[rank].nbytes for rank in ranks)

    def any_of(self, ranks: Sequence[Rank]) -> bool:
        """Whether a pass over *ranks* would look at anything."""
        return any(self._pairs[rank].inactive or self._pairs[rank].active for rank in ranks)

    def has_spare(self, ranks: Sequence[Rank], stock_nbytes: int) -> bool:
        """Whether `isolate` of what is spare would take anything."""
        coldest = next(self.coldest(ranks, 1), None)
        return coldest is not None and self._is_spare(coldest, ranks, stock_nbytes)

    def isolate(self, nbytes_wanted: int, ranks: Sequence[Rank], *, spare_of_nbytes: int = 0) -> list[Replica]:
        """Take victims off the lists of *ranks*, in that order, until they cover *nbytes_wanted*.

        A victim leaves its list before it is returned, so no later pass can choose it again. May cover less than
        asked, since one pass is bounded; but never nothing while anything is listed. *spare_of_nbytes*: for a stock of
        so many free bytes that nobody has asked for; then ends at what is not spare.
        """
        victims: list[Replica] = []
        examined = covered = 0
        for rank in ranks:
            pair = self._pairs[rank]
            while covered < nbytes_wanted and examined < EXAMINED_MAX:
                replica = pair.coldest()
                if replica is None or (spare_of_nbytes and not self._is_spare(replica, ranks, spare_of_nbytes)):
                    break
                examined += 1
                # Second chance; but the last look of a pass that has found nothing takes what it sees.
                if self.was_used(replica) and (victims or examined < EXAMINED_MAX):
                    replica.accessed = False
                    del pair.inactive[replica.replica_id]
                    replica.shelf = Shelf.ACTIVE
                    pair.active[replica.replica_id] = replica
                    continue
                self.leave(replica)
                victims.append(replica)
                covered += replica.nbytes
                # As many as go: what was used once and never again is not kept for ever by a stream of others.
                pair.age()
        self.count_pass(examined, len(victims))
        return victims

    def was_used(self, replica: Replica) -> bool:
        """Whether *replica* was used since it last was given a second chance."""
        if self._readers.take_accessed(replica):
            replica.accessed = True
        return replica.accessed

    def _is_spare(self, replica: Replica, ranks: Sequence[Rank], stock_nbytes: int) -> bool:
        """Whether *replica* may be lost for a stock of free bytes that nobody has asked for.

        Not the last of what could go, or a put into a pool full of what is read would be gone before anybody has read
        it; nor what is larger than all of the stock.
        """
        left_nbytes = self.nbytes(ranks) - replica.nbytes
        return left_nbytes >= stock_nbytes and (replica.rank is not Rank.PLAIN or replica.nbytes <= stock_nbytes)

    def count_pass(self, examined: int, isolated: int) -> None:
        """A pass has looked at so many replicas and taken so many."""
        self.passes += examined > 0
        self.productive_passes += isolated > 0
        self.examined += examined
        self.isolated += isolated

    def coldest(self, ranks: Sequence[Rank], count_max: int) -> Iterator[Replica]:
        """Up to *count_max* of the coldest of *ranks*, without taking or changing them."""
        listed = (
            replica
            for rank in ranks
            for half in (self._pairs[rank].inactive, self._pairs[rank].active)
            for replica in half.values()
        )
        return islice(listed, count_max)

    def check(self, listed: Sequence[Replica]) -> None:
        """Assert that *listed* are all and only the replicas in the lists, each where its fields say."""
        found = {
            replica_id: replica
            for pair in self._pairs.values()
            for half in (pair.active, pair.inactive)
            for replica_id, replica in half.items()
        }
        assert found == {replica.replica_id: replica for replica in listed}
        assert len(found) == len(self)
        for rank, pair in self._pairs.items():
            assert pair.nbytes == sum(replica.nbytes for replica in listed if replica.rank is rank)
            for shelf, half in ((Shelf.ACTIVE, pair.active), (Shelf.INACTIVE, pair.inactive)):
                assert all(replica.shelf is shelf and replica.rank is rank for replica in half.values())
