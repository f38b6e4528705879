"""Others' pains with reading, each from a public report: memory torn down for all, and empty taken for missing."""

from collections.abc import Callable

import numpy as np
import pytest

from mooncake_client import Client, ExistsError, NotFoundError
from tests.support import NodeProcess, Worker, digest, eventually, pattern

MIB = 1 << 20
MakeWorker = Callable[..., Worker]


# -- the end of one client is nobody else's ---------------------------------------------------------------------------


def test_two_of_eight_clients_end_and_the_other_six_keep_their_views(
    shared_node: NodeProcess, make_worker: MakeWorker
) -> None:
    workers = [make_worker(shared_node) for _ in range(8)]
    with shared_node.client() as client:
        client.put_from("shared", pattern("shared", 4 * MIB))
        for number, worker in enumerate(workers):
            worker.run(f"c.put_from('own {number}', pattern('own {number}', 300_000))")
            worker.run(f"views = [c.get_buffer('shared').view, c.get_buffer('own {number}').view]")
        killed, left = workers[3], workers[5]
        killed.kill()
        # At the end of its standard input: without close(), its views alive.
        assert left.close() == (0, "")
        rest = [(number, worker) for number, worker in enumerate(workers) if worker not in (killed, left)]
        eventually(lambda: client.stats()["clients"] == 1 + len(rest), "both to be gone")

        def holders(key: str) -> dict[int, int]:
            return {holder.pid: holder.handles for holder in client.holders(key)}

        assert holders("shared") == {worker.pid: 1 for _, worker in rest}
        assert holders("own 3") == holders("own 5") == {}
        # What the two had put is there; it may be removed, and its memory used, at once.
        assert client.remove_many(["own 3", "own 5"]) == [True, True]
        for number, worker in rest:
            assert holders(f"own {number}") == {worker.pid: 1}
            worker.run(f"c.put_from('new {number}', pattern('new {number}', 2_000_000))")
        for number, worker in rest:
            expected = [digest(pattern("shared", 4 * MIB)), digest(pattern(f"own {number}", 300_000))]
            assert worker.run("[digest(view) for view in views]") == expected
            others = [f"new {other}" for other, _ in rest]
            assert worker.run(f"[digest(c.get(key)) for key in {others}]") == [
                digest(pattern(other, 2_000_000)) for other in others
            ]


@pytest.mark.parametrize(
    "way", ["pass", "raise SystemExit(3)", "raise RuntimeError('x')", "os._exit(1)", "os.kill(os.getpid(), 15)"]
)
def test_whatever_way_a_client_ends_its_references_are_gone_and_the_object_is_not(
    shared_node: NodeProcess, make_worker: MakeWorker, way: str
) -> None:
    worker = make_worker(shared_node)
    with shared_node.client() as client:
        client.put_from("k", pattern(1, MIB))
        # In a child that is no worker: a worker catches what its code raises.
        script = (
            f"import os; from mooncake_client import Client; c = Client({shared_node.socket!r});"
            f"h = c.get_buffer('k'); v = c.get_buffer('k').view[7:]; b = c.create('half', 5000); {way}"
        )
        child = f"__import__('subprocess').run([__import__('sys').executable, '-c', {script!r}], capture_output=True)"
        stderr = worker.run(f"{child}.stderr.decode()")
        assert "leaked" not in stderr
        assert "resource_tracker" not in stderr
        assert ("RuntimeError: x" in stderr) == ("RuntimeError" in way), stderr
        eventually(lambda: client.stats()["handles"] == client.stats()["unpublished"] == 0, "its references to be gone")
        assert worker.run("digest(c.get('k'))") == digest(pattern(1, MIB))


# -- an empty value is a value ----------------------------------------------------------------------------------------

