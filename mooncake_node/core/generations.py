"""Generations: one number for each life of a key, totally ordered in the cluster and unique for ever.

A hybrid clock: milliseconds since 2025 (41 bits), a sequence within the millisecond (12 bits), the node's slot
(11 bits). Shown as 16 hexadecimal digits, whose order as text is the order of the numbers. The clock part never
goes back: when the wall clock does, or the sequence overflows, it runs ahead by itself.
"""

EPOCH_MS = 1_735_689_600_000  # 2025-01-01T00:00:00Z
SEQUENCE_BITS = 12
SLOT_BITS = 11
SLOT_MAX = (1 << SLOT_BITS) - 1


class GenerationClock:
    """Gives each call a larger generation than the call before, and than *floor*."""

    def __init__(self, wall_offset_ns: int, *, slot: int = 0, floor: int = 0) -> None:
        """*wall_offset_ns* is what turns the core's monotonic time into time since 1970."""
        assert 0 <= slot <= SLOT_MAX
        self._offset_ns = wall_offset_ns - EPOCH_MS * 1_000_000
        self._slot = slot
        self._last = floor >> SLOT_BITS

    def next(self, now_ns: int) -> int:
        """A generation never given before by this clock."""
        ticks = ((now_ns + self._offset_ns) // 1_000_000) << SEQUENCE_BITS
        self._last = max(self._last + 1, ticks)
        return self._last << SLOT_BITS | self._slot

    def observe(self, generation: int) -> None:
        """Another node has given that generation: the next one here is larger."""
        self._last = max(self._last, generation >> SLOT_BITS)

    def reach(self, until_ns: int) -> int:
        """No generation given up to that time will be larger, unless more than 4,096 are asked for in a millisecond."""
        ticks = ((until_ns + self._offset_ns) // 1_000_000 + 1) << SEQUENCE_BITS
        return max(self._last, ticks) << SLOT_BITS | SLOT_MAX

    @property
    def floor(self) -> int:
        """What to hand to the next life of this node as its *floor*."""
        return self._last << SLOT_BITS | SLOT_MAX
