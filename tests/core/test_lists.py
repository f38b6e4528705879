"""Lists alone: who goes first, who gets a second chance, and what a pass costs."""

import random

import pytest

from mooncake_node.core.lists import EXAMINED_MAX, Lists
from mooncake_node.core.replica import Rank, Replica, ReplicaState, Shelf

ALL = (Rank.CLEAN, Rank.PLAIN, Rank.PINNED)


@pytest.fixture
def lists():
    return Lists()


def listed(lists, count, *, rank=Rank.PLAIN, first=0, nbytes=10):
    """Replicas entered in the order of their numbers."""
    replicas = [
        Replica(n, f"k{n}", n, 0, nbytes, 0, 0, state=ReplicaState.COMPLETE) for n in range(first, first + count)
    ]
    for replica in replicas:
        lists.enter(replica, rank)
    lists.check(replicas)
    return replicas


def names(replicas):
    return [replica.replica_id for replica in replicas]


def test_the_one_entered_first_goes_first(lists):
    replicas = listed(lists, 3)
    assert lists.isolate(1, ALL) == replicas[:1]
    assert replicas[0].shelf is Shelf.NONE
    lists.check(replicas[1:])


def test_as_many_go_as_cover_what_is_wanted_and_no_more(lists):
    replicas = listed(lists, 5)
    assert lists.isolate(21, ALL) == replicas[:3]
    assert lists.isolate(20, ALL) == replicas[3:]
    assert lists.isolate(1, ALL) == []


def test_nothing_wanted_is_no_pass(lists):
    listed(lists, 1)
    assert lists.isolate(0, ALL) == []
    assert (lists.passes, lists.examined) == (0, 0)


def test_a_pass_over_empty_lists_is_none(lists):
    assert lists.isolate(1, ALL) == []
    assert (lists.passes, lists.productive_passes, lists.examined, lists.isolated) == (0, 0, 0, 0)


def test_what_was_accessed_gets_a_second_chance_and_only_one(lists):
    replicas = listed(lists, 3)
    replicas[0].accessed = True
    assert lists.isolate(10, ALL) == [replicas[1]]
    # One went, so one that was used is inactive again.
    assert (replicas[0].shelf, replicas[0].accessed) == (Shelf.INACTIVE, False)
    lists.check([replicas[0], replicas[2]])
    assert lists.isolate(20, ALL) == [replicas[2], replicas[0]]
    assert lists.examined == 4


def test_when_all_were_accessed_the_coldest_goes_all_the_same(lists):
    replicas = listed(lists, 3)
    for replica in replicas:
        replica.accessed = True
    assert lists.isolate(10, ALL) == [replicas[0]]
    assert [replica.shelf for replica in replicas[1:]] == [Shelf.INACTIVE, Shelf.ACTIVE]
    assert (lists.examined, lists.productive_passes) == (4, 1)


def test_the_inactive_list_is_refilled_from_the_active_one_when_that_is_twice_as_long(lists):
    replicas = listed(lists, 8)
    for replica in replicas[:5]:
        replica.accessed = True
    assert lists.isolate(10, ALL) == [replicas[5]]
    # Five are active and two inactive: the coldest of the active ones comes behind those.
    assert lists.isolate(10, ALL) == [replicas[6]]
    assert replicas[0].shelf is Shelf.INACTIVE
    assert lists.isolate(10, ALL) == [replicas[7]]
    assert lists.isolate(10, ALL) == [replicas[0]]
    lists.check(replicas[1:5])


def test_one_active_replica_becomes_inactive_for_each_that_goes(lists):
    """What was used once and never again does not stay for ever beside a stream of others."""
    replicas = listed(lists, 20)
    replicas[0].accessed = replicas[1].accessed = True
    assert lists.isolate(10, ALL) == [replicas[2]]
    assert [replica.shelf for replica in replicas[:2]] == [Shelf.INACTIVE, Shelf.ACTIVE]
    assert lists.isolate(10, ALL) == [replicas[3]]
    assert [replica.shelf for replica in replicas[:2]] == [Shelf.INACTIVE, Shelf.INACTIVE]
    assert lists.isolate(1 << 40, ALL) == [*replicas[4:], replicas[0], replicas[1]]


