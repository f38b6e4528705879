"""Processes that end in every way with clients, views and puts open: quietly, and with nothing left behind."""

import signal
import textwrap

import pytest

from tests.client.conftest import run_script
from tests.support import eventually

BLOCKING = """
    import asyncio, os, signal, sys, threading
    import numpy as np
    from mooncake_client import AsyncClient, Client
    c = Client(sys.argv[1], name="ending")
    c.put("k", {"x": np.arange(100_000), "b": b"b" * 5000})
"""
ASYNC = """
    import asyncio, os, signal, sys, threading
    import numpy as np
    from mooncake_client import AsyncClient, Client
    async def main():
        global c, got
        c = AsyncClient(sys.argv[1], name="ending")
        await c.put("k", {"x": np.arange(100_000), "b": b"b" * 5000})
        got = await c.get("k")
        room = await c.create("r", 100)
"""
# What the process does, and the exit code it must have.
ENDS = {
    "nothing held": ("", 0),
    "client closed": ("c.close()", 0),
    "views held": ("x = c.get('k')['x'][5:]; h = c.get_buffer('k'); v = h.view[1:]", 0),
    "views held by a cycle": ("a = [c.get('k')]; a.append(a); del c", 0),
    "views held, client closed": ("x = c.get('k'); c.close()", 0),
    "views held by a thread": (
        "threading.Thread(target=lambda x: threading.Event().wait(), args=(c.get('k'),), daemon=True).start()",
        0,
    ),
    "view dies at exit": ("import atexit; x = [c.get('k')]; atexit.register(x.clear)", 0),
    "client used at exit": ("import atexit; atexit.register(lambda: c.put('at exit', b''))", 0),
    "client closed at exit": ("import atexit; x = c.get('k'); atexit.register(c.close)", 0),
    "room open": ("r = c.create('r', 1 << 20); v = r.view", 0),
    "thread blocked in a call": (
        "threading.Thread(target=c.wait, args=('never',), daemon=True).start()\\nwhile not c.stats()['waiting']: pass",
        0,
    ),
    "two clients": ("d = Client(sys.argv[1]); x = c.get('k'); y = d.get('k')", 0),
    "sys.exit": ("x = c.get('k'); sys.exit(3)", 3),
    "os._exit": ("x = c.get('k'); os._exit(4)", 4),
    "killed": ("x = c.get('k'); r = c.create('r', 9); os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    "terminated": ("x = c.get('k'); os.kill(os.getpid(), signal.SIGTERM); signal.pause()", -signal.SIGTERM),
}


@pytest.mark.parametrize("flags", [(), ("-X", "dev")], ids=["plain", "dev mode"])
@pytest.mark.parametrize("end", ENDS)
def test_process_ends_quietly_and_leaves_nothing(daemon, watcher, end, flags):
    code, expected = ENDS[end]
    done = run_script(textwrap.dedent(BLOCKING) + code.replace("\\n", "\n"), daemon.socket, flags=flags)
    assert (done.returncode, done.stdout, done.stderr) == (expected, "", "")
    eventually(lambda: watcher.stats()["clients"] == 1, "the ended process to be gone")
    stats = watcher.stats()
    assert (stats["handles"], stats["unpublished"]) == (0, 0)
    assert watcher.get("k")["b"] == b"b" * 5000


def test_uncaught_exception_is_the_only_thing_said(daemon, watcher):
    done = run_script(
        textwrap.dedent(BLOCKING) + "x = c.get('k'); r = c.create('r', 9); raise KeyError('mine')", daemon.socket
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "KeyError: 'mine'"
    assert done.stderr.count("Traceback") == 1
    eventually(lambda: watcher.stats()["clients"] == 1, "the ended process to be gone")


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("closed", [True, False])
def test_async_client_at_the_end_of_the_loop(daemon, watcher, loop, closed):
    end = "        await c.close()\n" if closed else ""
    run = "import uvloop; uvloop.run(main())" if loop == "uvloop" else "asyncio.run(main())"
    done = run_script(textwrap.dedent(ASYNC + end) + f"{run}\nprint(int(got['x'][7]))", daemon.socket)
    # The view outlives the loop, closed or not.
    assert (done.returncode, done.stdout, done.stderr) == (0, "7\n", "")
    eventually(lambda: watcher.stats()["clients"] == 1, "the ended process to be gone")


def test_async_client_left_open_is_told_of_in_dev_mode(daemon, watcher):
    done = run_script(
        textwrap.dedent(ASYNC) + "asyncio.run(main()); del got; del c", daemon.socket, flags=("-X", "dev")
    )
    assert done.returncode == 0
    assert "ResourceWarning" in done.stderr
    assert "Traceback" not in done.stderr
    eventually(lambda: watcher.stats()["clients"] == 1, "the ended process to be gone")


def test_async_client_closed_is_quiet_in_dev_mode(daemon, watcher):
    code = textwrap.dedent(ASYNC + "        await c.close()\n") + "asyncio.run(main())"
    done = run_script(code, daemon.socket, flags=("-X", "dev"))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("closed", [True, False])
def test_view_and_room_that_outlive_their_loop_are_given_back_at_their_death(daemon, watcher, loop, closed):
    code = (
        ASYNC
        + ("        await c.close()\n" if closed else "")
        + """
        global kept
        kept = room
    {run}
    d = Client(sys.argv[1])
    def until(reached):
        for _ in range(10_000):
            stats = d.stats()
            if reached == (stats["handles"], stats["unpublished"]):
                return
        raise SystemExit(f"never {reached}: {stats}")
    until((1, 1))
    del got
    until((0, 1))
    kept.abort()
    until((0, 0))
    """
    )
    run = "import uvloop; uvloop.run(main())" if loop == "uvloop" else "asyncio.run(main())"
    done = run_script(textwrap.dedent(code.replace("{run}", run)), daemon.socket)
    assert (done.returncode, done.stderr) == (0, "")


def test_exit_with_a_dead_daemon_is_quiet(daemon, watcher):
    code = """
    import subprocess
    from pathlib import Path
    from tests.support import NodeProcess
    import tempfile
    with tempfile.TemporaryDirectory() as directory:
        node = NodeProcess(Path(directory)).start()
        c = Client(node.socket)
        c.put("k", np.arange(100_000))
        x, r = c.get("k"), c.create("r", 5000)
        node.kill()
        assert x[77] == 77
    """
    done = run_script(textwrap.dedent(BLOCKING) + textwrap.dedent(code), daemon.socket)
    assert (done.returncode, done.stderr) == (0, "")
