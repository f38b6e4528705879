"""The memory of pool G: found, made, reserved, warmed, and cleaned up after a crash."""

from mooncake_node.pool.errors import PoolError, PoolStoppedError
from mooncake_node.pool.holders import Holder, wait_for_room, who_maps_deleted_pools
from mooncake_node.pool.hugepages import huge_bytes, mount_policy
from mooncake_node.pool.limits import (
    Limit,
    check_room,
    find_limits,
    find_shortage,
    format_bytes,
)
from mooncake_node.pool.names import NAME_PREFIX, SHM_DIRECTORY
from mooncake_node.pool.room import Room
from mooncake_node.pool.segment import PAGE, Progress, Segment
from mooncake_node.pool.store import PoolWriter
from mooncake_node.pool.sweep import sweep
from mooncake_node.pool.warmup import Warmup, WarmupState, WarmupStatus

__all__ = [
    "NAME_PREFIX",
    "PAGE",
    "SHM_DIRECTORY",
    "Holder",
    "Limit",
    "PoolError",
    "PoolStoppedError",
    "PoolWriter",
    "Progress",
    "Room",
    "Segment",
    "Warmup",
    "WarmupState",
    "WarmupStatus",
    "check_room",
    "find_limits",
    "find_shortage",
    "format_bytes",
    "huge_bytes",
    "mount_policy",
    "sweep",
    "wait_for_room",
    "who_maps_deleted_pools",
]
