"""Loads: an object on disk is brought back once, for everyone who asks."""

import pytest

from mooncake_client.codes import Code
from mooncake_node.core.admission import LOST_MAX
from mooncake_node.core.jobs import Delete, Load
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.replica import Rank, ReplicaState, Shelf
from mooncake_node.core.sessions import Handle
from mooncake_node.core.waiting import PutMode, Want

PAGE = 4096
S = ReplicaState
TORN = Refusal(Code.TRANSFER_FAILED, "torn")


@pytest.fixture
def core(make_core):
    return make_core(tier_nbytes_max=100 * PAGE)


def into(core):
    """The room of the only load that was begun since the last look."""
    job = core.job()
    assert isinstance(job, Load)
    return job.replica


def test_a_get_of_what_is_on_disk_waits_for_its_load_and_gets_a_handle(core):
    a = core.open()
    on_disk = core.offload(a, "k", 5000, kind=3)
    core.now += 5
    waiter = core.get(a, "k")
    assert (waiter.want, core.stat("load.under_way"), core.used) == (Want.LOAD, 1, 2 * PAGE)
    job = core.job()
    assert (job.record, job.replica.state, job.replica.generation) == ("record", S.WRITING, on_disk.generation)
    core.loaded(job.replica)
    handle = core.handle_for(waiter)
    assert handle.replica is job.replica is core.readable("k")
    assert (handle.replica.nbytes, handle.replica.kind, handle.replica.since_ns) == (5000, 3, on_disk.since_ns)
    assert (handle.replica.state, handle.replica.shelf, on_disk.state) == (S.COMPLETE, Shelf.PARKED, S.GONE)
    assert [core.stat(f"load.{name}") for name in ("from_offload", "coalesced", "under_way")] == [1, 0, 0]
    assert (core.stat("offload.objects"), core.stat("offload.only_on_disk")) == (1, 0)


def test_one_load_serves_everyone_who_asks(core):
    a, b = core.open("a"), core.open("b")
    core.offload(a, "k")
    waiters = [core.get(session, "k") for session in (a, b, a)]
    waiters.append(core.put(b, "k", mode=PutMode.PUT_OR_ACQUIRE))
    replica = into(core)
    core.loaded(replica)
    answers = core.answers()
    assert [waiter for waiter, _ in answers] == waiters
    assert all(isinstance(handle, Handle) and handle.replica is replica for _, handle in answers)
    assert (core.stat("load.from_offload"), core.stat("load.coalesced"), replica.refs) == (1, 3, 4)


def test_an_object_on_disk_is_there_for_wait_and_puts_and_leases_nothing(core):
    a = core.open()
    core.offload(a, "k")
    assert core.wait(a, "k") is None
    with core.refuses(Code.EXISTS):
        core.put(a, "k")
    assert core.lease("k") == 0
    assert (core.stat("leases"), core.take_jobs()) == (0, [])


def test_put_or_acquire_without_a_deadline_says_that_a_load_would_be_waited_for(core):
    a = core.open()
    core.offload(a, "k")
    assert core.put(a, "k", mode=PutMode.PUT_OR_ACQUIRE, timeout=None) is Want.LOAD
    assert (core.take_jobs(), core.stat("load.under_way")) == ([], 0)


def test_a_get_with_no_time_left_begins_no_load(core):
    a = core.open()
    core.offload(a, "k")
    with core.refuses(Code.NOT_READY, "still on its way into memory after 0 s"):
        core.get(a, "k", timeout=0)
    assert (core.take_jobs(), core.stat("load.under_way")) == ([], 0)


def test_an_empty_object_is_loaded_like_any_other(core):
    a = core.open()
    core.offload(a, "k", 0)
    core.store(a, "full", 4 * PAGE, softpin=True)
    waiter = core.get(a, "k")
    core.loaded(into(core))
    assert (core.handle_for(waiter).replica.nbytes, core.used) == (0, 4 * PAGE)


def test_what_was_loaded_keeps_its_pin_and_its_copy(core):
    a = core.open()
    core.offload(a, "k", softpin_ttl=50)
    until = core.readable("k").softpin_until_ns
    replica = core.bring_back(a, "k")
    assert (replica.softpin_until_ns, replica.contract.softpin, replica.rank) == (until, True, Rank.CLEAN)
    assert (core.stat("pinned.soft_bytes"), core.stat("offload.objects")) == (PAGE, 1)
    core.tick(later=50)
    assert (core.stat("pinned.soft_bytes"), replica.contract.softpin) == (0, False)


