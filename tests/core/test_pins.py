"""Contracts: soft pins, hard pins, their limits and their counts."""

import pytest

from mooncake_client.codes import Code
from mooncake_node.core.pins import contract_for
from mooncake_node.core.replica import PLAIN, Contract
from mooncake_node.core.waiting import PutMode, Want

PAGE = 4096
TTL_MAX = 1_000_000_000


@pytest.fixture
def core(make_core):
    return make_core(softpin_ttl_max_ns=TTL_MAX, hard_pin_nbytes_max=2 * PAGE)


# -- which contract a put asks for --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("softpin", "ttl", "hardpin", "scope", "expected"),
    [
        (False, None, False, "cluster", PLAIN),
        (True, 0, False, "cluster", PLAIN),
        (False, 5, False, "cluster", PLAIN),
        (True, None, False, "cluster", Contract(softpin=True)),
        (True, 5, False, "cluster", Contract(softpin=True, softpin_ttl_ns=5)),
        (False, 5, True, "cluster", Contract(hardpin=True)),
        (True, 0, True, "node", Contract(hardpin=True, scope="node")),
        (False, None, False, "node", Contract(scope="node")),
    ],
)
def test_contract_for(softpin, ttl, hardpin, scope, expected):
    contract = contract_for(softpin=softpin, softpin_ttl_ns=ttl, hardpin=hardpin, scope=scope)
    assert contract == expected
    if expected is PLAIN:
        assert contract is PLAIN


# -- soft pins ----------------------------------------------------------------------------------------------------


def test_a_soft_pin_runs_and_counts_from_the_publication(core):
    a = core.open()
    replica = core.put(a, "k", softpin=True, softpin_ttl=50)
    assert (core.stat("pinned.soft_bytes"), replica.softpin_until_ns) == (0, None)
    core.now += 7
    core.end(a, replica)
    assert (core.stat("pinned.soft_bytes"), replica.softpin_until_ns) == (PAGE, core.now + 50)


def test_a_soft_pin_without_a_ttl_has_no_deadline(core):
    replica = core.store(core.open(), "k", softpin=True)
    assert (replica.contract.softpin, replica.softpin_until_ns) == (True, None)


def test_a_soft_pin_without_a_ttl_gets_the_nodes_default(make_core):
    core = make_core(softpin_ttl_default_ns=30)
    a = core.open()
    replica = core.store(a, "k", softpin=True)
    assert replica.softpin_until_ns == core.now + 30
    core.unpin("k")
    core.now += 5
    core.pin("k")
    assert replica.softpin_until_ns == core.now + 30
    assert core.store(a, "l", softpin=True, softpin_ttl=7).softpin_until_ns == core.now + 7


def test_a_soft_pin_of_zero_is_no_pin(core):
    replica = core.store(core.open(), "k", softpin=True, softpin_ttl=0)
    assert replica.contract is PLAIN
    assert core.stat("pinned.soft_bytes") == 0


@pytest.mark.parametrize("ttl", [TTL_MAX + 1, -1])
def test_a_soft_pin_of_an_impossible_length_is_refused(core, ttl):
    a = core.open()
    with core.refuses(Code.INVALID_ARGUMENT, "0 to 1 s on this node"):
        core.put(a, "k", softpin=True, softpin_ttl=ttl)
    replica = core.store(a, "l", softpin=True, softpin_ttl=TTL_MAX)
    with core.refuses(Code.INVALID_ARGUMENT):
        core.pin("l", ttl)
    assert replica.softpin_until_ns == core.now + TTL_MAX


@pytest.mark.parametrize("end", ["remove", "upsert", "unpin", "pin 0", "clear"])
def test_the_bytes_of_a_soft_pin_are_counted_until_it_ends(core, end):
    a = core.open()
    core.store(a, "k", softpin=True)
    core.store(a, "other", 100, softpin=True)
    assert core.stat("pinned.soft_bytes") == PAGE + 100
    if end == "remove":
        core.remove("k")
    elif end == "upsert":
        core.store(a, "k", mode=PutMode.UPSERT)
    elif end == "unpin":
        core.unpin("k")
    elif end == "pin 0":
        core.pin("k", 0)
    else:
        core.clear()
        core.reap()
        core.store(a, "other", 100, softpin=True)
    assert core.stat("pinned.soft_bytes") == 100


def test_a_stashed_object_is_not_counted_as_pinned(core):
    a = core.open()
    core.store(a, "k", softpin=True, hardpin=True)
    handle = core.get(a, "k")
    core.remove("k")
    assert (core.stat("pinned.soft_bytes"), core.stat("pinned.hard_bytes")) == (0, 0)
    core.release(a, handle)
    assert (core.stat("pinned.soft_bytes"), core.stat("pinned.hard_bytes")) == (0, 0)


def test_a_soft_pin_that_was_never_published_is_never_counted(core):
    a = core.open()
    core.revoke(a, core.put(a, "k", softpin=True))
    assert core.stat("pinned.soft_bytes") == 0


def test_pin_begins_anew_each_time_and_counts_once(core):
    a = core.open()
    replica = core.store(a, "k", hardpin=True, scope="node")
    for ttl in (50, 60):
        core.now += 5
        core.pin("k", ttl)
        assert replica.softpin_until_ns == core.now + ttl
    core.pin("k")
    assert (replica.softpin_until_ns, core.stat("pinned.soft_bytes")) == (None, PAGE)
    assert replica.contract == Contract(softpin=True, hardpin=True, scope="node")


def test_unpin_keeps_the_rest_of_the_contract_and_may_come_twice(core):
    replica = core.store(core.open(), "k", softpin=True, softpin_ttl=9, hardpin=True, scope="node")
    core.unpin("k")
    core.unpin("k")
    assert replica.contract == Contract(hardpin=True, scope="node")
    assert (replica.softpin_until_ns, core.stat("pinned.soft_bytes")) == (None, 0)


