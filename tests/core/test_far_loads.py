"""A get of what is elsewhere: sought once, brought in once, for everyone who asks."""

import pytest

from mooncake_client.codes import Code
from mooncake_node.core.jobs import Load
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.replica import ReplicaState
from mooncake_node.core.sessions import Handle
from mooncake_node.core.waiting import PutMode, Want
from tests.core.far import BROKEN, NOT_THERE, found

PAGE = 4096
S = ReplicaState


@pytest.fixture
def core(make_core):
    return make_core(has_peers=True, tier_nbytes_max=100 * PAGE)


def test_one_search_and_one_transfer_serve_everyone_who_asks_and_in_the_same_step(core):
    a, b = core.open("a"), core.open("b")
    waiters = [core.get(session, "k") for session in (a, b, a)]
    loading = core.far.sought()
    assert (core.used, core.stat("load.under_way"), core.stat("load.coalesced")) == (0, 1, 2)
    for _ in range(2):
        core.far.located(loading, found(7 << 40, 5000, kind=3))
    waiters.append(core.get(b, "k"))
    into = core.far.pull().replica
    assert (into.state, into.generation, into.nbytes, into.kind, core.used) == (S.WRITING, 7 << 40, 5000, 3, 2 * PAGE)
    assert core.readable("k") is None
    core.far.pulled(into)
    answers = core.answers()
    assert [waiter for waiter, _ in answers] == waiters
    assert all(isinstance(handle, Handle) and handle.replica is into for _, handle in answers)
    assert (into.refs, core.readable("k"), core.far.take()) == (4, into, [])
    assert [core.stat(f"load.{name}") for name in ("local_copies", "coalesced", "under_way")] == [1, 3, 0]


def test_the_next_get_is_a_local_hit(core):
    a = core.open()
    replica = core.far.cache(a, "k")
    assert core.get(a, "k").replica is replica
    assert (core.stat("load.local_hits"), core.far.take()) == (1, [])


def test_what_came_from_another_nodes_tier_is_counted_apart(core):
    a = core.open()
    _, pull = core.far.begin(a, "k", found())
    core.far.pulled(pull.replica, from_disk=True)
    assert (core.stat("load.from_remote_offload"), core.stat("load.local_copies")) == (1, 0)


def test_what_nobody_has_is_refused_with_the_reason_that_was_found(core):
    a, b = core.open("a"), core.open("b")
    waiters = [core.get(a, "k"), core.get(b, "k")]
    core.far.located(core.far.sought(), None)
    assert core.answers() == [(waiter, NOT_THERE) for waiter in waiters]
    assert core.stat("load.under_way") == 0
    core.get(a, "k")
    core.far.located(core.far.sought(), None, Refusal(Code.OBJECT_LOST, "its node is gone"))
    [(_, refusal)] = core.answers()
    assert refusal.code is Code.OBJECT_LOST


def test_what_this_node_lost_is_said_to_be_lost_unless_another_has_it(core):
    a = core.open()
    core.offload(a, "k")
    waiter = core.get(a, "k")
    core.far.located(core.far.sought(), None)
    core.loaded(core.job().replica, BROKEN, gone=True)
    assert core.refusal_for(waiter).code is Code.OBJECT_LOST
    waiter = core.get(a, "k")
    core.far.located(core.far.sought(), None)
    assert core.refusal_for(waiter).code is Code.OBJECT_LOST
    core.far.copy(a, "k")
    assert core.state("k") == "COMPLETE"


def test_a_get_by_who_holds_too_much_begins_no_search(make_core):
    core = make_core(has_peers=True, handles_max=1)
    a = core.open()
    core.store(a, "k")
    core.get(a, "k")
    with core.refuses(Code.INVALID_ARGUMENT):
        core.get(a, "l")
    assert core.far.take() == []


def test_a_get_with_no_time_left_begins_no_search(core):
    a = core.open()
    with core.refuses(Code.NOT_READY, "still on its way into memory after 0 s"):
        core.get(a, "k", timeout=0)
    assert core.far.take() == []


# -- room ------------------------------------------------------------------------------------------------------------


def test_the_copy_waits_for_room_without_a_transfer_and_is_begun_when_there_is_some(core):
    a = core.open()
    handles = [core.get(a, replica.key) for replica in core.fill(a, 4)]
    waiter = core.get(a, "k")
    core.far.located(core.far.sought(), found())
    assert core.far.take() == []
    core.release(a, handles[0])
    core.far.pulled(core.far.pull().replica)
    assert core.handle_for(waiter).replica is core.readable("k")


