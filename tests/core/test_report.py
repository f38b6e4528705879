"""Statistics, holders, and the line that says what the pool is taken by."""

from mooncake_node.core.report import holders, room_report, stats
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
        },
        "load": {"local_hits": 0, "local_copies": 0, "from_offload": 0, "from_remote_offload": 0, "coalesced": 0},
        "offload": {"objects": 0, "bytes": 0, "failures": 0},
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
    }
    assert [facts[name] for name in ("objects", "unpublished", "handles", "clients")] == [3, 2, 2, 2]
    assert [facts[name] for name in ("waiting_puts", "waiting", "clear_epoch")] == [1, 2, 1]
    assert facts["stash"] == {"objects": 1, "bytes": 100}
    assert facts["pinned"] == {"soft_bytes": 10, "hard_bytes": 20}


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


def test_a_replica_read_by_many_is_counted_once_among_the_held_bytes(core):
    a, b = core.open("a"), core.open("b")
    core.store(a, "k", PAGE)
    for session in (a, a, b):
        core.get(session, "k")
    line = room_report(core.master.space, core.master.table, core.master.held)
    assert "1 replicas of 4096 bytes held by readers" in line
    assert line.startswith(f"{3 * PAGE} of {4 * PAGE} bytes free, largest free extent {3 * PAGE}; 1 objects;")
