"""The directory behind the port: what lies where, and what its faults do."""

import asyncio
import random
import re
import shutil

import pytest

from mooncake_node.tiers import (
    DirectoryTier,
    TierIOError,
    TierMissingError,
    TierRecord,
    TierRemovedError,
)
from tests.support import eventually
from tests.support.tiers import (
    DirectoryKit,
    Memory,
    assert_holds,
    content_of,
    meta,
    opened,
    read,
    skip_unless_direct,
    write,
)

KIB = 1 << 10


@pytest.fixture
def kit(tmp_path):
    return DirectoryKit(tmp_path / "tier")


async def adopted(kit, **settings) -> list[TierRecord]:
    """What a new tier finds; it is closed again."""
    async with opened(kit, **settings) as tier:
        return [entry.record for entry in tier._contents.index.values()]


def in_directory(kit, name: str) -> list:
    return sorted(path for path in kit.files() if name in path.relative_to(kit.root).parts)


# -- what lies where -----------------------------------------------------------------------------------------------


async def test_a_large_object_is_one_file_of_whole_blocks_that_nobody_else_can_read(kit):
    async with opened(kit) as tier:
        await write(tier, meta("k", 64 * KIB), meta("l", 64 * KIB + 1))
        files = in_directory(kit, "objects")
        assert sorted(path.stat().st_size for path in files) == [68 * KIB, 72 * KIB]
        assert all(re.fullmatch(r"[0-9a-f]{32}-0{15}1", path.name) for path in files)
        assert all(path.parent.name == path.name[:2] for path in files)
        assert {path.stat().st_mode & 0o777 for path in kit.root.rglob("*") if path.is_file()} == {0o600}
        assert kit.root.stat().st_mode & 0o777 == 0o700
        assert not in_directory(kit, "packs")


async def test_small_objects_cost_few_files_however_they_come(kit):
    async with opened(kit) as tier:
        await write(tier, *(meta(f"batch/{n}", 200) for n in range(2000)))
        assert len(kit.files()) == 1
        for n in range(300):
            await write(tier, meta(f"alone/{n}", 200))
        assert len(kit.files()) <= 4
        await asyncio.gather(*(write(tier, meta(f"together/{n}", 200)) for n in range(300)))
        assert len(kit.files()) <= 7
        assert tier.bytes_used < 2600 * 500


async def test_packs_have_a_largest_size(kit):
    async with opened(kit) as tier:
        records = await write(tier, *(meta(f"{n}", 64 * KIB - 1) for n in range(200)))
        files = in_directory(kit, "packs")
        assert len(files) == 4
        assert max(path.stat().st_size for path in files) <= 5 << 20
        await assert_holds(tier, *records)


async def test_costs_are_what_is_taken(kit):
    async with opened(kit) as tier:
        for n, nbytes in enumerate((64 * KIB, 100_000, 1 << 20)):
            used, facts = tier.bytes_used, meta("\N{SNOWMAN}" * 341 if n else "k", nbytes, generation=n)
            await write(tier, facts)
            assert tier.bytes_used - used == tier.cost(facts)
        used, smalls = tier.bytes_used, [meta(f"s{n}", 3000) for n in range(500)]
        await write(tier, *smalls)
        assert 0 <= sum(map(tier.cost, smalls)) - (tier.bytes_used - used) < 0.1 * 500 * 3000


async def test_a_pack_whose_objects_are_all_dead_is_deleted(kit):
    async with opened(kit) as tier:
        records = await write(tier, *(meta(f"{n}", 1000) for n in range(50)))
        for record in records:
            assert len(in_directory(kit, "packs")) == 1
            await tier.remove(record)
        assert (in_directory(kit, "packs"), tier.bytes_used) == ([], 0)


async def test_a_pack_mostly_dead_is_written_anew_by_itself(kit):
    async with opened(kit) as tier:
        records = await write(tier, *(meta(f"{n}", 1000) for n in range(1000)))
        used = tier.bytes_used
        await tier.remove(*records[:740])
        await tier._packer.finish()
        assert tier.bytes_used == used
        await tier.remove(*records[740:760])
        await tier._packer.finish()
        assert tier.bytes_used < used / 3
        await assert_holds(tier, *records[760:])
    assert {record.identity for record in await adopted(kit)} == {record.identity for record in records[760:]}


async def test_objects_can_be_read_and_removed_while_their_pack_is_written_anew(kit):
    async with opened(kit) as tier:
        records = await write(tier, *(meta(f"{n}", 1000) for n in range(1000)))
        with kit.gate.closed("TierBeforeRename"):
            await tier.remove(*records[:800])
            await kit.gate.somebody_is_held()
            await assert_holds(tier, *records[800:820])
            await tier.remove(*records[900:])
        await tier._packer.finish()
        await assert_holds(tier, *records[800:900])
        assert tier.objects == 100
    assert {record.identity for record in await adopted(kit)} == {record.identity for record in records[800:900]}


