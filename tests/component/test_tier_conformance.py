"""What every tier does: the same suite for the directory, in its variants, and for the fake in memory."""

import asyncio
import gc
import os

import pytest

from mooncake_client.codes import Code
from mooncake_node.tiers import (
    TierCorruptError,
    TierFullError,
    TierIOError,
    TierLockedError,
    TierMissingError,
    TierRecord,
    TierRemovedError,
)
from tests.support.tiers import (
    KITS,
    Memory,
    assert_holds,
    content_of,
    keyed,
    meta,
    opened,
    read,
    reopened,
    skip_unless_direct,
    write,
)

KIB, MIB = 1 << 10, 1 << 20
SIZES = [0, 1, 63, 4095, 4096, 4097, 8192, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, 1 * MIB, 5 * MIB + 17]


# The last two differ from the others in a line or two.
IN_LONG_FORM = ("durable", "unpacked")


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.long] * (name in IN_LONG_FORM)) for name in KITS])
def kit(request, tmp_path):
    return KITS[request.param](tmp_path)


@pytest.fixture
async def tier(kit):
    async with opened(kit) as tier:
        yield tier


async def test_objects_of_every_size_come_back_exact_and_nothing_beside_them_is_touched(kit, tier):
    metas = [meta(f"k/{nbytes}", nbytes) for nbytes in SIZES]
    records = await write(tier, *metas)
    assert [record.identity for record in records] == [m.identity for m in metas]
    await assert_holds(tier, *records)
    assert tier.objects == len(SIZES)
    assert tier.counters.written == tier.counters.restored == len(SIZES)
    assert tier.counters.failures == 0
    assert keyed(await reopened(kit)) == keyed(records)
    await assert_holds(kit.tier, *records)
    await kit.tier.close()


async def test_seventy_mebibytes_come_back_exact(kit, tier):
    [record] = await write(tier, meta("big", 70 * MIB + 5))
    await assert_holds(tier, record)


@pytest.mark.parametrize("shift", [1, 64, 512])
async def test_memory_off_the_page_boundary_does_as_well(tier, shift):
    facts = meta("k", 200_001)
    source, target = (Memory(facts.nbytes, content_of(facts), shift=shift), Memory(facts.nbytes, shift=shift))
    [record] = await tier.write([(facts, source.view())])
    await tier.read(record, target.view())
    assert target.view() == source.view()
    source.close()
    target.close()


@pytest.mark.parametrize(
    "key",
    ["a" * 1024, "\N{GREEK SMALL LETTER ALPHA}" * 512, "../../etc/passwd", "/", ".", "..", "a/../b", "x.tmp", "\0",
     "line\nbreak", " ", "\N{SNOWMAN}\U0001f600", "\ufeffbom", "con", "%s{}", "e\u0301", "\u00e9"],
)  # fmt: skip
async def test_a_key_is_any_text(kit, tier, key):
    records = await write(tier, meta(key, 200), meta(key, 100_000, generation=2))
    await assert_holds(tier, *records)
    [record] = await reopened(kit)
    assert record == records[1]
    await assert_holds(kit.tier, record)
    await kit.tier.remove(record)
    assert await reopened(kit) == []
    await kit.tier.close()


async def test_every_fact_about_an_object_survives_a_restart(kit, tier):
    facts = {
        "kind": 7, "softpin": True, "softpin_until_unix_ms": 1_900_000_000_123, "hardpin": True, "scope": "node",
        "origin": "f" * 32,
    }  # fmt: skip
    generation = (1 << 64) - 1
    records = await write(
        tier, meta("s", 10, generation=generation, **facts), meta("l", 100_000, generation=generation, **facts)
    )
    for record in records:
        assert all(getattr(record, name) == value for name, value in facts.items())
    assert keyed(await reopened(kit)) == keyed(records)
    await kit.tier.close()


async def test_what_lies_there_is_not_written_again(tier):
    metas = [meta("s", 10), meta("l", 100_000)]
    records = await write(tier, *metas)
    used = tier.bytes_used
    assert await write(tier, *metas) == records
    assert (tier.objects, tier.bytes_used, tier.counters.written) == (2, used, 2)


async def test_nothing_to_write_is_no_error(tier):
    assert await tier.write([]) == []
    await tier.remove()
    assert await tier.remove_all() == 0


