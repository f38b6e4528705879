import random

import pytest

from mooncake_node.core.extents import HUGE_GRANULES, Extents, SortedKeys

MIB = 256  # granules


def with_holes(ngranules: int, *holes: tuple[int, int]) -> Extents:
    """A pool in which only *holes*, given as (start, length), are free."""
    extents = Extents(ngranules)
    for _ in range(ngranules):
        extents.reserve(1)
    for start, length in holes:
        for granule in range(start, start + length):
            extents.free(granule, 1)
    extents.check()
    assert list(extents.free_extents()) == sorted(holes)
    return extents


def test_a_new_pool_is_one_free_extent():
    extents = Extents(100)
    assert list(extents.free_extents()) == [(0, 100)]
    assert (extents.nfree, extents.largest) == (100, 100)


def test_the_smallest_sufficient_extent_is_taken():
    extents = with_holes(100, (10, 9), (30, 5), (50, 7))
    assert extents.reserve(6) == 51
    assert list(extents.free_extents()) == [(10, 9), (30, 5), (50, 1)]


def test_of_equal_extents_the_lowest_is_taken():
    extents = with_holes(100, (50, 5), (30, 5), (70, 5))
    assert [extents.reserve(5) for _ in range(3)] == [30, 50, 70]


def test_an_extent_too_short_is_not_taken_and_nothing_changes():
    extents = with_holes(100, (10, 9), (30, 5))
    assert extents.reserve(10) is None
    assert list(extents.free_extents()) == [(10, 9), (30, 5)]
    assert extents.nfree == 14
    extents.check()


def test_a_full_pool_has_no_free_extent():
    extents = Extents(3)
    assert extents.reserve(3) == 0
    assert (extents.nfree, extents.largest, list(extents.free_extents())) == (0, 0, [])
    assert extents.reserve(1) is None
    extents.check()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)])
def test_neighbours_coalesce_in_whatever_order_they_are_freed(order):
    extents = Extents(30)
    starts = [extents.reserve(10) for _ in range(3)]
    for i in order:
        extents.free(starts[i], 10)
        extents.check()
    assert list(extents.free_extents()) == [(0, 30)]


def test_a_small_object_leaves_the_large_ones_on_their_boundaries():
    extents = Extents(8 * HUGE_GRANULES)
    extents.reserve(16)
    starts = [extents.reserve(HUGE_GRANULES) for _ in range(7)]
    assert starts == [i * HUGE_GRANULES for i in range(7)]


def test_two_mib_objects_stay_aligned_through_random_frees():
    extents = Extents(64 * HUGE_GRANULES)
    rng = random.Random(7)
    live = [extents.reserve(HUGE_GRANULES) for _ in range(64)]
    assert live == [i * HUGE_GRANULES for i in range(64)]
    for _ in range(500):
        rng.shuffle(live)
        nfreed = rng.randrange(1, 64)
        for start in live[:nfreed]:
            extents.free(start, HUGE_GRANULES)
        live[:nfreed] = [extents.reserve(HUGE_GRANULES) for _ in range(nfreed)]
        assert all(start is not None and start % HUGE_GRANULES == 0 for start in live)
    extents.check()


def hole_before_a_boundary(gap: int, length: int) -> Extents:
    """A pool whose only free extent begins *gap* granules before 2 MiB x 30."""
    boundary = 30 * HUGE_GRANULES
    extents = Extents(boundary - gap + length)
    assert extents.reserve(boundary - gap) == 0
    return extents


def test_a_gap_under_a_tenth_is_skipped_and_stays_free():
    extents = hole_before_a_boundary(gap=51, length=600)
    assert extents.reserve(512) == 30 * HUGE_GRANULES
    assert (30 * HUGE_GRANULES - 51, 51) in list(extents.free_extents())
    extents.check()


def test_a_gap_of_a_tenth_is_not_skipped():
    extents = hole_before_a_boundary(gap=52, length=600)
    assert extents.reserve(520) == 30 * HUGE_GRANULES - 52


def test_a_gap_is_not_skipped_where_the_object_would_no_longer_fit():
    extents = hole_before_a_boundary(gap=40, length=520)
    assert extents.reserve(512) == 30 * HUGE_GRANULES - 40


def tight_hole_and_wide_hole() -> Extents:
    return with_holes(40 * HUGE_GRANULES, (0, 29 * HUGE_GRANULES), (29 * HUGE_GRANULES + 1, 5120))


def test_twenty_mib_prefer_a_boundary_in_a_wider_extent_to_the_tightest_fit():
    extents = tight_hole_and_wide_hole()
    assert extents.reserve(20 * MIB) == 0
    extents.check()


def test_twenty_mib_find_a_boundary_in_an_extent_just_wide_enough_for_the_widest_gap():
    extents = with_holes(23 * HUGE_GRANULES, (1, 5120), (11 * HUGE_GRANULES + 1, 511 + 5120))
    assert extents.reserve(20 * MIB) == 12 * HUGE_GRANULES
    extents.check()


def test_twenty_mib_take_an_unaligned_fit_rather_than_none():
    extents = tight_hole_and_wide_hole()
    assert extents.reserve(14848) == 0
    assert extents.reserve(20 * MIB) == 14849


def test_under_twenty_mib_the_tightest_fit_wins():
    extents = tight_hole_and_wide_hole()
    assert extents.reserve(5110) == 14849


