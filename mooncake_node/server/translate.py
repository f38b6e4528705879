"""From the core's answers to the wire's, and back. Nothing is decided here."""

from mooncake_client import wire
from mooncake_client.codec import Kind
from mooncake_node.core.pins import contract_for
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.replica import PLAIN, Contract, Replica, ReplicaState
from mooncake_node.core.report import HolderReport, LeaseReport
from mooncake_node.core.sessions import Handle
from mooncake_node.core.waiting import Outcome, Put, PutMode

_KIND_NAMES = {int(kind): kind.name.lower() for kind in Kind}
MS_NS = 1_000_000

# The look-up of an Enum's member is slow.
_PUT, _UPSERT = PutMode.PUT, PutMode.UPSERT


def put_of(spec: wire.PutSpec) -> Put:
    """What the core is asked for."""
    return Put(
        key=spec.key,
        nbytes=spec.nbytes,
        kind=spec.kind,
        contract=_contract_of(spec) if spec.softpin or spec.hardpin or spec.scope else PLAIN,
        mode=_UPSERT if spec.upsert else _PUT,
    )


def _contract_of(spec: wire.PutSpec) -> Contract:
    ttl_ms = spec.softpin_ttl_ms
    return contract_for(
        softpin=spec.softpin,
        softpin_ttl_ns=None if ttl_ms is None else ttl_ms * MS_NS,
        hardpin=spec.hardpin,
        scope=spec.scope or PLAIN.scope,
    )


def failure(refusal: Refusal) -> wire.Failure:
    """One item's no."""
    return wire.Failure(int(refusal.code), refusal.message)


def grant(handle: Handle) -> wire.Grant:
    """One handle."""
    replica = handle.replica
    return wire.Grant(
        handle.handle_id,
        replica.replica_id,
        replica.offset,
        replica.nbytes,
        replica.kind,
        replica.generation,
    )


def outcome_item(outcome: Outcome) -> object:
    """What a waiter's outcome looks like in the reply; None (the key is there) stays None."""
    if isinstance(outcome, Handle):
        return grant(outcome)
    if isinstance(outcome, Replica):
        return wire.Reservation(outcome.replica_id, outcome.offset)
    if isinstance(outcome, Refusal):
        return failure(outcome)
    return outcome


def object_info(replica: Replica, now_ns: int, pins: int) -> wire.ObjectInfo:
    """What users see of a readable object; *pins*: those by way of the index."""
    until_ns = replica.softpin_until_ns
    # A secondary replica takes part in no pin here, but the object may have one.
    contract = replica.contract if replica.remembered is None else replica.remembered
    pinned = contract.softpin and (until_ns is None or until_ns > now_ns)
    return wire.ObjectInfo(
        key=replica.key,
        nbytes=replica.nbytes,
        kind=_KIND_NAMES.get(replica.kind, f"kind {replica.kind}"),
        generation=wire.generation_text(replica.generation),
        state=replica.state.name.lower(),
        refs=replica.refs + pins,
        age_s=(now_ns - replica.since_ns) / 1e9,
        softpin=pinned,
        softpin_deadline_s=(until_ns - now_ns) / 1e9 if pinned and until_ns is not None else None,
        hardpin=replica.contract.hardpin,
        scope=replica.contract.scope,
    )


def replica_list(request_id: int, replica: Replica, token: int, now_ns: int) -> wire.ReplicaList:
    """What a remote reader needs to read a replica; a token of 0: it is on disk, and no lease was given."""
    return wire.ReplicaList(
        request_id,
        [
            wire.ReplicaInfo(
                replica_id=replica.replica_id,
                tier="memory" if token else "disk",
                offset=replica.offset,
                nbytes=replica.nbytes,
                kind=replica.kind,
                generation=replica.generation,
                lease_token=token,
                lease_ms=max(0, replica.leased_until_ns - now_ns) // MS_NS if token else 0,
            )
        ],
    )


def lease_holder(report: LeaseReport) -> wire.Holder:
    """What users see of the remote readers of a replica."""
    return wire.Holder(
        client="(readers on other nodes)",
        pid=0,
        handles=0,
        oldest_s=0.0,
        generation=wire.generation_text(report.replica.generation),
        note=f"leased for another {report.left_ns / 1e9:.1f} s",
    )


def holder(report: HolderReport, now_ns: int) -> wire.Holder:
    """What users see of a holder."""
    state = report.replica.state
    return wire.Holder(
        client=report.session.name,
        pid=report.session.pid,
        handles=report.handles,
        oldest_s=0.0 if report.oldest_since_ns is None else (now_ns - report.oldest_since_ns) / 1e9,
        generation=wire.generation_text(report.replica.generation),
        note="" if state is ReplicaState.COMPLETE else state.name.lower(),
    )
