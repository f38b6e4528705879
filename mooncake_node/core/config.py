"""Limits and defaults of the local master."""

import msgspec

SECOND_NS = 1_000_000_000


class MasterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator may set; every queue and table has its limit here."""

    pool_nbytes: int
    key_nbytes_max: int = 1024
    handles_max: int = 1_000_000  # live handles of one session
    reservations_max: int = 65_536  # unpublished replicas of one session
    waiters_max: int = 65_536  # requests that wait, over all sessions
    softpin_ttl_default_ns: int | None = None  # of a soft pin that names none; None: until removed
    softpin_ttl_max_ns: int = 86_400 * SECOND_NS
    hard_pin_nbytes_max: int = 0  # 0: no hard pins on this node
    lease_ttl_ns: int = 30 * SECOND_NS  # of every lease of this node
    # Free bytes: below low reclaim runs in the background until there are high; below min every put reclaims itself.
    free_min_nbytes: int = 0
    free_low_nbytes: int = 0
    free_high_nbytes: int = 0
    tier_nbytes_max: int = 0  # what the offload tier may take; 0: there is none
    offload_unpinned: bool = False  # write ordinary objects to the tier too, instead of dropping them
    has_peers: bool = False  # what is not on this node may be on another
    quarantine_nbytes_max: int = 1 << 62  # of failed transfers that may still write; beyond it none is begun
    tier_retry_ns: int = SECOND_NS  # after a failed or refused write nothing is written for so long