def test_those_who_ask_for_more_handles_than_they_may_have_are_refused_when_it_is_loaded(make_core):
    core = make_core(tier_nbytes_max=100 * PAGE, handles_max=1)
    a = core.open()
    core.offload(a, "k")
    first, second = core.get(a, "k"), core.get(a, "k")
    core.loaded(into(core))
    [(served, handle), (refused, refusal)] = core.answers()
    assert (served, refused, refusal.code) == (first, second, Code.INVALID_ARGUMENT)
    with core.refuses(Code.INVALID_ARGUMENT):
        core.get(a, "k")
    core.release(a, handle)


# -- failures -----------------------------------------------------------------------------------------------------


def test_a_failed_load_is_told_to_everyone_and_the_next_who_asks_tries_again(core):
    a, b = core.open("a"), core.open("b")
    core.offload(a, "k")
    waiters = [core.get(a, "k"), core.put(b, "k", mode=PutMode.PUT_OR_ACQUIRE)]
    core.loaded(into(core), TORN)
    assert core.answers() == [(waiter, TORN) for waiter in waiters]
    assert (core.state("k"), core.used, core.stat("offload.failures")) == ("ON_DISK", 0, 1)
    again = core.get(a, "k")
    core.loaded(into(core))
    core.handle_for(again)


def test_a_pinned_object_whose_copy_is_gone_is_lost_until_it_is_put_again(core):
    a = core.open()
    core.offload(a, "k")
    waiter = core.get(a, "k")
    core.loaded(into(core), TORN, gone=True)
    refusal = core.refusal_for(waiter)
    assert (refusal.code, refusal.message) == (Code.OBJECT_LOST, "its last copy could not be read: torn")
    assert isinstance(core.job(), Delete)
    for _ in range(2):
        with core.refuses(Code.OBJECT_LOST, "torn"):
            core.get(a, "k")
        with core.refuses(Code.OBJECT_LOST):
            core.lease("k")
    assert (core.stat("offload.lost"), core.stat("offload.objects"), core.stat("pinned.soft_bytes")) == (1, 0, 0)
    core.store(a, "k")
    core.remove("k")
    with core.refuses(Code.NOT_FOUND):
        core.get(a, "k")
    assert core.stat("offload.lost") == 0


def test_an_ordinary_object_whose_copy_is_gone_is_not_found(core):
    a = core.open()
    core.offload(a, "k")
    core.unpin("k")
    waiter = core.get(a, "k")
    core.loaded(into(core), TORN, gone=True)
    refusal = core.refusal_for(waiter)
    assert (refusal.code, "torn" in refusal.message) == (Code.NOT_FOUND, True)
    with core.refuses(Code.NOT_FOUND, "no such object$"):
        core.get(a, "k")
    assert core.stat("offload.lost") == 0


@pytest.mark.parametrize("how", ["remove", "clear"])
def test_a_lost_object_is_forgotten_by_remove_and_clear(core, how):
    a = core.open()
    core.offload(a, "k")
    core.get(a, "k")
    core.loaded(into(core), TORN, gone=True)
    if how == "remove":
        assert core.remove("k") is False
    else:
        assert core.clear() == 0
    with core.refuses(Code.NOT_FOUND):
        core.get(a, "k")


def test_of_too_many_lost_ones_the_oldest_are_forgotten(core):
    a = core.open()
    core.master.admission.lost.update({f"lost{n}": "burnt" for n in range(LOST_MAX)})
    core.offload(a, "k")
    core.get(a, "k")
    core.loaded(into(core), TORN, gone=True)
    assert core.stat("offload.lost") == LOST_MAX
    with core.refuses(Code.NOT_FOUND):
        core.get(a, "lost0")
    with core.refuses(Code.OBJECT_LOST, "burnt"):
        core.get(a, "lost1")


def test_an_upsert_that_waits_for_room_goes_on_when_a_load_of_its_key_fails(core):
    a = core.open()
    core.offload(a, "k", 2 * PAGE)
    core.store(a, "other", 2 * PAGE, softpin=True)
    reader, upsert = core.get(a, "k"), core.put(a, "k", PAGE, mode=PutMode.UPSERT)
    assert upsert.want is Want.ROOM
    core.loaded(into(core), TORN)
    [(told, refusal), (served, replica)] = core.answers()
    assert (told, refusal, served, replica.key) == (reader, TORN, upsert, "k")


# -- time and clients that go ---------------------------------------------------------------------------------------


