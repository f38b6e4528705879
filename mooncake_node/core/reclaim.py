"""Reclaim: making room in G, by the same steps in the background and for a put that finds none.

Background reclaim begins when less than `free_low` bytes are free and ends at `free_high`; a put, or a load, that finds
no room reclaims at once what can go at once, and waits in the queue for what has to be written first.
"""

from collections import Counter

from mooncake_node.core.config import MasterConfig
from mooncake_node.core.eviction import Eviction
from mooncake_node.core.objects import Objects
from mooncake_node.core.replica import Rank, Replica
from mooncake_node.core.waiting import Put, PutMode, Waiter
from mooncake_node.core.windows import Windows

# Passes one put may cost; what they do not free is freed by later ones, while the put waits.
DIRECT_PASSES_MAX = 8
# An object below this finds its room where the coldest lie; a larger one may need neighbours.
_WINDOW_NBYTES_MIN = 64 << 10
_AT_ONCE = (Rank.CLEAN, Rank.PLAIN)
_ALL = (Rank.CLEAN, Rank.PLAIN, Rank.PINNED)
# Upper bounds (ms) of the histogram of how long the next lease still ran when nothing could go.
LEASE_BOUNDS_MS = (10, 100, 1_000, 5_000, 10_000, 20_000, 30_000)


