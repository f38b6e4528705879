"""What every data plane does: the same suite for TCP, on both event loops, and for the fake in memory."""

import asyncio
import random

import pytest

from mooncake_node.planes import Mode, Outcome
from tests.support.planes import HANG_LIMIT_S, KIB, MIB, on, until

EVERY = on("memory", "tcp")
SIZES = [0, 1, 63, 4095, 4096, 4097, 256 * KIB - 1, 256 * KIB, 256 * KIB + 1, 1 * MIB + 5]


def hold(kit) -> None:
    """Transfers submitted from now on get nowhere, but notice when they are given up."""
    kit.lender.gate.clear()
    if kit.plane.kind == "memory":
        kit.plane.mode = Mode.LATE


def let_go(kit) -> None:
    kit.lender.gate.set()
    if kit.plane.kind == "memory":
        kit.plane.mode = Mode.GOOD
        kit.plane.let_go()


async def fetched(kit, source, offset: int) -> Outcome:
    ticket = kit.plane.submit(source, offset)
    outcome = await ticket.done(HANG_LIMIT_S)
    await ticket.quiesced()
    return outcome


@pytest.mark.parametrize("nbytes", SIZES)
@EVERY
async def test_an_object_comes_exact_and_nothing_beside_it_is_written(kit, nbytes):
    source = kit.add("k", nbytes)
    assert await fetched(kit, source, 4096) is Outcome.OK
    kit.assert_only((4096, source))
    assert kit.lender.asked == [("k", 3, 5, 7)]
    await until(lambda: kit.lender.lent == 0, "the loan ends")


@EVERY
async def test_parts_of_any_length_make_the_same_object(kit):
    kit.lender.part_nbytes = 99_991
    source = kit.add("k", 1 * MIB)
    assert await fetched(kit, source, 0) is Outcome.OK
    kit.assert_only((0, source))


@EVERY
async def test_many_at_once_all_come_and_each_to_its_place(kit):
    sizes = [random.Random(7).randrange(100_000) for _ in range(60)]
    placed, offset = [], 0
    for number, nbytes in enumerate(sizes):
        placed.append((offset, kit.add(f"k/{number}", nbytes)))
        offset += nbytes + 64
    tickets = [kit.plane.submit(source, offset) for offset, source in placed]
    assert [await ticket.done(HANG_LIMIT_S) for ticket in tickets] == [Outcome.OK] * len(tickets)
    assert all(ticket.reason == "" for ticket in tickets)
    kit.assert_only(*placed)


@EVERY
async def test_what_is_not_lent_fails_with_the_lenders_reason_and_the_next_comes(kit):
    source = kit.add("k", 5000)
    ticket = kit.plane.submit(kit.describe("unknown", 5000), 0)
    assert await ticket.done(HANG_LIMIT_S) is Outcome.FAILED
    assert "no 'unknown' here" in ticket.reason
    await ticket.quiesced()
    kit.assert_only()
    assert await fetched(kit, source, 0) is Outcome.OK


@pytest.mark.parametrize("nbytes", [0, 4999, 5001])
@EVERY
async def test_an_object_of_another_length_than_described_is_not_taken(kit, nbytes):
    kit.add("k", 5000)
    ticket = kit.plane.submit(kit.describe("k", nbytes), 0)
    assert await ticket.done(HANG_LIMIT_S) is Outcome.FAILED
    assert "5000 bytes" in ticket.reason
    await ticket.quiesced()
    kit.assert_only()


@EVERY
async def test_what_is_not_done_in_time_is_given_up_and_never_written_again(kit):
    hold(kit)
    source = kit.add("k", 2 * MIB)
    ticket = kit.plane.submit(source, 0)
    assert await ticket.done(0.01) is Outcome.FAILED
    assert "0.01 s" in ticket.reason
    await ticket.quiesced()
    let_go(kit)
    other = kit.add("other", 2 * MIB)
    assert await fetched(kit, other, 4096) is Outcome.OK
    kit.assert_only((4096, other))


@EVERY
async def test_an_outcome_can_be_asked_for_again(kit):
    source = kit.add("k", 5000)
    ticket = kit.plane.submit(source, 0)
    assert await ticket.done(HANG_LIMIT_S) is Outcome.OK
    assert await ticket.done(0) is Outcome.OK
    failed = kit.plane.submit(kit.describe("unknown", 1), 0)
    assert await failed.done(HANG_LIMIT_S) is Outcome.FAILED
    assert await failed.done(0) is Outcome.FAILED


@EVERY
async def test_no_time_at_all_is_an_outcome_too(kit):
    hold(kit)
    ticket = kit.plane.submit(kit.add("k", 5000), 0)
    assert await ticket.done(0) is Outcome.FAILED
    await ticket.quiesced()
    kit.assert_only()