def test_neither_get_nor_wait_extends_a_soft_pin(core):
    a = core.open()
    replica = core.store(a, "k", softpin=True, softpin_ttl=50)
    until = replica.softpin_until_ns
    core.now += 10
    core.get(a, "k")
    core.wait(a, "k")
    assert replica.softpin_until_ns == until


def test_pin_and_unpin_need_a_readable_object(core):
    for call in (core.pin, core.unpin):
        with core.refuses(Code.NOT_FOUND):
            call("k")
    core.put(core.open(), "k")
    for call in (core.pin, core.unpin):
        with core.refuses(Code.NOT_READY):
            call("k")


def test_a_pin_changes_the_readable_generation_and_not_the_upsert_beside_it(core):
    a = core.open()
    old = core.store(a, "k")
    new = core.put(a, "k", mode=PutMode.UPSERT)
    core.pin("k")
    assert (old.contract.softpin, new.contract.softpin) == (True, False)
    core.end(a, new)
    assert core.stat("pinned.soft_bytes") == 0


# -- the end of a soft pin's time -----------------------------------------------------------------------------------


def test_a_soft_pin_ends_at_its_deadline_and_not_before(core):
    replica = core.store(core.open(), "k", softpin=True, softpin_ttl=50)
    assert core.master.next_deadline_ns(core.now) == core.now + 50
    core.tick(later=49)
    assert replica.contract.softpin
    core.tick(later=1)
    assert (replica.contract, replica.softpin_until_ns) == (PLAIN, None)
    assert (core.stat("pinned.soft_bytes"), core.readable("k")) == (0, replica)
    assert core.master.next_deadline_ns(core.now) is None


@pytest.mark.parametrize("how", ["longer", "for ever", "unpin and pin"])
def test_a_deadline_that_was_replaced_ends_nothing(core, how):
    replica = core.store(core.open(), "k", softpin=True, softpin_ttl=50)
    if how == "longer":
        core.pin("k", 80)
    elif how == "for ever":
        core.pin("k")
    else:
        core.unpin("k")
        core.pin("k", 70)
    core.tick(later=60)
    assert replica.contract.softpin
    core.tick(later=20)
    assert replica.contract.softpin is (how == "for ever")


@pytest.mark.parametrize("how", ["remove", "upsert", "revoke", "clear", "clear and reap"])
def test_the_deadline_of_what_is_gone_changes_nothing(core, how):
    a = core.open()
    if how == "revoke":
        core.revoke(a, core.put(a, "k", softpin=True, softpin_ttl=50))
    else:
        core.store(a, "k", softpin=True, softpin_ttl=50)
    if how == "remove":
        core.get(a, "k")
        core.remove("k")
    elif how == "upsert":
        core.store(a, "k", softpin=True, mode=PutMode.UPSERT)
    elif how != "revoke":
        core.clear()
    if how == "clear and reap":
        core.reap()
    core.tick(later=50)
    assert core.stat("pinned.soft_bytes") == (PAGE if how == "upsert" else 0)
    assert core.stat("reclaim.listed") == (how == "upsert")


def test_pins_that_were_ended_early_do_not_pile_up_until_their_deadline(core):
    core.store(core.open(), "k")
    pins = core.master.pins
    for _ in range(200):
        core.pin("k", TTL_MAX)
        core.now += 1
        assert len(pins._heap) <= 2 + 64
    core.tick(later=TTL_MAX - 2)
    assert core.readable("k").contract.softpin
    core.tick(later=1)
    assert not core.readable("k").contract.softpin


# -- hard pins ----------------------------------------------------------------------------------------------------


def test_hard_pins_are_off_unless_the_operator_allows_bytes_for_them(make_core):
    core = make_core()
    with core.refuses(Code.INVALID_ARGUMENT, "hard_pin_max_bytes"):
        core.put(core.open(), "k", 0, hardpin=True)


def test_a_hard_pin_counts_from_its_reservation_so_that_puts_under_way_cannot_pass_the_cap(core):
    a = core.open()
    first = core.put(a, "k", hardpin=True)
    core.put(a, "l", hardpin=True)
    with core.refuses(Code.NO_SPACE, "hard pins hold 8192 of 8192 bytes; 1 more"):
        core.put(a, "m", 1, hardpin=True)
    core.put(a, "m", 0, hardpin=True)
    core.revoke(a, first)
    assert core.stat("pinned.hard_bytes") == PAGE
    core.put(a, "n", hardpin=True)


def test_a_hard_pin_over_the_cap_is_refused_although_others_wait_for_room(core):
    a = core.open()
    core.store(a, "big", 4 * PAGE, softpin=True)
    with core.refuses(Code.NO_SPACE, "hard pins hold 0 of 8192 bytes; 12288 more"):
        core.put(a, "k", 3 * PAGE, hardpin=True)
    assert core.put(a, "k", 2 * PAGE, hardpin=True).want is Want.ROOM


def test_a_hard_pin_counts_until_its_object_is_removed(core):
    a = core.open()
    core.store(a, "k", 2 * PAGE, hardpin=True)
    assert core.stat("pinned.hard_bytes") == 2 * PAGE
    core.remove("k")
    assert core.stat("pinned.hard_bytes") == 0


def test_a_doomed_hard_pin_counts_until_its_writer_lets_go(core):
    a = core.open()
    replica = core.put(a, "k", hardpin=True)
    core.clear()
    assert core.stat("pinned.hard_bytes") == PAGE
    with core.refuses(Code.NOT_FOUND):
        core.end(a, replica)
    assert core.stat("pinned.hard_bytes") == 0
