"""Nodes that are taken for dead, cut off or killed, and what becomes of what they had (SPEC 6, rules 4, 8 and 10)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mooncake_client import NotFoundError, ObjectLostError, StoreError
from tests.support import eventually, pattern
from tests.support.cluster import Cluster
from tests.support.passage import Passage

FLAGS = ("--faults", "--set", "node_ttl=1s")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, *FLAGS, count=2) as cluster:
        yield cluster


# -- rule 8: falsely dead ----------------------------------------------------------------------------------------------


def test_a_node_that_stood_still_for_too_long_comes_back_with_what_it_still_owns(cluster: Cluster) -> None:
    with cluster.client(1) as one, cluster.client(2) as two:
        one.put_many({"mine": b"mine", "taken": b"mine", "removed": b"mine", "copied": b"mine"})
        assert two.get("copied") == b"mine"
        cluster.stop(1)
        cluster.await_members(2)
        with pytest.raises(NotFoundError):
            two.get("mine")
        eventually(lambda: cluster.held_by("copied") == {"n2": True}, "the copy to be inherited")
        assert two.put("taken", b"theirs").scope == "cluster"
        assert two.remove("removed") is False  # nobody who lives has it
        cluster.cont(1)
        cluster.await_members()
        cluster.agree()
        facts = cluster.stats(1)["directory"]
        assert facts["lives"] == 2
        assert facts["is_serving"] is True
        assert facts["differences"] == 0
        for client in (one, two):
            assert client.get("mine") == b"mine"
            assert client.get("copied") == b"mine"
            assert client.get("taken") == b"theirs"
            assert client.exists("removed") is False
        assert one.put("new", b"new").scope == "cluster"
        assert two.get("new") == b"new"
    cluster.ledger()


def test_before_its_inventory_is_through_a_node_that_came_back_serves_nobody_and_publishes_nothing(
    cluster: Cluster,
) -> None:
    with cluster.client(1) as one, cluster.client(2) as two:
        one.put("mine", b"mine")
        one.put("taken", b"old")
        cluster.stop(1)
        cluster.await_members(2)
        two.put("taken", b"new")
        cluster.cont(1)
        # Whatever it hears of first, the check is held up.
        cluster.sleep_at(1, "DirectoryBeforeCreate", 4.0)
        eventually(lambda: cluster.stats(1)["directory"]["lives"] == 2, "a new life")
        if not cluster.stats(1)["directory"]["is_serving"]:
            assert one.put("during", b"during").scope == "node"
            assert cluster.held_by("during") == {}
            # Its renewals go on meanwhile: the long check does not cost it its life.
            cluster.await_fired(1, "DirectoryBeforeCreate")
        assert two.get("taken") == b"new"
        cluster.await_members()
        cluster.agree()
        assert cluster.stats(1)["directory"]["lives"] == 2
        assert one.get("taken") == b"new"
        assert two.get("mine") == b"mine"


def test_a_put_whose_node_stood_still_before_it_answered_is_not_said_to_hold_everywhere(cluster: Cluster) -> None:
    with cluster.client(1) as one, cluster.client(2) as two:
        one.put("k", b"old")
        assert two.get("k") == b"old"
        # It waits for node 2 when it is stopped; when it goes on, it cannot come back to life at once.
        cluster.sleep_at(2, "PeerBeforeDrop", 3.0)
        cluster.arm(1, "DirectoryBeforeLookup", "return_error", -900, times=1000)
        upsert = cluster.begin(1, lambda client: client.upsert("k", b"new"))
        cluster.await_fired(2, "PeerBeforeDrop")
        cluster.stop(1)
        cluster.await_members(2)
        cluster.cont(1)
        assert upsert.result().scope == "node"
        cluster.disarm()
        eventually(lambda: cluster.stats(1)["directory"]["is_serving"], "node 1 to serve again")
        cluster.agree()
        assert (one.get("k"), two.get("k")) == (b"new", b"new")


def test_a_node_is_believed_by_those_who_have_not_heard_of_its_newest_life(tmp_path: Path) -> None:
    """A put is visible everywhere when it returns, also the first one of a node that has just come."""
    with Cluster(tmp_path, *FLAGS, count=2) as cluster:
        with cluster.client(2) as two:
            # n2 renews its life, but does not hear who else lives.
            cluster.arm(2, "DirectoryBeforeMembers", "return_error", -900, times=6)
            cluster.kill(1)
            cluster.start(1)
            with cluster.client(1) as one:
                assert one.put("k", b"1").scope == "cluster"
                for _ in range(6):
                    if two.exists("k"):
                        break
                with pytest.raises(StoreError, match="exists on node n1"):
                    eventually(lambda: two.put("k", b"2").scope == "cluster", "a put to be answered")
                assert two.get("k") == one.get("k") == b"1"
        cluster.disarm()
        cluster.agree()


# -- rule 10: partition ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["block", "break_"])
def test_a_node_cut_off_from_the_directory_serves_no_copies_and_gives_way(tmp_path: Path, how: str) -> None:
    cluster = Cluster(tmp_path, *FLAGS, count=2)
    with Passage(cluster.valkey.port) as passage:
        flags = cluster.nodes[1].flags
        flags[flags.index("--directory") + 1] = passage.url
        with cluster, cluster.client(1) as one, cluster.client(2) as two:
            one.put("ours", b"n1", softpin=True)
            two.put("theirs", b"n2")
            assert (two.get("ours"), one.get("theirs")) == (b"n1", b"n2")
            getattr(passage, how)()
            # Whatever n1 believes: once this has returned it does not serve the old one any more.
            two.upsert("theirs", b"newer")
            with pytest.raises(NotFoundError):
                one.get("theirs")
            cluster.await_members(2)
            # What n1 owns it goes on serving, and putting is possible.
            assert one.get("ours") == b"n1"
            assert one.put("new", b"of n1").scope == "node"
            assert one.put("both", b"of n1").scope == "node"
            assert two.put("both", b"of n2").scope == "cluster"
            eventually(lambda: cluster.held_by("ours") == {"n2": True}, "the copy to be inherited")
            assert two.get("ours") == b"n1"
            with pytest.raises(NotFoundError):
                two.get("new")
            with pytest.raises(NotFoundError):
                one.get("theirs")
            passage.mend()
            cluster.await_members()
            cluster.agree()
            for client in (one, two):
                assert client.get("theirs") == b"newer"
                assert client.get("both") == b"of n2"
                assert client.get("new") == b"of n1"
                assert client.get("ours") == b"n1"
                assert client.info("ours").softpin is True
            assert cluster.stats(1)["directory"]["conflicts"] == 1
            assert cluster.stats(1)["directory"]["lives"] > 1


def test_copies_of_a_node_cut_off_are_not_served_after_its_life_is_over(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, *FLAGS, count=2)
    with Passage(cluster.valkey.port) as passage:
        flags = cluster.nodes[1].flags
        flags[flags.index("--directory") + 1] = passage.url
        with cluster, cluster.client(1) as one, cluster.client(2) as two:
            two.put_many({f"k{i}": b"old" for i in range(20)})
            assert [bytes(value) for value in one.get_many([f"k{i}" for i in range(20)])] == [b"old"] * 20
            view = one.get("k0")
            passage.block()
            eventually(lambda: not any(one.exists_many([f"k{i}" for i in range(20)])), "the copies to be fenced")
            assert view == b"old"  # what a client holds it holds
            del view
            two.upsert("k1", b"new")
            assert two.remove("k2") is True
            passage.mend()
            cluster.await_members()
            cluster.agree()
            # It may not have noticed yet that its life is over, and is to begin another and go through its inventory.
            eventually(lambda: not isinstance(one.get_many(["k0"])[0], NotFoundError), "the copies to be served")
            assert one.get("k0") == b"old"
            assert one.get("k1") == b"new"
            assert one.exists("k2") is False


# -- rule 4: the owner dies --------------------------------------------------------------------------------------------


def test_of_a_dead_owner_what_has_a_copy_is_inherited_and_the_rest_is_lost_or_gone(cluster: Cluster) -> None:
    data = pattern("k", 300_000)
    with cluster.client(2) as two:
        with cluster.client(1) as one:
            one.put("pinned copied", data, softpin=True)
            one.put("timed copied", data, softpin=True, softpin_ttl=3600)
            one.put("plain copied", data)
            one.put("pinned alone", data, softpin=True)
            one.put("plain alone", data)
        for key in ("pinned copied", "timed copied", "plain copied"):
            assert two.get(key) == data
        cluster.kill(1)
        cluster.await_members(2)
        eventually(lambda: cluster.held_by("pinned copied") == {"n2": True}, "the copy to be inherited")
        cluster.agree()
        info = two.info("pinned copied")
        assert (info.softpin, info.softpin_deadline_s) == (True, None)
        deadline = two.info("timed copied").softpin_deadline_s
        assert deadline is not None
        assert 3000 < deadline <= 3600
        assert two.get("pinned copied") == data
        assert two.info("plain copied").softpin is False
        with pytest.raises(ObjectLostError):
            two.get("pinned alone")
        with pytest.raises(NotFoundError):
            two.get("plain alone")
        assert two.exists("pinned alone") is False
        for key in ("pinned alone", "plain alone"):
            assert two.put(key, b"again").scope == "cluster"
            assert two.get(key) == b"again"
        # Its owner in name too: a soft pin is not given up for room.
        two.unpin("pinned copied")
        assert two.info("pinned copied").softpin is False
        cluster.start(1)
        cluster.await_members()
        with cluster.client(1) as one:
            assert one.get("pinned copied") == data
            assert one.get("pinned alone") == b"again"
        cluster.agree()
    cluster.ledger()


def test_an_inheritance_that_the_directory_did_not_hear_of_at_once_is_made_up_for(cluster: Cluster) -> None:
    with cluster.client(1) as one, cluster.client(2) as two:
        one.put("k", b"1", softpin=True)
        assert two.get("k") == b"1"
    cluster.arm(2, "DirectoryBeforeTransfer", "return_error", -900)
    cluster.arm(2, "DirectoryAfterTransfer", "return_error", -900)
    cluster.kill(1)
    cluster.await_members(2)
    with cluster.client(2) as two:
        eventually(lambda: two.info("k").softpin and cluster.held_by("k") == {"n2": True}, "the copy to be inherited")
        eventually(lambda: cluster.fired(2, "DirectoryAfterTransfer"), "the answer to be lost")
        two.pin("k", 60)  # which only an owner can
        assert two.info("k").softpin_deadline_s is not None
        assert two.get("k") == b"1"
    cluster.agree()
