"""What is true of keys over nodes: who wins a put, who is woken, what is listed, pinned, removed and kept apart."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mooncake_client import Client, ExistsError, NotFoundError, PutInfo, StoreError, StoreTimeoutError
from tests.support import digest, eventually, pattern
from tests.support.cluster import Cluster, lent, outcome


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("sharing"), "--faults") as cluster:
        yield cluster


@pytest.fixture
def cluster(nodes: Cluster) -> Iterator[Cluster]:
    with lent(nodes):
        yield nodes


# -- remove_all (rule 6) -----------------------------------------------------------------------------------------------


def test_remove_all_takes_everything_put_or_begun_before_on_every_node(cluster: Cluster) -> None:
    with cluster.client(1) as c1, cluster.client(2) as c2:
        c1.put_from("on 1", pattern(1, 100_000))
        c2.put_from("on 2", pattern(2, 100_000))
        c1.put_from("apart", b"x", scope="node")
        kept = [c2.get_buffer("on 1"), c1.get_buffer("on 2"), c1.get_buffer("on 1")]
        rooms = [c1.create("room 1", 5000), c2.create("room 2", 5000)]
        # A put and a copy are held up on their way.
        c1.put_from("copied", pattern(3, 100_000))
        cluster.sleep_at(2, "ClientLocalCopyBeforePutEnd", 0.7)
        copy = cluster.begin(2, lambda client: bytes(client.get_buffer("copied").view))
        cluster.await_fired(2, "ClientLocalCopyBeforePutEnd")
        cluster.sleep_at(2, "NodeAfterDirectoryCreate", 0.7)
        put = cluster.begin(2, lambda client: client.put_from("just put", bytes(5000)))
        cluster.await_fired(2, "NodeAfterDirectoryCreate")
        assert c2.remove_all() >= 3
        keys = ["on 1", "on 2", "apart", "room 1", "room 2", "copied", "just put"]
        for client in (c1, c2):
            assert client.exists_many(keys) == [False] * len(keys)
            assert list(client.list()) == []
        for room in rooms:
            with pytest.raises(NotFoundError):
                room.publish()
        assert isinstance(outcome(copy), bytes | NotFoundError)
        assert isinstance(outcome(put), PutInfo | NotFoundError)
        for client in (c1, c2):
            assert client.exists_many(keys) == [False] * len(keys)
        assert [digest(h.view) for h in kept] == [digest(pattern(i, 100_000)) for i in (1, 2, 1)]
        # What is put from now on stays, under the same keys too.
        c2.put_from("on 1", b"new")
        assert bytes(c1.get("on 1")) == b"new"
        for handle in kept:
            handle.release()


@pytest.mark.parametrize("point", ["ClientLocalCopyAfterPutStart", "ClientLocalCopyAfterGetReplicaList"])
def test_after_remove_all_a_copy_under_way_is_given_up_and_the_key_can_be_used(cluster: Cluster, point: str) -> None:
    with cluster.client(1) as c1:
        c1.put_from("k", pattern("old", 100_000))
        cluster.sleep_at(2, point, 0.5)
        copy = cluster.begin(2, lambda client: bytes(client.get_buffer("k").view))
        cluster.await_fired(2, point)
        c1.remove_all()
        assert isinstance(outcome(copy), NotFoundError)
        c1.put_from("k", pattern("new", 100_000))
    with cluster.client(2) as c2:
        assert bytes(c2.get("k")) == pattern("new", 100_000)


# -- put if absent -----------------------------------------------------------------------------------------------------


def test_of_two_nodes_that_put_a_key_at_once_exactly_one_succeeds(cluster: Cluster) -> None:
    keys = [f"k{i}" for i in range(400)]
    data = {1: pattern("from 1", 300), 2: pattern("from 2", 300)}

    def put_all(client: Client, number: int, order: list[str]) -> dict[str, PutInfo | StoreError]:
        batches = [dict.fromkeys(order[i : i + 7], data[number]) for i in range(0, len(order), 7)]
        return {key: info for batch in batches for key, info in client.put_many(batch).items()}

    first = cluster.begin(1, lambda client: put_all(client, 1, keys))
    second = cluster.begin(2, lambda client: put_all(client, 2, keys[::-1]))
    results = {1: outcome(first), 2: outcome(second)}
    with cluster.client(1) as c1, cluster.client(2) as c2:
        for key in keys:
            won = [number for number in (1, 2) if isinstance(results[number][key], PutInfo)]
            assert len(won) == 1, (key, results[1][key], results[2][key])
            assert isinstance(results[3 - won[0]][key], ExistsError)
            assert bytes(c1.get(key)) == bytes(c2.get(key)) == data[won[0]]
            assert c1.info(key).generation == c2.info(key).generation == results[won[0]][key].generation


def test_a_put_of_a_key_that_lives_elsewhere_is_refused_until_it_is_removed(cluster: Cluster) -> None:
    with cluster.client(1) as c1, cluster.client(2) as c2:
        first = c1.put_from("k", b"one")
        with pytest.raises(ExistsError, match="n1"):
            c2.put_from("k", b"two")
        with pytest.raises(ExistsError), c2.create("k", 5) as room:
            room.publish()
        assert c2.remove("k")
        second = c2.put_from("k", b"two")
        assert second.generation > first.generation
        assert c2.remove("k", generation=first.generation) is False
        assert bytes(c1.get("k")) == b"two"
        assert c1.remove("k", generation=second.generation) is True


# -- wait --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("putter", [1, 2])
def test_who_waits_is_woken_by_a_put_on_either_node(cluster: Cluster, putter: int) -> None:
    waits = [cluster.begin(number, lambda client: client.wait("k", timeout=60)) for number in (1, 1, 2, 2)]
    with cluster.client(putter) as client:
        # None of them can be done before.
        assert not any(wait.done() for wait in waits)
        client.put_from("k", b"x")
    assert [outcome(wait) for wait in waits] == [None] * 4


def test_waiting_again_and_again_for_what_is_elsewhere_or_comes_back(cluster: Cluster) -> None:
    """Each wait is answered by itself, however short a time after the one before."""
    with cluster.client(1) as c1, cluster.client(2) as c2:
        for _ in range(20):
            first = cluster.begin(2, lambda client: client.wait("k", timeout=30))
            c1.put_from("k", b"x")
            assert outcome(first) is None
            c2.wait("k", timeout=30)
            c2.wait("k", timeout=30)
            assert c1.remove("k")
            with pytest.raises(StoreTimeoutError):
                c2.wait("k", timeout=0.02)


# -- looks -------------------------------------------------------------------------------------------------------------


def test_looks_are_the_same_from_every_node_and_copy_nothing(cluster: Cluster) -> None:
    with cluster.client(1) as c1, cluster.client(2) as c2:
        for i in range(30):
            (c1, c2)[i % 2].put_from(f"a/{i}" if i < 20 else f"b/{i}", bytes(i))
        c1.get("a/1")
        c2.get("a/0")
        copies = [cluster.stats(number)["load"]["local_copies"] for number in (1, 2)]
        for client in (c1, c2):
            assert sorted(info.key for info in client.list("a/")) == sorted(f"a/{i}" for i in range(20))
            assert len(list(client.list())) == 30
            assert client.exists_many(["a/2", "a/3", "a/99"]) == [True, True, False]
            assert [client.size(f"b/{i}") for i in range(20, 30)] == list(range(20, 30))
            with pytest.raises(NotFoundError):
                client.info("a/99")
        for key in ("a/4", "a/5", "a/0"):
            assert c1.info(key).generation == c2.info(key).generation
        assert [cluster.stats(number)["load"]["local_copies"] for number in (1, 2)] == copies


def test_holders_of_all_nodes_are_named(cluster: Cluster) -> None:
    with cluster.client(1, name="one") as c1, cluster.client(2, name="two") as c2:
        c1.put_from("k", pattern("k", 5000))
        views = [c1.get_buffer("k"), c2.get_buffer("k"), c2.get_buffer("k")]
        for client in (c1, c2):
            found = {holder.client.partition(" ")[0]: holder.handles for holder in client.holders("k")}
            assert found == {"one": 1, "two": 2}
        assert c2.remove("k")
        assert [bytes(view.view) for view in views] == [pattern("k", 5000)] * 3
        assert sum(holder.handles for holder in c1.holders("k")) == 3
        assert [cluster.stats(number)["stash"]["objects"] for number in (1, 2)] == [1, 1]
        for view in views:
            view.release()


def test_a_pin_is_changed_at_the_owner_from_any_node(cluster: Cluster) -> None:
    with cluster.client(1) as c1, cluster.client(2) as c2:
        c1.put_from("k", pattern("k", 5000))
        c2.get("k")
        c2.pin("k")
        assert c1.info("k").softpin
        assert cluster.stats(1)["pinned"]["soft_bytes"] > 0
        # Not inherited by a copy.
        assert cluster.stats(2)["pinned"]["soft_bytes"] == 0
        eventually(
            lambda: [h.softpin for _, h in cluster.claims() if h.is_owner] == [True], "the directory to hear of it"
        )
        c2.unpin("k")
        assert not c1.info("k").softpin
        assert cluster.stats(1)["pinned"]["soft_bytes"] == 0
        with pytest.raises(NotFoundError):
            c2.pin("none")


def test_removes_of_many_and_of_a_prefix_reach_every_node(cluster: Cluster) -> None:
    with cluster.client(1) as c1, cluster.client(2) as c2:
        for i in range(40):
            (c1, c2)[i % 2].put_from(f"{'ab'[i // 20]}/{i}", bytes(100 + i))
        c1.get_many([f"a/{i}" for i in range(20)])
        assert c2.remove_prefix("a/") == 20
        assert list(c1.list("a/")) == []
        assert c1.exists_many([f"a/{i}" for i in range(20)]) == c2.exists_many([f"a/{i}" for i in range(20)])
        keys = [f"b/{i}" for i in range(20, 40)]
        assert c1.remove_many([*keys, "none"]) == [True] * 20 + [False]
        assert c2.exists_many(keys) == [False] * 20


def test_what_is_put_for_this_node_only_is_nowhere_else(cluster: Cluster) -> None:
    with cluster.client(1) as c1, cluster.client(2) as c2:
        for key in ("k", "p/1", "p/2"):
            assert c1.put_from(key, b"one", scope="node").scope == "node"
        c1.create("room", 2000, scope="node").publish()
        assert cluster.claims() == []
        assert c2.exists("k") is False
        assert list(c2.list()) == []
        for look in (c2.get, c2.info):
            with pytest.raises(NotFoundError):
                look("k")
        assert c2.put_from("k", b"two", scope="node").scope == "node"
        assert (bytes(c1.get("k")), bytes(c2.get("k"))) == (b"one", b"two")
        assert c2.remove("k", scope="node") is True
        assert bytes(c1.get("k")) == b"one"
        assert c2.remove_prefix("p/", scope="node") == 0
        assert c1.remove_prefix("p/", scope="node") == 2
        assert c1.remove("k") is True
        assert c1.exists("k") is False


def test_a_remove_on_this_node_only_takes_its_copy_and_leaves_the_others(cluster: Cluster) -> None:
    with cluster.client(1) as c1, cluster.client(2) as c2:
        c1.put_from("k", pattern("k", 5000))
        c2.get("k")
        assert c2.remove("k", scope="node") is True
        cluster.agree()
        assert cluster.held_by("k") == {"n1": True}
        assert bytes(c2.get("k")) == pattern("k", 5000)
        assert c2.remove_prefix("", scope="node") == 1
        assert bytes(c1.get("k")) == bytes(c2.get("k"))


def test_a_view_held_over_a_remote_remove_and_a_new_put_keeps_its_bytes(cluster: Cluster) -> None:
    with cluster.client(1) as c1, cluster.client(2) as c2:
        held = []
        for i in range(20):
            data = pattern(i, 50_000 + i)
            c1.upsert("k", data)
            held.append((data, c2.get("k")))
            (c1, c2)[i % 2].remove("k")
            c1.put_from(f"filler/{i}", bytes(50_000))
        for data, view in held:
            assert view == data
        assert cluster.stats(2)["stash"]["objects"] == 20
        del held, view


def test_a_node_that_has_just_come_is_no_stranger(tmp_path: Path) -> None:
    """What it puts is seen, protected and removed by nodes that ask the directory who lives every 20 s only."""
    with Cluster(tmp_path, env={"MOONCAKE_NODE_NODE_TTL": "60s"}, spawned=[1]) as cluster, cluster.client(1) as c1:
        cluster.start(2)
        assert set(cluster.stats(1)["cluster"]["nodes"]) == {"n1", "n2"}
        with cluster.client(2) as c2:
            c2.put_from("k", b"two")
            with pytest.raises(ExistsError):
                c1.put_from("k", b"one")
            assert bytes(c1.get("k")) == b"two"
            c1.put_from("mine", b"one")
            assert bytes(c2.get("mine")) == b"one"
            assert c1.remove("mine")
            assert c2.exists("mine") is False
            assert isinstance(c2.get_many(["mine"])[0], NotFoundError)