@EVERY
async def test_whoever_is_cancelled_has_given_up_and_the_place_can_be_used_again(kit):
    hold(kit)
    ticket = kit.plane.submit(kit.add("k", 2 * MIB), 0)
    waiting = asyncio.create_task(ticket.done(HANG_LIMIT_S))
    await asyncio.sleep(0)  # a coroutine that has not begun cannot give up
    await until(lambda: kit.lender.lent or kit.plane.kind == "memory", "it is under way")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await ticket.quiesced()
    let_go(kit)
    other = kit.add("other", 5000)
    assert await fetched(kit, other, 0) is Outcome.OK
    kit.assert_only((0, other))
    assert await ticket.done(0) is Outcome.FAILED
    await until(lambda: kit.lender.lent == 0, "the loan ends")


@EVERY
async def test_a_closed_plane_has_given_up_everything(kit):
    hold(kit)
    tickets = [kit.plane.submit(kit.add(f"k/{number}", 100_000), number * 100_000) for number in range(20)]
    waiting = asyncio.create_task(tickets[0].done(HANG_LIMIT_S))
    await until(lambda: kit.lender.lent or kit.plane.kind == "memory", "one is under way")
    await kit.plane.close()
    before = bytes(kit.pool)
    for ticket in tickets:
        await ticket.quiesced()
        assert await ticket.done(0) is Outcome.FAILED
        assert "closed" in ticket.reason
    assert await waiting is Outcome.FAILED
    let_go(kit)
    await until(lambda: kit.lender.lent == 0, "the loans end")
    assert kit.pool == before
    await kit.plane.close()
    late = kit.plane.submit(kit.add("late", 10), 0)
    assert await late.done(0) is Outcome.FAILED
    assert "closed" in late.reason


@EVERY
async def test_a_plane_nobody_has_used_closes(kit):
    await kit.plane.close()
    await kit.plane.close()


# -- what only the fake can be told to do ----------------------------------------------------------------------------


@on("memory")
async def test_a_hanging_transfer_expires_and_writes_later(kit):
    """As one-sided engines do: a read reported as timed out still lands in its place."""
    kit.plane.mode = Mode.HANG
    source = kit.add("k", 5000)
    ticket = kit.plane.submit(source, 64)
    assert await ticket.done(0.01) is Outcome.EXPIRED
    quiesced = asyncio.create_task(ticket.quiesced())
    await asyncio.sleep(0)
    assert not quiesced.done()
    kit.assert_only()
    kit.plane.let_go()
    await quiesced
    kit.assert_only((64, source))
    assert await ticket.done(0) is Outcome.EXPIRED
    assert kit.plane.outcomes == [Outcome.EXPIRED]


@on("memory")
async def test_closing_waits_for_a_hanging_transfer(kit):
    kit.plane.mode = Mode.HANG
    source = kit.add("k", 5000)
    ticket = kit.plane.submit(source, 0)
    assert await ticket.done(0.01) is Outcome.EXPIRED
    await kit.plane.close()
    kit.assert_only((0, source))
    await ticket.quiesced()


@on("memory")
async def test_a_failing_transfer_leaves_a_part(kit):
    kit.plane.mode = Mode.FAIL
    source = kit.add("k", 5000)
    assert await fetched(kit, source, 0) is Outcome.FAILED
    assert kit.is_untouched(2500, len(kit.pool))
    assert not kit.is_untouched(0, 2500)


@on("memory")
async def test_a_late_transfer_comes_when_it_is_let_go(kit):
    kit.plane.mode = Mode.LATE
    source = kit.add("k", 5000)
    ticket = kit.plane.submit(source, 0)
    waiting = asyncio.create_task(ticket.done(HANG_LIMIT_S))
    await asyncio.sleep(0)
    kit.assert_only()
    kit.plane.let_go()
    assert await waiting is Outcome.OK
    kit.assert_only((0, source))


@on("memory")
async def test_a_corrupting_transfer_is_ok_and_wrong(kit):
    kit.plane.mode = Mode.CORRUPT
    source = kit.add("k", 5000)
    assert await fetched(kit, source, 0) is Outcome.OK
    assert kit.pool[:5000] != kit.lender.objects["k"]
    assert kit.pool[1:5000] == kit.lender.objects["k"][1:]


@on("memory")
async def test_an_unknown_node_fails(kit):
    ticket = kit.plane.submit(kit.describe("k", 1, node="nobody"), 0)
    assert await ticket.done(HANG_LIMIT_S) is Outcome.FAILED
    assert "nobody" in ticket.reason
