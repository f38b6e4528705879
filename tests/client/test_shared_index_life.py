"""Pins of the shared index and the lives of those who set them: death, fork, close, restart."""

import gc
from pathlib import Path

import pytest

from mooncake_client import DaemonGoneError, NotFoundError
from tests.client.conftest import run_script
from tests.support import digest, eventually, pattern

MIB = 1 << 20
FAULTS = False  # with fault injection there is no index


@pytest.fixture
def c(daemon, watcher):
    """A client of the blocking kind."""
    with daemon.client(name="tested") as client:
        yield client


def stash_of(client):
    return client.stats()["stash"]["objects"]


def overwrite(client):
    """What is free."""
    stats = client.stats()
    with client.create("overwritten", stats["pool"]["largest_free_extent"]) as buffer:
        buffer.view[::512] = b"\xee" * len(buffer.view[::512])
    client.remove("overwritten")


def pools_mapped():
    """How many mappings of pools this process has."""
    return Path("/proc/self/maps").read_text().count("/dev/shm/")


# -- death ------------------------------------------------------------------------------------------------------------


def test_a_killed_client_has_nothing_pinned_any_more(daemon, watcher, make_worker):
    watcher.put_from("k", b"k" * 10_000)
    worker = make_worker(daemon, client_args="name='victim'")
    worker.run("views = [c.get('k') for _ in range(100)]; del views[::2]")
    assert watcher.stats()["handles"] == 50
    watcher.remove("k")
    assert stash_of(watcher) == 1
    worker.kill()
    eventually(lambda: stash_of(watcher) == 0, "the stash of the dead to be free")
    assert watcher.stats()["handles"] == 0


def test_of_two_readers_the_death_of_one_leaves_the_other_its_pin(daemon, watcher, make_worker):
    watcher.put_from("k", pattern("k", 10_000))
    worker, other = make_worker(daemon), make_worker(daemon)
    for process in (worker, other):
        process.run("view = c.get('k')")
    watcher.remove("k")
    worker.kill()
    eventually(lambda: watcher.stats()["clients"] == 2, "the death to be heard of")
    overwrite(watcher)
    assert other.run("digest(view)") == digest(pattern("k", 10_000))
    assert stash_of(watcher) == 1
    other.run("del view")
    eventually(lambda: stash_of(watcher) == 0, "the last one to be heard of")


def test_a_stopped_client_keeps_what_it_has_pinned(daemon, watcher, make_worker):
    watcher.put_from("k", pattern("k", 10_000))
    worker = make_worker(daemon)
    worker.run("view = c.get('k')")
    worker.pause()
    watcher.remove("k")
    overwrite(watcher)
    assert stash_of(watcher) == 1
    worker.resume()
    assert worker.run("digest(view)") == digest(pattern("k", 10_000))
    worker.run("del view")
    eventually(lambda: stash_of(watcher) == 0, "the memory to be free")


def test_a_connection_that_the_daemon_gives_up_leaves_what_is_pinned_protected(daemon, watcher, make_worker):
    """The process lives on and reads on; that it can say nothing any more does not change that."""
    watcher.put_from("k", pattern("k", 10_000))
    worker = make_worker(daemon, client_args="name='given up'")
    worker.run("view = c.get('k'); link = c._link")
    worker.run("link._sock.send(b'\\xff' * 8)")
    eventually(lambda: worker.run("link.lost"), "the connection to be given up")
    watcher.remove("k")
    overwrite(watcher)
    assert stash_of(watcher) == 1
    assert worker.run("digest(view)") == digest(pattern("k", 10_000))
    watcher.put_from("k", b"new")
    assert worker.run("bytes(c.get('k'))") == b"new"
    assert worker.run("del view; import gc; gc.collect(); bytes(c.get('k'))") == b"new"
    worker.kill()
    eventually(lambda: stash_of(watcher) == 0, "the memory to be free")


def test_a_connection_that_is_given_up_and_has_nothing_pinned_ends_at_once(daemon, watcher, make_worker):
    worker = make_worker(daemon)
    worker.run("c.put('k', 1); c.get('k'); c._link._sock.send(b'\\xff' * 8)")
    eventually(lambda: watcher.stats()["clients"] == 1, "its session to end")


# -- fork -------------------------------------------------------------------------------------------------------------

FORK = """
    import gc, os, sys
    import numpy as np
    from mooncake_client import *
    c, other = Client(sys.argv[1], name="parent"), Client(sys.argv[1], name="other")
    other.put("k", np.arange(10_000))
    view, handle = c.get("k"), c.get_buffer("k")
    def in_child(work):
        child = os.fork()
        if child == 0:
            try:
                work()
            except BaseException:
                import traceback
                traceback.print_exc()
                os._exit(99)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    def refused(call):
        try:
            call()
        except StoreError as error:
            assert "fork" in str(error), error
        else:
            raise AssertionError("not refused")
    def still_pinned(count=2):
        assert other.stats()["handles"] == count, other.stats()
        assert (view == np.arange(10_000)).all()
"""
CHILDREN = {
    "views die": """
    def work():
        global view, handle, c
        handle.release()
        del view, handle
        gc.collect()
        c.close()
        del c
        gc.collect()
    """,
    "gets are refused": """
    def work():
        for call in (lambda: c.get("k"), lambda: c.get_many(["k"]), lambda: c.get_buffer("k"), lambda: c.exists("k"),
                     lambda: c.get_into("k", bytearray(9)), lambda: c.size("k")):
            refused(call)
    """,
    "a client of its own": """
    def work():
        with Client(sys.argv[1]) as own:
            mine = own.get("k")
            assert own.stats()["handles"] == 3
            del mine
            assert own.stats()["handles"] == 2
    """,
    "a client of its own that dies": """
    def work():
        global mine
        mine = Client(sys.argv[1]).get("k")
        os._exit(0)
    """,
    "a grandchild": """
    def work():
        own = Client(sys.argv[1])
        mine = own.get("k")
        def grandchild():
            global view
            refused(lambda: own.get("k"))
            del view
        in_child(grandchild)
        assert own.stats()["handles"] == 3
    """,
}


