"""What an import brings with it, seen in a fresh interpreter."""

import subprocess
import sys

import pytest

HEAVY = ("numpy", "torch", "safetensors")


def loaded_by(statement: str) -> set[str]:
    """Names of all modules that are there after *statement*."""
    done = subprocess.run(
        [sys.executable, "-c", f"{statement}; import sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_the_client_brings_neither_arrays_nor_the_daemon():
    """A data loader that stores bytes pays for nothing else; numpy and torch come when the caller hands one in."""
    loaded = loaded_by("import mooncake_client")
    unwanted = {*HEAVY, "uvloop", "structlog", "posix_ipc", "sortedcontainers", "typer", "rich"}
    assert not loaded & unwanted
    assert not [name for name in loaded if name.split(".")[0] == "mooncake_node"]


@pytest.mark.parametrize("module", ["mooncake_node.cli", "mooncake_node.core.master"])
def test_a_command_starts_without_what_only_the_daemon_or_the_demo_need(module):
    assert not loaded_by(f"import {module}") & {*HEAVY, "uvloop", "structlog", "posix_ipc"}
