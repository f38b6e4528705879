"""Statistics, holders, and the line that says what the pool is taken by."""

from mooncake_client.codes import Code
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.replica import ReplicaState
from mooncake_node.core.report import LeaseReport, holders, leases, room_report, stats
from mooncake_node.core.waiting import PutMode

PAGE = 4096


def test_a_new_node_shows_an_empty_pool(core):
    assert stats(core.master) == {
        "pool": {
            "bytes_total": 4 * PAGE,
            "bytes_used": 0,
            "bytes_free": 4 * PAGE,
            "largest_free_extent": 4 * PAGE,
            "quarantined_bytes": 0,
            "doomed_bytes": 0,
            "isolated_bytes": 0,
            "leaving_bytes": 0,
        },
        "objects": 0,
        "unpublished": 0,
        "handles": 0,
        "leases": 0,
        "stash": {"objects": 0, "bytes": 0},
        "clients": 0,
        "pinned": {"soft_bytes": 0, "hard_bytes": 0},
        "waiting_puts": 0,
        "reclaim": {
            "passes": 0,
            "productive_passes": 0,
            "examined": 0,
            "isolated": 0,
            "dropped": 0,
            "offloaded": 0,
            "swapped_out": 0,
            "parked_lease_only": 0,
            "parked_ref_only": 0,
            "parked_lease_and_ref": 0,
            "listed": 0,
            "earliest_lease_expire_ms": {},
        },
        "load": {
            "local_hits": 0,
            "local_copies": 0,
            "from_offload": 0,
            "from_remote_offload": 0,
            "coalesced": 0,
            "under_way": 0,
        },
        "offload": {"objects": 0, "bytes": 0, "bytes_max": 0, "failures": 0, "only_on_disk": 0, "lost": 0},
        "directory": {"state": "none", "queued": 0, "conflicts": 0},
        "waiting": 0,
        "clear_epoch": 0,
    }


def test_every_number_counts_what_its_name_says(make_core):
    core = make_core(pages=10, hard_pin_nbytes_max=PAGE)
    a, b = core.open("a"), core.open("b")
    core.put(a, "doomed")
    core.clear()
    core.store(a, "k")
    for _ in range(3):
        core.lease("k")
    core.store(a, "soft", 10, softpin=True)
    core.store(a, "hard", 20, hardpin=True)
    core.store(a, "gone", 100)
    for _ in range(2):
        core.get(b, "gone")
    core.remove("gone")
    core.put(a, "written", 2 * PAGE)
    core.get(b, "written")
    core.put(b, "too large", 10 * PAGE)
    facts = stats(core.master)
    assert facts["pool"] == {
        "bytes_total": 10 * PAGE,
        "bytes_used": 6 * PAGE,
        "bytes_free": 4 * PAGE,
        "largest_free_extent": core.master.space.largest_free_extent,
        "quarantined_bytes": 0,
        "doomed_bytes": PAGE,
        "isolated_bytes": 0,
        "leaving_bytes": 0,
    }
    assert [facts[name] for name in ("objects", "unpublished", "handles", "clients")] == [3, 2, 2, 2]
    assert facts["leases"] == 3
    assert [facts[name] for name in ("waiting_puts", "waiting", "clear_epoch")] == [1, 2, 1]
    assert facts["stash"] == {"objects": 1, "bytes": 100}
    assert facts["pinned"] == {"soft_bytes": 10, "hard_bytes": 20}


def test_every_number_of_reclaim_load_and_offload_counts_what_its_name_says(make_core):
    core = make_core(pages=10, tier_nbytes_max=10 * PAGE)
    a = core.open()
    lost, loading = core.offload(a, "lost"), core.offload(a, "loading", 100)
    core.get(a, "lost")
    core.loaded(core.job().replica, Refusal(Code.TRANSFER_FAILED, "torn"), gone=True)
    core.take_jobs()
    for _ in range(3):
        core.get(a, "loading")
    core.take_jobs()
    core.offload(a, "loaded", 200)
    waiter = core.get(a, "loaded")
    core.loaded(core.take_jobs()[-1].replica)
    core.answers()
    core.store(a, "isolated", 5000, softpin=True)
    core.rescue(core.readable("isolated"))
    core.store(a, "listed")
    core.store(a, "parked")
    core.get(a, "parked")
    core.lease("parked")
    facts = stats(core.master)
    assert (lost.copy, loading.state, waiter.open) == (None, ReplicaState.ON_DISK, False)
    assert facts["pool"]["isolated_bytes"] == 2 * PAGE
    assert facts["reclaim"] == {
        "passes": 0,
        "productive_passes": 0,
        "examined": 0,
        "isolated": 0,
        "dropped": 0,
        "offloaded": 3,
        "swapped_out": 0,
        "parked_lease_only": 0,
        "parked_ref_only": 2,
        "parked_lease_and_ref": 1,
        "listed": 1,
        "earliest_lease_expire_ms": {},
    }
    assert facts["load"] == {
        "local_hits": 1,
        "local_copies": 0,
        "from_offload": 1,
        "from_remote_offload": 0,
        "coalesced": 2,
        "under_way": 1,
    }
    assert facts["offload"] == {
        "objects": 2,
        "bytes": 300,
        "bytes_max": 10 * PAGE,
        "failures": 1,
        "only_on_disk": 1,
        "lost": 1,
    }


