"""What removing, pinning, statistics and faults promise, for both clients."""

import os

import pytest

from mooncake_client import InvalidArgumentError, NotFoundError, StoreError
from tests.client.conftest import POOL_NBYTES
from tests.support import eventually

OTHER_GENERATION = "0123456789abcdef"


def test_remove_says_whether_it_was_there(c):
    c.put("k", b"x")
    assert c.remove("k") is True
    assert c.remove("k") is False
    assert c.exists("k") is False
    with pytest.raises(NotFoundError):
        c.get("k")


def test_remove_by_generation_never_takes_another_life_of_the_key(c):
    first = c.put("k", b"1")
    assert c.remove("k", generation=OTHER_GENERATION) is False
    assert c.remove("k", generation=first.generation) is True
    second = c.put("k", b"2")
    assert c.remove("k", generation=first.generation) is False
    assert c.get("k") == b"2"
    assert c.remove("k", generation=second.generation, scope="node") is True


def test_remove_of_an_object_being_read_hides_it_at_once_and_keeps_its_memory(c, watcher):
    c.put("k", b"x" * 5000)
    held = c.get("k")
    assert c.remove("k") is True
    stats = watcher.stats()
    assert (stats["stash"], stats["handles"]) == ({"objects": 1, "bytes": 5000}, 1)
    c.put("k", b"new")
    assert held == b"x" * 5000
    assert c.get("k") == b"new"
    del held
    eventually(lambda: watcher.stats()["stash"]["objects"] == 0, "the stash to be freed")


def test_remove_of_an_unfinished_put_leaves_it_alone(c, watcher):
    room = watcher.create("k", 1)
    assert c.remove("k") is False
    room.publish()
    assert c.exists("k")


def test_remove_many_and_prefix_and_all_count_what_went(c):
    c.put_many({f"a/{i}": b"" for i in range(3000)} | {"b/1": b"", "b/2": b"", "c": b""})
    assert c.remove_many(["b/1", "none", "b/1"]) == [True, False, False]
    assert c.remove_prefix("a/") == 3000
    assert c.remove_prefix("a/") == 0
    assert sorted(info.key for info in c.list()) == ["b/2", "c"]
    assert c.remove_prefix("b/", scope="node") == 1
    c.put("d", b"")
    assert c.remove_all() == 2
    assert c.remove_all(scope="node") == 0


def test_remove_all_keeps_what_is_read_and_refuses_what_was_begun(c, watcher):
    c.put("read", b"r" * 100)
    held = c.get("read")
    room = c.create("begun", 10)
    assert watcher.remove_all() == 1
    assert held == b"r" * 100
    with pytest.raises(NotFoundError, match="remove_all"):
        room.publish()
    assert not c.exists("begun")
    c.put("begun", b"after")
    del held


def test_pin_and_unpin_change_the_contract(c, watcher):
    c.put("k", bytes(1000))
    c.pin("k")
    info = c.info("k")
    assert (info.softpin, info.softpin_deadline_s) == (True, None)
    assert watcher.stats()["pinned"]["soft_bytes"] == 1000
    c.pin("k", 30)
    assert 0 < c.info("k").softpin_deadline_s <= 30
    c.unpin("k")
    c.unpin("k")
    assert not c.info("k").softpin
    c.pin("k", ttl=0)
    assert not c.info("k").softpin
    assert watcher.stats()["pinned"]["soft_bytes"] == 0
    for call in (c.pin, c.unpin):
        with pytest.raises(NotFoundError):
            call("none")
    with pytest.raises(InvalidArgumentError):
        c.pin("k", 1e9)


def test_softpin_of_a_put_lasts_as_asked(c):
    c.put("for ever", b"", softpin=True)
    c.put("a while", b"", softpin=True, softpin_ttl=100)
    c.put("not at all", b"", softpin=True, softpin_ttl=0)
    assert [c.info(key).softpin for key in ("for ever", "a while", "not at all")] == [True, True, False]
    with pytest.raises(InvalidArgumentError):
        c.put("too long", b"", softpin=True, softpin_ttl=1e9)
    with pytest.raises(InvalidArgumentError):
        c.put("hard", b"", hardpin=True)
    assert not c.exists("hard")


STATS = {
    "pool": ["bytes_total", "bytes_used", "bytes_free", "largest_free_extent", "quarantined_bytes", "doomed_bytes"],
    "stash": ["objects", "bytes"],
    "pinned": ["soft_bytes", "hard_bytes"],
}
STATS_NUMBERS = ["objects", "unpublished", "handles", "leases", "clients", "waiting_puts"]


def test_stats_has_what_users_rely_on(c):
    c.put("k", bytes(5000))
    room, held = c.create("r", 100), c.get("k")
    stats = c.stats()
    for group, names in STATS.items():
        assert all(isinstance(stats[group][name], int) for name in names), group
    assert all(isinstance(stats[name], int) for name in STATS_NUMBERS)
    assert stats["pool"]["bytes_total"] == POOL_NBYTES
    assert stats["pool"]["bytes_used"] + stats["pool"]["bytes_free"] == POOL_NBYTES
    assert stats["pool"]["bytes_used"] >= 8192
    assert (stats["objects"], stats["unpublished"], stats["handles"], stats["clients"]) == (1, 1, 1, 2)
    room.abort()
    del held


def test_faults_of_the_daemon_are_armed_through_its_admin_socket(c):
    assert c.inject_fault_local_master("NodeBeforePutStart", "return_error", -800) == 0
    assert c.get_fault_status_local_master("NodeBeforePutStart")["armed"]
    with pytest.raises(StoreError) as caught:
        c.put("k", b"")
    assert caught.value.code == -800
    c.put("k", b"")
    status = c.get_fault_status_local_master("NodeBeforePutStart")
    assert (status["hits"], status["fired"], status["armed"]) == (2, 1, False)
    assert c.inject_fault_local_master("NodeBeforePutStart", "reset") == 0
    assert c.get_fault_status_local_master("NodeBeforePutStart")["hits"] == 0
    with pytest.raises(InvalidArgumentError, match="NodeBeforePutStart"):
        c.inject_fault_local_master("NoSuchPoint", "sleep", 1)


def test_client_says_who_it_is(connect, watcher):
    c = connect(name="who")
    c.put("k", b"")
    held = c.get("k")
    (holder,) = watcher.holders("k")
    assert (holder.client, holder.pid) == ("who", os.getpid())
    assert "who" in repr(c)
    del held
