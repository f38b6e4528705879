"""What readers by the shared index have pinned: found out when it matters, never freed, told of when it goes."""

import pytest

from mooncake_node.core.replica import ReplicaState, Shelf
from mooncake_node.core.waiting import PutMode, Want
from tests.core.fake_readers import FakeReaders

PAGE = 4096


@pytest.fixture
def core(make):
    return make()


# -- victims that are pinned ---------------------------------------------------------------------------------------


def test_a_victim_that_is_pinned_goes_back_parked_and_the_next_one_is_taken(core):
    a, b = core.open(), core.open()
    core.fill(a, 4)
    pin = core.look(b, "k0")
    core.readers.accessed.clear()
    core.store(a, "new")
    assert core.gone(4) == [1]
    assert (pin.replica.shelf, pin.replica.pinned) == (Shelf.PARKED, True)
    assert core.readers.find("k0") is pin.replica
    assert core.stat("reclaim.parked_ref_only") == 1
    assert core.let_go(pin)


def test_what_is_parked_by_a_pin_is_looked_at_by_no_later_pass(core):
    a, b = core.open(), core.open()
    core.fill(a, 4)
    pins = [core.look(b, f"k{number}") for number in range(4)]
    core.readers.accessed.clear()
    assert core.put(a, "new").want is Want.ROOM
    examined = core.stat("reclaim.examined")
    assert (examined, core.stat("reclaim.listed")) == (4, 0)
    assert core.put(a, "newer").want is Want.ROOM
    core.tick(later=1)
    assert core.stat("reclaim.examined") == examined
    core.let_go(*pins)


def test_a_put_that_waits_for_pinned_bytes_gets_them_by_the_nudge(core):
    a, b = core.open(), core.open()
    core.store(a, "k", 4 * PAGE)
    pin = core.look(b, "k")
    put = core.put(a, "new", 4 * PAGE)
    assert put.want is Want.ROOM
    assert core.let_go(pin)
    assert core.replica_for(put).offset == pin.place[0]


def test_a_put_that_waits_for_pinned_bytes_gets_them_by_the_end_of_their_reader(core):
    a, b = core.open(), core.open()
    core.store(a, "k", 4 * PAGE)
    core.look(b, "k")
    put = core.put(a, "new", 4 * PAGE)
    core.end_session(b)
    assert core.replica_for(put).nbytes == 4 * PAGE


def test_of_several_pins_only_the_last_one_gives_the_memory_back(core):
    a, b, c = core.open(), core.open(), core.open()
    core.store(a, "k", 4 * PAGE)
    pins = [core.look(b, "k"), core.look(b, "k"), core.look(c, "k")]
    put = core.put(a, "new")
    for pin in pins[:2]:
        assert core.let_go(pin)
        assert core.answers() == []
    assert core.let_go(pins[2])
    assert core.replica_for(put)


def test_an_unpin_that_nobody_waits_for_is_not_told(core):
    a = core.open()
    core.store(a, "k")
    assert not core.let_go(core.look(a, "k"))


def test_after_the_nudge_nobody_is_asked_to_tell_any_more(core):
    a, b = core.open(), core.open()
    core.store(a, "k", 4 * PAGE)
    pin = core.look(b, "k")
    core.cancel(core.put(a, "new"))
    assert core.let_go(pin)
    assert not pin.replica.pinned
    assert pin.replica.shelf is Shelf.INACTIVE
    assert not core.let_go(core.look(b, "k"))


def test_a_nudge_too_many_changes_nothing(core):
    a = core.open()
    pin = core.look(a, core.store(a, "k").key)
    core.nudge()
    assert core.readers.asked == []
    assert core.readable("k") is pin.replica


def test_a_reader_who_comes_between_the_hiding_and_the_looking_keeps_what_it_will_not_get(make_core):
    """It sees that the record is hidden and lets go; but its pin was seen first."""

    class Late(FakeReaders):
        coming = None

        def hide(self, replicas):
            super().hide(replicas)
            if self.coming is not None:
                self.pins_seen = [self.pin_blindly(self.coming, replicas[0])]
                self.coming = None
            return True

    core = make_core(readers=Late())
    a, core.readers.coming = core.open(), core.open()
    core.store(a, "k", 4 * PAGE)
    put = core.put(a, "new")
    [pin] = core.readers.pins_seen
    assert core.readable("k") is pin.replica
    assert core.let_go(pin)
    assert core.replica_for(put)


