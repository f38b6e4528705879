"""What the local master shows: statistics, objects, and who holds them. Reads only."""

from typing import TYPE_CHECKING

import msgspec

from mooncake_node.core.replica import Replica
from mooncake_node.core.sessions import Held, Session
from mooncake_node.core.space import Space
from mooncake_node.core.table import MetaMap

if TYPE_CHECKING:
    from mooncake_node.core.master import Master


_RECLAIM = (
    "passes",
    "productive_passes",
    "examined",
    "isolated",
    "dropped",
    "offloaded",
    "swapped_out",
    "parked_lease_only",
    "parked_ref_only",
    "parked_lease_and_ref",
)
_LOAD = ("local_copies", "from_offload", "from_remote_offload", "coalesced")


class HolderReport(msgspec.Struct, frozen=True):
    """How one session holds one replica."""

    session: Session
    replica: Replica
    handles: int
    oldest_since_ns: int


def room_report(space: Space, table: MetaMap, held: Held) -> str:
    """What the pool's bytes are taken by, in one line. Costs the same however much that is."""
    return (
        f"{space.bytes_free} of {space.bytes_total} bytes free, "
        f"largest free extent {space.largest_free_extent}; "
        f"{len(table.current)} objects; {held.count} replicas of {held.nbytes} bytes held by readers; "
        f"{len(table.writing)} being written ({table.writing_nbytes} bytes); "
        f"{len(table.stash)} removed but still read ({table.stash_nbytes} bytes); "
        f"{len(table.doomed)} given up but not yet let go by their writers ({table.doomed_nbytes} bytes)"
    )


def holders(master: "Master", key: str) -> list[HolderReport]:
    """Every session with handles on any generation of *key*, the stashed ones included."""
    reports = []
    for session in master.sessions.values():
        by_replica: dict[int, list[int]] = {}
        replicas: dict[int, Replica] = {}
        for handle in session.handles.values():
            if handle.replica.key == key:
                by_replica.setdefault(handle.replica.replica_id, []).append(handle.since_ns)
                replicas[handle.replica.replica_id] = handle.replica
        reports += [
            HolderReport(session, replicas[replica_id], len(since_ns), min(since_ns))
            for replica_id, since_ns in by_replica.items()
        ]
    return reports


def stats(master: "Master") -> dict[str, object]:
    """The core's part of `stats()` (SPEC 11), in bytes and counts."""
    space, table = master.space, master.table
    return {
        "pool": {
            "bytes_total": space.bytes_total,
            "bytes_used": space.bytes_used,
            "bytes_free": space.bytes_free,
            "largest_free_extent": space.largest_free_extent,
            "quarantined_bytes": table.quarantine_nbytes,
            "doomed_bytes": table.doomed_nbytes,
        },
        "objects": len(table.current),
        "unpublished": len(table.writing) + len(table.doomed),
        "handles": master.handle_count,
        "leases": 0,
        "stash": {"objects": len(table.stash), "bytes": table.stash_nbytes},
        "clients": len(master.sessions),
        "pinned": {
            "soft_bytes": master.pins.soft_nbytes,
            "hard_bytes": master.pins.hard_nbytes,
        },
        "waiting_puts": len(master.waiting.for_room),
        # What this node does not do yet has happened no times.
        "reclaim": dict.fromkeys(_RECLAIM, 0),
        "load": {"local_hits": master.local_hits, **dict.fromkeys(_LOAD, 0)},
        "offload": {"objects": 0, "bytes": 0, "failures": 0},
        "directory": {"state": "none", "queued": 0, "conflicts": 0},
        "waiting": len(master.waiting),
        "clear_epoch": master.clear_epoch,
    }
