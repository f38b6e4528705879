"""Gets by the shared index: without a request, otherwise as any other get, for both clients."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch

from mooncake_client import NotFoundError
from mooncake_client.index_layout import KEY_NBYTES_MAX
from mooncake_client.session import Session
from tests.support import digest, eventually, pattern

LONG = "k" * (KEY_NBYTES_MAX + 1)
FAULTS = False  # with fault injection there is no index


@pytest.fixture
def asked(monkeypatch):
    """What this process asks daemons for within a `with` block."""
    begin, kinds = Session.begin, []

    def spy(session, request, *args):
        kinds.append(type(request).__name__)
        return begin(session, request, *args)

    @contextmanager
    def asking():
        kinds.clear()
        with monkeypatch.context() as patch:
            patch.setattr(Session, "begin", spy)
            yield kinds

    return asking


def stash_goes(watcher):
    eventually(lambda: watcher.stats()["stash"]["objects"] == 0, "the stash to go without another call")


# -- without a request -------------------------------------------------------------------------------------------------


def test_what_is_in_the_index_is_read_without_a_request(c, watcher, asked):
    watcher.put("k", {"x": np.arange(1000)})
    watcher.put_from("raw", b"bytes")
    watcher.put("e", b"")
    with asked() as kinds:
        for _ in range(2):
            assert (c.get("k")["x"] == np.arange(1000)).all()
            assert (c.get("k", copy=True)["x"] == np.arange(1000)).all()
            assert c.get("raw", timeout=1.0) == b"bytes"
            assert c.get("e") == b""
            assert [bytes(got) for got in c.get_many(["raw", "e"])] == [b"bytes", b""]
            assert bytes(c.get_buffer("raw")) == b"bytes"
            assert [bytes(handle) for handle in c.get_buffers(["e", "raw"])] == [b"", b"bytes"]
            room = bytearray(7)
            assert (c.get_into("raw", room), bytes(room)) == (5, b"bytes\0\0")
            assert (c.exists("k"), c.exists("no such")) == (True, False)
            assert c.exists_many(["e", "no such", "raw"]) == [True, False, True]
            assert (c.size("raw"), c.size("e")) == (5, 0)
        assert kinds == []


def test_of_many_only_those_are_asked_for_that_are_not_in_the_index(c, watcher, asked):
    watcher.put_from("k", b"k")
    watcher.put_from(LONG, b"long")
    keys = ["k", LONG, "no such", "k"]
    with asked() as kinds:
        found = c.get_many(keys)
        handles = c.get_buffers(keys)
        assert c.exists_many(keys) == [True, True, False, True]
    assert kinds == ["Acquire", "Acquire", "Exists"]
    assert [bytes(got) for got in found[:2]] == [b"k", b"long"]
    assert [bytes(handle) for handle in handles[:2]] == [b"k", b"long"]
    assert all(isinstance(items[2], NotFoundError) and bytes(items[3]) == b"k" for items in (found, handles))


def test_what_is_not_in_the_index_is_asked_for(c, asked):
    with asked() as kinds:
        with pytest.raises(NotFoundError):
            c.get("no such")
        with pytest.raises(NotFoundError):
            c.size("no such")
    assert kinds == ["Acquire", "Info"]


def test_with_something_readable_that_is_not_in_the_index_a_miss_says_nothing(c, watcher, asked):
    watcher.put(LONG, 1)
    with asked() as kinds:
        assert c.exists("no such") is False
        assert c.exists(LONG) is True
    assert kinds == ["Exists", "Exists"]
    watcher.remove(LONG)
    with asked() as kinds:
        assert c.exists("no such") is False
    assert kinds == []


def test_what_others_do_is_seen_at_once(c, watcher):
    for number in range(300):
        assert not c.exists("k")
        watcher.put("k", number)
        assert c.exists("k")
        assert c.get("k") == number
        watcher.upsert("k", -number)
        assert c.get("k") == -number
        assert watcher.remove("k")
        assert not c.exists("k")
        with pytest.raises(NotFoundError):
            c.get("k")


# -- what is shown of it -----------------------------------------------------------------------------------------------


def test_pins_are_shown_as_handles_are(c, watcher):
    watcher.put_from("k", b"x" * 5000)
    hits = watcher.stats()["load"]["local_hits"]
    handles = [c.get_buffer("k") for _ in range(3)]
    watched = watcher.get("k")
    assert watcher.info("k").refs == 4
    assert [item.refs for item in watcher.list()] == [4]
    assert {holder.client: holder.handles for holder in watcher.holders("k")} == {"tested": 3, "watcher": 1}
    stats = watcher.stats()
    assert (stats["handles"], stats["load"]["local_hits"] - hits) == (4, 4)
    watcher.remove("k")
    assert {(holder.client, holder.note) for holder in watcher.holders("k")} == {
        ("tested", "stashed"),
        ("watcher", "stashed"),
    }
    del watched, handles[1:]
    assert watcher.stats()["handles"] == 1
    assert [holder.client for holder in watcher.holders("k")] == ["tested"]
    assert bytes(handles[0]) == b"x" * 5000


def test_handles_of_pins_and_of_requests_are_told_apart(c, watcher):
    watcher.put("k", 1)
    watcher.put(LONG, 1)
    ids = [c.get_buffer(key).handle_id for key in ("k", "k", LONG, LONG)]
    assert len(set(ids)) == 4
    assert len({session_id for session_id, _number in ids}) == 1
    assert c.get_buffer("k").generation == watcher.info("k").generation


# -- how long it is protected ------------------------------------------------------------------------------------------

DERIVED = {
    "the view": lambda view: view,
    "a slice": lambda view: view[100:],
    "a slice of a slice": lambda view: view[100:][:50],
    "a cast": lambda view: view.cast("I"),
    "an array": lambda view: np.frombuffer(view, np.uint8),
    "a part of an array": lambda view: np.frombuffer(view, np.uint8)[8:].reshape(8, -1)[1:, ::2].view(np.int8),
    "a tensor": lambda view: torch.frombuffer(view, dtype=torch.uint8),
    "a part of a tensor": lambda view: torch.from_numpy(np.frombuffer(view, np.uint8))[8:].reshape(8, -1).T,
    "DLPack": lambda view: np.from_dlpack(torch.frombuffer(view, dtype=torch.uint8)),
    "several": lambda view: [view[:10], np.frombuffer(view, np.uint8)[50:]],
}


@pytest.mark.filterwarnings("ignore:The given buffer is not writable", "ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("how", DERIVED)
def test_whatever_is_made_of_a_view_keeps_its_bytes_until_the_last_of_it_is_dead(c, watcher, how):
    watcher.put_from("k", pattern("k", 4096))
    with c.get_buffer("k") as handle:
        derived = DERIVED[how](handle.view)
    assert watcher.stats()["handles"] == 1
    watcher.remove("k")
    assert watcher.stats()["stash"] == {"objects": 1, "bytes": 4096}
    # Would be written over now, were it free.
    watcher.create("new", watcher.stats()["pool"]["largest_free_extent"]).view[::4096] = bytes(16383)
    with memoryview(pattern("k", 4096)) as expected:
        same = DERIVED[how](expected)
        for mine, theirs in zip(*(x if isinstance(x, list) else [x] for x in (derived, same)), strict=True):
            assert bytes(np.asarray(mine)) == bytes(np.asarray(theirs))
        del same, mine, theirs
    del derived
    stash_goes(watcher)
    assert watcher.stats()["handles"] == 0


def test_arrays_of_an_object_keep_it_one_by_one(c, watcher):
    watcher.put("k", {name: np.full(1000, number) for number, name in enumerate("abc")})
    got = c.get("k")
    last = got["b"][5:7]
    watcher.remove("k")
    del got
    assert watcher.stats()["stash"]["objects"] == 1
    assert last.tolist() == [1, 1]
    assert not last.flags.writeable
    del last
    stash_goes(watcher)


def test_a_copy_keeps_nothing(c, watcher):
    watcher.put("k", np.arange(1000))
    got = c.get("k", copy=True)
    assert watcher.stats()["handles"] == 0
    watcher.remove("k")
    eventually(lambda: watcher.stats()["pool"]["bytes_used"] == 0, "the memory to be free")
    assert (got == np.arange(1000)).all()


def test_an_upsert_leaves_the_old_view_as_it_is(c, watcher):
    views = []
    for number in range(5):
        watcher.upsert("k", np.full(2000, number))
        views.append(c.get("k"))
    assert [int(view[-1]) for view in views] == list(range(5))
    assert watcher.stats()["stash"]["objects"] == 4
    del views[:2]
    eventually(lambda: watcher.stats()["stash"]["objects"] == 2, "the first two to go")
    assert [int(view[0]) for view in views] == [2, 3, 4]
    del views
    stash_goes(watcher)


def test_remove_all_takes_the_names_and_leaves_the_bytes(c, watcher):
    watcher.put_many({f"k{number}": np.full(1000, number) for number in range(20)})
    views = c.get_many([f"k{number}" for number in range(20)])
    assert watcher.remove_all() == 20
    assert not any(c.exists_many([f"k{number}" for number in range(20)]))
    watcher.put_many({f"k{number}": np.full(1000, -1) for number in range(20)})
    assert [int(view[500]) for view in views] == list(range(20))
    eventually(lambda: watcher.stats()["stash"]["objects"] == 20, "all to be stashed")
    del views
    stash_goes(watcher)


def test_a_closed_client_goes_with_its_last_view(c, watcher):
    """Also when nobody waits for it."""
    watcher.put_from("k", b"k" * 100)
    views = [c.get("k"), c.get("k")]
    c.close()
    del views[0]
    assert (watcher.stats()["clients"], watcher.stats()["handles"]) == (2, 1)
    del views
    eventually(lambda: watcher.stats()["clients"] == 1, "the connection to end with its last view")


def test_a_client_closed_with_live_views_stays_until_they_are_dead(c, watcher):
    watcher.put_from("k", pattern("k", 10_000))
    view = c.get("k")
    part = view[5000:]
    c.close()
    del view
    assert watcher.stats()["clients"] == 2
    watcher.remove("k")
    watcher.create("new", watcher.stats()["pool"]["largest_free_extent"]).view[::4096] = bytes(16381)
    assert digest(part) == digest(pattern("k", 10_000)[5000:])
    del part
    eventually(lambda: watcher.stats()["clients"] == 1, "the connection to end with its last view")
    stash_goes(watcher)


def test_a_release_with_live_views_waits_for_them(c, watcher):
    watcher.put_from("k", b"k" * 100)
    handle = c.get_buffer("k")
    view = handle.view[1:]
    handle.release()
    handle.release()
    assert watcher.stats()["handles"] == 1
    del view
    assert watcher.stats()["handles"] == 0


# -- who has no index --------------------------------------------------------------------------------------------------


def test_a_readonly_client_has_none_and_reads_all_the_same(connect, watcher, asked):
    watcher.put_from("k", b"k" * 100)
    with connect(readonly=True) as reader, asked() as kinds:
        assert bytes(reader.get_buffer("k")) == b"k" * 100
        assert reader.exists("k")
        assert reader.size("k") == 100
    assert kinds == ["Acquire", "Exists", "Info"]


def calls(c, key):
    """What every reading call says of *key*, and of one that is not there."""
    handle, room = c.get_buffer(key), bytearray(20)
    handles = c.get_buffers([key, "no such"])
    many = c.get_many(["no such", key])
    with pytest.raises(NotFoundError):
        c.get("no such")
    return (
        bytes(c.get(key)), bytes(c.get(key, copy=True)), bytes(handle), handle.generation, len(handle),
        bytes(handles[0]), type(handles[1]), type(many[0]), bytes(many[1]), c.get_into(key, room), bytes(room),
        c.exists(key), c.exists_many([key, "no such"]), c.size(key), c.info(key).nbytes, c.info(key).refs,
    )  # fmt: skip


@pytest.mark.parametrize("place", ["long key", "no index", "on disk"])
def test_without_the_index_everything_is_the_same(c, connect, watcher, make_node, tmp_path, asked, place):
    watcher.put_from("k", b"k" * 10)
    with asked() as kinds:
        expected = calls(c, "k")
    assert kinds == ["Acquire"] * 3 + ["Info"] * 2, "for what is not there"
    key = LONG if place == "long key" else "k"
    node = make_node(
        *(["--set", "shared_index=off"] if place == "no index" else []),
        *(["--offload-dir", str(tmp_path / "tier")] if place == "on disk" else []),
    )
    with node.client() as other:
        other.put_from(key, b"k" * 10, softpin=True)
    if place == "on disk":
        assert node.stop() == 0
        node.start()
    with connect(node.socket) as asker:
        if place == "on disk":
            assert asker.info(key).state == "on_disk"
            assert asker.exists(key)
        got = list(calls(asker, key))
        got[3] = expected[3]  # the generation
        assert tuple(got) == expected
    with node.client() as other:
        eventually(lambda: other.stats()["handles"] == 0, "all handles to be back")
