"""The files in which a directory keeps contracts that were changed, in good order and in bad."""

import asyncio
import random
import shutil

import pytest

from mooncake_node.tiers import TierCorruptError, TierIOError, TierMissingError, TierRecord
from mooncake_node.tiers.contracts import CONTRACT_NBYTES, encode_contract
from tests.support.tiers import DirectoryKit, assert_holds, flip, meta, opened, read, write

NEW = {"softpin": True, "softpin_until_unix_ms": 1_900_000_000_123, "hardpin": True, "scope": "node"}
POINTS = ["TierBeforeAmend", "TierBeforeAmendRename", "TierAfterAmendRename"]
either_size = pytest.mark.parametrize("nbytes", [9, 70_000])


@pytest.fixture
def directory(tmp_path):
    return DirectoryKit(tmp_path / "tier")


def contracts(kit) -> list:
    return sorted(path for path in kit.files() if path.parent.name == "contracts")


async def scopes(kit) -> dict[str, str]:
    """What a restart finds, key by key; the tier is closed again."""
    tier = kit.make()
    found = {record.key: record.scope for record in await tier.open()}
    kit.audit()
    await tier.close()
    return found


@either_size
async def test_it_costs_one_block_however_often_and_nothing_when_the_object_is_gone(directory, nbytes):
    async with opened(directory) as tier:
        [record] = await write(tier, meta("k", nbytes))
        used = tier.bytes_used
        for n in range(5):
            await tier.amend(meta("k", nbytes, scope=f"{n}"))
        [path] = contracts(directory)
        assert path.name.split("-")[1] == "0" * 15 + "1.contract"
        assert path.stat().st_mode & 0o777 == 0o600
        assert tier.bytes_used - used == CONTRACT_NBYTES == path.stat().st_size
        await tier.remove(record)
        assert (directory.files(), tier.bytes_used) == ([], 0)


@pytest.mark.parametrize("point", [None, "TierBeforeRename", "TierAfterRename"])
async def test_it_stays_in_force_when_its_pack_is_written_anew(directory, point):
    """Changed before that, and while it goes on."""
    async with opened(directory) as tier:
        records = await write(tier, *(meta(f"{n}", 1000) for n in range(1000)))
        for n in (900, 901, 902):
            await tier.amend(meta(f"{n}", 1000, scope="before"))
        if point is None:
            await tier.remove(*records[:800])
        else:
            with directory.gate.closed(point):
                await tier.remove(*records[:800])
                await directory.gate.somebody_is_held()
                await tier.amend(meta("901", 1000, scope="meanwhile"))
                await tier.amend(meta("903", 1000, scope="meanwhile"))
                await tier.remove(records[902])
        await tier._packer.finish()
        assert directory.where(records[900])[0].name == f"{2:016x}"
        await tier.amend(meta("904", 1000, scope="after"))
        await assert_holds(tier, *records[900:902], *records[903:])
    found = {key: scope for key, scope in (await scopes(directory)).items() if scope != "cluster"}
    expected = {"900": "before", "901": "before", "902": "before", "904": "after"}
    if point is not None:
        del expected["902"]
        expected |= {"901": "meanwhile", "903": "meanwhile"}
    assert found == expected
    assert len(contracts(directory)) == len(expected)


async def test_a_damaged_object_that_is_not_moved_leaves_no_contract(directory):
    async with opened(directory) as tier:
        records = await write(tier, *(meta(f"{n}", 1000) for n in range(50)))
        await tier.amend(meta("7", 1000, **NEW))
        directory.flip(records[7], 77)
        await write(tier, meta("next", 1000))
        assert tier.counters.read_corrupt == 1
        assert contracts(directory) == []
        [again] = await write(tier, meta("7", 1000))
        assert again == records[7]
    assert (await scopes(directory))["7"] == "cluster"


@either_size
async def test_an_object_found_damaged_by_a_reader_leaves_no_contract(directory, nbytes):
    async with opened(directory) as tier:
        [record] = await write(tier, meta("k", nbytes))
        await tier.amend(meta("k", nbytes, **NEW))
        directory.flip(record, 7)
        with pytest.raises(TierCorruptError):
            await read(tier, record)
        assert (contracts(directory), tier.bytes_used) == ([], 0)