class Reclaim:
    """Decides when reclaim runs, how much it wants, and which victims serve a large object best."""

    def __init__(self, config: MasterConfig, objects: Objects, eviction: Eviction) -> None:
        self._config = config
        self._objects = objects
        self._eviction = eviction
        self._space = objects.space
        self._lists = objects.lists
        self.windows = Windows(objects)
        # Free bytes fell below low and have not come up to high since.
        self._is_short = False
        # How often nothing could go, by how long the lease ran that would end first: upper bound (ms) -> times.
        self.earliest_lease_expire_ms: Counter[int] = Counter()

    def find_room_for(self, put: Put, now_ns: int, waiter: Waiter | None = None) -> int | None:
        """`find_room` for a put, which does not drop what it is to replace: if it fails, the old one stays."""
        replaced = self._replaced_by(put)
        if replaced is None:
            return self.find_room(put.nbytes, now_ns, waiter)
        with self._eviction.set_aside(replaced):
            return self.find_room(put.nbytes, now_ns, waiter)

    def find_room(self, nbytes: int, now_ns: int, waiter: Waiter | None = None) -> int | None:
        """The offset of room for *nbytes*, reserved; of what can go at once, as much as that takes is dropped.

        None: there is no room, or not yet. *waiter*: who asks, if it has waited; room kept for it is used.
        """
        if waiter is not None and (offset := self.windows.take_over(waiter)) is not None:
            return offset
        offset = self._space.reserve(nbytes)
        if offset is None:
            return self._make_room(nbytes, now_ns, is_new=waiter is None)
        if self._space.bytes_free < self._config.free_min_nbytes:
            # The background does not keep up: whoever takes room gives back as much.
            self._restock(nbytes, self._at_once(now_ns), now_ns)
        return offset

    def _make_room(self, nbytes: int, now_ns: int, *, is_new: bool) -> int | None:
        offset = None
        if self._objects.index.sweep_due:
            self._objects.sweep(now_ns)
            offset = self._space.reserve(nbytes)
        at_once = self._at_once(now_ns)
        for _ in range(DIRECT_PASSES_MAX):
            if offset is not None or not self._lists.any_of(at_once):
                break
            if self._objects.leaving_nbytes >= nbytes:
                break  # it waits for that, and looks again when it is there
            self._pass_for(nbytes, at_once, now_ns)
            offset = self._space.reserve(nbytes)
        if offset is None and is_new:
            self._note_leases(now_ns)
        return offset

    def due_at_ns(self, head: Waiter | None, now_ns: int) -> int | None:
        """When a pass in the background would do any good; 0: now. *head*: the first in the queue for room."""
        if head is None and self._short_nbytes() <= 0:
            return None
        return 0 if self._is_due(head, now_ns) else self._retry_at_ns(head, now_ns)

    def _is_due(self, head: Waiter | None, now_ns: int) -> bool:
        ranks = self._ranks(now_ns)
        if self._head_nbytes(head) > 0:
            with self._eviction.set_aside(self._replaced_by(head.put if head is not None else None)):
                if self._lists.any_of(ranks):
                    return True
        return self._short_nbytes() > 0 and self._lists.has_spare(ranks, self._config.free_high_nbytes)

    def run(self, head: Waiter | None, now_ns: int) -> None:
        """One pass in the background."""
        with self._eviction.set_aside(self._replaced_by(head.put if head is not None else None)):
            self._run(head, now_ns)

    def _run(self, head: Waiter | None, now_ns: int) -> None:
        ranks = self._ranks(now_ns)
        head_nbytes = self._head_nbytes(head)
        if head is None or head_nbytes <= 0 or not self._lists.any_of(ranks):
            short_nbytes = self._short_nbytes()
            if short_nbytes > 0:
                self._restock(short_nbytes, ranks, now_ns)
            return
        window = self.windows.choose(head.nbytes, ranks) if self._needs_window(head.nbytes, ranks) else None
        if window is None:
            self._eviction.evict(self._lists.isolate(head_nbytes, ranks), now_ns)
            return
        # What is freed in it is for the head of the queue; smaller puts may have the rest.
        self.windows.keep(window, head)
        self._eviction.evict(window.victims, now_ns)
        self.windows.gather()

    def _retry_at_ns(self, head: Waiter | None, now_ns: int) -> int | None:
        """When the tier may be tried again, if that is what room waits for."""
        blocked_until_ns = self._objects.disk.blocked_until_ns
        wants = (self._head_nbytes(head) > 0 or self._short_nbytes() > 0) and self._lists.any_of((Rank.PINNED,))
        return blocked_until_ns if wants and blocked_until_ns > now_ns else None

    def _replaced_by(self, put: Put | None) -> Replica | None:
        if put is None or put.mode is not PutMode.UPSERT:
            return None
        return self._objects.table.current.get(put.key)

    def _ranks(self, now_ns: int) -> tuple[Rank, ...]:
        return _ALL if self._objects.disk.takes(now_ns) else _AT_ONCE

    def _at_once(self, now_ns: int) -> tuple[Rank, ...]:
        """What goes without being written first."""
        is_written = self._config.offload_unpinned and self._objects.disk.takes(now_ns)
        return (Rank.CLEAN,) if is_written else _AT_ONCE

    def _head_nbytes(self, head: Waiter | None) -> int:
        """How much more must be on its way out for the head of the queue."""
        if head is None or self.windows.is_kept_for(head):
            return 0
        return head.nbytes - self._objects.isolated_nbytes - self._objects.leaving_nbytes

    def _short_nbytes(self) -> int:
        """How much more should be on its way out, so that those who come find room."""
        free_nbytes = self._space.bytes_free + self._objects.isolated_nbytes + self._objects.leaving_nbytes
        if free_nbytes < self._config.free_low_nbytes:
            self._is_short = True
        elif free_nbytes >= self._config.free_high_nbytes:
            self._is_short = False
        return self._config.free_high_nbytes - free_nbytes if self._is_short else 0

    def _restock(self, nbytes: int, ranks: tuple[Rank, ...], now_ns: int) -> None:
        """One pass for nobody in particular."""
        self._eviction.evict(self._lists.isolate(nbytes, ranks, spare_of_nbytes=self._config.free_high_nbytes), now_ns)

    def _pass_for(self, nbytes: int, ranks: tuple[Rank, ...], now_ns: int) -> None:
        """One pass for an object of that size."""
        window = self.windows.choose(nbytes, ranks) if self._needs_window(nbytes, ranks) else None
        self._eviction.evict(self._lists.isolate(nbytes, ranks) if window is None else window.victims, now_ns)

    def _needs_window(self, nbytes: int, ranks: tuple[Rank, ...]) -> bool:
        """Whether neighbours have to go together: the room of the coldest alone would not do."""
        coldest = next(self._lists.coldest(ranks, 1), None)
        return nbytes >= _WINDOW_NBYTES_MIN and coldest is not None and coldest.nbytes < nbytes

    def _note_leases(self, now_ns: int) -> None:
        expiry_ns = self._objects.leases.next_expiry_ns()
        if expiry_ns is not None and not self._lists.any_of(_ALL):
            left_ms = max(0, expiry_ns - now_ns) / 1e6
            bound = next((bound for bound in LEASE_BOUNDS_MS if left_ms <= bound), LEASE_BOUNDS_MS[-1])
            self.earliest_lease_expire_ms[bound] += 1
