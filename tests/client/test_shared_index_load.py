"""Gets by the shared index while others replace, remove and evict; from many threads; more than there are pins."""

import random
import threading

import numpy as np
import pytest

from mooncake_client import Client, NoSpaceError, NotFoundError, StoreError
from mooncake_client.index_layout import ROW_PINS_MAX
from tests.support import digest, eventually, ledger_check, pattern

MIB = 1 << 20
FAULTS = False  # with fault injection there is no index


@pytest.fixture
def c(daemon, watcher):
    """A client of the blocking kind."""
    with daemon.client(name="tested") as client:
        yield client


def stash_of(client):
    return client.stats()["stash"]["objects"]


# -- threads, and many views ------------------------------------------------------------------------------------------


def test_many_threads_read_what_others_replace_and_remove(c, watcher):
    """What is read is right, at once and a moment later, whatever becomes of the object."""
    keys = [f"k{number}" for number in range(8)]
    errors, over = [], threading.Event()

    def write(seed):
        rng = random.Random(seed)
        with Client(c.settings.path) as client:
            while not over.is_set():
                key, number = rng.choice(keys), rng.randrange(1 << 30)
                if rng.random() < 0.2:
                    client.remove(key)
                else:
                    client.upsert(key, np.full(rng.randrange(1, 4000), number))

    def read(seed):
        rng, held = random.Random(seed), []
        for _ in range(1500):
            try:
                held.append(c.get(rng.choice(keys)))
            except NotFoundError:
                continue
            if len(held) > 20:
                for array in (held[-1], held.pop(rng.randrange(len(held)))):
                    assert (array == array[0]).all(), array

    def guarded(work, seed):
        try:
            work(seed)
        except BaseException as exc:
            errors.append(exc)

    writers = [threading.Thread(target=guarded, args=(write, seed)) for seed in range(2)]
    readers = [threading.Thread(target=guarded, args=(read, 10 + seed)) for seed in range(6)]
    for thread in writers + readers:
        thread.start()
    for thread in readers:
        thread.join()
    over.set()
    for thread in writers:
        thread.join()
    assert errors == []
    eventually(lambda: watcher.stats()["handles"] == 0, "no pin to be left")
    watcher.remove_all()
    eventually(lambda: watcher.stats()["pool"]["bytes_used"] == 0, "no memory to be left")


def test_what_is_replaced_again_and_again_is_there_all_the_time(c, daemon, make_worker):
    worker = make_worker(daemon)
    worker.run("c.upsert('k', 0)")
    worker.run_in_background("[c.upsert('k', number) for number in range(3000)] and None")
    last = looks = 0
    while last < 2999:
        assert c.exists("k")
        assert c.exists_many(["k", "k"]) == [True, True]
        now = c.get("k")
        assert now >= last, "an older one came back"
        last, looks = now, looks + 1
    assert worker.background_result() is None
    assert looks > 10


def test_more_views_than_a_row_has_pins_go_by_request(c, watcher):
    watcher.put_from("k", pattern("k", 1000))
    watcher.put_from("other", pattern("other", 1000))
    views = [c.get(key) for _ in range(ROW_PINS_MAX // 2) for key in ("k", "other")]
    by_request = c.get_buffers(["k", "other"] * 50)
    views += [handle.view for handle in by_request] + [c.get("k"), *c.get_many(["other", "k"])]
    assert watcher.stats()["handles"] == len(views) == ROW_PINS_MAX + 103
    watcher.remove("k")
    del by_request
    del views[1:]
    eventually(lambda: watcher.stats()["handles"] == 1, "all others to be given back")
    assert stash_of(watcher) == 1
    assert digest(views[0]) == digest(pattern("k", 1000))
    views[0] = c.get("other")
    eventually(lambda: stash_of(watcher) == 0, "the last one to be heard of")
    with pytest.raises(NotFoundError):
        c.get("k")


# -- a full pool ------------------------------------------------------------------------------------------------------


def test_eviction_never_touches_what_is_pinned(make_node):
    node = make_node(pool_size="16MiB")
    with node.client() as reader, node.client() as writer:
        for number in range(40):
            writer.put_from(f"pinned{number}", pattern(number, 100_000))
        views = {number: reader.get(f"pinned{number}") for number in range(0, 40, 2)}
        for number in range(600):
            writer.put_from(f"new{number}", bytes([number % 251]) * random.Random(number).randrange(1, 400_000))
        for number, view in views.items():
            assert digest(view) == digest(pattern(number, 100_000)), number
            assert reader.exists(f"pinned{number}")
        assert not any(reader.exists_many([f"pinned{number}" for number in range(1, 40, 2)]))
        stats = writer.stats()
        assert stats["stash"]["objects"] == 0
        assert stats["reclaim"]["productive_passes"] > 0
        del view
        views.clear()
        # Three times the pool: each of them has a second chance.
        for number in range(1000):
            writer.put_from(f"newer{number}", b"n" * 50_000)
        assert not any(reader.exists_many([f"pinned{number}" for number in range(40)])), "they never come back"
        assert writer.stats()["handles"] == 0
    ledger_check(node.socket)


def test_a_put_waits_for_what_is_pinned_and_is_told_who_has_it(make_node, make_worker):
    node = make_node(pool_size="16MiB")
    with node.client(name="writer") as writer:
        writer.put_from("k", pattern("k", 12 * MIB))
        worker = make_worker(node, client_args="name='reader'")
        worker.run("view = c.get('k')")
        with pytest.raises(NoSpaceError, match=r"'k' \(12582912 bytes\) by reader"):
            writer.put_from("new", b"n" * (12 * MIB), timeout=0.2)
        assert worker.run("digest(view)") == digest(pattern("k", 12 * MIB))
        outcome = []

        def put():
            try:
                outcome.append(writer.put_from("new", b"n" * (12 * MIB)))
            except StoreError as error:
                outcome.append(error)

        thread = threading.Thread(target=put)
        thread.start()
        eventually(lambda: writer.stats()["waiting_puts"] == 1, "the put to wait")
        worker.run("del view")
        thread.join()
        assert outcome[0].nbytes == 12 * MIB


def test_what_is_read_by_the_index_stays_longer_than_what_is_not(make_node):
    node = make_node(pool_size="16MiB")
    with node.client() as client:
        for number in range(10):
            client.put_from(f"k{number}", b"k" * MIB)
        for number in range(120):
            client.put_from(f"new{number}", b"n" * (MIB // 2))
            assert client.get("k3").nbytes == MIB
        assert client.exists_many([f"k{number}" for number in range(10)]) == [number == 3 for number in range(10)]