def test_what_can_never_fit_is_refused(core):
    a = core.open()
    waiter = core.get(a, "k")
    core.far.located(core.far.sought(), found(nbytes=5 * PAGE))
    refusal = core.refusal_for(waiter)
    assert (refusal.code, core.far.take(), core.stat("load.under_way")) == (Code.NO_SPACE, [], 0)


def test_who_waited_for_room_is_told_so_at_the_deadline_and_the_copy_is_given_up(core):
    a = core.open()
    handles = [core.get(a, replica.key) for replica in core.fill(a, 4)]
    waiter = core.get(a, "k", timeout=10)
    core.far.located(core.far.sought(), found())
    core.tick(later=10)
    refusal = core.refusal_for(waiter)
    assert (refusal.code, core.stat("load.under_way")) == (Code.NO_SPACE, 0)
    core.release(a, *handles)
    assert core.far.take() == []


# -- given up --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["deadline", "cancelled", "dead"])
def test_a_search_that_nobody_waits_for_is_given_up_and_its_late_outcome_changes_nothing(core, how):
    a, b = core.open("a"), core.open("b")
    waiter = core.get(b, "k", timeout=10)
    loading = core.far.sought()
    if how == "deadline":
        core.tick(later=10)
        assert core.refusal_for(waiter).message == "still on its way into memory after 1e-08 s"
    elif how == "cancelled":
        core.cancel(waiter)
    else:
        core.end_session(b)
    assert core.stat("load.under_way") == 0
    again = core.get(a, "k")
    second = core.far.sought()
    core.far.located(loading, found())
    assert core.far.take() == []
    core.far.located(second, None)
    core.far.located(second, found())
    assert core.answers() == [(again, NOT_THERE)]


def test_a_transfer_goes_on_when_nobody_waits_and_serves_the_next_asker(core):
    a = core.open()
    late, pull = core.far.begin(a, "k", found(), timeout=10)
    core.tick(later=10)
    assert core.refusal_for(late).code is Code.NOT_READY
    core.far.pulled(pull.replica)
    assert core.get(a, "k").replica is pull.replica


@pytest.mark.parametrize("again", [None, found(2 << 40)])
def test_a_transfer_that_failed_when_nobody_waits_is_not_tried_again(core, again):
    a = core.open()
    handles = [core.get(a, replica.key) for replica in core.fill(a, 3)]
    late, pull = core.far.begin(a, "k", found(), timeout=10)
    core.tick(later=10)
    assert core.refusal_for(late).code is Code.NOT_READY
    core.far.pulled(pull.replica, BROKEN, again=again)
    assert (core.far.take(), core.stat("load.under_way"), len(core.master.waiting)) == ([], 0, 0)
    core.release(a, *handles)


@pytest.mark.parametrize("outcome", ["well", "failed", "still written"])
@pytest.mark.parametrize("how", ["clear", "put", "drop"])
def test_a_transfer_that_was_given_up_keeps_its_room_until_it_has_ended(core, how, outcome):
    a = core.open()
    waiter, pull = core.far.begin(a, "k", found())
    if how == "clear":
        core.clear()
        assert core.refusal_for(waiter).code is Code.NOT_FOUND
    elif how == "drop":
        assert not core.far.drop("k", pull.found.generation)
        assert core.refusal_for(waiter).code is Code.NOT_FOUND
    else:
        core.store(a, "k")
        core.release(a, core.handle_for(waiter))
    used = core.used
    assert (pull.replica.state, core.stat("pool.doomed_bytes")) == (S.DOOMED, PAGE)
    if outcome == "well":
        core.far.pulled(pull.replica)
    elif outcome == "failed":
        core.far.pulled(pull.replica, BROKEN, again=found(2 << 40))
    else:
        core.far.pulled(pull.replica, BROKEN, quiesced=False)
        assert (core.used, pull.replica.state) == (used, S.DOOMED)
        core.far.quiesced(pull.replica)
    assert (core.used, pull.replica.state) == (used - PAGE, S.GONE)
    assert (core.far.take(), core.answers()) == ([], [])
    assert core.readable("k") is not pull.replica


def test_a_search_that_ends_after_a_put_of_the_same_key_began_leaves_the_put_alone(core):
    a, b = core.open("a"), core.open("b")
    reader = core.get(a, "k")
    loading = core.far.sought()
    put = core.put(b, "k")
    core.far.located(loading, None)
    assert reader.want is Want.READ, "what is not elsewhere is about to be here"
    late = core.get(a, "k")
    assert late.want is Want.READ
    core.end(b, put)
    assert [(waiter, handle.replica) for waiter, handle in core.answers()] == [(reader, put), (late, put)]


def test_only_a_clients_own_reservation_is_renumbered(core):
    a, b = core.open("a"), core.open("b")
    put = core.put(b, "k")
    assert core.master.reserved(b, put.replica_id) is put
    with core.refuses(Code.ILLEGAL_CLIENT):
        core.master.reserved(a, put.replica_id)


