"""A replica, its states and the moves between them."""

from enum import IntEnum, auto

import msgspec


class ReplicaState(IntEnum):
    """Where a replica is in its life. An IntEnum, since an Enum hashes its name at every look-up."""

    WRITING = auto()  # reserved; invisible to readers
    COMPLETE = auto()  # readable by key
    ISOLATED = auto()  # reclaim or a move works on it; still readable
    STASHED = auto()  # gone by key, memory kept for those who still read it
    DOOMED = auto()  # given up by the daemon while its writer may still store into it
    QUARANTINED = auto()  # destination of a failed transfer that may still write
    ON_DISK = auto()  # readable by key from the offload tier alone; has no room in G
    GONE = auto()  # memory is free again


_WRITING, _COMPLETE, _ISOLATED, _STASHED, _DOOMED, _QUARANTINED, _ON_DISK, _GONE = ReplicaState

MOVES: dict[ReplicaState, frozenset[ReplicaState]] = {
    _WRITING: frozenset({_COMPLETE, _DOOMED, _QUARANTINED, _GONE}),
    _COMPLETE: frozenset({_ISOLATED, _STASHED, _ON_DISK, _GONE}),
    _ISOLATED: frozenset({_COMPLETE, _STASHED, _ON_DISK, _GONE}),
    _STASHED: frozenset({_GONE}),
    _DOOMED: frozenset({_GONE}),
    _QUARANTINED: frozenset({_GONE}),
    _ON_DISK: frozenset({_GONE}),
    _GONE: frozenset(),
}


class Contract(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What was promised about an object when it was put; shared by all objects of the same contract."""

    softpin: bool = False
    softpin_ttl_ns: int | None = None  # None: until removed
    hardpin: bool = False
    scope: str = "cluster"  # "cluster" | "node"


PLAIN = Contract()


class Shelf(IntEnum):
    """Where reclaim finds a replica, if at all."""

    NONE = 0  # not to be reclaimed: unpublished, nameless, pinned hard, on its way out, on disk
    INACTIVE = 1  # listed; the coldest of these go first
    ACTIVE = 2  # listed; was used while it was inactive
    PARKED = 3  # off the lists while somebody reads it: comes back by event


class Rank(IntEnum):
    """In this order of classes reclaim chooses its victims."""

    CLEAN = 0  # has a verified disk copy: dropping it loses nothing
    PLAIN = 1  # best-effort cache: dropping it loses the object
    PINNED = 2  # has to be written to the tier before it may go


class DiskCopy(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A complete, verified copy of a generation in the offload tier."""

    record: object  # the tier's own; opaque to the core
    nbytes: int  # of the tier's limit


class Replica(msgspec.Struct, gc=False, eq=False):
    """One generation of a key on this node: in G, with or without a copy on disk, or on disk alone.

    ``gc=False`` keeps a million of them out of the collector's scans; it is sound because a replica refers to no
    object that refers back (sessions are named by number).
    """

    replica_id: int  # never reused on this node
    key: str
    generation: int
    offset: int  # bytes from the start of G
    nbytes: int
    kind: int  # how the bytes are to be read; opaque to the core
    since_ns: int  # when it came into its present visibility: reserved, later published
    contract: Contract = PLAIN
    state: ReplicaState = _WRITING
    writer: int = 0  # session that reserved it; 0 once published, and while the tier fills it
    refs: int = 0  # live handles, over all sessions
    transfers: int = 0  # jobs that read its memory
    loans: int = 0  # transfers to other nodes that read its memory; one more while its entry is withdrawn
    leased_until_ns: int = 0  # a lease runs while this lies in the future
    softpin_until_ns: int | None = None  # None: no deadline
    copy: DiskCopy | None = None  # on disk; None: memory is all there is
    shelf: Shelf = Shelf.NONE
    rank: Rank = Rank.PLAIN  # in which lists it is, or was last
    accessed: bool = False  # used since reclaim last looked at it
    record: int = -1  # its place in the shared index; negative: none
    pinned: bool = False  # a reader has it pinned there, as far as is known
    replaces: bool = False  # published, it may take the place of what is there (upsert)
    told: bool = False  # the directory has it, as far as is known
    owner: str | None = None  # the node whose replica carries the contract, of a secondary one; None: this node
    remembered: Contract | None = None  # of a secondary one: the object's contract, in case its owner dies
    checksum: int = -1  # XXH3-64 of its bytes; negative: not computed yet

    def is_kept(self, now_ns: int) -> bool:
        """Somebody reads its memory, or may: it cannot be freed."""
        return self.refs > 0 or self.transfers > 0 or self.loans > 0 or self.pinned or self.leased_until_ns > now_ns
