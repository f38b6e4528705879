"""Loans: a transfer to another node reads a replica's memory, under a lease and beyond its end."""

import pytest

from mooncake_client.codes import Code
from mooncake_node.core.replica import ReplicaState, Shelf
from mooncake_node.core.waiting import Want

PAGE = 4096
TTL = 1_000
S = ReplicaState


@pytest.fixture
def core(make_core):
    return make_core(has_peers=True, lease_ttl_ns=TTL)


def test_what_is_lent_outlives_its_lease_and_is_listed_when_it_is_given_back(core):
    a = core.open()
    replica = core.store(a, "k")
    core.far.lend(replica, core.lease("k"))
    core.tick(later=TTL)
    assert (core.stat("leases"), replica.shelf) == (0, Shelf.PARKED)
    core.far.give_back(replica)
    assert replica.shelf is Shelf.INACTIVE


def test_what_is_lent_stays_when_its_lease_is_released(core):
    a = core.open()
    replica, token = core.store(a, "k"), core.lease("k")
    core.far.lend(replica, token)
    core.release_lease(replica, token)
    core.remove("k")
    assert (replica.state, core.used) == (S.STASHED, PAGE)
    core.far.give_back(replica)
    assert core.used == 0


def test_what_is_lent_twice_stays_until_both_are_over(core):
    a = core.open()
    replica, token = core.store(a, "k"), core.lease("k")
    core.far.lend(replica, token)
    core.far.lend(replica, token)
    core.remove("k")
    core.tick(later=TTL)
    core.far.give_back(replica)
    assert core.used == PAGE
    core.far.give_back(replica)
    assert core.used == 0


def test_a_put_waits_for_what_is_lent(core):
    a = core.open()
    replica = core.store(a, "k", 4 * PAGE)
    core.far.lend(replica, core.lease("k"))
    core.tick(later=TTL)
    put = core.put(a, "new")
    assert put.want is Want.ROOM
    core.far.give_back(replica)
    assert core.replica_for(put).key == "new"


def test_what_was_removed_is_lent_as_long_as_the_lease_runs(core):
    """The transfer was promised that much; what comes of it is refused by the directory."""
    a = core.open()
    replica, token = core.store(a, "k"), core.lease("k")
    core.remove("k")
    assert core.far.lend(replica, token) is replica
    core.far.give_back(replica)
    core.release_lease(replica, token)
    assert core.used == 0


@pytest.mark.parametrize("how", ["expired", "released", "foreign"])
def test_nothing_is_lent_without_a_lease_that_runs(core, how):
    a = core.open()
    replica, token = core.store(a, "k"), core.lease("k")
    if how == "expired":
        core.now += TTL
    elif how == "released":
        core.lease("k")
        core.release_lease(replica, token)
    else:
        core.store(a, "l")
        token = core.lease("l")
    with core.refuses(Code.LEASE_EXPIRED):
        core.far.lend(replica, token)
    assert replica.loans == 0


def test_nothing_is_lent_that_is_named_wrongly(core):
    a = core.open()
    replica, token = core.store(a, "k"), core.lease("k")
    for wrong in ({"key": "l"}, {"replica_id": 99}, {"generation": replica.generation + 1}):
        with core.refuses(Code.NOT_FOUND, "no such replica"):
            core.far.lend(replica, token, **wrong)
    assert replica.loans == 0


def test_what_is_freed_is_lent_to_nobody(core):
    a = core.open()
    replica, token = core.store(a, "k"), core.lease("k")
    core.remove("k")
    core.release_lease(replica, token)
    with core.refuses(Code.NOT_FOUND):
        core.far.lend(replica, token)
    assert not core.master.objects.leases.is_running(replica, token, core.now)


def test_what_is_lent_while_it_is_written_to_disk_stays_in_memory(make_core):
    core = make_core(has_peers=True, lease_ttl_ns=TTL, tier_nbytes_max=100 * PAGE)
    a = core.open()
    replica = core.store(a, "k", softpin=True)
    core.rescue(replica)
    token = core.lease("k")
    core.far.lend(replica, token)
    core.release_lease(replica, token)
    core.written(core.job().replica)
    assert (core.state("k"), replica.shelf) == ("COMPLETE", Shelf.PARKED)
    core.far.give_back(replica)
    assert replica.shelf is Shelf.INACTIVE


def test_what_is_lent_when_all_is_cleared_stays(core):
    a = core.open()
    replica, token = core.store(a, "k"), core.lease("k")
    core.far.lend(replica, token)
    core.clear()
    core.reap()
    core.tick(later=TTL)
    assert core.used == PAGE
    core.far.give_back(replica)
    assert core.used == 0


def test_a_secondary_replica_is_lent_as_well(core):
    a = core.open()
    replica = core.far.cache(a, "k")
    core.far.lend(replica, core.lease("k"))
    core.far.give_back(replica)
    core.tick(later=TTL)
    assert replica.shelf is Shelf.INACTIVE
