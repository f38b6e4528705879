"""Others' pains with writing, each from a public report: values half-written, doubly written, cut, lost, replaced."""

import random
import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from mooncake_client import NoSpaceError, NotFoundError, NotReadyError, PutInfo
from tests.support import NodeProcess, Worker, digest, eventually, pattern
from tests.support.nursery import NURSERY

POOL_SIZE = "256MiB"
MIB = 1 << 20
GIB = 1 << 30
FAULTS = {"MOONCAKE_NODE_FAULTS": "1"}
MakeWorker = Callable[..., Worker]


# -- the creator dies between reserve and publish ---------------------------------------------------------------------


@pytest.mark.parametrize("point", ["ClientPutAfterStart", "ClientPutInsideCopy", "ClientPutBeforeEnd"])
def test_the_key_of_a_creator_killed_before_publish_is_as_if_never_put(
    shared_node: NodeProcess, make_worker: MakeWorker, point: str
) -> None:
    creator = make_worker(shared_node, env=FAULTS)
    with shared_node.client() as client:
        used = client.stats()["pool"]["bytes_used"]
        creator.run(f"c.inject_fault({point!r}, 'sleep', 600_000)")
        creator.run_in_background(f"c.put_from('k', pattern(1, {64 * MIB}))")
        eventually(lambda: creator.run(f"c.get_fault_status({point!r})['fired']"), f"the creator to be at {point}")
        assert not client.exists("k")
        with pytest.raises(NotReadyError):
            client.get_buffer("k", timeout=0.1)
        creator.kill()
        eventually(lambda: client.stats()["unpublished"] == 0, "the reservation to be rolled back")
        assert client.stats()["pool"]["bytes_used"] == used
        with pytest.raises(NotFoundError):
            client.get_buffer("k")
        client.put_from("k", pattern(2, 64 * MIB))
        assert digest(client.get("k")) == digest(pattern(2, 64 * MIB))


@pytest.mark.parametrize("rounds", [20, pytest.param(200, marks=[pytest.mark.long, pytest.mark.timeout(600)])])
def test_room_never_creeps_up_when_creators_are_killed_at_random(
    shared_node: NodeProcess, make_worker: MakeWorker, rounds: int
) -> None:
    moments = random.Random(rounds)
    nursery = make_worker(shared_node)
    nursery.run(NURSERY)
    nursery.run(f"""
        data = pattern(1, {64 * MIB})
        def put(client, say):
            client.put_from('k', data)
            say(b'done')
    """)
    with shared_node.client() as client:
        before = client.stats()["pool"]
        for _ in range(rounds):
            said = nursery.run(f"kill_one(put, {moments.uniform(0, 0.03)})")
            eventually(lambda: client.stats()["unpublished"] == 0, "the reservation to be rolled back")
            # Where the put was answered the object is there; where only the answer was cut off it may be. Never half.
            found = client.exists("k")
            assert found or said == b""
            if found:
                assert digest(client.get("k")) == digest(pattern(1, 64 * MIB))
                client.remove("k")
            eventually(lambda: client.stats()["pool"] == before, "all room to be back")


# -- many writers of one key, and values above 2 GiB ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("writers", "keys", "nbytes"),
    [(4, 40, 256_000), pytest.param(16, 200, MIB, marks=[pytest.mark.long, pytest.mark.timeout(600)])],
)
def test_of_many_puts_of_one_key_exactly_one_whole_value_becomes_visible(
    shared_node: NodeProcess, make_worker: MakeWorker, writers: int, keys: int, nbytes: int
) -> None:
    putting = [make_worker(shared_node) for _ in range(writers)]
    reading = [make_worker(shared_node) for _ in range(2)]
    for reader in reading:
        reader.start(f"""
            seen = {{}}
            over = False
            while not over:
                over = c.exists('over')
                for i in range({keys}):
                    if c.exists(f'k{{i}}'):
                        h = c.get_buffer(f'k{{i}}')
                        assert len(h) == {nbytes}, len(h)
                        value = digest(h.view)
                        assert seen.setdefault(i, value) == value, i
                        h.release()
            seen
        """)
    for number, writer in enumerate(putting):
        writer.start(f"""
            import random
            data = pattern('writer {number}', {nbytes})
            order = list(range({keys}))
            random.Random({number}).shuffle(order)
            won = []
            c.wait('go')
            for i in order:
                try:
                    c.put_from(f'k{{i}}', data)
                except ExistsError as error:
                    assert error.code == -705
                else:
                    won.append(i)
            won
        """)
    with shared_node.client() as client:
        client.put("go", None)
        winners = {i: number for number, writer in enumerate(putting) for i in writer.result()}
        client.put("over", None)
        assert sorted(winners) == list(range(keys))
        digests = [digest(pattern(f"writer {number}", nbytes)) for number in range(writers)]
        stored = {i: digest(client.get(f"k{i}")) for i in range(keys)}
        assert stored == {i: digests[number] for i, number in winners.items()}
        for reader in reading:
            assert reader.result() == stored


