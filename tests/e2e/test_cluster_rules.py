"""Rules of order over nodes 1, 2 and 6 of SPEC 6: what remove, upsert and remove_all promise against copies and puts.

Each interleaving is held still by a fault point. A sleep at a point outlasts what happens meanwhile; where it does not,
on a machine that stands still, what is asserted holds all the same.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from mooncake_client import Client, NotFoundError, PutInfo, StoreError
from tests.support import eventually, pattern
from tests.support.cluster import COPY_POINTS, Cluster, lent, outcome

NBYTES = 300_000
OLD, NEW = pattern("old", NBYTES), pattern("new", NBYTES + 1)

at_each_point = pytest.mark.parametrize(("where", "point"), COPY_POINTS, ids=[point for _, point in COPY_POINTS])


def read(client: Client) -> bytes:
    """A copy of what is read: nothing is held."""
    with client.get_buffer("k", timeout=20) as handle:
        return bytes(handle.view)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("rules"), "--faults") as cluster:
        yield cluster


@pytest.fixture
def cluster(nodes: Cluster) -> Iterator[Cluster]:
    with lent(nodes):
        yield nodes


def put_old(cluster: Cluster) -> None:
    with cluster.client(1) as client:
        client.put_from("k", OLD)


def value(cluster: Cluster, number: int) -> bytes | None:
    """What a client of that node reads now; None: nothing."""
    with cluster.client(number) as client:
        try:
            return read(client)
        except NotFoundError:
            return None


def begin_copy(cluster: Cluster, where: int, point: str) -> "Future[bytes]":
    """A get on node 2 that is held up at *point*."""
    put_old(cluster)
    cluster.sleep_at(where, point, 0.5)
    reader = cluster.begin(2, read)
    cluster.await_fired(where, point)
    return reader


def begin_put(cluster: Cluster, number: int, put: Callable[[Client], PutInfo]) -> "Future[PutInfo]":
    """A put that the directory knows of, and its own node does not show yet."""
    cluster.sleep_at(number, "NodeAfterDirectoryCreate", 1.5)
    putter = cluster.begin(number, put)
    cluster.await_fired(number, "NodeAfterDirectoryCreate")
    return putter


# -- rule 1: against a copy under way ----------------------------------------------------------------------------------


@at_each_point
@pytest.mark.parametrize("remover", [1, 2])
def test_what_is_removed_while_it_is_copied_is_readable_nowhere(
    cluster: Cluster, where: int, point: str, remover: int
) -> None:
    reader = begin_copy(cluster, where, point)
    with cluster.client(remover) as client:
        assert client.remove("k") is True
    assert value(cluster, 2) is None
    assert value(cluster, 1) is None
    got = outcome(reader)
    assert got == OLD or isinstance(got, NotFoundError)
    assert value(cluster, 2) is None
    cluster.agree()
    assert cluster.claims() == []


@at_each_point
@pytest.mark.parametrize("writer", [1, 2])
def test_what_is_replaced_while_it_is_copied_is_read_no_more(
    cluster: Cluster, where: int, point: str, writer: int
) -> None:
    reader = begin_copy(cluster, where, point)
    with cluster.client(writer) as client:
        client.upsert("k", NEW)
    assert value(cluster, 2) == NEW
    assert value(cluster, 1) == NEW
    # The key was there all the time.
    assert outcome(reader) in (OLD, NEW)
    assert value(cluster, 2) == NEW
    cluster.agree()
    assert cluster.held_by("k")[f"n{writer}"] is True


@at_each_point
def test_removed_and_put_anew_while_it_is_copied_the_new_one_is_read(cluster: Cluster, where: int, point: str) -> None:
    reader = begin_copy(cluster, where, point)
    with cluster.client(2) as client:
        assert client.remove("k")
    with cluster.client(1) as client:
        client.put_from("k", NEW)
    assert value(cluster, 2) == NEW
    got = outcome(reader)
    assert got in (OLD, NEW) or isinstance(got, NotFoundError)
    assert value(cluster, 2) == NEW


# -- rule 2: no stale local hits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["c.remove('k')", "c.upsert('k', pattern('new', 300_001))"])
def test_who_changes_a_key_is_answered_when_no_node_serves_the_old_one(cluster: Cluster, change: str) -> None:
    put_old(cluster)
    assert value(cluster, 2) == OLD
    changer = cluster.worker(1)
    cluster.sleep_at(2, "PeerBeforeDrop", 2.0)
    changer.start(change)
    cluster.await_fired(2, "PeerBeforeDrop")
    seen_before = 0
    while not cluster.has_answered(changer):
        # Until node 2 has heard of it its copy is served; who asks while the change is under way may get either.
        seen_before += value(cluster, 2) == OLD
    assert value(cluster, 2) == (None if "remove" in change else NEW)
    assert seen_before
    changer.result()


def test_a_change_waits_for_a_node_that_has_dropped_and_not_said_so(cluster: Cluster) -> None:
    put_old(cluster)
    assert value(cluster, 2) == OLD
    cluster.arm(2, "PeerAfterDrop", "return_error", -900)
    with cluster.client(1) as client:
        assert client.remove("k") is True
    assert cluster.fired(2, "PeerAfterDrop") == 1
    assert value(cluster, 2) is None


def test_what_comes_after_a_remove_waits_for_whom_the_remove_has_not_reached(tmp_path: Path) -> None:
    """On the remove's own node, or on one that has never heard of the object."""
    with Cluster(tmp_path, "--faults", count=3) as cluster, lent(cluster):
        for where in (1, 3):
            for then in ("put", "remove"):
                change_after_remove(cluster, where, then)


