"""What is shipped beside the code: the unit file."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mooncake_node.settings import Settings, parse_seconds

UNIT = Path(__file__).parents[2] / "deploy" / "mooncake-node.service"


def value(name):
    (found,) = re.findall(rf"(?m)^{name}=(.*)$", UNIT.read_text())
    return found


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="UNIT FILE NOT VERIFIED: systemd-analyze is not installed",
)
def test_systemd_finds_nothing_to_say_about_the_unit(tmp_path):
    here = Path(sys.executable).with_name("mooncake-node")
    text, count = re.subn(r"(?m)^ExecStart=\S+", f"ExecStart={here}", UNIT.read_text())
    assert count == 1
    copy = tmp_path / UNIT.name
    copy.write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_manager_waits_longer_for_a_stop_than_the_daemon_takes():
    assert parse_seconds(value("TimeoutStopSec")) > Settings().stop_timeout


def test_install_note_names_this_unit_and_its_configuration():
    text = UNIT.read_text()
    assert f"deploy/{UNIT.name}" in text
    assert value("ExecStart").endswith(" serve --config /etc/mooncake-node/node.toml")
    assert "/etc/mooncake-node/node.toml" in text.split("[Unit]")[0]