def free_memory() -> int:
    """Bytes that this machine can still give."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("nbytes", "pool"), [(2 * GIB + 4097, "3GiB"), (5 * GIB // 2, "6GiB")])
def test_a_value_above_2_gib_is_read_back_whole(
    make_node: Callable[..., NodeProcess], make_worker: MakeWorker, nbytes: int, pool: str
) -> None:
    # The pool, the source, and twice the largest of three parts while the pattern is made.
    needed = int(pool[0]) * GIB + 2 * nbytes + GIB
    if free_memory() < needed:
        pytest.skip(f"NOT TESTED: {needed} bytes of memory needed, {free_memory()} free")
    node = make_node(pool_size=pool)
    writer, reader = make_worker(node), make_worker(node)
    writer.run(f"data = memoryview(pattern(1, {nbytes})); whole = digest(data)", hang_limit_s=300)
    cuts = (0, 1_000_000_007, 1_000_000_008, nbytes)
    parts = ", ".join(f"data[{start}:{end}]" for start, end in pairwise(cuts))
    for put in ("c.put_from('k', data, timeout=300).nbytes", f"c.put_parts('k', {parts}, timeout=300).nbytes"):
        assert writer.run(put, hang_limit_s=300) == nbytes
        assert reader.run("c.size('k')") == nbytes
        reader.run("h = c.get_buffer('k')")
        assert reader.run("len(h), h.view.nbytes") == (nbytes, nbytes)
        assert reader.run("digest(h.view)", hang_limit_s=300) == writer.run("whole")
        reader.run("h.release(); c.remove('k')")
    with node.client() as client:
        eventually(lambda: client.stats()["pool"]["bytes_used"] == 0, "all room to be back")


# -- values outlive their writer --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=pytest.mark.long)])
@pytest.mark.parametrize("end", ["closed", "killed"])
def test_values_are_there_when_their_writer_is_gone(
    shared_node: NodeProcess, make_worker: MakeWorker, end: str, rounds: int
) -> None:
    sizes = [1, 4096, MIB, 20 * MIB] if rounds > 1 else [1, 4096, MIB, 5 * MIB]
    sizes = sizes * 5
    with shared_node.client() as client:
        for _ in range(rounds):
            writer = make_worker(shared_node)
            writer.run(f"""
                for i, nbytes in enumerate({sizes}):
                    data = pattern(i, nbytes)
                    if i % 3 == 0:
                        c.put(f'k{{i}}', data)
                    elif i % 3 == 1:
                        c.put_from(f'k{{i}}', bytearray(data))
                    else:
                        c.put_parts(f'k{{i}}', data[:100], memoryview(data)[100:])
            """)
            if end == "killed":
                writer.kill()
            else:
                assert writer.close() == (0, "")
            eventually(lambda: client.stats()["clients"] == 1, "the writer to be gone")
            reader = make_worker(shared_node)
            keys = [f"k{i}" for i in range(len(sizes))]
            assert reader.run(f"c.exists_many({keys})") == [True] * len(sizes)
            assert reader.run(f"[digest(c.get(key)) for key in {keys}]") == [
                digest(pattern(i, nbytes)) for i, nbytes in enumerate(sizes)
            ]
            reader.kill()
            assert client.remove_many(keys) == [True] * len(keys)


# -- replacing a value ------------------------------------------------------------------------------------------------

# A value that says which it is: its number, then the pattern of that number.
VALUES = """
import struct
def value(number, nbytes):
    return struct.pack('<q', number) + pattern(number, nbytes - 8)
