"""serve: settings from the command line, and how a start that cannot be ends."""

import subprocess
import sys
from types import ModuleType

import pytest
import structlog
from typer.testing import CliRunner

import mooncake_node
from mooncake_node.cli.app import app


@pytest.fixture
def node(monkeypatch):
    """A node that stops at once; records the settings it was run with."""
    fake = ModuleType("mooncake_node.node")
    fake.started = []
    fake.code = 0

    def run(settings):
        fake.started.append(settings)
        return fake.code

    fake.run = run
    monkeypatch.setitem(sys.modules, "mooncake_node.node", fake)
    monkeypatch.setattr(mooncake_node, "node", fake, raising=False)
    monkeypatch.delitem(sys.modules, "mooncake_node.cli.daemon", raising=False)
    yield fake
    sys.modules.pop("mooncake_node.cli.daemon", None)
    structlog.reset_defaults()


def serve(*args, env=None):
    result = CliRunner().invoke(app, ["serve", *map(str, args)], env=env)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stderr


def test_flags_and_set_become_settings(node):
    code, err = serve(
        "--name=n1", "--socket=/s/n.sock", "--admin-socket=/s/a.sock", "--pool-size", "64MiB",
        "--faults", "--log-level=error", "--log-format=json", "--set", "clients_max=5",
        "--set", "start_wait=500ms",
    )  # fmt: skip
    assert (code, err) == (0, "")
    (settings,) = node.started
    assert (settings.name, settings.pool_size, settings.faults) == ("n1", 64 << 20, True)
    assert str(settings.socket) == "/s/n.sock"
    assert str(settings.admin_socket) == "/s/a.sock"
    assert (settings.log_level, settings.log_format) == ("error", "json")
    assert (settings.clients_max, settings.start_wait) == (5, 0.5)


def test_flag_that_is_not_given_leaves_the_file_and_environment_in_force(node, tmp_path):
    (tmp_path / "c.toml").write_text('faults = true\nname = "file"\nlog_level = "error"\n')
    serve("--config", tmp_path / "c.toml", env={"MOONCAKE_NODE_NAME": "env"})
    (settings,) = node.started
    assert (settings.faults, settings.name) == (True, "env")


def test_exit_code_is_the_nodes(node):
    node.code = 1
    assert serve("--log-level=error")[0] == 1


def test_every_wrong_setting_is_a_line_and_nothing_starts(node):
    code, err = serve("--pool-size", "1", "--set", "clients_max=0", "--set", "pool=3")
    assert code == 2
    assert err.splitlines() == [
        "mooncake-node: flag --pool-size: pool_size = '1' is below the minimum of 2 MiB",
        "mooncake-node: flag --set clients_max: clients_max = '0' is below the minimum of 1",
        "mooncake-node: flag --set pool: pool = '3' names no setting; did you mean pool_size?",
    ]
    assert node.started == []


@pytest.mark.parametrize(
    "args",
    [
        ("--set", "clients_max"),
        ("--set", "name=a", "--name", "b"),
        ("--set", "clients_max=1", "--set", "clients_max=2"),
        ("--directory", "http://h"),
        ("stray",),
    ],
)
def test_wrong_usage_ends_in_2(node, args):
    assert serve(*args)[0] == 2
    assert node.started == []


def test_unknown_variable_is_logged_and_does_not_stop_the_start(node):
    code, err = serve("--log-format=json", env={"MOONCAKE_NODE_POOLSIZE": "1"})
    assert code == 0
    assert '"event":"variable_ignored"' in err
    assert "did you mean MOONCAKE_NODE_POOL_SIZE?" in err
    assert len(node.started) == 1


def test_optimised_python_is_refused():
    done = subprocess.run(
        [sys.executable, "-O", "-m", "mooncake_node", "serve"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("mooncake-node: python -O strips the checks")
    assert done.stderr.count("\n") == 1
