"""Address windows: room for a large object where it costs least, instead of scattered cold bits.

A window is a run of neighbouring pieces of the pool, each of them free or full of listed objects, long enough for one
large object. Grown around the coldest objects and the largest free extent; the cheapest wins.
"""

from collections.abc import Iterator, Sequence

import msgspec

from mooncake_node.core.extents import GRANULE_BYTES
from mooncake_node.core.objects import Objects
from mooncake_node.core.replica import Rank, Replica, ReplicaState
from mooncake_node.core.waiting import Waiter, Want

_SEEDS_MAX = 8
# Objects and free extents one search looks at, over all seeds.
_LOOKS_MAX = 4096
# What a byte of an object costs that has to be written first, or was used lately.
_PINNED_COST = 8
_ACCESSED_COST = 2


class Piece(msgspec.Struct, frozen=True):
    """A free extent, an object's extent, or a slab."""

    start: int  # granules, as `ngranules`
    ngranules: int
    victims: tuple[Replica, ...]  # in it; none: it is free
    cost: int  # of letting them go


class Window(msgspec.Struct, frozen=True):
    """Neighbouring pieces, in any order."""

    pieces: list[Piece]

    @property
    def victims(self) -> list[Replica]:
        """What has to go."""
        return [victim for piece in self.pieces for victim in piece.victims]

    @property
    def cost(self) -> int:
        """Of letting them go."""
        return sum(piece.cost for piece in self.pieces)