# -- for a stock that nobody has asked for --------------------------------------------------------------------------


def test_for_a_stock_the_last_that_could_go_stay(lists):
    replicas = listed(lists, 5)
    assert lists.has_spare(ALL, 30)
    assert lists.isolate(100, ALL, spare_of_nbytes=30) == replicas[:2]
    assert not lists.has_spare(ALL, 30)
    assert lists.isolate(100, ALL, spare_of_nbytes=30) == []
    assert (lists.passes, lists.examined) == (1, 2)
    lists.check(replicas[2:])


def test_for_a_stock_no_ordinary_object_goes_that_is_larger_than_it(lists):
    listed(lists, 2, nbytes=40)
    assert not lists.has_spare(ALL, 39)
    assert lists.isolate(10, ALL, spare_of_nbytes=39) == []
    assert lists.has_spare(ALL, 40)


@pytest.mark.parametrize("rank", [Rank.CLEAN, Rank.PINNED])
def test_for_a_stock_what_is_or_will_be_on_disk_goes_however_large_it_is(lists, rank):
    replicas = listed(lists, 2, rank=rank, nbytes=40)
    assert lists.has_spare(ALL, 10)
    assert lists.isolate(10, ALL, spare_of_nbytes=10) == replicas[:1]


def test_for_a_stock_only_the_ranks_that_can_go_are_counted(lists):
    plain = listed(lists, 2)
    lists.enter(Replica(50, "p", 50, 0, 100, 0, 0), Rank.PINNED)
    assert not lists.has_spare((Rank.CLEAN, Rank.PLAIN), 15)
    assert lists.isolate(10, (Rank.CLEAN, Rank.PLAIN), spare_of_nbytes=15) == []
    assert lists.has_spare(ALL, 15)
    assert lists.isolate(10, ALL, spare_of_nbytes=15) == plain[:1]


def test_there_is_nothing_to_spare_of_nothing(lists):
    assert not lists.has_spare(ALL, 1)


def test_one_pass_looks_at_a_bounded_number(lists):
    replicas = listed(lists, EXAMINED_MAX + 10)
    assert lists.isolate(1 << 40, ALL) == replicas[:EXAMINED_MAX]
    assert (lists.passes, lists.examined, lists.isolated) == (1, EXAMINED_MAX, EXAMINED_MAX)


def test_a_bounded_pass_over_accessed_ones_takes_the_last_it_sees(lists):
    replicas = listed(lists, EXAMINED_MAX + 10)
    for replica in replicas:
        replica.accessed = True
    [victim] = lists.isolate(1 << 40, ALL)
    assert victim is replicas[EXAMINED_MAX - 1]
    assert (lists.examined, lists.productive_passes) == (EXAMINED_MAX, 1)
    assert len(lists) == EXAMINED_MAX + 9


def test_a_bounded_pass_that_has_found_something_spares_the_accessed_one_it_sees_last(lists):
    replicas = listed(lists, EXAMINED_MAX)
    replicas[-1].accessed = True
    assert lists.isolate(1 << 40, ALL) == replicas[:-1]
    assert replicas[-1].shelf is Shelf.ACTIVE


def test_ranks_go_in_the_order_asked_for_and_others_stay(lists):
    pinned = listed(lists, 2, rank=Rank.PINNED)
    plain = listed_beside(lists, Rank.PLAIN, pinned)
    clean = listed_beside(lists, Rank.CLEAN, pinned + plain)
    assert lists.any_of((Rank.CLEAN,))
    assert lists.isolate(25, (Rank.CLEAN, Rank.PLAIN)) == [*clean, plain[0]]
    assert not lists.any_of((Rank.CLEAN,))
    assert lists.isolate(1 << 40, (Rank.CLEAN, Rank.PLAIN)) == plain[1:]
    assert not lists.any_of((Rank.CLEAN, Rank.PLAIN))
    assert lists.any_of(ALL)
    assert lists.isolate(1 << 40, ALL) == pinned


def listed_beside(lists, rank, others):
    replicas = [Replica(n, f"k{n}", n, 0, 10, 0, 0) for n in range(len(others), len(others) + 2)]
    for replica in replicas:
        lists.enter(replica, rank)
    lists.check(others + replicas)
    return replicas


