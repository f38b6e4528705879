"""Tiers: where objects lie outside memory. A port, an implementation in memory for tests, and a local directory."""

from mooncake_node.tiers.directory import DirectoryTier
from mooncake_node.tiers.errors import (
    TierCorruptError,
    TierError,
    TierFullError,
    TierIOError,
    TierLockedError,
    TierMissingError,
    TierRemovedError,
)
from mooncake_node.tiers.memory import MemoryDisk, MemoryTier
from mooncake_node.tiers.points import POINTS
from mooncake_node.tiers.port import Tier, TierCounters, TierMeta, TierRecord

__all__ = [
    "POINTS",
    "DirectoryTier",
    "MemoryDisk",
    "MemoryTier",
    "Tier",
    "TierCorruptError",
    "TierCounters",
    "TierError",
    "TierFullError",
    "TierIOError",
    "TierLockedError",
    "TierMeta",
    "TierMissingError",
    "TierRecord",
    "TierRemovedError",
]
