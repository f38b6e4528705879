"""A directory that is slow, paused, dead or has lost its data: local work goes on, and later all agree (SPEC 6)."""

import contextlib
from collections.abc import Iterator

import pytest

from mooncake_client import Client, NotFoundError, NotReadyError
from tests.support import eventually
from tests.support.cluster import Cluster, lent

KINDS = ["killed", "paused", "paused beyond a life"]


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("away"), "--faults", "--set", "node_ttl=1s", count=2) as cluster:
        yield cluster


@pytest.fixture
def cluster(two_nodes: Cluster) -> Iterator[Cluster]:
    with lent(two_nodes):
        yield two_nodes
        two_nodes.await_members()


@pytest.fixture
def clients(cluster: Cluster) -> Iterator[tuple[Client, Client]]:
    """With a hang limit well below the tests' own: no call may wait for the directory."""
    with cluster.client(1, timeout=20) as one, cluster.client(2, timeout=20) as two:
        yield one, two


@contextlib.contextmanager
def away(cluster: Cluster, kind: str) -> Iterator[None]:
    """The directory is away, and both nodes know; back at the end."""
    if kind == "killed":
        cluster.valkey.kill()
    else:
        cluster.valkey.pause()
    await_state(cluster, "away")
    try:
        yield
        if kind == "paused beyond a life":
            # Neither serves what the other owns any more; that is what an end of one's own life means here.
            for number in (1, 2):
                with cluster.client(number) as client:
                    eventually(lambda client=client: not client.exists("fence"), "the secondary replicas to be fenced")
    finally:
        if kind == "killed":
            cluster.valkey.start()
        else:
            cluster.valkey.resume()


def await_state(cluster: Cluster, state: str, *numbers: int) -> None:
    for number in numbers or (1, 2):
        eventually(lambda number=number: cluster.stats(number)["directory"]["state"] == state, f"it to be {state}")


