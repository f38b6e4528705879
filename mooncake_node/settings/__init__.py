"""What the operator decides: the settings, their limits, and where their values come from."""

from mooncake_node.settings.loading import (
    ENV_PREFIX,
    Problem,
    SettingsError,
    load,
    unknown_env,
)
from mooncake_node.settings.model import FLAGS, RULES, Settings
from mooncake_node.settings.units import format_seconds, format_size, parse_seconds, parse_size

__all__ = [
    "ENV_PREFIX",
    "FLAGS",
    "RULES",
    "Problem",
    "Settings",
    "SettingsError",
    "format_seconds",
    "format_size",
    "load",
    "parse_seconds",
    "parse_size",
    "unknown_env",
]
