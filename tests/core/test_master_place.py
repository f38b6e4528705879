"""place and publish_placed: a put whose bytes are here already, in one step."""

import pytest

from mooncake_client.codes import Code
from mooncake_node.core.jobs import Delete
from mooncake_node.core.replica import ReplicaState, Shelf
from mooncake_node.core.waiting import PutMode, Want

PAGE = 4096


def test_a_placed_object_is_readable_at_once(core):
    a, b = core.open("a"), core.open("b")
    core.now += 5
    replica = core.place(a, "k", 5000)
    assert (replica.state, replica.writer, replica.since_ns) == (ReplicaState.COMPLETE, 0, core.now)
    assert (replica.shelf, core.used, core.stat("unpublished")) == (Shelf.INACTIVE, 2 * PAGE, 0)
    assert core.get(b, "k").replica is replica
    assert core.stat("objects") == 1


def test_placed_and_started_puts_take_generations_and_ids_in_one_order(core):
    a = core.open()
    seen = [core.place(a, "k"), core.store(a, "l"), core.place(a, "m")]
    facts = [(replica.replica_id, replica.generation) for replica in seen]
    assert facts == sorted({*facts})


def test_what_is_there_is_not_placed_but_by_an_upsert(core):
    a = core.open()
    old = core.place(a, "k")
    for mode in (PutMode.PUT, PutMode.PUT_OR_ACQUIRE):
        with core.refuses(Code.EXISTS):
            core.place(a, "k", mode=mode)
    new = core.place(a, "k", mode=PutMode.UPSERT)
    assert (old.state, core.readable("k")) == (ReplicaState.GONE, new)


def test_beside_a_writer_nothing_is_placed(core):
    a, b = core.open("a"), core.open("b")
    replica = core.put(a, "k")
    assert core.place(b, "k") is None
    core.end(a, replica)
    new = core.put(a, "k", mode=PutMode.UPSERT)
    assert core.place(b, "k", mode=PutMode.UPSERT) is None
    core.end(a, new)


def test_without_room_nothing_is_placed(core):
    a = core.open()
    core.store(a, "pinned", 4 * PAGE, softpin=True)
    assert core.place(a, "k") is None
    assert core.place(a, "empty", 0).nbytes == 0


def test_room_is_made_as_for_any_put(core):
    a = core.open()
    core.fill(a, 4)
    assert core.place(a, "new", 2 * PAGE) is not None
    assert [core.state(f"k{number}") for number in range(4)] == [None, None, "COMPLETE", "COMPLETE"]


def test_the_limits_of_a_put_hold(make_core):
    core = make_core(hard_pin_nbytes_max=PAGE)
    a, reader = core.open("a"), core.open("reader", readonly=True)
    with core.refuses(Code.INVALID_ARGUMENT, "readonly"):
        core.place(reader, "k")
    with core.refuses(Code.INVALID_ARGUMENT, "1 to 1024 bytes"):
        core.place(a, "")
    with core.refuses(Code.NO_SPACE, "can never fit"):
        core.place(a, "k", 5 * PAGE)
    core.place(a, "k", 100, hardpin=True)
    with core.refuses(Code.NO_SPACE, "hard pins hold 100 of 4096 bytes"):
        core.place(a, "l", PAGE, hardpin=True)
    assert core.stat("pinned.hard_bytes") == 100
    core.remove("k")
    assert core.stat("pinned.hard_bytes") == 0


def test_a_soft_pin_counts_from_the_publication(core):
    replica = core.place(core.open(), "k", softpin=True, softpin_ttl_ns=50)
    assert (core.stat("pinned.soft_bytes"), replica.softpin_until_ns) == (PAGE, core.now + 50)


def test_those_who_wait_for_the_key_hear_of_it(core):
    a, b = core.open("a"), core.open("b")
    core.store(a, "pinned", 4 * PAGE, softpin=True)
    presence, put = core.wait(b, "k"), core.put(b, "k")
    acquirer = core.put(b, "k", mode=PutMode.PUT_OR_ACQUIRE)
    assert put.want is Want.ROOM
    replica = core.place(a, "k", 0)
    (first, outcome), (second, refusal), (third, handle) = core.answers()
    assert (first, outcome, second, refusal.code) == (presence, None, put, Code.EXISTS)
    assert (third, handle.replica) == (acquirer, replica)


@pytest.mark.parametrize("under_way", [False, True])
def test_an_upsert_is_placed_over_what_is_on_disk(make_core, under_way):
    core = make_core(tier_nbytes_max=10 * PAGE)
    a = core.open()
    core.offload(a, "k")
    if under_way:
        reader = core.get(a, "k")
        load = core.job()
    replica = core.place(a, "k", mode=PutMode.UPSERT)
    assert isinstance(core.job(), Delete)
    assert (core.readable("k"), core.stat("load.under_way")) == (replica, 0)
    if under_way:
        assert core.handle_for(reader).replica is replica
        core.loaded(load.replica)
