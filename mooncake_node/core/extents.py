"""Free extents of the pool: best fit in granules of 4 KiB, coalesced at once.

Addresses and lengths are counted in granules here; bytes are the business of `slabs` and `space`.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from itertools import pairwise

GRANULE_BYTES = 4096
NGRANULES_MAX = 1 << 32  # 16 TiB; what a key of the length index has room for
HUGE_GRANULES = 512  # one page of 2 MiB

# From this length on, any gap before a 2 MiB boundary is under a tenth of the object.
_ALWAYS_HUGE_GRANULES = 10 * (HUGE_GRANULES - 1) + 1

_LIVE = 1


class Extents:
    """Reserves runs of granules: in the smallest free extent that suffices, of equals the lowest.

    Large objects grow from the low end of an extent and the rest from its high end, so that a
    sample of 64 KiB does not push every later weight shard off its 2 MiB boundary.
    """

    def __init__(self, ngranules: int) -> None:
        assert 0 < ngranules < NGRANULES_MAX
        self.ngranules = ngranules
        self.nfree = ngranules
        # All and only the free extents, three times. No two of them touch.
        self._length_at = {0: ngranules}  # start -> length
        self._start_before = {ngranules: 0}  # end -> start
        self._by_length = SortedKeys()  # length << 32 | start
        self._by_length.add(ngranules << 32)
        # _LIVE at the first granule of every live extent, else 0. Together with the free extents
        # this says where each live one ends, so a wrong free is caught although no lengths are
        # kept. A byte per granule is 0.024 % of the pool; a set of starts is 90 bytes an object.
        self._starts = bytearray(ngranules)

    @property
    def largest(self) -> int:
        """Length of the longest free extent, 0 when nothing is free."""
        return self._by_length.last() >> 32

    @property
    def largest_start(self) -> int | None:
        """Where the longest free extent begins; None when nothing is free."""
        key = self._by_length.last()
        return key & 0xFFFF_FFFF if key else None

    def reserve(self, ngranules: int) -> int | None:
        """Take one run of *ngranules* and return its start, or None when no free extent has it."""
        assert ngranules > 0
        if ngranules < HUGE_GRANULES:
            key = self._by_length.at_least(ngranules << 32)
        else:
            key = self._choose_for_huge(ngranules)
        if not key:
            return None
        start = key & 0xFFFF_FFFF
        end = start + (key >> 32)
        taken = end - ngranules if ngranules < HUGE_GRANULES else _place_huge(key, ngranules)
        self._carve(start, end, taken, ngranules)
        return taken

    def reserve_row(self, count: int, ngranules: int) -> int | None:
        """Take *count* runs of *ngranules*, side by side, each to be freed by itself; where the first begins."""
        start = self.reserve(count * ngranules)
        if start is not None:
            for at in range(start + ngranules, start + count * ngranules, ngranules):
                self._starts[at] = _LIVE
        return start

    def take(self, start: int, ngranules: int) -> bool:
        """Take exactly that run; False, and nothing is taken, if not all of it is free."""
        end = self._starts.find(_LIVE, start)
        if end < 0:
            end = self.ngranules
        before = self._start_before.get(end)
        if before is None or before > start or start + ngranules > end:
            return False
        self._carve(before, end, start, ngranules)
        return True

    def free_at(self, start: int) -> int:
        """Length of the free extent that begins there; 0 if none does."""
        return self._length_at.get(start, 0)

    def start_before(self, granule: int) -> int | None:
        """Where the extent, free or live, begins that ends before *granule*; None at the low end of the pool."""
        if granule == 0:
            return None
        start = self._start_before.get(granule)
        return self._starts.rfind(_LIVE, 0, granule) if start is None else start

    def free(self, start: int, ngranules: int) -> None:
        """Give back exactly what `reserve` returned; it joins the free extents on both sides."""
        self.check_live(start, ngranules)
        end = start + ngranules
        self._starts[start] = 0
        self.nfree += ngranules
        # Entries of the two dicts that merging makes wrong are removed or overwritten right here.
        before = self._start_before.pop(start, None)
        if before is not None:
            self._by_length.remove((start - before) << 32 | before)
            start = before
        after_length = self._length_at.pop(end, None)
        if after_length is not None:
            self._by_length.remove(after_length << 32 | end)
            end += after_length
        self._length_at[start] = end - start
        self._start_before[end] = start
        self._by_length.add((end - start) << 32 | start)

    def live_start(self, granule: int, *, span: int) -> int:
        """Start of the live extent around *granule*, searched over *span* granules; -1 if none."""
        return self._starts.rfind(_LIVE, max(0, granule - span + 1), granule + 1)

    def free_extents(self) -> Iterator[tuple[int, int]]:
        """Every free extent as (start, length), by address."""
        return iter(sorted(self._length_at.items()))

    def check(self) -> None:
        """Assert that the indices agree and that free and live extents tile the pool."""
        end_before = 0  # of the free extent before, in address order
        for start, length in self.free_extents():
            end = start + length
            assert length > 0
            assert end <= self.ngranules
            assert start == 0 or start > end_before, "two free extents touch"
            assert start == end_before or self._starts[end_before] == _LIVE, "used, but by nobody"
            assert self._starts.find(_LIVE, start, end) < 0, "live inside a free extent"
            assert self._start_before[end] == start
            end_before = end
        assert end_before == self.ngranules or self._starts[end_before] == _LIVE
        assert len(self._start_before) == len(self._length_at)
        keys = [length << 32 | start for start, length in self._length_at.items()]
        assert self._by_length.sorted_keys() == sorted(keys)
        assert self.nfree == sum(self._length_at.values())

    def check_live(self, start: int, ngranules: int) -> None:
        """Assert that exactly (start, ngranules) is a live extent."""
        end = start + ngranules
        assert 0 <= start < end <= self.ngranules
        assert self._starts[start] == _LIVE, "no extent was reserved at this start"
        assert self._starts.find(_LIVE, start + 1, end) < 0, "more than was reserved"
        if end not in self._length_at:
            assert end == self.ngranules or self._starts[end] == _LIVE, "less than was reserved"
            assert end not in self._start_before, "free room besides what was reserved"

    def _carve(self, start: int, end: int, taken: int, ngranules: int) -> None:
        """Take a part of the free extent from *start* to *end*."""
        taken_end = taken + ngranules
        self._by_length.remove((end - start) << 32 | start)
        if taken > start:
            self._length_at[start] = taken - start
            self._start_before[taken] = start
            self._by_length.add((taken - start) << 32 | start)
        else:
            del self._length_at[start]
        if taken_end < end:
            self._length_at[taken_end] = end - taken_end
            self._start_before[end] = taken_end
            self._by_length.add((end - taken_end) << 32 | taken_end)
        else:
            del self._start_before[end]
        self._starts[taken] = _LIVE
        self.nfree -= ngranules

    def _choose_for_huge(self, ngranules: int) -> int:
        key = self._by_length.at_least(ngranules << 32)
        if not key or ngranules < _ALWAYS_HUGE_GRANULES:
            return key
        if _place_huge(key, ngranules) % HUGE_GRANULES == 0:
            return key
        # The best fit is too tight to reach a boundary. An object this large is worth a wider one.
        return self._by_length.at_least((ngranules + HUGE_GRANULES - 1) << 32) or key


class SortedKeys:
    """Sorted distinct integers > 0, in chunks short enough that an insertion moves few of them.

    The key added last stays apart until the next one comes: the remainder of one reserve is often
    what the next reserve or free changes again, and then it never has to be sorted in.
    sortedcontainers.SortedList would do, but finds by position besides, which nobody here asks for
    and which makes a reserve and its free twice as slow.
    """

    def __init__(self, *, chunk_keys_max: int = 1024) -> None:
        self._chunk_keys_max = chunk_keys_max
        self._newest = 0  # the key added last, in no chunk; 0 when that one was removed
        self._chunks: list[list[int]] = [[]]  # only the first may be empty
        # What may be in chunk i: floors[i] <= key < floors[i + 1].
        self._floors = [0]

    def add(self, key: int) -> None:
        """Insert *key*, which is not there yet."""
        older = self._newest
        self._newest = key
        if not older:
            return
        i = bisect_right(self._floors, older) - 1
        chunk = self._chunks[i]
        insort(chunk, older)
        if len(chunk) > self._chunk_keys_max:
            half = len(chunk) // 2
            self._chunks.insert(i + 1, chunk[half:])
            self._floors.insert(i + 1, chunk[half])
            del chunk[half:]

    def remove(self, key: int) -> None:
        """Delete *key*, which is there."""
        if key == self._newest:
            self._newest = 0
            return
        i = bisect_right(self._floors, key) - 1
        chunk = self._chunks[i]
        j = bisect_left(chunk, key)
        assert chunk[j] == key
        del chunk[j]
        if not chunk and i > 0:
            del self._chunks[i]
            del self._floors[i]

    def at_least(self, floor: int) -> int:
        """Return the smallest key >= *floor*, or 0."""
        i = bisect_right(self._floors, floor) - 1
        chunk = self._chunks[i]
        j = bisect_left(chunk, floor)
        key = 0
        if j < len(chunk):
            key = chunk[j]
        elif i + 1 < len(self._chunks):
            key = self._chunks[i + 1][0]
        newest = self._newest
        return newest if newest >= floor and (newest < key or not key) else key

    def last(self) -> int:
        """Return the largest key, 0 when there is none."""
        chunk = self._chunks[-1]
        return max(chunk[-1], self._newest) if chunk else self._newest

    def sorted_keys(self) -> list[int]:
        """Return all keys in order, after asserting that each chunk holds what its floors say."""
        assert all(self._chunks[1:])
        ceilings = [*self._floors[1:], NGRANULES_MAX << 32]
        for floor, chunk, ceiling in zip(self._floors, self._chunks, ceilings, strict=True):
            assert all(a < b for a, b in pairwise([floor - 1, *chunk, ceiling]))
        keys = [key for chunk in self._chunks for key in chunk]
        if self._newest:
            insort(keys, self._newest)
        return keys


def _place_huge(key: int, ngranules: int) -> int:
    """Where in the free extent *key* an object of 2 MiB or more starts."""
    start = key & 0xFFFF_FFFF
    gap = -start % HUGE_GRANULES
    fits = gap + ngranules <= key >> 32
    return start + gap if fits and gap * 10 < ngranules else start
