"""Commands on objects: put, get, ls, rm, holders."""

import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

from mooncake_node.cli import files
from mooncake_node.cli.common import (
    TIMEOUT_DEFAULT_S,
    JsonOption,
    KeyArgument,
    SocketOption,
    TimeoutOption,
    connect,
)
from mooncake_node.cli.outcome import CommandError
from mooncake_node.cli.show import (
    OBJECT_COLUMNS,
    holder_lines,
    object_line,
    printable,
    record_json,
)
from mooncake_node.settings import parse_seconds

_MISSING_SHOWN_MAX = 10


class Scope(StrEnum):
    """Where a put is visible."""

    CLUSTER = "cluster"
    NODE = "node"


def register(app: typer.Typer) -> None:
    """Add this family's commands."""
    for command in (put, get, ls, rm, holders):
        app.command()(command)


def put(
    *,
    key: KeyArgument,
    file: Annotated[str, typer.Argument(metavar="FILE", help="- for standard input.")],
    softpin: Annotated[bool, typer.Option("--softpin", help="Keep it readable until it is removed.")] = False,
    softpin_ttl: Annotated[
        float | None,
        typer.Option("--softpin-ttl", metavar="TIME", parser=parse_seconds, help="… or so long."),
    ] = None,
    hardpin: Annotated[
        bool,
        typer.Option("--hardpin", help="Keep it in this node's memory, if the node allows it."),
    ] = False,
    scope: Annotated[Scope | None, typer.Option(help="Where it is visible.")] = None,
    upsert: Annotated[bool, typer.Option("--upsert", help="Replace what the key holds.")] = False,
    socket: SocketOption = None,
    timeout: TimeoutOption = TIMEOUT_DEFAULT_S,
) -> None:
    """Store the bytes of FILE under KEY, as they are."""
    pins: dict[str, Any] = {
        "softpin": softpin or softpin_ttl is not None,
        "softpin_ttl": softpin_ttl,
        "hardpin": hardpin,
        "scope": scope and scope.value,
    }
    with connect(socket, timeout) as client, files.source(file) as stream:
        nbytes = files.size_ahead(stream)
        if nbytes is None:
            # A stream must end before its object can be given room.
            data = files.read_up_to(stream, client.stats()["pool"]["bytes_total"])
            (client.upsert if upsert else client.put_from)(key, data, **pins)
        elif upsert:
            client.upsert(key, files.mapped(stream, nbytes), **pins)
        else:
            with client.create(key, nbytes, **pins) as buffer:
                files.fill(buffer.view, stream)
                buffer.publish()


def get(
    *,
    key: KeyArgument,
    file: Annotated[str, typer.Argument(metavar="FILE", help="- for standard output.")],
    socket: SocketOption = None,
    timeout: TimeoutOption = TIMEOUT_DEFAULT_S,
) -> None:
    """Write the bytes stored under KEY to FILE, which is complete or untouched."""
    with connect(socket, timeout) as client, client.get_buffer(key) as handle:
        files.store(handle.view, file)


def ls(
    *,
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", show_default=False)] = "",
    as_json: JsonOption = False,
    long: Annotated[bool, typer.Option("--long", "-l", help="All columns.")] = False,
    socket: SocketOption = None,
    timeout: TimeoutOption = TIMEOUT_DEFAULT_S,
) -> None:
    """List keys that begin with PREFIX, one a line. Escapes what is not printable."""
    write = sys.stdout.write
    with connect(socket, timeout) as client:
        if long and not as_json:
            write(f"{OBJECT_COLUMNS}\n")
        for info in client.list(prefix):
            if as_json:
                write(f"{record_json(info)}\n")
            else:
                write(f"{object_line(info) if long else printable(info.key)}\n")


def rm(
    *,
    keys: Annotated[list[str] | None, typer.Argument(metavar="KEY...", show_default=False)] = None,
    prefix: Annotated[str | None, typer.Option("--prefix", help="Remove all keys that begin so.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove all objects.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Needed with --all.")] = False,
    generation: Annotated[
        str | None,
        typer.Option("--generation", help="Remove KEY only while it is this generation."),
    ] = None,
    socket: SocketOption = None,
    timeout: TimeoutOption = TIMEOUT_DEFAULT_S,
) -> None:
    """Remove objects; who still reads one keeps its bytes."""
    named = keys or []
    _check_choice(named, prefix, generation, everything=everything, yes=yes)
    with connect(socket, timeout) as client:
        if everything:
            print(f"removed {client.remove_all()}")
        elif prefix is not None:
            print(f"removed {client.remove_prefix(prefix)}")
        elif generation is not None:
            _check_removed(named, [client.remove(named[0], generation=generation)])
        else:
            _check_removed(named, client.remove_many(named))


def holders(
    *,
    key: KeyArgument,
    as_json: JsonOption = False,
    socket: SocketOption = None,
    timeout: TimeoutOption = TIMEOUT_DEFAULT_S,
) -> None:
    """Show who holds KEY in memory, and since when."""
    with connect(socket, timeout) as client:
        found = client.holders(key)
    if as_json:
        for holder in found:
            print(record_json(holder))
    elif found:
        print(*holder_lines(found), sep="\n")
    else:
        print(f"nobody holds {printable(key)}")


def _check_choice(keys: list[str], prefix: str | None, generation: str | None, *, everything: bool, yes: bool) -> None:
    if (bool(keys), prefix is not None, everything).count(True) != 1:
        raise typer.BadParameter("give either KEY..., --prefix or --all")
    if prefix == "":
        raise typer.BadParameter("an empty prefix is every key: that is --all")
    if everything and not yes:
        raise typer.BadParameter("--all removes every object: add --yes")
    if generation is not None and len(keys) != 1:
        raise typer.BadParameter("--generation goes with exactly one KEY")


def _check_removed(keys: list[str], removed: list[bool]) -> None:
    missing = [printable(key) for key, was in zip(keys, removed, strict=True) if not was]
    if missing:
        more = len(missing) - _MISSING_SHOWN_MAX
        shown = ", ".join(missing[:_MISSING_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
        raise CommandError(f"not there: {shown}")
