"""What the client commands share: the options that name the daemon, and the connection to it."""

from pathlib import Path
from typing import Annotated

import typer

from mooncake_client import Client
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


def connect(socket: Path | None, timeout_s: float) -> Client:
    """A client, to be closed by ``with``. The one place where commands meet the daemon."""
    return Client(socket, timeout=timeout_s, name="cli")