async def test_generations_lie_side_by_side_until_a_restart_keeps_the_newest(kit, tier):
    records = await write(
        tier, *(meta(key, n, generation=g) for key, n in (("s", 9), ("l", 70_000)) for g in (3, 5, 4))
    )
    await assert_holds(tier, *records)
    found = await reopened(kit)
    assert {(record.key, record.generation) for record in found} == {("s", 5), ("l", 5)}
    assert kit.tier.counters.scan_outdated == 4
    await assert_holds(kit.tier, *found)
    assert keyed(await reopened(kit)) == keyed(found)
    assert kit.tier.counters.scan_outdated == 0
    await kit.tier.close()


async def test_a_removed_generation_is_gone_and_stays_gone(kit, tier):
    old = await write(tier, meta("s", 9), meta("l", 70_000))
    new = await write(tier, meta("s", 8, generation=2), meta("l", 70_001, generation=2), meta("z", 0))
    await tier.remove(*new[:2])
    await tier.remove(*new[:2])
    await tier.remove(meta("unknown", 1))
    for record in new[:2]:
        with pytest.raises(TierMissingError):
            await read(tier, record)
    await assert_holds(tier, *old, new[2])
    assert (tier.objects, tier.counters.removed, tier.counters.failures) == (3, 2, 0)
    assert keyed(await reopened(kit)) == keyed([*old, new[2]])
    await kit.tier.close()


async def test_all_bytes_are_free_again_when_all_is_removed(tier):
    records = await write(tier, *(meta(f"k{n}", n) for n in SIZES))
    assert tier.bytes_used >= sum(SIZES)
    await tier.remove(*records)
    assert (tier.objects, tier.bytes_used) == (0, 0)


@pytest.mark.parametrize("nbytes", [9, 200_000])
async def test_removed_during_its_write_an_object_never_appears(kit, tier, nbytes):
    """And the removal does not wait for the write."""
    async with kit.held_writes() as somebody_is_held:
        writing = asyncio.create_task(write(tier, meta("k", nbytes)))
        await somebody_is_held()
        await tier.remove(meta("k", nbytes))
        assert not writing.done()
    [answer] = await writing
    assert isinstance(answer, TierRemovedError)
    assert (tier.objects, tier.bytes_used, tier.counters.failures) == (0, 0, 0)
    assert await reopened(kit) == []
    await kit.tier.close()


async def test_one_of_several_removed_during_their_write_takes_no_other_with_it(kit, tier):
    metas = [meta(f"{n}", nbytes) for n, nbytes in enumerate((9, 10, 200_000, 11))]
    async with kit.held_writes() as somebody_is_held:
        writing = asyncio.create_task(write(tier, *metas))
        await somebody_is_held()
        await tier.remove(metas[1])
    answers = await writing
    assert isinstance(answers.pop(1), TierRemovedError)
    await assert_holds(tier, *answers)
    assert keyed(await reopened(kit)) == keyed(answers)
    await kit.tier.close()


async def test_remove_all_is_a_barrier(kit, tier):
    """What was there or under way is gone; what is written afterwards stays."""
    await write(tier, meta("s", 9), meta("l", 70_000))
    async with kit.held_writes() as somebody_is_held:
        writing = asyncio.create_task(write(tier, meta("s2", 9), meta("l2", 70_000)))
        await somebody_is_held()
        assert await tier.remove_all() == 2
        later = asyncio.create_task(write(tier, meta("s", 9, generation=2), meta("l", 70_000, generation=2)))
    assert all(isinstance(answer, TierRemovedError) for answer in await writing)
    records = await later
    await assert_holds(tier, *records)
    assert tier.objects == 2
    assert keyed(await reopened(kit)) == keyed(records)
    await kit.tier.close()


async def test_a_cancelled_write_leaves_nothing_and_lets_go_of_the_memory_first(kit, tier):
    metas = [meta("s", 9), meta("l", 70_000)]
    memories = [Memory(m.nbytes, content_of(m)) for m in metas]
    async with kit.held_writes() as somebody_is_held:
        objects = [(m, memory.view()) for m, memory in zip(metas, memories, strict=True)]
        writing = asyncio.create_task(tier.write(objects))
        del objects
        await somebody_is_held()
        writing.cancel()
    await asyncio.wait([writing])
    assert writing.cancelled()
    del writing  # it has the error, and so the frames
    gc.collect()
    for memory in memories:
        memory.close()
    assert (tier.objects, tier.bytes_used, tier.counters.failures) == (0, 0, 0)
    assert await reopened(kit) == []
    assert all(isinstance(answer, TierRecord) for answer in await write(kit.tier, *metas))
    await kit.tier.close()


