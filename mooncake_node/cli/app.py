"""The root command. A family of commands is a module with ``register``, named here once."""

import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from mooncake_node.cli import bench, demo, demo_cluster, fault, objects, serve, stats
from mooncake_node.cli.outcome import INTERRUPTED, CommandGroup

_FAMILIES = (serve, stats, objects, fault, bench, demo, demo_cluster)

app = typer.Typer(
    cls=CommandGroup,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for family in _FAMILIES:
    family.register(app)


def main() -> int:
    """Run the command line; 0 is done, 1 refused or failed, 2 wrong usage or settings."""
    _open_closed_streams()
    try:
        app(prog_name="mooncake-node")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _open_closed_streams() -> None:
    """Put /dev/null where a standard stream was closed: else a socket of ours would get its number."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            # The lowest free number, which is this one.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, "r" if fd == 0 else "w", closefd=False))


def _print_version(wanted: bool) -> None:  # noqa: FBT001  typer calls it so
    if wanted:
        print(f"mooncake-node {version('mooncake-node')}")
        raise typer.Exit


@app.callback()
def root(
    *,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """A node-local store of objects in shared memory, read without copying."""
