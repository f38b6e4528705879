"""What every put promises, for the blocking client and for the asyncio client on both loops."""

import numpy as np
import pytest
import torch

from mooncake_client import (
    ExistsError,
    InvalidArgumentError,
    NoSpaceError,
    NotFoundError,
    NotReadyError,
    PutInfo,
    StoreError,
)
from tests.client.conftest import POOL_NBYTES
from tests.support import eventually


def test_put_tells_generation_length_and_scope(c):
    first = c.put("k", b"12345")
    assert isinstance(first, PutInfo)
    assert (first.nbytes, first.scope, len(first.generation)) == (5, "cluster", 16)
    c.remove("k")
    second = c.put("k", b"", scope="node")
    assert (second.nbytes, second.scope) == (0, "node")
    assert second.generation > first.generation


def test_put_of_any_object_gives_it_back_equal(c):
    obj = {
        "ids": [1, 2, 3],
        "text": "é",
        "t": (1, None),
        "x": np.arange(1000),
        "y": torch.ones(3, dtype=torch.bfloat16),
    }
    c.put("k", obj)
    back = c.get("k")
    assert back["ids"] == [1, 2, 3]
    assert (back["text"], back["t"]) == ("é", (1, None))
    assert (back["x"] == obj["x"]).all()
    assert torch.equal(back["y"], obj["y"])
    assert c.info("k").kind == "encoded"


@pytest.mark.parametrize("obj", [b"abc", bytearray(b"abc"), memoryview(b"abc")])
def test_put_of_bytes_is_raw_and_comes_back_as_a_readonly_memoryview(c, obj):
    c.put("k", obj)
    back = c.get("k")
    assert isinstance(back, memoryview)
    assert back.readonly
    assert back == b"abc"
    assert c.info("k").kind == "raw"


def test_put_parts_stores_exactly_the_concatenated_bytes(c):
    payload = np.arange(1000, dtype=np.float32)
    info = c.put_parts("k", b"h" * 28, b"", payload, bytearray(b"end"))
    assert info.nbytes == 28 + 4000 + 3
    assert c.get("k") == b"h" * 28 + payload.tobytes() + b"end"
    assert c.put_parts("none").nbytes == 0
    assert c.put_parts("empty parts", b"", b"").nbytes == 0
    assert c.get("none") == b""
    assert c.get("empty parts") == b""


@pytest.mark.parametrize(
    "make",
    [
        lambda: b"raw",
        lambda: np.arange(12, dtype=np.int16).reshape(3, 4),
        lambda: np.asfortranarray(np.eye(3, dtype=np.float32)[:, :1]),
        lambda: memoryview(bytearray(64)).cast("d"),
    ],
)
def test_put_from_stores_the_bytes_of_the_buffer_whatever_its_items(c, make):
    buffer = make()
    expected = memoryview(buffer).tobytes()
    assert c.put_from("k", buffer).nbytes == len(expected)
    assert c.get("k") == expected


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, 4095, 4096, 4097, (1 << 20) + 1, (2 << 20) - 1, 5 << 20])
def test_every_size_comes_back_exactly(c, nbytes):
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, dtype=np.uint8)
    c.put_from("k", data)
    assert c.size("k") == nbytes
    assert (np.frombuffer(c.get("k"), dtype=np.uint8) == data).all()


def test_second_put_of_a_key_is_refused_and_changes_nothing(c):
    c.put("k", b"first")
    with pytest.raises(ExistsError) as caught:
        c.put("k", b"second")
    assert (caught.value.code, caught.value.key) == (-705, "k")
    assert c.get("k") == b"first"


def test_put_beside_an_unfinished_one_waits_and_is_not_ready_at_its_deadline(c, watcher):
    with watcher.create("k", 10) as room, pytest.raises(NotReadyError) as caught:
        try:
            c.put("k", b"x", timeout=0.05)
        finally:
            room.abort()
    assert (caught.value.code, caught.value.key) == (-703, "k")
    assert "watcher" in str(caught.value)


def test_put_that_can_never_fit_is_refused_at_once_with_the_numbers(c):
    c.put("kept", b"x")
    for timeout in (0, None):
        with pytest.raises(NoSpaceError) as caught:
            c.create("k", POOL_NBYTES + 1, timeout=timeout)
        assert (caught.value.code, caught.value.key) == (-200, "k")
        assert str(POOL_NBYTES) in str(caught.value)
    assert c.exists("kept")


def test_put_without_room_fails_at_its_deadline_and_says_what_holds_the_pool(c, watcher):
    watcher.create("held", 50 << 20).publish()
    handle = watcher.get_buffer("held")
    with pytest.raises(NoSpaceError) as caught:
        c.put("k", bytes(20 << 20), timeout=0.05)
    assert "held by readers" in str(caught.value)
    handle.release()
    watcher.remove("held")
    c.put("k", bytes(20 << 20))


def test_create_gives_room_that_is_seen_only_when_published(c, watcher):
    room = c.create("k", 5000)
    assert (len(room), room.nbytes, room.key, room.open) == (5000, 5000, "k", True)
    assert not room.view.readonly
    room.view[:] = b"z" * 5000
    assert not watcher.exists("k")
    info = room.publish()
    assert isinstance(info, PutInfo)
    assert info.nbytes == 5000
    assert watcher.get("k") == b"z" * 5000
    assert not room.open
    for use in (lambda: room.view, room.publish):
        with pytest.raises(InvalidArgumentError):
            use()


