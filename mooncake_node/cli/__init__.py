"""The one executable: the daemon and the commands that talk to it."""

from mooncake_node.cli.app import main

__all__ = ["main"]
