"""Sources and receivers that die, stand still or are full while a large object is on its way."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mooncake_client import Client, NoSpaceError, StoreError
from tests.support import digest, eventually, pattern
from tests.support.cluster import MIB, Cluster, lent, outcome

LARGE = 96 * MIB
POOL = "128MiB"
WANTED = digest(pattern("k", LARGE))
LEASED = "ClientLocalCopyAfterGetReplicaList"
SHORT_LEASES = {"MOONCAKE_NODE_DEFAULT_KV_LEASE_TTL": "2s"}

lose = pytest.mark.parametrize("lose", [Cluster.kill, Cluster.stop], ids=["killed", "stopped"])
when = pytest.mark.parametrize("when", ["leased", "midway"])


def put(cluster: Cluster, number: int) -> None:
    with cluster.client(number) as client:
        client.put_from("k", pattern("k", LARGE))


def read(client: Client) -> str:
    with client.get_buffer("k", timeout=50) as handle:
        return digest(handle.view)


def received(cluster: Cluster, number: int) -> int:
    nbytes: int = cluster.stats(number)["cluster"]["plane"]["received_nbytes"]
    return nbytes


def lose_while_copied(cluster: Cluster, when: str, victim: int, lose: Callable[[Cluster, int], None]) -> object:
    """What node 2's reader gets if *victim* is lost before the first byte, or while bytes come; None: 2 is lost."""
    if when == "leased":
        cluster.sleep_at(2, LEASED, 1.0)
    reader = cluster.begin(2, read, timeout=60)
    if when == "leased":
        cluster.await_fired(2, LEASED)
    else:
        # On a fast machine all may have come by then: what must be true is true all the same.
        eventually(lambda: received(cluster, 2), "the first bytes to come")
    lose(cluster, victim)
    got = outcome(reader)
    return None if victim == 2 else got


@lose
@when
def test_when_its_source_is_lost_a_copy_comes_from_another(
    tmp_path: Path, when: str, lose: Callable[[Cluster, int], None]
) -> None:
    with Cluster(tmp_path, "--faults", count=3, pool_size=POOL, env=SHORT_LEASES) as cluster:
        put(cluster, 1)
        assert outcome(cluster.begin(3, read)) == WANTED
        assert lose_while_copied(cluster, when, 1, lose) == WANTED
        cluster.await_members(2, 3)
        cluster.agree()
        # One of the two has come to own it.
        assert sorted(cluster.held_by("k").values()) == [False, True]
        with cluster.client(3) as client:
            assert client.remove("k")
        cluster.ledger()


@lose
@when
def test_when_its_only_source_is_lost_a_copy_ends_in_an_error_and_leaves_nothing(
    tmp_path: Path, when: str, lose: Callable[[Cluster, int], None]
) -> None:
    with Cluster(tmp_path, "--faults", pool_size=POOL, env=SHORT_LEASES) as cluster:
        put(cluster, 1)
        got = lose_while_copied(cluster, when, 1, lose)
        if when == "leased":
            assert isinstance(got, StoreError)
        assert got == WANTED or isinstance(got, StoreError)
        cluster.await_members(2)
        if isinstance(got, StoreError):
            cluster.agree()
            assert cluster.stats(2)["pool"]["bytes_used"] == 0
        with cluster.client(2) as client:
            # All of its memory can be used.
            client.remove_all()
            client.put_from("k", pattern("k", LARGE), timeout=30)
            assert read(client) == WANTED


@lose
@when
def test_when_a_receiver_is_lost_its_source_is_free_again(
    tmp_path: Path, when: str, lose: Callable[[Cluster, int], None]
) -> None:
    with Cluster(tmp_path, "--faults", pool_size=POOL, env=SHORT_LEASES) as cluster:
        put(cluster, 1)
        if when == "leased":
            cluster.sleep_at(2, LEASED, 1.0)
        reader = cluster.worker(2)
        reader.start("c.get_buffer('k')")
        if when == "leased":
            cluster.await_fired(2, LEASED)
        else:
            eventually(lambda: received(cluster, 2), "the first bytes to come")
        lose(cluster, 2)
        with cluster.client(1) as client:
            assert client.remove("k")
            assert not client.exists("k")
        cluster.await_members(1)
        cluster.agree()
        assert cluster.stats(1)["pool"]["bytes_used"] == 0
        cluster.ledger()