@pytest.mark.parametrize("nbytes", [9, 70_000])
async def test_a_cancelled_read_ends_when_nobody_touches_the_memory_any_more(kit, tier, nbytes):
    [record] = await write(tier, meta("k", nbytes))
    memory = Memory(nbytes)
    async with kit.held_reads() as somebody_is_held:
        reading = asyncio.create_task(tier.read(record, memory.view()))
        await somebody_is_held()
        reading.cancel()
    await asyncio.wait([reading])
    assert reading.cancelled()
    del reading
    gc.collect()
    memory.close()
    await assert_holds(tier, record)


async def test_a_removal_is_carried_out_though_its_caller_is_cancelled(kit, tier):
    records = await write(tier, meta("s", 9), meta("l", 70_000))
    removing = asyncio.create_task(tier.remove(*records))
    await asyncio.sleep(0)
    removing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await removing
    assert (tier.objects, tier.bytes_used) == (0, 0)
    assert await reopened(kit) == []
    await kit.tier.close()


async def test_a_full_tier_refuses_before_it_writes_and_takes_more_when_there_is_room(kit, tier):
    first = meta("first", 100_000)
    tier.bytes_limit = 2 * tier.cost(first) - 1
    [record] = await write(tier, first)
    used = tier.bytes_used
    [full] = await write(tier, meta("second", 100_000))
    assert isinstance(full, TierFullError)
    assert full.code == Code.NO_SPACE
    assert (tier.objects, tier.bytes_used, tier.counters.write_full) == (1, used, 1)
    await assert_holds(tier, record)
    await tier.remove(record)
    [record] = await write(tier, meta("second", 100_000))
    await assert_holds(tier, record)


async def test_the_limit_is_never_passed_by_small_ones_either(tier):
    tier.bytes_limit = 200_000
    records = []
    for at in range(0, 400, 20):
        answers = await write(tier, *(meta(f"{n}", 1000) for n in range(at, at + 20)))
        assert tier.bytes_used <= 200_000
        records += [answer for answer in answers if isinstance(answer, TierRecord)]
    assert tier.objects == len(records)
    assert tier.counters.write_full == 400 - len(records) > 0
    await assert_holds(tier, *records)


