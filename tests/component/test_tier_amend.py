"""Contracts that are changed after their object was written: what every tier does."""

import asyncio

import pytest

from mooncake_node.tiers import TierIOError, TierRecord, TierRemovedError
from tests.support.tiers import (
    KITS,
    DirectoryKit,
    Memory,
    assert_holds,
    content_of,
    keyed,
    meta,
    opened,
    reopened,
    write,
)

NEW = {"softpin": True, "softpin_until_unix_ms": 1_900_000_000_123, "hardpin": True, "scope": "node"}
either_size = pytest.mark.parametrize("nbytes", [9, 70_000])
IN_LONG_FORM = ("durable", "unpacked")


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.long] * (name in IN_LONG_FORM)) for name in KITS])
def kit(request, tmp_path):
    return KITS[request.param](tmp_path)


@pytest.fixture
async def tier(kit):
    async with opened(kit) as tier:
        yield tier


@either_size
@pytest.mark.parametrize("key", ["k", "\N{GREEK SMALL LETTER ALPHA}" * 512, "../a"])
async def test_a_restart_finds_the_new_contract_and_the_object_otherwise_as_it_was(kit, tier, nbytes, key):
    facts = {"generation": (1 << 64) - 1, "kind": 7, "origin": "f" * 32}
    [record, other] = await write(tier, meta(key, nbytes, **facts), meta("other", nbytes, hardpin=True))
    await tier.amend(meta(key, 5, generation=(1 << 64) - 1, kind=1, origin="elsewhere", **NEW))
    amended = TierRecord(key=key, nbytes=nbytes, xxh3=record.xxh3, **facts, **NEW)
    await assert_holds(tier, record, amended)
    assert (tier.counters.amended, tier.counters.failures, tier.objects) == (1, 0, 2)
    for _ in range(2):
        assert keyed(await reopened(kit)) == keyed([amended, other])
        assert kit.tier.counters.failures == 0
    await assert_holds(kit.tier, amended, other)
    await kit.tier.close()


@either_size
async def test_pins_come_and_go_and_the_last_call_stays(kit, tier, nbytes):
    [record] = await write(tier, meta("k", nbytes, **NEW))
    await tier.amend(meta("k", nbytes))
    await asyncio.gather(*(tier.amend(meta("k", nbytes, scope=f"{n}")) for n in range(20)))
    assert [found.scope for found in await reopened(kit)] == ["19"]
    await kit.tier.amend(record)
    assert await reopened(kit) == [record]
    await kit.tier.close()


@either_size
async def test_what_lies_there_is_answered_as_it_is_now(tier, nbytes):
    [record] = await write(tier, meta("k", nbytes))
    await tier.amend(meta("k", nbytes, **NEW))
    [again] = await write(tier, meta("k", nbytes, scope="asked for in vain"))
    assert again == record.amended(meta("k", nbytes, **NEW)) != record


@either_size
async def test_of_what_is_not_there_nothing_is_changed(kit, tier, nbytes):
    [record, removed] = await write(tier, meta("k", nbytes, generation=2), meta("removed", nbytes))
    await tier.remove(removed)
    used = tier.bytes_used
    for nobody in (meta("unknown", 1, **NEW), meta("k", nbytes, generation=3, **NEW), meta("removed", nbytes, **NEW)):
        await tier.amend(nobody)
    assert (tier.bytes_used, tier.counters.amended, tier.counters.failures) == (used, 0, 0)
    [again] = await write(tier, meta("removed", nbytes))
    assert keyed(await reopened(kit)) == keyed([record, again])
    await kit.tier.close()


@either_size
async def test_generations_have_contracts_of_their_own(kit, tier, nbytes):
    await write(tier, meta("k", nbytes, generation=1), meta("k", nbytes, generation=2), meta("l", nbytes, generation=1))
    await tier.amend(meta("k", nbytes, generation=1, scope="of the old one"))
    await tier.amend(meta("l", nbytes, generation=1, scope="of the only one"))
    found = {record.key: (record.generation, record.scope) for record in await reopened(kit)}
    assert found == {"k": (2, "cluster"), "l": (1, "of the only one")}
    await kit.tier.close()


@either_size
async def test_a_contract_goes_with_its_object(kit, tier, nbytes):
    """It is none of the same generation written again, nor of the next one."""
    metas = [meta(key, nbytes) for key in "abc"]
    await write(tier, *metas)
    for each in metas:
        await tier.amend(meta(each.key, nbytes, **NEW))
    await tier.remove(metas[0])
    assert await tier.remove_all() == 2
    assert (tier.objects, tier.bytes_used) == (0, 0)
    records = await write(tier, metas[0], metas[1], meta("c", nbytes, generation=2))
    assert keyed(await reopened(kit)) == keyed(records)
    assert all(not record.hardpin for record in records)
    await kit.tier.close()


