"""Measure this machine."""

import importlib
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from mooncake_node.cli.outcome import CommandError


def register(app: typer.Typer) -> None:
    """Add this family's commands."""
    app.command()(bench)


def bench(
    *,
    json_path: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures there.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds, for a first look.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 if a goal is missed.")] = False,
) -> None:
    """Measure latency, bandwidth and memory on a node of its own; ratios within one run."""
    # By name, so that other commands need not load numpy.
    runner = importlib.import_module("mooncake_node.bench.run")
    console = Console(stderr=True)
    report = runner.run(lambda text: console.print(f"[dim]{text} …[/]"), quick=quick)
    out = Console()
    machine = report.machine
    out.print(f"{machine.cpu}, {machine.cores} cores, Linux {machine.kernel}, Python {machine.python}")
    out.print(", ".join(f"{name} {version}" for name, version in machine.packages.items()))
    out.print(machine.placement)
    table = Table("measured", "value", "goal", "", "detail")
    for result in report.results:
        mark = {None: "", True: "[green]met[/]", False: "[red]missed[/]"}[result.met]
        table.add_row(result.name, f"{result.value:.2f} {result.unit}", result.goal, mark, result.detail)
    out.print(table)
    if json_path is not None:
        json_path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
    missed = [result.name for result in report.results if result.met is False]
    if strict and missed:
        raise CommandError(f"missed: {', '.join(missed)}")