def test_a_lower_rank_does_not_go_while_a_higher_one_was_only_accessed(lists):
    clean = listed(lists, 1, rank=Rank.CLEAN)
    clean[0].accessed = True
    plain = listed_beside(lists, Rank.PLAIN, clean)
    assert lists.isolate(10, ALL) == clean
    lists.check(plain)


def test_leaving_takes_it_off_whichever_list_it_is_in(lists):
    replicas = listed(lists, 3)
    replicas[0].accessed = True
    lists.isolate(10, ALL)
    assert [replica in lists for replica in replicas] == [True, False, True]
    lists.leave(replicas[0], Shelf.PARKED)
    lists.leave(replicas[2])
    assert [replica.shelf for replica in replicas] == [Shelf.PARKED, Shelf.NONE, Shelf.NONE]
    assert [replica in lists for replica in replicas] == [False] * 3
    lists.leave(replicas[2])
    lists.check([])
    assert lists.nbytes(ALL) == 0


def test_one_that_enters_again_is_the_one_used_most_recently(lists):
    replicas = listed(lists, 3)
    lists.leave(replicas[0], Shelf.PARKED)
    lists.enter(replicas[0], Rank.PLAIN)
    assert lists.isolate(1 << 40, ALL) == [replicas[1], replicas[2], replicas[0]]


def test_a_clear_empties_the_lists_and_those_that_were_in_them_leave_later(lists):
    replicas = listed(lists, 4)
    replicas[0].accessed = True
    lists.isolate(10, ALL)
    lists.clear()
    assert (len(lists), lists.nbytes(ALL), lists.any_of(ALL)) == (0, 0, False)
    assert [replica in lists for replica in replicas] == [False] * 4
    fresh = listed(lists, 1, first=100)
    for replica in replicas:
        lists.leave(replica)
        assert replica.shelf is Shelf.NONE
    lists.check(fresh)
    assert lists.nbytes(ALL) == 10


def test_the_coldest_are_shown_without_being_touched(lists):
    replicas = listed(lists, 4)
    replicas[0].accessed = True
    lists.isolate(10, ALL)
    pinned = Replica(50, "p", 50, 0, 10, 0, 0)
    lists.enter(pinned, Rank.PINNED)
    examined = lists.examined
    assert names(lists.coldest(ALL, 10)) == [2, 3, 0, 50]
    assert names(lists.coldest(ALL, 2)) == [2, 3]
    assert names(lists.coldest((Rank.PINNED,), 10)) == [50]
    assert (lists.examined, replicas[0].shelf) == (examined, Shelf.INACTIVE)


def test_a_bad_listing_is_found(lists):
    replicas = listed(lists, 2)
    for wrong in ([], replicas[:1], [*replicas, Replica(9, "k", 9, 0, 1, 0, 0)]):
        with pytest.raises(AssertionError):
            lists.check(wrong)
    replicas[0].shelf = Shelf.ACTIVE
    with pytest.raises(AssertionError):
        lists.check(replicas)


def test_every_pass_is_productive_and_bounded_whatever_was_accessed(lists):
    rng = random.Random(3)
    there: dict[int, Replica] = {}
    for number in range(2_000):
        for replica in listed_more(lists, rng, number):
            there[replica.replica_id] = replica
        for replica in rng.sample(list(there.values()), min(len(there), 3)):
            if rng.random() < 0.3:
                lists.leave(replica)
                del there[replica.replica_id]
            else:
                replica.accessed = True
        if rng.random() < 0.4:
            some, passes, examined = bool(there), lists.passes, lists.examined
            victims = lists.isolate(rng.randrange(1, 200), ALL)
            assert bool(victims) is some
            assert lists.examined - examined <= EXAMINED_MAX
            assert lists.passes - passes == some
            for victim in victims:
                del there[victim.replica_id]
        lists.check(list(there.values()))
    assert lists.productive_passes == lists.passes > 0


def listed_more(lists, rng, number):
    replicas = [Replica(number * 10 + n, "k", 1, 0, rng.randrange(1, 50), 0, 0) for n in range(rng.randrange(4))]
    for replica in replicas:
        lists.enter(replica, rng.choice(ALL))
    return replicas
