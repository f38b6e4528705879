"""clear (remove_all): nothing put or begun before can be read from here on."""

import pytest

from mooncake_client.codes import Code
from mooncake_node.core.replica import ReplicaState
from mooncake_node.core.waiting import PutMode, Want

PAGE = 4096


def test_a_clear_takes_every_key_in_one_step_and_says_how_many(core):
    a = core.open()
    for key in ("k", "l"):
        core.store(a, key)
    assert core.clear() == 2
    assert core.stat("objects") == 0
    for key in ("k", "l"):
        with core.refuses(Code.NOT_FOUND):
            core.get(a, key)
    assert core.clear() == 0
    assert core.stat("clear_epoch") == 2


def test_room_comes_back_in_slices(make_core):
    core = make_core(pages=8)
    a = core.open()
    for i in range(5):
        core.store(a, f"k{i}")
    core.clear()
    assert core.used == 5 * PAGE
    assert core.reap(2) is True
    assert core.used == 3 * PAGE
    assert core.reap(2) is True
    assert core.used == PAGE
    assert core.reap(2) is False
    assert core.used == 0
    assert core.reap(2) is False


def test_a_slice_that_takes_exactly_the_last_one_says_that_none_is_left(core):
    a = core.open()
    core.store(a, "k")
    core.store(a, "l")
    core.clear()
    assert core.reap(2) is False


def test_a_slice_of_nothing_is_our_bug(core):
    with pytest.raises(AssertionError):
        core.reap(0)


def test_what_is_read_is_stashed_by_the_reaper_and_freed_by_its_last_reader(core):
    a = core.open()
    replica = core.store(a, "k")
    handle = core.get(a, "k")
    core.clear()
    assert core.reap() is False
    assert replica.state is ReplicaState.STASHED
    core.release(a, handle)
    assert core.used == 0


def test_what_was_let_go_between_clear_and_reap_is_freed_by_the_reaper(core):
    a = core.open()
    replica = core.store(a, "k")
    handle = core.get(a, "k")
    core.clear()
    core.release(a, handle)
    assert replica.state is ReplicaState.COMPLETE
    core.reap()
    assert replica.state is ReplicaState.GONE


def test_a_writer_is_doomed_and_keeps_its_bytes_until_its_own_end(core):
    a = core.open()
    replica = core.put(a, "k")
    core.clear()
    core.reap()
    assert replica.state is ReplicaState.DOOMED
    assert (core.used, core.stat("pool.doomed_bytes"), core.stat("unpublished")) == (PAGE, PAGE, 1)
    with core.refuses(Code.NOT_FOUND, "removed, or cleared by remove_all, while it was being written"):
        core.end(a, replica)
    assert core.readable("k") is None
    assert (core.used, core.stat("pool.doomed_bytes"), core.stat("unpublished")) == (0, 0, 0)
    with core.refuses(Code.ILLEGAL_CLIENT):
        core.end(a, replica)


def test_a_doomed_put_is_not_published_by_end_and_acquire_either(core):
    a = core.open()
    replica = core.put(a, "k")
    core.clear()
    with core.refuses(Code.NOT_FOUND):
        core.end_and_acquire(a, replica)
    assert (core.used, a.handles) == (0, {})


def test_a_doomed_put_is_freed_by_its_revoke_or_by_the_death_of_its_writer(core):
    a, b = core.open("a"), core.open("b")
    revoked, orphan = core.put(a, "k"), core.put(b, "l")
    core.clear()
    core.revoke(a, revoked)
    assert core.used == PAGE
    core.end_session(b)
    assert (core.used, orphan.state) == (0, ReplicaState.GONE)


def test_the_key_of_a_doomed_put_is_free_for_a_new_one_and_the_old_end_does_not_touch_it(core):
    a, b, c = core.open("a"), core.open("b"), core.open("c")
    doomed = core.put(a, "k")
    core.clear()
    new = core.put(b, "k")
    assert new.offset != doomed.offset
    waiting = core.put(c, "k")
    reader = core.get(c, "k")
    with core.refuses(Code.NOT_FOUND):
        core.end(a, doomed)
    assert core.answers() == []
    assert waiting.open
    core.end(b, new)
    assert [waiter for waiter, _ in core.answers()] == [reader, waiting]
    assert core.readable("k") is new