async def test_removed_between_a_packs_rename_and_its_answer_an_object_stays_gone(kit):
    async with opened(kit) as tier:
        records = await write(tier, *(meta(f"{n}", 1000) for n in range(1000)))
        with kit.gate.closed("TierAfterRename"):
            await tier.remove(*records[:800])
            await kit.gate.somebody_is_held()
            await tier.remove(*records[800:900])
        await tier._packer.finish()
        await assert_holds(tier, *records[900:])
    assert {record.identity for record in await adopted(kit)} == {record.identity for record in records[900:]}


async def test_a_crash_between_a_packs_rename_and_the_end_of_the_old_one_brings_nothing_back(kit, tmp_path):
    async with opened(kit) as tier:
        records = await write(tier, *(meta(f"{n}", 1000) for n in range(1000)))
        [old] = in_directory(kit, "packs")
        shutil.copy(old, tmp_path / "old")
        await tier.remove(*records[:800])
        await tier._packer.finish()
        await tier.remove(*records[800:900])
        [new] = in_directory(kit, "packs")
        assert new != old
    shutil.copy(tmp_path / "old", old)
    assert {record.identity for record in await adopted(kit)} == {record.identity for record in records[900:]}
    assert in_directory(kit, "packs") == [new]
    async with opened(kit) as tier:
        await assert_holds(tier, *records[900:])


async def test_a_reader_that_comes_for_a_pack_just_written_anew_finds_its_object(kit):
    async with opened(kit) as tier:
        records = await write(tier, *(meta(f"{n}", 1000) for n in range(1000)))
        with kit.gate.closed("TierBeforeRead"):
            reading = asyncio.create_task(read(tier, records[900]))
            await kit.gate.somebody_is_held()
            await tier.remove(*records[:800])
            await tier._packer.finish()
        assert await reading == content_of(records[900])
        assert tier.counters.failures == 0


@pytest.mark.parametrize("point", ["TierBeforeRename", "TierAfterRename"])
async def test_a_pack_all_of_whose_objects_go_while_it_is_written_leaves_nothing(kit, point):
    async with opened(kit) as tier:
        metas = [meta(f"{n}", 1000) for n in range(10)]
        with kit.gate.closed(point):
            writing = asyncio.create_task(write(tier, *metas))
            await kit.gate.somebody_is_held()
            await tier.remove(*metas)
        assert all(isinstance(answer, TierRemovedError) for answer in await writing)
        assert (tier.objects, tier.bytes_used, kit.files()) == (0, 0, [])
    assert await adopted(kit) == []


@pytest.mark.parametrize("nbytes", [9, 200_000])
async def test_removed_between_its_rename_and_its_answer_an_object_stays_gone(kit, nbytes):
    async with opened(kit) as tier:
        with kit.gate.closed("TierAfterRename"):
            writing = asyncio.create_task(write(tier, meta("k", nbytes)))
            await kit.gate.somebody_is_held()
            assert len(kit.files()) == 1
            await tier.remove(meta("k", nbytes))
            assert kit.files() == []
        assert isinstance((await writing)[0], TierRemovedError)
    assert await adopted(kit) == []


async def test_a_late_rename_of_an_older_generation_does_not_bring_it_back(kit):
    async with opened(kit) as tier:
        kit.gate.inject("TierBeforeRename", "sleep", 1000)
        writing = asyncio.create_task(write(tier, meta("k", 100_000)))
        await asyncio.to_thread(
            eventually, lambda: kit.gate.status("TierBeforeRename").fired, "the first at its rename"
        )
        await tier.remove(meta("k", 100_000))
        [new] = await write(tier, meta("k", 100_001, generation=2))
        await tier.remove(new)
        assert isinstance((await writing)[0], TierRemovedError)
        assert kit.files() == []
    assert await adopted(kit) == []


async def test_large_objects_go_past_the_page_cache(kit):
    async with opened(kit) as tier:
        skip_unless_direct(tier)
        [record] = await write(tier, meta("k", 1 << 20))
        await assert_holds(tier, record)


# -- faults --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["TierBeforeWrite", "TierAfterWrite", "TierBeforeRename", "TierAfterRename"])
@pytest.mark.parametrize("nbytes", [9, 200_000])
async def test_a_write_that_fails_at_any_point_leaves_nothing(kit, point, nbytes):
    async with opened(kit) as tier:
        kit.gate.inject(point, "return_error", -800)
        [error] = await write(tier, meta("k", nbytes))
        assert type(error) is TierIOError
        assert error.code == -800
        assert point in str(error)
        assert str(kit.root) in str(error)
        assert error.__traceback__ is error.__cause__ is error.__context__ is None
        assert (kit.files(), tier.bytes_used) == ([], 0)
        assert kit.gate.status(point).fired == 1
    assert await adopted(kit) == []