def test_a_pin_and_a_reference_each_keep_it_until_both_are_gone(core):
    a, b = core.open(), core.open()
    core.store(a, "k", 4 * PAGE)
    pin = core.look(b, "k")
    put = core.put(a, "new")
    handle = core.get(b, "k")
    core.let_go(pin)
    assert core.answers() == []
    core.release(b, handle)
    assert core.replica_for(put)


# -- removed while pinned --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["remove", "upsert", "carried upsert", "clear"])
def test_what_is_taken_away_is_hidden_at_once_and_kept_until_the_last_pin_goes(core, how):
    a, b = core.open(), core.open()
    old = core.store(a, "k")
    pins = [core.look(b, "k"), core.look(a, "k")]
    if how == "remove":
        core.remove("k")
    elif how == "upsert":
        core.store(a, "k", mode=PutMode.UPSERT)
    elif how == "carried upsert":
        core.place(a, "k", mode=PutMode.UPSERT)
    else:
        core.clear()
        assert not core.reap()
    assert core.readers.find("k") is core.readable("k") is not old
    assert old.state is ReplicaState.STASHED
    core.tick()
    assert core.stat("stash.bytes") == PAGE
    for pin in pins:
        assert old.state is ReplicaState.STASHED
        assert core.let_go(pin)
    assert old.state is ReplicaState.GONE
    assert old.record == -1


def test_what_is_removed_while_nobody_has_a_row_is_free_at_once(core):
    a = core.open()
    core.store(a, "k")
    core.remove("k")
    assert (core.used, core.readers.asked) == (0, [])


def test_what_is_removed_and_not_pinned_is_free_when_the_timer_has_looked(core):
    a = core.open()
    core.readers.open_row(a)
    core.store(a, "k")
    core.remove("k")
    assert core.stat("stash.objects") == 1
    assert core.master.next_deadline_ns(core.now) == 0
    core.tick()
    assert (core.used, core.master.next_deadline_ns(core.now)) == (0, None)


def test_a_put_that_finds_no_room_looks_at_what_was_just_removed_before_it_drops_anything(core):
    a = core.open()
    core.readers.open_row(a)
    core.fill(a, 4)
    core.remove("k3")
    core.store(a, "new")
    assert core.gone(4) == [3]
    assert core.stat("reclaim.passes") == 0


def test_an_unpin_before_the_first_look_is_told_too(core):
    a = core.open()
    core.store(a, "k")
    pin = core.look(a, "k")
    core.remove("k")
    assert core.let_go(pin)
    assert core.used == 0


def test_a_removed_one_that_is_leased_too_waits_for_both(core):
    a = core.open()
    replica = core.store(a, "k")
    token, pin = core.lease("k"), core.look(a, "k")
    core.remove("k")
    core.let_go(pin)
    assert replica.state is ReplicaState.STASHED
    core.release_lease(replica, token)
    assert replica.state is ReplicaState.GONE


def test_an_upsert_does_not_touch_the_one_it_could_not_replace(core):
    a = core.open()
    pin = core.look(a, core.store(a, "k", 4 * PAGE).key)
    assert core.put(a, "k", PAGE, mode=PutMode.UPSERT, timeout=None) is Want.ROOM
    assert core.readable("k") is core.readers.find("k") is pin.replica
    core.let_go(pin)


def test_two_lives_of_a_key_can_be_pinned_side_by_side(core):
    a = core.open()
    core.store(a, "k")
    old = core.look(a, "k")
    core.store(a, "k", mode=PutMode.UPSERT)
    new = core.look(a, "k")
    core.remove("k")
    assert core.stat("stash.objects") == 2
    assert core.let_go(new)
    assert (old.replica.state, new.replica.state) == (ReplicaState.STASHED, ReplicaState.GONE)
    core.let_go(old)


def test_a_clear_hides_all_before_the_first_is_reaped(core):
    a = core.open()
    core.fill(a, 3)
    pin = core.look(a, "k1")
    assert core.clear() == 3
    assert core.readers.shown == set()
    assert core.let_go(pin)
    assert pin.replica.state is ReplicaState.COMPLETE
    assert not core.reap()
    core.tick()
    assert core.used == 0


