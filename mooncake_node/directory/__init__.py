"""The directory: which nodes live, and who has which keys. A hint that nodes can rebuild, never the truth."""

from mooncake_node.directory.faulty import FaultyDirectory
from mooncake_node.directory.memory import MemoryCluster, MemoryDirectory
from mooncake_node.directory.opening import open_directory
from mooncake_node.directory.points import POINTS
from mooncake_node.directory.port import (
    Created,
    Creation,
    Directory,
    DirectoryAwayError,
    DirectoryError,
    Entry,
    Holding,
    Members,
    NameTakenError,
    Node,
    Taken,
    TooOld,
)

__all__ = [
    "POINTS",
    "Created",
    "Creation",
    "Directory",
    "DirectoryAwayError",
    "DirectoryError",
    "Entry",
    "FaultyDirectory",
    "Holding",
    "Members",
    "MemoryCluster",
    "MemoryDirectory",
    "NameTakenError",
    "Node",
    "Taken",
    "TooOld",
    "open_directory",
]