def test_a_full_node_waits_for_room_without_a_promise_of_the_source(tmp_path: Path) -> None:
    with (
        Cluster(tmp_path, "--faults", pool_size="64MiB") as cluster,
        lent(cluster),
        cluster.client(1) as c1,
        cluster.client(2) as c2,
    ):
        c1.put_from("k", pattern("k", 20 * MIB))
        room = c2.create("room", 60 * MIB)
        reader = cluster.begin(2, read)
        eventually(lambda: cluster.hits(2, "ClientLocalCopyAfterLookup"), "node 2 to have looked")
        hasty = outcome(cluster.begin(2, lambda client: client.get_buffer("k", timeout=0.3).nbytes))
        assert isinstance(hasty, NoSpaceError)
        assert not reader.done()
        assert cluster.stats(1)["leases"] == 0
        assert cluster.stats(2)["cluster"]["copies"]["leases_taken"] == 0
        # The object can go and be replaced meanwhile: what comes is what is there by then.
        c1.upsert("k", pattern("new", 20 * MIB))
        room.abort()
        assert outcome(reader) == digest(pattern("new", 20 * MIB))
        assert cluster.stats(2)["load"]["local_copies"] == 1


def test_two_full_nodes_that_read_from_each_other_do_not_hold_each_other_up(tmp_path: Path) -> None:
    """Each has to move what the other reads out of memory; a lease kept meanwhile would block for ten minutes."""
    for number in (1, 2):
        (tmp_path / f"tier{number}").mkdir()
    with (
        Cluster(
            tmp_path,
            "--faults",
            pool_size="64MiB",
            own_flags={number: ["--offload-dir", str(tmp_path / f"tier{number}")] for number in (1, 2)},
            env={"MOONCAKE_NODE_DEFAULT_KV_LEASE_TTL": "600s"},
        ) as cluster,
        lent(cluster),
    ):
        for number in (1, 2):
            with cluster.client(number) as client:
                for i in range(3):
                    client.put_from(f"{number}/{i}", pattern((number, i), 20 * MIB), softpin=True)

        def read_all(client: Client, other: int) -> list[str]:
            found = []
            for i in (0, 1, 2, 0, 1, 2):
                with client.get_buffer(f"{other}/{i}", timeout=50) as handle:
                    found.append(digest(handle.view))
            return found

        for _ in range(3):
            readers = [cluster.begin(n, lambda client, n=n: read_all(client, 3 - n), timeout=60) for n in (1, 2)]
            for number, reader in zip((1, 2), readers, strict=True):
                assert outcome(reader) == [digest(pattern((3 - number, i), 20 * MIB)) for i in (0, 1, 2)] * 2


def test_a_node_that_was_killed_comes_back_and_reads_and_is_read_from(tmp_path: Path) -> None:
    with Cluster(tmp_path, "--faults", env=SHORT_LEASES) as cluster, lent(cluster):
        with cluster.client(1) as c1:
            c1.put_from("k", pattern("k", 5 * MIB))
            assert outcome(cluster.begin(2, read)) == digest(pattern("k", 5 * MIB))
            cluster.kill(2)
            cluster.start(2)
            cluster.await_members()
            assert outcome(cluster.begin(2, read)) == digest(pattern("k", 5 * MIB))
            cluster.kill(1)
            cluster.start(1)
            cluster.await_members()
        # Its copy outlived its owner.
        assert outcome(cluster.begin(1, read)) == digest(pattern("k", 5 * MIB))
        cluster.agree()
        assert cluster.held_by("k") == {"n1": False, "n2": True}
