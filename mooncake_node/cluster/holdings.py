"""From a replica of this node to what the directory says of it, and from an entry to what can be read."""

import time

from mooncake_node.cluster.membership import Membership
from mooncake_node.core.jobs import Found
from mooncake_node.core.replica import PLAIN, Contract, Replica, ReplicaState
from mooncake_node.directory.port import Entry, Holding

_WALL_OFFSET_NS = time.time_ns() - time.monotonic_ns()


def holding_of(replica: Replica, membership: Membership, epoch: int) -> Holding:
    """What the directory is to say of *replica*."""
    contract = replica.contract if replica.owner is None else (replica.remembered or PLAIN)
    until_ns = replica.softpin_until_ns
    return Holding(
        node=membership.me.name,
        incarnation=membership.me.incarnation,
        generation=replica.generation,
        nbytes=replica.nbytes,
        kind=replica.kind,
        epoch=epoch,
        is_owner=replica.owner is None,
        on_disk=replica.state is ReplicaState.ON_DISK,
        softpin=contract.softpin,
        softpin_until_unix_ms=None if until_ns is None else (until_ns + _WALL_OFFSET_NS) // 1_000_000,
    )


def live_holdings(entry: Entry, membership: Membership, epoch: int) -> list[Holding]:
    """Those of nodes that live, this one included, that no clear has ended."""
    return [
        holding
        for holding in entry.holdings
        if holding.epoch >= epoch and membership.is_alive(holding.node, holding.incarnation)
    ]


def sources_in(entry: Entry, membership: Membership, epoch: int, *, avoid: frozenset[str]) -> list[Holding]:
    """What other nodes have, best source first: not one to *avoid*, in memory, the owner's."""
    sources = [h for h in live_holdings(entry, membership, epoch) if h.node != membership.me.name]
    return sorted(sources, key=lambda h: (h.node in avoid, h.on_disk, not h.is_owner, h.node))


def found_at(owner: Holding, sources: object) -> Found:
    """What the core is told of an object that others have."""
    until_ms = owner.softpin_until_unix_ms
    return Found(
        generation=owner.generation,
        nbytes=owner.nbytes,
        kind=owner.kind,
        owner=owner.node,
        contract=Contract(softpin=True) if owner.softpin else PLAIN,
        softpin_until_ns=None if until_ms is None else until_ms * 1_000_000 - _WALL_OFFSET_NS,
        sources=sources,
    )
