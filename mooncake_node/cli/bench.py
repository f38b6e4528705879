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
    parts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PART]...",
            help="latency, index, bandwidth, memory, tight, reclaim, cluster; all of them if none is named.",
        ),
    ] = None,
    *,
    json_path: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures there.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds, for a first look.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 if a goal is missed.")] = False,
) -> None:
    """Measure latency, bandwidth, memory and reclaim on nodes of its own; ratios within one run."""
    # By name, so that other commands need not load numpy.
    runner = importlib.import_module("mooncake_node.bench.run")
    unknown = set(parts or ()) - set(runner.PARTS)
    if unknown:
        raise typer.BadParameter(f"unknown: {', '.join(sorted(unknown))}", param_hint="PART")
    console = Console(stderr=True)
    report = runner.run(lambda text: console.print(f"[dim]{text} …[/]"), parts or runner.PARTS, quick=quick)
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
    if report.lease_load:
        out.print(_lease_table(report.lease_load, report.lease_load_of_the_post))
    if json_path is not None:
        json_path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
    missed = [result.name for result in report.results if result.met is False]
    if strict and missed:
        raise CommandError(f"missed: {', '.join(missed)}")


def _lease_table(ours: dict[str, float], post: dict[str, float]) -> Table:
    table = Table("lease load, ten minutes", "here", "the post's first version")
    for name in [*ours, *(name for name in post if name not in ours)]:
        table.add_row(name, *(f"{figures[name]:,.10g}" if name in figures else "-" for figures in (ours, post)))
    return table
