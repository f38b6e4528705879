"""Walks over the keys of a prefix in bounded steps, so that a long listing holds nobody up."""

from mooncake_node.core.replica import Replica
from mooncake_node.core.table import MetaMap


class Scan:
    """The readable objects whose key starts with *prefix*, over the keys there were when the scan began.

    Each is shown as it is when its turn comes: a key that was readable throughout is shown once, a removed one not,
    a replaced one by its new generation. A key that was not readable when the scan began is not seen.
    """

    def __init__(self, table: MetaMap, prefix: str) -> None:
        self._table = table
        self._prefix = prefix
        self._keys = list(table.current)
        self._keys.reverse()

    def next(self, examined_max: int) -> list[Replica]:
        """The next ones, after looking at up to *examined_max* keys; may be empty before the end."""
        assert examined_max > 0
        keys = self._keys[: -examined_max - 1 : -1]
        del self._keys[-examined_max:]
        prefix, current = self._prefix, self._table.current
        found = [current.get(key) for key in keys if key.startswith(prefix)]
        return [replica for replica in found if replica is not None]

    @property
    def done(self) -> bool:
        """Every key has been looked at."""
        return not self._keys
