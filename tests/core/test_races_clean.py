"""The races of an eviction: of an object that has a copy on disk, so that its memory is freed at once."""

import pytest

from mooncake_client.codes import Code
from mooncake_node.core.jobs import Delete
from mooncake_node.core.replica import Replica, ReplicaState
from mooncake_node.core.sessions import Handle
from mooncake_node.core.waiting import PutMode, Waiter, Want

PAGE = 4096
TTL = 30


@pytest.fixture
def clean(make_core):
    """One object that has a copy on disk fills the pool. A put takes its memory at once."""
    core = make_core(1, lease_ttl_ns=TTL, tier_nbytes_max=2 * PAGE)
    core.session = core.open()
    core.offload(core.session, "k")
    loaded(core, core.session)
    return core


def loaded(core, session):
    """Bring k back into memory, and hold it no more."""
    waiter = core.get(session, "k")
    core.loaded(core.job().replica)
    core.release(session, core.handle_for(waiter))
    assert core.state("k") == "COMPLETE"


def drop(core):
    """A put takes the room of the coldest at once."""
    replica = core.put(core.session, "new")
    assert isinstance(replica, Replica)
    return replica


def test_what_has_a_copy_is_not_dropped_while_it_is_read(clean):
    handle = clean.get(clean.session, "k")
    assert isinstance(clean.put(clean.session, "new"), Waiter)
    assert clean.state("k") == "COMPLETE"
    clean.release(clean.session, handle)
    assert clean.state("k") == "ON_DISK"


def test_a_get_after_the_drop_of_a_clean_one_brings_it_back(clean):
    clean.revoke(clean.session, drop(clean))
    waiter = clean.get(clean.session, "k")
    assert waiter.want is Want.LOAD
    clean.loaded(clean.job().replica)
    assert isinstance(clean.handle_for(waiter), Handle)


def test_the_drop_of_a_clean_one_is_seen_by_no_probe(clean):
    generation = clean.readable("k").generation
    drop(clean)
    assert clean.wait(clean.session, "k") is None
    assert clean.readable("k").generation == generation
    with clean.refuses(Code.EXISTS):
        clean.put(clean.session, "k")


@pytest.mark.parametrize("dropped", [False, True])
def test_a_removed_clean_one_leaves_nothing_on_disk(clean, dropped):
    replica = clean.readable("k")
    if dropped:
        drop(clean)
    assert clean.remove("k") is True
    job = clean.job()
    assert isinstance(job, Delete)
    assert job.replica is replica
    assert clean.stat("offload.bytes") == 0


def test_an_upsert_of_a_dropped_clean_one_replaces_its_copy(clean):
    replica = clean.put(clean.session, "k", mode=PutMode.UPSERT)
    assert clean.state("k") == "ON_DISK"
    clean.end(clean.session, replica)
    assert isinstance(clean.job(), Delete)
    assert clean.readable("k") is replica


def test_a_leased_clean_one_stays_and_on_disk_nothing_is_leased(clean):
    replica = clean.readable("k")
    token = clean.lease("k")
    waiter = clean.put(clean.session, "new")
    assert isinstance(waiter, Waiter)
    clean.release_lease(replica, token)
    clean.replica_for(waiter)
    assert clean.lease("k") == 0


def test_a_lease_that_expires_lets_a_clean_one_go(clean):
    clean.lease("k")
    waiter = clean.put(clean.session, "new")
    clean.tick(later=TTL)
    clean.replica_for(waiter)
    assert clean.state("k") == "ON_DISK"


@pytest.mark.parametrize("end", ["unpin", "deadline"])
def test_a_copy_may_be_given_up_only_when_the_pin_has_ended(make_core, end):
    """On disk the pin keeps the copy; without it, the copy is the first to go when another needs its place."""
    core = make_core(1, tier_nbytes_max=PAGE)
    session = core.open()
    core.offload(session, "k")
    core.pin("k", 50)
    other = core.store(session, "other", softpin=True)
    assert core.master.rescue(other, core.now) is False
    if end == "unpin":
        core.unpin("k")
    else:
        core.tick(later=50)
    core.tick(later=core.master.config.tier_retry_ns)
    assert core.master.rescue(other, core.now) is True
    assert core.state("k") is None
    [deletion, offload] = core.take_jobs()
    assert isinstance(deletion, Delete)
    core.written(offload.replica)


def test_a_clean_one_whose_copy_is_given_up_is_a_plain_one(make_core):
    core = make_core(2, tier_nbytes_max=PAGE)
    session = core.open()
    core.offload(session, "k")
    loaded(core, session)
    core.unpin("k")
    other = core.store(session, "other", softpin=True)
    assert core.master.rescue(other, core.now) is True
    assert core.state("k") == "COMPLETE"
    [deletion, offload] = core.take_jobs()
    assert isinstance(deletion, Delete)
    core.put(session, "new")
    assert core.state("k") is None
    core.written(offload.replica)


def test_remove_all_after_the_drop_of_a_clean_one_counts_it_once(clean):
    drop(clean)
    assert clean.clear() == 1
    assert clean.state("k") is None
    clean.reap()
    assert clean.stat("offload.bytes") == 0
    assert clean.take_jobs() == []  # the tier is cleared in one go


def test_the_death_of_its_reader_lets_a_clean_one_go(clean):
    reader = clean.open()
    handle = clean.get(reader, "k")
    waiter = clean.put(clean.session, "new")
    clean.end_session(reader)
    clean.replica_for(waiter)
    assert handle.replica.state is ReplicaState.ON_DISK
