"""The README's five minutes, as a reader would paste them."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import eventually
from tests.tidy.source import ROOT

HANG_LIMIT_S = 100
PLACE = "/tmp/mooncake-readme"


@pytest.fixture
def place() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="r"))
    yield place
    shutil.rmtree(place)


def block(terminal: int, place: Path) -> str:
    """The commands for one terminal, with our own directory in the place of the README's."""
    text = (ROOT / "README.md").read_text()
    found = re.search(rf"Terminal {terminal}, .*?```sh\n(.*?)```", text, re.DOTALL)
    assert found is not None
    assert PLACE in found[1]
    assert ".venv/bin/" in found[1]
    return found[1].replace(PLACE, str(place)).replace(".venv/bin/", f"{Path(sys.executable).parent}/")


def test_two_terminals_share_a_tensor(place: Path):
    log = place / "log"
    with (
        log.open("w") as out,
        subprocess.Popen(
            ["bash", "-euc", block(1, place)], stdout=out, stderr=out, cwd=ROOT, start_new_session=True
        ) as node,
    ):
        try:
            eventually(lambda: "node_started" in log.read_text(), "the node to serve")
            done = subprocess.run(
                ["bash", "-euc", block(2, place)],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=HANG_LIMIT_S,
                check=False,
            )
        finally:
            os.killpg(node.pid, signal.SIGINT)
            node.wait(HANG_LIMIT_S)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("PutInfo(generation=")
    assert lines[2].endswith("weights/0")
    assert lines[3] == "(1000000,) float32 999999.0 writable: False"
    assert "client='reader'" in lines[4]
    assert lines[5] == "False 999999.0"
    assert sorted(path.name for path in place.iterdir()) == ["log"]