def test_an_asker_is_not_ready_at_its_deadline_and_the_load_goes_on(core):
    a = core.open()
    core.offload(a, "k")
    late = core.get(a, "k", timeout=10)
    replica = into(core)
    core.tick(later=10)
    refusal = core.refusal_for(late)
    assert (refusal.code, refusal.message) == (Code.NOT_READY, "still on its way into memory after 1e-08 s")
    core.loaded(replica)
    assert (core.answers(), replica.shelf, replica.refs) == ([], Shelf.INACTIVE, 0)


def test_a_load_nobody_waits_for_any_more_is_of_use_to_the_next_asker(core):
    a, b = core.open("a"), core.open("b")
    core.offload(a, "k")
    core.get(b, "k")
    replica = into(core)
    core.end_session(b)
    waiter = core.get(a, "k")
    assert core.take_jobs() == []
    core.loaded(replica)
    assert core.handle_for(waiter).replica is replica


# -- waiting for room -----------------------------------------------------------------------------------------------


@pytest.fixture
def full(core):
    """An object on disk; the pool is full of one that stays."""
    a = core.open("a")
    core.offload(a, "k", 2 * PAGE)
    core.store(a, "other", 4 * PAGE)
    core.a, core.handle = a, core.get(a, "other")
    return core


def test_a_load_waits_for_room_in_the_queue_with_the_puts(full):
    core, a = full, full.a
    before = core.put(a, "before", PAGE)
    reader = core.get(a, "k")
    behind = core.put(a, "behind", PAGE)
    assert (reader.want, core.take_jobs(), core.stat("waiting_puts"), core.stat("waiting")) == (Want.LOAD, [], 2, 4)
    core.release(a, core.handle)
    assert [(waiter, replica.key) for waiter, replica in core.answers()] == [(before, "before"), (behind, "behind")]
    replica = into(core)
    core.loaded(replica)
    assert core.handle_for(reader).replica is replica


def test_a_load_that_is_removed_makes_way_in_the_queue(full):
    core, a = full, full.a
    reader = core.get(a, "k")
    core.remove("k")
    refusal = core.refusal_for(reader)
    assert (refusal.code, refusal.message) == (Code.NOT_FOUND, "it was removed before it could be read")
    assert (len(core.master.waiting), core.stat("load.under_way")) == (0, 0)


def test_a_load_that_waits_for_room_is_given_up_with_the_last_asker(full):
    core, b = full, full.open("b")
    first, second = core.get(b, "k"), core.get(b, "k")
    third = core.get(full.a, "k")
    core.cancel(first)
    assert core.stat("load.under_way") == 1
    core.cancel(third)
    core.end_session(b)
    assert (second.open, core.stat("load.under_way"), len(core.master.waiting)) == (False, 0, 0)
    assert core.state("k") == "ON_DISK"


def test_those_who_wait_for_a_load_without_room_are_told_so_at_their_deadline(full):
    """Found by reading: of two whose time was up together the second was told that it was still being read."""
    core, a = full, full.a
    waiters = [core.get(a, "k", timeout=10), core.get(a, "k", timeout=10)]
    core.tick(later=10)
    answers = core.answers()
    assert [waiter for waiter, _ in answers] == waiters
    for _, refusal in answers:
        assert refusal.code is Code.NO_SPACE
        assert refusal.message.startswith("no room for 8192 bytes within 1e-08 s: 0 of 16384 bytes free")
    assert (core.stat("load.under_way"), len(core.master.waiting)) == (0, 0)


def test_a_load_that_waits_for_room_is_begun_once(full):
    core, a = full, full.a
    waiters = [core.get(a, "k"), core.put(a, "k", mode=PutMode.PUT_OR_ACQUIRE)]
    assert core.stat("load.coalesced") == 1
    core.release(a, core.handle)
    core.loaded(into(core))
    assert [waiter for waiter, _ in core.answers()] == waiters
    assert core.stat("load.coalesced") == 1


# -- while it is loaded ---------------------------------------------------------------------------------------------


def test_a_removed_object_is_not_found_and_its_room_is_kept_until_the_load_has_ended(core):
    a = core.open()
    core.offload(a, "k", 2 * PAGE)
    reader, acquirer = core.get(a, "k"), core.put(a, "k", PAGE, mode=PutMode.PUT_OR_ACQUIRE)
    replica = into(core)
    core.remove("k")
    # Who would have acquired it writes it now, and the reader waits for that.
    taken = core.replica_for(acquirer)
    assert (reader.open, reader.want) == (True, Want.READ)
    assert isinstance(core.job(), Delete)
    assert (replica.state, core.stat("pool.doomed_bytes")) == (S.DOOMED, 2 * PAGE)
    core.loaded(replica)
    assert (replica.state, core.stat("pool.doomed_bytes")) == (S.GONE, 0)
    core.end(a, taken)
    assert core.handle_for(reader).replica is taken