def test_holders_are_told_apart_by_session_and_generation(core):
    a, b, c = core.open("a"), core.open("b"), core.open("c")
    old = core.store(a, "k")
    core.get(a, "k")
    core.now += 5
    core.get(a, "k")
    core.get(b, "k")
    new = core.store(a, "k", mode=PutMode.UPSERT)
    core.get(b, "k")
    core.store(c, "other")
    core.get(c, "other")
    assert [(h.session, h.replica, h.handles, h.oldest_since_ns) for h in holders(core.master, "k")] == [
        (a, old, 2, core.now - 5),
        (b, old, 1, core.now),
        (b, new, 1, core.now),
    ]
    assert holders(core.master, "nothing") == []


def test_running_leases_are_shown_by_replica_the_removed_ones_too(core):
    a = core.open()
    old = core.store(a, "k")
    core.lease("k")
    core.now += 5
    core.lease("k")
    new = core.store(a, "k", mode=PutMode.UPSERT)
    core.store(a, "other")
    core.lease("other")
    assert leases(core.master, "k", core.now) == [LeaseReport(old, core.master.config.lease_ttl_ns)]
    core.now += 7
    core.lease("k")
    ttl = core.master.config.lease_ttl_ns
    assert leases(core.master, "k", core.now) == [LeaseReport(new, ttl), LeaseReport(old, ttl - 7)]
    assert leases(core.master, "k", core.now + ttl - 7) == [LeaseReport(new, 7)]
    assert leases(core.master, "nothing", core.now) == []


# -- what the pool is taken by --------------------------------------------------------------------------------------


def room(core):
    return room_report(core.master.objects, core.master.sessions.values(), core.now)


def test_an_empty_pool_is_taken_by_nothing(core):
    assert room(core) == (
        "16384 of 16384 bytes free, largest free extent 16384; 0 objects; 0 replicas of 0 bytes held by readers; "
        "0 being written (0 bytes); 0 removed but still read (0 bytes); "
        "0 given up but not yet let go by their writers (0 bytes)"
    )


def test_a_replica_read_by_many_is_counted_once_among_the_held_bytes(core):
    a, b = core.open("a"), core.open("b")
    core.store(a, "k", PAGE)
    for session in (a, a, b):
        core.get(session, "k")
        core.now += 10**9
    line = room(core)
    assert "1 replicas of 4096 bytes held by readers: 'k' (4096 bytes) by a (pid 4711) for 3.0 s, " in line
    assert "'k' (4096 bytes) by b (pid 4711) for 1.0 s; 0 being" in line
    assert line.startswith(f"{3 * PAGE} of {4 * PAGE} bytes free, largest free extent {3 * PAGE}; 1 objects;")


def test_of_many_that_are_held_the_largest_are_named(core):
    a = core.open()
    for nbytes in (100, 400, 200, 300):
        core.store(a, f"k{nbytes}", nbytes)
        core.get(a, f"k{nbytes}")
    assert (
        "held by readers: 'k400' (400 bytes) by client (pid 4711) for 0.0 s, "
        "'k300' (300 bytes) by client (pid 4711) for 0.0 s, 'k200' (200 bytes) by client (pid 4711) for 0.0 s, ...; "
    ) in room(core)


def test_leases_and_pins_are_named_and_where_pinned_ones_could_go(make_core):
    core = make_core(hard_pin_nbytes_max=PAGE)
    a = core.open()
    core.store(a, "k")
    core.lease("k")
    core.store(a, "hard", 10, hardpin=True)
    core.store(a, "soft", 20, softpin=True)
    assert room(core).endswith(
        "; 1 leases of remote readers, the next ends in 30.0 s at the latest"
        "; 10 bytes pinned hard; 20 bytes pinned soft, in memory or on disk; "
        "there is no offload directory for them to go to"
    )


def test_a_tier_that_takes_nothing_is_named(make_core):
    core = make_core(tier_nbytes_max=PAGE, tier_retry_ns=10)
    a = core.open()
    core.offload(a, "k", 100)
    assert room(core).endswith("; 100 bytes pinned soft, in memory or on disk")
    core.rescue(core.store(a, "l", softpin=True))
    assert room(core).endswith("; the offload tier takes nothing now (100 of 4096 bytes used)")
    core.now += 10
    assert room(core).endswith("in memory or on disk")
