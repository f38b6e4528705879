"""The races of an eviction: of a soft-pinned object, which is written to disk first.

What meets it before its first byte is written makes the write needless (`is_wanted`); what meets it later is seen when
the write has ended. The core is told of both by one call.
"""

import pytest

from mooncake_client.codes import Code
from mooncake_node.core.jobs import Delete, Load, Offload
from mooncake_node.core.replica import Replica, ReplicaState
from mooncake_node.core.waiting import PutMode, Waiter

PAGE = 4096
TTL = 30
WHEN = ["before", "while"]


class Offloading:
    """Two soft-pinned objects fill the pool; a put waits, and the colder one, k0, is on its way to disk."""

    def __init__(self, core):
        self.core = core
        self.session = core.open()
        core.fill(self.session, 2, softpin=True)
        self.put = core.put(self.session, "new", timeout=10_000)
        assert isinstance(self.put, Waiter)
        core.tick()
        job = core.job()
        assert isinstance(job, Offload)
        self.replica = job.replica
        assert self.replica is core.readable("k0")
        self.begun = False

    def begin(self, when):
        """The first byte is written now, unless what is next comes *before* it."""
        if when == "while":
            self.begun = self.core.master.is_wanted(self.replica)

    def end(self):
        """The write has ended, or was not begun."""
        begun = self.begun or self.core.master.is_wanted(self.replica)
        self.core.written(self.replica, "record" if begun else None)


@pytest.fixture
def offloading(make_core):
    return Offloading(make_core(2, lease_ttl_ns=TTL, tier_nbytes_max=4 * PAGE))


def test_memory_is_freed_when_the_copy_is_complete_and_not_before(offloading):
    core = offloading.core
    assert core.answers() == []
    assert core.state("k0") == "ISOLATED"
    offloading.end()
    assert core.replica_for(offloading.put).offset == offloading.replica.offset
    assert core.state("k0") == "ON_DISK"


@pytest.mark.parametrize("when", WHEN)
def test_a_get_during_an_offload_reads_memory_and_keeps_it(offloading, when):
    core = offloading.core
    offloading.begin(when)
    handle = core.get(offloading.session, "k0")
    assert handle.replica is offloading.replica
    offloading.end()
    assert core.answers() == []
    assert core.state("k0") == "COMPLETE"
    core.release(offloading.session, handle)
    core.replica_for(offloading.put)
    assert core.take_jobs() == []  # it has its copy


def test_a_get_after_an_offload_brings_it_back(offloading):
    core = offloading.core
    offloading.end()
    core.revoke(offloading.session, core.replica_for(offloading.put))
    waiter = core.get(offloading.session, "k0")
    job = core.job()
    assert isinstance(job, Load)
    core.loaded(job.replica)
    assert core.handle_for(waiter).replica.generation == offloading.replica.generation


def test_a_release_during_an_offload_frees_nothing_by_itself(offloading):
    core = offloading.core
    core.release(offloading.session, core.get(offloading.session, "k0"))
    assert core.answers() == []
    assert core.state("k0") == "ISOLATED"
    offloading.end()
    core.replica_for(offloading.put)


@pytest.mark.parametrize("when", WHEN)
def test_a_removal_during_an_offload_leaves_neither_memory_nor_copy(offloading, when):
    core = offloading.core
    offloading.begin(when)
    assert core.remove("k0") is True
    deletion = core.job()
    assert isinstance(deletion, Delete)
    assert deletion.replica is offloading.replica
    # The write may still read the memory.
    assert core.answers() == []
    assert offloading.replica.state is ReplicaState.STASHED
    assert core.master.is_wanted(offloading.replica) is False
    offloading.end()
    core.replica_for(offloading.put)
    assert core.stat("offload.bytes") == 0
    assert core.stat("offload.failures") == 0


def test_a_removal_after_an_offload_deletes_the_copy(offloading):
    core = offloading.core
    offloading.end()
    assert core.remove("k0") is True
    assert isinstance(core.job(), Delete)
    assert core.stat("offload.bytes") == 0


def test_a_put_during_or_after_an_offload_finds_the_key_taken(offloading):
    core = offloading.core
    with core.refuses(Code.EXISTS):
        core.put(offloading.session, "k0")
    offloading.end()
    with core.refuses(Code.EXISTS):
        core.put(offloading.session, "k0")


@pytest.mark.parametrize("when", WHEN)
def test_a_put_after_a_removal_during_an_offload_has_nothing_to_do_with_it(offloading, when):
    core = offloading.core
    offloading.begin(when)
    core.remove("k0")
    core.remove("k1")
    old = core.take_jobs()
    core.revoke(offloading.session, core.replica_for(offloading.put))
    new = core.store(offloading.session, "k0", softpin=True)
    offloading.end()
    assert core.readable("k0") is new
    assert new.copy is None
    assert new.generation not in {job.replica.generation for job in old}


