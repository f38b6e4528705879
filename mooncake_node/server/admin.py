"""What only the admin socket answers."""

from typing import Any

from mooncake_client import wire
from mooncake_client.errors import InvalidArgumentError, StoreError
from mooncake_client.faults import FaultTable

# What it answers beside faults: looking, not touching.
LOOKS = frozenset({wire.Stats, wire.Holders, wire.ListKeys, wire.Info, wire.Exists})


def answer_fault(faults: FaultTable, request: wire.Fault) -> wire.Message:
    """List, inject or look at faults of the daemon."""
    try:
        return wire.Facts(request.request_id, _fault(faults, request))
    except StoreError as error:
        return wire.Failed(request.request_id, error.code, error.message)


def _fault(faults: FaultTable, request: wire.Fault) -> dict[str, Any]:
    if request.verb == "inject":
        faults.inject(request.name, request.action, request.value, request.start, request.times)
        return {}
    if request.verb == "status":
        return faults.status(request.name).as_dict()
    if request.verb == "list":
        return {"enabled": faults.enabled, "points": [point.as_dict() for point in faults.statuses()]}
    raise InvalidArgumentError(f"unknown verb {request.verb!r}")
