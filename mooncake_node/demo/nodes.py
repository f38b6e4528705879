"""What the demo waits for before it measures: warm pools, and nodes that know of each other."""

import time
from collections.abc import Collection
from typing import Any

from mooncake_client import Client
from mooncake_node.demo.errors import DemoError

_MEET_LIMIT_S = 60.0
_PAUSE_S = 0.02


def wait_until_warm(client: Client) -> dict[str, Any]:
    """The statistics when the pages of the pool have been touched, so that no first touch is timed."""
    while (stats := client.stats())["pages"]["prefault"] in ("pending", "running"):
        time.sleep(_PAUSE_S)
    return stats


def wait_until_acquainted(clients: Collection[Client], names: Collection[str]) -> None:
    """Return when the node of each client knows all *names*; DemoError if that takes too long."""
    until_s = time.monotonic() + _MEET_LIMIT_S
    for client in clients:
        while not set(names) <= (known := client.stats()["cluster"]["nodes"].keys()):
            if time.monotonic() > until_s:
                raise DemoError(f"after {_MEET_LIMIT_S:g} s a node knows of {', '.join(known) or 'none'} alone")
            time.sleep(_PAUSE_S)