@pytest.mark.parametrize("child", CHILDREN)
def test_a_child_of_fork_neither_unpins_for_its_parent_nor_pins(daemon, watcher, child):
    code = (
        FORK
        + CHILDREN[child]
        + """
    still_pinned()
    in_child(work)
    for _ in range(10_000):
        if other.stats()["handles"] == 2:
            break
    still_pinned()
    other.remove("k")
    in_child(work if sys.argv[2] == "views die" else lambda: None)
    assert other.stats()["stash"]["objects"] == 1
    still_pinned()
    handle.release()
    del view, handle
    for _ in range(10_000):
        if other.stats()["stash"]["objects"] == 0:
            break
    else:
        raise AssertionError("never free")
    """
    )
    done = run_script(code, daemon.socket, child)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# -- the end of clients and daemons -----------------------------------------------------------------------------------


def test_what_is_mapped_goes_at_once_with_the_client_or_its_last_view(daemon, watcher):
    """Not at some collection of garbage: what a new daemon needs would be taken until then."""
    gc.collect()
    gc.disable()
    try:
        before = pools_mapped()
        client = daemon.client()
        client.put_from("k", b"k" * 100)
        view = client.get("k")
        client.close()
        assert pools_mapped() == before + 1
        assert bytes(view) == b"k" * 100
        del view
        eventually(lambda: pools_mapped() == before, "the pool to be unmapped")
        client = daemon.client()
        client.get("k")
        client.close()
        assert pools_mapped() == before
    finally:
        gc.enable()


def test_clients_that_come_and_go_leave_neither_mappings_nor_descriptors(daemon, watcher):
    watcher.put_from("k", b"k" * 100)

    def come_and_go():
        with daemon.client() as client:
            assert bytes(client.get("k")) == b"k" * 100
        del client
        gc.collect()

    def held():
        return len(list(Path("/proc/self/fd").iterdir())), Path("/proc/self/maps").read_text().count("mooncake")

    come_and_go()
    before = held()
    for _ in range(20):
        come_and_go()
    assert held() <= before


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_an_async_client_whose_loop_is_over_pins_nothing_once_it_has_said_goodbye(daemon, watcher, loop):
    """What it would pin in its row after that, nobody would look at."""
    run = "uvloop.run" if loop == "uvloop" else "asyncio.run"
    code = f"""
    import asyncio, sys, uvloop
    from mooncake_client import AsyncClient, Client
    async def main():
        global c, got
        c = AsyncClient(sys.argv[1])
        got = await c.get("k")
    async def again():
        return await c.get("k")
    d = Client(sys.argv[1])
    d.put("k", b"k" * 10_000)
    {run}(main())
    d.remove("k")
    assert d.stats()["handles"] == 1
    del got
    for _ in range(10_000):
        if d.stats()["stash"]["objects"] == 0:
            break
    else:
        raise AssertionError("never free")
    d.put("k", b"k" * 10_000)
    try:
        got = {run}(again())
    except Exception:
        pass
    else:
        assert d.stats()["handles"] == 1, "a view that nothing protects"
    """
    done = run_script(code, daemon.socket)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_views_outlive_their_daemon_and_the_next_one_has_an_index_of_its_own(make_node, how):
    node = make_node()
    client = node.client()
    client.put_from("k", pattern("k", MIB))
    view = client.get("k")
    old = client._link.attachment
    if how == "killed":
        node.kill()
    else:
        node.stop()
    eventually(lambda: client._link is None or client._link.lost, "the end to be heard of")
    with pytest.raises(DaemonGoneError):
        client.get("k")
    node.start()
    assert digest(view) == digest(pattern("k", MIB))
    with pytest.raises(NotFoundError):
        client.get("k")
    client.put_from("k", pattern("new", MIB))
    new = client.get("k")
    assert client._link.attachment is not old
    assert client.stats()["handles"] == 1
    client.remove("k")
    assert stash_of(client) == 1
    del view
    assert stash_of(client) == 1
    assert digest(new) == digest(pattern("new", MIB))
    del new
    eventually(lambda: stash_of(client) == 0, "the memory to be free")
    client.close()


def test_a_client_without_views_lets_go_of_a_dead_daemons_pool_at_once(make_node):
    gc.collect()
    gc.disable()
    try:
        before = pools_mapped()
        node = make_node()
        client = node.client()
        client.put("k", 1)
        assert client.get("k") == 1
        node.kill()
        eventually(lambda: pools_mapped() == before, "the pool to be unmapped")
        client.close()
    finally:
        gc.enable()
