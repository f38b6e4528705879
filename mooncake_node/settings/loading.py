"""Loading: a TOML file weighs least, the environment more, flags most."""

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from mooncake_client.paths import SOCKET_VARIABLE, default_socket_path
from mooncake_node.settings.model import FLAGS, RULES, Settings
from mooncake_node.settings.units import format_seconds, format_size

ENV_PREFIX = "MOONCAKE_NODE_"

_SHOWN_CHARS_MAX = 200


class Problem(NamedTuple):
    """One thing wrong with one source. *key* is empty when the source as a whole is unreadable."""

    where: str
    key: str
    value: object
    reason: str

    def __str__(self) -> str:
        given = f"{self.key} = {_shown(self.value)} " if self.key else ""
        return f"{self.where}: {given}{self.reason}"


class SettingsError(Exception):
    """The daemon cannot start so. *problems* has all that is wrong; as text, a line each."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


class _Given(NamedTuple):
    where: str
    key: str
    value: object


def load(config: Path | None, env: Mapping[str, str], flags: Mapping[str, object]) -> Settings:
    """The settings in force, or SettingsError with every problem of every source.

    A wrong value is reported even where a heavier source replaces it: it would bite on the day that
    source goes. A flag that is None and a variable that is empty count as not given.
    """
    problems: list[Problem] = []
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for where, key, value in (*_from_file(config, problems), *_from_env(env), *_from_flags(flags)):
        if key not in RULES:
            reason = f"names no setting{_did_you_mean(key)}"
            problems.append(Problem(where, key, value, reason))
            continue
        try:
            values[key] = RULES[key].parse(value)
            origins[key] = where
        except ValueError as error:
            problems.append(Problem(where, key, value, str(error)))
    wrong = {problem.key for problem in problems}
    unnamed = {name: value for name, value in env.items() if name != SOCKET_VARIABLE}
    settings = Settings(**({"socket": default_socket_path(unnamed)} | values))
    problems += [
        Problem(origins.get(key, "default"), key, getattr(settings, key), reason)
        for key, other, reason in _contradictions(settings)
        if wrong.isdisjoint({key, other})
    ]
    if problems:
        raise SettingsError(problems)
    return settings


def unknown_env(env: Mapping[str, str]) -> list[str]:
    """A warning for each ``MOONCAKE_NODE_*`` variable that names no setting.

    No error: the environment is shared, and a newer or older release may know the name.
    """
    return [
        f"environment variable {name} names no setting{_did_you_mean(key, ENV_PREFIX)}"
        for name in sorted(env)
        if name.startswith(ENV_PREFIX)
        if (key := name.removeprefix(ENV_PREFIX).lower()) not in RULES
    ]


def _contradictions(settings: Settings) -> Iterator[tuple[str, str, str]]:
    """Key, the other key and the reason, of values that may be fine alone but not together."""
    for key in ("socket", "admin_socket"):
        # A default or derived path has not been through its rule yet.
        try:
            RULES[key].parse(getattr(settings, key))
        except ValueError as error:
            yield key, "socket", str(error)
    if settings.socket == settings.admin_socket:
        yield "admin_socket", "socket", "must be another path than socket"
    if settings.hard_pin_max_bytes > settings.pool_size:
        reason = f"must not be more than pool_size, which is {format_size(settings.pool_size)}"
        yield "hard_pin_max_bytes", "pool_size", reason
    marks = ("free_min_bytes", "free_low_bytes", "free_high_bytes", "pool_size")
    for key, above in pairwise(marks):
        limit = getattr(settings, above)
        if getattr(settings, key) >= limit:
            yield key, above, f"must be less than {above}, which is {format_size(limit)}"
    default, longest = settings.softpin_ttl_default, settings.softpin_ttl_max
    if default is not None and default > longest:
        reason = f"must not be more than softpin_ttl_max, which is {format_seconds(longest)}"
        yield "softpin_ttl_default", "softpin_ttl_max", reason


def _from_file(config: Path | None, problems: list[Problem]) -> Iterator[_Given]:
    if config is None:
        return
    try:
        text = config.read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except OSError as error:
        problems.append(Problem(str(config), "", None, f"cannot be read: {error.strerror}"))
    except UnicodeDecodeError as error:
        problems.append(Problem(str(config), "", None, f"is not UTF-8 (byte {error.start})"))
    except tomllib.TOMLDecodeError as error:  # its text ends with line and column
        problems.append(Problem(str(config), "", None, f"is not TOML: {error}"))
    else:
        for key, value in table.items():
            yield _Given(f"{config}{_line_of(key, text)}", key, value)


def _from_env(env: Mapping[str, str]) -> Iterator[_Given]:
    for key in RULES:
        name = ENV_PREFIX + key.upper()
        if value := env.get(name):
            yield _Given(f"environment variable {name}", key, value)


def _from_flags(flags: Mapping[str, object]) -> Iterator[_Given]:
    for key, value in flags.items():
        if value is not None:
            flag = f"--{key.replace('_', '-')}" if key in FLAGS else f"--set {key}"
            yield _Given(f"flag {flag}", key, value)


def _line_of(key: str, text: str) -> str:
    """``:12`` for a key or table at the top level of line 12; empty where it is written oddly."""
    written = re.compile(rf"""\s*\[*\s*["']?{re.escape(key)}["']?\s*[=.\]]""")
    lines = enumerate(text.splitlines(), 1)
    return next((f":{number}" for number, line in lines if written.match(line)), "")


def _did_you_mean(key: str, prefix: str = "") -> str:
    close = difflib.get_close_matches(key.lower().replace("-", "_"), RULES, 1)
    if not close:
        return ""
    return f"; did you mean {prefix + close[0].upper() if prefix else close[0]}?"


def _shown(value: object) -> str:
    text = str(value) if isinstance(value, Path) else repr(value)
    text = re.sub(r"://[^@/]*@", "://…@", text)  # who and by what password is nobody's business
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}…"
