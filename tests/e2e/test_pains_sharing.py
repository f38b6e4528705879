"""What users of shared object stores ran into with references, removal and layout (pains A16, A17, A20 to A24)."""

import gc
import itertools
import mmap
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from mooncake_client import Client, NotFoundError
from tests.support import NodeProcess, Worker, digest, eventually, pattern

POOL_SIZE = "128MiB"
MIB = 1 << 20


def counts(normal: int, full: int) -> pytest.MarkDecorator:
    """Parametrise `count`: a tenth or so in the normal run, the full number in the long one."""
    return pytest.mark.parametrize("count", [normal, pytest.param(full, marks=pytest.mark.long)])


# -- A16: exactly one clean-up, whatever is heard of first -------------------------------------------------------------

HOLD = "handles = c.get_buffers([f'view/{i}' for i in range(100)])"


def end_of_connection_first(worker: Worker) -> None:
    worker.run("import socket; s = socket.socket(fileno=os.dup(c._link._sock.fileno())); s.shutdown(socket.SHUT_RDWR)")
    worker.kill()


def death_first(worker: Worker) -> None:
    # A child that inherited a copy of the socket keeps the connection open beyond the death of the client.
    child = worker.run("copy = os.dup(c._link._sock.fileno()); child = os.fork() or time.sleep(600); child")
    worker.kill()
    with Client(worker.socket) as client:
        eventually(lambda: client.stats()["clients"] == 2, "the dead client to go though its connection is open")
    os.kill(child, signal.SIGKILL)


def close_and_death(worker: Worker) -> None:
    worker.start("c.close()")
    worker.kill()


def death_in_a_batch(worker: Worker) -> None:
    worker.start("more = [c.get_buffers([f'view/{i % 100}' for i in range(200)]) for _ in range(1000)]")
    worker.kill()


def death_while_a_put_waits(worker: Worker) -> None:
    worker.run_in_background("c.put('waiting', bytes(100 << 20))")
    with Client(worker.socket) as client:
        eventually(lambda: client.stats()["waiting_puts"], "the put to wait")
    worker.kill()


@counts(2, 100)
@pytest.mark.parametrize(
    "die", [end_of_connection_first, death_first, close_and_death, death_in_a_batch, death_while_a_put_waits]
)
def test_references_of_a_dead_client_are_dropped_exactly_once(
    shared_node: NodeProcess, make_worker: Callable[..., Worker], die: Callable[[Worker], None], count: int
) -> None:
    with shared_node.client() as client:
        for _ in range(count):
            client.put_many({f"view/{i}": bytes(MIB) for i in range(100)})
            worker = make_worker(shared_node)
            worker.socket = shared_node.socket
            worker.run("import os, time")
            worker.run(HOLD)
            assert client.stats()["handles"] == 100
            die(worker)
            eventually(lambda: client.stats()["handles"] == 0, "the references of the dead client to go")
            eventually(lambda: client.stats()["clients"] == 1, "the dead client to go")
            assert client.remove_prefix("view/") == 100
            client.put_from("all of it", bytes(100 * MIB), timeout=0)
            assert client.remove("all of it")


# -- A17: views of one object die one by one ---------------------------------------------------------------------------


