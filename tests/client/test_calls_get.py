"""What every get, look and wait promises, for the blocking client and for the asyncio client on both loops."""

import threading

import numpy as np
import pytest
import torch

from mooncake_client import (
    BufferHandle,
    Holder,
    InvalidArgumentError,
    NotFoundError,
    NotReadyError,
    ObjectInfo,
    StoreTimeoutError,
)
from tests.support import eventually


def test_missing_key_is_an_error_of_its_own_in_every_reading_call(c):
    for call in (c.get, c.get_buffer, c.size, c.info, lambda key: c.get_into(key, bytearray(9))):
        with pytest.raises(NotFoundError) as caught:
            call("no such")
        assert isinstance(caught.value, KeyError)
        assert (caught.value.code, caught.value.key) == (-704, "no such")
        assert str(caught.value).endswith("(-704)")
    assert c.exists("no such") is False
    for found in (c.get_many(["no such"]), c.get_buffers(["no such"])):
        assert isinstance(found[0], NotFoundError)
        assert found[0].key == "no such"


def test_empty_object_is_there_in_every_reading_call(c):
    c.put("k", b"")
    assert c.exists("k") is True
    assert c.size("k") == 0
    assert c.get("k") == b""
    with c.get_buffer("k") as handle:
        assert handle
        assert (len(handle), bytes(handle), handle.view.nbytes) == (0, b"", 0)
    assert c.get_into("k", bytearray()) == 0
    assert c.get_many(["k", "none"])[0] == b""
    assert bytes(c.get_buffers(["k"])[0]) == b""


def test_arrays_from_get_are_readonly_views_and_private_writable_ones_with_copy(c):
    c.put("k", {"x": np.zeros((3, 1000)), "b": b"y" * 10_000})
    view = c.get("k")
    assert not view["x"].flags.writeable
    assert not view["x"].flags.owndata
    assert view["x"].ctypes.data % 64 == 0
    with pytest.raises(ValueError, match="read-only"):
        view["x"][0, 0] = 1
    private = c.get("k", copy=True)
    private["x"][:] = 7
    assert isinstance(private["b"], bytes)
    assert (c.get("k")["x"] == 0).all()


def test_copy_of_a_large_object_holds_no_reference(c, watcher):
    c.put("k", torch.ones(1 << 20))
    private = c.get("k", copy=True)
    private += 1
    eventually(lambda: watcher.stats()["handles"] == 0, "the handle to be let go")
    assert bool((private == 2).all())


def test_get_with_a_type_builds_it(c):
    c.put("k", {"a": 1, "b": [2, 3]})
    assert c.get("k", type=dict[str, int | list[int]]) == {"a": 1, "b": [2, 3]}
    with pytest.raises(InvalidArgumentError):
        c.get("k", type=list[int])


def test_buffer_handle_shows_the_stored_bytes(c):
    info = c.put("k", b"0123456789")
    handle = c.get_buffer("k")
    assert isinstance(handle, BufferHandle)
    assert handle.view == b"0123456789"
    assert handle.view.readonly
    assert (handle.nbytes, len(handle), bytes(handle)) == (10, 10, b"0123456789")
    assert handle.generation == info.generation
    other = c.get_buffer("k")
    assert other.handle_id != handle.handle_id
    assert other.handle_id[0] == handle.handle_id[0]
    handle.release()
    handle.release()
    assert len(handle) == 10
    with pytest.raises(InvalidArgumentError):
        _ = handle.view
    with other:
        assert other.view[0] == ord("0")
    with pytest.raises(InvalidArgumentError):
        bytes(other)


def test_get_into_writes_exactly_the_object_and_says_how_many_bytes(c):
    c.put("k", b"abcde")
    buffer = bytearray(b"........")
    assert c.get_into("k", buffer) == 5
    assert buffer == b"abcde..."
    big = np.random.default_rng(1).integers(0, 255, 5 << 20, dtype=np.uint8)
    c.put_from("big", big)
    target = np.full((5 << 20) + 3, 9, dtype=np.uint8)
    assert c.get_into("big", target) == 5 << 20
    assert (target[:-3] == big).all()
    assert (target[-3:] == 9).all()


@pytest.mark.parametrize(
    "buffer",
    [b"readonly....", bytearray(4), np.zeros((9, 9), dtype=np.uint8)[:, ::2], "text", None],
    ids=["readonly", "short", "strided", "str", "None"],
)
def test_get_into_what_cannot_take_it_is_refused_and_writes_nothing(c, buffer):
    c.put("k", b"abcde")
    before = bytes(buffer) if isinstance(buffer, bytearray | bytes | np.ndarray) else None
    with pytest.raises(InvalidArgumentError):
        c.get_into("k", buffer)
    if before is not None:
        assert bytes(buffer) == before


