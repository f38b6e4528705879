"""What the server keeps of one attached client."""

from collections.abc import Callable
from typing import Any

from mooncake_client import wire
from mooncake_client.codes import Code
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.scan import Scan
from mooncake_node.core.sessions import Session

Send = Callable[[wire.Message], None]


class Client:
    """Its session in the core, how to reach it, and its open listings."""

    __slots__ = ("far_scans", "next_cursor", "scans", "send", "session")

    def __init__(self, session: Session, send: Send) -> None:
        self.session = session
        self.send = send
        self.scans: dict[int, Scan] = {}
        # Listings that have come to what other nodes have; the server of a cluster knows what is in them.
        self.far_scans: dict[int, object] = {}
        self.next_cursor = 1


def check_batch(items: list[Any]) -> None:
    """Refuse a request with too many items."""
    if len(items) > wire.ITEMS_MAX:
        raise Refusal(Code.INVALID_ARGUMENT, f"{len(items)} items in one request; at most {wire.ITEMS_MAX}")