def test_a_put_of_a_key_that_is_copied_meanwhile_is_numbered_above_it(core):
    """Its generation may be lower than that of what came; the directory says so, and it is renumbered."""
    a, b = core.open("a"), core.open("b")
    reader = core.get(a, "k")
    put = core.put(b, "k", mode=PutMode.UPSERT)
    core.far.located(core.far.sought(), found(1 << 60))
    core.far.pulled(core.far.pull().replica)
    assert core.handle_for(reader).replica.generation == 1 << 60
    core.far.renumber(put, 1 << 60)
    assert put.generation > 1 << 60
    core.end(b, put)
    assert core.readable("k") is put
    assert core.put(b, "l").generation > put.generation


def test_generations_of_this_node_are_above_those_it_has_copied(core):
    a = core.open()
    core.far.cache(a, "k", found(1 << 60))
    assert core.put(a, "k", mode=PutMode.UPSERT).generation > 1 << 60


def test_a_search_goes_on_when_a_put_of_the_same_key_is_given_up(core):
    a, b = core.open("a"), core.open("b")
    reader, presence = core.get(a, "k"), core.wait(a, "k")
    core.revoke(b, core.put(b, "k"))
    assert (reader.open, core.answers()) == (True, [])
    core.far.located(core.far.sought(), None)
    assert core.answers() == [(reader, NOT_THERE)]
    assert presence.open


def test_when_the_writer_here_gives_up_its_readers_are_sought_for_elsewhere(core):
    a, b = core.open("a"), core.open("b")
    put = core.put(a, "k")
    readers = [core.get(b, "k"), core.get(b, "k")]
    core.revoke(a, put)
    assert {reader.want for reader in readers} == {Want.LOAD}
    core.far.located(core.far.sought(), found())
    core.far.pulled(core.far.pull().replica)
    assert [waiter for waiter, _ in core.answers()] == readers


# -- failures --------------------------------------------------------------------------------------------------------


def test_a_transfer_that_failed_is_tried_again_in_another_room(core):
    a = core.open()
    waiter, pull = core.far.begin(a, "k", found(1 << 40))
    core.far.pulled(pull.replica, BROKEN, again=found(2 << 40, 2 * PAGE))
    second = core.far.pull()
    assert (pull.replica.state, second.replica.generation, second.replica.nbytes) == (S.GONE, 2 << 40, 2 * PAGE)
    core.far.pulled(second.replica)
    assert core.handle_for(waiter).replica is second.replica
    assert core.used == 2 * PAGE


def test_a_transfer_that_failed_for_good_is_said_to_everyone(core):
    a, b = core.open("a"), core.open("b")
    first, pull = core.far.begin(a, "k", found())
    second = core.get(b, "k")
    core.far.pulled(pull.replica, BROKEN)
    assert core.answers() == [(first, BROKEN), (second, BROKEN)]
    assert (core.used, core.stat("load.under_way")) == (0, 0)


def test_what_is_larger_than_the_pool_when_it_is_tried_again_is_refused(core):
    a = core.open()
    waiter, pull = core.far.begin(a, "k", found())
    core.far.pulled(pull.replica, BROKEN, again=found(2 << 40, 5 * PAGE))
    assert core.refusal_for(waiter).code is Code.NO_SPACE


def test_the_room_of_a_transfer_that_may_still_write_is_kept_in_quarantine(core):
    a = core.open()
    waiter, pull = core.far.begin(a, "k", found())
    core.far.pulled(pull.replica, BROKEN, again=found(), quiesced=False)
    second = core.far.pull()
    assert (pull.replica.state, core.stat("pool.quarantined_bytes"), core.used) == (S.QUARANTINED, PAGE, 2 * PAGE)
    assert second.replica.offset != pull.replica.offset
    core.far.pulled(second.replica)
    assert core.handle_for(waiter).replica is second.replica
    core.clear()
    assert pull.replica.state is S.QUARANTINED
    core.far.quiesced(pull.replica)
    assert (pull.replica.state, core.stat("pool.quarantined_bytes")) == (S.GONE, 0)


def test_who_waits_for_room_gets_it_when_a_quarantine_ends(core):
    a = core.open()
    [core.get(a, replica.key) for replica in core.fill(a, 3)]
    waiter, pull = core.far.begin(a, "k", found())
    core.far.pulled(pull.replica, BROKEN, quiesced=False)
    assert core.refusal_for(waiter) is BROKEN
    put = core.put(a, "new")
    core.far.quiesced(pull.replica)
    assert core.replica_for(put).offset == pull.replica.offset


