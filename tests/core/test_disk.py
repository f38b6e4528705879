"""The tier as the core counts it: its limit, the copies that may be given up, and when it takes nothing."""

import pytest

from mooncake_client.codes import Code
from mooncake_node.core.config import MasterConfig
from mooncake_node.core.generations import EPOCH_MS, GenerationClock
from mooncake_node.core.jobs import Delete, Load, Offload
from mooncake_node.core.master import Master
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.replica import Rank, Replica, ReplicaState, Shelf
from mooncake_node.core.waiting import PutMode

PAGE = 4096
RETRY = 10


@pytest.fixture
def make_tiered(make_core):
    """Make masters with a tier for so many objects of a page."""

    def make(pages=2, **limits):
        return make_core(pages=8, tier_nbytes_max=pages * PAGE, tier_retry_ns=RETRY, **limits)

    return make


def spare(core):
    return [replica.key for replica in core.master.objects.disk.spare.values()]


def deleted(core):
    return [job.replica.key for job in core.take_jobs() if isinstance(job, Delete)]


# -- the limit ----------------------------------------------------------------------------------------------------


def test_without_a_tier_nothing_is_written(core):
    replica = core.store(core.open(), "k", softpin=True)
    assert core.rescue(replica) is False
    assert (core.take_jobs(), replica.state, replica.shelf) == ([], ReplicaState.COMPLETE, Shelf.INACTIVE)


def test_copies_are_counted_while_they_are_written_and_after(make_tiered):
    core = make_tiered()
    a = core.open()
    replica = core.store(a, "k", softpin=True)
    core.rescue(replica)
    assert (core.master.objects.disk.writing_nbytes, core.stat("offload.bytes")) == (PAGE, 0)
    core.written(core.job().replica)
    assert (core.master.objects.disk.writing_nbytes, core.stat("offload.bytes")) == (0, PAGE)
    assert (core.stat("offload.objects"), core.stat("offload.only_on_disk")) == (1, 1)
    core.remove("k")
    assert (core.stat("offload.objects"), core.stat("offload.bytes"), core.stat("offload.only_on_disk")) == (0, 0, 0)
    assert deleted(core) == ["k"]


def test_a_write_that_does_not_fit_beside_copies_and_writes_is_not_begun(make_tiered):
    core = make_tiered(pages=2)
    a = core.open()
    core.offload(a, "k")
    first, second = core.store(a, "l", softpin=True), core.store(a, "m", 1, softpin=True)
    assert core.rescue(first) is True
    assert core.rescue(second) is False
    assert second.shelf is Shelf.INACTIVE


def test_an_object_larger_than_the_tier_is_never_written_and_costs_no_other_its_copy(make_tiered):
    core = make_tiered(pages=2)
    a = core.open()
    core.offload(a, "k")
    core.unpin("k")
    assert core.rescue(core.store(a, "l", 3 * PAGE, softpin=True)) is False
    assert core.state("k") == "ON_DISK"


def test_what_an_object_takes_of_the_limit_is_the_tiers_to_say():
    """Not its length alone: a key and a block's rest come on top."""
    config = MasterConfig(pool_nbytes=8 * PAGE, tier_nbytes_max=1000)
    master = Master(config, GenerationClock(EPOCH_MS * 1_000_000), lambda replica: 2 * replica.nbytes)
    disk = master.objects.disk
    disk.add(Replica(1, "k", 1, 0, 300, 0, 0), "record")
    assert disk.nbytes == 600
    assert disk.has_room(400)
    assert not disk.has_room(401)


# -- copies that may be given up ------------------------------------------------------------------------------------


def test_only_copies_of_objects_that_are_not_pinned_are_spare(make_tiered):
    core = make_tiered(pages=4)
    a = core.open()
    for key in ("k", "l", "m"):
        core.offload(a, key)
    assert spare(core) == []
    core.unpin("l")
    core.unpin("k")
    assert spare(core) == ["l", "k"]
    core.pin("l")
    assert spare(core) == ["k"]


def test_the_end_of_a_pins_time_makes_its_copy_spare(make_tiered):
    core = make_tiered()
    core.offload(core.open(), "k", softpin_ttl=50)
    core.tick(later=49)
    assert spare(core) == []
    core.tick(later=1)
    assert spare(core) == ["k"]


def test_room_is_made_by_giving_up_spare_copies_the_coldest_first(make_tiered):
    core = make_tiered(pages=3)
    a = core.open()
    for key in ("pinned", "cold", "warm"):
        core.offload(a, key)
    core.unpin("cold")
    core.unpin("warm")
    core.take_jobs()
    assert core.rescue(core.store(a, "new", softpin=True)) is True
    assert [type(job) for job in core.master.jobs] == [Delete, Offload]
    assert deleted(core) == ["cold"]
    assert [core.state(key) for key in ("pinned", "cold", "warm", "new")] == ["ON_DISK", None, "ON_DISK", "ISOLATED"]