def change_after_remove(cluster: Cluster, where: int, then: str) -> None:
    put_old(cluster)
    assert value(cluster, 2) == OLD
    cluster.sleep_at(2, "PeerBeforeDrop", 2.0)
    remover = cluster.begin(1, lambda client: client.remove("k"))
    cluster.await_fired(2, "PeerBeforeDrop")
    with cluster.client(where) as client:
        if then == "put":
            client.put_from("k", NEW)
        else:
            assert client.remove("k") is False
    assert value(cluster, 2) == (NEW if then == "put" else None)
    assert remover.result() is True
    with cluster.client(1) as client:
        client.remove("k")
    cluster.disarm()


@pytest.mark.parametrize("point", ["PeerBeforeDrop", "PeerAfterDrop"])
def test_a_remove_is_asked_for_again_until_the_other_node_has_carried_it_out(cluster: Cluster, point: str) -> None:
    put_old(cluster)
    assert value(cluster, 2) == OLD
    cluster.arm(2, point, "return_error", -900, times=3)
    with cluster.client(1) as client:
        assert client.remove("k") is True
    assert cluster.fired(2, point) == 3
    assert value(cluster, 2) is None


def test_a_remove_that_failed_on_its_way_to_the_others_reaches_them_all_the_same(cluster: Cluster) -> None:
    put_old(cluster)
    assert value(cluster, 2) == OLD
    cluster.arm(1, "NodeBeforeFanOut", "return_error", -900)
    with cluster.client(1) as client, pytest.raises(StoreError):
        client.remove("k")
    eventually(lambda: value(cluster, 2) is None, "node 2 to have dropped its copy")


