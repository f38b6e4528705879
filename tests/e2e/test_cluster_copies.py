"""LocalCopy: one transfer for all who ask, whatever goes wrong on its way, and nobody else's loss (SPEC 5)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mooncake_client import Client, NotReadyError, StoreError, TransferError
from tests.support import digest, eventually, pattern
from tests.support.cluster import COPY_POINTS, MIB, Cluster, lent, outcome, place

NBYTES = 3 * MIB + 5
DATA = pattern("k", NBYTES)
REFRESH = "ClientLocalCopyBeforeRefreshReplicaListRemote"
POINTS = [*COPY_POINTS, (2, "DirectoryBeforeLookup"), (2, "DirectoryAfterLookup")]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Node 2 has a tier. Leases that are lost end soon."""
    tier = tmp_path_factory.mktemp("tier")
    with Cluster(
        tmp_path_factory.mktemp("copies"),
        "--faults",
        own_flags={2: ["--offload-dir", str(tier)]},
        env={"MOONCAKE_NODE_DEFAULT_KV_LEASE_TTL": "2s"},
    ) as cluster:
        yield cluster


@pytest.fixture
def cluster(nodes: Cluster) -> Iterator[Cluster]:
    with lent(nodes):
        yield nodes


def read(client: Client) -> str:
    with client.get_buffer("k") as handle:
        return digest(handle.view)


def put(cluster: Cluster, number: int = 1) -> None:
    with cluster.client(number) as client:
        client.put_from("k", DATA)


def test_sixteen_who_ask_at_once_share_one_transfer_and_one_memory(cluster: Cluster) -> None:
    put(cluster)
    before = cluster.stats(2)
    cluster.sleep_at(2, "ClientLocalCopyAfterPutStart", 2.0)
    clients = [cluster.client(2) for _ in range(16)]
    asked = [cluster.begin(2, lambda _, client=client: client.get_buffer("k")) for client in clients]
    handles = [ask.result(60) for ask in asked]
    asked.clear()
    assert cluster.stats(1)["leases"] == 0
    assert len({place(handle.view) for handle in handles}) == 1
    assert {digest(handle.view) for handle in handles} == {digest(DATA)}
    after = cluster.stats(2)
    grown = {name: after["load"][name] - before["load"][name] for name in after["load"]}
    assert grown["local_copies"] == 1
    assert grown["coalesced"] + grown["local_hits"] == 15
    assert grown["coalesced"] > 0
    crossed = [stats["cluster"]["copies"]["bytes_copied"] for stats in (before, after)]
    assert crossed[1] - crossed[0] == NBYTES
    copies = after["cluster"]["copies"]
    assert copies["leases_taken"] - before["cluster"]["copies"]["leases_taken"] == 1
    assert copies["leases_taken"] == copies["leases_released"]
    assert after["handles"] == 16
    for handle in handles:
        handle.release()
    for client in clients:
        client.close()


# -- the two scenarios of the second post ------------------------------------------------------------------------------


def test_others_are_told_that_a_copy_under_way_is_not_ready(cluster: Cluster) -> None:
    name = "ClientLocalCopyAfterPutStart"
    put(cluster)
    with cluster.client(2) as store:
        assert store.inject_fault_local_master(name, "sleep", 3000, 1, 1) == 0
        first = cluster.begin(2, read)
        cluster.await_fired(2, name)
        with pytest.raises(NotReadyError) as caught:
            store.get_buffer("k", timeout=0.1)
        assert caught.value.code == -703
        assert outcome(first) == digest(DATA)
        assert read(store) == digest(DATA)
        assert store.get_fault_status_local_master(name)["fired"] == 1
        store.inject_fault_local_master(name, "reset")
        assert store.get_fault_status_local_master(name)["fired"] == 0


def test_what_this_node_has_offloaded_is_read_though_the_others_cannot_be_asked(cluster: Cluster) -> None:
    with cluster.client(2) as store:
        for i in range(12):
            store.put_from(f"pinned {i}", pattern(i, 8 * MIB), softpin=True)
        offloaded = eventually(
            lambda: [key for key, info in cluster.here(2).items() if info.state == "on_disk"], "an object to be on disk"
        )
        before = cluster.stats(2)["load"]["from_offload"]
        assert store.inject_fault_local_master(REFRESH, "return_error", -900, 1, 1) == 0
        key = offloaded[0]
        with store.get_buffer(key) as handle:
            assert digest(handle.view) == digest(pattern(int(key.split()[1]), 8 * MIB))
        assert store.get_fault_status_local_master(REFRESH)["fired"] == 1
        assert cluster.stats(2)["load"]["from_offload"] - before == 1
        store.inject_fault_local_master(REFRESH, "reset")


def test_without_a_copy_on_disk_the_error_comes_out_as_it_is(cluster: Cluster) -> None:
    put(cluster)
    cluster.arm(2, REFRESH, "return_error", -900)
    with cluster.client(2) as store:
        with pytest.raises(StoreError) as caught:
            store.get_buffer("k")
        assert caught.value.code == -900
        assert read(store) == digest(DATA)