@pytest.mark.parametrize("when", WHEN)
def test_an_upsert_during_an_offload_replaces_memory_and_copy(offloading, when):
    core = offloading.core
    core.cancel(offloading.put)
    core.remove("k1")
    upsert = core.put(offloading.session, "k0", mode=PutMode.UPSERT)
    offloading.begin(when)
    core.end(offloading.session, upsert)
    assert isinstance(core.job(), Delete)
    assert core.readable("k0") is upsert
    offloading.end()
    assert core.used == PAGE
    assert upsert.copy is None


def test_an_upsert_after_an_offload_deletes_the_copy(offloading):
    core = offloading.core
    offloading.end()
    core.revoke(offloading.session, core.replica_for(offloading.put))
    upsert = core.store(offloading.session, "k0", mode=PutMode.UPSERT)
    assert isinstance(core.job(), Delete)
    assert core.readable("k0") is upsert
    assert core.stat("offload.only_on_disk") == 0


@pytest.mark.parametrize("end", ["released", "expired"])
def test_a_lease_during_an_offload_keeps_memory_until_it_ends(offloading, end):
    core = offloading.core
    token = core.lease("k0")
    assert token
    offloading.end()
    assert core.answers() == []
    assert core.state("k0") == "COMPLETE"
    if end == "released":
        core.release_lease(offloading.replica, token)
    else:
        core.tick(later=TTL)
    core.replica_for(offloading.put)
    assert core.state("k0") == "ON_DISK"


@pytest.mark.parametrize("end", ["released", "expired"])
def test_a_lease_that_ends_during_an_offload_is_as_if_it_had_not_been(offloading, end):
    core = offloading.core
    token = core.lease("k0")
    if end == "released":
        core.release_lease(offloading.replica, token)
    else:
        core.tick(later=TTL)
    assert core.state("k0") == "ISOLATED"
    offloading.end()
    core.replica_for(offloading.put)


def test_a_lease_after_an_offload_is_on_nothing(offloading):
    core = offloading.core
    offloading.end()
    assert core.lease("k0") == 0
    core.release_lease(offloading.replica, 0)


@pytest.mark.parametrize("end", ["unpin", "deadline"])
def test_a_pin_that_ends_during_an_offload_does_not_stop_it(offloading, end):
    core = offloading.core
    if end == "unpin":
        core.unpin("k0")
    else:
        core.pin("k0", 10)
        core.tick(later=10)
    assert core.state("k0") == "ISOLATED"
    offloading.end()
    core.replica_for(offloading.put)
    assert core.state("k0") == "ON_DISK"
    assert list(core.master.objects.disk.spare.values()) == [offloading.replica]


def test_a_pin_during_an_offload_holds_for_the_copy(offloading):
    core = offloading.core
    core.unpin("k0")
    core.pin("k0")
    offloading.end()
    assert core.master.objects.disk.spare == {}
    assert core.stat("pinned.soft_bytes") == 2 * PAGE


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("reaped", [False, True])
def test_remove_all_during_an_offload_leaves_neither_memory_nor_copy(offloading, when, reaped):
    core = offloading.core
    offloading.begin(when)
    assert core.clear() == 2
    core.refusal_for(offloading.put)
    if reaped:
        core.reap()
        assert offloading.replica.state is ReplicaState.STASHED
    offloading.end()
    core.reap()
    assert core.used == 0
    assert core.stat("offload.bytes") == 0
    assert core.take_jobs() == []


def test_remove_all_after_an_offload_leaves_no_copy(offloading):
    core = offloading.core
    offloading.end()
    assert core.clear() == 2
    with core.refuses(Code.NOT_FOUND):
        core.get(offloading.session, "k0")
    core.reap()
    assert core.stat("offload.bytes") == core.stat("offload.only_on_disk") == 0


@pytest.mark.parametrize("when", WHEN)
def test_the_death_of_all_clients_does_not_stop_an_offload(offloading, when):
    """The object was promised, not to whom it was."""
    core = offloading.core
    offloading.begin(when)
    core.get(offloading.session, "k0")
    core.end_session(offloading.session)
    offloading.end()
    assert core.state("k0") == "ON_DISK"
    assert core.used == PAGE


def test_a_failed_write_keeps_the_object_and_is_tried_again_later(offloading):
    core = offloading.core
    core.written(offloading.replica, None)
    assert core.state("k0") == "COMPLETE"
    core.tick()
    assert core.take_jobs() == []
    again_ns = core.now + core.master.config.tier_retry_ns
    assert core.master.reclaim.due_at_ns(core.master.waiting.head, core.now) == again_ns
    core.cancel(offloading.put)
    waiter = core.put(offloading.session, "other", timeout=2 * core.master.config.tier_retry_ns)
    core.tick(later=core.master.config.tier_retry_ns)
    core.written(core.job().replica)
    core.replica_for(waiter)


