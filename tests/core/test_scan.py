"""Scan: the keys of a prefix in bounded steps."""

import pytest

from mooncake_node.core.scan import Scan
from mooncake_node.core.waiting import PutMode


def walk(scan, step=2):
    found = []
    while not scan.done:
        found += scan.next(step)
    return found


@pytest.fixture
def core(make_core):
    return make_core(pages=64)


@pytest.mark.parametrize("step", [1, 2, 3, 100])
def test_a_scan_shows_each_readable_object_of_the_prefix_once(core, step):
    a = core.open()
    stored = [core.store(a, key) for key in ("a1", "b", "a2", "a", "ba")]
    core.put(a, "a-written")
    assert [r.key for r in walk(Scan(core.master.table, "a"), step)] == ["a1", "a2", "a"]
    assert walk(Scan(core.master.table, ""), step) == stored
    assert walk(Scan(core.master.table, "c"), step) == []


def test_a_scan_of_nothing_is_done(core):
    scan = Scan(core.master.table, "")
    assert scan.done
    assert scan.next(5) == []


def test_a_step_looks_at_so_many_keys_and_may_find_none(core):
    a = core.open()
    for i in range(5):
        core.store(a, f"k{i}")
    core.store(a, "x")
    scan = Scan(core.master.table, "x")
    assert (scan.next(5), scan.done) == ([], False)
    assert ([r.key for r in scan.next(5)], scan.done) == (["x"], True)


def test_a_step_of_nothing_is_our_bug(core):
    with pytest.raises(AssertionError):
        Scan(core.master.table, "").next(0)


def test_what_happens_between_two_steps(core):
    """A key readable throughout is shown once, as it is by then; a removed one not; a new one not."""
    a = core.open()
    for key in ("first", "removed", "replaced", "again", "last"):
        core.store(a, key)
    scan = Scan(core.master.table, "")
    [first] = scan.next(1)
    core.remove("first")
    core.remove("removed")
    replaced = core.store(a, "replaced", mode=PutMode.UPSERT)
    core.remove("again")
    again = core.store(a, "again")
    core.store(a, "new")
    assert first.key == "first"
    found = walk(scan)
    assert found[:2] == [replaced, again]
    assert [r.key for r in found[2:]] == ["last"]


def test_a_clear_between_two_steps_leaves_nothing_to_show(core):
    a = core.open()
    for key in "abc":
        core.store(a, key)
    scan = Scan(core.master.table, "")
    scan.next(1)
    core.clear()
    assert walk(scan) == []