def test_one_that_was_parked_by_its_pin_and_then_cleared_is_not_listed_by_its_unpin(core):
    a = core.open()
    core.store(a, "k", 4 * PAGE)
    pin = core.look(a, "k")
    core.cancel(core.put(a, "new"))
    core.clear()
    assert core.let_go(pin)
    assert core.stat("reclaim.listed") == 0
    core.reap()
    core.tick()
    assert core.used == 0


def test_the_end_of_a_session_lets_go_of_all_it_had_pinned(core):
    a, b = core.open(), core.open()
    core.fill(a, 3)
    for number in range(3):
        core.look(b, f"k{number}")
        core.remove(f"k{number}")
    core.look(a, core.store(a, "mine").key)
    core.end_session(b)
    assert (core.used, core.stat("handles")) == (PAGE, 1)


# -- offload -----------------------------------------------------------------------------------------------------------


def offloading(core, session, key="k", **how):
    replica = core.store(session, key, softpin=True, **how)
    assert core.rescue(replica)
    core.job()
    return replica


def test_one_that_was_pinned_while_it_was_written_stays_in_memory_clean(make):
    core = make(tier_nbytes_max=100 * PAGE)
    a = core.open()
    replica = offloading(core, a)
    pin = core.look(a, "k")
    core.written(replica)
    assert (core.state("k"), replica.shelf) == ("COMPLETE", Shelf.PARKED)
    assert core.readers.find("k") is replica
    assert (core.stat("reclaim.offloaded"), core.readers.unlisted) == (0, 0)
    assert core.let_go(pin)
    core.fill(a, 4)
    assert core.state("k") == "ON_DISK"


@pytest.mark.parametrize("first", ["written", "unpinned"])
def test_one_that_was_removed_while_it_was_written_and_pinned_waits_for_both(make, first):
    core = make(tier_nbytes_max=100 * PAGE)
    a = core.open()
    replica = offloading(core, a)
    pin = core.look(a, "k")
    core.remove("k")
    ends = [lambda: core.let_go(pin), lambda: core.written(replica)]
    if first == "written":
        ends.reverse()
    ends[0]()
    assert replica.state is ReplicaState.STASHED
    ends[1]()
    assert replica.state is ReplicaState.GONE


def test_one_that_is_known_to_be_pinned_can_be_saved(make):
    core = make(tier_nbytes_max=100 * PAGE)
    a = core.open()
    core.store(a, "k", 4 * PAGE, softpin=True, softpin_ttl=5)
    pin = core.look(a, "k")
    core.tick(later=5)
    put = core.put(a, "new")
    core.pin("k")
    assert pin.replica.pinned
    assert core.rescue(pin.replica)
    core.job()
    assert core.let_go(pin)
    assert core.answers() == []
    core.written(pin.replica)
    assert core.state("k") == "ON_DISK"
    assert core.replica_for(put)


def test_a_clean_victim_that_is_pinned_keeps_its_memory(make):
    core = make(tier_nbytes_max=100 * PAGE)
    a = core.open()
    core.offload(a, "k")
    core.bring_back(a, "k")
    pin = core.look(a, "k")
    core.readers.accessed.clear()
    core.fill(a, 4)
    assert core.state("k") == "COMPLETE"
    assert core.let_go(pin)
    core.fill(a, 4, prefix="n")
    assert core.state("k") == "ON_DISK"


# -- how it is asked ---------------------------------------------------------------------------------------------------


def test_a_batch_of_victims_is_asked_for_once(core):
    a, b = core.open(), core.open()
    core.fill(a, 4)
    pin = core.look(b, "k2")
    core.readers.accessed.clear()
    assert core.put(a, "new", 4 * PAGE).want is Want.ROOM
    assert core.readers.asked == [4]
    assert core.gone(4) == [0, 1, 3]
    core.let_go(pin)


def test_many_removals_are_looked_at_once(core):
    a = core.open()
    core.readers.open_row(a)
    core.fill(a, 4)
    for number in range(4):
        core.remove(f"k{number}")
    core.tick()
    assert (core.readers.asked, core.used) == ([4], 0)


def test_the_tick_does_not_look_when_nothing_happened(core):
    a = core.open()
    core.store(a, "k")
    pin = core.look(a, "k")
    core.remove("k")
    core.tick()
    core.tick(later=1)
    assert core.readers.asked == [1]
    core.let_go(pin)
