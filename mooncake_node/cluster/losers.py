"""Soft-pinned objects that lost a conflict with another node's: kept, though nobody can read them by their key."""

import time
from itertools import islice

from mooncake_node.core.master import Master
from mooncake_node.core.replica import Replica

_NAMED_MAX = 20


class Losers:
    """Those of this node, until they are cleared or removed by generation."""

    def __init__(self, master: Master) -> None:
        self._master = master
        # All and only those kept, each lent from the core, by key and generation.
        self._kept: dict[tuple[str, int], Replica] = {}

    def keep(self, replica: Replica) -> None:
        """Before it loses its name. Only what takes memory can be kept."""
        if replica.nbytes and self._master.objects.at.get(replica.offset) is replica:
            self._master.objects.lend(replica)
            self._kept[replica.key, replica.generation] = replica

    def forget(self, key: str | None = None, generation: int | None = None) -> int:
        """Let them go: all, or that one; how many that were."""
        chosen = [name for name in self._kept if key is None or name == (key, generation)]
        for name in chosen:
            self._master.peers.give_back(self._kept.pop(name), time.monotonic_ns())
        return len(chosen)

    def facts(self) -> list[dict[str, object]]:
        """What `stats` shows of them: the first few."""
        return [
            {"key": key, "generation": f"{generation:016x}", "nbytes": replica.nbytes}
            for (key, generation), replica in islice(self._kept.items(), _NAMED_MAX)
        ]
