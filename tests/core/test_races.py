"""The races of an eviction: of a plain object, which is dropped; and the table of all races.

Each row of the table in `docs/RECLAIM.md` names its test, here or in another file of this name.
"""

import ast
import re
from pathlib import Path

import pytest

from mooncake_client.codes import Code
from mooncake_node.core.jobs import Load
from mooncake_node.core.replica import Replica
from mooncake_node.core.waiting import PutMode, Waiter

PAGE = 4096
HERE = Path(__file__).parent
TABLE = HERE.parents[1] / "docs" / "RECLAIM.md"
TTL = 30


def rows():
    """What meets what, and the tests named for it."""
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in TABLE.read_text().splitlines() if "|" in line]
    return [(row[0], re.findall(r"`(test_\w+)`", row[-1])) for row in cells if len(row) == 4 and "`test_" in row[-1]]


def races_tested():
    trees = [ast.parse(path.read_text()) for path in HERE.glob("test_races*.py")]
    return {node.name for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_row_of_the_table_names_a_test_that_exists():
    table = rows()
    assert len(table) > 50
    assert [row for row, named in table if not named] == []
    assert {name for _, named in table for name in named} - races_tested() == set()


def test_every_test_of_a_race_stands_in_the_table():
    named = {name for _, tests in rows() for name in tests}
    of_the_table = {name for name in races_tested() if name.startswith("test_every_")}
    assert {name for name in races_tested() if name.startswith("test_")} - named == of_the_table


@pytest.fixture
def full(make_core):
    """Four plain objects fill the pool, k0 the coldest."""
    core = make_core(lease_ttl_ns=TTL)
    core.session = core.open()
    core.fill(core.session, 4)
    return core


@pytest.fixture
def pinned(make_core):
    """Four soft-pinned objects fill the pool, and there is no tier."""
    core = make_core(lease_ttl_ns=TTL)
    core.session = core.open()
    core.fill(core.session, 4, softpin=True)
    return core


def drop(core):
    """A put takes the room of the coldest at once."""
    replica = core.put(core.session, "new")
    assert isinstance(replica, Replica)
    return replica


def hold_all(core):
    return [core.get(core.session, f"k{number}") for number in range(4)]


def test_what_is_read_is_not_dropped(full):
    handles = hold_all(full)
    assert isinstance(full.put(full.session, "new"), Waiter)
    assert [full.state(f"k{number}") for number in range(4)] == ["COMPLETE"] * 4
    full.release(full.session, *handles)


def test_a_get_after_the_drop_finds_nothing(full):
    drop(full)
    with full.refuses(Code.NOT_FOUND):
        full.get(full.session, "k0")
    assert full.state("k1") == "COMPLETE"


def test_the_last_release_gives_the_waiting_put_its_room(full):
    handles = hold_all(full)
    twice = full.get(full.session, "k2")
    waiter = full.put(full.session, "new")
    full.release(full.session, handles[2])
    assert full.answers() == []
    full.release(full.session, twice)
    assert full.replica_for(waiter).offset == twice.replica.offset
    assert full.state("k2") is None


def test_what_was_used_last_goes_last(full):
    full.release(full.session, full.get(full.session, "k0"))
    drop(full)
    assert full.state("k0") == "COMPLETE"
    assert full.state("k1") is None


def test_a_removal_after_the_drop_finds_nothing(full):
    drop(full)
    assert full.remove("k0") is False
    assert full.take_jobs() == []


def test_a_removed_object_is_no_victim(full):
    used = full.used
    assert full.remove("k0") is True
    drop(full)
    assert full.used == used
    assert full.stat("reclaim.dropped") == 0


def test_a_put_of_the_dropped_key_begins_a_new_generation(full):
    old = full.readable("k0")
    drop(full)
    replica = full.put(full.session, "k0")
    assert isinstance(replica, Replica)
    assert replica.generation > old.generation


def test_an_upsert_does_not_drop_the_generation_it_replaces(make_core):
    """Should it fail, the old one is still there."""
    core = make_core(2)
    session = core.open()
    old = core.store(session, "k", 2 * PAGE)
    upsert = core.put(session, "k", 2 * PAGE, mode=PutMode.UPSERT)
    core.tick()
    assert core.master.next_deadline_ns(core.now) == upsert.deadline_ns
    assert core.readable("k") is old
    core.tick(later=100)
    assert core.refusal_for(upsert).code is Code.NO_SPACE
    assert core.readable("k") is old


def test_an_upsert_drops_others_for_its_room(full):
    replica = full.put(full.session, "k0", mode=PutMode.UPSERT)
    assert isinstance(replica, Replica)
    assert full.readable("k0") is not None
    assert full.end(full.session, replica) is full.readable("k0")


def test_a_published_object_is_dropped_for_the_next_only_after_its_readers_have_it(make_core):
    core = make_core(1)
    session = core.open()
    replica = core.put(session, "k")
    reader, put = core.get(session, "k"), core.put(session, "new")
    core.end(session, replica)
    handle = core.handle_for(reader)
    assert core.state("k") == "COMPLETE"
    core.release(session, handle)
    core.replica_for(put)
    assert core.state("k") is None


def test_a_leased_object_is_not_dropped(full):
    tokens = [full.lease(f"k{number}") for number in range(4)]
    assert all(tokens)
    assert isinstance(full.put(full.session, "new"), Waiter)
    assert full.state("k0") == "COMPLETE"


def test_a_lease_after_the_drop_is_refused(full):
    drop(full)
    with full.refuses(Code.NOT_FOUND):
        full.lease("k0")
    assert full.stat("leases") == 0


def test_the_last_lease_released_gives_the_waiting_put_its_room(full):
    replica = full.readable("k0")
    tokens = [full.lease("k0"), full.lease("k0")]
    for number in range(1, 4):
        full.lease(f"k{number}")
    waiter = full.put(full.session, "new")
    full.release_lease(replica, tokens[0])
    full.release_lease(replica, tokens[0])
    full.release_lease(replica, tokens[1] + 100)
    full.release_lease(replica, tokens[1], key="k1")
    assert full.answers() == []
    full.release_lease(replica, tokens[1])
    assert full.replica_for(waiter).offset == replica.offset


def test_the_last_lease_to_expire_gives_the_waiting_put_its_room(full):
    for number in range(4):
        full.lease(f"k{number}")
    waiter = full.put(full.session, "new")
    full.tick(later=TTL - 1)
    assert full.answers() == []
    assert full.master.next_deadline_ns(full.now) == full.now + 1
    full.tick(later=1)
    full.replica_for(waiter)


def test_the_youngest_lease_released_first_does_not_prolong_the_others(full):
    """The timer was set to the youngest when the oldest ran out; the one between them ended unseen."""
    replica = full.readable("k0")
    handles = [full.get(full.session, f"k{number}") for number in range(1, 4)]
    full.lease("k0")
    full.tick(later=10)
    full.lease("k0")
    full.tick(later=10)
    youngest = full.lease("k0")
    full.tick(later=TTL - 20)
    full.release_lease(replica, youngest)
    waiter = full.put(full.session, "new")
    full.tick(later=10)
    full.replica_for(waiter)
    full.release(full.session, *handles)


def test_a_release_leaves_what_is_leased_and_a_lease_what_is_read(full):
    handles = hold_all(full)
    tokens = [full.lease(f"k{number}") for number in range(4)]
    waiter = full.put(full.session, "new", timeout=1000)
    full.release(full.session, *handles[:3])
    full.release_lease(handles[3].replica, tokens[3])
    assert full.answers() == []
    full.release_lease(handles[0].replica, tokens[0])
    full.replica_for(waiter)
    assert full.state("k0") is None


def test_a_pin_before_the_pass_keeps_the_object(full):
    full.pin("k0")
    drop(full)
    assert full.state("k0") == "COMPLETE"
    assert full.state("k1") is None


def test_a_pin_after_the_drop_is_refused(full):
    drop(full)
    with full.refuses(Code.NOT_FOUND):
        full.pin("k0")
    with full.refuses(Code.NOT_FOUND):
        full.unpin("k0")


def test_an_unpinned_object_goes_for_the_waiting_put(pinned):
    waiter = pinned.put(pinned.session, "new")
    assert isinstance(waiter, Waiter)
    pinned.unpin("k2")
    assert pinned.master.next_deadline_ns(pinned.now) == 0
    pinned.tick()
    pinned.replica_for(waiter)
    assert pinned.state("k2") is None


def test_a_pin_at_its_deadline_gives_the_waiting_put_its_room(pinned):
    pinned.pin("k2", 10)
    waiter = pinned.put(pinned.session, "new")
    assert pinned.master.next_deadline_ns(pinned.now) == pinned.now + 10
    pinned.tick(later=9)
    assert pinned.answers() == []
    pinned.tick(later=1)
    pinned.replica_for(waiter)
    assert pinned.state("k2") is None


def test_what_remove_all_cut_off_is_no_victim(full):
    held = full.get(full.session, "k0")
    assert full.clear() == 4
    waiter = full.put(full.session, "new")
    assert isinstance(waiter, Waiter)
    full.release(full.session, held)
    assert full.answers() == []
    full.reap()
    full.replica_for(waiter)
    assert full.stat("reclaim.dropped") == 0


def test_the_death_of_the_reader_gives_the_waiting_put_its_room(full):
    reader = full.open()
    for number in range(4):
        full.get(reader, f"k{number}")
    waiter = full.put(full.session, "new")
    full.end_session(reader)
    full.replica_for(waiter)


def test_nothing_is_dropped_for_a_put_whose_client_is_dead(full):
    handles = hold_all(full)
    other = full.open()
    full.put(other, "new")
    full.end_session(other)
    full.release(full.session, *handles)
    full.tick()
    assert full.stat("objects") == 4


def test_a_load_takes_the_room_of_a_plain_object(make_core):
    core = make_core(1, tier_nbytes_max=PAGE)
    session = core.open()
    core.offload(session, "k")
    core.store(session, "plain")
    waiter = core.get(session, "k")
    job = core.job()
    assert isinstance(job, Load)
    assert core.state("plain") is None
    core.loaded(job.replica)
    core.handle_for(waiter)


@pytest.mark.parametrize("tier_nbytes_max", [0, 8 * PAGE])
def test_plain_objects_are_dropped_instead_if_the_tier_does_not_take_them(make_core, tier_nbytes_max):
    core = make_core(tier_nbytes_max=tier_nbytes_max, offload_unpinned=True)
    session = core.open()
    core.fill(session, 4)
    waiter = core.put(session, "new")
    if tier_nbytes_max:
        core.tick()
        core.written(core.job().replica, None)
        core.tick()
        waiter = core.replica_for(waiter)
    assert isinstance(waiter, Replica)
    assert core.take_jobs() == []
