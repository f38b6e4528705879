"""The command line against a real daemon: what is printed, what is left, which exit code."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import NodeProcess


@pytest.fixture
def cli(node: NodeProcess):
    """Run `mooncake-node` on the node's socket: exit code, stdout, stderr."""

    def run(*args: str, stdin: bytes = b"") -> tuple[int, bytes, str]:
        done = subprocess.run(
            [sys.executable, "-m", "mooncake_node", *args],
            input=stdin,
            capture_output=True,
            env={**os.environ, "MOONCAKE_NODE_SOCKET": node.socket},
            timeout=90,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr.decode()

    return run


def test_a_file_goes_in_is_listed_comes_out_and_is_removed(cli, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(os.urandom(3_000_001))
    assert cli("put", "a/1", str(source)) == (0, b"", "")
    code, _, err = cli("put", "a/1", str(source))
    assert code == 1
    assert "exists" in err
    assert cli("put", "a/2", "-", stdin=b"from stdin")[0] == 0
    assert cli("get", "a/2", "-") == (0, b"from stdin", "")
    assert cli("get", "a/1", str(target))[0] == 0
    assert target.read_bytes() == source.read_bytes()
    code, out, _ = cli("ls", "a/", "--json")
    assert code == 0
    listed = {line["key"]: line["nbytes"] for line in map(json.loads, out.splitlines())}
    assert listed == {"a/1": 3_000_001, "a/2": 10}
    assert cli("rm", "a/1", "a/2")[0] == 0
    code, _, err = cli("rm", "a/1")
    assert code == 1
    assert "a/1" in err


def test_a_failed_get_leaves_no_file(cli, tmp_path: Path) -> None:
    code, _, err = cli("get", "nothing", str(tmp_path / "target"))
    assert code == 1
    assert "no such object" in err
    assert list(tmp_path.glob("target*")) == []


def test_stats_and_holders_show_who_reads(cli, node: NodeProcess, make_worker) -> None:
    worker = make_worker(node, client_args="name='reader-7'")
    worker.run("c.put('k', bytes(5000)); view = c.get('k')")
    code, out, _ = cli("holders", "k", "--json")
    assert code == 0
    assert b"reader-7" in out
    assert str(worker.pid).encode() in out
    code, out, _ = cli("stats", "--json")
    stats = json.loads(out)
    assert (code, stats["objects"], stats["handles"]) == (0, 1, 1)
    code, out, _ = cli("stats")
    assert code == 0
    assert b"handles" in out


def test_a_fault_is_armed_in_the_daemon_and_acts(cli, node: NodeProcess) -> None:
    assert b"NodeBeforePutEnd" in cli("fault", "list")[1]
    assert cli("fault", "inject", "NodeBeforePutEnd", "return_error", "--", "-800")[0] == 0
    code, _, err = cli("put", "k", "-", stdin=b"x")
    assert code == 1
    assert "-800" in err
    assert cli("fault", "reset")[0] == 0
    assert cli("put", "k", "-", stdin=b"x")[0] == 0
    code, _, err = cli("fault", "inject", "NoSuchPoint", "sleep", "1")
    assert code == 1
    assert "NoSuchPoint" in err


def test_faults_cannot_be_armed_in_a_daemon_without_them(make_node, cli) -> None:
    node = make_node()
    code, _, err = cli("fault", "inject", "NodeBeforePutEnd", "sleep", "1", "--socket", node.socket)
    assert code == 1
    assert "--faults" in err


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_daemon_in_order(make_node, signum: int) -> None:
    node = make_node()
    with node.client() as client:
        client.put("k", b"x")
        assert node.stop(signum) == 0
    assert not Path(node.socket).exists()
    assert sorted(path.name for path in node.directory.iterdir()) == ["log"]


def test_a_second_daemon_on_the_same_socket_is_refused_and_disturbs_nothing(make_node, cli) -> None:
    node = make_node()
    with node.client() as client:
        client.put("k", b"still here")
        code, _, err = cli("serve", "--socket", node.socket, "--pool-size", "16MiB")
        assert code == 1
        assert f"another daemon serves {node.socket}" in err
        assert bytes(client.get("k")) == b"still here"


def test_settings_that_are_wrong_are_all_named_at_once(cli, tmp_path: Path) -> None:
    config = tmp_path / "bad.toml"
    config.write_text('pool_siz = "1GiB"\nname = 3\n')
    code, _, err = cli("serve", "--config", str(config))
    assert code == 2
    assert "pool_size?" in err
    assert "name = 3" in err


def test_without_a_daemon_the_message_says_what_to_do(make_node, cli, tmp_path: Path) -> None:
    code, _, err = cli("stats", "--socket", str(tmp_path / "none.sock"))
    assert code == 1
    assert "mooncake-node serve" in err
    assert "Traceback" not in err
