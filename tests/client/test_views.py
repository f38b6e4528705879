"""A replica stays while anything derived from a view of it is alive, and goes with the last; for both clients."""

import gc
import hashlib
import weakref

import numpy as np
import pytest
import torch
from torch.utils import dlpack

from mooncake_client import AsyncClient, InvalidArgumentError, StoreError
from tests.support import eventually, pattern

NBYTES = 1 << 20
DATA = pattern("views", NBYTES)


def sha(buffer: object) -> str:
    if isinstance(buffer, torch.Tensor):
        buffer = buffer.contiguous().view(torch.uint8).numpy()
    return hashlib.sha256(np.ascontiguousarray(buffer).view(np.uint8)).hexdigest()


def tensor_of(view: memoryview) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(view, dtype=np.uint8).view(np.int16))


@pytest.fixture(autouse=True)
def quiet_about_readonly_tensors(recwarn):
    """torch warns that it has no read-only tensors; what that means here is said in the codec."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.filters", [("ignore", None, UserWarning, None, 0)])
        yield


DERIVED = {
    "memoryview": lambda v: v,
    "slice": lambda v: v[100:-100],
    "slice of a slice": lambda v: v[8:][8:-8],
    "cast": lambda v: v.cast("d"),
    "cast to a shape": lambda v: v.cast("B", (1024, 1024)),
    "memoryview of it": memoryview,
    "numpy": lambda v: np.frombuffer(v, dtype=np.float32),
    "numpy asarray": np.asarray,
    "numpy view": lambda v: np.frombuffer(v, dtype=np.uint8).view(np.int64),
    "numpy reshape": lambda v: np.frombuffer(v, dtype=np.uint8).reshape(1024, 1024)[5:, ::2].T,
    "numpy diagonal": lambda v: np.frombuffer(v, dtype=np.uint8).reshape(1024, 1024).diagonal(),
    "numpy memoryview": lambda v: np.frombuffer(v, dtype=np.int16)[3:].data,
    "torch": lambda v: torch.frombuffer(v, dtype=torch.uint8),
    "torch view": lambda v: torch.frombuffer(v, dtype=torch.bfloat16).view(512, -1)[7:].T,
    "torch of numpy": tensor_of,
    "numpy of torch": lambda v: torch.frombuffer(v, dtype=torch.uint8)[3:].numpy(),
    "dlpack": lambda v: dlpack.from_dlpack(torch.frombuffer(v, dtype=torch.uint8)[9:]),
    "numpy of dlpack": lambda v: np.from_dlpack(torch.frombuffer(v, dtype=torch.uint8)[9:]),
    "torch storage": lambda v: torch.frombuffer(v, dtype=torch.uint8).untyped_storage(),
    "capsule": lambda v: dlpack.to_dlpack(torch.frombuffer(v, dtype=torch.uint8)),
}


@pytest.mark.parametrize("derive", DERIVED.values(), ids=DERIVED)
def test_what_is_derived_from_a_view_alone_keeps_the_memory(c, watcher, derive):
    c.put_from("k", DATA)
    with c.get_buffer("k") as handle:
        derived = derive(handle.view)
    gc.collect()
    assert watcher.remove("k")
    # Room that was given back too early would be this object's now.
    watcher.put_from("next", bytes(NBYTES))
    c.exists("a request that would carry the release")
    assert watcher.stats()["handles"] == 1
    assert watcher.stats()["stash"] == {"objects": 1, "bytes": NBYTES}
    expected = derive(memoryview(DATA))
    if not isinstance(derived, torch.UntypedStorage) and type(derived).__name__ != "PyCapsule":
        assert sha(derived) == sha(expected)
    del derived
    eventually(lambda: watcher.stats()["handles"] == 0, "the last derived view to let go")
    eventually(lambda: watcher.stats()["stash"]["objects"] == 0, "the memory to be given back")


@pytest.mark.parametrize(
    "copy",
    [
        bytes,
        lambda v: np.frombuffer(v, dtype=np.uint8).astype(np.float32),
        lambda v: np.frombuffer(v, dtype=np.uint8)[[1, 2, 3]],
        lambda v: torch.frombuffer(v, dtype=torch.uint8).clone(),
        lambda v: v.tolist(),
    ],
    ids=["bytes", "astype", "fancy index", "clone", "tolist"],
)
def test_a_copy_keeps_nothing(c, watcher, copy):
    c.put_from("k", DATA)
    copied = copy(c.get_buffer("k").view)
    eventually(lambda: watcher.stats()["handles"] == 0, "the handle to be let go")
    del copied


def test_arrays_and_bytes_of_one_object_each_keep_it(c, watcher):
    c.put("k", {"x": np.arange(2000), "t": torch.arange(3000), "b": DATA, "n": 5})
    got = c.get("k")
    parts = [got["x"][::3], got["t"].view(30, 100)[3], got["b"][5:50]]
    del got
    watcher.remove("k")
    watcher.put_from("next", bytes(2 * NBYTES))
    for index in (1, 0, 2):
        assert watcher.stats()["handles"] == 1
        assert (parts[0] == np.arange(2000)[::3]).all()
        assert parts[2] == DATA[5:50]
        assert torch.equal(parts[1] if parts[1] is not None else torch.arange(300, 400), torch.arange(300, 400))
        parts[index] = {0: np.arange(2000)[::3], 1: None, 2: memoryview(DATA)[5:50]}[index]
    eventually(lambda: watcher.stats()["handles"] == 0, "the last part to let go")


def test_two_gets_of_a_key_are_two_references_at_one_address(c, watcher):
    c.put("k", np.arange(1000))
    first, second = c.get("k"), c.get("k")
    assert first.ctypes.data == second.ctypes.data
    assert [holder.handles for holder in watcher.holders("k")] == [2]
    del first
    eventually(lambda: watcher.stats()["handles"] == 1, "one to let go")
    assert (second == np.arange(1000)).all()


def test_release_with_live_views_is_deferred_to_their_death(c, watcher):
    c.put_from("k", DATA)
    handle = c.get_buffer("k")
    view = handle.view[10:20]
    handle.release()
    handle.release()
    c.exists("x")
    assert watcher.stats()["handles"] == 1
    assert view == DATA[10:20]
    with pytest.raises(InvalidArgumentError):
        _ = handle.view
    del view
    eventually(lambda: watcher.stats()["handles"] == 0, "the view to let go")
    handle.release()
    c.exists("x")
    assert watcher.stats()["handles"] == 0


def test_views_cannot_be_written_through(c):
    c.put("k", {"x": np.arange(2000), "b": DATA})
    got = c.get("k")
    with pytest.raises(ValueError, match="read-only"):
        got["x"][0] = 1
    with pytest.raises(ValueError, match="writeable|WRITEABLE"):
        got["x"].flags.writeable = True
    with pytest.raises(TypeError, match="read-only"):
        got["b"][0] = 1
    with pytest.raises(TypeError):
        np.frombuffer(c.get_buffer("k").view, dtype=np.uint8).data[0] = 1


@pytest.mark.parametrize("nbytes", [1, 64, 100, 4096, 5000, 2 << 20, 5 << 20])
def test_memory_is_reused_only_after_the_last_view_died(c, watcher, nbytes):
    data = pattern(nbytes, nbytes)
    used = watcher.stats()["pool"]["bytes_used"]
    c.put_from("k", data)
    views = [c.get("k") for _ in range(3)]
    c.remove("k")
    for _ in range(3):
        c.put_from("k", bytes(nbytes))
        assert all(view == data for view in views)
        c.remove("k")
        views.pop()
    eventually(lambda: watcher.stats()["pool"]["bytes_used"] == used, "all room to come back")


def test_view_in_a_reference_cycle_goes_with_the_garbage_collection(c, watcher):
    class Node:
        pass

    c.put("k", DATA)
    node = Node()
    node.me, node.view = node, c.get("k")
    gone = weakref.ref(node)
    del node
    gc.collect()
    assert gone() is None
    eventually(lambda: watcher.stats()["handles"] == 0, "the collected view to let go")


class Local:
    """Something that a frame refers to."""


ERRORS = {
    "get": lambda c: c.get("none"),
    "get_buffer": lambda c: c.get_buffer("none"),
    "get_into": lambda c: c.get_into("none", bytearray()),
    "get_into short": lambda c: c.get_into("k", bytearray(1)),
    "get as": lambda c: c.get("k", type=int),
    "info": lambda c: c.info("none"),
    "wait": lambda c: c.wait("none", 0),
    "pin": lambda c: c.pin("none"),
    "put": lambda c: c.put("k", b"exists"),
    "put big": lambda c: c.put("n", bytes(5 << 20), timeout=0),
    "put no object": lambda c: c.put("n", object()),
    "put no key": lambda c: c.put("", b""),
    "create": lambda c: c.create("n", 1 << 40),
}


@pytest.mark.parametrize("call", ERRORS.values(), ids=ERRORS)
def test_caught_error_keeps_no_frame_alive(daemon, watcher, call):
    """Else a view of the function that caught it would live until the next garbage collection."""
    with daemon.client() as c:
        c.put("k", DATA)
        full = watcher.create("full", 60 << 20)

        def fail() -> weakref.ref[Local]:
            local = Local()
            try:
                call(c)
            except StoreError:
                return weakref.ref(local)
            raise AssertionError("no error")

        gc.disable()
        try:
            assert fail()() is None
        finally:
            gc.enable()
            full.abort()


@pytest.mark.parametrize("call", ERRORS.values(), ids=ERRORS)
async def test_caught_error_of_the_async_client_keeps_no_frame_alive(daemon, watcher, call):
    async with AsyncClient(daemon.socket) as c:
        await c.put("k", DATA)
        full = watcher.create("full", 60 << 20)

        async def fail() -> weakref.ref[Local]:
            local = Local()
            try:
                await call(c)
            except StoreError:
                return weakref.ref(local)
            raise AssertionError("no error")

        gc.disable()
        try:
            assert (await fail())() is None
        finally:
            gc.enable()
            full.abort()


def test_views_outlive_the_closed_client(connect, watcher):
    c = connect()
    c.put_from("k", DATA)
    view = c.get("k")
    c.close()
    watcher.remove("k")
    watcher.put_from("next", bytes(NBYTES))
    assert view == DATA
    assert watcher.stats()["handles"] == 1
    del view
    eventually(lambda: watcher.stats()["clients"] == 1, "the closed client to end with its last view")


def test_views_outlive_the_dropped_client(daemon, watcher):
    def read() -> np.ndarray:
        client = daemon.client()
        client.put("k", np.arange(10_000))
        return client.get("k")[5:]

    array = read()
    gc.collect()
    watcher.remove("k")
    watcher.put_from("next", bytes(80_000))
    assert (array == np.arange(5, 10_000)).all()
    del array
    eventually(lambda: watcher.stats()["clients"] == 1, "the dropped client to end with its last view")


def test_room_being_filled_outlives_the_closed_client_and_can_be_published(connect, watcher):
    c = connect()
    room = c.create("k", 5)
    c.close()
    room.view[:] = b"abcde"
    room.publish()
    assert watcher.get("k") == b"abcde"
    del room
    eventually(lambda: watcher.stats()["clients"] == 1, "the closed client to end")


def test_every_object_starts_on_a_64_byte_boundary_in_each_mapping(connect):
    clients = [connect() for _ in range(3)]
    clients[0].put_many({f"k{n}": pattern(n, n) for n in range(1, 300, 7)} | {"big": bytes(70_000)})
    for c in clients:
        for key in [info.key for info in c.list()]:
            address = np.frombuffer(c.get_buffer(key).view, dtype=np.uint8).ctypes.data
            assert address % (4096 if key == "big" else 64) == 0, key
