"""Readers that need no request: the shared index that they look in, the rows in which they pin what they read."""

from mooncake_node.readers.shared import SharedReaders

__all__ = ["SharedReaders"]