@pytest.mark.parametrize(
    "derive",
    [
        lambda view: view,
        lambda view: view[1:2],
        lambda view: view.cast("H"),
        lambda view: np.frombuffer(view, dtype=np.uint8)[3:],
        lambda view: torch.frombuffer(view, dtype=torch.uint8)[1:].view(-1),
    ],
    ids=["itself", "slice", "cast", "numpy", "torch"],
)
def test_publish_is_refused_while_an_export_lives_and_works_afterwards(c, derive):
    room = c.create("k", 4096)
    export = derive(room.view)
    with pytest.raises(BufferError):
        room.publish()
    assert not c.exists("k")
    room.view[0:1] = b"!"
    del export
    room.publish()
    assert c.get("k")[:1] == b"!"


def test_publish_after_the_released_view_is_not_refused(c):
    room = c.create("k", 4)
    view = room.view
    view[:] = b"abcd"
    view.release()
    room.publish()
    assert c.get("k") == b"abcd"


def test_abort_gives_the_room_back_and_frees_the_key(c, watcher):
    room = c.create("k", 1 << 20)
    room.abort()
    room.abort()
    eventually(lambda: watcher.stats()["unpublished"] == 0, "the room to be given back")
    c.put("k", b"other")
    with pytest.raises(InvalidArgumentError):
        room.publish()


def test_abort_with_a_live_export_keeps_the_room_until_it_dies(c, watcher):
    room = c.create("k", 1 << 20)
    export = np.frombuffer(room.view, dtype=np.uint8)
    room.abort()
    del room
    c.put("other", b"a request that would carry the news")
    assert watcher.stats()["unpublished"] == 1
    del export
    eventually(lambda: watcher.stats()["unpublished"] == 0, "the room to be given back")


def test_dropping_the_buffer_gives_the_room_up(c, watcher):
    c.create("k", 1 << 20)
    eventually(lambda: watcher.stats()["unpublished"] == 0, "the room to be given back")


def test_buffer_as_context_publishes_at_its_end_and_gives_up_on_an_exception(c, watcher):
    with c.create("good", 3) as room:
        room.view[:] = b"abc"
    assert c.get("good") == b"abc"
    with pytest.raises(ZeroDivisionError), c.create("bad", 3) as room:
        room.view[:] = b"abc"
        _ = 1 / 0
    eventually(lambda: watcher.stats()["unpublished"] == 0, "the room to be given back")
    assert not c.exists("bad")
    with c.create("done inside", 3) as room:
        room.publish()
    with c.create("dropped inside", 3) as room:
        room.abort()
    assert c.exists_many(["done inside", "dropped inside"]) == [True, False]


def test_create_of_nothing_is_an_empty_object(c):
    with c.create("k", 0) as room:
        assert room.view.nbytes == 0
    assert c.get("k") == b""


def test_upsert_puts_replaces_and_leaves_old_views_alone(c):
    first = c.upsert("k", b"one")
    old = c.get("k")
    second = c.upsert("k", np.arange(5))
    assert second.generation > first.generation
    assert (c.get("k") == np.arange(5)).all()
    assert old == b"one"


def test_upsert_that_finds_no_room_leaves_the_old_object(c):
    c.create("k", 40 << 20).publish()
    with pytest.raises(NoSpaceError):
        c.upsert("k", bytes(40 << 20), timeout=0.02)
    assert c.size("k") == 40 << 20


def test_put_many_says_for_each_key_what_became_of_it(c):
    c.put("taken", b"old")
    results = c.put_many({"a": b"1", "taken": b"new", "": b"?", "big": {"x": np.ones(5)}, "bad": object()})
    assert list(results) == ["a", "taken", "", "big", "bad"]
    assert isinstance(results["a"], PutInfo)
    assert isinstance(results["big"], PutInfo)
    assert isinstance(results["taken"], ExistsError)
    assert results["taken"].key == "taken"
    assert isinstance(results[""], InvalidArgumentError)
    assert isinstance(results["bad"], InvalidArgumentError)
    assert c.get("taken") == b"old"
    assert c.put_many({}) == {}


def test_put_many_of_more_than_a_message_takes_stores_all(c):
    objects = {f"many/{i}": str(i).encode() for i in range(5000)}
    results = c.put_many(objects)
    assert all(isinstance(info, PutInfo) for info in results.values())
    keys = list(objects)
    assert c.exists_many(keys) == [True] * 5000
    back = c.get_many([*keys, "not there"])
    assert back[:-1] == list(objects.values())
    assert isinstance(back[-1], NotFoundError)
    assert sum(1 for _ in c.list("many/")) == 5000
    assert c.remove_many([*keys, "not there"]) == [True] * 5000 + [False]


def test_put_many_larger_than_the_pool_stores_what_fits_and_names_the_rest(c):
    objects = {f"k{i}": bytes(24 << 20) for i in range(4)}
    results = c.put_many(objects, softpin=True, timeout=0.1)
    stored = [key for key, result in results.items() if isinstance(result, PutInfo)]
    assert len(stored) == 2
    assert all(isinstance(results[key], NoSpaceError) for key in results.keys() - stored)
    assert [c.size(key) for key in stored] == [24 << 20] * 2


def test_readonly_client_reads_and_may_change_nothing(connect):
    writer, c = connect(), connect(readonly=True)
    writer.put("k", b"x")
    assert c.get("k") == b"x"
    refused = [
        lambda: c.put("n", b""),
        lambda: c.create("n", 1),
        lambda: c.upsert("k", b""),
        lambda: c.remove("k"),
        lambda: c.remove_prefix(""),
        lambda: c.remove_all(),
        lambda: c.pin("k"),
        lambda: c.unpin("k"),
    ]
    for call in refused:
        with pytest.raises(InvalidArgumentError, match="readonly"):
            call()
    assert isinstance(c.put_many({"n": b""})["n"], StoreError)
    assert c.exists_many(["k", "n"]) == [True, False]
