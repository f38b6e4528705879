"""How a command ends: exit codes, and every expected failure as one line on stderr."""

import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from mooncake_client import errors
from mooncake_node.settings import SettingsError

FAILED = 1
MISUSED = 2
INTERRUPTED = 130  # as a shell reports death by SIGINT
PIPE_CLOSED = 141  # and by SIGPIPE

_ADVICE: dict[type[errors.StoreError], str] = {
    errors.DaemonGoneError: "--socket or MOONCAKE_NODE_SOCKET names another socket",
    errors.ExistsError: "--upsert replaces it, `mooncake-node rm` frees the key",
    errors.NoSpaceError: "`mooncake-node stats` shows what memory is used for",
}


class CommandError(Exception):
    """The command was refused or failed; the message is all the user sees."""


class CommandGroup(TyperGroup):
    """The root command: turns what its commands raise into a message and an exit code.

    Anything it does not name is our bug and keeps its traceback.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command; ``typer.Exit`` carries the code."""
        try:
            result = super().invoke(ctx)
            # Here, not at interpreter exit, where a closed pipe can only be complained about.
            sys.stdout.flush()
        except (errors.StoreError, CommandError) as error:
            _complain(_with_advice(error))
            raise typer.Exit(FAILED) from None
        except SettingsError as error:
            for problem in error.problems:
                _complain(str(problem))
            raise typer.Exit(MISUSED) from None
        except BrokenPipeError:
            # Whoever read our output has had enough. Nothing may be written to it again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(PIPE_CLOSED) from None
        except OSError as error:
            _complain(": ".join(str(part) for part in (error.filename, error.strerror) if part))
            raise typer.Exit(FAILED) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        return result


def _with_advice(error: Exception) -> str:
    for kind, advice in _ADVICE.items():
        if isinstance(error, kind):
            return f"{error}; {advice}"
    return str(error)


def _complain(message: str) -> None:
    print(f"mooncake-node: {' '.join(message.split())}", file=sys.stderr)
