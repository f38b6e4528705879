"""GenerationClock: unique, growing, and ordered the same as numbers and as text."""

import pytest

from mooncake_node.core.generations import EPOCH_MS, SEQUENCE_BITS, SLOT_BITS, SLOT_MAX, GenerationClock

MS = 1_000_000
START = EPOCH_MS * MS  # makes the core's time 0 the epoch of generations


def text(generation):
    return f"{generation:016x}"


def parts(generation):
    """(ms since 2025, sequence, slot)."""
    ticks, slot = divmod(generation, 1 << SLOT_BITS)
    ms, sequence = divmod(ticks, 1 << SEQUENCE_BITS)
    return ms, sequence, slot


def test_a_generation_is_the_wall_clock_in_ms_a_sequence_and_the_slot():
    clock = GenerationClock(START + 5 * MS, slot=9)
    assert parts(clock.next(0)) == (5, 0, 9)
    assert parts(clock.next(2 * MS - 1)) == (6, 0, 9)
    assert parts(clock.next(2 * MS - 1)) == (6, 1, 9)
    assert parts(clock.next(2 * MS)) == (7, 0, 9)


def test_generations_grow_although_the_clock_goes_back():
    clock = GenerationClock(START)
    seen = [clock.next(ms * MS) for ms in (100, 50, 50, 0, 100, 101)]
    assert seen == sorted(set(seen))
    assert [parts(generation)[:2] for generation in seen] == [
        (100, 0), (100, 1), (100, 2), (100, 3), (100, 4), (101, 0),
    ]  # fmt: skip


def test_a_wall_clock_before_2025_still_gives_growing_generations():
    clock = GenerationClock(0)
    seen = [clock.next(0), clock.next(0), clock.next(5 * MS)]
    assert seen == sorted(set(seen))
    assert seen[0] > 0


def test_a_full_sequence_runs_into_the_next_millisecond_and_waits_there_for_the_clock():
    clock = GenerationClock(START)
    count = (1 << SEQUENCE_BITS) + 3
    seen = [clock.next(7 * MS) for _ in range(count)]
    assert seen == sorted(set(seen))
    assert parts(seen[-1]) == (8, 2, 0)
    assert parts(clock.next(8 * MS)) == (8, 3, 0)
    assert parts(clock.next(9 * MS)) == (9, 0, 0)


@pytest.mark.parametrize("slot", [0, 5, SLOT_MAX])
def test_the_next_life_begins_above_the_floor_of_the_last_whatever_its_clock_and_slot(slot):
    last = GenerationClock(START, slot=SLOT_MAX)
    highest = last.next(1000 * MS)
    assert last.floor >= highest
    following = GenerationClock(START, slot=slot, floor=last.floor).next(0)
    assert following > last.floor


def test_the_floor_grows_with_what_was_given():
    clock = GenerationClock(START, floor=GenerationClock(START).floor)
    floors = []
    for now in (0, 0, 3 * MS, 1 * MS):
        generation = clock.next(now)
        assert clock.floor >= generation
        floors.append(clock.floor)
    assert floors == sorted(set(floors))


def test_no_generation_given_up_to_a_time_passes_what_was_said_to_be_in_reach():
    clock = GenerationClock(START, slot=SLOT_MAX)
    reach = clock.reach(5 * MS)
    given = [clock.next(now) for now in (0, 2 * MS, 5 * MS) for _ in range(4096)]
    assert max(given) <= reach
    clock.next(6 * MS)
    assert clock.next(6 * MS) > reach


def test_what_is_in_reach_is_never_below_what_was_given():
    """The wall clock went back."""
    clock = GenerationClock(START)
    last = clock.next(1000 * MS)
    assert clock.reach(0) >= last


def test_the_order_as_text_is_the_order_of_the_numbers():
    clock = GenerationClock(START)
    seen = [clock.next(ms * MS) for ms in (0, 1, 15, 16, 255, 4096, 1 << 20, 1 << 32, (1 << 41) - 1)]
    texts = [text(generation) for generation in seen]
    assert texts == sorted(texts)
    assert {len(t) for t in texts} == {16}


def test_two_nodes_never_give_the_same():
    a, b = GenerationClock(START, slot=1), GenerationClock(START, slot=2)
    assert not {a.next(0) for _ in range(100)} & {b.next(0) for _ in range(100)}


@pytest.mark.parametrize("slot", [-1, SLOT_MAX + 1])
def test_a_slot_out_of_range_is_our_bug(slot):
    with pytest.raises(AssertionError):
        GenerationClock(START, slot=slot)