@pytest.mark.parametrize("nbytes", [9, 70_000])
async def test_a_flipped_bit_is_an_error_and_the_object_is_gone(kit, tier, nbytes):
    [record, other] = await write(tier, meta("k", nbytes), meta("other", nbytes))
    kit.flip(record, 8 * (nbytes // 2) + 3)
    with pytest.raises(TierCorruptError) as caught:
        await read(tier, record)
    assert caught.value.code == Code.CHECKSUM_MISMATCH
    with pytest.raises(TierMissingError):
        await read(tier, record)
    assert (tier.objects, tier.counters.read_corrupt, tier.counters.failures) == (1, 1, 1)
    await assert_holds(tier, other)
    assert await reopened(kit) == [other]
    await kit.tier.close()


@pytest.mark.parametrize("nbytes", [9, 70_000])
async def test_a_lost_object_is_missing_and_counted_once(kit, tier, nbytes):
    [record] = await write(tier, meta("k", nbytes))
    kit.lose(record)
    for _ in range(2):
        with pytest.raises(TierMissingError) as caught:
            await read(tier, record)
        assert caught.value.code == Code.NOT_FOUND
    assert (tier.objects, tier.bytes_used, tier.counters.read_missing) == (0, 0, 1)
    assert await reopened(kit) == []
    await kit.tier.close()


@pytest.mark.parametrize("nbytes", [9, 70_000])
@pytest.mark.parametrize("left", [0.0, 0.5, 0.9])
async def test_a_truncated_object_is_an_error_never_fewer_bytes(kit, tier, nbytes, left):
    [record] = await write(tier, meta("k", nbytes))
    kit.truncate(record, int(nbytes * left))
    with pytest.raises(TierCorruptError):
        await read(tier, record)
    assert (tier.objects, tier.counters.read_corrupt) == (0, 1)
    assert await reopened(kit) == []
    await kit.tier.close()


@pytest.mark.parametrize("nbytes", [9, 70_000])
async def test_failed_writes_are_answered_counted_and_leave_nothing(kit, tier, nbytes):
    with kit.failing("write", -800):
        answers = [*await write(tier, meta("a", nbytes)), *await write(tier, meta("b", nbytes))]
    assert [type(answer) for answer in answers] == [TierIOError] * 2
    assert [answer.code for answer in answers] == [-800] * 2
    assert (tier.objects, tier.bytes_used, tier.counters.write_failed) == (0, 0, 2)
    [record] = await write(tier, meta("a", nbytes))
    await assert_holds(tier, record)
    assert await reopened(kit) == [record]
    await kit.tier.close()


@pytest.mark.parametrize("nbytes", [9, 70_000])
async def test_a_failed_read_is_an_error_and_the_object_stays(kit, tier, nbytes):
    [record] = await write(tier, meta("k", nbytes))
    with kit.failing("read", -800), pytest.raises(TierIOError):
        await read(tier, record)
    assert (tier.objects, tier.counters.read_failed) == (1, 1)
    await assert_holds(tier, record)


@pytest.mark.parametrize("nbytes", [9, 70_000])
async def test_restores_go_on_while_all_offloads_are_held_and_the_other_way_round(kit, nbytes):
    async with opened(kit, offloads=1, restores=1) as tier:
        [record] = await write(tier, meta("k", nbytes))
        async with kit.held_writes() as somebody_is_held:
            writing = [asyncio.create_task(write(tier, meta(f"w{n}", nbytes))) for n in range(8)]
            await somebody_is_held()
            kept = kit.disk.write_gate if hasattr(kit, "disk") else None
            await assert_holds(tier, record)
            assert kept is None or not kept.is_set()
            assert not any(task.done() for task in writing)
        await asyncio.gather(*writing)
        async with kit.held_reads() as somebody_is_held:
            reading = [asyncio.create_task(read(tier, record)) for _ in range(8)]
            await somebody_is_held()
            assert isinstance((await write(tier, meta("while reads wait", nbytes)))[0], TierRecord)
            assert not any(task.done() for task in reading)
        assert await asyncio.gather(*reading) == [content_of(record)] * 8


async def test_two_thousand_small_objects_at_once_and_one_by_one(kit, tier):
    metas = [meta(f"sample/{n}", n % 700) for n in range(2000)]
    records = await write(tier, *metas[:1500])
    records += [answer for some in await asyncio.gather(*(write(tier, m) for m in metas[1500:])) for answer in some]
    await assert_holds(tier, *records)
    gone = records[::3]
    await tier.remove(*gone)
    kept = keyed(records).keys() - keyed(gone).keys()
    assert keyed(await reopened(kit)).keys() == kept
    await assert_holds(kit.tier, *(record for record in records if record.identity in kept))
    await kit.tier.close()


async def test_the_node_and_its_floor_survive_a_restart(kit, tier):
    node_id, high = tier.node_id, (1 << 64) - 5
    await tier.raise_floor(17)
    await tier.raise_floor(high)
    await tier.raise_floor(18)
    assert tier.floor == high
    await reopened(kit)
    assert (kit.tier.node_id, kit.tier.floor) == (node_id, high)
    await kit.tier.close()


async def test_a_place_belongs_to_one_tier_at_a_time(kit, tier):
    with pytest.raises(TierLockedError, match="another"):
        await kit.make().open()
    await kit.tier.close()
    kit.tier = tier


async def test_close_waits_for_the_calls_under_way_and_may_be_called_twice(kit, tier):
    async with kit.held_writes() as somebody_is_held:
        writing = asyncio.create_task(write(tier, meta("s", 9), meta("l", 70_000)))
        await somebody_is_held()
        closing = asyncio.create_task(tier.close())
        await asyncio.sleep(0)
        assert not closing.done()
    await closing
    records = await writing
    await tier.close()
    assert keyed(await kit.make().open()) == keyed(records)
    await kit.tier.close()


async def test_the_direct_kit_is_direct(kit, tier, request):
    if "direct" in request.node.callspec.id:
        skip_unless_direct(tier)
        assert os.O_DIRECT
