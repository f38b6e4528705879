"""What a demo found, and which of its claims that proves."""

from statistics import median

import msgspec

from mooncake_node.core.slabs import SLOT_ALIGN_BYTES, SLOT_BYTES_MAX
from mooncake_node.core.space import footprint
from mooncake_node.demo.memory import Place, Usage
from mooncake_node.demo.messages import Publication, Reading, Transit

# What a reader's own heap may grow by, beside its share of the pool: a Python object for each array, and noise.
OWN_GROWTH_MAX = 8 << 20
# Objects under 4 KiB share a slab with others of their size, the last of which is partly empty.
_SLAB_BYTES_MAX = 64 << 10


class Ledger(msgspec.Struct, frozen=True):
    """The node's own account while every reader holds everything; sizes in bytes."""

    objects: int  # readable by key
    others: int  # being written, or removed and still read
    used_nbytes: int
    stored_nbytes: list[int]  # of each published object: its bytes and the header that says what they are

    @property
    def footprint_nbytes(self) -> int:
        """What the objects need, each rounded as the pool rounds it."""
        return sum(map(footprint, self.stored_nbytes))

    @property
    def copies(self) -> float:
        """How often the pool's taken room would hold the objects; a little above 1 where slabs are not full."""
        return self.used_nbytes / max(1, self.footprint_nbytes)

    @property
    def tight(self) -> bool:
        """No more is taken than the objects need, the empty ends of slabs aside."""
        small = {-(-nbytes // SLOT_ALIGN_BYTES) for nbytes in self.stored_nbytes if nbytes <= SLOT_BYTES_MAX}
        return self.used_nbytes <= self.footprint_nbytes + len(small) * _SLAB_BYTES_MAX


class Proof(msgspec.Struct, frozen=True):
    """One claim and whether it held."""

    claim: str
    holds: bool
    detail: str


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything measured; sizes in bytes."""

    input: str
    pool_nbytes: int
    published: Publication
    used_nbytes: int  # of the pool, with everything in it
    footprint_nbytes: int  # what the objects need, each rounded as the pool rounds it
    readers: list[Reading]
    extra: list[Usage]  # of each reader
    copies: int  # places at which one tensor lies, at most, over all readers
    transit: Transit | None
    proofs: list[Proof]

    @property
    def put_gb_per_s(self) -> float:
        """Bytes of all tensors over the time within put."""
        return self.published.nbytes / max(1, self.published.put_ns)

    @property
    def put_largest_gb_per_s(self) -> float:
        """The same for the largest tensor alone."""
        return self.published.largest.nbytes / max(1, self.published.largest.put_ns)

    @property
    def holds(self) -> bool:
        """Every claim held."""
        return all(proof.holds for proof in self.proofs)


def get_us(reading: Reading) -> float:
    """The median time of a get, in microseconds."""
    return median(reading.get_ns) / 1000


def copies(readings: list[Reading]) -> int:
    """At how many places of any pool one tensor lies, at most, over all readers."""
    by_tensor = zip(*(reading.places for reading in readings), strict=True)
    return max((len({_identity(place) for place in places if place is not None}) for places in by_tensor), default=0)


def prove(published: Publication, readings: list[Reading], extra: list[Usage], ledger: Ledger) -> list[Proof]:
    """What the demo claims, each from what processes saw for themselves."""
    count, nbytes = len(published.tensors), published.nbytes
    wrong = sum(len(reading.bad_content) for reading in readings)
    outside = sum(_outside(published, reading) for reading in readings)
    writable = sum(map(_writable, readings))
    own = max(usage.own for usage in extra)
    places = copies(readings)
    once = places == 1 and ledger.objects == count and ledger.others == 0 and ledger.tight
    return [
        Proof(
            "content", wrong == 0, f"{wrong or 'none'} of {count} tensors differ by xxh3, in {len(readings)} readers"
        ),
        Proof("in the pool", outside == 0, f"{outside or 'no'} arrays lie outside the pool's mapping"),
        Proof("read-only", writable == 0, f"{writable or 'no'} arrays or pages of theirs could be written to"),
        Proof(
            "one copy",
            once,
            f"each tensor lies at {places} place of {len(_pools(readings))} pool, the same in all readers; "
            f"{ledger.used_nbytes:,} bytes of the pool are taken, {ledger.footprint_nbytes:,} are needed",
        ),
        Proof(
            "no private copy",
            own <= max(OWN_GROWTH_MAX, nbytes // 4),
            f"a reader's own memory grew by {own:,} bytes at most, holding {nbytes:,}",
        ),
    ]


def _identity(place: Place) -> tuple[str, int]:
    return place.pool, place.offset


def _pools(readings: list[Reading]) -> set[str]:
    return {place.pool for reading in readings for place in reading.places if place is not None}


def _outside(published: Publication, reading: Reading) -> int:
    both = zip(published.tensors, reading.places, strict=True)
    return sum(place is None for tensor, place in both if tensor.nbytes)


def _writable(reading: Reading) -> int:
    pages = sum(place.writable for place in reading.places if place is not None)
    return max(pages, len(reading.writable))
