"""Many puts in one step: as if they had come one after the other, or not at all."""

import pytest

from mooncake_client.codes import Code
from mooncake_node.core.pins import contract_for
from mooncake_node.core.replica import PLAIN, Rank, ReplicaState, Shelf
from mooncake_node.core.waiting import Put, PutMode
from tests.core.fake_readers import FakeReaders

PAGE = 4096
KEYS = [f"k{number}" for number in range(8)]
SOFT = contract_for(softpin=True, softpin_ttl_ns=None, hardpin=False, scope="cluster")


@pytest.mark.parametrize("nbytes", [1, 200, 4032, 4033, PAGE, PAGE + 1, 3 * PAGE])
def test_all_are_readable_at_once_and_lie_where_nobody_else_does(make_core, nbytes):
    core = make_core(pages=64)
    a = core.open()
    other = core.store(a, "other", nbytes)
    replicas = core.place_all(a, KEYS, nbytes)
    assert [replica.key for replica in replicas] == KEYS
    facts = [(replica.replica_id, replica.generation) for replica in [other, *replicas]]
    assert facts == sorted({*facts})
    for replica in replicas:
        assert core.readable(replica.key) is replica
        assert (replica.state, replica.shelf, replica.rank) == (ReplicaState.COMPLETE, Shelf.INACTIVE, Rank.PLAIN)
    for key in [*KEYS, "other"]:
        assert core.remove(key)
    assert core.used == 0


def test_objects_without_bytes_are_objects(core):
    a = core.open()
    replicas = core.place_all(a, KEYS, 0)
    assert [replica.shelf for replica in replicas] == [Shelf.NONE] * len(KEYS)
    assert (core.stat("objects"), core.used) == (len(KEYS), 0)


def test_those_without_a_place_in_the_index_are_counted(make_core):
    core = make_core(pages=64, readers=FakeReaders(records=5))
    core.place_all(core.open(), KEYS)
    assert core.master.objects.index.unlisted == 3


@pytest.mark.parametrize(
    "odd",
    [
        Put(key="other", nbytes=2 * PAGE, contract=PLAIN),
        Put(key="other", nbytes=PAGE, contract=SOFT),
        Put(key="other", nbytes=PAGE, contract=PLAIN, mode=PutMode.UPSERT),
        Put(key=KEYS[0], nbytes=PAGE, contract=PLAIN),
        Put(key="there", nbytes=PAGE, contract=PLAIN),
        Put(key="written", nbytes=PAGE, contract=PLAIN),
        Put(key="awaited", nbytes=PAGE, contract=PLAIN),
    ],
    ids=["another size", "pinned", "upsert", "twice", "there", "being written", "waited for"],
)
def test_with_one_that_is_not_like_the_others_nothing_is_done(make_core, odd):
    core = make_core(pages=64)
    a = core.open()
    core.store(a, "there")
    core.put(a, "written")
    core.wait(a, "awaited")
    used = core.used
    assert core.place_all(a, KEYS, odd=odd) is None
    assert (core.stat("objects"), core.used) == (1, used)


def test_what_was_lost_goes_by_itself(make_core):
    core = make_core(pages=64)
    core.master.admission.lost[KEYS[0]] = "torn"
    assert core.place_all(core.open(), KEYS) is None


def test_a_put_that_is_not_allowed_is_refused(make_core):
    core = make_core(pages=64)
    with core.refuses(Code.INVALID_ARGUMENT):
        core.place_all(core.open(), [*KEYS, ""])


def test_where_room_is_short_nothing_is_done(make_core):
    core = make_core(pages=9, free_low_nbytes=PAGE)
    a = core.open()
    assert core.place_all(a, KEYS) is None
    assert core.place_all(a, KEYS[:7]) is not None


def test_where_others_wait_for_room_nothing_is_done(make_core):
    core = make_core(pages=10)
    a = core.open()
    view = core.get(a, core.store(a, "held", 5 * PAGE).key)
    core.put(a, "large", 6 * PAGE)
    assert core.place_all(a, KEYS[:2]) is None
    core.release(a, view)


@pytest.mark.parametrize("nbytes", [2 * PAGE, 1400])
def test_room_in_pieces_is_not_enough_and_all_of_it_is_given_back(make_core, nbytes):
    core = make_core(pages=16)
    a = core.open()
    for number in range(16):
        core.store(a, f"f{number}")
    for number in range(0, 16, 2):
        core.remove(f"f{number}")
    views = [core.get(a, f"f{number}") for number in range(1, 16, 2)]
    used = core.used
    count = 3 if nbytes > PAGE else 17
    assert core.place_all(a, [f"k{number}" for number in range(count)], nbytes) is None
    assert core.used == used
    core.release(a, *views)