@either_size
async def test_during_the_write_it_waits_and_the_last_call_stays(kit, tier, nbytes):
    async with kit.held_writes() as somebody_is_held:
        writing = asyncio.create_task(write(tier, meta("k", nbytes, **NEW)))
        await somebody_is_held()
        amending = [asyncio.create_task(tier.amend(meta("k", nbytes, scope=f"{n}"))) for n in range(3)]
        for _ in range(100):  # every chance to end that the loop can give
            await asyncio.sleep(0)
        assert not any(task.done() for task in amending)
    [answer] = await writing
    assert answer.scope == "node"
    await tier.amend(meta("k", nbytes, scope="3"))
    await asyncio.gather(*amending)
    [found] = await reopened(kit)
    assert found == answer.amended(meta("k", nbytes, scope="3"))
    await kit.tier.close()


@either_size
@pytest.mark.parametrize("end", ["removed", "failed", "cancelled"])
async def test_during_a_write_that_comes_to_nothing_nothing_is_done(kit, tier, nbytes, end):
    facts = meta("k", nbytes)
    memory = Memory(nbytes, content_of(facts))
    async with kit.held_writes() as somebody_is_held:
        writing = asyncio.create_task(tier.write([(facts, memory.view())]))
        await somebody_is_held()
        amending = asyncio.create_task(tier.amend(meta("k", nbytes, **NEW)))
        await asyncio.sleep(0)
        if end == "removed":
            await tier.remove(facts)
        elif end == "cancelled":
            writing.cancel()
        elif isinstance(kit, DirectoryKit):
            kit.gate.inject("TierBeforeRename", "return_error", -800)
        else:
            kit.disk.write_error = TierIOError("injected")
    await amending
    await asyncio.wait([writing])
    if end != "cancelled":
        assert isinstance(writing.result()[0], TierRemovedError if end == "removed" else TierIOError)
    if end == "failed" and not isinstance(kit, DirectoryKit):
        kit.disk.write_error = None
    assert (tier.objects, tier.bytes_used, tier.counters.amended) == (0, 0, 0)
    records = await write(tier, facts)
    assert await reopened(kit) == records
    await kit.tier.close()


@either_size
async def test_a_failed_amendment_is_an_error_and_the_old_contract_stays(kit, tier, nbytes):
    [record] = await write(tier, meta("k", nbytes))
    for scope in ("cluster", "second"):
        await assert_holds(tier, record)
        with kit.failing("amend", -800), pytest.raises(TierIOError) as caught:
            await tier.amend(meta("k", nbytes, **NEW))
        assert caught.value.code == -800
        assert (tier.counters.amend_failed, tier.counters.failures) == (1, 1)
        assert await reopened(kit) == [record.amended(meta("k", nbytes, scope=scope))]
        tier = kit.tier
        await tier.amend(meta("k", nbytes, scope="second"))
    await kit.tier.close()


@either_size
async def test_an_amendment_is_carried_out_though_its_caller_is_cancelled(kit, tier, nbytes):
    await write(tier, meta("k", nbytes))
    amending = asyncio.create_task(tier.amend(meta("k", nbytes, **NEW)))
    await asyncio.sleep(0)
    amending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await amending
    [record] = await reopened(kit)
    assert record.hardpin
    await kit.tier.close()


@either_size
async def test_a_full_tier_refuses_no_amendment(kit, tier, nbytes):
    await write(tier, meta("k", nbytes))
    tier.bytes_limit = tier.bytes_used
    await tier.amend(meta("k", nbytes, **NEW))
    [record] = await reopened(kit)
    assert record.hardpin
    await kit.tier.close()


async def test_close_waits_for_an_amendment_that_waits_for_a_write(kit, tier):
    async with kit.held_writes() as somebody_is_held:
        writing = asyncio.create_task(write(tier, meta("k", 9)))
        await somebody_is_held()
        amending = asyncio.create_task(tier.amend(meta("k", 9, **NEW)))
        await asyncio.sleep(0)
        closing = asyncio.create_task(tier.close())
        await asyncio.sleep(0)
        assert not closing.done()
    await asyncio.gather(writing, amending, closing)
    [record] = await kit.make().open()
    assert record.hardpin
    await kit.tier.close()
