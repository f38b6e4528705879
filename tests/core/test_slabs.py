import pytest

from mooncake_node.core.extents import Extents
from mooncake_node.core.slabs import SLOT_BYTES_MAX, Slabs

SLAB_BYTES = 65536


def slabs_in(ngranules: int) -> tuple[Slabs, Extents]:
    extents = Extents(ngranules)
    return Slabs(extents), extents


def test_slots_of_a_slab_are_handed_out_lowest_first():
    slabs, extents = slabs_in(16)
    assert [slabs.reserve(256) for _ in range(3)] == [0, 256, 512]
    slabs.free(256, 256)
    slabs.free(0, 256)
    assert [slabs.reserve(256) for _ in range(3)] == [0, 256, 768]
    assert extents.nfree == 0
    slabs.check()


def test_each_slot_size_has_slabs_of_its_own():
    slabs, _ = slabs_in(64)
    assert slabs.reserve(64) == 3 * SLAB_BYTES
    assert slabs.reserve(128) == 2 * SLAB_BYTES
    assert slabs.reserve(64) == 3 * SLAB_BYTES + 64
    slabs.check()


@pytest.mark.parametrize(("slot_bytes", "nslots"), [(64, 1024), (192, 341), (SLOT_BYTES_MAX, 16)])
def test_a_full_slab_is_followed_by_another(slot_bytes, nslots):
    slabs, extents = slabs_in(32)
    offsets = [slabs.reserve(slot_bytes) for _ in range(nslots)]
    assert offsets == [SLAB_BYTES + i * slot_bytes for i in range(nslots)]
    assert offsets[-1] + slot_bytes <= 2 * SLAB_BYTES
    assert extents.nfree == 16
    assert slabs.reserve(slot_bytes) == 0
    assert extents.nfree == 0
    slabs.check()


def test_a_slab_nobody_uses_is_a_free_extent_again():
    slabs, extents = slabs_in(32)
    offsets = [slabs.reserve(2048) for _ in range(64)]
    assert extents.nfree == 0
    for offset in offsets:
        slabs.free(offset, 2048)
        slabs.check()
    assert list(extents.free_extents()) == [(0, 32)]


def test_the_slab_at_the_highest_address_is_filled_first():
    slabs, _ = slabs_in(48)
    low, middle, high = sorted(slabs.reserve(2048) for _ in range(96))[::32]
    for offset in (middle, high, low):
        slabs.free(offset, 2048)
    assert [slabs.reserve(2048) for _ in range(3)] == [high, middle, low]
    slabs.check()


def test_a_slab_of_one_granule_serves_where_64_kib_are_not_to_be_had():
    slabs, extents = slabs_in(17)
    assert extents.reserve(15) == 2
    assert slabs.reserve(2048) == 4096
    assert slabs.reserve(2048) == 4096 + 2048
    assert extents.nfree == 1
    assert slabs.reserve(SLOT_BYTES_MAX) == 0
    assert slabs.reserve(SLOT_BYTES_MAX) is None
    assert slabs.reserve(2048) is None
    slabs.check()
    slabs.free(0, SLOT_BYTES_MAX)
    assert slabs.reserve(64) == 0


@pytest.mark.parametrize(
    ("offset", "slot_bytes"),
    [
        (SLAB_BYTES, 128),  # another slot size
        (SLAB_BYTES + 64, 192),  # inside a slot
        (SLAB_BYTES + 192, 192),  # a free slot
        (SLAB_BYTES + 341 * 192, 192),  # the slack behind the last slot
        (SLAB_BYTES // 2, 192),  # free room
        (0, 192),
    ],
)
def test_what_was_never_reserved_cannot_be_freed(offset, slot_bytes):
    slabs, extents = slabs_in(32)
    assert slabs.reserve(192) == SLAB_BYTES
    with pytest.raises(AssertionError):
        slabs.free(offset, slot_bytes)
    slabs.check()
    assert extents.nfree == 16


def test_a_slot_of_a_large_object_cannot_be_freed():
    slabs, extents = slabs_in(32)
    assert extents.reserve(16) == 16
    with pytest.raises(AssertionError, match="in no slab"):
        slabs.free(SLAB_BYTES, 64)


@pytest.mark.parametrize(
    "break_it",
    [
        lambda slabs: slabs._partial[64].clear(),
        lambda slabs: slabs._partial[128].append(0),
        lambda slabs: setattr(slabs._slab_at[16], "free_bits", slabs._slab_at[16].all_free),
        lambda slabs: slabs._slab_at.pop(16),
        lambda slabs: setattr(slabs._slab_at[16], "ngranules", 15),
    ],
)
def test_the_audit_notices_slabs_that_disagree(break_it):
    slabs, _ = slabs_in(32)
    slabs.reserve(64)
    slabs.check()
    break_it(slabs)
    with pytest.raises(AssertionError):
        slabs.check()


def test_a_slab_is_found_by_its_start_with_the_slots_in_use():
    slabs, _ = slabs_in(40)
    offsets = [slabs.reserve(1024) for _ in range(3)]
    first = offsets[0] // 4096
    slabs.free(offsets[1], 1024)
    assert slabs.slab_at(first) == (16, [offsets[0], offsets[2]])
    assert slabs.slab_at(first + 1) is None
    assert slabs.slab_at(0) is None
