"""What was removed or replaced elsewhere goes from this node too, and nothing newer does."""

import pytest

from mooncake_client.codes import Code
from mooncake_node.core.replica import ReplicaState
from mooncake_node.core.sessions import Handle
from mooncake_node.core.waiting import PutMode, Want
from tests.core.far import AFTER, found

PAGE = 4096
S = ReplicaState
G = 1 << 40


@pytest.fixture
def core(make_core):
    return make_core(has_peers=True)


@pytest.mark.parametrize("above", [0, 5])
def test_the_generation_and_all_before_it_are_gone(core, above):
    a = core.open()
    core.far.cache(a, "k", found(G))
    assert core.far.drop("k", G + above)
    assert (core.readable("k"), core.used) == (None, 0)
    assert core.far.take() == [], "the directory has it no more: there is nothing to withdraw"


def test_a_newer_one_survives(core):
    a = core.open()
    replica = core.far.cache(a, "k", found(G))
    assert not core.far.drop("k", G - 1)
    assert core.readable("k") is replica
    assert replica.told


def test_what_is_not_there_is_not_dropped(core):
    assert not core.far.drop("k", G)


def test_a_second_drop_finds_nothing(core):
    a = core.open()
    core.far.cache(a, "k", found(G))
    assert [core.far.drop("k", G), core.far.drop("k", G)] == [True, False]


def test_what_this_node_owns_is_dropped_like_a_copy(core):
    a = core.open()
    replica = core.far.store(a, "k")
    assert core.far.drop("k", replica.generation)
    assert (core.used, core.far.take(), core.stat("pool.leaving_bytes")) == (0, [], 0)


def test_what_is_read_is_stashed_and_the_next_get_looks_elsewhere(core):
    a = core.open()
    handle = core.far.copy(a, "k", found(G))
    assert core.far.drop("k", G)
    assert (handle.replica.state, core.used) == (S.STASHED, PAGE)
    waiter = core.get(a, "k")
    assert waiter.want is Want.LOAD
    core.far.located(core.far.sought(), found(G + 1))
    core.far.pulled(core.far.pull().replica)
    assert core.handle_for(waiter).replica.generation == G + 1
    core.release(a, handle)
    assert core.used == PAGE


def test_a_copy_under_way_is_given_up_and_its_askers_are_told(core):
    a = core.open()
    waiter, pull = core.far.begin(a, "k", found(G))
    assert not core.far.drop("k", G)
    assert core.refusal_for(waiter).code is Code.NOT_FOUND
    assert pull.replica.state is S.DOOMED
    core.far.pulled(pull.replica)
    assert (core.readable("k"), core.used) == (None, 0)


def test_a_copy_that_waits_for_room_is_given_up_too(core):
    a = core.open()
    handles = [core.get(a, replica.key) for replica in core.fill(a, 4)]
    waiter = core.get(a, "k")
    core.far.located(core.far.sought(), found(G))
    core.far.drop("k", G)
    assert core.refusal_for(waiter).code is Code.NOT_FOUND
    core.release(a, *handles)
    assert core.far.take() == []


def test_a_copy_of_a_newer_generation_goes_on(core):
    a = core.open()
    waiter, pull = core.far.begin(a, "k", found(G))
    assert not core.far.drop("k", G - 1)
    core.far.pulled(pull.replica)
    assert isinstance(core.handle_for(waiter), Handle)


def test_a_search_goes_on_and_may_find_something_newer(core):
    a = core.open()
    waiter = core.get(a, "k")
    assert not core.far.drop("k", G)
    core.far.located(core.far.sought(), found(G + 1))
    core.far.pulled(core.far.pull().replica)
    assert core.handle_for(waiter).replica.generation == G + 1


def test_a_put_under_way_is_not_touched(core):
    a, b = core.open("a"), core.open("b")
    core.far.store(a, "k")
    put = core.put(b, "k", mode=PutMode.UPSERT)
    assert core.far.drop("k", put.generation - 1)
    assert put.state is S.WRITING
    reader = core.get(a, "k")
    core.end(b, put)
    assert core.handle_for(reader).replica is put


@pytest.mark.parametrize("mode", PutMode)
def test_a_put_that_only_the_directory_knew_of_is_removed_before_its_end(core, mode):
    """Else it would become readable here after its removal was answered, and be in no directory."""
    a, b = core.open("a"), core.open("b")
    if mode is PutMode.UPSERT:
        core.far.store(a, "k")
    put = core.put(b, "k", mode=mode)
    put.told = True
    reader, turn = core.get(a, "new") if mode is PutMode.UPSERT else core.get(a, "k"), core.put(a, "k", mode=mode)
    core.far.take()
    assert core.far.drop("k", put.generation) is (mode is PutMode.UPSERT)
    assert (core.readable("k"), put.state) == (None, S.DOOMED)
    assert core.replica_for(turn).generation > put.generation
    assert reader.open
    with core.refuses(Code.NOT_FOUND, "removed, or cleared by remove_all, while it was being written"):
        core.end(b, put)
    assert core.far.taken == []