def test_readers_of_what_is_upserted_while_it_is_loaded_get_the_new_generation(core):
    a, b = core.open("a"), core.open("b")
    core.offload(a, "k")
    reader = core.get(b, "k")
    old = into(core)
    new = core.store(a, "k", PAGE, mode=PutMode.UPSERT)
    assert core.handle_for(reader).replica is new
    assert [type(job) for job in core.take_jobs()] == [Delete]
    core.loaded(old)
    assert (old.state, core.readable("k")) == (S.GONE, new)


def test_an_upsert_in_progress_does_not_hold_up_a_load(core):
    a, b = core.open("a"), core.open("b")
    core.offload(a, "k")
    upsert = core.put(a, "k", mode=PutMode.UPSERT)
    reader = core.get(b, "k")
    replica = into(core)
    core.loaded(replica)
    assert core.handle_for(reader).replica is replica
    core.end(a, upsert)
    assert (replica.state, core.readable("k")) == (S.STASHED, upsert)


def test_a_revoked_upsert_leaves_those_who_wait_for_a_load_to_it(core):
    """Found by reading: they were counted as if they had asked again."""
    a, b = core.open("a"), core.open("b")
    core.offload(a, "k")
    upsert = core.put(a, "k", mode=PutMode.UPSERT)
    acquirer = core.put(b, "k", mode=PutMode.PUT_OR_ACQUIRE)
    core.revoke(a, upsert)
    assert (core.answers(), core.stat("load.coalesced")) == ([], 0)
    core.loaded(into(core))
    core.handle_for(acquirer)


def test_a_reader_of_what_is_removed_while_an_upsert_is_written_waits_for_that(core):
    a, b = core.open("a"), core.open("b")
    core.offload(a, "k")
    upsert = core.put(a, "k", mode=PutMode.UPSERT)
    reader = core.get(b, "k")
    core.remove("k")
    assert (reader.open, reader.want) == (True, Want.READ)
    core.end(a, upsert)
    assert core.handle_for(reader).replica is upsert


@pytest.mark.parametrize("outcome", [None, TORN])
def test_a_clear_ends_loads_and_their_room_comes_back_when_they_have_ended(core, outcome):
    a = core.open()
    core.offload(a, "k")
    reader = core.get(a, "k")
    replica = into(core)
    core.clear()
    refusal = core.refusal_for(reader)
    assert (refusal.code, replica.state) == (Code.NOT_FOUND, S.DOOMED)
    core.reap()
    assert core.used == PAGE
    core.loaded(replica, outcome)
    assert (core.used, core.stat("offload.failures"), core.stat("load.from_offload")) == (0, 0, 0)


def test_an_old_load_that_ends_does_not_touch_a_newer_one_of_its_key(core):
    a = core.open()
    core.offload(a, "k")
    core.get(a, "k")
    old = into(core)
    core.remove("k")
    core.answers()
    core.take_jobs()
    core.offload(a, "k")
    reader = core.get(a, "k")
    new = into(core)
    core.loaded(old, TORN, gone=True)
    assert (core.answers(), reader.open, core.state("k")) == ([], True, "ON_DISK")
    core.loaded(new)
    assert core.handle_for(reader).replica is new


def test_what_is_loaded_and_held_by_nobody_leaves_again_for_an_upsert_in_the_same_step(make_core):
    core = make_core(tier_nbytes_max=100 * PAGE, handles_max=1)
    a, b, c = core.open("a"), core.open("b"), core.open("c")
    core.offload(a, "mine", 0)
    core.offload(a, "k", 2 * PAGE)
    core.store(a, "other", 2 * PAGE)
    core.get(a, "other")
    reader, upsert = core.get(b, "k"), core.put(c, "k", 2 * PAGE, mode=PutMode.UPSERT)
    mine = core.get(b, "mine")
    [load, begun] = core.take_jobs()
    core.loaded(begun.replica)
    core.handle_for(mine)
    core.loaded(load.replica)
    [(refused, refusal), (served, replica)] = core.answers()
    assert (refused, refusal.code, served) == (reader, Code.INVALID_ARGUMENT, upsert)
    assert (core.state("k"), core.stat("load.under_way")) == ("ON_DISK", 0)
    core.end(c, replica)
