"""The daemon's process, from checked settings to its exit code."""

from collections.abc import Iterable

from mooncake_node import node
from mooncake_node.cli.outcome import CommandError
from mooncake_node.obs import log
from mooncake_node.settings import Settings


def run(settings: Settings, *, warnings: Iterable[str]) -> int:
    """Log from here on, *warnings* first; returns when the daemon has stopped."""
    log.configure(settings)
    for warning in warnings:
        log.get_logger().warning("variable_ignored", reason=warning)
    try:
        return node.run(settings)
    except node.NodeError as exc:
        raise CommandError(str(exc)) from exc
