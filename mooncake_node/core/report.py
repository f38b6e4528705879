"""What the local master shows: statistics, objects, and who holds them. Reads only."""

import heapq
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from mooncake_node.core.objects import Objects
from mooncake_node.core.replica import Replica
from mooncake_node.core.sessions import Session

if TYPE_CHECKING:
    from mooncake_node.core.master import Master

# Who holds memory is looked up among so many clients, and so many handles of each.
_SESSIONS_MAX = 256
_HANDLES_MAX = 256
_NAMED_MAX = 3


class HolderReport(msgspec.Struct, frozen=True):
    """How one session holds one replica."""

    session: Session
    replica: Replica
    handles: int
    oldest_since_ns: int | None  # None: pinned by way of the index, since when is not known


class LeaseReport(msgspec.Struct, frozen=True):
    """A replica that remote readers were promised."""

    replica: Replica
    left_ns: int


def room_report(objects: Objects, sessions: Iterable[Session], now_ns: int) -> str:
    """What the pool's bytes are taken by, and why they cannot go, in one line. Costs the same however much that is."""
    space, table, disk = objects.space, objects.table, objects.disk
    facts = [
        f"{space.bytes_free} of {space.bytes_total} bytes free, largest free extent {space.largest_free_extent}",
        f"{len(table.current)} objects",
        f"{objects.held.count} replicas of {objects.held.nbytes} bytes held by readers{_held_by(sessions, now_ns)}",
        f"{len(table.writing)} being written ({table.writing_nbytes} bytes)",
        f"{len(table.stash)} removed but still read ({table.stash_nbytes} bytes)",
        f"{len(table.doomed)} given up but not yet let go by their writers ({table.doomed_nbytes} bytes)",
    ]
    if objects.index.kept:
        facts.append(f"{len(objects.index.kept)} replicas pinned by way of the index{_pinned_by(objects, sessions)}")
    if objects.leases.count:
        next_ns = objects.leases.next_expiry_ns() or now_ns
        left_s = max(0, next_ns - now_ns) / 1e9
        facts.append(f"{objects.leases.count} leases of remote readers, the next ends in {left_s:.1f} s at the latest")
    if objects.pins.hard_nbytes:
        facts.append(f"{objects.pins.hard_nbytes} bytes pinned hard")
    if objects.pins.soft_nbytes:
        facts.append(f"{objects.pins.soft_nbytes} bytes pinned soft, in memory or on disk")
        if not disk.nbytes_max:
            facts.append("there is no offload directory for them to go to")
        elif not disk.takes(now_ns):
            facts.append(f"the offload tier takes nothing now ({disk.nbytes} of {disk.nbytes_max} bytes used)")
    return "; ".join(facts)


def _held_by(sessions: Iterable[Session], now_ns: int) -> str:
    """The keys with the most bytes among those that are held, and who holds them."""
    held: Counter[tuple[str, int]] = Counter()
    facts: dict[tuple[str, int], tuple[Session, int]] = {}
    for session in islice(sessions, _SESSIONS_MAX):
        for handle in islice(session.handles.values(), _HANDLES_MAX):
            name = (handle.replica.key, session.session_id)
            held[name] = handle.replica.nbytes
            facts.setdefault(name, (session, handle.since_ns))
    named = []
    for name, nbytes in held.most_common(_NAMED_MAX):
        session, since_ns = facts[name]
        age_s = (now_ns - since_ns) / 1e9
        named.append(f"{name[0]!r} ({nbytes} bytes) by {session.name} (pid {session.pid}) for {age_s:.1f} s")
    return f": {', '.join(named)}{', ...' if len(held) > _NAMED_MAX else ''}" if named else ""


