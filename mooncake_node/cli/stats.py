"""The command that shows what the daemon counts."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import typer
from rich.columns import Columns
from rich.console import Console
from rich.table import Table

from mooncake_node.cli.common import (
    TIMEOUT_DEFAULT_S,
    JsonOption,
    SocketOption,
    TimeoutOption,
    connect,
)
from mooncake_node.settings import format_seconds, format_size

_GENERAL = "node"  # the group of the figures that have none


def register(app: typer.Typer) -> None:
    """Add this family's commands."""
    app.command()(stats)


def stats(
    *,
    as_json: JsonOption = False,
    socket: SocketOption = None,
    timeout: TimeoutOption = TIMEOUT_DEFAULT_S,
) -> None:
    """Show the daemon's memory, objects, readers and counters."""
    with connect(socket, timeout) as client:
        figures = client.stats()
    if as_json:
        encoded = msgspec.json.encode(figures, enc_hook=str)
        print(msgspec.json.format(encoded, indent=2).decode())
        return
    tables = [_table(group, rows) for group, rows in _groups(figures).items()]
    Console(soft_wrap=False).print(Columns(tables, padding=(0, 4)))


def _groups(figures: Mapping[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """Rows of name and text by group; deeper levels become dotted names."""
    groups: dict[str, list[tuple[str, str]]] = {_GENERAL: []}
    for name, value in figures.items():
        if isinstance(value, Mapping):
            groups.setdefault(name, []).extend(_rows(value))
        else:
            groups[_GENERAL].append((name, _text(name, value)))
    return {group: rows for group, rows in groups.items() if rows}


def _rows(figures: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from _rows(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _text(name, value)


def _table(group: str, rows: list[tuple[str, str]]) -> Table:
    table = Table(title=group, title_justify="left", title_style="bold", box=None, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for name, text in rows:
        table.add_row(name, text)
    return table


def _text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if "bytes" in name or name.endswith("_extent"):
            return format_size(value)
        if name.endswith("_s"):
            return format_seconds(round(value, 3))
        return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"
    return "-" if value is None else str(value)
