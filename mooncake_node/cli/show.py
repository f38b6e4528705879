"""Output for people and programs: a line of columns, or of JSON, for what the client reports."""

from collections.abc import Sequence

import msgspec

from mooncake_client.wire import Holder, ObjectInfo
from mooncake_node.settings import format_seconds, format_size

OBJECT_COLUMNS = f"{'SIZE':>9}  {'KIND':8}{'STATE':26}{'REFS':>5}  {'GENERATION':18}KEY"


def printable(text: str) -> str:
    """*text* with what could move a cursor, fake a line or hide spelt out as a backslash escape."""
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(map(_spelt, text))


def object_line(info: ObjectInfo) -> str:
    """Size, kind, state and pins, references, generation and key of one object."""
    state = "+".join((info.state.lower(), *_pins(info)))
    size = format_size(info.nbytes)
    return f"{size:>9}  {info.kind:8}{state:26}{info.refs:>5}  {info.generation:18}{printable(info.key)}"


def holder_lines(holders: Sequence[Holder]) -> list[str]:
    """A heading, then each holder's name, pid, handles, age of the oldest, generation and note."""
    rows = [("CLIENT", "PID", "HANDLES", "OLDEST", "GENERATION", "NOTE")]
    rows += [
        (
            printable(holder.client),
            str(holder.pid),
            str(holder.handles),
            format_seconds(round(holder.oldest_s, 1)),
            holder.generation,
            printable(holder.note),
        )
        for holder in holders
    ]
    return columns(rows)


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines in which each column is as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def record_json(record: msgspec.Struct) -> str:
    """One wire record as a JSON object; on the wire it is an array without names."""
    return msgspec.json.encode(msgspec.structs.asdict(record)).decode()


def _pins(info: ObjectInfo) -> list[str]:
    pins = []
    if info.softpin:
        left = info.softpin_deadline_s
        pins.append("soft" if left is None else f"soft({format_seconds(round(left))})")
    if info.hardpin:
        pins.append("hard")
    return pins


def _spelt(char: str) -> str:
    if char == "\\":
        return "\\\\"
    return char if char.isprintable() else char.encode("unicode_escape").decode()
