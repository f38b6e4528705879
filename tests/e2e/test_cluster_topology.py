"""The topology of the posts: nodes 1 and 2, each with two clients in processes of their own (SPEC 10)."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.support import Worker
from tests.support.cluster import MIB, Cluster, lent

GIB = 1 << 30


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Without fault injection: small puts take the way they take in earnest."""
    with Cluster(tmp_path_factory.mktemp("topology"), pool_size="160MiB") as cluster:
        yield cluster


@pytest.fixture
def topology(nodes: Cluster) -> Iterator[SimpleNamespace]:
    with lent(nodes) as cluster:
        yield with_clients(cluster)


def with_clients(cluster: Cluster) -> SimpleNamespace:
    return SimpleNamespace(
        cluster=cluster,
        w11=cluster.worker(1),
        w12=cluster.worker(1),
        w21=cluster.worker(2),
        w22=cluster.worker(2),
    )


def read(worker: Worker) -> tuple[str, int, object]:
    """Get "k" and hold it: digest, length, and where its bytes are."""
    worker.run("held = c.get_buffer('k')", hang_limit_s=300)
    found: tuple[str, int, object] = worker.run(
        "digest(held.view), held.nbytes, place(held.view) if held.nbytes else None", hang_limit_s=300
    )
    return found


def pass_round(topology: SimpleNamespace, nbytes: int, *, make: str = "pattern('k', {})") -> None:
    """Put by 11, get by all, remove by 22, and what must be true in between."""
    cluster, w11, w12, w21, w22 = (getattr(topology, name) for name in ("cluster", "w11", "w12", "w21", "w22"))
    before = cluster.stats(2)
    w11.run(f"data = {make.format(nbytes)}", hang_limit_s=300)
    wanted = w11.run("digest(data), len(data)", hang_limit_s=300)
    w11.run("info = c.put_from('k', data); del data", hang_limit_s=300)

    (digest11, nbytes11, place11), (digest12, nbytes12, place12) = read(w11), read(w12)
    assert (digest11, nbytes11) == (digest12, nbytes12) == wanted
    assert place11 == place12
    assert cluster.held_by("k") == {"n1": True}
    assert cluster.stats(2)["objects"] == before["objects"]

    digest21, nbytes21, place21 = read(w21)
    assert (digest21, nbytes21) == wanted
    # Whoever has the answer has it without a promise that still binds the owner.
    assert cluster.stats(1)["leases"] == 0
    digest22, nbytes22, place22 = read(w22)
    assert (digest22, nbytes22) == wanted
    assert place21 == place22
    if nbytes:
        assert place21[:2] != place11[:2]
    after = cluster.stats(2)
    assert after["load"]["local_copies"] - before["load"]["local_copies"] == 1
    crossed = [stats["cluster"]["copies"]["bytes_copied"] for stats in (before, after)]
    assert crossed[1] - crossed[0] == nbytes
    assert cluster.held_by("k") == {"n1": True, "n2": False}

    assert w22.run("c.remove('k')") is True
    for worker in (w11, w12, w21, w22):
        assert worker.run("c.exists('k')") is False
        assert worker.run("c.get_many(['k'])[0].code") == -704
    # Removed, not taken away: whoever holds it reads on.
    assert [worker.run("digest(held.view)", hang_limit_s=300) for worker in (w11, w12, w21, w22)] == [wanted[0]] * 4
    for worker in (w11, w12, w21, w22):
        worker.run("held.release()")
    cluster.agree()
    assert [cluster.stats(number)["pool"]["bytes_used"] for number in (1, 2)] == [0, 0]


@pytest.mark.parametrize("nbytes", [0, 1, 200, 4096, 8193, MIB, 64 * MIB])
def test_put_by_11_get_by_all_remove_by_22(topology: SimpleNamespace, nbytes: int) -> None:
    for _ in range(2):
        pass_round(topology, nbytes)


def test_an_encoded_object_is_equal_on_every_node(topology: SimpleNamespace) -> None:
    topology.w11.run("""
        import torch
        c.put("k", {"weights": torch.arange(100_000).bfloat16(), "step": 7, "name": "ü"})
    """)
    for name in ("w11", "w12", "w21", "w22"):
        worker = getattr(topology, name)
        assert worker.run("""
            import torch
            got = c.get("k")
            same = torch.equal(got["weights"], torch.arange(100_000).bfloat16()), got["step"], got["name"]
            del got
            same
        """) == (True, 7, "ü")
    assert topology.w22.run("c.remove('k')")


def test_many_small_objects_all_cross_once(topology: SimpleNamespace) -> None:
    cluster, count = topology.cluster, 500
    before = cluster.stats(2)["load"]["local_copies"]
    topology.w11.run(f"infos = c.put_many({{f'k{{i}}': pattern(i, 40 * i) for i in range({count})}})")
    assert topology.w11.run("all(isinstance(info, PutInfo) for info in infos.values())")
    for worker in (topology.w21, topology.w22):
        assert worker.run(f"[bytes(v) for v in c.get_many([f'k{{i}}' for i in range({count})])]") == topology.w11.run(
            f"[pattern(i, 40 * i) for i in range({count})]"
        )
    assert cluster.stats(2)["load"]["local_copies"] - before == count
    assert topology.w22.run(f"sum(c.remove_many([f'k{{i}}' for i in range({count})]))") == count
    for name in ("w11", "w12", "w21", "w22"):
        assert getattr(topology, name).run("list(c.list())") == []


def test_from_the_other_side(topology: SimpleNamespace) -> None:
    """Neither node is special: put on 2, read and removed on 1."""
    mirrored = SimpleNamespace(**vars(topology))
    mirrored.w21.run("c.put_from('k', pattern('k', 300_000))")
    wanted = mirrored.w21.run("digest(pattern('k', 300_000))")
    assert [read(w)[0] for w in (topology.w21, topology.w22, topology.w11, topology.w12)] == [wanted] * 4
    assert topology.cluster.held_by("k") == {"n1": False, "n2": True}
    assert topology.w11.run("c.remove('k')") is True
    assert topology.w22.run("c.exists('k')") is False


@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_gib_cross(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Cluster(tmp_path_factory.mktemp("large"), pool_size="2200MiB") as cluster, lent(cluster):
        pass_round(with_clients(cluster), 2 * GIB)
