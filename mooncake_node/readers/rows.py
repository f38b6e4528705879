"""The rows in which clients pin what they read; each is written by its client alone, and looked at here."""

import mmap
import os
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from mooncake_client.index_layout import ROW_HITS, ROW_LIMIT, ROW_NBYTES, ROW_PINS, ROW_PINS_MAX
from mooncake_node.readers.index import open_memory

# More than any client can have; sums of it fit in 64 bits.
_HITS_MAX = 1 << 40

Words = npt.NDArray[np.uint64]


class Rows:
    """All and only the rows of sessions that have one."""

    def __init__(self) -> None:
        self._rows: dict[int, Words] = {}  # by session id
        self._hits_of_closed = 0

    def __len__(self) -> int:
        return len(self._rows)

    def open(self, session_id: int) -> int:
        """A row for a session; its descriptor, to be closed when the client has it."""
        fd = open_memory("mooncake-node-pins", ROW_NBYTES)
        self._rows[session_id] = np.frombuffer(mmap.mmap(fd, ROW_NBYTES), np.uint64)
        # Its client writes.
        os.fchmod(fd, 0o600)
        return fd

    def close(self, session_id: int) -> bool:
        """The session is over: nothing is pinned by it any more. True if it had a row."""
        row = self._rows.pop(session_id, None)
        if row is None:
            return False
        self._hits_of_closed += self._hits_of(row)
        return True

    def has_pins(self, session_id: int) -> bool:
        """Whether anything is pinned in that session's row."""
        row = self._rows.get(session_id)
        return row is not None and bool(self._used(row).any())

    def pinned(self, ids: Iterable[int]) -> set[int]:
        """Which of *ids* are pinned in any row."""
        used = [self._used(row) for row in self._rows.values()]
        pins = used[0] if len(used) == 1 else np.concatenate(used) if used else np.empty(0, np.uint64)
        pins = pins[pins != 0]
        if not len(pins):
            return set()
        asked = np.fromiter(ids, np.uint64)
        if len(asked) == 1:
            return {int(asked[0])} if (pins == asked[0]).any() else set()
        return set(asked[np.isin(asked, pins)].tolist())

    def counts(self, id_: int) -> dict[int, int]:
        """How often each session has it pinned, of those that have."""
        counts = {session_id: int((self._used(row) == id_).sum()) for session_id, row in self._rows.items()}
        return {session_id: count for session_id, count in counts.items() if count}

    def all_counts(self) -> dict[int, int]:
        """How often each id is pinned, of those that are."""
        if not self._rows:
            return {}
        ids, counts = np.unique(np.concatenate([self._used(row) for row in self._rows.values()]), return_counts=True)
        return dict(zip(ids.tolist(), counts.tolist(), strict=True))

    @property
    def pins(self) -> int:
        """How many there are."""
        return sum(int(np.count_nonzero(self._used(row))) for row in self._rows.values())

    @property
    def hits(self) -> int:
        """Gets answered without the daemon, of all clients there ever were."""
        return self._hits_of_closed + sum(self._hits_of(row) for row in self._rows.values())

    # A client's words; what they say is not trusted beyond the row, nor beyond what statistics can show.

    @staticmethod
    def _hits_of(row: Words) -> int:
        return min(int(row[ROW_HITS]), _HITS_MAX)

    @staticmethod
    def _used(row: Words) -> Words:
        limit = min(int(row[ROW_LIMIT]), ROW_PINS_MAX)
        return row[ROW_PINS : ROW_PINS + limit]
