"""A stop writes what was promised, a restart serves it, and what was removed stays away."""

import signal
from collections.abc import Callable
from pathlib import Path

from mooncake_client import Client
from tests.support import NodeProcess, digest, pattern

MIB = 1 << 20
MakeNode = Callable[..., NodeProcess]


def put(client: Client, prefix: str, count: int, nbytes: int) -> dict[str, str]:
    wanted = {}
    for number in range(count):
        data = pattern(f"{prefix}{number}", nbytes)
        client.put(f"{prefix}{number}", data, softpin=True)
        wanted[f"{prefix}{number}"] = digest(data)
    return wanted


def test_what_is_pinned_survives_a_stop_with_its_contract_and_generation(make_node: MakeNode, tmp_path: Path) -> None:
    node = make_node("--offload-dir", str(tmp_path / "tier"))
    with node.client() as client:
        wanted = put(client, "large ", 80, MIB) | put(client, "small ", 500, 300)
        client.put("timed", b"timed", softpin=True, softpin_ttl=3600)
        client.put("plain", b"not promised")
        generations = {info.key: info.generation for info in client.list()}
        held = client.get("large 0")
        assert node.stop(signal.SIGTERM) == 0
        assert digest(held) == wanted["large 0"]
        del held
    node.start()
    with node.client() as client:
        assert {info.key for info in client.list()} == {*wanted, "timed"}
        assert all(info.softpin and generations[info.key] == info.generation for info in client.list())
        deadline = client.info("timed").softpin_deadline_s
        assert deadline is not None
        assert 0 < deadline < 3600
        assert all(digest(client.get(key)) == right for key, right in wanted.items())
        assert client.put("new", b"").generation > max(generations.values())


def test_after_a_kill_what_was_on_disk_is_there_and_what_was_removed_is_not(
    make_node: MakeNode, tmp_path: Path
) -> None:
    node = make_node("--offload-dir", str(tmp_path / "tier"))
    with node.client() as client:
        wanted = put(client, "k", 120, MIB)
        on_disk = [info.key for info in client.list() if info.state == "on_disk"]
        removed, replaced, *kept = on_disk
        assert client.remove(removed)
        client.upsert(replaced, b"newer")
        gone = put(client, "gone", 10, MIB)
        client.remove_prefix("gone")
        node.kill()
    node.start()
    with node.client() as client:
        assert not client.exists(removed)
        # Its newer life was in memory alone; its older one must not come back.
        assert not client.exists(replaced)
        assert not any(client.exists_many(gone))
        assert all(digest(client.get(key)) == wanted[key] for key in kept)
        assert client.remove_all() > 0
        node.kill()
    node.start()
    with node.client() as client:
        assert client.stats()["objects"] == 0


def test_a_stop_names_what_it_could_not_save(make_node: MakeNode, tmp_path: Path) -> None:
    node = make_node("--offload-dir", str(tmp_path / "tier"), "--set", "offload_max_bytes=10MiB")
    with node.client() as client:
        put(client, "k", 30, MIB)
        assert node.stop(signal.SIGTERM) == 0
    assert "pinned_objects_lost" in node.read_log()
    node.start()
    with node.client() as client:
        assert 1 <= client.stats()["objects"] < 30


def test_a_directory_in_use_is_refused_with_its_user(make_node: MakeNode, tmp_path: Path) -> None:
    make_node("--offload-dir", str(tmp_path / "tier"))
    second = make_node("--offload-dir", str(tmp_path / "tier"), start=False)
    assert second.spawn().wait(timeout=60) == 1
    second.process = None
    assert "uses this offload directory" in second.read_log()


def test_a_pin_changed_while_its_object_is_on_disk_is_changed_there(make_node: MakeNode, tmp_path: Path) -> None:
    node = make_node("--offload-dir", str(tmp_path / "tier"))
    with node.client() as client:
        put(client, "k", 80, MIB)
        ended, timed, *_ = [info.key for info in client.list() if info.state == "on_disk"]
        client.unpin(ended)
        client.pin(timed, ttl=3000)
        node.kill()
    node.start()
    with node.client() as client:
        assert not client.info(ended).softpin
        deadline_s = client.info(timed).softpin_deadline_s
        assert deadline_s is not None
        assert 0 < deadline_s <= 3000
