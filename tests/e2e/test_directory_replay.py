"""What is told late: the last state alone, before memory is given up, and with one winner (SPEC 6, rules 7 and 9)."""

import contextlib
from collections.abc import Iterator

import pytest

from mooncake_client import Client, NotFoundError
from mooncake_node.directory import Holding
from mooncake_node.directory.encoding import digest_of
from tests.support import eventually
from tests.support.cluster import MIB, Cluster, lent


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # So long that no life lapses here: what comes of that is `test_directory_lives`.
    flags = ("--faults", "--set", "node_ttl=10s")
    with Cluster(tmp_path_factory.mktemp("replay"), *flags, count=2, pool_size="16MiB") as cluster:
        yield cluster


@pytest.fixture
def cluster(two_nodes: Cluster) -> Iterator[Cluster]:
    with lent(two_nodes):
        yield two_nodes
        two_nodes.await_members()


@pytest.fixture
def clients(cluster: Cluster) -> Iterator[tuple[Client, Client]]:
    with cluster.client(1, timeout=60) as one, cluster.client(2, timeout=60) as two:
        yield one, two


@contextlib.contextmanager
def paused(cluster: Cluster) -> Iterator[None]:
    """Nobody hears of the directory; at the end all has been told and agrees."""
    cluster.valkey.pause()
    try:
        for number in (1, 2):
            eventually(lambda number=number: state(cluster, number) == "away", "it to be away")
        yield
    finally:
        cluster.valkey.resume()
    for number in (1, 2):
        eventually(lambda number=number: state(cluster, number) == "up", "it to be back")
    # Not more than that: losers that are kept have lost their names.
    eventually(lambda: all(cluster.stats(n)["directory"]["queued"] == 0 for n in (1, 2)), "all to be told")
    eventually(lambda: not cluster.differences(), "nodes and directory to agree")


def state(cluster: Cluster, number: int) -> str:
    """As seen by a call that is made now."""
    with cluster.client(number) as client:
        client.exists("whatever")
        return str(client.stats()["directory"]["state"])


def entry(cluster: Cluster, key: str) -> list[Holding]:
    return [holding for digest, holding in cluster.claims() if digest == digest_of(key)]


def conflicts(cluster: Cluster) -> int:
    return sum(cluster.stats(number)["directory"]["conflicts"] for number in (1, 2))


# -- rule 7 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_copy", [False, True])
def test_of_many_changes_meanwhile_only_the_last_state_arrives(
    cluster: Cluster, clients: tuple[Client, Client], has_copy: bool
) -> None:
    one, two = clients
    before = conflicts(cluster)
    one.put("kept", b"0")
    one.put("gone", b"0")
    if has_copy:
        assert two.get("kept") == two.get("gone") == b"0"
    with paused(cluster):
        for key in ("kept", "gone"):
            assert one.remove(key) is True
            one.put(key, b"1")
            one.upsert(key, b"2")
            assert one.remove(key) is True
        last = one.put("kept", b"3")
        one.pin("kept")
        assert last.scope == "node"
        assert cluster.stats(1)["directory"]["queued"] == 2
    (holding,) = entry(cluster, "kept")
    assert f"{holding.generation:016x}" == last.generation
    assert (holding.node, holding.is_owner, holding.softpin) == ("n1", True, True)
    assert entry(cluster, "gone") == []
    assert two.get("kept") == b"3"
    assert two.exists("gone") is False
    assert conflicts(cluster) == before


def test_what_reclaim_drops_is_withdrawn_before_its_memory_is_used_again(
    cluster: Cluster, clients: tuple[Client, Client]
) -> None:
    one, two = clients
    for number in range(3):
        one.put_from(f"old/{number}", bytes([number]) * (4 * MIB))
    cluster.sleep_at(1, "DirectoryBeforeWithdraw", 5.0)
    worker = cluster.worker(1)
    worker.run_in_background("c.put_from('new', b'n' * (8 << 20), timeout=60)")
    cluster.await_fired(1, "DirectoryBeforeWithdraw")
    stats = cluster.stats(1)
    assert stats["pool"]["leaving_bytes"] > 0
    assert stats["waiting_puts"] == 1
    assert one.exists("new") is False
    going = [f"old/{number}" for number in range(3) if not one.exists(f"old/{number}")]
    # What has lost its name is named in the directory all the same, and is not there for who asks.
    assert any(entry(cluster, key) for key in going)
    for key in going:
        with pytest.raises(NotFoundError):
            two.get(key)
    assert worker.background_result().nbytes == 8 * MIB
    cluster.end_worker(worker)
    assert bytes(two.get("new")) == b"n" * (8 * MIB)
    assert all(entry(cluster, key) == [] for key in going)


def test_while_the_directory_is_away_reclaim_gives_memory_to_puts_all_the_same(
    cluster: Cluster, clients: tuple[Client, Client]
) -> None:
    one, _ = clients
    for number in range(3):
        one.put_from(f"old/{number}", bytes([number]) * (4 * MIB))
    with paused(cluster):
        for number in range(10):
            one.put_from(f"new/{number}", bytes([number]) * (4 * MIB))
        assert one.exists("old/0") is False
    assert entry(cluster, "old/0") == []


# -- rule 9 ------------------------------------------------------------------------------------------------------------


def both_put(cluster: Cluster, one: Client, two: Client, **contract: bool) -> tuple[bytes, dict[Client, str]]:
    """Both put "k" unheard of each other; what is left of it, and the generation of each."""
    before = conflicts(cluster)
    with paused(cluster):
        infos = {client: client.put("k", value, **contract) for client, value in ((one, b"one"), (two, b"two"))}
        assert (one.get("k"), two.get("k")) == (b"one", b"two")
    assert conflicts(cluster) == before + 1
    value = bytes(one.get("k"))
    assert two.get("k") == value
    assert value in (b"one", b"two")
    return value, {client: info.generation for client, info in infos.items()}


def losers(cluster: Cluster) -> list[dict[str, object]]:
    return [loser for number in (1, 2) for loser in cluster.stats(number)["directory"]["losers"]]


def test_of_two_that_put_one_key_unheard_one_loses_and_all_read_the_other(
    cluster: Cluster, clients: tuple[Client, Client]
) -> None:
    both_put(cluster, *clients)
    assert losers(cluster) == []
    assert any("conflict_lost" in cluster.nodes[number].read_log() for number in (1, 2))


@pytest.mark.parametrize("how", ["by generation", "remove_all"])
def test_a_pinned_loser_is_kept_and_listed_until_it_is_let_go(
    cluster: Cluster, clients: tuple[Client, Client], how: str
) -> None:
    one, two = clients
    value, generations = both_put(cluster, one, two, softpin=True)
    winner, loser = (one, two) if value == b"one" else (two, one)
    assert losers(cluster) == [{"key": "k", "generation": generations[loser], "nbytes": 3}]
    assert winner.info("k").generation == generations[winner]
    if how == "remove_all":
        one.remove_all()
    else:
        assert loser.remove("k", generation=generations[loser]) is True
        assert one.get("k") == two.get("k") == value
    assert losers(cluster) == []


def test_an_upsert_meanwhile_replaces_what_another_put_before(cluster: Cluster, clients: tuple[Client, Client]) -> None:
    one, two = clients
    two.put("k", b"old")
    assert one.get("k") == b"old"
    with paused(cluster):
        assert one.upsert("k", b"new").scope == "node"
        assert one.get("k") == b"new"
    assert two.get("k") == one.get("k") == b"new"
    assert [holding.node for holding in entry(cluster, "k") if holding.is_owner] == ["n1"]