class Windows:
    """Finds windows, and keeps one together while objects in it are written to disk, for the put that waits for it."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._space = objects.space
        self._waiter: Waiter | None = None  # for whom a window is kept
        self._missing: list[Piece] = []  # pieces of it that are not free yet
        self._held: list[tuple[int, int]] = []  # pieces of it taken already, so that nobody else does: start, length

    # -- finding -----------------------------------------------------------------------------------------------------

    def choose(self, nbytes: int, ranks: Sequence[Rank]) -> Window | None:
        """The cheapest window for *nbytes*; its victims are taken off the lists."""
        wanted = -(-nbytes // GRANULE_BYTES)
        best: Window | None = None
        looks = _Looks(_LOOKS_MAX)
        for seed in self._seeds(ranks):
            window = self._grow(seed, wanted, ranks, looks)
            if window is not None and (best is None or window.cost < best.cost):
                best = window
        victims = [] if best is None else best.victims
        for victim in victims:
            self._objects.lists.leave(victim)
        if best is None:
            self._objects.lists.examined += looks.examined  # by the pass that goes on with the lists
        else:
            self._objects.lists.count_pass(looks.examined, len(victims))
        return best

    def _seeds(self, ranks: Sequence[Rank]) -> Iterator[int]:
        """Granules at which a piece begins."""
        largest = self._space.largest_free_start
        if largest is not None:
            yield largest
        for replica in self._objects.lists.coldest(ranks, _SEEDS_MAX):
            yield self._space.piece_start(replica.offset)

    def _grow(self, seed: int, wanted: int, ranks: Sequence[Rank], looks: "_Looks") -> Window | None:
        first = self._piece(seed, ranks, looks)
        if first is None:
            return None
        pieces, ngranules = [first], first.ngranules
        low, high = first.start, first.start + first.ngranules
        below, above = self._before(low, ranks, looks), self._piece(high, ranks, looks)
        while ngranules < wanted:
            if below is not None and (above is None or _per_granule(below) < _per_granule(above)):
                piece = below
                low = piece.start
                below = self._before(low, ranks, looks)
            elif above is not None:
                piece = above
                high = piece.start + piece.ngranules
                above = self._piece(high, ranks, looks)
            else:
                return None
            pieces.append(piece)
            ngranules += piece.ngranules
        return Window(pieces)

    def _before(self, granule: int, ranks: Sequence[Rank], looks: "_Looks") -> Piece | None:
        start = self._space.start_before(granule)
        return None if start is None else self._piece(start, ranks, looks)

    def _piece(self, start: int, ranks: Sequence[Rank], looks: "_Looks") -> Piece | None:
        """The piece that begins there, if it is free or may be freed."""
        if not looks.take(1):
            return None
        ngranules = self._space.free_at(start)
        if ngranules:
            return Piece(start, ngranules, (), 0)
        at = self._objects.at
        slab = self._space.slab_at(start)
        if slab is not None:
            ngranules, offsets = slab
            victims = tuple(at[offset] for offset in offsets)
        else:
            replica = at.get(start * GRANULE_BYTES)
            if replica is None:
                return None
            ngranules, victims = -(-replica.nbytes // GRANULE_BYTES), (replica,)
        if not looks.take(len(victims)) or not all(self._may_go(victim, ranks) for victim in victims):
            return None
        looks.examined += len(victims)
        return Piece(start, ngranules, victims, sum(map(self._cost, victims)))

    def _cost(self, replica: Replica) -> int:
        weight = _PINNED_COST if replica.rank is Rank.PINNED else 1
        return replica.nbytes * weight * (_ACCESSED_COST if self._objects.lists.was_used(replica) else 1)

    def _may_go(self, replica: Replica, ranks: Sequence[Rank]) -> bool:
        return replica.rank in ranks and replica in self._objects.lists

    # -- keeping -----------------------------------------------------------------------------------------------------

    def keep(self, window: Window, waiter: Waiter) -> None:
        """Nobody but *waiter* gets what is free in *window*, or becomes so."""
        self.give_up()
        self._waiter = waiter
        self._missing = list(window.pieces)

    def is_kept_for(self, waiter: Waiter) -> bool:
        """A window is on its way for it."""
        return self._waiter is waiter

    def gather(self) -> None:
        """Take what has become free in the kept window. Called after whatever may have freed something."""
        if self._waiter is None:
            return
        if not self._waiter.open or self._waiter.want is not Want.ROOM:
            self.give_up()
            return
        missing: list[Piece] = []
        for piece in self._missing:
            if self._space.take(piece.start, piece.ngranules):
                self._held.append((piece.start, piece.ngranules))
            elif _is_under_way(piece):
                missing.append(piece)
            else:
                # Something in it is read again, could not be written, or was put there: that window is lost, and
                # another may be found.
                self.give_up()
                return
        self._missing = missing

    def take_over(self, waiter: Waiter) -> int | None:
        """The offset of room for *waiter* in its window, if that is free by now."""
        if self._waiter is not waiter or self._missing:
            return None
        self.give_up()
        return self._space.reserve(waiter.nbytes)

    def give_up(self) -> None:
        """Keep nothing any more."""
        for start, ngranules in self._held:
            self._space.give_back(start, ngranules)
            self._objects.room_came_back = True
        self._waiter, self._missing, self._held = None, [], []

    @property
    def held_nbytes(self) -> int:
        """Free bytes that only one waiter may have."""
        return GRANULE_BYTES * sum(ngranules for _, ngranules in self._held)


class _Looks:
    """How much of a search is left, and how many listed replicas it has looked at."""

    __slots__ = ("examined", "left")

    def __init__(self, left: int) -> None:
        self.left = left
        self.examined = 0

    def take(self, count: int) -> bool:
        if count > self.left:
            return False
        self.left -= count
        return True


def _is_under_way(piece: Piece) -> bool:
    """Whether all that is left of its victims is being written to disk, or withdrawn from the directory."""
    left = [victim for victim in piece.victims if victim.state not in (ReplicaState.ON_DISK, ReplicaState.GONE)]
    return bool(left) and all(
        victim.state is ReplicaState.ISOLATED or (victim.state is ReplicaState.STASHED and victim.loans > 0)
        for victim in left
    )


def _per_granule(piece: Piece) -> float:
    return piece.cost / piece.ngranules