@counts(1, 10)
def test_every_view_of_one_object_is_a_reference_of_its_own(
    shared_node: NodeProcess, make_worker: Callable[..., Worker], count: int
) -> None:
    nbytes = 300_000
    other = make_worker(shared_node)
    other_lock = threading.Lock()
    failures: list[BaseException] = []

    def remove_and_fill(key: str) -> None:
        with other_lock:
            assert other.run(f"c.remove({key!r})")
            other.run(f"c.put_from({key!r} + '/next', bytes({nbytes})); c.remove({key!r} + '/next')")

    def one_thread(client: Client, number: int) -> None:
        for round_, order in itertools.product(range(count), itertools.permutations(range(3))):
            key = f"{number}/{round_}/{order}"
            data = pattern(key, nbytes)
            client.put_from(key, data)
            handles = [client.get_buffer(key) for _ in range(3)]
            derived: list[object] = [
                handles[0].view[100:],
                np.frombuffer(handles[1].view, dtype=np.uint8).reshape(1000, -1)[::3],
                torch.frombuffer(handles[2].view, dtype=torch.int32)[7:],
            ]
            expected = [
                digest(data[100:]),
                digest(np.frombuffer(data, dtype=np.uint8).reshape(1000, -1)[::3].tobytes()),
                digest(data[28:]),
            ]
            for handle in handles:
                handle.release()
                handle.release()
            handles.clear()
            remove_and_fill(key)
            alive = {0, 1, 2}
            for index in order:
                for i in alive:
                    assert digest(np.ascontiguousarray(derived[i])) == expected[i], (key, i)
                assert sum(holder.handles for holder in client.holders(key)) == len(alive)
                derived[index] = None
                alive.discard(index)
                eventually(
                    lambda key=key, left=len(alive): sum(h.handles for h in client.holders(key)) == left,
                    "the dropped view to let go",
                )

    def guarded(client: Client, number: int) -> None:
        try:
            one_thread(client, number)
        except BaseException as exc:
            failures.append(exc)

    with pytest.MonkeyPatch.context() as patch, shared_node.client() as client:
        patch.setattr("warnings.filters", [("ignore", None, UserWarning, None, 0)])
        threads = [threading.Thread(target=guarded, args=(client, number)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gc.collect()
        assert not failures, failures
        eventually(lambda: client.stats()["pool"]["bytes_used"] == 0, "all memory to be given back")


# -- A20: remove_all is a barrier --------------------------------------------------------------------------------------

# Each put is logged with a moment at which it had surely begun: its room was reserved, or it was done.
WRITE = """
    import random, threading, time
    log, going = {}, True
    def write(number):
        draw = random.Random(number)
        count = 0
        while going:
            count += 1
            key = f"{number}/{count}"
            try:
                if draw.random() < 0.5:
                    room = c.create(key, 1 << 18)
                    log[key] = time.monotonic()
                    room.view[:] = key.encode().ljust(1 << 18)
                    time.sleep(draw.random() / 50)
                    room.publish()
                else:
                    c.put_from(key, key.encode().ljust(1 << 18))
                    log[key] = time.monotonic()
            except (NotFoundError, NoSpaceError):
                pass
    threads = [threading.Thread(target=write, args=(2 * %d + i,), daemon=True) for i in range(2)]
    [thread.start() for thread in threads]
"""


@counts(10, 100)
def test_nothing_begun_before_remove_all_is_readable_after_it(
    shared_node: NodeProcess, make_worker: Callable[..., Worker], count: int
) -> None:
    writers = [make_worker(shared_node, client_args="timeout=0.5") for _ in range(4)]
    for number, writer in enumerate(writers):
        writer.run(WRITE % number)
    seen: list[tuple[float, set[str]]] = []
    held = {}
    with shared_node.client() as client:
        called_s = 0.0
        for _ in range(count):
            eventually(lambda: client.stats()["objects"] >= 20, "the writers to write")
            seen.append((called_s, {info.key for info in client.list()}))
            for info in itertools.islice(client.list(), 2):
                got = client.get_many([info.key])[0]
                if isinstance(got, memoryview):
                    held[info.key] = got
            called_s = time.monotonic()
            client.remove_all()
            seen.append((called_s, {info.key for info in client.list()}))
            if len(held) > 20:
                held.clear()
        assert held
        for key, view in held.items():
            assert bytes(view) == key.encode().ljust(1 << 18)
        began_s: dict[str, float] = {}
        for writer in writers:
            began_s |= writer.run("going = False; [thread.join() for thread in threads]; log")
        late = [(key, s) for s, keys in seen for key in keys if key in began_s and began_s[key] < s]
        assert not late
        left = [info.key for info in client.list()]
        assert client.remove_all() == len(left)
        assert list(client.list()) == []


# -- A21: remove is idempotent and never refused -----------------------------------------------------------------------


def test_removing_read_probed_gone_and_untouched_keys_in_one_batch(
    shared_node: NodeProcess, make_worker: Callable[..., Worker]
) -> None:
    keys = [f"k{i}" for i in range(400)]
    reader, remover = make_worker(shared_node), make_worker(shared_node)
    with shared_node.client() as client:
        client.put_many({key: pattern(key, 10_000) for key in keys})
        reader.run("views = c.get_many([f'k{i}' for i in range(100)])")
        reader.run("[digest(c.get(f'k{i}')) for i in range(100, 200)]; None")
        assert client.remove_many(keys[200:300]) == [True] * 100
        remover.run("keys = [f'k{i}' for i in range(400)]")
        for _ in range(10):
            assert remover.run("c.exists_many(keys)") == [True] * 200 + [False] * 100 + [True] * 100
        assert remover.run("c.remove_many(keys)") == [True] * 200 + [False] * 100 + [True] * 100
        assert client.exists_many(keys) == [False] * 400
        assert remover.run("c.remove_many(keys)") == [False] * 400
        assert reader.run("[digest(view) for view in views]") == [digest(pattern(key, 10_000)) for key in keys[:100]]
        assert client.stats()["stash"]["objects"] == 100
        reader.run("del views")
        eventually(lambda: client.stats()["pool"]["bytes_used"] == 0, "the memory of the last views")
        client.put("probed", b"")
        assert remover.run("c.exists('probed'), c.remove('probed')") == (True, True)


# -- A22: a late remove never takes a later generation -----------------------------------------------------------------


@counts(1000, 20_000)
def test_a_remove_that_names_an_old_generation_never_takes_a_newer_one(
    shared_node: NodeProcess, make_worker: Callable[..., Worker], tmp_path: Path, count: int
) -> None:
    announced = tmp_path / "generation"
    announced.write_bytes(bytes(16))
    with announced.open("r+b") as file:
        generation = mmap.mmap(file.fileno(), 16)
    remover = make_worker(shared_node)
    remover.run(f"""
        import mmap, threading
        file = open({str(announced)!r}, "r+b")
        generation = mmap.mmap(file.fileno(), 16)
        going, removed = True, 0
        def remove():
            global removed
            while going:
                named = bytes(generation)
                if named[0]:
                    removed += c.remove("k", generation=named.decode())
        thread = threading.Thread(target=remove, daemon=True)
        thread.start()
    """)
    with shared_node.client() as client:
        old = None
        for i in range(count):
            first = client.put("k", i.to_bytes(8, "little") * 1000)
            generation[:] = first.generation.encode()
            if i % 3 == 0:
                old = client.get_many(["k"])[0]
            client.remove("k")
            second = client.put("k", (~i & 0xFFFF_FFFF).to_bytes(8, "little") * 1000)
            if i % 5 == 0:
                old = None
            assert client.get("k") == (~i & 0xFFFF_FFFF).to_bytes(8, "little") * 1000
            assert client.info("k").generation == second.generation
            assert client.remove("k", generation=first.generation) is False
            assert client.remove("k", generation=second.generation) is True
        del old
        assert remover.run("going = False; thread.join(); removed") <= count


# -- A24: everything is aligned, and exactly as put --------------------------------------------------------------------


@counts(200, 2000)
def test_every_object_is_aligned_in_every_client_and_has_exactly_its_bytes(
    shared_node: NodeProcess, count: int
) -> None:
    sizes = np.linspace(1, 5000, count, dtype=int)
    clients = [shared_node.client() for _ in range(3)]
    for size in map(int, sizes):
        clients[0].put_from(f"raw/{size}", pattern(size, size))
        clients[0].put_parts(f"parts/{size}", b"h" * 28, pattern(size, size))
    for client in clients:
        for size in map(int, sizes):
            raw, parts = client.get_many([f"raw/{size}", f"parts/{size}"])
            assert raw == pattern(size, size)
            assert parts == b"h" * 28 + pattern(size, size)
            for view in (raw, parts):
                assert np.frombuffer(view, dtype=np.uint8).ctypes.data % 64 == 0
    del raw, parts, view
    for client in clients:
        client.close()


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128, torch.bfloat16, torch.float32])
def test_arrays_of_wide_types_are_equal_through_numpy_and_torch(shared_node: NodeProcess, dtype: torch.dtype) -> None:
    source = torch.arange(10_000).to(dtype)
    with shared_node.client() as client:
        client.put("tensor", source)
        client.put_from("raw", source.view(torch.uint8).numpy())
        client.put_parts("parts", b"h" * 28, b"p" * 36, source.view(torch.uint8).numpy())
        assert torch.equal(client.get("tensor"), source)
        # A header and padding up to 64 bytes is the documented way to an aligned payload behind it.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("warnings.filters", [("ignore", None, UserWarning, None, 0)])
            assert torch.equal(torch.frombuffer(client.get("raw"), dtype=dtype), source)
            assert torch.equal(torch.frombuffer(client.get("parts"), dtype=dtype, offset=64), source)
        if dtype is not torch.bfloat16:
            client.put("numpy", source.numpy())
            assert (client.get("numpy") == source.numpy()).all()
        with pytest.raises(NotFoundError):
            client.get("none")