def test_a_copy_that_was_loaded_lately_is_given_up_after_the_others_and_its_object_stays_in_memory(make_tiered):
    core = make_tiered(pages=2)
    a = core.open()
    for key in ("loaded", "other"):
        core.offload(a, key)
        core.unpin(key)
    loaded = core.bring_back(a, "loaded")
    assert (spare(core), loaded.rank) == (["other", "loaded"], Rank.CLEAN)
    core.rescue(core.store(a, "new", 2 * PAGE, softpin=True))
    assert deleted(core) == ["other", "loaded"]
    assert [core.state(key) for key in ("loaded", "other")] == ["COMPLETE", None]
    assert (loaded.copy, loaded.rank, loaded.shelf) == (None, Rank.PLAIN, Shelf.INACTIVE)


def test_the_copy_of_an_object_that_is_read_may_be_given_up(make_tiered):
    core = make_tiered(pages=1)
    a = core.open()
    core.offload(a, "k")
    core.unpin("k")
    replica = core.bring_back(a, "k")
    handle = core.get(a, "k")
    core.rescue(core.store(a, "new", softpin=True))
    assert (replica.copy, replica.shelf) == (None, Shelf.PARKED)
    core.release(a, handle)
    assert replica.rank is Rank.PLAIN


def test_a_copy_that_is_being_loaded_is_not_given_up(make_tiered):
    core = make_tiered(pages=1)
    a = core.open()
    core.offload(a, "k")
    core.unpin("k")
    waiter = core.get(a, "k")
    assert spare(core) == []
    assert core.rescue(core.store(a, "new", softpin=True)) is False
    core.loaded(core.job().replica, Refusal(Code.TRANSFER_FAILED, "torn"))
    core.refusal_for(waiter)
    assert spare(core) == ["k"]


def test_a_pin_given_while_its_copy_is_loaded_holds_when_it_is_there(make_tiered):
    core = make_tiered()
    a = core.open()
    core.offload(a, "k")
    core.unpin("k")
    core.get(a, "k")
    core.pin("k", 50)
    core.loaded(core.job().replica)
    assert spare(core) == []
    core.tick(later=50)
    assert spare(core) == ["k"]


def test_a_clear_leaves_no_copy_to_be_given_up(make_tiered):
    core = make_tiered(pages=1)
    a = core.open()
    core.offload(a, "k")
    core.unpin("k")
    core.bring_back(a, "k")
    core.clear()
    assert spare(core) == []
    assert core.rescue(core.store(a, "new", softpin=True)) is False
    core.reap()
    assert (core.stat("offload.objects"), core.stat("offload.bytes"), deleted(core)) == (0, 0, [])


# -- when nothing is taken ------------------------------------------------------------------------------------------


def test_after_a_failed_write_nothing_is_written_for_a_while(make_tiered):
    core = make_tiered(pages=8)
    a = core.open()
    first, second = core.store(a, "k", softpin=True), core.store(a, "l", softpin=True)
    core.rescue(first)
    core.written(core.job().replica, None)
    assert core.stat("offload.failures") == 1
    assert core.rescue(second) is False
    core.now += RETRY - 1
    assert core.rescue(second) is False
    core.now += 1
    assert core.rescue(second) is True


def test_a_tier_without_room_is_tried_again_when_a_copy_is_given_up(make_tiered):
    core = make_tiered(pages=1)
    a = core.open()
    core.offload(a, "k")
    replica = core.store(a, "l", softpin=True)
    assert core.rescue(replica) is False
    core.remove("k")
    assert core.rescue(replica) is True


# -- what lies there at the start -----------------------------------------------------------------------------------


def test_what_was_found_at_the_start_is_readable_from_disk(make_tiered):
    core = make_tiered(pages=4)
    a = core.open()
    core.adopt("k", 100, softpin=True, until=core.now + 50)
    core.adopt("l")
    core.adopt("m", softpin=True)
    assert [core.state(key) for key in "klm"] == ["ON_DISK"] * 3
    assert (core.stat("pinned.soft_bytes"), core.stat("offload.bytes"), spare(core)) == (
        100 + PAGE,
        100 + 2 * PAGE,
        ["l"],
    )
    waiter = core.get(a, "k")
    job = core.job()
    assert isinstance(job, Load)
    assert (job.record, job.replica.nbytes) == ("found", 100)
    core.loaded(job.replica)
    assert core.handle_for(waiter).replica.softpin_until_ns == core.now + 50
    core.tick(later=50)
    assert (core.stat("pinned.soft_bytes"), spare(core)) == (PAGE, ["l", "k"])


def test_a_key_that_was_found_is_there_for_puts(make_tiered):
    core = make_tiered()
    core.adopt("k")
    a = core.open()
    with core.refuses(Code.EXISTS):
        core.put(a, "k")
    core.store(a, "k", mode=PutMode.UPSERT)
    assert deleted(core) == ["k"]
    assert core.state("k") == "COMPLETE"