def _pinned_by(objects: Objects, sessions: Iterable[Session]) -> str:
    """The largest of those that are known to be pinned in the shared index, and by whom."""
    largest = heapq.nlargest(_NAMED_MAX, islice(objects.index.kept.values(), _HANDLES_MAX), key=lambda r: r.nbytes)
    names = {session.session_id: f"{session.name} (pid {session.pid})" for session in islice(sessions, _SESSIONS_MAX)}
    named = []
    for replica in largest:
        found = objects.index.readers.holders(replica)
        pinners = [names[session_id] for session_id in islice(found, _NAMED_MAX) if session_id in names]
        if pinners:
            named.append(f"{replica.key!r} ({replica.nbytes} bytes) by {' and '.join(pinners)}")
    return f": {', '.join(named)}" if named else ""


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
    return reports + [
        HolderReport(master.sessions[session_id], replica, pins, None)
        for replica in _in_memory(master, key)
        for session_id, pins in master.objects.index.readers.holders(replica).items()
    ]


def leases(master: "Master", key: str, now_ns: int) -> list[LeaseReport]:
    """The leases that run on generations of *key*, the stashed ones included; for each replica the youngest."""
    return [
        LeaseReport(replica, replica.leased_until_ns - now_ns)
        for replica in _in_memory(master, key)
        if replica.leased_until_ns > now_ns
    ]


def _in_memory(master: "Master", key: str) -> list[Replica]:
    """The readable replica of *key*, and those that are stashed."""
    current = master.table.current.get(key)
    replicas = [current] if current is not None else []
    return replicas + [replica for replica in master.table.stash.values() if replica.key == key]


def stats(master: "Master") -> dict[str, object]:
    """The core's part of `stats()` (SPEC 11), in bytes and counts."""
    space, table, objects, admission = master.space, master.table, master.objects, master.admission
    readers = objects.index.readers
    lists, counters, disk = objects.lists, objects.counters, objects.disk
    return {
        "pool": {
            "bytes_total": space.bytes_total,
            "bytes_used": space.bytes_used,
            "bytes_free": space.bytes_free,
            "largest_free_extent": space.largest_free_extent,
            "quarantined_bytes": table.quarantine_nbytes,
            "doomed_bytes": table.doomed_nbytes,
            "isolated_bytes": objects.isolated_nbytes,
            "leaving_bytes": objects.leaving_nbytes,
        },
        "objects": len(table.current),
        "unpublished": len(table.writing) + len(table.doomed),
        "handles": sum(len(session.handles) for session in master.sessions.values()) + readers.pins,
        "leases": objects.leases.count,
        "stash": {"objects": len(table.stash), "bytes": table.stash_nbytes},
        "clients": len(master.sessions),
        "pinned": {
            "soft_bytes": master.pins.soft_nbytes,
            "hard_bytes": master.pins.hard_nbytes,
        },
        "waiting_puts": sum(waiter.put is not None for waiter in master.waiting.for_room.values()),
        "reclaim": {
            "passes": lists.passes,
            "productive_passes": lists.productive_passes,
            "examined": lists.examined,
            "isolated": lists.isolated,
            "dropped": counters.dropped,
            "offloaded": counters.offloaded,
            "swapped_out": 0,
            "parked_lease_only": counters.parked_lease_only,
            "parked_ref_only": counters.parked_ref_only,
            "parked_lease_and_ref": counters.parked_lease_and_ref,
            "listed": len(lists),
            "earliest_lease_expire_ms": {
                f"<={bound}": count for bound, count in sorted(master.reclaim.earliest_lease_expire_ms.items())
            },
        },
        "load": {
            "local_hits": admission.local_hits + readers.hits,
            "local_copies": admission.loads.copied,
            "from_offload": admission.loads.from_disk,
            "from_remote_offload": admission.loads.copied_from_disk,
            "coalesced": admission.loads.coalesced,
            "under_way": len(admission.loads.by_key),
        },
        "offload": {
            "objects": disk.copies,
            "bytes": disk.nbytes,
            "bytes_max": disk.nbytes_max,
            "failures": disk.failures,
            "only_on_disk": disk.only_count,
            "lost": len(admission.lost),
        },
        "directory": {"state": "none", "queued": 0, "conflicts": 0},
        "waiting": len(master.waiting),
        "clear_epoch": master.clear_epoch,
    }
