"""This client's words in shared memory in which it pins what it reads; only it writes them."""

import mmap
import threading

from mooncake_client.index_layout import ROW_LIMIT, ROW_NBYTES, ROW_PINS, ROW_PINS_MAX

_STEP = 64


class PinRow:
    """The pin words that are free; refers to nothing of the pool, which may be unmapped before it is."""

    def __init__(self, row_fd: int) -> None:
        self.words = memoryview(mmap.mmap(row_fd, ROW_NBYTES)).cast("Q")
        # Those that are 0 and nobody's.
        self.free: list[int] = []
        self._count = 0  # how many there are, free or not
        self._growing = threading.Lock()
        # Set once nobody may come any more: from then on each unpin tells, so that the last one is heard of.
        self.closing = False

    @property
    def in_use(self) -> bool:
        """Something is pinned."""
        return len(self.free) < self._count

    def more(self) -> int:
        """A free one when there was none; 0 if the row is full."""
        with self._growing:
            first, end = self._count, min(self._count + _STEP, ROW_PINS_MAX)
            if first < end:
                # The daemon looks at so many: known before any of them is used.
                self.words[ROW_LIMIT] = end
                self._count = end
                self.free.extend(range(ROW_PINS + first, ROW_PINS + end))
        try:
            return self.free.pop()
        except IndexError:
            return 0
