"""The directory behind the port when its files are not as it left them: set aside, counted, never served."""

import os
import random
import shutil

import pytest

from mooncake_node.tiers import (
    TierCorruptError,
    TierError,
    TierIOError,
    TierMissingError,
    TierRecord,
)
from mooncake_node.tiers.place import BAD_FILES_MAX
from tests.support.tiers import (
    DirectoryKit,
    assert_holds,
    content_of,
    flip,
    meta,
    opened,
    read,
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


async def outcome_of(kit, tier, record) -> str:
    try:
        content = await read(tier, record)
    except (TierCorruptError, TierMissingError) as error:
        return type(error).__name__
    assert content == content_of(record)
    return "right"


@pytest.mark.parametrize("key", ["k", "k" * 1024])
@pytest.mark.parametrize("nbytes", [64 * KIB + 5, 9])
async def test_a_flipped_bit_anywhere_in_a_file_ends_in_right_bytes_or_an_error(kit, tmp_path, key, nbytes):
    """In a running tier and after a restart."""
    good, rng = tmp_path / "good", random.Random(nbytes)
    async with opened(kit) as tier:
        [record, *_] = await write(tier, meta(key, nbytes), meta("neighbour", 2000))
        path = kit.where(record)[0]
        size = path.stat().st_size
        shutil.copy(path, good)
        outcomes = set()
        for at in sorted({*range(0, size, 1021), *range(size - 48, size)}):
            flip(path, 8 * at + rng.randrange(8))
            outcomes.add(await outcome_of(kit, tier, record))
            shutil.copy(good, path)
            if tier._contents.living(record.identity) is None:
                await write(tier, meta(key, nbytes))
                path = kit.where(record)[0]
                shutil.copy(path, good)
        assert outcomes == {"right", "TierCorruptError"}
        [record] = await write(tier, meta(key, nbytes))
        path = kit.where(record)[0]
        tier.counters.scan_bad = 0
    shutil.copy(path, good)
    size = path.stat().st_size
    adoptions = set()
    for at in sorted(
        {*rng.sample(range(size), 15), *rng.sample(range(size - 4096, size), 5), *range(size - 48, size, 3)}
    ):
        shutil.copy(good, path)
        flip(path, 8 * at + rng.randrange(8))
        tier = kit.make()
        found = {other.identity for other in await tier.open()}
        adoptions.add(record.identity in found)
        assert tier.counters.scan_bad == (record.identity not in found)
        if record.identity in found:
            assert await outcome_of(kit, tier, record) in ("right", "TierCorruptError")
        await tier.close()
    assert adoptions == {True, False}


async def test_a_file_truncated_at_any_block_is_an_error_and_not_adopted(kit):
    facts = meta("k" * 1024, 64 * KIB + 5)
    size = 72 * KIB
    for left in range(0, size, 4096):
        async with opened(kit, audit=False) as tier:
            [record] = await write(tier, facts)
            path = kit.where(record)[0]
            assert path.stat().st_size == size
            os.truncate(path, left)
            if left % 8192 == 0:
                assert await outcome_of(kit, tier, record) == "TierCorruptError"
        assert await adopted(kit) == []
        assert kit.tier.counters.scan_bad == (left % 8192 != 0)


async def test_a_truncated_pack_gives_what_is_whole_and_nothing_else(kit):
    async with opened(kit, audit=False) as tier:
        records = await write(tier, *(meta(f"{n}", 3000) for n in range(20)))
        os.truncate(kit.where(records[0])[0], 30_000)
        for n, record in enumerate(records):
            assert await outcome_of(kit, tier, record) == ("right" if 3000 * (n + 1) <= 30_000 else "TierCorruptError")
    assert await adopted(kit) == []


async def test_a_damaged_object_is_not_carried_into_another_pack(kit):
    async with opened(kit) as tier:
        records = await write(tier, *(meta(f"{n}", 1000) for n in range(50)))
        kit.flip(records[7], 77)
        records += await write(tier, meta("next", 1000))
        bad = records.pop(7)
        assert (tier.counters.read_corrupt, tier.objects) == (1, 50)
        assert await outcome_of(kit, tier, bad) == "TierMissingError"
        await assert_holds(tier, *records)
    assert {record.identity for record in await adopted(kit)} == {record.identity for record in records}


async def test_new_objects_do_not_suffer_from_an_old_pack_that_is_gone(kit):
    async with opened(kit) as tier:
        [old] = await write(tier, meta("old", 9))
        kit.where(old)[0].unlink()
        [new] = await write(tier, meta("new", 9))
        await assert_holds(tier, new)
        assert await outcome_of(kit, tier, old) == "TierMissingError"
        assert tier.counters.read_missing == 1


async def test_another_file_in_its_place_is_noticed(kit):
    async with opened(kit) as tier:
        [one, two] = await write(tier, meta("one", 70_000), meta("two", 70_000))
        shutil.copy(kit.where(one)[0], kit.where(two)[0])
        assert await outcome_of(kit, tier, two) == "TierCorruptError"
        await write(tier, meta("two", 70_000))
        shutil.copy(kit.where(one)[0], kit.where(two)[0])
    assert await adopted(kit) == [one]
    assert kit.tier.counters.scan_bad == 1


async def test_damaged_files_are_kept_for_a_look_in_bounded_number(kit):
    async with opened(kit) as tier:
        records = await write(tier, *(meta(f"{n}", 70_000) for n in range(BAD_FILES_MAX + 5)))
        for record in records[:-2]:
            kit.flip(record, 5)
            assert await outcome_of(kit, tier, record) == "TierCorruptError"
        assert len(in_directory(kit, "bad")) == BAD_FILES_MAX
        for record in records[-2:]:
            path = kit.where(record)[0]
            flip(path, 8 * (path.stat().st_size - 1))
    assert await adopted(kit) == []
    assert kit.tier.counters.scan_bad == 2
    assert len(in_directory(kit, "bad")) == BAD_FILES_MAX


async def test_strange_files_are_set_aside_and_leftovers_removed(kit):
    async with opened(kit) as tier:
        [record] = await write(tier, meta("k", 70_000))
        path = kit.where(record)[0]
    shutil.copy(path, path.with_name(path.name + ".tmp"))
    shutil.copy(path, path.with_name("elsewhere"))
    shutil.copy(path, kit.root / "packs" / "no number")
    (kit.root / "packs" / ("0" * 16)).write_bytes(bytes(4096))
    (kit.root / "packs" / "x.tmp").write_bytes(b"half")
    (kit.root / "objects" / "00" / "link").symlink_to("/etc/passwd")
    assert await adopted(kit) == [record]
    assert (kit.tier.counters.scan_bad, kit.tier.counters.scan_temporary) == (4, 2)
    assert await adopted(kit) == [record]
    assert kit.tier.counters.failures == 0


async def test_a_damaged_identity_is_a_clear_error(kit):
    async with opened(kit):
        pass
    (kit.root / "identity.json").write_text("{")
    with pytest.raises(TierError, match="damaged") as caught:
        await kit.make().open()
    assert "identity.json" in str(caught.value)
    await kit.tier.close()


async def test_a_place_that_is_no_directory_is_a_clear_error(kit):
    kit.root.write_text("a file")
    with pytest.raises(TierError, match="cannot use this directory") as caught:
        await kit.make().open()
    assert str(kit.root) in str(caught.value)
    await kit.tier.close()


async def test_a_failed_opening_lets_go_of_the_lock(kit):
    async with opened(kit):
        pass
    (kit.root / "identity.json").write_text("{")
    failed = kit.make()
    with pytest.raises(TierError):
        await failed.open()
    (kit.root / "identity.json").unlink()
    async with opened(kit):
        pass
    await failed.close()


async def test_a_directory_deleted_behind_the_tiers_back_fails_writes_and_serves_nothing(kit):
    tier = kit.make()
    await tier.open()
    records = await write(tier, meta("s", 9), meta("l", 70_000))
    shutil.rmtree(kit.root)
    answers = await write(tier, meta("s2", 9), meta("l2", 70_000))
    assert [type(answer) for answer in answers] == [TierIOError] * 2
    assert "No such file or directory" in str(answers[0])
    for record in records:
        assert await outcome_of(kit, tier, record) == "TierMissingError"
    assert (tier.objects, tier.bytes_used, tier.counters.failures) == (0, 0, 4)
    await tier.close()


async def test_another_write_policy_reads_what_the_first_has_written(kit):
    async with opened(kit) as tier:
        records = await write(tier, meta("s", 9), meta("l", 70_000))
    async with opened(kit, direct=False, small_max_nbytes=0) as tier:
        await assert_holds(tier, *records)
        more = await write(tier, meta("s2", 9))
    async with opened(kit) as tier:
        await assert_holds(tier, *records, *more)
