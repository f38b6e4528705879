"""Room for objects under 4 KiB: slabs of one slot size each, cut from the free extents."""

from bisect import bisect_left, insort
from functools import cache

from mooncake_node.core.extents import GRANULE_BYTES, Extents

SLOT_ALIGN_BYTES = 64
# A slot of 4,096 bytes would fill a granule; such an object takes one directly.
SLOT_BYTES_MAX = GRANULE_BYTES - SLOT_ALIGN_BYTES

_SLAB_GRANULES = 16


class Slab:
    """One extent cut into equal slots. A node has thousands of these, so they are kept bare."""

    __slots__ = ("all_free", "free_bits", "ngranules", "slot_bytes")

    def __init__(self, ngranules: int, slot_bytes: int) -> None:
        self.ngranules = ngranules
        self.slot_bytes = slot_bytes
        self.all_free = _all_free(ngranules, slot_bytes)
        self.free_bits = self.all_free  # bit i is set while slot i is free


class Slabs:
    """Reserves slots for small objects; a slab nobody uses any more is a free extent again.

    Of the slabs with a free slot the one at the highest address is filled first. Slabs are cut
    from the high ends of free extents, so those next to large free room are the ones that empty.
    """

    def __init__(self, extents: Extents) -> None:
        self._extents = extents
        self._slab_at: dict[int, Slab] = {}  # first granule -> slab; none is empty
        # slot_bytes -> first granules of all and only the slabs with a free slot, ascending.
        self._partial: dict[int, list[int]] = {
            slot_bytes: [] for slot_bytes in range(SLOT_ALIGN_BYTES, SLOT_BYTES_MAX + 1, SLOT_ALIGN_BYTES)
        }

    def __contains__(self, granule: int) -> bool:
        return granule in self._slab_at

    def reserve(self, slot_bytes: int) -> int | None:
        """Take a slot and return its offset in bytes, or None when no slab can be had for it."""
        partial = self._partial[slot_bytes]
        if not partial and not self._cut_slab(slot_bytes):
            return None
        start = partial[-1]
        slab = self._slab_at[start]
        lowest = slab.free_bits & -slab.free_bits
        slab.free_bits ^= lowest
        if not slab.free_bits:
            partial.pop()
        return start * GRANULE_BYTES + (lowest.bit_length() - 1) * slot_bytes

    def free(self, offset: int, slot_bytes: int) -> None:
        """Give back exactly what `reserve` returned for the same *slot_bytes*."""
        start = self._extents.live_start(offset // GRANULE_BYTES, span=_SLAB_GRANULES)
        slab = self._slab_at.get(start)
        assert slab is not None, "free of a slot in no slab"
        assert slab.slot_bytes == slot_bytes, "free of another size than was reserved"
        slot, rest = divmod(offset - start * GRANULE_BYTES, slot_bytes)
        assert rest == 0, "free of a part of a slot"
        bit = 1 << slot
        assert bit <= slab.all_free
        assert not slab.free_bits & bit, "double free"

        if not slab.free_bits:
            insort(self._partial[slot_bytes], start)
        slab.free_bits |= bit
        if slab.free_bits == slab.all_free:
            partial = self._partial[slot_bytes]
            del partial[bisect_left(partial, start)]
            del self._slab_at[start]
            self._extents.free(start, slab.ngranules)

    def slab_at(self, granule: int) -> tuple[int, list[int]] | None:
        """Length in granules of the slab that begins there, and the offsets of the slots in use; None if none does."""
        slab = self._slab_at.get(granule)
        if slab is None:
            return None
        used = slab.free_bits ^ slab.all_free
        offsets = []
        while used:
            lowest = used & -used
            used ^= lowest
            offsets.append(granule * GRANULE_BYTES + (lowest.bit_length() - 1) * slab.slot_bytes)
        return slab.ngranules, offsets

    def check(self) -> None:
        """Assert that every slab is in use, has an extent of its own and is found when partial."""
        partial: dict[int, list[int]] = {slot_bytes: [] for slot_bytes in self._partial}
        for start, slab in sorted(self._slab_at.items()):
            assert 0 <= slab.free_bits < slab.all_free
            self._extents.check_live(start, slab.ngranules)
            if slab.free_bits:
                partial[slab.slot_bytes].append(start)
        assert partial == self._partial

    def _cut_slab(self, slot_bytes: int) -> bool:
        # A pool in pieces still takes small objects, one granule at a time.
        for ngranules in (_SLAB_GRANULES, 1):
            start = self._extents.reserve(ngranules)
            if start is not None:
                self._slab_at[start] = Slab(ngranules, slot_bytes)
                self._partial[slot_bytes].append(start)
                return True
        return False


@cache
def _all_free(ngranules: int, slot_bytes: int) -> int:
    """One bit for every slot; shared, since for the smallest slots it is 160 bytes long."""
    return (1 << (ngranules * GRANULE_BYTES // slot_bytes)) - 1
