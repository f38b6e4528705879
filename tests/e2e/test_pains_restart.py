"""Daemons that die and come back, and clients that end in every way (pains A18, A23 and A25)."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mooncake_client import DaemonGoneError
from tests.support import NodeProcess, Worker, digest, eventually, ledger_check, pattern

# -- A18: a restart harms no client ------------------------------------------------------------------------------------

LOOP = """
    import threading, time
    going, outcomes, rounds = True, set(), 0
    def loop():
        global rounds
        while going:
            try:
                c.upsert(mine, pattern(mine, 50_000))
                assert digest(c.get(mine)) == digest(pattern(mine, 50_000))
                rounds += 1
            except StoreError as error:
                outcomes.add((type(error).__name__, error.code))
                time.sleep(0.01)
    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
"""


@pytest.mark.parametrize("restarts", [1, pytest.param(10, marks=pytest.mark.long)])
def test_clients_outlive_a_restart_with_their_views_and_go_on_by_themselves(
    make_node: Callable[..., NodeProcess], make_worker: Callable[..., Worker], restarts: int
) -> None:
    node = make_node()
    with node.client() as client:
        client.put_many({f"old/{i}": pattern(i, 100_000) for i in range(10)})
    right = [digest(pattern(i, 100_000)) for i in range(10)]
    workers = [make_worker(node) for _ in range(4)]
    for number, worker in enumerate(workers):
        worker.run(f"mine = 'own/{number}'; views = c.get_many([f'old/{{i}}' for i in range(10)])")
        worker.run(LOOP)
    for restart in range(restarts):
        for worker in workers:
            eventually(lambda worker=worker: worker.run("rounds") > 0, "the client to work")
            worker.run("outcomes.clear()")
        node.kill()
        for worker in workers:
            eventually(lambda worker=worker: worker.run("len(outcomes)"), "the client to notice")
            assert worker.run("[digest(view) for view in views]") == right
            worker.run("rounds = 0")
        # Whatever was under way: one class of error, and it says that the daemon is gone.
        assert {outcome for worker in workers for outcome in worker.run("outcomes")} == {("DaemonGoneError", -900)}
        node.flags[node.flags.index("--pool-size") + 1] = "32MiB" if restart % 2 == 0 else "48MiB"
        node.start()
    for worker in workers:
        eventually(lambda worker=worker: worker.run("rounds") > 0, "the client to work again")
        assert worker.run("[digest(view) for view in views]") == right
        worker.run("going = False; thread.join()")
        assert worker.run("c.exists('old/0')") is False
        worker.run("del views")
        worker.run("h = c.get_buffer(mine); h.release(); c.close()")
    ledger_check(node.socket)


# -- A23: the end of a client destroys nothing of others ---------------------------------------------------------------

CHILD = """
import multiprocessing, os, signal, sys
from mooncake_client import Client

class Boom(Exception):
    pass

def child(socket, kind):
    client = Client(socket)
    view = client.get("k0")
    assert bytes(view) == b"0" * 5000
    if kind == "exception":
        sys.stderr = open(os.devnull, "w")
        raise Boom
    if kind == "sys.exit":
        sys.exit(1)
    if kind == "os._exit":
        os._exit(1)
    if kind != "return":
        os.kill(os.getpid(), getattr(signal, kind))

if __name__ == "__main__":
    socket, method = sys.argv[1:3]
    kinds = {"return": 0, "exception": 1, "sys.exit": 1, "os._exit": 1, "SIGTERM": -15, "SIGKILL": -9}
    if method == "subprocess":
        child(socket, sys.argv[3])
    else:
        context = multiprocessing.get_context(method)
        parent = Client(socket) if method != "forkserver" else None
        for kind, expected in kinds.items():
            process = context.Process(target=child, args=(socket, kind))
            process.start()
            process.join()
            assert process.exitcode == expected, (kind, process.exitcode)
            if parent is not None:
                assert bytes(parent.get("k1")) == b"1" * 5000
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver", "subprocess"])
def test_no_end_of_a_process_takes_memory_from_others(shared_node: NodeProcess, tmp_path: Path, method: str) -> None:
    script = tmp_path / "ending.py"
    script.write_text(CHILD)
    sentinel = Path("/dev/shm") / f"not-ours-{os.getpid()}"
    sentinel.touch()
    ends = {"return": 0, "exception": 1, "sys.exit": 1, "os._exit": 1, "SIGTERM": -15, "SIGKILL": -9}
    with shared_node.client() as client:
        client.put_many({f"k{i}": str(i).encode() * 5000 for i in range(50)})
        views = client.get_many([f"k{i}" for i in range(50)])
        for kind, expected in ends.items() if method == "subprocess" else [("", 0)]:
            done = subprocess.run(
                [sys.executable, str(script), shared_node.socket, method, kind],
                capture_output=True,
                text=True,
                check=False,
                timeout=100,
            )
            assert (done.returncode, done.stderr) == (expected, ""), (kind, done)
        eventually(lambda: client.stats()["clients"] == 1, "the ended clients to go")
        assert all(view == str(i).encode() * 5000 for i, view in enumerate(views))
        assert client.stats()["handles"] == 50
        with shared_node.client() as newcomer:
            assert newcomer.get("k7") == b"7" * 5000
        del views
    assert sentinel.exists()
    sentinel.unlink()


