"""Every limit of the local master, at its edge."""

import pytest

from mooncake_client.codes import Code
from mooncake_node.core.replica import Replica
from mooncake_node.core.waiting import PutMode, Want

PAGE = 4096


@pytest.mark.parametrize("key", ["x", "x" * 1024, "\u00e9" * 512, "\u6708" * 341 + "x", "\U0001f600" * 256, "\0 \n"])
def test_a_key_of_1_to_1024_bytes_is_taken_whatever_its_characters(core, key):
    assert core.store(core.open(), key).key == key


@pytest.mark.parametrize(
    ("key", "nbytes"), [("", 0), ("x" * 1025, 1025), ("\u00e9" * 512 + "x", 1025), ("\u6708" * 342, 1026)]
)
def test_a_key_of_no_or_too_many_bytes_is_refused(core, key, nbytes):
    with core.refuses(Code.INVALID_ARGUMENT, f"1 to 1024 bytes, not {nbytes}"):
        core.put(core.open(), key)


def test_an_object_of_negative_size_is_refused(core):
    with core.refuses(Code.INVALID_ARGUMENT, "-1"):
        core.put(core.open(), "k", -1)


def test_an_object_as_large_as_the_pool_fits_and_a_larger_one_is_refused_at_once(core):
    a = core.open()
    with core.refuses(Code.NO_SPACE, "16385 bytes can never fit a pool of 16384"):
        core.put(a, "k", 4 * PAGE + 1)
    assert core.store(a, "k", 4 * PAGE).nbytes == 4 * PAGE


def test_a_readonly_client_reads_and_may_not_put(core):
    a, reader = core.open("a"), core.open("reader", readonly=True)
    for mode in PutMode:
        with core.refuses(Code.INVALID_ARGUMENT, "readonly"):
            core.put(reader, "k", mode=mode)
    replica = core.store(a, "k")
    assert core.get(reader, "k").replica is replica


def test_a_client_has_at_most_handles_max_handles(make_core):
    core = make_core(handles_max=2)
    a, b = core.open("a"), core.open("b")
    core.store(a, "k")
    held = [core.get(a, "k") for _ in range(2)]
    with core.refuses(Code.INVALID_ARGUMENT, "holds 2 views"):
        core.get(a, "k")
    with core.refuses(Code.INVALID_ARGUMENT):
        core.put(a, "k", mode=PutMode.PUT_OR_ACQUIRE)
    core.get(b, "k")
    core.release(a, held[0])
    core.get(a, "k")


def test_a_reader_that_waited_gets_no_handle_past_the_limit(make_core):
    core = make_core(handles_max=1)
    a, b, c = core.open("a"), core.open("b"), core.open("c")
    replica = core.put(a, "k")
    waiters = [core.get(b, "k"), core.get(b, "k"), core.get(c, "k")]
    core.end(a, replica)
    answers = core.answers()
    assert [waiter for waiter, _ in answers] == waiters
    assert [getattr(outcome, "code", None) for _, outcome in answers] == [None, Code.INVALID_ARGUMENT, None]
    assert replica.refs == 2


def test_a_client_has_at_most_reservations_max_unpublished_puts(make_core):
    core = make_core(reservations_max=2)
    a, b = core.open("a"), core.open("b")
    first = core.put(a, "k0")
    core.put(a, "k1")
    with core.refuses(Code.NO_SPACE, "2 unpublished puts"):
        core.put(a, "k2")
    core.put(b, "k2")
    core.end(a, first)
    assert isinstance(core.put(a, "k3"), Replica)


def test_doomed_puts_count_as_unpublished(make_core):
    core = make_core(reservations_max=1)
    a = core.open()
    doomed = core.put(a, "k")
    core.clear()
    with core.refuses(Code.NO_SPACE):
        core.put(a, "k")
    core.revoke(a, doomed)
    core.put(a, "k")


def test_at_most_waiters_max_requests_wait_over_all_clients(make_core):
    core = make_core(waiters_max=3)
    a, b = core.open("a"), core.open("b")
    core.put(a, "k", 4 * PAGE)
    first = core.get(a, "k")
    core.put(b, "l")
    core.wait(b, "m")
    for call, key in ((core.get, "k"), (core.put, "k"), (core.put, "l"), (core.wait, "m")):
        with core.refuses(Code.NOT_READY, "3 requests wait already"):
            call(a, key)
    core.cancel(first)
    core.get(a, "k")


def test_limits_do_not_stand_in_the_way_of_what_needs_no_place(make_core):
    """Without a deadline nothing is entered, so a full waiting room does not matter."""
    core = make_core(waiters_max=0)
    a = core.open()
    core.put(a, "k", 4 * PAGE)
    assert core.put(a, "k", timeout=None) is Want.TURN
    assert core.put(a, "l", timeout=None) is Want.ROOM
