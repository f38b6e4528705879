"""Others' pains with room, each from a public report: fragmentation, a full file system, reservations that block.

What is to stay in memory is pinned: there is no offload directory here, so it cannot go.
"""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mooncake_client import Client, NoSpaceError, PutInfo
from tests.support import NodeProcess, Worker, digest, eventually, pattern

KIB = 1 << 10
MIB = 1 << 20
POOL_SIZE = "128MiB"
POOL_NBYTES = 128 * MIB
MakeWorker = Callable[..., Worker]


# -- freed room is room for any size ----------------------------------------------------------------------------------


def test_a_pool_that_was_full_of_small_objects_takes_one_large_one(shared_node: NodeProcess) -> None:
    with shared_node.client() as client:
        data = pattern(1, 64 * KIB)
        results = client.put_many({f"k{i}": data for i in range(POOL_NBYTES // len(data) + 1)}, softpin=True, timeout=0)
        stored = [key for key, result in results.items() if isinstance(result, PutInfo)]
        # 64 KiB objects waste nothing: all fit but the one too many.
        assert len(stored) == len(results) - 1
        assert client.stats()["pool"]["bytes_free"] == 0
        assert client.remove_all() == len(stored)
        large = pattern(2, POOL_NBYTES * 9 // 10)
        client.put_from("large", large, timeout=0)
        assert digest(client.get("large")) == digest(large)


@pytest.mark.parametrize(
    ("cycles", "sizes"), [(3, 1000), pytest.param(50, 10_000, marks=[pytest.mark.long, pytest.mark.timeout(1200)])]
)
def test_scattered_holes_never_outlive_their_objects(shared_node: NodeProcess, cycles: int, sizes: int) -> None:
    """Random sizes, every second removed, filled again with others, all removed: then the pool is whole again."""
    source = memoryview(pattern("source", 4 * MIB))
    achieved = []
    with shared_node.client() as client:
        empty = client.stats()["pool"]
        for cycle in range(cycles):
            rng = random.Random(cycle)
            alive = fill(client, rng, sizes, source, "first")
            achieved.append(sum(alive.values()))
            for key in list(alive)[::2]:
                assert client.remove(key)
                del alive[key]
            alive |= fill(client, rng, sizes, source, "second")
            for key in rng.sample(list(alive), 20):
                assert digest(client.get(key)) == digest(source[: alive[key]])
            keys = list(alive)
            rng.shuffle(keys)
            assert all(client.remove_many(keys))
            eventually(lambda: client.stats()["pool"] == empty, "the pool to be whole again")
            assert empty["largest_free_extent"] == POOL_NBYTES
        assert min(achieved) >= 0.9 * POOL_NBYTES
        assert min(achieved) >= 0.95 * achieved[0]


def fill(client: Client, rng: random.Random, count: int, source: memoryview, name: str) -> dict[str, int]:
    """Put objects of *count* random sizes, 1 byte to 4 MiB, those that have room now; their sizes by key."""
    sizes = [int(2 ** rng.uniform(0, 22)) for _ in range(count)]
    objects = {f"{name} {number}": source[:nbytes] for number, nbytes in enumerate(sizes)}
    results = client.put_many(objects, softpin=True, timeout=0)
    refused = [result for result in results.values() if not isinstance(result, PutInfo)]
    assert all(isinstance(result, NoSpaceError) for result in refused), refused[:3]
    return {key: result.nbytes for key, result in results.items() if isinstance(result, PutInfo)}


# -- reservations that together exceed the pool -----------------------------------------------------------------------


def test_of_a_batch_larger_than_the_pool_what_fits_is_stored_and_the_rest_refused(shared_node: NodeProcess) -> None:
    with shared_node.client() as client:
        results = client.put_many({f"k{i}": pattern(i, 40 * MIB) for i in range(8)}, softpin=True, timeout=1)
        assert list(results) == [f"k{i}" for i in range(8)]
        stored = [i for i in range(8) if isinstance(results[f"k{i}"], PutInfo)]
        assert len(stored) == 3
        for i in range(8):
            if i in stored:
                assert digest(client.get(f"k{i}")) == digest(pattern(i, 40 * MIB))
            else:
                error = results[f"k{i}"]
                assert isinstance(error, NoSpaceError), error
                assert error.code == -200
                assert error.key == f"k{i}"
                assert not client.exists(f"k{i}")


def test_a_batch_that_ran_out_of_time_is_refused_as_a_whole(shared_node: NodeProcess) -> None:
    """Object by object it would take a message each, with all the others in it: minutes after the deadline."""
    with shared_node.client() as client:
        client.put_from("full", bytes(POOL_NBYTES), softpin=True)
        client.inject_fault_local_master("NodeBeforePutStart", "reset")
        results = client.put_many({f"k{i}": pattern(1, 5000) for i in range(300)}, timeout=0.1)
        assert all(isinstance(result, NoSpaceError) for result in results.values())
        # One that waits until the deadline, and one for all the rest.
        assert client.get_fault_status_local_master("NodeBeforePutStart")["hits"] == 2


def test_a_batch_larger_than_the_pool_goes_on_as_its_reader_makes_room(
    shared_node: NodeProcess, make_worker: MakeWorker
) -> None:
    """put → get → remove: the transit station."""
    writer = make_worker(shared_node)
    writer.start(f"""
        results = c.put_many({{f'k{{i}}': pattern(i, {40 * MIB}) for i in range(8)}}, softpin=True, timeout=80)
        [type(result).__name__ for result in results.values()]
    """)
    with shared_node.client() as client:
        for i in range(8):
            client.wait(f"k{i}", timeout=60)
            assert digest(client.get(f"k{i}")) == digest(pattern(i, 40 * MIB))
            client.remove(f"k{i}")
    assert writer.result() == ["PutInfo"] * 8


def test_clients_that_each_need_a_second_reservation_do_not_block_one_another(
    shared_node: NodeProcess, make_worker: MakeWorker
) -> None:
    """Three hold a part each, a fourth waits for its first, and no second part has room: somebody must give way."""
    workers = [make_worker(shared_node) for _ in range(4)]
    for number, worker in enumerate(workers):
        # Each with a longer patience than the one before; the last has enough to see all others end.
        worker.run(f"""
            patience = {(0.5, 1.0, 1.5, 60.0)[number]}
            def fill(part):
                draft = c.create(f'{number} {{part}}', {40 * MIB}, softpin=True, timeout=patience)
                draft.view[:] = pattern(f'{number} {{part}}', {40 * MIB})
                return draft
            def finish(first):
                try:
                    second = fill('second')
                except NoSpaceError as error:
                    first.abort()
                    return error
                for draft in (first, second):
                    draft.publish()
                right = [digest(c.get(f'{number} {{part}}')) == digest(pattern(f'{number} {{part}}', {40 * MIB}))
                         for part in ('first', 'second')]
                c.remove_many([f'{number} first', f'{number} second'])
                return right
        """)
    for worker in workers[:3]:
        worker.run("first = fill('first')")
    for worker in workers[:3]:
        worker.start("finish(first)")
    workers[3].start("finish(fill('first'))")
    results = [worker.result() for worker in workers]
    assert isinstance(results[0], NoSpaceError), results
    assert results[0].code == -200
    # The reason names what is in the way.
    assert "3 being written" in str(results[0])
    assert results[3] == [True, True]
    assert all(isinstance(result, NoSpaceError) or result == [True, True] for result in results[1:3]), results


TOO_LARGE = POOL_NBYTES + 1
TOO_LARGE_PUTS: dict[str, Callable[[Client], object]] = {
    "put_from": lambda client: client.put_from("large", bytes(TOO_LARGE)),
    "put_parts": lambda client: client.put_parts("large", bytes(TOO_LARGE - 10), bytes(10)),
    "put_many": lambda client: raise_it(client.put_many({"large": bytes(TOO_LARGE)})["large"]),
    "upsert": lambda client: client.upsert("k", bytes(TOO_LARGE)),
    "create": lambda client: client.create("large", TOO_LARGE),
}


def raise_it(error: object) -> None:
    """For calls that return their errors."""
    assert isinstance(error, Exception)
    raise error


@pytest.mark.parametrize("how", TOO_LARGE_PUTS)
def test_an_object_larger_than_the_pool_is_refused_at_once_and_costs_nothing(
    shared_node: NodeProcess, how: str
) -> None:
    with shared_node.client() as client:
        client.put_from("k", pattern(1, MIB))
        before = client.stats()["pool"]
        with pytest.raises(NoSpaceError) as caught:
            TOO_LARGE_PUTS[how](client)
        # What waited until its deadline would be told something else.
        assert "can never fit" in str(caught.value)
        assert caught.value.code == -200
        assert str(TOO_LARGE) in str(caught.value)
        assert str(POOL_NBYTES) in str(caught.value)
        assert client.stats()["pool"] == before
        assert digest(client.get("k")) == digest(pattern(1, MIB))


# -- a file system that is too small, or full -------------------------------------------------------------------------

SMALL_SHM = """
import atexit, os, sys
from pathlib import Path
from tests.support import NodeProcess, Worker, digest, eventually, ledger_check, pattern

MIB = 1 << 20
SHM = Path("/dev/shm")
node = NodeProcess(Path(sys.argv[1]), pool_size=sys.argv[2])
# Also where the script fails.
atexit.register(lambda: node.process and node.kill())

def fill(nbytes):
    with (SHM / "filler").open("wb", buffering=0) as out:
        try:
            while nbytes > 0:
                nbytes -= out.write(bytes(min(65536, nbytes)))
        except OSError as error:
            assert error.errno == 28

def fails_cleanly(asked, available):
    before = sorted(SHM.iterdir())
    assert node.spawn().wait(timeout=60) == 1
    log = node.read_log()
    for part in (str(asked), str(available), str(100 * MIB), "/dev/shm", "--shm-size"):
        assert part in log, (part, log)
    assert "Traceback" not in log
    assert sorted(SHM.iterdir()) == before
    assert not os.path.exists(node.socket)
"""


def in_small_shm(tmp_path: Path, pool_size: str, script: str) -> None:
    """Run *script* where /dev/shm is a tmpfs of 100 MiB of its own."""
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "-r"]
    mount = "mount -t tmpfs -o size=100m tmpfs /dev/shm"
    tried = subprocess.run([*unshare, "sh", "-c", mount], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"NO PRIVATE /dev/shm HERE, NOT TESTED: {tried.stderr.strip()}")
    done = subprocess.run(
        [
            *unshare,
            "sh",
            "-c",
            mount + ' && exec "$0" "$@"',
            sys.executable,
            "-c",
            SMALL_SHM + script,
            str(tmp_path),
            pool_size,
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}{done.stderr}"


def test_a_pool_larger_than_its_file_system_is_refused_with_numbers(tmp_path: Path) -> None:
    in_small_shm(tmp_path, "200MiB", "fails_cleanly(200 * MIB, 100 * MIB)")


def test_a_pool_larger_than_what_is_left_is_refused_with_numbers(tmp_path: Path) -> None:
    in_small_shm(tmp_path, "80MiB", "fill(50 * MIB); fails_cleanly(80 * MIB, 50 * MIB)")


def test_no_access_is_a_sigbus_when_the_file_system_fills_up_under_a_running_daemon(tmp_path: Path) -> None:
    script = """
node.start()
fill(1 << 40)
assert os.statvfs(SHM).f_bfree == 0
writer, reader = Worker(node.socket), Worker(node.socket)
writer.run(f"c.put_from('k', pattern(1, {60 * MIB}))")
assert reader.run("digest(c.get('k'))") == digest(pattern(1, 60 * MIB))
assert reader.run(f"b = bytearray({60 * MIB}); c.get_into('k', b)") == 60 * MIB
assert reader.run("digest(b)") == digest(pattern(1, 60 * MIB))
reader.run("c.remove('k')")
# The rest of the pool, byte by byte its last: what no object had touched yet.
writer.run(f"d = c.create('all', {60 * MIB}); d.view[:] = bytes([7]) * {60 * MIB}; d.publish()")
assert reader.run(f"bytes(c.get('all')) == bytes([7]) * {60 * MIB}")
for worker in (writer, reader):
    assert worker.close() == (0, "")
ledger_check(node.socket)
node.close()
"""
    in_small_shm(tmp_path, "60MiB", script)