@either_size
@pytest.mark.parametrize("point", POINTS)
async def test_removed_while_it_is_amended_nothing_of_it_is_left(directory, nbytes, point):
    async with opened(directory) as tier:
        [record] = await write(tier, meta("k", nbytes))
        with directory.gate.closed(point):
            amending = asyncio.create_task(tier.amend(meta("k", nbytes, **NEW)))
            await directory.gate.somebody_is_held()
            removing = asyncio.create_task(tier.remove(record))
            await asyncio.sleep(0)
            with pytest.raises(TierMissingError):
                await read(tier, record)
            # The contract that is about to be there would be taken for this one's.
            assert isinstance((await write(tier, meta("k", nbytes)))[0], TierIOError)
        await asyncio.gather(amending, removing)
        assert (directory.files(), tier.bytes_used, tier.objects) == ([], 0, 0)
        assert await write(tier, meta("k", nbytes)) == [record]
    assert await scopes(directory) == {"k": "cluster"}


@either_size
@pytest.mark.parametrize("point", POINTS)
async def test_failing_at_any_point_it_leaves_the_contract_before(directory, nbytes, point):
    async with opened(directory) as tier:
        await write(tier, meta("first", nbytes), meta("second", nbytes))
        await tier.amend(meta("second", nbytes, scope="before"))
        for key in ("first", "second"):
            directory.gate.inject(point, "return_error", -800)
            with pytest.raises(TierIOError) as caught:
                await tier.amend(meta(key, nbytes, **NEW))
            assert caught.value.code == -800
            assert point in str(caught.value)
        assert len(contracts(directory)) == 1
        assert tier.counters.amend_failed == 2
    assert await scopes(directory) == {"first": "cluster", "second": "before"}


@either_size
async def test_a_contract_that_cannot_be_removed_is_a_failed_removal(directory, nbytes):
    async with opened(directory, audit=False) as tier:
        [record] = await write(tier, meta("k", nbytes))
        await tier.amend(meta("k", nbytes, **NEW))
        [path] = contracts(directory)
        path.unlink()
        path.mkdir()  # which no unlink removes
        for failed in (1, 2):
            with pytest.raises(TierIOError, match="cannot remove 1"):
                await tier.remove(record)
            assert (tier.counters.remove_failed, tier.counters.removed, tier.objects) == (failed, 0, 0)
        assert isinstance((await write(tier, meta("k", nbytes)))[0], TierIOError)
        path.rmdir()
        await tier.remove(record)
        assert (directory.files(), tier.bytes_used, tier.counters.removed) == ([], 0, 1)
        assert await write(tier, meta("k", nbytes)) == [record]
        directory.audit()


@either_size
@pytest.mark.parametrize("others", [0, 1])
async def test_an_object_that_cannot_be_removed_keeps_its_contract(directory, tmp_path, nbytes, others):
    """The contract goes second: else a restart would find the object under the one before."""
    async with opened(directory, audit=False) as tier:
        [record, *_] = await write(tier, meta("k", nbytes), *(meta(f"{n}", nbytes) for n in range(others)))
        await tier.amend(meta("k", nbytes, **NEW))
        path, _ = directory.where(record)
        path.rename(tmp_path / "kept")
        path.mkdir()
        with pytest.raises(TierIOError, match="cannot remove 1"):
            await tier.remove(record)
        assert len(contracts(directory)) == 1
        path.rmdir()
        (tmp_path / "kept").rename(path)
    assert (await scopes(directory))["k"] == "node"


async def test_a_damaged_contract_is_counted_set_aside_and_the_object_found_as_written(directory, tmp_path):
    rng = random.Random(3)
    async with opened(directory) as tier:
        [record] = await write(tier, meta("k", 9))
        await tier.amend(meta("k", 9, **NEW))
        [path] = contracts(directory)
    good = path.read_bytes()
    for at in [*range(0, 150, 7), *rng.sample(range(CONTRACT_NBYTES), 10), CONTRACT_NBYTES - 1]:
        path.write_bytes(good)
        flip(path, 8 * at + rng.randrange(8))
        assert await scopes(directory) == {"k": "cluster"}
        assert (directory.tier.counters.scan_bad, contracts(directory)) == (1, [])
    for damaged in (b"", good[:-1], good + b"\0", bytes(CONTRACT_NBYTES), rng.randbytes(CONTRACT_NBYTES)):
        path.write_bytes(damaged)
        assert await scopes(directory) == {"k": "cluster"}
        assert (directory.tier.counters.scan_bad, contracts(directory)) == (1, [])
        assert await scopes(directory) == {"k": "cluster"}
        assert directory.tier.counters.failures == 0
    path.write_bytes(good)
    assert await scopes(directory) == {"k": "node"}
    async with opened(directory) as tier:
        await assert_holds(tier, record)


