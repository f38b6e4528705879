import random

import pytest

from mooncake_node.core.space import Space, footprint

KIB, MIB = 1024, 1024 * 1024


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [
        (0, 0), (1, 64), (63, 64), (64, 64), (65, 128), (4032, 4032), (4033, 4096),
        (4095, 4096), (4096, 4096), (4097, 8192), (2 * MIB + 1, 2 * MIB + 4 * KIB),
    ],
)  # fmt: skip
def test_footprint(nbytes, expected):
    assert footprint(nbytes) == expected


@pytest.mark.parametrize("nbytes", [0, 1, 4095, 4097])
def test_a_pool_of_no_whole_granules_is_refused(nbytes):
    with pytest.raises(AssertionError):
        Space(nbytes)


def test_an_empty_object_takes_no_room_even_in_a_full_pool():
    space = Space(4 * KIB)
    assert space.reserve(4 * KIB) == 0
    assert space.reserve(0) == 0
    space.free(0, 0)
    assert space.bytes_used == 4 * KIB
    space.check()


def test_an_empty_object_lies_at_offset_zero_only():
    with pytest.raises(AssertionError):
        Space(4 * KIB).free(64, 0)


@pytest.mark.parametrize("nbytes", [1, 64, 4032, 4033, 4096, 4097, 64 * KIB, 2 * MIB, 4 * MIB])
def test_an_empty_pool_is_whole_again_after_one_object(nbytes):
    space = Space(4 * MIB)
    offset = space.reserve(nbytes)
    assert offset is not None
    assert space.bytes_used >= footprint(nbytes)
    space.check()
    space.free(offset, nbytes)
    space.check()
    assert (space.bytes_total, space.bytes_used, space.bytes_free) == (4 * MIB, 0, 4 * MIB)
    assert space.largest_free_extent == 4 * MIB
    assert list(space.free_extents()) == [(0, 4 * MIB)]


def test_an_object_as_large_as_the_pool_fits_and_a_larger_one_never_could():
    space = Space(MIB)
    assert space.could_fit(0)
    assert space.could_fit(MIB)
    assert not space.could_fit(MIB + 1)
    assert space.reserve(MIB + 1) is None
    assert space.reserve(MIB) == 0
    assert space.reserve(1) is None


def test_free_room_is_told_in_bytes():
    space = Space(MIB)
    low, high = (space.reserve(n * 4 * KIB) for n in (250, 3))
    assert (low, high) == (24 * KIB, 12 * KIB)
    space.free(low, 250 * 4 * KIB)
    assert list(space.free_extents()) == [(0, 12 * KIB), (24 * KIB, 1000 * KIB)]
    assert space.largest_free_extent == 1000 * KIB
    assert (space.bytes_free, space.bytes_used) == (1012 * KIB, 12 * KIB)


def test_a_hundred_thousand_small_objects_take_less_than_twice_their_bytes():
    space = Space(64 * MIB)
    offsets = [space.reserve(200) for _ in range(100_000)]
    assert None not in offsets
    assert all(offset % 64 == 0 for offset in offsets)
    assert len(set(offsets)) == 100_000
    assert space.bytes_used < 2 * 200 * 100_000
    space.check()
    random.Random(1).shuffle(offsets)
    for offset in offsets:
        space.free(offset, 200)
    space.check()
    assert space.bytes_used == 0


def test_a_freed_place_is_used_again_before_fresh_room():
    space = Space(64 * MIB)
    offsets = [space.reserve(MIB) for _ in range(20)]
    for freed in (offsets[3], offsets[11]):
        space.free(freed, MIB)
    assert {space.reserve(MIB), space.reserve(MIB)} == {offsets[3], offsets[11]}


def test_large_objects_are_nearly_always_on_a_boundary_among_all_sizes():
    """Of those of 20 MiB and more, all but what a crowded pool has no aligned room for."""
    space, rng = Space(1024 * MIB), random.Random(5)
    live, nlarge, naligned = [], 0, 0
    for _ in range(4000):
        nbytes = rng.choice([200, 3000, 64 * KIB, MIB, 3 * MIB, 20 * MIB, 33 * MIB + 1])
        while (offset := space.reserve(nbytes)) is None:
            space.free(*live.pop(rng.randrange(len(live))))
        live.append((offset, nbytes))
        if nbytes >= 20 * MIB:
            nlarge += 1
            naligned += offset % (2 * MIB) == 0
    space.check()
    assert naligned > 0.95 * nlarge


@pytest.mark.parametrize("nbytes", [64, 4 * KIB, 64 * KIB])
def test_a_second_free_is_caught(nbytes):
    space = Space(MIB)
    offset = space.reserve(nbytes)
    space.free(offset, nbytes)
    with pytest.raises(AssertionError):
        space.free(offset, nbytes)
    space.check()


def test_a_slab_cannot_be_freed_as_one_large_object():
    space = Space(MIB)
    offset = space.reserve(64)
    with pytest.raises(AssertionError, match="a whole slab"):
        space.free(offset, 64 * KIB)


def test_a_large_object_cannot_be_freed_off_its_granule():
    space = Space(MIB)
    offset = space.reserve(8 * KIB)
    with pytest.raises(AssertionError, match="foreign free"):
        space.free(offset + 64, 8 * KIB)


@pytest.mark.parametrize("offset", [-4096, MIB, MIB + 4096])
@pytest.mark.parametrize("nbytes", [64, 4096])
def test_an_offset_outside_the_pool_cannot_be_freed(offset, nbytes):
    space = Space(MIB)
    space.reserve(nbytes)
    with pytest.raises(AssertionError):
        space.free(offset, nbytes)
    space.check()


def test_a_negative_size_is_our_bug():
    with pytest.raises(AssertionError):
        Space(MIB).reserve(-1)


def test_where_an_object_or_its_slab_begins_is_found():
    space = Space(64 * 4 * KIB)
    large = space.reserve(5 * 4 * KIB)
    small = [space.reserve(100) for _ in range(2)]
    assert space.piece_start(large) == 59
    assert [space.piece_start(offset) for offset in small] == [43, 43]
    assert space.slab_at(43) == (16, small)
    assert space.slab_at(59) is None
    assert (space.largest_free_start, space.free_at(0), space.start_before(43)) == (0, 43, 0)
    assert [space.start_before(granule) for granule in (0, 59, 64)] == [None, 43, 59]


def test_what_is_taken_out_of_the_free_room_is_given_to_nobody_until_it_is_given_back():
    space = Space(16 * 4 * KIB)
    assert space.take(4, 12) is True
    assert space.take(4, 1) is False
    assert (space.bytes_used, space.largest_free_extent) == (12 * 4 * KIB, 4 * 4 * KIB)
    assert space.reserve(5 * 4 * KIB) is None
    space.check()
    space.give_back(4, 12)
    assert space.reserve(16 * 4 * KIB) == 0
