"""A memory replica, its states and the moves between them."""

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
    GONE = auto()  # memory is free again


_WRITING, _COMPLETE, _ISOLATED, _STASHED, _DOOMED, _QUARANTINED, _GONE = ReplicaState

MOVES: dict[ReplicaState, frozenset[ReplicaState]] = {
    _WRITING: frozenset({_COMPLETE, _DOOMED, _QUARANTINED, _GONE}),
    _COMPLETE: frozenset({_ISOLATED, _STASHED, _GONE}),
    _ISOLATED: frozenset({_COMPLETE, _STASHED, _GONE}),
    _STASHED: frozenset({_GONE}),
    _DOOMED: frozenset({_GONE}),
    _QUARANTINED: frozenset({_GONE}),
    _GONE: frozenset(),
}


class Contract(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What was promised about an object when it was put; shared by all objects of the same contract."""

    softpin: bool = False
    softpin_ttl_ns: int | None = None  # None: until removed
    hardpin: bool = False
    scope: str = "cluster"  # "cluster" | "node"


PLAIN = Contract()


class Replica(msgspec.Struct, gc=False, eq=False):
    """One copy of one generation of a key in G.

    ``gc=False`` keeps a million of them out of the collector's scans; it is sound because a replica refers to no
    object that refers back (sessions are named by number).
    """

    replica_id: int  # never reused on this node
    key: str
    generation: int
    offset: int  # bytes from the start of G
    nbytes: int
    kind: int  # how the bytes are to be read; opaque to the core
    contract: Contract
    state: ReplicaState
    writer: int  # session that reserved it; 0 once published
    since_ns: int  # when it came into its present visibility: reserved, later published
    refs: int = 0  # live handles, over all sessions
    softpin_until_ns: int | None = None  # None: no deadline
