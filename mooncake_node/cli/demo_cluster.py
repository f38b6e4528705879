"""The command that shows two nodes at work on the same objects."""

import importlib
from typing import Annotated

import typer
from rich.console import Console

from mooncake_node.cli.common import JsonOption, show_findings
from mooncake_node.cli.outcome import CommandError
from mooncake_node.settings import parse_size

_AUTO = "auto"
_SIZES = "0,200,4KiB,1MiB,64MiB,256MiB"
_SIZES_MAX = 1000


def register(app: typer.Typer) -> None:
    """Add this family's commands."""
    app.command("demo-cluster")(demo_cluster)


def demo_cluster(
    *,
    sizes: Annotated[str, typer.Option(metavar="SIZE,...", help="Of the objects, one after the other.")] = _SIZES,
    pool_size: Annotated[
        str, typer.Option(metavar="SIZE", help="Of each node; auto: as the largest object needs.")
    ] = _AUTO,
    as_json: JsonOption = False,
) -> None:
    """Put objects on one of two nodes, read them on both, and prove that each crosses once and lies on each once.

    Starts a directory server (Valkey), two nodes and the worker processes 11, 12 on node 1 and 21 to 24 on node 2.
    """
    nbytes = [_parse(size, "--sizes") for size in sizes.split(",")]
    if len(nbytes) > _SIZES_MAX:
        raise typer.BadParameter(f"more than {_SIZES_MAX} sizes", param_hint="--sizes")
    pool_nbytes = None if pool_size == _AUTO else _parse(pool_size, "--pool-size")
    # By name, so that other commands load no numpy.
    run = importlib.import_module("mooncake_node.demo.cluster_run")
    show = importlib.import_module("mooncake_node.demo.cluster_show")
    steps = Console(stderr=as_json, highlight=False)
    try:
        found = run.run(
            nbytes,
            pool_nbytes=pool_nbytes,
            say=lambda step, text: steps.print(f"[bold]{step:8}[/] {text}", soft_wrap=True),
        )
    except run.DemoError as error:
        raise CommandError(str(error)) from error
    show_findings(show, found, as_json=as_json)


def _parse(size: str, option: str) -> int:
    try:
        return parse_size(size.strip())
    except ValueError as error:
        raise typer.BadParameter(f"{size!r} {error}", param_hint=option) from None