# -- A25: no crash makes the next start fail ---------------------------------------------------------------------------


def in_small_shm(script: str) -> None:
    """Run *script* with a /dev/shm of its own, of 1.3 times the pools that it starts."""
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "-r"]
    mount = "mount -t tmpfs -o size=52m tmpfs /dev/shm"
    tried = subprocess.run([*unshare, "sh", "-c", mount], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"NO PRIVATE /dev/shm HERE, NOT TESTED: {tried.stderr.strip()}")
    done = subprocess.run(
        [*unshare, "sh", "-c", mount + ' && exec "$0" -c "$1"', sys.executable, PRELUDE + script],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}{done.stderr}"


PRELUDE = """
import os, signal, tempfile
from pathlib import Path
from mooncake_client import *
from mooncake_node.pool import NAME_PREFIX
from tests.support import NodeProcess, Worker, eventually, pattern
MIB = 1 << 20

def used():
    mount = os.statvfs("/dev/shm")
    return (mount.f_blocks - mount.f_bfree) * mount.f_frsize

def make(name):
    path = directory / name
    path.mkdir()
    return NodeProcess(path, pool_size="40MiB")

temporary = tempfile.TemporaryDirectory(prefix="small-shm-")
directory = Path(temporary.name)
"""


@pytest.mark.parametrize("rounds", [3, pytest.param(20, marks=pytest.mark.long)])
def test_every_restart_after_a_death_succeeds_where_there_is_no_room_for_two_pools(rounds: int) -> None:
    in_small_shm(f"""
node = make("d")
for i in range({rounds}):
    node.start()
    with node.client() as client:
        client.put_from("k", bytes(20 * MIB))
    node.stop([signal.SIGKILL, signal.SIGTERM, signal.SIGINT][i % 3])
    eventually(lambda: used() < MIB, "the memory to be given back")
    assert list(Path("/dev/shm").iterdir()) == []
node.close()
""")


def test_a_second_daemon_leaves_the_first_ones_data_alone(make_node: Callable[..., NodeProcess]) -> None:
    first, second = make_node(), make_node()
    with first.client() as one, second.client() as two:
        one.put_from("k", pattern(1, 10 << 20))
        two.put_from("k", pattern(2, 10 << 20))
        third = make_node()
        third.kill()
        assert digest(one.get("k")) == digest(pattern(1, 10 << 20))
        assert digest(two.get("k")) == digest(pattern(2, 10 << 20))


def test_a_view_of_the_old_pool_stays_readable_and_its_memory_comes_back_with_its_client() -> None:
    in_small_shm("""
node = make("d")
node.start()
holder, idle = Worker(node.socket), Worker(node.socket)
holder.run("c.put_from('k', pattern('k', 20 << 20)); v = c.get('k')")
idle.run("c.put_from('idle', bytes(1000)); c.get('idle')")
node.kill()
starting = node.spawn()
eventually(lambda: f"(pid {holder.pid}," in node.read_log(), "the new daemon to wait for room and to name the holder")
# A client without views gives the old pool up by itself.
eventually(lambda: NAME_PREFIX not in Path(f"/proc/{idle.pid}/maps").read_text(), "the idle client to unmap")
assert NAME_PREFIX in Path(f"/proc/{holder.pid}/maps").read_text()
assert holder.run("digest(v) == digest(pattern('k', 20 << 20))")
holder.kill()
def serves():
    assert starting.poll() is None, node.read_log()
    try:
        Client(node.socket, timeout=5).close()
    except (DaemonGoneError, StoreTimeoutError):
        return False
    return True
eventually(serves, "the new daemon to serve")
assert idle.run("c.put_from('again', bytes(1000)).nbytes") == 1000
idle.close()
node.close()
""")


def test_calls_while_there_is_no_daemon_fail_with_one_class(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node()
    client = node.client()
    client.put("k", b"1")
    node.stop(signal.SIGTERM)
    for call in (lambda: client.get("k"), lambda: client.put("n", b""), client.stats, lambda: client.wait("k")):
        with pytest.raises(DaemonGoneError) as caught:
            call()
        assert caught.value.code == -900
    node.start()
    assert client.exists("k") is False
    client.put("k", b"2")
    assert client.get("k") == b"2"
    client.close()