async def test_contracts_of_others_and_strange_files_are_cleaned_away(directory):
    async with opened(directory) as tier:
        [one, two, _] = await write(tier, meta("one", 9), meta("two", 70_000), meta("three", 9))
        for key in ("one", "two"):
            await tier.amend(meta(key, 0, scope="amended"))
        place = directory.tier._place
        paths = {record.key: place.contract_path(record) for record in (one, two)}
        three = place.contract_path(meta("three", 9))
    shutil.copy(paths["one"], three)
    shutil.copy(paths["one"], directory.root / "contracts" / "elsewhere")
    (directory.root / "contracts" / "link").symlink_to("/etc/passwd")
    shutil.copy(paths["one"], f"{paths['one']}.tmp")
    # Whole, and of this name, but of an object with other bytes.
    paths["two"].write_bytes(encode_contract(TierRecord(**{**facts_of(two), "nbytes": 8, "scope": "foreign"})))
    assert await scopes(directory) == {"one": "amended", "two": "cluster", "three": "cluster"}
    counters = directory.tier.counters
    assert (counters.scan_bad, counters.scan_temporary) == (4, 1)
    assert contracts(directory) == [paths["one"]]


@either_size
async def test_a_crash_between_the_end_of_an_object_and_that_of_its_contract_leaves_nothing(directory, nbytes):
    async with opened(directory) as tier:
        [record, _] = await write(tier, meta("k", nbytes), meta("other", nbytes))
        await tier.amend(meta("k", nbytes, **NEW))
        [path] = contracts(directory)
        content = path.read_bytes()
        await tier.remove(record)
        await write(tier, meta("k", nbytes, generation=2))
    path.write_bytes(content)
    assert await scopes(directory) == {"k": "cluster", "other": "cluster"}
    assert (contracts(directory), directory.tier.counters.failures) == ([], 0)


@pytest.mark.parametrize("seed", range(6))
async def test_any_order_of_calls_gives_what_a_dictionary_gives(directory, seed):
    """Writes, amendments and removals of the same objects at once, and restarts."""
    rng = random.Random(seed)
    expected: dict[tuple[str, int], str] = {}
    settings = {"small_max_nbytes": rng.choice([0, 2000, 64 << 10])}
    tier = directory.make(**settings)
    await tier.open()
    for step in range(40):
        metas = [meta(f"{step}/{n}", rng.choice([0, 500, 3000, 70_000])) for n in range(rng.randrange(10))]
        old = rng.sample(sorted(expected), min(len(expected), 8))
        calls = [asyncio.create_task(write(tier, each)) for each in metas]
        expected |= {each.identity: "cluster" for each in metas}
        for n in range(20):
            await asyncio.sleep(rng.choice([0, 0, 0.001]))
            identity = rng.choice([*old, *(each.identity for each in metas), ("unknown", 1)])
            target = meta(identity[0], 0, scope=f"{step}/{n}")
            if rng.random() < 0.2:
                calls.append(asyncio.create_task(tier.remove(target)))
                expected.pop(identity, None)
            else:
                calls.append(asyncio.create_task(tier.amend(target)))
                if identity in expected:
                    expected[identity] = target.scope
        await asyncio.gather(*calls)
        held = {identity: entry.record.scope for identity, entry in tier._contents.index.items()}
        assert held == expected
        if rng.random() < 0.2:
            await tier._packer.finish()
            directory.audit()
            await tier.close()
            tier = directory.make(**settings)
            assert {record.identity: record.scope for record in await tier.open()} == expected
    assert tier.counters.failures == 0
    await tier.remove_all()
    await tier._packer.finish()
    assert (tier.bytes_used, directory.files()) == (0, [])
    await tier.close()


def facts_of(record: TierRecord) -> dict:
    return {name: getattr(record, name) for name in TierRecord.__struct_fields__}
