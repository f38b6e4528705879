"""Secondary replicas: what another node owns is served, dropped first, and promoted if its owner dies."""

import pytest

from mooncake_client.codes import Code
from mooncake_node.core.replica import PLAIN, Contract, Rank, Shelf
from mooncake_node.core.waiting import PutMode, Want
from tests.core.far import found

PAGE = 4096
PINNED = Contract(softpin=True)


@pytest.fixture
def core(make_core):
    return make_core(has_peers=True)


def test_a_secondary_replica_is_clean_and_remembers_the_contract_without_being_bound_by_it(core):
    a = core.open()
    replica = core.far.cache(a, "k", found(contract=PINNED, until=5_000))
    assert (replica.owner, replica.remembered, replica.contract, replica.told) == ("n2", PINNED, PLAIN, True)
    assert (replica.shelf, replica.rank, core.stat("pinned.soft_bytes")) == (Shelf.INACTIVE, Rank.CLEAN, 0)
    core.tick(later=5_000)
    assert core.readable("k") is replica


def test_a_secondary_replica_is_dropped_before_anything_of_this_nodes_own(core):
    a = core.open()
    core.fill(a, 2)
    core.far.cache(a, "s")
    core.get(a, core.store(a, "k2").key)
    core.put(a, "new")
    assert (core.readable("s"), core.gone(3)) == (None, [])
    [withdraw] = core.far.take()
    assert (withdraw.replica.key, withdraw.is_held) == ("s", True)


@pytest.mark.parametrize("contract", [PLAIN, PINNED])
def test_a_secondary_replica_is_never_written_to_disk(make_core, contract):
    core = make_core(has_peers=True, tier_nbytes_max=100 * PAGE, offload_unpinned=True)
    a = core.open()
    for number in range(4):
        core.far.cache(a, f"s{number}", found(contract=contract))
    core.put(a, "new")
    core.tick()
    assert (core.take_jobs(), core.master.unsaved()) == ([], [])


def test_a_secondary_replica_is_not_in_the_shared_index(make):
    core = make(has_peers=True)
    a = core.open()
    replica = core.far.cache(a, "k")
    assert (core.readers.find("k"), replica.record) == (None, -1)
    assert core.readers.unlisted == 2, "one more for what is elsewhere"
    core.far.promote(replica)
    assert core.readers.find("k") is replica
    assert core.readers.unlisted == 1
    core.clear()
    assert core.readers.unlisted == 1


def test_one_that_finds_no_place_in_the_index_when_it_is_promoted_is_still_counted(make):
    core = make(records=0, has_peers=True)
    a = core.open()
    core.far.promote(core.far.cache(a, "k"))
    assert core.readers.unlisted == 2


# -- promotion -------------------------------------------------------------------------------------------------------


def test_a_promoted_replica_is_bound_by_the_contract_until_its_deadline(make_core):
    core = make_core(2, has_peers=True)
    a = core.open()
    replica = core.far.cache(a, "k", found(contract=PINNED, until=core.now + 50))
    core.far.promote(replica)
    assert (replica.owner, replica.contract, replica.remembered) == (None, PINNED, None)
    assert (replica.rank, core.stat("pinned.soft_bytes")) == (Rank.PINNED, PAGE)
    assert core.put(a, "large", 2 * PAGE).want is Want.ROOM
    core.tick(later=50)
    assert (replica.contract.softpin, core.stat("pinned.soft_bytes")) == (False, 0)
    assert core.far.told == []
    core.far.take()
    assert core.far.told == [replica]


@pytest.mark.parametrize("contract", [PLAIN, PINNED])
def test_a_promoted_replica_without_a_deadline_stays_as_it_was_promised(core, contract):
    a = core.open()
    replica = core.far.cache(a, "k", found(contract=contract))
    core.far.promote(replica)
    core.tick(later=1 << 50)
    assert (core.readable("k"), replica.contract) == (replica, contract)
    core.pin("k")
    core.unpin("k")
    assert replica.rank is Rank.PLAIN


def test_one_that_is_read_while_it_is_promoted_is_listed_as_pinned_afterwards(core):
    a = core.open()
    handle = core.far.copy(a, "k", found(contract=PINNED))
    core.far.promote(handle.replica)
    assert handle.replica.shelf is Shelf.PARKED
    core.release(a, handle)
    assert (handle.replica.shelf, handle.replica.rank) == (Shelf.INACTIVE, Rank.PINNED)


def test_one_that_was_copied_under_a_deadline_that_has_passed_is_ordinary_when_it_is_promoted(core):
    a = core.open()
    replica = core.far.cache(a, "k", found(contract=PINNED, until=core.now + 5))
    core.tick(later=5)
    core.far.promote(replica)
    core.tick()
    assert (replica.contract.softpin, core.readable("k")) == (False, replica)


# -- fencing ---------------------------------------------------------------------------------------------------------


def test_a_node_that_is_cut_off_serves_no_secondary_replica_until_it_is_back(core):
    a = core.open()
    replica = core.far.cache(a, "k")
    core.far.serve_until(core.now + 10)
    assert core.master.is_readable("k", core.now)
    core.tick(later=10)
    for call in (
        lambda: core.get(a, "k"),
        lambda: core.lease("k"),
        lambda: core.pin("k"),
        lambda: core.put(a, "k", mode=PutMode.PUT_OR_ACQUIRE),
    ):
        with core.refuses(Code.NOT_FOUND):
            call()
    with core.refuses(Code.EXISTS):
        core.put(a, "k")
    assert (core.readable("k"), core.master.is_readable("k", core.now), core.stat("leases")) == (None, False, 0)
    waiter = core.wait(a, "k")
    assert waiter.want is Want.PRESENCE
    core.far.appeared("k")
    assert core.answers() == [(waiter, None)]
    core.far.serve_until(core.now + 10)
    assert core.wait(a, "k") is None
    assert core.get(a, "k").replica is replica


def test_a_node_that_is_cut_off_serves_what_it_owns(core):
    a = core.open()
    core.far.store(a, "own")
    promoted = core.far.cache(a, "k")
    core.far.promote(promoted)
    core.far.cut_off()
    assert core.get(a, "own").replica.key == "own"
    assert core.get(a, "k").replica is promoted
    assert core.lease("k") > 0


def test_what_was_read_before_the_node_was_cut_off_stays(core):
    a = core.open()
    handle, token = core.far.copy(a, "k"), core.lease("k")
    core.far.cut_off()
    core.far.drop("k", handle.replica.generation)
    assert core.master.table.stash == {handle.replica.replica_id: handle.replica}
    core.release(a, handle)
    core.release_lease(handle.replica, token)
    assert core.used == 0


# -- pins ------------------------------------------------------------------------------------------------------------


def test_the_contract_of_a_secondary_replica_is_changed_at_its_owner_alone(core):
    a = core.open()
    replica = core.far.cache(a, "k")
    for call in (core.pin, core.unpin):
        with core.refuses(Code.NOT_FOUND, "node n2 owns it"):
            call("k")
    assert (replica.contract, core.stat("pinned.soft_bytes")) == (PLAIN, 0)


def test_an_upsert_here_of_what_another_node_owns_replaces_the_copy(core):
    a, b = core.open("a"), core.open("b")
    handle = core.far.copy(a, "k")
    new = core.far.store(b, "k", mode=PutMode.UPSERT)
    assert core.readable("k") is new
    assert handle.replica.key in {r.key for r in core.master.table.stash.values()}
    assert core.far.take() == [], "the directory has the new one: there is nothing to withdraw"
    core.release(a, handle)
    assert core.used == PAGE