def settled(cluster: Cluster) -> None:
    """The directory is back, and both nodes and the directory say the same."""
    await_state(cluster, "up")
    cluster.await_members()
    cluster.agree()
    for number in (1, 2):
        eventually(lambda n=number: cluster.stats(n)["directory"]["is_serving"], "its inventory to be through")
        facts = cluster.stats(number)["directory"]
        assert (facts["queued"], facts["differences"]) == (0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_local_work_goes_on_and_is_seen_elsewhere_when_the_directory_is_back(
    cluster: Cluster, clients: tuple[Client, Client], kind: str
) -> None:
    one, two = clients
    one.put_many({f"old/{i}": b"old %d" % i for i in range(10)})
    two.put("far", b"far")
    with away(cluster, kind):
        info = one.put("new", b"new")
        assert info.scope == "node"
        assert one.get("new") == b"new"
        assert one.upsert("old/1", b"newer").scope == "node"
        assert one.get("old/1") == b"newer"
        assert one.remove("old/2") is True
        assert one.exists_many(["old/1", "old/2", "new", "far"]) == [True, False, True, False]
        assert {i.key for i in one.list()} >= {"new", "old/1", "old/3"}
        one.pin("old/3")
        with pytest.raises(NotFoundError):
            one.get("far")
        with pytest.raises(NotFoundError):
            two.get("new")
        assert cluster.stats(1)["directory"]["queued"] >= 4
    settled(cluster)
    assert two.get("new") == b"new"
    assert two.get("old/1") == b"newer"
    assert one.get("far") == b"far"
    for client in clients:
        assert client.exists("old/2") is False
        assert client.info("old/3").softpin is True
        with pytest.raises(NotFoundError):
            client.get("old/2")
    assert cluster.stats(1)["directory"]["conflicts"] == cluster.stats(2)["directory"]["conflicts"] == 0


# Not: killed, by the node with the copy, unheard. A directory that has lost its data has no tombstone either.
@pytest.mark.parametrize(
    ("kind", "remover", "is_heard"),
    [
        *((kind, remover, True) for kind in KINDS for remover in (0, 1)),
        *((kind, remover, False) for kind in KINDS for remover in (0, 1) if (kind, remover) != ("killed", 1)),
    ],
)
def test_what_was_removed_meanwhile_does_not_come_back_from_a_copy(
    cluster: Cluster, clients: tuple[Client, Client], kind: str, remover: int, is_heard: bool
) -> None:
    one, two = clients
    one.put("k", b"k" * 1000, softpin=True)
    assert two.get("k") == b"k" * 1000
    if not is_heard:
        cluster.arm(2 - remover, "PeerBeforeDrop", "return_error", -900)
    with away(cluster, kind):
        assert clients[remover].remove("k") is True
        assert clients[remover].exists("k") is False
    settled(cluster)
    for client in clients:
        assert client.exists("k") is False
        with pytest.raises(NotFoundError):
            client.get("k")
    one.put("k", b"again")
    settled(cluster)
    assert two.get("k") == b"again"


@pytest.mark.parametrize("kind", ["killed", "paused"])
def test_remove_all_says_that_it_cannot_reach_all_and_removes_nothing(
    cluster: Cluster, clients: tuple[Client, Client], kind: str
) -> None:
    one, two = clients
    one.put("mine", b"1")
    two.put("yours", b"2")
    if kind == "killed":
        cluster.valkey.kill()
    else:
        cluster.valkey.pause()
    try:
        # At once, before anybody has noticed.
        with pytest.raises(NotReadyError, match="the directory is away.*nothing was removed"):
            one.remove_all()
        assert one.get("mine") == b"1"
    finally:
        if kind == "killed":
            cluster.valkey.start()
        else:
            cluster.valkey.resume()
    settled(cluster)
    assert one.get("yours") == b"2"
    assert two.get("mine") == b"1"
    assert one.remove_all() == 2
    assert two.exists_many(["mine", "yours"]) == [False, False]


def test_who_clears_is_told_of_all_objects_though_the_others_have_heard_of_it_before(
    cluster: Cluster, clients: tuple[Client, Client]
) -> None:
    one, two = clients
    one.put("mine", b"1")
    two.put("yours", b"2")
    # They see at their next renewal that everything is to go.
    cluster.sleep_at(1, "DirectoryAfterRaiseClearEpoch", 2.0)
    clearing = cluster.begin(1, lambda client: client.remove_all())
    cluster.await_fired(1, "DirectoryAfterRaiseClearEpoch")
    eventually(lambda: not two.exists("yours"), "node 2 to have heard of it")
    assert clearing.result() == 2
    assert one.exists_many(["mine", "yours"]) == [False, False]


def test_a_slow_directory_makes_a_put_wait_and_changes_nothing_else(
    cluster: Cluster, clients: tuple[Client, Client]
) -> None:
    one, two = clients
    for point in ("DirectoryBeforeCreate", "DirectoryAfterCreate", "DirectoryBeforeRemove", "DirectoryBeforeLookup"):
        for number in (1, 2):
            cluster.arm(number, point, "sleep", 200, times=1000)
    assert one.put("k", b"1").scope == "cluster"
    assert two.get("k") == b"1"
    assert two.upsert("k", b"2").scope == "cluster"
    assert one.get("k") == b"2"
    assert one.remove("k") is True
    assert two.exists("k") is False


@pytest.mark.parametrize("point", ["DirectoryBeforeCreate", "DirectoryAfterCreate"])
def test_a_put_whose_answer_is_lost_succeeds_and_is_told_again(
    cluster: Cluster, clients: tuple[Client, Client], point: str
) -> None:
    one, two = clients
    cluster.arm(1, point, "return_error", -900)
    assert one.put("k", b"1").scope == "node"
    cluster.agree()
    assert two.get("k") == b"1"
    assert cluster.stats(1)["directory"]["conflicts"] == 0


@pytest.mark.parametrize("point", ["DirectoryBeforeCreate", "DirectoryAfterCreate"])
def test_an_upsert_whose_answer_is_lost_reaches_those_with_copies_of_what_it_replaced(
    cluster: Cluster, clients: tuple[Client, Client], point: str
) -> None:
    one, two = clients
    one.put("k", b"1")
    assert two.get("k") == b"1"
    cluster.arm(1, point, "return_error", -900)
    assert one.upsert("k", b"2").scope == "node"
    cluster.agree()
    assert two.get("k") == b"2"


@pytest.mark.parametrize("point", ["DirectoryBeforeRemove", "DirectoryAfterRemove"])
def test_a_removal_whose_answer_is_lost_reaches_those_with_copies(
    cluster: Cluster, clients: tuple[Client, Client], point: str
) -> None:
    one, two = clients
    one.put("k", b"1")
    assert two.get("k") == b"1"
    cluster.arm(1, point, "return_error", -900)
    cluster.arm(2, "PeerBeforeDrop", "return_error", -900)
    assert one.remove("k") is True
    cluster.agree()
    assert two.exists("k") is False


def test_whoever_waits_for_a_key_elsewhere_is_told_when_the_directory_hears_of_it(
    cluster: Cluster, clients: tuple[Client, Client]
) -> None:
    one, _ = clients
    worker = cluster.worker(2)
    worker.run_in_background("c.wait('k', timeout=60)")
    eventually(lambda: cluster.stats(2)["waiting"], "it to wait")
    with away(cluster, "paused"):
        assert one.put("k", b"late").scope == "node"
    assert worker.background_result() is None
    # The node that was told may itself not have tried the directory again yet.
    await_state(cluster, "up")
    assert worker.run("bytes(c.get('k'))") == b"late"
    cluster.end_worker(worker)


def test_a_directory_that_kept_its_data_is_taken_up_again(cluster: Cluster, clients: tuple[Client, Client]) -> None:
    one, two = clients
    valkey = cluster.valkey
    lives = [cluster.stats(number)["directory"]["lives"] for number in (1, 2)]
    valkey.stop()
    valkey.keeps_data = True
    valkey.start()
    # It has begun empty, which they notice by their next renewals.
    for number, before in zip((1, 2), lives, strict=True):
        eventually(lambda n=number, b=before: cluster.stats(n)["directory"]["lives"] > b, "a new life")
    settled(cluster)
    try:
        one.put_many({f"old/{i}": b"%d" % i for i in range(300)})
        two.get("old/0")
        with away(cluster, "killed"):
            one.put("new", b"new")
            one.remove("old/0")
        settled(cluster)
        assert two.get("new") == b"new"
        assert two.exists("old/0") is False
        assert two.get("old/299") == b"299"
    finally:
        valkey.keeps_data = False


def test_a_directory_that_refuses_its_nodes_is_as_good_as_away(
    cluster: Cluster, clients: tuple[Client, Client]
) -> None:
    """As one that was restarted with another password, or whose user was taken away."""
    one, two = clients
    one.put("old", b"old")
    valkey = cluster.valkey
    valkey.kill()
    valkey.password = "other"
    valkey.start()
    try:
        eventually(lambda: "life_not_renewed" in cluster.nodes[1].read_log(), "the node to say so")
        assert one.put("new", b"new").scope == "node"
        assert one.get("old") == b"old"
        assert one.exists("nowhere") is False
        with pytest.raises(NotFoundError):
            one.get("nowhere")
        assert one.remove("old") is True
        with pytest.raises(NotReadyError):
            one.remove_all()
    finally:
        valkey.kill()
        valkey.password = ""
        valkey.start()
    settled(cluster)
    assert two.get("new") == b"new"
    assert two.exists("old") is False


@pytest.mark.long
def test_more_changes_than_are_queued_lead_to_a_new_life_that_tells_everything(
    cluster: Cluster, clients: tuple[Client, Client]
) -> None:
    one, two = clients
    one.put("gone", b"gone")
    assert two.get("gone") == b"gone"
    one.put("kept", b"kept")
    lives = cluster.stats(1)["directory"]["lives"]
    with away(cluster, "paused"):
        assert one.remove("gone") is True
        for start in range(0, 100_500, 500):
            one.put_many({f"many/{i}": b"" for i in range(start, start + 500)})
        assert "directory_queue_overflowed" in cluster.nodes[1].read_log()
        assert cluster.stats(1)["directory"]["queued"] < 1000
    eventually(lambda: cluster.stats(1)["directory"]["lives"] > lives, "a new life")
    eventually(lambda: cluster.stats(1)["directory"]["is_serving"], "everything to be told")
    facts = cluster.stats(1)["directory"]
    assert facts["differences"] == 0
    eventually(lambda: cluster.stats(1)["directory"]["queued"] == 0, "the queue to be empty")
    assert two.exists_many(["kept", "gone", "many/0", "many/100499"]) == [True, False, True, True]
    assert two.get("kept") == b"kept"
    one.remove_all()
