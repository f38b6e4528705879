"""Space against a map of one byte per granule that knows nothing of indices."""

import re

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from mooncake_node.core.space import Space, footprint

KIB, MIB = 1024, 1024 * 1024
GRANULE = 4 * KIB
FREE, LARGE, SLAB = b"\x00\x01\x02"

SMALL_SIZES = st.sampled_from([1, 63, 64, 65, 200, 2048, 2112, 4031, 4032]) | st.integers(1, 4032)
MIDDLE_SIZES = st.sampled_from([4033, 4095, 4096, 4097, 64 * KIB - 1, 64 * KIB + 1]) | st.integers(4033, 160 * KIB)
# 5,111 granules is the least that is worth any gap before a boundary.
HUGE_SIZES = st.sampled_from(
    [2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 10 * MIB, 5110 * GRANULE, 5111 * GRANULE, 20 * MIB]
) | st.integers(2 * MIB, 24 * MIB)


class SpaceMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.live = []  # (offset, nbytes)
        self.slabs = {}  # offset -> [nbytes, slot_bytes, live objects]

    def start(self, ngranules):
        self.space = Space(ngranules * GRANULE)
        self.map = bytearray(ngranules)
        self.units = bytearray(ngranules * 64)  # 1 where an object has these 64 bytes

    @rule(nbytes=st.just(0) | SMALL_SIZES | MIDDLE_SIZES)
    def reserve(self, nbytes):
        self.reserve_one(nbytes)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data):
        self.free_one(data.draw(st.integers(0, len(self.live) - 1)))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free_many(self, data):
        first = data.draw(st.integers(0, len(self.live) - 1))
        step = data.draw(st.integers(1, 5))
        for i in reversed(range(first, len(self.live), step)):
            self.free_one(i)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), off=st.sampled_from([-1, 1]), unit=st.sampled_from([64, GRANULE]))
    def free_foreign(self, data, off, unit):
        offset, nbytes = data.draw(st.sampled_from(self.live))
        self.expect_foreign(offset + off * unit, nbytes)
        self.expect_foreign(offset, nbytes + off * unit)
        end = (offset + footprint(nbytes)) // GRANULE
        behind = next((n for at, n in self.free_runs() if at == end), 0)
        self.expect_foreign(offset, nbytes + behind * GRANULE)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free_twice(self, data):
        i = data.draw(st.integers(0, len(self.live) - 1))
        offset, nbytes = self.live[i]
        self.free_one(i)
        if nbytes:
            with pytest.raises(AssertionError):
                self.space.free(offset, nbytes)

    @invariant()
    def the_indices_agree(self):
        self.space.check()
        runs = self.free_runs()
        assert list(self.space.free_extents()) == [(at * GRANULE, n * GRANULE) for at, n in runs]
        bytes_free = self.map.count(FREE) * GRANULE
        assert self.space.bytes_free == bytes_free
        assert self.space.bytes_used == len(self.map) * GRANULE - bytes_free
        assert self.space.largest_free_extent == max((n for _, n in runs), default=0) * GRANULE
        if not any(nbytes for _, nbytes in self.live):
            assert self.space.bytes_used == 0

    def expect_foreign(self, offset, nbytes):
        if nbytes < 0 or (offset, footprint(nbytes)) in [(o, footprint(n)) for o, n in self.live]:
            return
        if (offset, nbytes) != (0, 0):
            with pytest.raises(AssertionError):
                self.space.free(offset, nbytes)

    def reserve_one(self, nbytes):
        free_before = self.space.bytes_free
        offset = self.space.reserve(nbytes)
        cost = free_before - self.space.bytes_free
        if nbytes == 0:
            assert (offset, cost) == (0, 0)
            self.live.append((0, 0))
        elif nbytes <= 4032:
            self.expect_small(offset, footprint(nbytes), cost)
        else:
            self.expect_large(offset, footprint(nbytes), cost)
        assert self.space.could_fit(nbytes) == (footprint(nbytes) <= len(self.map) * GRANULE)
        if nbytes and offset is not None:
            self.take_units(offset, nbytes)

    def expect_small(self, offset, slot_bytes, cost):
        runs = self.free_runs()
        partial = [
            at for at, (nbytes, slot, nlive) in self.slabs.items() if slot == slot_bytes and nlive < nbytes // slot
        ]
        if offset is None:
            assert not runs
            assert not partial
            return
        if not partial:
            # The first object of a slab lies at its start.
            assert cost == (64 * KIB if any(n >= 16 for _, n in runs) else GRANULE)
            self.take_granules(offset, cost, SLAB)
            self.slabs[offset] = [cost, slot_bytes, 0]
            partial = [offset]
        else:
            assert cost == 0
        at = max(partial)
        assert at <= offset <= offset + slot_bytes <= at + self.slabs[at][0]
        assert (offset - at) % slot_bytes == 0
        self.slabs[at][2] += 1

    def expect_large(self, offset, nbytes, cost):
        want = nbytes // GRANULE
        sufficient = [(n, at) for at, n in self.free_runs() if n >= want]
        if offset is None:
            assert not sufficient
            return
        assert cost == nbytes
        chosen = next((n, at) for n, at in sufficient if 0 <= offset // GRANULE - at < n)
        aligned = offset % (2 * MIB) == 0
        if want <= 5110:
            assert chosen == min(sufficient)
        if want >= 512:
            gap = -chosen[1] % 512
            worth_it = gap * 10 < want and gap + want <= chosen[0]
            assert offset // GRANULE == chosen[1] + (gap if worth_it else 0)
        if want > 5110 and not aligned:
            assert chosen == min(sufficient)
            assert all(n < want + 511 for n, _ in sufficient)
        self.take_granules(offset, nbytes, LARGE)

    def take_granules(self, offset, nbytes, mark):
        at, rest = divmod(offset, GRANULE)
        n = nbytes // GRANULE
        assert rest == 0
        assert self.map[at : at + n] == bytes([FREE]) * n
        self.map[at : at + n] = bytes([mark]) * n

    def take_units(self, offset, nbytes):
        assert offset % 64 == 0
        at, n = offset // 64, footprint(nbytes) // 64
        assert self.units[at : at + n] == bytes(n), "two objects overlap"
        self.units[at : at + n] = b"\x01" * n
        self.live.append((offset, nbytes))

    def free_one(self, i):
        offset, nbytes = self.live.pop(i)
        self.space.free(offset, nbytes)
        at, n = offset // 64, footprint(nbytes) // 64
        self.units[at : at + n] = bytes(n)
        if 0 < nbytes <= 4032:
            at = max(at for at in self.slabs if at <= offset)
            self.slabs[at][2] -= 1
            if self.slabs[at][2]:
                return
            offset, nbytes = at, self.slabs.pop(at)[0]
        at, n = offset // GRANULE, footprint(nbytes) // GRANULE
        self.map[at : at + n] = bytes([FREE]) * n

    def free_runs(self):
        """Every longest run of free granules as (start, length)."""
        return [(m.start(), m.end() - m.start()) for m in re.finditer(b"\x00+", self.map)]


class SmallPool(SpaceMachine):
    @initialize(ngranules=st.sampled_from([100, 40, 17, 2, 1]))
    def start_small(self, ngranules):
        self.start(ngranules)

    @rule(nbytes=SMALL_SIZES, count=st.integers(2, 80))
    def reserve_many(self, nbytes, count):
        for _ in range(count):
            self.reserve_one(nbytes)


class LargePool(SpaceMachine):
    @initialize(ngranules=st.sampled_from([14_003, 30_000]))
    def start_large(self, ngranules):
        self.start(ngranules)

    @rule(nbytes=HUGE_SIZES)
    def reserve_huge(self, nbytes):
        self.reserve_one(nbytes)


@pytest.mark.parametrize("machine", [SmallPool, LargePool])
def test_space_does_as_the_map_does(machine):
    limits = settings(max_examples=100, stateful_step_count=40, deadline=None)
    run_state_machine_as_test(machine, settings=limits)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("machine", [SmallPool, LargePool])
def test_space_does_as_the_map_does_at_length(machine):
    limits = settings(max_examples=400, stateful_step_count=80, deadline=None)
    run_state_machine_as_test(machine, settings=limits)