@pytest.mark.parametrize("change", ["c.remove('k')", "c.upsert('k', pattern('new', 300_001))"])
@pytest.mark.parametrize("point", [None, "DirectoryBeforePublish", "DirectoryBeforeLookup", "DirectoryAfterJoin"])
def test_a_node_that_stood_still_never_serves_what_was_changed_meanwhile(
    cluster: Cluster, change: str, point: str | None
) -> None:
    put_old(cluster)
    with cluster.client(2) as client:
        client.put_from("own", b"own")
    assert value(cluster, 2) == OLD
    changer, readers = cluster.worker(1), [cluster.worker(2) for _ in range(3)]
    for reader in readers:
        reader.run("c.exists('k'); seen = []")
    if point is not None:
        # Its way back to life takes long.
        cluster.sleep_at(2, point, 1.5)
    cluster.stop(2)
    if point is not None:
        # Else it finds the other's request to drop its copy when it goes on.
        cluster.await_members(1)
    changer.run(change)
    # Their requests lie there when it goes on, and more come at once.
    for reader in readers:
        reader.start("""
            import time
            for _ in range(150):
                try:
                    seen.append(digest(c.get_buffer('k', timeout=5).view))
                except StoreError as error:
                    seen.append(error.code)
                time.sleep(0.01)
            set(seen)
        """)
    cluster.cont(2)
    old = changer.run("digest(pattern('old', 300_000))")
    for reader in readers:
        assert old not in reader.result()
    cluster.await_members()
    eventually(lambda: cluster.stats(2)["directory"]["is_serving"], "node 2 to serve again")
    assert value(cluster, 2) == (None if "remove" in change else NEW)
    with cluster.client(1) as client:
        assert bytes(client.get("own")) == b"own"


def test_a_put_that_is_removed_before_it_is_readable_is_readable_nowhere(cluster: Cluster) -> None:
    """The directory has it, its own node does not show it yet: a remove by another node is for this generation too."""
    for writer, remover in ((1, 2), (1, 1)):
        putter = begin_put(cluster, writer, lambda client: client.put_from("k", OLD))
        with cluster.client(remover) as client:
            assert client.remove("k") is True
        assert value(cluster, 1) is None
        assert value(cluster, 2) is None
        assert isinstance(outcome(putter), PutInfo | NotFoundError)
        assert value(cluster, 1) is None
        assert value(cluster, 2) is None
        cluster.agree()
        assert cluster.claims() == []


def test_an_upsert_of_what_is_just_being_put_elsewhere_wins(cluster: Cluster) -> None:
    putter = begin_put(cluster, 1, lambda client: client.put_from("k", OLD))
    with cluster.client(2) as client:
        client.upsert("k", NEW)
    assert [value(cluster, number) for number in (1, 2)] == [NEW, NEW]
    outcome(putter)
    assert [value(cluster, number) for number in (1, 2)] == [NEW, NEW]


@pytest.mark.parametrize("is_upsert", [False, True])
def test_who_reads_elsewhere_what_is_just_being_published_waits_for_it(cluster: Cluster, is_upsert: bool) -> None:
    if is_upsert:
        put_old(cluster)
        assert value(cluster, 2) == OLD
    putter = begin_put(cluster, 1, lambda client: (client.upsert if is_upsert else client.put_from)("k", NEW))
    # The old one is there until the new one is complete.
    assert value(cluster, 2) == (OLD if is_upsert else NEW)
    assert isinstance(outcome(putter), PutInfo)
    assert value(cluster, 2) == NEW


def test_a_key_that_two_nodes_replace_is_there_all_the_while(cluster: Cluster, tmp_path: Path) -> None:
    put_old(cluster)
    upserting = """
        for number in range(150):
            c.upsert('k', bytes([number]) * 2000)
    """
    looking = """
        import os
        missed = 0
        while not os.path.exists(done):
            missed += not c.exists('k')
            c.get('k', timeout=20)
        missed
    """
    writers, readers = [cluster.worker(1), cluster.worker(2)], [cluster.worker(1), cluster.worker(2)]
    done = tmp_path / "done"
    for reader in readers:
        reader.run(f"done = {str(done)!r}")
        reader.start(looking)
    for writer in writers:
        writer.start(upserting)
    for writer in writers:
        writer.result()
    done.touch()
    assert [reader.result() for reader in readers] == [0, 0]