def test_what_was_never_reserved_cannot_be_freed():
    extents = Extents(100)
    low, high = extents.reserve(10), extents.reserve(10)
    assert (high, low) == (80, 90)
    before = list(extents.free_extents())
    for start, length in [
        (80, 20),  # two objects at once
        (80, 9),  # the end is missing
        (90, 9),
        (81, 9),  # the start is missing
        (80, 0),
        (80, 11),
        (90, 11),  # past the end of the pool
        (0, 10),  # free
        (-10, 10),
    ]:
        with pytest.raises(AssertionError):
            extents.free(start, length)
    assert list(extents.free_extents()) == before
    extents.check()


@pytest.mark.parametrize("hole_end", [90, 100])
def test_an_object_cannot_be_freed_with_the_free_room_behind_it(hole_end):
    extents = with_holes(100, (0, 50), (60, hole_end - 60))
    assert extents.reserve(50) == 0
    with pytest.raises(AssertionError):
        extents.free(59, hole_end - 59)
    extents.check()


def test_a_second_free_is_caught_even_after_coalescing():
    extents = Extents(100)
    start = extents.reserve(10)
    extents.free(start, 10)
    with pytest.raises(AssertionError, match="no extent was reserved"):
        extents.free(start, 10)


def test_the_start_of_a_live_extent_is_found_from_within():
    extents = Extents(100)
    extents.reserve(100 - 16)
    start = extents.reserve(16)
    assert start == 0
    assert [extents.live_start(granule, span=16) for granule in (0, 15)] == [0, 0]
    assert extents.live_start(16 + 16, span=16) == -1


@pytest.mark.parametrize(
    "break_it",
    [
        lambda e: e._length_at.update({0: 79}),
        lambda e: e._start_before.update({80: 1}),
        lambda e: e._start_before.update({99: 98}),
        lambda e: e._by_length.add(7 << 32 | 7),
        lambda e: setattr(e, "nfree", 81),
        lambda e: e._starts.__setitem__(5, 1),
        lambda e: e._starts.__setitem__(80, 0),
    ],
)
def test_the_audit_notices_indices_that_disagree(break_it):
    extents = Extents(100)
    assert extents.reserve(20) == 80
    extents.check()
    break_it(extents)
    with pytest.raises((AssertionError, KeyError)):
        extents.check()


@pytest.mark.parametrize("chunk_keys_max", [2, 7, 1024])
def test_sorted_keys_do_as_a_sorted_list_does(chunk_keys_max):
    rng = random.Random(chunk_keys_max)
    keys, model = SortedKeys(chunk_keys_max=chunk_keys_max), set()
    for step in range(6000):
        # Grow to some 1,500 keys, then shrink to none.
        if model and rng.random() < (0.25 if step < 3000 else 0.75):
            key = max(model) if step % 9 == 0 else rng.choice(list(model))
            keys.remove(key)
            model.remove(key)
        else:
            key = rng.randrange(1, 1 << 60)
            keys.add(key)
            model.add(key)
        if step % 20 == 0:
            floor = rng.randrange(1 << 60)
            assert keys.at_least(floor) == min((k for k in model if k >= floor), default=0)
            assert keys.last() == max(model, default=0)
            assert keys.sorted_keys() == sorted(model)
    for key in sorted(model):
        keys.remove(key)
    assert keys.sorted_keys() == []
    assert (keys.last(), keys.at_least(0)) == (0, 0)


# -- what lies where ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [10, 12, 15])
def test_exactly_the_run_that_was_asked_for_is_taken(start):
    extents = with_holes(30, (10, 10))
    assert extents.take(start, 5) is True
    extents.check()
    left = [(10, start - 10), (start + 5, 15 - start)]
    assert list(extents.free_extents()) == [hole for hole in left if hole[1]]
    extents.free(start, 5)
    assert list(extents.free_extents()) == [(10, 10)]


def test_the_whole_end_of_the_pool_is_taken():
    extents = Extents(30)
    assert extents.take(0, 30) is True
    assert extents.nfree == 0
    assert extents.take(0, 30) is False


@pytest.mark.parametrize(
    ("start", "ngranules"), [(9, 2), (9, 1), (15, 6), (10, 11), (0, 30), (25, 1), (29, 1), (20, 1), (5, 20)]
)
def test_a_run_that_is_not_all_free_is_not_taken_and_nothing_changes(start, ngranules):
    extents = with_holes(30, (10, 10), (22, 2))
    assert extents.take(start, ngranules) is False
    extents.check()
    assert list(extents.free_extents()) == [(10, 10), (22, 2)]


def test_a_free_extent_is_found_by_its_start_alone():
    extents = with_holes(30, (10, 10))
    assert [extents.free_at(granule) for granule in (9, 10, 11, 20)] == [0, 10, 0, 0]


def test_the_extent_before_a_granule_is_found_whether_it_is_free_or_live():
    extents = Extents(30)
    live = extents.reserve(4)
    assert (live, extents.reserve(6)) == (26, 20)
    assert [extents.start_before(granule) for granule in (0, 20, 26, 30)] == [None, 0, 20, 26]
    extents.free(20, 6)
    assert extents.start_before(26) == 0


def test_the_largest_free_extent_is_found_by_its_start():
    extents = with_holes(30, (3, 4), (10, 10))
    assert (extents.largest, extents.largest_start) == (10, 10)
    extents.take(10, 10)
    assert extents.largest_start == 3
    extents.take(3, 4)
    assert (extents.largest, extents.largest_start) == (0, None)
