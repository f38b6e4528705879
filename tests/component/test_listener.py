"""One socket, one daemon: what is there already is taken over, refused or left alone, each for a reason."""

import signal
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from mooncake_client import DaemonGoneError
from mooncake_node.server.listener import Listener, ListenError
from tests.support import NodeProcess


def test_second_daemon_on_a_socket_is_refused_and_the_first_serves_on(make_node: Callable[..., NodeProcess]) -> None:
    first = make_node()
    with first.client() as client:
        client.put("k", b"x")
        second = make_node(start=False)
        second.flags[second.flags.index("--socket") + 1] = first.socket
        assert second.spawn().wait(timeout=60) == 1
        assert "another daemon serves" in second.read_log()
        assert "--socket" in second.read_log()
        assert client.get("k") == b"x"
        client.remove("k")
    with first.client() as client:
        assert client.stats()["objects"] == 0


def test_socket_of_a_killed_daemon_is_taken_over(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node()
    node.kill()
    assert Path(node.socket).exists()
    with pytest.raises(DaemonGoneError):
        node.client()
    node.start()
    node.client().close()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_stopped_daemon_leaves_no_file(make_node: Callable[..., NodeProcess], signum: int) -> None:
    node = make_node()
    assert node.stop(signum) == 0
    assert [path.name for path in node.directory.iterdir()] == ["log"]


def test_foreign_file_in_the_place_of_the_socket_is_left_alone(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node(start=False)
    for name in ("node.sock", "node.admin.sock"):
        path = node.directory / name
        path.write_text("precious")
        assert node.spawn().wait(timeout=60) == 1
        assert "not a socket" in node.read_log()
        assert name in node.read_log()
        assert path.read_text() == "precious"
        path.unlink()
    node.start()


def test_socket_of_another_program_is_left_alone(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node(start=False)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(node.socket)
        other.listen()
        assert node.spawn().wait(timeout=60) == 1
        assert "another program listens" in node.read_log()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.connect(node.socket)


def test_two_daemons_side_by_side_share_nothing(make_node: Callable[..., NodeProcess]) -> None:
    one, two = make_node(), make_node()
    with one.client() as a, two.client() as b:
        a.put("k", b"a")
        assert b.exists("k") is False
        b.put("k", b"b")
        one.kill()
        assert b.get("k") == b"b"
        one.start()
        assert a.exists("k") is False
        assert b.get("k") == b"b"


def test_modes_of_the_files(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node("--set", "socket_mode=0600")
    other = make_node()

    def mode(path: str) -> int:
        return stat.S_IMODE(Path(path).stat().st_mode)

    assert mode(node.socket) == 0o600
    assert mode(other.socket) == 0o660
    for path in (node.socket, other.socket):
        assert mode(path.replace("node.sock", "node.admin.sock")) == 0o600


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "made" / "on" / "the way" / "s.sock"


def test_listener_makes_the_directory_and_leaves_nothing_else(path: Path) -> None:
    listener = Listener(path)
    listener.bind(0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    listener.close()
    listener.close()
    assert list(path.parent.iterdir()) == []


def test_path_is_locked_before_it_is_bound(path: Path) -> None:
    first = Listener(path)
    with pytest.raises(ListenError, match="another daemon"):
        Listener(path)
    first.close()
    second = Listener(path)
    second.bind(0o600)
    second.close()


def test_link_in_the_place_of_the_socket_is_left_alone(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.symlink_to(path.parent / "elsewhere")
    listener = Listener(path)
    with pytest.raises(ListenError, match="not a socket"):
        listener.bind(0o600)
    listener.close()
    assert path.is_symlink()


def test_path_that_cannot_be_used_is_an_error_that_says_why(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(ListenError, match="directory"):
        Listener(blocked / "s.sock")
    long = Listener(tmp_path / ("x" * 120))
    with pytest.raises(ListenError, match="too long"):
        long.bind(0o600)
    long.close()