def test_batches_answer_key_by_key_in_order(c):
    c.put_many({"a": b"1", "b": 2})
    found = c.get_many(["b", "none", "a", "a"])
    assert (found[0], found[2], found[3]) == (2, b"1", b"1")
    assert isinstance(found[1], NotFoundError)
    handles = c.get_buffers(["a", "none"])
    assert isinstance(handles[0], BufferHandle)
    assert isinstance(handles[1], NotFoundError)
    assert c.exists_many(["a", "none", "a"]) == [True, False, True]
    assert c.get_many([]) == c.get_buffers([]) == c.exists_many([]) == c.remove_many([]) == []


def test_get_waits_for_the_writer_of_a_new_key(c, watcher):
    room = watcher.create("k", 3)
    got: list[object] = []
    reader = threading.Thread(target=lambda: got.append(bytes(c.get("k"))))
    reader.start()
    eventually(lambda: watcher.stats()["waiting"] == 1, "the reader to wait")
    room.view[:] = b"abc"
    room.publish()
    reader.join()
    assert got == [b"abc"]


def test_get_of_a_key_whose_writer_gives_up_is_not_found(c, watcher):
    room = watcher.create("k", 3)
    caught: list[Exception] = []

    def read() -> None:
        try:
            c.get("k")
        except NotFoundError as exc:
            caught.append(exc)

    reader = threading.Thread(target=read)
    reader.start()
    eventually(lambda: watcher.stats()["waiting"] == 1, "the reader to wait")
    room.abort()
    reader.join()
    assert caught[0].key == "k"


@pytest.mark.parametrize("timeout", [0, 0.03])
def test_get_of_an_unfinished_key_is_not_ready_at_its_deadline(c, watcher, timeout):
    room = watcher.create("k", 3)
    assert c.exists("k") is False
    for call in (c.get, c.get_buffer):
        with pytest.raises(NotReadyError) as caught:
            call("k", timeout=timeout)
        assert (caught.value.code, caught.value.key) == (-703, "k")
    with pytest.raises(NotReadyError):
        c.info("k")
    room.abort()


def test_wait_returns_when_the_key_is_there(c, watcher):
    done = threading.Event()

    def wait() -> None:
        assert c.wait("k") is None
        done.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    eventually(lambda: watcher.stats()["waiting"] == 1, "the call to wait")
    assert not done.is_set()
    watcher.put("k", b"")
    waiter.join()
    assert done.is_set()
    c.wait("k", 0)


@pytest.mark.parametrize("timeout", [0, 0.03])
def test_wait_for_what_does_not_come_times_out(c, timeout):
    with pytest.raises(StoreTimeoutError) as caught:
        c.wait("k", timeout=timeout)
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.code == -901


def test_info_shows_what_is_known_of_an_object(c):
    put = c.put("k", b"12345", softpin=True, softpin_ttl=60, scope="node")
    held = c.get("k")
    info = c.info("k")
    assert isinstance(info, ObjectInfo)
    assert (info.key, info.nbytes, info.kind, info.generation) == ("k", 5, "raw", put.generation)
    assert (info.refs, info.scope, info.softpin, info.hardpin) == (1, "node", True, False)
    assert info.state == "complete"
    assert 0 < info.softpin_deadline_s <= 60
    assert info.age_s >= 0
    del held


def test_list_gives_every_object_of_a_prefix_once_over_many_pages(c):
    c.put_many({f"a/{i:05}": b"" for i in range(2500)} | {"b/1": b"x", "é/1": b"y"})
    assert sorted(info.key for info in c.list("a/")) == [f"a/{i:05}" for i in range(2500)]
    assert sorted(info.key for info in c.list()) == [*(f"a/{i:05}" for i in range(2500)), "b/1", "é/1"]
    assert [info.key for info in c.list("é")] == ["é/1"]
    assert list(c.list("none")) == []
    (info,) = c.list("b/")
    assert isinstance(info, ObjectInfo)
    assert info.nbytes == 1


def test_list_survives_removal_and_new_objects_between_pages(watcher):
    watcher.put_many({f"k{i}": b"" for i in range(2500)})
    listing = watcher.list("k")
    seen = [next(listing).key]
    watcher.remove_many([f"k{i}" for i in range(0, 2500, 2)])
    watcher.put_many({f"new{i}": b"" for i in range(1000)})
    seen += [info.key for info in listing]
    assert {f"k{i}" for i in range(1, 2500, 2)} <= set(seen)
    assert len(seen) == len(set(seen))


def test_holders_names_who_holds_which_generation(connect, watcher):
    c = connect(name="reader")
    first = c.put("k", b"1")
    held = [c.get("k"), c.get_buffer("k")]
    c.remove("k")
    second = c.put("k", b"2")
    held.append(c.get("k"))
    mine = watcher.get("k")
    holders = sorted(watcher.holders("k"), key=lambda holder: (holder.generation, holder.client))
    assert all(isinstance(holder, Holder) for holder in holders)
    assert [(h.client, h.handles, h.generation) for h in holders] == [
        ("reader", 2, first.generation),
        ("reader", 1, second.generation),
        ("watcher", 1, second.generation),
    ]
    assert [h.note for h in holders] == ["stashed", "", ""]
    assert all(holder.oldest_s >= 0 for holder in holders)
    assert c.holders("none") == []
    del held, mine
