"""One key's holdings and what may be done to them: the rules of the port, which `scripts` says again in Lua.

An entry with holdings has exactly one owner, and all its holdings are of one generation, one a node. A tombstone stays
beside them: what was removed before them is not to come back after them either. What was removed is known until a new
generation is created: its nodes may serve it still, and who creates has them drop it before anybody is answered.
"""

from collections.abc import Iterable

import msgspec

from mooncake_node.directory.port import Created, Creation, Entry, Holding, Taken, TooOld


class EntryState:
    """What is known of one key. Every method is one atomic step; a refused one changes nothing."""

    __slots__ = ("held", "removed", "tombstone")

    def __init__(self) -> None:
        self.held: dict[str, Holding] = {}  # by node
        self.removed: tuple[Holding, ...] = ()  # none while anything is held
        self.tombstone = 0  # 0: none

    @property
    def entry(self) -> Entry:
        """As the port tells it: the holdings in the order of their nodes' names."""
        return Entry(in_order(self.held.values()), self.tombstone, self.removed)

    @property
    def owner(self) -> Holding | None:
        """Whose replica carries the contract."""
        return next((holding for holding in self.held.values() if holding.is_owner), None)

    def create(self, item: Creation) -> Created | Taken | TooOld:
        """See Directory. Own holdings of another generation never stand in the way: their node knows best."""
        new = item.holding
        absent = [
            holding
            for holding in self.held.values()
            if not _is_same(holding, new)
            and ((holding.node, holding.incarnation) in item.dead or holding.epoch < new.epoch)
        ]
        present = [holding for holding in self.held.values() if holding not in absent]
        if any(_is_same(holding, new) for holding in present):
            for holding in absent:
                del self.held[holding.node]
            for holding in present:
                self.held[holding.node] = msgspec.structs.replace(holding, is_owner=False)
            self.held[new.node] = new
            return Created(in_order(absent))
        others = [holding for holding in present if holding.node != new.node]
        if others and not item.replaces:
            return Taken(_foremost(others))
        newest = max(self.tombstone, *(holding.generation for holding in present), 0)
        if newest >= new.generation:
            return TooOld(newest)
        replaced = in_order(self.held.values()) or self.removed
        self.held, self.removed = {new.node: new}, ()
        return Created(replaced)

    def publish(self, new: Holding) -> bool:
        """See Directory. An owner's own field is never made a secondary one."""
        owner = self.owner
        if owner is None or owner.generation != new.generation:
            return False
        if owner.node == new.node:
            return owner.incarnation == new.incarnation
        self.held[new.node] = new
        return True

    def update(self, new: Holding) -> bool:
        """See Directory. Who owns is not changed by it: the holder may not know yet that it was promoted."""
        old = self.held.get(new.node)
        if old is None or (old.incarnation, old.generation) != (new.incarnation, new.generation):
            return False
        self.held[new.node] = msgspec.structs.replace(new, is_owner=old.is_owner)
        return True

    def transfer(self, node: str, incarnation: int, to: Holding) -> bool:
        """See Directory."""
        owner = self.owner
        if owner is None or owner.generation != to.generation:
            return False
        if (owner.node, owner.incarnation) == (to.node, to.incarnation):
            return True
        if (owner.node, owner.incarnation) != (node, incarnation):
            return False
        del self.held[owner.node]
        self.held[to.node] = to
        return True

    def remove(self, generation: int | None) -> Entry:
        """See Directory."""
        owner = self.owner
        if owner is None or generation not in (None, owner.generation):
            return Entry((), self.tombstone, self.removed)
        was = self.entry
        self.held = {}
        self.removed = tuple(msgspec.structs.replace(holding, is_owner=False) for holding in was.holdings)
        self.tombstone = owner.generation
        return was

    def withdraw(self, node: str, incarnation: int, generation: int) -> None:
        """See Directory."""
        old = self.held.get(node)
        if old is None or (old.incarnation, old.generation) != (incarnation, generation):
            return
        del self.held[node]
        if old.is_owner and self.held:
            heir = _foremost(self.held.values())
            self.held[heir.node] = msgspec.structs.replace(heir, is_owner=True)


def in_order(holdings: Iterable[Holding]) -> tuple[Holding, ...]:
    """The holdings in the order of their nodes' names."""
    return tuple(sorted(holdings, key=lambda holding: holding.node))


def _is_same(holding: Holding, new: Holding) -> bool:
    """It is *new* of an earlier call, maybe of an earlier life."""
    return (holding.node, holding.generation) == (new.node, new.generation)


def _foremost(holdings: Iterable[Holding]) -> Holding:
    """The owner; else one in memory before those on disk alone, then of the life begun last: it likely goes on."""
    return min(
        holdings, key=lambda holding: (not holding.is_owner, holding.on_disk, -holding.incarnation, holding.node)
    )
