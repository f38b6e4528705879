"""What the local master asks the shell to do, because it takes time. Each job's outcome comes back as one call.

*Jobs* are for the offload tier, *errands* lead to other nodes.
"""

import msgspec

from mooncake_node.core.replica import Contract, Replica


class Offload(msgspec.Struct, frozen=True, eq=False):
    """Write the memory of *replica* to the tier; then `offload_done`.

    Its memory stays as it is until then. Not to be begun if `Master.is_wanted` says that the object has lost its name.
    """

    replica: Replica


class Load(msgspec.Struct, frozen=True, eq=False):
    """Read *record* from the tier into the room of *replica*; then `load_done`. The room stays reserved until then."""

    replica: Replica
    record: object


class Delete(msgspec.Struct, frozen=True, eq=False):
    """Remove a generation from the tier, even one that is just being written there. Nothing is waited for.

    Whoever is told that the object is gone must be told after this is done.
    """

    replica: Replica  # names key and generation


class Amend(msgspec.Struct, frozen=True, eq=False):
    """The contract of *replica* has changed: change it on disk too. Nothing is waited for.

    Whoever changed it must be told after this is done.
    """

    replica: Replica


Job = Offload | Load | Delete | Amend


class Found(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """An object that other nodes have."""

    generation: int
    nbytes: int
    kind: int
    owner: str  # the node whose replica carries the contract
    contract: Contract
    softpin_until_ns: int | None
    sources: object  # who has it; opaque to the core


class Loading(msgspec.Struct, eq=False):
    """One load of a key under way, from wherever it is."""

    key: str
    on_disk: Replica | None  # what this node's own tier has of it
    seeking: bool = False  # other nodes are asked what they have
    found: Found | None = None  # what they have, if it is taken from there
    into: Replica | None = None  # None: not begun, or it waits for room
    waiter: object = None  # its place in the queue for room, while it waits there

    @property
    def nbytes(self) -> int:
        """Of the object, once it is known where to take it from."""
        if self.found is not None:
            return self.found.nbytes
        assert self.on_disk is not None
        return self.on_disk.nbytes


class Locate(msgspec.Struct, frozen=True, eq=False):
    """Find out who has the key of *loading*; then `Master.located`."""

    loading: Loading


class Pull(msgspec.Struct, frozen=True, eq=False):
    """Read what was *found* into the room of *replica*; then `pull_done`. The room stays reserved until then."""

    replica: Replica
    found: Found


class Withdraw(msgspec.Struct, frozen=True, eq=False):
    """Take *replica* out of the directory; then `withdrawn`. If it is in memory, its memory stays until then."""

    replica: Replica
    is_held: bool


class Retell(msgspec.Struct, frozen=True, eq=False):
    """What the directory has of *replica* is out of date: tell it. Nothing is waited for."""

    replica: Replica


Errand = Locate | Pull | Withdraw | Retell
