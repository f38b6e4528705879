"""Tiers on disks that are full or read-only: each script runs with its own small file system."""

import os
import subprocess
import sys

import pytest

from tests.tidy.source import ROOT

PRELUDE = """
import asyncio, errno, os, subprocess, sys
import pytest
from pathlib import Path
from mooncake_node.tiers import *
from tests.support.tiers import *

MIB = 1 << 20
DISK = Path("/mnt")
kit = DirectoryKit(DISK / "tier", direct=sys.argv[1] == "direct")

def make_read_only(options="ro"):
    subprocess.run(["mount", "--bind", DISK, DISK], check=True)
    subprocess.run(["mount", "-o", f"remount,bind,{options}", DISK], check=True)
    os.chdir("/")

def fill():
    with (DISK / "filler").open("wb", buffering=0) as out:
        try:
            while True:
                out.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC
"""

AFTER = """
asyncio.run(main())
"""


@pytest.fixture(params=["direct", "buffered"])
def in_mount(request):
    def run(script: str, options: str = "size=16m") -> None:
        unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "-r"]
        mount = f"mount -t tmpfs -o {options} tmpfs /mnt"
        tried = subprocess.run([*unshare, "sh", "-c", mount], capture_output=True, text=True, check=False)
        if tried.returncode != 0:
            pytest.skip(f"NO MOUNT OF ONE'S OWN HERE, NOT TESTED: {tried.stderr.strip()}")
        done = subprocess.run(
            [*unshare, "sh", "-c", mount + ' && exec "$0" -c "$1" "$2"', sys.executable, PRELUDE + script + AFTER,
             request.param],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            cwd=ROOT,
        )  # fmt: skip
        assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}{done.stderr}"

    return run


@pytest.mark.parametrize("nbytes", [9000, 3_000_000])
def test_a_full_disk_refuses_loses_nothing_and_recovers(in_mount, nbytes):
    in_mount(f"""
async def main():
    async with opened(kit) as tier:
        records, full = [], []
        for n in range(0, 30 * MIB // {nbytes}, 10):
            for answer in await write(tier, *(meta(f"{{i}}", {nbytes}) for i in range(n, n + 10))):
                (records if isinstance(answer, TierRecord) else full).append(answer)
        assert records and full
        assert {{type(error) for error in full}} == {{TierFullError}}, full
        assert full[0].errno == errno.ENOSPC and "No space left" in str(full[0]) and str(kit.root) in str(full[0])
        assert tier.counters.write_full == len(full) and tier.counters.failures == len(full)
        assert tier.objects == len(records)
        kit.audit()
        await assert_holds(tier, *records)
        await tier.remove(*records[::2])
        await tier._packer.finish()
        kit.audit()
        [again] = await write(tier, meta("again", {nbytes}))
        await assert_holds(tier, again, *records[1::2])
    async with opened(kit) as tier:
        assert tier.objects == 1 + len(records[1::2]) and tier.counters.failures == 0
""")


def test_a_disk_filled_by_others_can_still_be_opened_and_read(in_mount):
    in_mount("""
async def main():
    async with opened(kit) as tier:
        records = await write(tier, meta("s", 9), meta("l", 100_000))
    fill()
    async with opened(kit) as tier:
        await assert_holds(tier, *records)
        answers = await write(tier, meta("s2", 9), meta("l2", 100_000))
        assert [type(answer) for answer in answers] == [TierFullError] * 2
        with pytest.raises(TierFullError):
            await tier.raise_floor(5)
        assert tier.floor == 0
        for record in records:
            with pytest.raises(TierIOError, match="No space left"):
                await tier.amend(meta(record.key, 0, softpin=True))
        assert tier.counters.amend_failed == 2
        await tier.remove(records[1])
        await assert_holds(tier, records[0])
    (DISK / "filler").unlink()
    async with opened(kit) as tier:
        assert [entry.record for entry in tier._contents.index.values()] == [records[0]]
        await tier.raise_floor(5)
        await tier.amend(meta("s", 0, softpin=True))
""")


def test_a_full_disk_without_an_identity_is_a_clear_error(in_mount):
    in_mount("""
async def main():
    fill()
    tier = kit.make()
    with pytest.raises(TierError, match="No space left"):
        await tier.open()
    await tier.close()
""")


def test_no_inodes_left_is_a_full_disk(in_mount):
    in_mount(
        """
async def main():
    async with opened(kit) as tier:
        answers = await write(tier, *(meta(f"{n}", 70_000) for n in range(60)))
        kinds = {type(answer) for answer in answers}
        assert kinds == {TierRecord, TierFullError}, kinds
        await assert_holds(tier, *(answer for answer in answers if isinstance(answer, TierRecord)))
""",
        "size=16m,nr_inodes=300",
    )


def test_a_disk_turned_read_only_still_serves_and_every_change_is_a_clear_error(in_mount):
    in_mount("""
async def main():
    tier = kit.make()
    await tier.open()
    records = await write(tier, *(meta(f"s{n}", 9) for n in range(4)), *(meta(f"l{n}", 100_000) for n in range(4)))
    bad = records.pop()
    kit.flip(bad, 7)
    await tier.amend(meta("s0", 0, softpin=True))
    make_read_only()
    for key in ("s0", "s1", "l1"):
        with pytest.raises(TierIOError, match="Read-only file system"):
            await tier.amend(meta(key, 0, scope="node"))
    await assert_holds(tier, *records)
    answers = await write(tier, meta("s", 10), meta("l", 100_000))
    for answer in answers:
        assert type(answer) is TierIOError and answer.errno == errno.EROFS, answer
        assert "Read-only file system" in str(answer)
    with pytest.raises(TierCorruptError):
        await read(tier, bad)
    with pytest.raises(TierMissingError):
        await read(tier, bad)
    used = tier.bytes_used
    with pytest.raises(TierIOError, match="Read-only file system"):
        await tier.remove(records[0], records[-1])
    for gone in (records[0], records[-1]):
        with pytest.raises(TierMissingError):
            await read(tier, gone)
    await assert_holds(tier, *records[1:-1])
    with pytest.raises(TierIOError, match="Read-only file system"):
        await tier.raise_floor(5)
    counters = tier.counters
    assert (counters.write_failed, counters.read_corrupt, counters.remove_failed) == (2, 1, 2), counters
    assert counters.amend_failed == 3
    assert (tier.objects, tier.bytes_used) == (5, used)
    # Writable again, a second try succeeds.
    make_read_only("rw")
    await tier.remove(records[0], records[-1])
    assert tier.objects == 5 and tier.bytes_used < used
    assert tier.counters.removed == 2
    await tier.close()
    async with opened(kit) as tier:
        found = {entry.record.key for entry in tier._contents.index.values()}
        assert found - {bad.key} == {record.key for record in records[1:-1]}
        # Its trailer is whole, its bytes are not; a restart has no cause to look at them.
        if bad.key in found:
            with pytest.raises(TierCorruptError):
                await read(tier, bad)
""")


def test_a_read_only_directory_is_a_clear_error_at_the_start(in_mount):
    in_mount("""
async def main():
    async with opened(kit):
        pass
    make_read_only()
    tier = kit.make()
    with pytest.raises(TierIOError, match="Read-only file system") as caught:
        await tier.open()
    assert str(kit.root) in str(caught.value)
    await tier.close()
""")