EMPTIES: dict[str, Callable[[Client], object]] = {
    "put of bytes": lambda client: client.put("k", b""),
    "put of a bytearray": lambda client: client.put("k", bytearray()),
    "put_from": lambda client: client.put_from("k", b""),
    "put_from an empty array": lambda client: client.put_from("k", np.empty((0, 3), np.float32)),
    "put_parts of none": lambda client: client.put_parts("k"),
    "put_parts of empty ones": lambda client: client.put_parts("k", b"", bytearray(), memoryview(b"")),
    "put_many": lambda client: client.put_many({"k": b"", "k2": b"x"}),
    "create": lambda client: client.create("k", 0).publish(),
    "upsert": lambda client: client.upsert("k", b""),
}


@pytest.mark.parametrize("how", EMPTIES)
def test_an_empty_value_is_there_and_is_not_a_missing_one(shared_node: NodeProcess, how: str) -> None:
    with shared_node.client() as writer, shared_node.client() as client:
        EMPTIES[how](writer)
        assert client.exists("k")
        assert client.size("k") == 0
        assert client.info("k").nbytes == 0
        assert [info.key for info in client.list("k") if info.nbytes == 0] == ["k"]
        client.wait("k", timeout=0)
        handle = client.get_buffer("k")
        # True, and comparable with None: whoever tests truth does not take it for missing.
        assert handle
        assert len(handle) == handle.nbytes == handle.view.nbytes == 0
        assert bytes(handle) == b""
        assert bytes(client.get("k")) == bytes(client.get("k", copy=True)) == b""
        target = bytearray(b"untouched")
        assert client.get_into("k", target) == 0
        assert target == b"untouched"
        found, missing = client.get_buffers(["k", "missing"])
        assert len(found) == 0
        assert isinstance(missing, NotFoundError)
        got, missing = client.get_many(["k", "missing"])
        assert bytes(got) == b""
        assert isinstance(missing, NotFoundError)
        with pytest.raises(ExistsError):
            writer.put("k", b"taken")
        del missing
        assert client.holders("k")[0].handles == 3
        assert client.remove("k")
        assert not client.exists("k")
        # As any other: removed and still read.
        assert client.stats()["stash"] == {"objects": 1, "bytes": 0}
        assert bytes(handle) == b""


def test_empty_parts_between_others_change_nothing(shared_node: NodeProcess) -> None:
    data = pattern(1, 10_000)
    with shared_node.client() as client:
        for number, parts in enumerate(([b"", data], [data[:77], b"", data[77:]], [data, b""], [b"", data, b"", b""])):
            client.put_parts(f"k{number}", *parts)
            assert client.size(f"k{number}") == len(data)
            assert digest(client.get(f"k{number}")) == digest(data)


def test_a_value_becomes_empty_and_full_again(shared_node: NodeProcess) -> None:
    with shared_node.client() as client:
        for data in (pattern(1, 5000), b"", pattern(2, MIB), b"", b""):
            client.upsert("k", data)
            assert client.exists("k")
            assert client.size("k") == len(data)
            assert bytes(client.get("k")) == data


def test_every_way_to_read_tells_a_missing_key(shared_node: NodeProcess) -> None:
    with shared_node.client() as client:
        client.put("k", b"")
        client.remove("k")
        for key in ("never", "k"):
            for read in (
                client.get,
                client.get_buffer,
                client.size,
                client.info,
                lambda key: client.get_into(key, bytearray(10)),
            ):
                with pytest.raises(NotFoundError) as caught:
                    read(key)
                assert caught.value.code == -704
                assert caught.value.key == key
            assert not client.exists(key)
            assert client.remove(key) is False


def test_empty_values_take_no_room_and_are_as_many_as_one_likes(shared_node: NodeProcess) -> None:
    with shared_node.client() as client:
        client.put_from("full", bytes(client.stats()["pool"]["bytes_total"]))
        keys = [f"k{number}" for number in range(500)]
        client.put_many(dict.fromkeys(keys, b""), timeout=0)
        assert client.exists_many(keys) == [True] * len(keys)
        handles = client.get_buffers(keys)
        assert client.remove_prefix("k") == len(keys)
        assert [len(handle) for handle in handles] == [0] * len(keys)
        assert client.stats()["pool"]["bytes_free"] == 0
