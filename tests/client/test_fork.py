"""What a child of fork may do with its parent's client: be told that it is the parent's."""

import pytest

from tests.client.conftest import run_script

FORK = """
    import asyncio, gc, os, signal, sys
    import numpy as np
    from mooncake_client import *
    c = Client(sys.argv[1], name="parent")
    c.put("k", np.arange(100_000))
    view, handle, room = c.get("k"), c.get_buffer("k"), c.create("r", 100)
    def in_child(work, expected=0):
        child = os.fork()
        if child == 0:
            try:
                work()
            except BaseException as exc:
                import traceback
                traceback.print_exc()
                os._exit(99)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code == expected, code
    def refused(call):
        try:
            call()
        except StoreError as error:
            assert "fork" in str(error), error
        else:
            raise AssertionError("not refused")
    def still_right():
        assert c.stats()["handles"] == 2, c.stats()
        assert c.stats()["unpublished"] == 1
        assert (view == np.arange(100_000)).all()
        assert len(handle.view)
"""

CHILDREN = {
    "every call is refused": """
    def work():
        for call in (lambda: c.put("n", b""), lambda: c.get("k"), lambda: c.get_buffers(["k"]), c.stats, c.remove_all,
                     lambda: list(c.list()), lambda: c.wait("k"), lambda: c.create("n", 1), room.publish):
            refused(call)
    """,
    "views die": """
    def work():
        global view, handle, room, c
        handle.release()
        room.abort()
        del view, handle, room
        gc.collect()
        c.close()
        del c
        gc.collect()
    """,
    "a client of its own": """
    def work():
        with Client(sys.argv[1], name="child") as own:
            own.put("child", b"c")
            got = own.get("k")
            assert (got == np.arange(100_000)).all()
            assert sorted(h.client for h in own.holders("k")) == ["child", "parent"]
            own.remove("child")
            del got
    """,
    "a grandchild": """
    def work():
        in_child(lambda: refused(lambda: c.get("k")))
        own = Client(sys.argv[1])
        got = own.get("k")
        in_child(lambda: refused(lambda: own.get("k")))
        assert own.exists("k")
        del got
        own.close()
    """,
    "an exec": """
    def work():
        os.execv(sys.executable, [sys.executable, "-c", "import os; assert len(os.listdir('/proc/self/fd')) < 8"])
    """,
}


@pytest.mark.parametrize("child", CHILDREN)
def test_child_harms_nothing_of_its_parent(daemon, watcher, child):
    code = (
        FORK
        + CHILDREN[child]
        + """
    in_child(work)
    still_right()
    in_child(lambda: (work(), os.kill(os.getpid(), signal.SIGKILL)), -9 if "exec" not in sys.argv[2] else 0)
    still_right()
    assert room.publish().nbytes == 100
    c.put("after", b"")
    """
    )
    done = run_script(code, daemon.socket, child)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_child_that_ends_as_python_does_is_quiet_and_harms_nothing(daemon, watcher):
    code = (
        FORK
        + """
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    still_right()
    """
    )
    for flags in ((), ("-X", "dev")):
        done = run_script(code, daemon.socket, flags=flags)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        watcher.remove("k")


def test_fork_while_threads_use_the_client_leaves_both_working(daemon, watcher):
    code = (
        FORK
        + """
    import threading
    going = True
    def use(number):
        while going:
            c.upsert(f"t{number}", b"x" * 1000)
            assert bytes(c.get(f"t{number}")) == b"x" * 1000
    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    [thread.start() for thread in threads]
    def work():
        refused(lambda: c.get("k"))
        with Client(sys.argv[1]) as own:
            assert own.exists("k")
    for _ in range(20):
        in_child(work)
    going = False
    [thread.join() for thread in threads]
    """
    )
    done = run_script(code, daemon.socket)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_child_of_an_async_client_is_refused_and_harms_nothing(daemon, watcher, loop):
    code = (
        FORK
        + """
    def work(a):
        refused(lambda: asyncio.run(a.get("k")))
    async def main():
        async with AsyncClient(sys.argv[1]) as a:
            mine = await a.get("k")
            child = os.fork()
            if child == 0:
                try:
                    a.get("k").send(None)
                except StoreError as error:
                    os._exit(0 if "fork" in str(error) else 98)
                except BaseException:
                    os._exit(97)
                os._exit(96)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert (await a.stats())["handles"] == 3
            assert (mine == view).all()
            del mine
    """
        + ("    import uvloop; uvloop.run(main())" if loop == "uvloop" else "    asyncio.run(main())")
        + "\n    still_right()\n"
    )
    done = run_script(code, daemon.socket)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
