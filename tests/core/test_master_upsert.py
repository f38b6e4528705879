"""upsert: a new generation beside the old one, swapped in at once or not at all."""

from mooncake_client.codes import Code
from mooncake_node.core.replica import ReplicaState
from mooncake_node.core.waiting import PutMode, Waiter, Want

PAGE = 4096
UPSERT = PutMode.UPSERT


def test_an_upsert_of_nothing_is_a_put(core):
    a = core.open()
    replica = core.store(a, "k", mode=UPSERT)
    assert core.readable("k") is replica


def test_the_old_generation_is_shown_until_the_new_one_is_complete_and_then_freed(core):
    a = core.open()
    old = core.store(a, "k")
    new = core.put(a, "k", mode=UPSERT)
    assert core.readable("k") is old
    assert core.used == 2 * PAGE
    core.end(a, new)
    assert core.readable("k") is new
    assert new.generation > old.generation
    assert (old.state, core.used) == (ReplicaState.GONE, PAGE)


def test_readers_of_the_old_generation_keep_its_bytes_until_the_last_lets_go(core):
    a, b = core.open("a"), core.open("b")
    old = core.store(a, "k")
    held = [core.get(a, "k"), core.get(b, "k")]
    new = core.store(a, "k", mode=UPSERT)
    assert old.state is ReplicaState.STASHED
    assert (core.stat("stash.objects"), core.stat("stash.bytes")) == (1, PAGE)
    assert core.get(b, "k").replica is new
    core.release(a, held[0])
    assert (old.state, core.used) == (ReplicaState.STASHED, 2 * PAGE)
    core.release(b, held[1])
    assert (old.state, core.used) == (ReplicaState.GONE, PAGE)
    assert core.stat("stash.objects") == 0


def test_generations_of_one_key_lie_side_by_side_as_long_as_they_are_read(core):
    a = core.open()
    handles = []
    for _ in range(3):
        core.store(a, "k", mode=UPSERT)
        handles.append(core.get(a, "k"))
    assert len({handle.replica.offset for handle in handles}) == 3
    core.release(a, handles[1])
    assert [handle.replica.state for handle in handles] == [
        ReplicaState.STASHED, ReplicaState.GONE, ReplicaState.COMPLETE,
    ]  # fmt: skip


def test_a_failed_upsert_keeps_the_old_generation(core):
    a, b = core.open("a"), core.open("b")
    old = core.store(a, "k")
    core.revoke(a, core.put(a, "k", mode=UPSERT))
    assert core.readable("k") is old
    core.put(b, "k", mode=UPSERT)
    core.end_session(b)
    assert core.readable("k") is old
    assert core.used == PAGE


def test_an_upsert_beside_an_upsert_waits_for_its_turn(core):
    a, b, c = core.open("a"), core.open("b"), core.open("c")
    first = core.put(a, "k", mode=UPSERT)
    second, third = core.put(b, "k", mode=UPSERT), core.put(c, "k", mode=UPSERT)
    assert isinstance(second, Waiter)
    core.end(a, first)
    new = core.replica_for(second)
    assert core.readable("k") is first
    core.end(b, new)
    assert core.readable("k") is new
    core.revoke(c, core.replica_for(third))
    assert core.readable("k") is new


def test_an_upsert_waits_for_room_beside_the_old_generation(core):
    a, b = core.open("a"), core.open("b")
    core.store(a, "k", 3 * PAGE, softpin=True)
    upsert = core.put(a, "k", 2 * PAGE, mode=UPSERT)
    assert upsert.want is Want.ROOM
    core.remove("k")
    core.end(a, core.replica_for(upsert))
    assert core.get(b, "k").replica.nbytes == 2 * PAGE


def test_a_put_beside_an_upsert_of_a_readable_key_is_refused(core):
    a, b = core.open("a"), core.open("b")
    core.store(a, "k")
    core.put(a, "k", mode=UPSERT)
    with core.refuses(Code.EXISTS):
        core.put(b, "k")


def test_a_put_beside_an_upsert_whose_old_generation_was_removed_waits(core):
    a, b = core.open("a"), core.open("b")
    core.store(a, "k")
    upsert = core.put(a, "k", mode=UPSERT)
    core.remove("k")
    put = core.put(b, "k")
    core.end(a, upsert)
    assert core.refusal_for(put).code is Code.EXISTS


def test_a_waiting_upsert_is_not_ready_at_its_deadline_and_the_old_generation_stays(core):
    a, b = core.open("a"), core.open("b")
    old = core.store(a, "k")
    core.put(a, "k", mode=UPSERT)
    late = core.put(b, "k", mode=UPSERT, timeout=10)
    core.tick(later=10)
    assert core.refusal_for(late).code is Code.NOT_READY
    assert core.readable("k") is old
