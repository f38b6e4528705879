"""Objects read from a tier in parts: what every tier does, and what the directory does with its own files."""

import asyncio
import gc
import hashlib

import pytest

from mooncake_client.codes import Code
from mooncake_node.tiers import TierCorruptError, TierIOError, TierMissingError
from tests.support.tiers import KITS, Memory, assert_holds, content_of, meta, opened, read, write

KIB, MIB = 1 << 10, 1 << 20
# Packed, on its border, in a file of its own; with whole blocks and without.
SIZES = [0, 1, 4095, 8192, 64 * KIB - 1, 64 * KIB, 100_001, 3 * MIB, 3 * MIB + 17]


@pytest.fixture(params=["memory", "direct", "buffered"])
def kit(request, tmp_path):
    return KITS[request.param](tmp_path)


@pytest.fixture
async def tier(kit):
    async with opened(kit) as tier:
        yield tier


async def part(tier, record, offset: int, nbytes: int, *, shift: int = 0) -> bytes:
    """Those bytes; nothing beside them was written, and nobody has the memory afterwards."""
    memory = Memory(nbytes, shift=shift)
    try:
        await tier.read_part(record, offset, memory.view())
        return bytes(memory.view())
    except Exception as error:
        error.__traceback__ = None  # of this frame and the tier's, which have the view
        raise
    finally:
        memory.close()


@pytest.mark.parametrize("step", [4 * KIB, 1 * MIB])
async def test_the_parts_of_an_object_are_the_object(tier, step):
    records = await write(tier, *(meta(f"k/{nbytes}", nbytes) for nbytes in SIZES if nbytes < 200 * step))
    for record in records:
        digest = hashlib.sha256()
        for offset in range(0, record.nbytes, step):
            digest.update(await part(tier, record, offset, min(step, record.nbytes - offset)))
        assert digest.digest() == hashlib.sha256(content_of(record)).digest(), record
    assert tier.counters.failures == 0
    assert tier.counters.restored == 0, "only whole objects are counted"


@pytest.mark.parametrize("shift", [0, 1, 64, 512])
@pytest.mark.parametrize(
    ("offset", "nbytes"),
    [
        (0, 1), (0, 4096), (0, 5000), (1, 1), (4095, 2), (4096, 4096), (4096, 0), (5000, 3), (1 * MIB, 1 * MIB + 9),
        (4097, 2 * MIB), (511, 512), (3 * MIB, 17), (3 * MIB - 1, 18), (3 * MIB + 17, 0), (0, 3 * MIB + 17),
    ],
)  # fmt: skip
async def test_any_part_goes_into_any_memory(tier, offset, nbytes, shift):
    [record] = await write(tier, meta("k", 3 * MIB + 17))
    assert await part(tier, record, offset, nbytes, shift=shift) == content_of(record)[offset : offset + nbytes]


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 1), (199, 1), (7, 100), (200, 0)])
async def test_a_part_of_a_small_object_is_not_its_neighbours(tier, offset, nbytes):
    records = await write(tier, *(meta(f"k/{number}", 200) for number in range(20)))
    for record in records:
        assert await part(tier, record, offset, nbytes, shift=3) == content_of(record)[offset : offset + nbytes]


@pytest.mark.parametrize("nbytes", [200, 200_000])
async def test_what_was_removed_is_missing(tier, nbytes):
    kept, gone = await write(tier, meta("kept", nbytes), meta("gone", nbytes))
    assert await part(tier, gone, 0, 100) == content_of(gone)[:100]
    await tier.remove(gone)
    for offset in (0, 100, nbytes):
        with pytest.raises(TierMissingError):
            await part(tier, gone, offset, 0 if offset == nbytes else 100)
    assert tier.counters.failures == 0
    await assert_holds(tier, kept)


async def test_what_was_never_there_is_missing(tier):
    [record] = await write(tier, meta("k", 200_000, generation=7))
    await tier.remove(record)
    [other] = await write(tier, meta("k", 200_000, generation=8))
    with pytest.raises(TierMissingError):
        await part(tier, record, 0, 10)
    await assert_holds(tier, other)


@pytest.mark.parametrize("nbytes", [200, 200_000])
async def test_what_has_gone_behind_the_tiers_back_is_missing_and_counted(kit, tier, nbytes):
    [record] = await write(tier, meta("k", nbytes))
    kit.lose(record)
    with pytest.raises(TierMissingError):
        await part(tier, record, 0, 100)
    assert tier.counters.read_missing == 1
    assert tier.objects == 0


async def test_a_flipped_bit_is_not_looked_for(kit, tier):
    [record] = await write(tier, meta("k", 200_000))
    kit.flip(record, 8 * 5000)
    content = content_of(record)
    assert await part(tier, record, 0, 4096) == content[:4096]
    assert await part(tier, record, 4096, 4096) != content[4096:8192]
    assert tier.objects == 1
    with pytest.raises(TierCorruptError):
        await read(tier, record)
    with pytest.raises(TierMissingError):
        await part(tier, record, 0, 4096)


async def test_a_file_cut_short_is_damaged_and_not_served_again(kit, tier):
    [record] = await write(tier, meta("k", 200_000))
    kit.truncate(record, 100_000)
    with pytest.raises(TierCorruptError):
        await part(tier, record, 150_000, 4096)
    assert tier.counters.read_corrupt == 1
    with pytest.raises(TierMissingError):
        await part(tier, record, 0, 4096)


@pytest.mark.parametrize("nbytes", [200, 200_000])
async def test_a_disk_that_fails_loses_nothing(kit, tier, nbytes):
    [record] = await write(tier, meta("k", nbytes))
    with kit.failing("read", Code.TRANSFER_FAILED), pytest.raises(TierIOError):
        await part(tier, record, 0, 100)
    assert tier.counters.read_failed == 1
    await assert_holds(tier, record)


@pytest.mark.parametrize("nbytes", [200, 200_000])
async def test_a_cancelled_reader_gets_its_memory_back(kit, tier, nbytes):
    [record] = await write(tier, meta("k", nbytes))
    memory = Memory(100)
    async with kit.held_reads() as somebody_is_held:
        reading = asyncio.create_task(tier.read_part(record, 0, memory.view()))
        await somebody_is_held()
        reading.cancel()
    await asyncio.wait([reading])
    assert reading.cancelled()
    del reading
    gc.collect()
    memory.close()
    await assert_holds(tier, record)


async def test_parts_of_an_object_that_moves_from_pack_to_pack_are_found(tmp_path):
    kit = KITS["direct"](tmp_path)
    async with opened(kit) as tier:
        [record] = await write(tier, meta("k", 5000))
        for number in range(20):
            await write(tier, meta(f"other/{number}", 200))
            assert await part(tier, record, 4096, 904) == content_of(record)[4096:]
