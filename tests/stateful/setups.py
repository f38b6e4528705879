"""Kinds of nodes, and what is asked of them."""

import msgspec

from mooncake_node.core.config import MasterConfig
from mooncake_node.core.pins import contract_for

PAGE = 4096
SLAB = 16 * PAGE  # at most
ADOPTED = 1 << 11  # the generation of what was in the tier before the node started
KEYS = ["a", "ab", "\u00e4"]
FILL = "all the rest"
TTL_MAX = 50
LEASE_TTL = 20
LIMITS = {
    "handles_max": 3,
    "reservations_max": 2,
    "waiters_max": 9,
    "softpin_ttl_max_ns": TTL_MAX,
    "lease_ttl_ns": LEASE_TTL,
    "tier_retry_ns": 7,
}
CONTRACTS = [
    contract_for(softpin=softpin, softpin_ttl_ns=ttl, hardpin=hardpin, scope="cluster")
    for softpin, ttl, hardpin in [
        *[(False, None, False)] * 4, *[(True, None, False)] * 3, (True, TTL_MAX, False), (True, 10, False),
        (False, None, True), (True, TTL_MAX, True), (True, TTL_MAX + 1, False),
    ]
]  # fmt: skip


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of node; all sizes in units."""

    unit: int = PAGE
    units: int = 4
    tier: int = 0
    free: tuple[int, int, int] = (0, 0, 0)  # min, low, high
    offload_unpinned: bool = False

    @property
    def config(self):
        least, low, high = (count * self.unit for count in self.free)
        return MasterConfig(
            pool_nbytes=self.units * self.unit,
            hard_pin_nbytes_max=2 * self.unit,
            free_min_nbytes=least,
            free_low_nbytes=low,
            free_high_nbytes=high,
            tier_nbytes_max=self.tier * self.unit,
            offload_unpinned=self.offload_unpinned,
            **LIMITS,
        )

    @property
    def sizes(self):
        unit = self.unit
        return [0, 64, 200, unit, unit, unit + 1, 2 * unit, 3 * unit, self.units * unit]
