"""Commands on the daemon's fault table."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from mooncake_node.cli.common import TIMEOUT_DEFAULT_S, SocketOption, TimeoutOption, connect
from mooncake_node.cli.show import columns

NameArgument = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]
OptionalNameArgument = Annotated[str | None, typer.Argument(metavar="[NAME]", show_default=False, help="Else all.")]

_fault = typer.Typer(
    name="fault",
    help="Make the daemon stumble on purpose. Needs a daemon that was started with --faults.",
    no_args_is_help=True,
)


class Action(StrEnum):
    """What happens at a point."""

    SLEEP = "sleep"
    RETURN_ERROR = "return_error"
    RESET = "reset"


def register(app: typer.Typer) -> None:
    """Add this family's commands."""
    app.add_typer(_fault)


@_fault.command("list")
def list_points(*, socket: SocketOption = None, timeout: TimeoutOption = TIMEOUT_DEFAULT_S) -> None:
    """List the points where the daemon can be made to stumble."""
    with connect(socket, timeout) as client:
        points = client.list_faults_local_master()
    rows = [(point["name"], _yes(point["armed"]), point["description"]) for point in points]
    print(*columns([("NAME", "ARMED", "DESCRIPTION"), *rows]), sep="\n")


# A code such as -900 looks like an option; unknown options are arguments here, and wrong ones.
@_fault.command(context_settings={"ignore_unknown_options": True})
def inject(
    *,
    name: NameArgument,
    action: Annotated[Action, typer.Argument(show_default=False)],
    value: Annotated[int, typer.Argument(help="Milliseconds of a sleep, code of an error.")] = 0,
    start: Annotated[int, typer.Option(min=1, help="The hit at which it begins to act.")] = 1,
    times: Annotated[int, typer.Option(min=1, help="How many hits it acts on.")] = 1,
    socket: SocketOption = None,
    timeout: TimeoutOption = TIMEOUT_DEFAULT_S,
) -> None:
    """Arm the point NAME."""
    with connect(socket, timeout) as client:
        client.inject_fault_local_master(name, action.value, value, start=start, times=times)


@_fault.command()
def status(
    *,
    name: OptionalNameArgument = None,
    socket: SocketOption = None,
    timeout: TimeoutOption = TIMEOUT_DEFAULT_S,
) -> None:
    """Show how often points were passed and acted."""
    with connect(socket, timeout) as client:
        points = client.list_faults_local_master() if name is None else [client.get_fault_status_local_master(name)]
    heading = ("NAME", "ACTION", "ARMED", "HITS", "FIRED")
    print(*columns([heading, *map(_status_row, points)]), sep="\n")


@_fault.command()
def reset(
    *,
    name: OptionalNameArgument = None,
    socket: SocketOption = None,
    timeout: TimeoutOption = TIMEOUT_DEFAULT_S,
) -> None:
    """Disarm NAME, or all points, and forget their counts."""
    with connect(socket, timeout) as client:
        points = client.list_faults_local_master() if name is None else [{"name": name}]
        for point in points:
            client.inject_fault_local_master(point["name"], Action.RESET.value)


def _status_row(point: dict[str, Any]) -> tuple[str, ...]:
    counts = str(point["hits"]), str(point["fired"])
    return point["name"], point.get("action") or "-", _yes(point["armed"]), *counts


def _yes(value: object) -> str:
    return "yes" if value else "no"