def test_nothing_is_tried_again_that_might_pass_the_limit_of_the_quarantine(make_core):
    core = make_core(has_peers=True, quarantine_nbytes_max=PAGE)
    a = core.open()
    waiter, pull = core.far.begin(a, "k", found())
    core.far.pulled(pull.replica, BROKEN, again=found(), quiesced=False)
    assert (core.refusal_for(waiter), core.far.take()) == (BROKEN, [])


def test_beyond_the_limit_of_the_quarantine_nothing_is_copied(make_core):
    core = make_core(has_peers=True, quarantine_nbytes_max=PAGE)
    a = core.open()
    _, first = core.far.begin(a, "k", found(nbytes=2 * PAGE))
    core.far.pulled(first.replica, BROKEN, quiesced=False)
    core.answers()
    waiter = core.get(a, "l")
    core.far.located(core.far.sought(), found())
    assert (core.refusal_for(waiter).code, core.far.take()) == (Code.NO_SPACE, [])
    core.far.quiesced(first.replica)
    core.far.copy(a, "l")


# -- what this node has on disk --------------------------------------------------------------------------------------


def offloaded(core, session):
    on_disk = core.offload(session, "k", softpin_ttl=50)
    waiter = core.get(session, "k")
    return on_disk, waiter, core.far.sought()


def test_what_is_on_disk_here_is_taken_from_anothers_memory_and_stays_this_nodes_own(core):
    a = core.open()
    on_disk, waiter, loading = offloaded(core, a)
    core.far.located(loading, found(on_disk.generation))
    into = core.far.pull().replica
    core.far.pulled(into)
    assert core.handle_for(waiter).replica is into is core.readable("k")
    assert (into.owner, into.contract, into.copy is None, on_disk.state) == (None, on_disk.contract, False, S.GONE)
    assert (core.stat("load.local_copies"), core.stat("pinned.soft_bytes"), core.take_jobs()) == (1, PAGE, [])


@pytest.mark.parametrize("elsewhere", [None, found(9 << 50)], ids=["nothing", "another generation"])
def test_what_is_on_disk_here_and_not_elsewhere_is_read_from_disk(core, elsewhere):
    a = core.open()
    _, waiter, loading = offloaded(core, a)
    core.far.located(loading, elsewhere)
    job = core.job()
    assert isinstance(job, Load)
    core.loaded(job.replica)
    assert core.handle_for(waiter).replica is job.replica
    assert (core.far.take(), core.stat("load.from_offload")) == ([], 1)


@pytest.mark.parametrize("quiesced", [True, False])
def test_a_transfer_that_failed_falls_back_to_the_copy_on_disk_here(core, quiesced):
    a = core.open()
    on_disk, waiter, loading = offloaded(core, a)
    core.far.located(loading, found(on_disk.generation))
    pull = core.far.pull()
    core.far.pulled(pull.replica, BROKEN, quiesced=quiesced)
    job = core.job()
    assert isinstance(job, Load)
    core.loaded(job.replica)
    assert core.handle_for(waiter).replica is job.replica


@pytest.mark.parametrize("step", ["sought", "pulled"])
def test_what_is_dropped_while_it_is_sought_or_copied_is_gone_for_those_who_wait(core, step):
    a = core.open()
    on_disk, waiter, loading = offloaded(core, a)
    into = None
    if step == "pulled":
        core.far.located(loading, found(on_disk.generation))
        into = core.far.pull().replica
    assert core.far.drop("k", on_disk.generation)
    assert core.refusal_for(waiter).code is Code.NOT_FOUND
    assert (core.readable("k"), core.stat("offload.objects")) == (None, 0)
    if into is None:
        core.far.located(loading, found(on_disk.generation))
        assert core.far.take() == []
    else:
        core.far.pulled(into)
    core.take_jobs()
    assert core.used == 0


# -- cut off ---------------------------------------------------------------------------------------------------------


def test_what_was_copied_by_a_node_that_is_cut_off_by_now_is_given_to_nobody(core):
    """The directory took it, then this node's life ended for others: they do not wait for it when they remove."""
    a = core.open()
    waiter, pull = core.far.begin(a, "k", found())
    core.far.cut_off()
    late = core.get(a, "k")
    core.far.pulled(pull.replica)
    answers = dict(core.answers())
    assert {answers[waiter].code, answers[late].code} == {Code.NOT_FOUND}
    assert (core.used, core.readable("k"), core.stat("load.local_copies")) == (0, None, 0)


def test_who_waits_for_presence_is_told_when_it_is_readable_on_another_node(core):
    a = core.open()
    presence, reader = core.wait(a, "k"), core.get(a, "k")
    core.far.take()
    core.far.appeared("k")
    assert core.answers() == [(presence, None)]
    core.far.appeared("k")
    assert reader.open
