"""The allocator of pool G: where in the pool an object's bytes may lie."""

from collections.abc import Iterator

from mooncake_node.core.extents import GRANULE_BYTES, Extents
from mooncake_node.core.slabs import SLOT_ALIGN_BYTES, SLOT_BYTES_MAX, Slabs


class Space:
    """Hands out room in a pool of *nbytes* and takes it back; it never moves what is reserved.

    Offsets count from the start of the pool. Objects of 4 KiB and more start on and fill whole
    granules of 4 KiB; those of 2 MiB and more start on a 2 MiB boundary where the gap before it is
    under a tenth of their size; smaller ones share slabs at multiples of 64 bytes.
    """

    def __init__(self, nbytes: int) -> None:
        assert nbytes >= GRANULE_BYTES
        assert nbytes % GRANULE_BYTES == 0
        self.bytes_total = nbytes
        self._extents = Extents(nbytes // GRANULE_BYTES)
        self._slabs = Slabs(self._extents)

    @property
    def bytes_free(self) -> int:
        """Bytes of whole free granules. A free slot in a slab somebody uses counts as used."""
        return self._extents.nfree * GRANULE_BYTES

    @property
    def bytes_used(self) -> int:
        """Bytes of granules with an object in them; 0 when there is none."""
        return self.bytes_total - self.bytes_free

    @property
    def largest_free_extent(self) -> int:
        """Bytes of the longest run of free granules: any object up to this size has room now."""
        return self._extents.largest * GRANULE_BYTES

    def reserve(self, nbytes: int) -> int | None:
        """Return the offset of room for *nbytes*, or None when there is none.

        An object of 0 bytes has room at offset 0, which it may share with another.
        """
        if nbytes > SLOT_BYTES_MAX:
            start = self._extents.reserve(-(-nbytes // GRANULE_BYTES))
            return None if start is None else start * GRANULE_BYTES
        if nbytes == 0:
            return 0
        assert nbytes > 0
        return self._slabs.reserve(-(-nbytes // SLOT_ALIGN_BYTES) * SLOT_ALIGN_BYTES)

    def reserve_many(self, count: int, nbytes: int) -> list[int] | None:
        """Offsets of room for *count* objects of *nbytes* each, or None if there is not room for all of them."""
        if nbytes > SLOT_BYTES_MAX:
            ngranules = -(-nbytes // GRANULE_BYTES)
            start = self._extents.reserve_row(count, ngranules)
            if start is None:
                return None
            step = ngranules * GRANULE_BYTES
            return list(range(start * GRANULE_BYTES, start * GRANULE_BYTES + count * step, step))
        offsets: list[int] = []
        for _ in range(count):
            offset = self.reserve(nbytes)
            if offset is None:
                for taken in offsets:
                    self.free(taken, nbytes)
                return None
            offsets.append(offset)
        return offsets

    def free(self, offset: int, nbytes: int) -> None:
        """Take back what `reserve(nbytes)` returned as *offset*. A double free is our bug."""
        if nbytes > SLOT_BYTES_MAX:
            start, rest = divmod(offset, GRANULE_BYTES)
            assert rest == 0, "foreign free"
            assert start not in self._slabs, "free of a whole slab"
            self._extents.free(start, -(-nbytes // GRANULE_BYTES))
        elif nbytes == 0:
            assert offset == 0, "foreign free"
        else:
            self._slabs.free(offset, -(-nbytes // SLOT_ALIGN_BYTES) * SLOT_ALIGN_BYTES)

    # -- what lies where, in granules; for windows ---------------------------------------------------------------------

    @property
    def largest_free_start(self) -> int | None:
        """Where the longest run of free granules begins; None when there is none."""
        return self._extents.largest_start

    def free_at(self, granule: int) -> int:
        """Length of the run of free granules that begins there; 0 if none does."""
        return self._extents.free_at(granule)

    def start_before(self, granule: int) -> int | None:
        """Where the free run, object or slab begins that ends before *granule*; None at the low end of the pool."""
        return self._extents.start_before(granule)

    def slab_at(self, granule: int) -> tuple[int, list[int]] | None:
        """Length of the slab that begins there, and the offsets (bytes) of the objects in it; None if none does."""
        return self._slabs.slab_at(granule)

    def piece_start(self, offset: int) -> int:
        """Where the object or slab begins in which the object at *offset* lies."""
        return self._extents.start_before(offset // GRANULE_BYTES + 1) or 0

    def take(self, granule: int, ngranules: int) -> bool:
        """Take exactly that run of granules out of what is free; False if not all of it is. Undone by `give_back`."""
        return self._extents.take(granule, ngranules)

    def give_back(self, granule: int, ngranules: int) -> None:
        """Make free again what `take` took."""
        self._extents.free(granule, ngranules)

    def could_fit(self, nbytes: int) -> bool:
        """Whether an empty pool has room for *nbytes*."""
        # Whole granules, so what it takes beyond its bytes fits where they do.
        return nbytes <= self.bytes_total

    def free_extents(self) -> Iterator[tuple[int, int]]:
        """Every run of free granules as (offset, nbytes), by address."""
        for start, length in self._extents.free_extents():
            yield start * GRANULE_BYTES, length * GRANULE_BYTES

    def check(self) -> None:
        """Assert all that must hold between two calls. Costs time in proportion to the pool."""
        self._extents.check()
        self._slabs.check()


def footprint(nbytes: int) -> int:
    """Bytes an object of *nbytes* takes by itself; what its slab needs besides is not counted."""
    unit = GRANULE_BYTES if nbytes >= GRANULE_BYTES else SLOT_ALIGN_BYTES
    return -(-nbytes // unit) * unit