def test_whoever_waits_to_put_the_key_begins(core):
    """An upsert whose turn it is not; the drop is of what stands there meanwhile."""
    a, b = core.open("a"), core.open("b")
    core.far.store(a, "k")
    first = core.put(a, "k", mode=PutMode.UPSERT)
    second = core.put(b, "k", mode=PutMode.UPSERT)
    core.far.drop("k", first.generation - 1)
    assert second.want is Want.TURN
    core.revoke(a, first)
    assert core.replica_for(second).generation > first.generation


def test_generations_given_after_a_drop_are_above_it(core):
    a = core.open()
    core.far.drop("other", AFTER)
    assert core.put(a, "k").generation > AFTER


def test_a_drop_frees_room_for_who_waits(core):
    a = core.open()
    core.far.cache(a, "k", found(G, 4 * PAGE))
    handle = core.get(a, "k")
    put = core.put(a, "new")
    core.far.drop("k", G)
    core.release(a, handle)
    assert core.replica_for(put).key == "new"


# -- clear epochs ----------------------------------------------------------------------------------------------------


def test_a_clear_of_this_node_alone_raises_the_epoch_by_one_and_one_of_all_sets_it(core):
    core.clear()
    assert core.stat("clear_epoch") == 1
    core.clear(7)
    assert core.stat("clear_epoch") == 7


def test_a_clear_ends_searches_copies_and_copies_that_wait_for_room(core):
    a = core.open()
    sought = core.get(a, "sought")
    loading = core.far.sought()
    copied, pull = core.far.begin(a, "copied", found())
    large = core.get(a, "large")
    core.far.located(core.far.sought(), found(nbytes=4 * PAGE))
    presence = core.wait(a, "k")
    core.clear(3)
    answers = dict(core.answers())
    assert {answers[waiter].code for waiter in (sought, copied, large)} == {Code.NOT_FOUND}
    assert presence.open
    core.far.located(loading, found())
    core.far.pulled(pull.replica)
    assert (core.far.take(), core.used, core.stat("load.under_way")) == ([], 0, 0)


def test_copies_go_with_a_clear_and_their_entries_hold_no_memory(core):
    a = core.open()
    core.far.cache(a, "k")
    assert core.clear(2) == 1
    assert core.readable("k") is None
    core.reap()
    [errand] = core.far.take()
    assert (errand.is_held, core.used) == (False, 0)


def test_who_waits_for_a_copy_of_what_was_replaced_gets_what_replaced_it(core):
    a = core.open()
    waiter, pull = core.far.begin(a, "k", found(G))
    assert not core.far.drop("k", G, is_replaced=True)
    assert pull.replica.state is S.DOOMED
    loading = core.far.sought()
    core.far.pulled(pull.replica)
    core.far.located(loading, found(G + AFTER))
    new = core.far.pull().replica
    core.far.pulled(new)
    handle = core.handle_for(waiter)
    assert isinstance(handle, Handle)
    assert handle.replica is new


def test_a_copy_that_nobody_waits_for_is_not_sought_anew(core):
    a = core.open()
    waiter, pull = core.far.begin(a, "k", found(G))
    core.cancel(waiter)
    assert not core.far.drop("k", G, is_replaced=True)
    assert core.far.take() == []
    core.far.pulled(pull.replica)
    assert core.used == 0


def test_who_waits_for_a_copy_of_what_was_replaced_waits_for_a_writer_here(core):
    a, b = core.open("a"), core.open("b")
    waiter, pull = core.far.begin(a, "k", found(G))
    replica = core.put(b, "k")
    assert not core.far.drop("k", G, is_replaced=True)
    assert (waiter.want, core.far.take()) == (Want.READ, [])
    core.far.pulled(pull.replica)
    core.end(b, replica)
    assert core.handle_for(waiter).replica is replica


def test_who_looks_for_a_key_while_a_put_here_is_replaced_gets_what_replaced_it(core):
    """The put that only the directory knew of has lost to another node's; whoever waits is to get that one."""
    a, b = core.open("a"), core.open("b")
    waiter = core.get(a, "k")
    searching = core.far.sought()
    put = core.put(b, "k", mode=PutMode.UPSERT)
    put.told = True
    assert not core.far.drop("k", put.generation, is_replaced=True)
    assert (put.state, waiter.open) == (S.DOOMED, True)
    loading = core.far.sought()
    assert loading is not searching
    core.far.located(loading, found(put.generation + AFTER))
    new = core.far.pull().replica
    core.far.pulled(new)
    assert core.handle_for(waiter).replica is new