def number_of(view):
    number, = struct.unpack_from('<q', view)
    assert digest(view[8:]) == digest(pattern(number, len(view) - 8)), number
    return number
"""


@pytest.mark.parametrize(
    ("kills", "nbytes", "readers"),
    [(8, 2 * MIB, 2), pytest.param(50, 16 * MIB, 4, marks=[pytest.mark.long, pytest.mark.timeout(900)])],
)
def test_readers_see_whole_values_in_order_while_upserting_writers_are_killed(
    shared_node: NodeProcess, make_worker: MakeWorker, kills: int, nbytes: int, readers: int
) -> None:
    moments = random.Random(kills)
    nursery = make_worker(shared_node)
    nursery.run(NURSERY + VALUES)
    nursery.run(f"""
        def write(client, say):
            for number in range(first, first + 10_000):
                client.upsert('k', value(number, {nbytes}))
                say(struct.pack('<q', number))
    """)
    with shared_node.client() as client:
        client.put_from("k", struct.pack("<q", 0) + pattern(0, nbytes - 8))
        reading = [make_worker(shared_node) for _ in range(readers)]
        for reader in reading:
            reader.run(VALUES)
            # Anything raised ends the reader, and with it the test: not found and not ready are no answers here.
            reader.start("""
                count, last = 0, 0
                while not c.exists('over'):
                    h = c.get_buffer('k')
                    number = number_of(h.view)
                    h.release()
                    assert number >= last, (number, last)
                    count, last = count + 1, number
                count
            """)
        acked = 0
        for _ in range(kills):
            said = nursery.run(f"first = {acked + 1}; kill_one(write, {moments.uniform(0, 0.3)})")
            acked = max(acked, *(number for (number,) in struct.iter_unpack("<q", said)), 0)
            eventually(lambda: client.stats()["unpublished"] == 0, "the killed writer to be cleaned up")
            with client.get_buffer("k") as handle:
                (number,) = struct.unpack_from("<q", handle.view)
                # The last one acknowledged, or the one under way, complete.
                assert number in (acked, acked + 1)
                assert digest(handle.view[8:]) == digest(pattern(number, nbytes - 8))
            acked = number
        client.put("over", None)
        assert acked > 0
        assert all(reader.result() for reader in reading)


def test_an_upsert_without_room_for_a_second_copy_leaves_the_old_value(
    shared_node: NodeProcess, make_worker: MakeWorker
) -> None:
    writer = make_worker(shared_node)
    with shared_node.client() as client:
        # Pinned, so that they cannot go to make room.
        client.put_from("k", pattern(1, 80 * MIB), softpin=True)
        client.put_from("other", pattern(2, 120 * MIB), softpin=True)
        old = client.get_buffer("k")
        with pytest.raises(NoSpaceError):
            client.upsert("k", pattern(3, 80 * MIB), timeout=0.1)
        assert digest(client.get("k")) == digest(pattern(1, 80 * MIB))
        # Room that comes in time is waited for; the old value is read meanwhile.
        writer.run_in_background(f"c.upsert('k', pattern(3, {80 * MIB}))")
        eventually(lambda: client.stats()["waiting_puts"] == 1, "the upsert to wait for room")
        assert digest(client.get("k")) == digest(pattern(1, 80 * MIB))
        client.remove("other")
        assert isinstance(writer.background_result(), PutInfo)
        assert digest(client.get("k")) == digest(pattern(3, 80 * MIB))
        # The old one goes when its last reader does, and not before.
        assert digest(old.view) == digest(pattern(1, 80 * MIB))
        assert client.stats()["stash"] == {"objects": 1, "bytes": 80 * MIB}
        old.release()
        eventually(lambda: client.stats()["stash"]["objects"] == 0, "the old value to be freed")
