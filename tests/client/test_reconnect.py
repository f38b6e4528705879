"""The daemon dies and another one takes its place: what a client's views, calls and memory do, on both clients."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from mooncake_client import DaemonGoneError, InvalidArgumentError, NotFoundError, StoreError
from mooncake_client.faults import CLIENT_FAULTS
from mooncake_node.pool import NAME_PREFIX
from tests.support import NodeProcess, Worker, digest, eventually, ledger_check, pattern

NBYTES = 300_000


@pytest.fixture
def mortal(make_node: Callable[..., NodeProcess]) -> Iterator[NodeProcess]:
    """A daemon for one test, with its ledger checked at the end."""
    node = make_node(pool_size="32MiB")
    yield node
    if node.process is not None:
        ledger_check(node.socket)


def restart(node: NodeProcess, pool_size: str) -> None:
    node.kill()
    node.flags[node.flags.index("--pool-size") + 1] = pool_size
    node.start()


@pytest.mark.parametrize("pool_size", ["8MiB", "48MiB"])
def test_old_views_stay_readable_and_new_calls_work_after_a_restart(connect, mortal, pool_size):
    c = connect(mortal.socket)
    c.put_from("k", pattern("old", NBYTES))
    c.put("x", np.arange(50_000))
    view, array, handle = c.get("k"), c.get("x"), c.get_buffer("k")
    restart(mortal, pool_size)
    assert c.exists_many(["k", "x"]) == [False, False]
    c.put_from("k", pattern("new", NBYTES))
    new = c.get("k")
    assert digest(new) == digest(pattern("new", NBYTES))
    assert digest(view) == digest(handle.view) == digest(pattern("old", NBYTES))
    assert (array == np.arange(50_000)).all()
    # The old handles' numbers may be the new ones' too: letting the old go must not let the new go.
    handle.release()
    del view, array
    c.exists("a request that would carry a release")
    assert c.stats()["handles"] == 1
    assert c.stats()["clients"] == 1
    del new
    eventually(lambda: c.stats()["handles"] == 0, "the new view to let go")


def test_every_call_in_the_gap_says_that_the_daemon_is_gone(connect, mortal):
    c = connect(mortal.socket)
    c.put("k", b"x")
    mortal.kill()
    calls = [
        lambda: c.put("n", b""),
        lambda: c.put_many({"n": b""}),
        lambda: c.create("n", 5),
        lambda: c.get("k"),
        lambda: c.get_many(["k"]),
        lambda: c.exists("k"),
        lambda: c.wait("k"),
        lambda: c.remove("k"),
        lambda: c.remove_all(),
        lambda: c.stats(),
        lambda: list(c.list()),
        lambda: c.holders("k"),
        lambda: c.get_fault_status_local_master("NodeAfterPutEnd"),
    ]
    for call in calls:
        with pytest.raises(DaemonGoneError) as caught:
            call()
        assert caught.value.code == -900
        assert isinstance(caught.value, ConnectionError)
    mortal.start()
    assert c.exists("k") is False


def test_calls_blocked_at_the_death_end_with_an_unknown_outcome(connect, mortal):
    c, other = connect(mortal.socket), connect(mortal.socket)
    room = other.create("unfinished", 10)
    outcomes: list[StoreError] = []

    def call(blocked: Callable[[], object]) -> None:
        try:
            blocked()
        except StoreError as error:
            outcomes.append(error)

    blocked = [lambda: c.wait("never"), lambda: c.get("unfinished"), lambda: c.put("unfinished", b"")]
    threads = [threading.Thread(target=call, args=(one,)) for one in blocked]
    for thread in threads:
        thread.start()
    eventually(lambda: other.stats()["waiting"] == 3, "all to wait")
    mortal.kill()
    for thread in threads:
        thread.join()
    assert [type(error) for error in outcomes] == [DaemonGoneError] * 3
    assert all("unknown" in str(error) for error in outcomes)
    room.abort()
    mortal.start()


def test_room_of_the_old_daemon_can_be_filled_and_not_published(connect, mortal):
    c = connect(mortal.socket)
    room = c.create("k", NBYTES)
    restart(mortal, "8MiB")
    other = c.create("k", 1000)
    room.view[:] = b"o" * NBYTES
    with pytest.raises(DaemonGoneError):
        room.publish()
    with pytest.raises(InvalidArgumentError):
        _ = room.view
    assert c.stats()["unpublished"] == 1
    other.view[:] = b"n" * 1000
    other.publish()
    assert c.get("k") == b"n" * 1000


def test_copy_under_way_at_the_death_ends_with_an_error(connect, mortal, client_faults):
    c = connect(mortal.socket)
    CLIENT_FAULTS.inject("ClientPutInsideCopy", "sleep", 300)
    outcomes: list[Exception] = []

    def put() -> None:
        try:
            c.put_from("k", bytes(5 << 20))
        except StoreError as error:
            outcomes.append(error)

    thread = threading.Thread(target=put)
    thread.start()
    eventually(lambda: CLIENT_FAULTS.status("ClientPutInsideCopy").fired, "the copy to be under way")
    restart(mortal, "8MiB")
    thread.join()
    assert [type(error) for error in outcomes] == [DaemonGoneError]
    with pytest.raises(NotFoundError):
        c.get("k")


def test_listing_of_the_old_daemon_does_not_go_on_in_the_new_one(mortal):
    with mortal.client() as c:
        c.put_many({f"k{i}": b"" for i in range(2000)})
        listing = c.list()
        next(listing)
        restart(mortal, "32MiB")
        c.put_many({f"k{i}": b"" for i in range(2000)})
        with pytest.raises(DaemonGoneError):
            list(listing)


def test_threads_of_one_client_attach_once(connect, mortal):
    c = connect(mortal.socket)
    for _ in range(2):
        restart(mortal, "32MiB")
        start = threading.Barrier(8)
        done: list[object] = []

        def use(number: int, start: threading.Barrier = start, done: list[object] = done) -> None:
            start.wait()
            done.append(c.put(f"k{number}", b"x"))

        threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(done) == 8
        assert c.stats()["clients"] == 1


def maps_a_pool(pid: int) -> bool:
    return NAME_PREFIX in Path(f"/proc/{pid}/maps").read_text()


ATTACH = {
    "blocking": "",
    "asyncio": """
        import asyncio, threading
        c.close()
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        class Front:
            def __init__(self):
                self.client = AsyncClient(c.settings.path)
            def __getattr__(self, name):
                call = getattr(self.client, name)
                return lambda *args: asyncio.run_coroutine_threadsafe(call(*args), loop).result()
        c = Front()
    """,
}


@pytest.mark.parametrize("kind", ATTACH)
def test_client_without_views_unmaps_when_the_daemon_dies_and_one_with_views_at_their_death(
    mortal: NodeProcess, make_worker: Callable[..., Worker], kind: str
) -> None:
    idle, reader, filler = (make_worker(mortal) for _ in range(3))
    for worker in (idle, reader, filler):
        worker.run(ATTACH[kind])
        worker.run("import os; c.put_from(str(os.getpid()), pattern(1, 300_000))")
    idle.run("digest(c.get(str(os.getpid())))")
    reader.run("view = c.get(str(os.getpid()))[5:]")
    filler.run("room = c.create('room', 5000)")
    assert all(maps_a_pool(worker.pid) for worker in (idle, reader, filler))
    mortal.kill()
    eventually(lambda: not maps_a_pool(idle.pid), "the idle client to unmap")
    assert reader.run("digest(view)") == digest(pattern(1, 300_000)[5:])
    filler.run("room.view[:] = bytes(5000)")
    reader.run("del view")
    filler.run("room.abort(); del room")
    for worker in (reader, filler):
        eventually(lambda worker=worker: not maps_a_pool(worker.pid), "the last view to unmap")
    mortal.start()
    for worker in (idle, reader, filler):
        worker.run("c.put_from(str(os.getpid()), b'back')")
