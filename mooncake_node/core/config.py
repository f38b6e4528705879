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
