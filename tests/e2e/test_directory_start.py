"""Starts that the directory does not let be, nodes without a common secret, and the end of a node in a cluster."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mooncake_client import Client, NotFoundError, ObjectLostError
from tests.support import NodeProcess, eventually, pattern
from tests.support.cluster import Cluster
from tests.support.valkey import ValkeyServer, free_port

MakeNode = Callable[..., NodeProcess]
NEAR = ("--set", "node_ttl=1s")


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[ValkeyServer]:
    server = ValkeyServer(tmp_path / "valkey", password="sesame")
    yield server
    server.stop()


def refused(node: NodeProcess) -> str:
    """What the node says, which does not come up."""
    process = node.spawn()
    assert process.wait(timeout=60) == 1, node.read_log()
    node.process = None
    return node.read_log()


def members(node: NodeProcess) -> set[str]:
    with node.client() as client:
        return set(client.stats()["cluster"]["nodes"])


# -- what keeps a node from starting -----------------------------------------------------------------------------------


def test_without_a_directory_a_start_waits_as_long_as_it_may_and_then_says_so(make_node: MakeNode) -> None:
    port = free_port()
    url = f"valkey://user:sesame@127.0.0.1:{port}/0"
    log = refused(make_node("--directory", url, "--set", "start_wait=1s", start=False))
    assert "directory_awaited" in log
    assert f"directory: the directory at 127.0.0.1:{port} cannot be reached" in log
    assert "sesame" not in log


def test_a_node_comes_up_with_a_directory_that_comes_up_after_it(make_node: MakeNode, tmp_path: Path) -> None:
    valkey = ValkeyServer(tmp_path / "valkey")
    valkey.kill()
    node = make_node("--directory", valkey.url, "--offload-dir", str(tmp_path / "tier"), start=False)
    try:
        process = node.spawn()
        eventually(lambda: "directory_awaited" in node.read_log(), "it to wait")
        valkey.start()

        def serves() -> bool:
            assert process.poll() is None, node.read_log()
            with contextlib.suppress(ConnectionError, TimeoutError):
                return node.client(timeout=5).put("k", b"1").scope == "cluster"
            return False

        eventually(serves, "it to serve")
        node.stop()
    finally:
        valkey.stop()


def test_a_wrong_password_is_said_at_once_and_shown_nowhere(make_node: MakeNode, valkey: ValkeyServer) -> None:
    url = f"valkey://:open-barley@{valkey.place}/0"
    log = refused(make_node("--directory", url, "--set", "start_wait=300s", start=False))
    assert f"the directory at {valkey.place} refuses this user or password" in log
    assert "barley" not in log
    assert "Traceback" not in log


def test_the_right_password_is_shown_nowhere_either(make_node: MakeNode, valkey: ValkeyServer) -> None:
    node = make_node("--directory", valkey.url, "--log-level", "debug")
    with node.client() as client:
        client.put("k", b"1")
        valkey.pause()
        eventually(lambda: client.stats()["directory"]["state"] == "away", "it to be away")
        assert "sesame" not in str(client.stats())
        valkey.resume()
    command = [sys.executable, "-m", "mooncake_node", "stats", "--socket", node.socket, "--json"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert '"directory"' in shown
    assert "sesame" not in shown + node.read_log()


def test_two_nodes_of_one_name_are_not_let_be(make_node: MakeNode, valkey: ValkeyServer) -> None:
    flags = ("--name", "twin", "--directory", valkey.url, *NEAR)
    first = make_node(*flags)
    log = refused(make_node(*flags, start=False))
    assert "a node named 'twin' lives already, at 127.0.0.1:" in log
    with first.client() as client:
        assert client.put("k", b"1").scope == "cluster"
        assert client.stats()["directory"]["lives"] == 1


def test_a_node_comes_up_right_after_it_was_killed(make_node: MakeNode, valkey: ValkeyServer) -> None:
    node = make_node("--name", "n1", "--directory", valkey.url, "--set", "node_ttl=2s")
    for _ in range(2):
        with node.client() as client:
            client.put("k", b"1")
        node.kill()
        node.start()
        with node.client() as client:
            assert client.exists("k") is False
            assert client.put("k", b"2").scope == "cluster"
            assert client.remove("k") is True


# -- secrets -----------------------------------------------------------------------------------------------------------


def secret(path: Path, text: str) -> tuple[str, str]:
    path.write_text(text)
    path.chmod(0o600)
    return "--set", f"cluster_secret_file={path}"


def test_without_a_secret_nobody_listens_to_the_world(make_node: MakeNode, valkey: ValkeyServer) -> None:
    flags = ("--directory", valkey.url, "--listen", f"0.0.0.0:{free_port()}")
    log = refused(make_node(*flags, start=False))
    assert "without a cluster secret" in log
    assert "Traceback" not in log


@pytest.mark.parametrize("other", ["another secret of some length", ""])
def test_nodes_with_different_secrets_exchange_nothing_and_say_so(
    make_node: MakeNode, valkey: ValkeyServer, tmp_path: Path, other: str
) -> None:
    one = make_node(
        "--name", "n1", "--directory", valkey.url, *NEAR, *secret(tmp_path / "s1", "a secret of some length")
    )
    theirs = secret(tmp_path / "s2", other) if other else ()
    two = make_node("--name", "n2", "--directory", valkey.url, *NEAR, *theirs)
    eventually(lambda: members(one) == members(two) == {"n1", "n2"}, "both to know each other")
    with one.client(timeout=50) as client, two.client(timeout=50) as stranger:
        client.put("k", b"secret")
        with pytest.raises(Exception, match="n1") as caught:
            stranger.get("k")
        assert "secret" in str(caught.value), caught.value
        assert [info.key for info in stranger.list()] == []
        assert stranger.stats()["load"]["local_copies"] == 0
        with pytest.raises(Exception, match="n1"):
            stranger.pin("k")
        # What both know of goes on, each for itself.
        assert stranger.put("own", b"1").scope == "cluster"
        assert client.get("k") == b"secret"
    assert "a secret of some length" not in one.read_log() + two.read_log()
    assert "refused" in one.read_log() + two.read_log()


# -- the end -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    tier = {1: ["--offload-dir", str(tmp_path / "tier")]}
    with Cluster(tmp_path, "--faults", *NEAR, count=2, own_flags=tier) as cluster:
        yield cluster


def put_some(client: Client) -> None:
    client.put_many({f"pinned/{i}": pattern(i, 100_000) for i in range(20)}, softpin=True)
    client.put("plain", b"plain")
    client.put("alone", b"alone", softpin=True, scope="node")


@pytest.mark.parametrize("state", ["up", "paused", "killed"])
def test_a_stop_saves_what_is_pinned_and_takes_leave(cluster: Cluster, state: str) -> None:
    with cluster.client(2) as two:
        with cluster.client(1) as one:
            put_some(one)
        if state == "paused":
            cluster.valkey.pause()
        elif state == "killed":
            cluster.valkey.kill()
        assert cluster.nodes[1].stop(signal.SIGTERM) == 0
        assert "pinned_objects_saved" in cluster.nodes[1].read_log()
        if state == "paused":
            cluster.valkey.resume()
        elif state == "killed":
            cluster.valkey.start()
        cluster.await_members(2)
        eventually(lambda: cluster.stats(2)["directory"]["state"] == "up", "the directory to be back")
        assert {holding.node for _, holding in cluster.claims()} <= {"n2"}
        if state != "killed":
            with pytest.raises(ObjectLostError):
                two.get("pinned/0")
        with pytest.raises(NotFoundError):
            two.get("plain")
        cluster.start(1)
        cluster.await_members()
        with cluster.client(1) as one:
            assert one.get("alone") == b"alone"
            if state == "killed":
                # The directory does not know any more whether they were removed meanwhile: they are left unclaimed.
                assert "objects_unclaimed" in cluster.nodes[1].read_log()
                assert one.exists("pinned/0") is False
            else:
                assert all(two.get(f"pinned/{i}") == pattern(i, 100_000) for i in range(20))
        cluster.agree()


def test_what_was_changed_while_a_node_was_down_is_not_undone_by_what_it_has_on_disk(cluster: Cluster) -> None:
    with cluster.client(1) as one, cluster.client(2) as two:
        put_some(one)
        assert two.get("pinned/3") == pattern(3, 100_000)
        cluster.nodes[1].stop(signal.SIGTERM)
        cluster.await_members(2)
        two.remove("pinned/1")
        assert two.put("pinned/2", b"theirs").scope == "cluster"
        eventually(lambda: cluster.held_by("pinned/3") == {"n2": True}, "the copy to be inherited")
        cluster.start(1)
        cluster.await_members()
        cluster.agree()
        assert one.exists("pinned/1") is False
        assert one.get("pinned/2") == b"theirs"
        assert one.get("pinned/3") == pattern(3, 100_000)
        assert two.get("pinned/4") == pattern(4, 100_000)
        assert one.info("pinned/4").softpin is True
        assert one.get("alone") == b"alone"
        # All of it, also what is on disk alone.
        cluster.nodes[1].stop(signal.SIGTERM)
        cluster.await_members(2)
        two.remove_all()
        cluster.start(1)
        cluster.await_members()
        assert [info.key for info in one.list()] == ["alone"]
        cluster.agree()


def test_after_a_kill_a_node_adopts_what_is_its_own_still(tmp_path: Path) -> None:
    tier = {1: ["--offload-dir", str(tmp_path / "tier")]}
    pools = {1: "16MiB"}
    cluster = Cluster(tmp_path, "--faults", *NEAR, count=2, own_flags=tier, own_pool_size=pools)
    with cluster, cluster.client(1) as one, cluster.client(2) as two:
        for i in range(40):
            one.put(f"k{i}", pattern(i, 1 << 20), softpin=True, scope="node" if i % 10 == 0 else None)
        on_disk = [info.key for info in one.list() if info.state == "on_disk"]
        shared = [key for key in on_disk if int(key[1:]) % 10]
        alone = [key for key in on_disk if int(key[1:]) % 10 == 0]
        assert len(shared) > 5
        assert alone
        cluster.kill(1)
        cluster.await_members(2)
        removed, taken, *kept = shared
        two.remove(removed)
        two.put(taken, b"theirs")
        cluster.start(1)
        cluster.await_members()
        cluster.agree()
        assert one.exists(removed) is False
        assert one.get(taken) == b"theirs"
        for key in kept:
            assert two.get(key) == pattern(int(key[1:]), 1 << 20)
        for key in alone:
            assert one.get(key) == pattern(int(key[1:]), 1 << 20)
            assert two.exists(key) is False
