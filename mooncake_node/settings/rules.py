"""How one value is read, whatever source it comes from: the kinds of value a setting can have."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from mooncake_node.settings.units import format_seconds, format_size, parse_seconds, parse_size

SOCKET_PATH_BYTES_MAX = 107  # sun_path has 108, one of them for the closing zero

_WORDS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}
_NODE_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_DIRECTORY_SCHEMES = ("valkey", "valkeys", "redis", "rediss")
_N = TypeVar("_N", int, float)
_MODE = re.compile(r"(?:0o)?[0-7]{3,4}")


class Rule(NamedTuple):
    """What a setting does and how its value is read.

    ``parse`` takes the TOML value or the text of a variable or flag and returns base units; its
    ValueError says in plain words what is wrong.
    """

    doc: str
    parse: Callable[[object], object]


class ValueRefused(ValueError):  # noqa: N818  read as a sentence where it is raised
    """A value its rule does not allow; the message completes "this value …"."""


def size(doc: str, minimum: int = 0, maximum: int = 16 << 40) -> Rule:
    """Bytes."""

    def parse(value: object) -> int:
        return _within(parse_size(value), minimum, maximum, format_size)

    return Rule(doc, parse)


def seconds(doc: str, minimum: float, maximum: float, hint: str = "") -> Rule:
    """Seconds; *hint* is added to what is said about a wrong value."""

    def parse(value: object) -> float:
        try:
            return _within(parse_seconds(value), minimum, maximum, format_seconds)
        except ValueError as error:
            raise ValueRefused(f"{error}{hint}") from None

    return Rule(doc, parse)


def optional(rule: Rule) -> Rule:
    """The same, or None, which is written as ``none`` because TOML has no word for it."""
    return Rule(rule.doc, lambda value: None if value == "none" else rule.parse(value))


def count(doc: str, minimum: int, maximum: int) -> Rule:
    """A whole number."""

    def parse(value: object) -> int:
        try:
            if isinstance(value, bool) or not isinstance(value, int | str):
                raise ValueRefused
            number = int(value)
        except ValueError:
            raise ValueRefused("must be a whole number") from None
        return _within(number, minimum, maximum, str)

    return Rule(doc, parse)


def switch(doc: str) -> Rule:
    """True or false."""

    def parse(value: object) -> bool:
        word = _WORDS.get(value.lower()) if isinstance(value, str) else value
        if not isinstance(word, bool):
            raise ValueRefused("must be true or false")
        return word

    return Rule(doc, parse)


def choice(doc: str, *words: str) -> Rule:
    """One of some words."""

    def parse(value: object) -> object:
        if value not in words:
            raise ValueRefused(f"must be one of {', '.join(words)}")
        return value

    return Rule(doc, parse)


def node_name(doc: str) -> Rule:
    """A name, of a node or a cluster, that is safe in a file name, a log line and a metric's label."""

    def parse(value: object) -> str:
        if not isinstance(value, str) or not _NODE_NAME.fullmatch(value):
            raise ValueRefused("must be 1 to 64 characters out of A-Z a-z 0-9 . _ -")
        return value

    return Rule(doc, parse)


def socket_path(doc: str) -> Rule:
    """The path of a Unix socket, made absolute, short enough for the kernel."""

    def parse(value: object) -> Path:
        if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
            raise ValueRefused("must be the path of a socket")
        path = Path(value).absolute()
        if not path.name:
            raise ValueRefused("must be the path of a socket, not of the root directory")
        if (nbytes := len(os.fsencode(path))) > SOCKET_PATH_BYTES_MAX:
            raise ValueRefused(f"is a path of {nbytes} bytes; a Unix socket can have {SOCKET_PATH_BYTES_MAX}")
        return path

    return Rule(doc, parse)


def directory(doc: str) -> Rule:
    """The path of a directory, made absolute; it need not exist yet."""

    def parse(value: object) -> Path:
        if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
            raise ValueRefused("must be the path of a directory")
        path = Path(value).absolute()
        if path.exists() and not path.is_dir():
            raise ValueRefused("is there and is no directory")
        return path

    return Rule(doc, parse)


def endpoint(doc: str) -> Rule:
    """HOST:PORT, where HOST is a name or an address, [in brackets] if it is an IPv6 one; port 0: any free one."""

    def parse(value: object) -> str:
        host, colon, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
        if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
            raise ValueRefused("must be HOST:PORT, such as 10.0.0.7:7400 or [::1]:7400")
        if ":" in host and not (host.startswith("[") and host.endswith("]")):
            raise ValueRefused("must have its IPv6 address in brackets, such as [::1]:7400")
        return f"{host}:{int(port)}"

    return Rule(doc, parse)


def directory_url(doc: str) -> Rule:
    """The URL of a directory server. What else is wrong with it is said by who connects to it."""

    def parse(value: object) -> str:
        if not isinstance(value, str) or value.partition("://")[0] not in _DIRECTORY_SCHEMES:
            raise ValueRefused("must be like valkey://[USER:PASSWORD@]HOST:PORT/DB, or valkeys:// for TLS")
        return value

    return Rule(doc, parse)


def file(doc: str) -> Rule:
    """The path of a file that is there, made absolute."""

    def parse(value: object) -> Path:
        if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
            raise ValueRefused("must be the path of a file")
        path = Path(value).absolute()
        if not path.is_file():
            raise ValueRefused("is no file")
        return path

    return Rule(doc, parse)


def socket_mode(doc: str) -> Rule:
    """A file mode in octal, as text: a bare 660 in a TOML file is another number than 0660."""

    def parse(value: object) -> int:
        if not isinstance(value, str) or not _MODE.fullmatch(value):
            raise ValueRefused('must be an octal mode in quotes, such as "0660"')
        mode = int(value, 8)
        if mode & 0o600 != 0o600 or mode > 0o777:
            raise ValueRefused("must let the owner read and write, and go up to 0777")
        return mode

    return Rule(doc, parse)


def _within(value: _N, minimum: _N, maximum: _N, shown: Callable[[_N], str]) -> _N:
    if value < minimum:
        raise ValueRefused(f"is below the minimum of {shown(minimum)}")
    if value > maximum:
        raise ValueRefused(f"is above the maximum of {shown(maximum)}")
    return value