def test_a_put_whose_offload_fails_is_refused_at_its_deadline(offloading):
    core = offloading.core
    core.written(offloading.replica, None)
    core.tick(later=10_000)
    refusal = core.refusal_for(offloading.put)
    assert refusal.code is Code.NO_SPACE
    assert "the offload tier takes nothing now" in refusal.message
    assert core.state("k0") == "COMPLETE"


def test_a_write_that_fails_for_a_removed_object_is_no_failure_of_the_tier(offloading):
    core = offloading.core
    core.remove("k0")
    core.written(offloading.replica, None)
    core.replica_for(offloading.put)
    assert core.master.objects.disk.takes(core.now)


def test_a_full_tier_gives_up_unpinned_copies_first_and_takes_nothing_else(make_core):
    core = make_core(2, tier_nbytes_max=PAGE)
    session = core.open()
    core.offload(session, "old")
    core.fill(session, 2, softpin=True)
    put = core.put(session, "new", timeout=1 << 40)
    core.tick()
    assert core.take_jobs() == []
    core.unpin("old")
    core.tick(later=core.master.config.tier_retry_ns)
    [deletion, offload] = core.take_jobs()
    assert (deletion.replica.key, offload.replica.key[0]) == ("old", "k")
    assert core.state("old") is None
    core.written(offload.replica)
    core.replica_for(put)


def test_a_tier_that_is_full_within_a_pass_costs_nothing_that_is_pinned(make_core):
    core = make_core(2, tier_nbytes_max=PAGE)
    session = core.open()
    core.fill(session, 2, softpin=True)
    core.put(session, "new", 2 * PAGE)
    core.tick()
    first = core.job().replica
    core.written(first)
    core.tick()
    assert core.take_jobs() == []
    assert sorted([core.state("k0"), core.state("k1")]) == ["COMPLETE", "ON_DISK"]


def test_what_is_pinned_hard_stays_in_memory_though_it_has_a_copy(make_core):
    core = make_core(1, tier_nbytes_max=PAGE, hard_pin_nbytes_max=PAGE)
    session = core.open()
    replica = core.store(session, "k", softpin=True, hardpin=True)
    assert core.master.rescue(replica, core.now) is True
    core.written(core.job().replica)
    assert core.state("k") == "COMPLETE"
    assert isinstance(core.put(session, "new"), Waiter)
    core.tick()
    assert core.state("k") == "COMPLETE"


def test_a_rescue_of_what_is_read_leaves_it_in_memory(make_core):
    core = make_core(1, tier_nbytes_max=PAGE)
    session = core.open()
    replica = core.store(session, "k", softpin=True)
    handle = core.get(session, "k")
    assert core.master.rescue(replica, core.now) is True
    assert core.master.rescue(replica, core.now) is False
    core.written(core.job().replica)
    assert core.state("k") == "COMPLETE"
    core.release(session, handle)
    assert isinstance(core.put(session, "new"), Replica)
    assert core.state("k") == "ON_DISK"


# -- a window ----------------------------------------------------------------------------------------------------

BLOCK = 16 * PAGE


@pytest.fixture
def windowed(make_core):
    """Four soft-pinned blocks fill the pool; a put of two waits, and two neighbours are on their way to disk."""
    core = make_core(64, tier_nbytes_max=64 * PAGE, lease_ttl_ns=TTL)
    core.session = core.open()
    core.fill(core.session, 4, BLOCK, softpin=True)
    core.wide = core.put(core.session, "wide", 2 * BLOCK, timeout=1000)
    core.tick()
    core.victims = sorted((job.replica for job in core.take_jobs()), key=lambda replica: replica.offset)
    assert core.victims[1].offset - core.victims[0].offset == BLOCK
    return core


def test_nobody_else_gets_what_comes_free_in_a_window(windowed):
    core = windowed
    core.written(core.victims[0])
    assert isinstance(core.put(core.session, "small"), Waiter)
    core.written(core.victims[1])
    [(first, replica), *_] = core.answers()
    assert first is core.wide
    assert replica.offset == core.victims[0].offset


def test_a_get_in_a_window_takes_it_apart(windowed):
    core = windowed
    core.written(core.victims[0])
    small = core.put(core.session, "small")
    handle = core.get(core.session, core.victims[1].key)
    core.written(core.victims[1])
    assert 0 <= core.replica_for(small).offset - core.victims[0].offset < BLOCK
    core.release(core.session, handle)


@pytest.mark.parametrize("end", ["deadline", "cancel", "death", "remove_all"])
def test_a_window_is_given_up_with_the_put_it_was_for(windowed, end):
    core = windowed
    other = core.open()
    core.written(core.victims[0])
    if end == "deadline":
        core.tick(later=1000)
    elif end == "cancel":
        core.cancel(core.wide)
    elif end == "death":
        core.end_session(core.session)
    else:
        core.clear()
        core.reap(1)
    assert isinstance(core.put(other, "small"), Replica)
    core.written(core.victims[1])