@pytest.mark.parametrize("how", ["end", "end_and_acquire", "revoke", "death"])
def test_room_of_a_doomed_put_goes_to_a_put_that_waits(core, how):
    a, b = core.open("a"), core.open("b")
    doomed = core.put(a, "k", 4 * PAGE)
    core.clear()
    put = core.put(b, "k", 4 * PAGE)
    assert put.want is Want.ROOM
    if how == "death":
        core.end_session(a)
    elif how == "revoke":
        core.revoke(a, doomed)
    else:
        with core.refuses(Code.NOT_FOUND):
            getattr(core, how)(a, doomed)
    core.replica_for(put)


def test_room_of_a_doomed_put_goes_to_who_came_first_and_not_to_who_wants_its_key(core):
    a, b, c = core.open("a"), core.open("b"), core.open("c")
    doomed = core.put(a, "k", 4 * PAGE)
    core.clear()
    first, second = core.put(b, "l", 3 * PAGE), core.put(c, "k", 3 * PAGE)
    core.revoke(a, doomed)
    core.replica_for(first)
    assert second.open


def test_waiting_puts_and_readers_are_told_and_those_who_wait_for_presence_stay(core):
    a, b = core.open("a"), core.open("b")
    core.put(a, "k", 4 * PAGE)
    turn, reader, room = core.put(b, "k"), core.get(b, "k"), core.put(b, "l")
    presence = core.wait(b, "k")
    assert [waiter.want for waiter in (turn, reader, room)] == [Want.TURN, Want.READ, Want.ROOM]
    core.clear()
    answers = core.answers()
    assert {waiter.number for waiter, _ in answers} == {turn.number, reader.number, room.number}
    assert {refusal.code for _, refusal in answers} == {Code.NOT_FOUND}
    assert presence.open
    core.end_session(a)
    core.store(b, "k")
    assert core.answers() == [(presence, None)]


def test_nothing_begun_before_shows_up_after(core):
    a, b = core.open("a"), core.open("b")
    core.store(a, "k")
    upsert = core.put(a, "k", mode=PutMode.UPSERT)
    waiting = core.put(b, "k", mode=PutMode.UPSERT)
    core.clear()
    assert core.refusal_for(waiting).code is Code.NOT_FOUND
    core.reap()
    with core.refuses(Code.NOT_FOUND):
        core.end(a, upsert)
    assert core.readable("k") is None
    assert core.answers() == []
    new = core.store(b, "k")
    assert core.readable("k") is new


def test_what_is_put_between_clear_and_reap_stays(core):
    a = core.open()
    core.store(a, "k")
    core.clear()
    new = core.store(a, "k")
    assert core.reap() is False
    assert core.readable("k") is new


def test_several_generations_of_a_key_can_wait_for_the_reaper(core):
    a = core.open()
    for _ in range(3):
        core.store(a, "k")
        assert core.clear() == 1
    assert core.used == 3 * PAGE
    core.reap()
    assert core.used == 0


def test_a_put_that_waits_for_room_gets_it_from_the_reaper(core):
    a, b = core.open("a"), core.open("b")
    core.store(a, "k", 4 * PAGE)
    core.clear()
    put = core.put(b, "k")
    assert put.want is Want.ROOM
    core.reap()
    core.end(b, core.replica_for(put))


def test_what_a_clear_cut_off_counts_as_pinned_until_it_is_reaped(make_core):
    core = make_core(hard_pin_nbytes_max=4 * PAGE)
    a = core.open()
    core.store(a, "k", softpin=True, hardpin=True)
    core.clear()
    assert (core.stat("pinned.soft_bytes"), core.stat("pinned.hard_bytes")) == (PAGE, PAGE)
    core.reap()
    assert (core.stat("pinned.soft_bytes"), core.stat("pinned.hard_bytes")) == (0, 0)
