"""Small puts, whose bytes ride in the message when nothing has to be waited for (and no fault point is in the way)."""

import numpy as np
import pytest

from mooncake_client import Client, ExistsError, InvalidArgumentError, NoSpaceError, NotReadyError, PutInfo, wire
from mooncake_client.arguments import Deadline
from tests.support import NodeProcess, ledger_check

EDGE = wire.CARRIED_NBYTES_MAX


@pytest.fixture
def plain_node(make_node):
    """A daemon without fault injection: with it, every put takes the way with the points."""
    node: NodeProcess = make_node(pool_size="16MiB")
    yield node
    ledger_check(node.socket)


@pytest.fixture
def c(plain_node):
    with plain_node.client() as client:
        assert client._attached().attachment.carries_puts
        yield client


def pattern(nbytes: int) -> bytes:
    return bytes(index * 7 % 251 for index in range(nbytes))


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, 4095, 4096, 4097, EDGE - 1, EDGE, EDGE + 1])
def test_what_was_put_is_read_back(c, nbytes):
    info = c.put("k", pattern(nbytes))
    assert info.nbytes == nbytes
    handle = c.get_buffer("k")
    assert bytes(handle) == pattern(nbytes)
    assert handle.generation == info.generation


def test_an_array_comes_back_as_one_over_the_pool(c):
    c.put("k", {"a": np.arange(500), "b": "x"})
    got = c.get("k")
    assert (got["a"] == np.arange(500)).all()
    assert not got["a"].flags.writeable
    assert c.stats()["handles"] == 1


def test_the_bytes_behind_an_object_are_zero(c):
    """Freed room keeps its old bytes; none of them may show behind a shorter object in its place."""
    c.put("old", b"\xff" * 4096)
    c.remove("old")
    c.put("new", b"\x01" * 100)
    with c.create("probe", 1) as buffer:
        buffer.view[:] = b"x"
    c.remove("new")
    c.put("new", b"\x01" * 4090 + b"\x02" * 10)
    view = c.get_buffer("new").view
    whole = np.frombuffer(view, dtype=np.uint8)
    address = whole.__array_interface__["data"][0]
    import ctypes

    assert ctypes.string_at(address + 4100, 8192 - 4100) == bytes(8192 - 4100)


def test_a_taken_key_is_refused_and_an_upsert_replaces(c):
    first = c.put("k", b"one")
    with pytest.raises(ExistsError):
        c.put("k", b"two")
    second = c.upsert("k", b"three")
    assert bytes(c.get("k")) == b"three"
    assert second.generation > first.generation


def test_a_reader_of_the_replaced_object_keeps_its_bytes(c):
    c.put("k", pattern(1000))
    view = c.get("k")
    c.upsert("k", bytes(1000))
    assert bytes(view) == pattern(1000)


def test_a_key_being_written_is_waited_for(c, plain_node):
    with c.create("k", 100) as buffer:
        with pytest.raises(NotReadyError):
            c.put("k", b"small", timeout=0.05)
        buffer.view[:] = bytes(100)
    with pytest.raises(ExistsError):
        c.put("k", b"small")


def test_room_is_waited_for(c, make_worker, plain_node):
    c.put("big", bytes((16 << 20) - 4096), softpin=True)
    c.put("last", bytes(4096), softpin=True)
    with pytest.raises(NoSpaceError):
        c.put("k", b"small", timeout=0.05)
    worker = make_worker(plain_node)
    worker.start("c.put('k', b'small', timeout=60).nbytes")
    while not c.stats()["waiting_puts"]:
        pass
    c.remove("last")
    assert worker.result() == 5
    assert bytes(c.get("k")) == b"small"


def test_many_small_and_large_ones_together(c):
    objects = {f"k/{n}": pattern(n) for n in (0, 1, 200, EDGE, EDGE + 1, 50_000)} | {
        f"m/{n}": pattern(300) for n in range(6000)
    }
    c.put("k/200", b"taken")
    results = c.put_many(objects)
    assert list(results) == list(objects)
    assert isinstance(results.pop("k/200"), ExistsError)
    assert all(isinstance(result, PutInfo) for result in results.values())
    for key in results:
        assert bytes(c.get(key)) == objects[key]
    generations = [results[f"m/{n}"].generation for n in range(6000)]
    assert generations == sorted(generations)


def test_a_batch_of_small_ones_larger_than_the_pool_is_told_key_by_key(c):
    results = c.put_many({f"k/{n}": bytes(EDGE) for n in range(3000)}, softpin=True, timeout=0.1)
    stored = [key for key, result in results.items() if isinstance(result, PutInfo)]
    assert len(stored) == (16 << 20) // EDGE
    assert all(isinstance(result, PutInfo | NoSpaceError) for result in results.values())
    assert c.exists_many(stored) == [True] * len(stored)


@pytest.mark.parametrize(
    ("spec_nbytes", "data"), [(5, b"four"), (4, b"fives"), (EDGE + 1, bytes(EDGE + 1))], ids=["short", "long", "large"]
)
def test_a_message_that_does_not_hold_what_it_says_changes_nothing(c, spec_nbytes, data):
    request = wire.PutBytes(0, [], [wire.PutSpec("k", spec_nbytes, 0, upsert=False)], [memoryview(data)])
    with pytest.raises(InvalidArgumentError):
        c._attached().call(request, Deadline(30))
    assert not c.exists("k")
    assert c.stats()["unpublished"] == 0


def test_a_read_only_client_cannot_put_that_way_either(plain_node):
    with Client(plain_node.socket, readonly=True) as client, pytest.raises(InvalidArgumentError):
        client.put("k", b"x")


@pytest.mark.parametrize(
    ("count", "nbytes", "messages"),
    [
        (15, 4096, [wire.PutBytes]),
        (16, 4096, [wire.PutStart, wire.PutEnd]),
        (16, 513, [wire.PutStart, wire.PutEnd]),
        (16, 512, [wire.PutBytes]),
    ],
)
def test_many_that_are_worth_it_are_put_in_place(c, monkeypatch, count, nbytes, messages):
    link = c._attached()
    sent, call = [], link.call

    def noting(request, deadline):
        sent.append(type(request))
        return call(request, deadline)

    monkeypatch.setattr(link, "call", noting)
    objects = {f"k{number}": bytes([number]) * nbytes for number in range(count)}
    infos = c.put_many(objects)
    assert sent == messages
    assert [info.nbytes for info in infos.values()] == [nbytes] * count
    for key, data in objects.items():
        assert bytes(c.get_buffer(key).view) == data
    assert c.stats()["unpublished"] == 0


def test_many_in_place_beside_a_taken_key_and_one_that_is_written(c):
    c.put("k3", b"taken")
    room = c.create("k5", 4096)
    objects = {f"k{number}": bytes([number]) * 4096 for number in range(32)}
    infos = c.put_many(objects, timeout=0.1)
    assert isinstance(infos.pop("k3"), ExistsError)
    assert isinstance(infos.pop("k5"), NotReadyError)
    assert all(isinstance(info, PutInfo) for info in infos.values())
    assert bytes(c.get("k31")) == objects["k31"]
    room.abort()