@pytest.mark.parametrize("nbytes", [9, 200_000])
async def test_a_failed_rewriting_of_a_pack_loses_nothing(kit, nbytes):
    async with opened(kit) as tier:
        olds = await write(tier, *(meta(f"{n}", 1000) for n in range(1000)))
        kit.gate.inject("TierBeforeRename", "return_error", -800)
        await tier.remove(*olds[:800])
        await tier._packer.finish()
        await assert_holds(tier, *olds[800:])
        await write(tier, meta("next", 9))
        await assert_holds(tier, *olds[800:])
        assert len(in_directory(kit, "packs")) == 1
    assert len(await adopted(kit)) == 201


@pytest.mark.parametrize("point", ["TierBeforeRead", "TierAfterRead"])
@pytest.mark.parametrize("nbytes", [9, 200_000])
async def test_an_injected_sleep_holds_one_thread_and_not_the_loop(kit, point, nbytes):
    async with opened(kit) as tier:
        [record] = await write(tier, meta("k", nbytes))
        kit.gate.inject(point, "sleep", 300)
        reading = asyncio.create_task(read(tier, record))
        turns = 0
        while not reading.done():
            await asyncio.sleep(0.001)
            turns += 1
        assert turns > 10
        assert await reading == content_of(record)


# -- any order -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
async def test_any_order_of_calls_gives_what_a_dictionary_gives(kit, seed):
    """Writes, reads, removals and restarts, many at once; removals of what is being written."""
    rng = random.Random(seed)
    expected: dict[tuple[str, int], TierRecord] = {}
    generation = 0
    settings = {"small_max_nbytes": rng.choice([0, 2000, 64 * KIB]), "direct": rng.random() < 0.7}
    tier: DirectoryTier = kit.make(**settings)
    await tier.open()
    for _ in range(60):
        metas = []
        for _ in range(rng.randrange(12)):
            generation += 1
            metas.append(
                meta(f"k{rng.randrange(20)}", rng.choice([0, 1, 500, 3000, 9000, 70_000]), generation=generation)
            )
        doomed = [m for m in metas if rng.random() < 0.15]
        old = [record for record in expected.values() if rng.random() < 0.12]
        batches = [metas[::2], metas[1::2]]
        written, _ = await asyncio.gather(
            asyncio.gather(*(write(tier, *batch) for batch in batches)),
            tier.remove(*old, *doomed),
        )
        await tier.remove(*doomed)
        for record in old:
            expected.pop(record.identity, None)
        for batch, answers in zip(batches, written, strict=True):
            for facts, answer in zip(batch, answers, strict=True):
                assert isinstance(answer, TierRecord) or facts in doomed, answer
                if facts not in doomed:
                    expected[facts.identity] = answer
        if rng.random() < 0.15:
            await tier._packer.finish()
            kit.audit()
            await tier.close()
            newest = {key: max(g for k, g in expected if k == key) for key, _ in expected}
            expected = {i: record for i, record in expected.items() if newest[i[0]] == i[1]}
            tier = kit.make(**settings)
            assert {record.identity for record in await tier.open()} == expected.keys()
        await assert_holds(tier, *rng.sample(list(expected.values()), min(5, len(expected))))
        for record in old:
            with pytest.raises(TierMissingError):
                await read(tier, record)
        assert tier.objects == len(expected)
    await assert_holds(tier, *expected.values())
    await tier._packer.finish()
    kit.audit()
    assert tier.counters.failures == 0
    await tier.remove_all()
    await tier._packer.finish()
    assert (tier.objects, tier.bytes_used, kit.files()) == (0, 0, [])
    await tier.close()


async def test_many_readers_and_writers_at_once(kit):
    async with opened(kit) as tier:
        records = await write(tier, *(meta(f"{n}", 100 * n) for n in range(1000)))
        rng = random.Random(1)

        async def reader() -> None:
            for record in rng.sample(records, 60):
                assert await read(tier, record) == content_of(record)

        async def writer(name: int) -> None:
            for n in range(20):
                [record] = await write(tier, meta(f"w{name}/{n}", 300))
                if n % 2:
                    await tier.remove(record)

        await asyncio.gather(*(reader() for _ in range(8)), *(writer(name) for name in range(8)))
        assert tier.objects == 1000 + 80


async def test_memory_is_let_go_of_when_a_read_or_write_has_failed(kit):
    async with opened(kit) as tier:
        for nbytes in (9, 70_000):
            facts = meta("k", nbytes)
            memory = Memory(nbytes, content_of(facts))
            with kit.failing("write", -800):
                [error] = await tier.write([(facts, memory.view())])
            memory.close()
            assert isinstance(error, TierIOError)
            [record] = await write(tier, facts)
            kit.lose(record)
            with pytest.raises(TierMissingError):
                await read(tier, record)
