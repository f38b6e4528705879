"""The command that is the daemon."""

import importlib
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from mooncake_node.cli.outcome import CommandError
from mooncake_node.settings import FLAGS, RULES, load, unknown_env

_OTHERS = ", ".join(key for key in RULES if key not in FLAGS)


def register(app: typer.Typer) -> None:
    """Add this family's commands."""
    app.command()(serve)


def serve(
    *,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Settings in TOML.")] = None,
    name: Annotated[str | None, typer.Option(help=RULES["name"].doc)] = None,
    socket: Annotated[str | None, typer.Option(metavar="PATH", help=RULES["socket"].doc)] = None,
    admin_socket: Annotated[str | None, typer.Option(metavar="PATH", help=RULES["admin_socket"].doc)] = None,
    pool_size: Annotated[str | None, typer.Option(metavar="SIZE", help=RULES["pool_size"].doc)] = None,
    offload_dir: Annotated[str | None, typer.Option(metavar="DIR", help=RULES["offload_dir"].doc)] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help=RULES["listen"].doc)] = None,
    directory: Annotated[str | None, typer.Option(metavar="URL", help=RULES["directory"].doc)] = None,
    faults: Annotated[bool, typer.Option("--faults", help=RULES["faults"].doc)] = False,
    log_level: Annotated[str | None, typer.Option(metavar="LEVEL", help=RULES["log_level"].doc)] = None,
    log_format: Annotated[str | None, typer.Option(metavar="FORMAT", help=RULES["log_format"].doc)] = None,
    others: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help=f"Any other setting: {_OTHERS}."),
    ] = None,
) -> None:
    """Run the node's daemon in the foreground until SIGTERM.

    A setting comes from its flag, else from MOONCAKE_NODE_<SETTING>, else from the file.
    """
    flags: dict[str, object] = {
        "name": name,
        "socket": socket,
        "admin_socket": admin_socket,
        "pool_size": pool_size,
        "offload_dir": offload_dir,
        "listen": listen,
        "directory": directory,
        "faults": faults or None,
        "log_level": log_level,
        "log_format": log_format,
    }
    assert flags.keys() == FLAGS
    for text in others or ():
        key, equals, value = text.partition("=")
        if not equals:
            raise typer.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--set")
        if flags.get(key) is not None:
            raise typer.BadParameter(f"{key} is given twice", param_hint="--set")
        flags[key] = value
    settings = load(config, os.environ, flags)
    if sys.flags.optimize:
        raise CommandError("python -O strips the checks that guard clients' data: run without it")
    # By name, so that `ls` need not load the event loop, the pool and the logging.
    daemon = importlib.import_module("mooncake_node.cli.daemon")
    raise typer.Exit(daemon.run(settings, warnings=unknown_env(os.environ)))