# -- for a client to fill ----------------------------------------------------------------------------------------------


def test_room_for_many_is_reserved_and_published_at_once(make_core):
    core = make_core(pages=64)
    a = core.open()
    replicas = core.begin_all(a, KEYS)
    assert {replica.state for replica in replicas} == {ReplicaState.WRITING}
    assert (core.stat("unpublished"), core.stat("objects")) == (len(KEYS), 0)
    core.tick(later=5)
    assert core.end_all(a, replicas) == replicas
    assert (core.stat("unpublished"), core.stat("objects")) == (0, len(KEYS))
    for replica in replicas:
        assert core.readable(replica.key) is replica
        assert (replica.writer, replica.since_ns, replica.shelf) == (0, core.now, Shelf.INACTIVE)


def test_of_many_begun_each_may_go_its_own_way(make_core):
    core = make_core(pages=64)
    a = core.open()
    first, second, *rest = core.begin_all(a, KEYS)
    core.revoke(a, first)
    core.end(a, second)
    core.end_session(a)
    assert (core.readable(second.key), core.stat("objects"), core.stat("unpublished")) == (second, 1, 0)
    assert {replica.state for replica in [first, *rest]} == {ReplicaState.GONE}


def test_no_more_is_begun_at_once_than_one_client_may_have(make_core):
    core = make_core(pages=64, reservations_max=9)
    a = core.open()
    core.put(a, "x")
    core.put(a, "y")
    assert core.begin_all(a, KEYS) is None
    assert core.begin_all(a, KEYS[:7]) is not None


@pytest.mark.parametrize("odd", [Put(key="there", nbytes=PAGE, contract=PLAIN), Put(key="o", nbytes=1, contract=PLAIN)])
def test_with_one_that_cannot_be_begun_like_the_others_nothing_is_reserved(make_core, odd):
    core = make_core(pages=64)
    a = core.open()
    core.store(a, "there")
    assert core.begin_all(a, KEYS, odd=odd) is None
    assert core.stat("unpublished") == 0


def test_where_room_is_short_nothing_is_begun_at_once(make_core):
    core = make_core(pages=9, free_low_nbytes=PAGE)
    assert core.begin_all(core.open(), KEYS) is None


def end_by_themselves(core, session, replicas):
    """Nothing has been done for all at once; each ends as it would."""
    assert core.end_all(session, replicas) is None
    for replica in replicas:
        assert core.end(session, replica) is replica
        assert core.readable(replica.key) is replica


def test_an_end_that_somebody_waits_for_goes_by_itself(make_core):
    core = make_core(pages=64)
    a, b = core.open("a"), core.open("b")
    replicas = core.begin_all(a, KEYS)
    waiter = core.get(b, KEYS[3])
    end_by_themselves(core, a, replicas)
    assert core.handle_for(waiter).replica is replicas[3]


def test_what_is_pinned_or_of_another_size_is_ended_by_itself(make_core):
    core = make_core(pages=64)
    a = core.open()
    for other in (core.put(a, "pinned", softpin=True), core.put(a, "longer", 2 * PAGE)):
        replicas = core.begin_all(a, KEYS)
        end_by_themselves(core, a, [*replicas, other])
        for key in KEYS:
            core.remove(key)


def test_what_replaces_is_ended_by_itself(make_core):
    core = make_core(pages=64)
    a = core.open()
    core.store(a, "k")
    end_by_themselves(core, a, [core.put(a, "k", mode=PutMode.UPSERT), *core.begin_all(a, KEYS)])


def test_what_was_lost_before_is_ended_by_itself(make_core):
    core = make_core(pages=64)
    a = core.open()
    replicas = core.begin_all(a, KEYS)
    core.master.admission.lost[KEYS[2]] = "torn"
    end_by_themselves(core, a, replicas)
    assert core.master.admission.lost == {}


def test_what_was_cleared_or_is_not_there_is_ended_by_itself(make_core):
    core = make_core(pages=64)
    a = core.open()
    replicas = core.begin_all(a, KEYS)
    core.clear()
    assert core.end_all(a, replicas) is None
    for replica in replicas:
        with core.refuses(Code.NOT_FOUND):
            core.end(a, replica)
    again = core.begin_all(a, KEYS)
    assert core.end_all(a, [*again, replicas[0]]) is None
    assert core.end_all(a, [*again, again[0]]) is None
    assert core.end_all(a, again) == again
