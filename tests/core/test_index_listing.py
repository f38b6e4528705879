"""What the shared index says: every object in memory that has a place there, and how many have none; and who reads."""

import pytest

from mooncake_client.codes import Code
from mooncake_node.core.readers import NoReaders
from mooncake_node.core.replica import Replica
from mooncake_node.core.report import holders, room_report
from mooncake_node.core.waiting import PutMode
from tests.core.fake_readers import FakeReaders

PAGE = 4096
LONG = "k" * 73  # no key for the index


@pytest.fixture
def core(make):
    return make()


# -- what is not in the index ------------------------------------------------------------------------------------------


def test_every_readable_object_without_a_record_is_counted(make):
    core = make(records=2, tier_nbytes_max=100 * PAGE)
    a = core.open()
    core.store(a, LONG, 0)
    assert core.readers.unlisted == 1
    core.store(a, LONG, 0, mode=PutMode.UPSERT)
    assert core.readers.unlisted == 1
    core.remove(LONG)
    assert core.readers.unlisted == 0
    core.fill(a, 3)
    assert core.readers.unlisted == 1
    core.remove("k0")
    core.store(a, "k2", mode=PutMode.UPSERT)
    assert core.readers.unlisted == 0
    core.store(a, LONG)
    core.clear()
    assert core.readers.unlisted == 0
    core.reap()
    assert core.readers.unlisted == 0


def test_what_goes_to_disk_and_comes_back_is_counted_meanwhile(make):
    core = make(tier_nbytes_max=100 * PAGE)
    a = core.open()
    core.adopt("found")
    assert core.readers.unlisted == 1
    core.offload(a, "k")
    assert core.readers.unlisted == 2
    assert core.readers.find("k") is None
    core.bring_back(a, "k")
    assert core.readers.unlisted == 1
    assert core.readers.find("k") is core.readable("k")
    core.fill(a, 4)
    assert (core.state("k"), core.readers.unlisted) == ("ON_DISK", 2)
    core.store(a, "k", mode=PutMode.UPSERT)
    core.remove("found")
    assert core.readers.unlisted == 0


def test_what_is_dropped_is_in_neither(core):
    a = core.open()
    core.fill(a, 5)
    assert (core.readers.unlisted, sorted(r.key for r in core.readers.listed.values())) == (0, ["k1", "k2", "k3", "k4"])


@pytest.mark.parametrize("carried", [True, False])
def test_while_one_replaces_the_other_nobody_is_told_that_there_is_none(make_core, carried):
    """A reader who finds neither must not take that for an answer."""
    counted = []

    class Watched(FakeReaders):
        def hide(self, replicas):
            counted.append(self.unlisted)
            return super().hide(replicas)

        def list(self, replica):
            counted.append(self.unlisted)
            super().list(replica)

    core = make_core(readers=Watched())
    a = core.open()
    store = core.place if carried else core.store
    store(a, "k")
    store(a, "k", mode=PutMode.UPSERT)
    assert counted == [0, 1, 1]
    assert core.readers.unlisted == 0


def test_a_long_key_is_dropped_like_any_other(core):
    a = core.open()
    core.readers.open_row(a)
    core.store(a, LONG, 4 * PAGE)
    core.store(a, "k")
    assert (core.readable(LONG), core.readers.unlisted, core.readers.asked) == (None, 0, [])


def test_a_node_without_an_index_lists_nothing_and_nobody_has_pinned_anything():
    none, replica = NoReaders(), Replica(1, "k", 1, 0, PAGE, 0, 0)
    none.list(replica)
    assert replica.record < 0
    assert not any((none.hide([replica]), none.close_row(1), none.has_pins(1), none.take_accessed(replica)))
    assert (none.pinned([replica]), none.holders(replica), none.pin_counts([replica])) == (set(), {}, [0])
    assert (none.pins, none.hits) == (0, 0)


# -- use ---------------------------------------------------------------------------------------------------------------


def test_a_read_by_the_index_is_a_second_chance(core):
    a = core.open()
    core.fill(a, 4)
    core.let_go(core.look(a, "k0"))
    core.store(a, "new")
    assert core.gone(4) == [1]
    core.store(a, "newer")
    assert core.gone(4) == [1, 2]


def test_a_read_by_the_index_makes_a_window_dearer(make):
    core = make(pages=64)
    a = core.open()
    core.fill(a, 4, 16 * PAGE)
    for number in (0, 1):
        core.let_go(core.look(a, f"k{number}"))
    core.store(a, "big", 32 * PAGE)
    assert core.gone(4) == [2, 3]


# -- what is shown -----------------------------------------------------------------------------------------------------


def test_pins_are_shown_like_references(core):
    a, b = core.open("a"), core.open("b")
    core.store(a, "k")
    core.get(a, "k")
    pins = [core.look(b, "k"), core.look(b, "k")]
    assert (core.stat("handles"), core.stat("load.local_hits")) == (3, 3)
    core.remove("k")
    found = {report.session.name: (report.handles, report.oldest_since_ns) for report in holders(core.master, "k")}
    assert found == {"a": (1, core.now), "b": (2, None)}
    core.let_go(*pins)
    assert core.stat("handles") == 1


def test_a_client_holds_what_it_has_pinned(core):
    a, b = core.open(), core.open()
    core.store(a, "k")
    pin = core.look(a, "k")
    assert (core.master.holds(a), core.master.holds(b)) == (True, False)
    core.let_go(pin)
    assert not core.master.holds(a)


def test_a_put_without_room_is_told_what_is_pinned_and_by_whom(core):
    a, b = core.open("a"), core.open("b")
    core.fill(a, 4)
    pins = [core.look(session, f"k{number}") for number in range(4) for session in (a, b)]
    put = core.put(a, "new", timeout=5)
    core.tick(later=5)
    refusal = core.refusal_for(put)
    assert refusal.code is Code.NO_SPACE
    assert (
        "; 4 replicas pinned by way of the index: 'k0' (4096 bytes) by a (pid 4711) and b (pid 4711), 'k1' (4096 "
        in refusal.message
    )
    core.let_go(*pins)


def test_what_was_only_just_removed_is_said_to_be_pinned_by_nobody(core):
    a = core.open()
    core.readers.open_row(a)
    core.store(a, "k")
    core.remove("k")
    line = room_report(core.master.objects, core.master.sessions.values(), core.now)
    assert line.endswith("; 1 replicas pinned by way of the index")
