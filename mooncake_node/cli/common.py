"""What the client commands share: the options that name the daemon, and the connection to it."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from mooncake_client import Client
from mooncake_node.cli.outcome import FAILED
from mooncake_node.settings import parse_seconds

SocketOption = Annotated[
    Path | None,
    typer.Option(
        "--socket",
        metavar="PATH",
        help="The daemon's socket; else MOONCAKE_NODE_SOCKET, else that of this user's daemon.",
        show_default=False,
    ),
]
TimeoutOption = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="TIME",
        parser=parse_seconds,
        help="How long to wait for the daemon, such as 5s or 500ms.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="For programs.")]
KeyArgument = Annotated[str, typer.Argument(metavar="KEY", show_default=False)]

TIMEOUT_DEFAULT_S = 30.0


def show_findings(show: Any, found: Any, *, as_json: bool) -> None:
    """What a demo has found, by its module *show*; exits 1 if it does not hold."""
    if as_json:
        print(show.findings_json(found))
    else:
        show.print_findings(Console(), found)
    if not found.holds:
        raise typer.Exit(FAILED)


def connect(socket: Path | None, timeout_s: float) -> Client:
    """A client, to be closed by ``with``. The one place where commands meet the daemon."""
    return Client(socket, timeout=timeout_s, name="cli")