# -- every step fails, or is slow --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("where", "point"), POINTS, ids=[point for _, point in POINTS])
@pytest.mark.parametrize("code", [-800, -900, -704])
def test_a_copy_that_fails_somewhere_leaves_nothing_and_the_next_succeeds(
    cluster: Cluster, where: int, point: str, code: int
) -> None:
    put(cluster)
    cluster.arm(where, point, "return_error", code)
    with cluster.client(2) as client:
        got = outcome(cluster.begin(2, read))
        assert got == digest(DATA) or isinstance(got, StoreError)
        assert cluster.fired(where, point) == 1
        cluster.agree()
        assert read(client) == digest(DATA)
        assert cluster.held_by("k") == {"n1": True, "n2": False}


@pytest.mark.parametrize(("where", "point"), POINTS, ids=[point for _, point in POINTS])
def test_a_copy_that_is_slow_somewhere_succeeds(cluster: Cluster, where: int, point: str) -> None:
    put(cluster)
    cluster.sleep_at(where, point, 0.4)
    assert outcome(cluster.begin(2, read)) == digest(DATA)
    assert cluster.fired(where, point) == 1
    assert cluster.stats(1)["leases"] == 0


@pytest.mark.parametrize(("where", "point"), POINTS, ids=[point for _, point in POINTS])
def test_a_reader_who_dies_or_gives_up_while_it_is_copied_leaves_nothing(
    cluster: Cluster, where: int, point: str
) -> None:
    put(cluster)
    reader = cluster.worker(2)
    cluster.sleep_at(where, point, 0.4)
    reader.start("c.get_buffer('k')")
    cluster.await_fired(where, point)
    with cluster.client(2) as client:
        hasty = outcome(cluster.begin(2, lambda client: client.get_buffer("k", timeout=0.02).nbytes))
        assert hasty == NBYTES or isinstance(hasty, NotReadyError)
        reader.kill()
        cluster.agree()
        assert read(client) == digest(DATA)


def test_bytes_that_are_not_those_that_were_put_are_never_served(cluster: Cluster) -> None:
    """A putting process is trusted with its mapping; what it breaks there is found out when it leaves the node."""
    writer = cluster.worker(1)
    writer.run("""
        import ctypes
        room = c.create("k", 3_000_000)
        room.view[:] = pattern("k", 3_000_000)
        address = np.frombuffer(room.view, dtype=np.uint8).ctypes.data
        room.publish()
    """)
    with cluster.client(2) as client:
        assert read(client) == digest(pattern("k", 3_000_000))
        assert client.remove("k", scope="node")
        writer.run("ctypes.memset(address + 1_234_567, 0xA5, 64)")
        before = cluster.stats(2)["cluster"]["copies"]["checksum_failures"]
        for _ in range(2):
            with pytest.raises(TransferError) as caught:
                client.get_buffer("k")
            assert caught.value.code == -801
        assert cluster.stats(2)["cluster"]["copies"]["checksum_failures"] > before
        cluster.agree()
        assert cluster.held_by("k") == {"n1": True}
        client.upsert("k", DATA)
        assert read(client) == digest(DATA)


# -- pins and tiers ----------------------------------------------------------------------------------------------------


def test_a_copy_of_a_pinned_object_is_not_pinned_and_goes_first(cluster: Cluster) -> None:
    with cluster.client(1) as c1, cluster.client(2) as c2:
        c1.put_from("k", DATA, softpin=True)
        assert read(c2) == digest(DATA)
        assert cluster.stats(2)["pinned"]["soft_bytes"] == 0
        before = cluster.stats(2)
        for i in range(8):
            c2.put_from(f"filler {i}", bytes(10 * MIB))
        assert "k" not in cluster.here(2)
        after = cluster.stats(2)
        assert after["offload"]["objects"] == before["offload"]["objects"]
        cluster.agree()
        assert cluster.held_by("k") == {"n1": True}
        assert read(c2) == digest(DATA)
        assert cluster.stats(2)["load"]["local_copies"] - after["load"]["local_copies"] == 1


def test_what_is_in_another_nodes_tier_is_read_from_there_and_pushes_nothing_out(tmp_path: Path) -> None:
    (tmp_path / "tier").mkdir()
    flags = {1: ["--offload-dir", str(tmp_path / "tier")]}
    with Cluster(tmp_path, "--faults", own_flags=flags) as cluster, lent(cluster):
        with cluster.client(1) as c1:
            for i in range(12):
                c1.put_from(f"{i}", pattern(i, 8 * MIB + i), softpin=True)
        cluster.agree()
        before = cluster.here(1)
        offloaded = [key for key, info in before.items() if info.state == "on_disk"]
        assert offloaded
        assert len(offloaded) < 12
        with cluster.client(2) as c2:
            for count, key in enumerate(offloaded[:4], 1):
                with c2.get_buffer(key) as handle:
                    assert digest(handle.view) == digest(pattern(int(key), 8 * MIB + int(key)))
                assert cluster.stats(2)["load"]["from_remote_offload"] == count
        assert {key: info.state for key, info in cluster.here(1).items()} == {
            key: info.state for key, info in before.items()
        }
        assert cluster.stats(1)["load"]["from_offload"] == 0
