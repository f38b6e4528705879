"""Others' pains with objects that have left memory for disk, each from a public report."""

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from mooncake_client import Client, NotFoundError, ObjectLostError, PutInfo, StoreError, TransferError
from tests.support import NodeProcess, Worker, digest, eventually, pattern

MIB = 1 << 20
POOL_NBYTES = 64 * MIB
MakeWorker = Callable[..., Worker]
MakeNode = Callable[..., NodeProcess]


@pytest.fixture
def offload_node(make_node: MakeNode, tmp_path: Path) -> NodeProcess:
    """A node with 64 MiB, a directory beside it, and one thread each way."""
    return make_node(
        "--faults", "--offload-dir", str(tmp_path / "tier"),
        "--set", "offload_threads=1", "--set", "restore_threads=1",
    )  # fmt: skip


def put(client: Client, count: int, nbytes: int = MIB, prefix: str = "k") -> dict[str, str]:
    """Put soft-pinned objects; key → digest."""
    wanted = {}
    for number in range(count):
        data = pattern(f"{prefix}{number}", nbytes)
        client.put(f"{prefix}{number}", data, softpin=True)
        wanted[f"{prefix}{number}"] = digest(data)
    return wanted


def on_disk(client: Client) -> list[str]:
    return [info.key for info in client.list() if info.state == "on_disk"]


# -- what is listed is readable ---------------------------------------------------------------------------------------


def test_ten_pools_of_soft_pinned_objects_are_all_listed_and_right_for_four_readers_at_once(
    offload_node: NodeProcess, make_worker: MakeWorker
) -> None:
    with offload_node.client() as client:
        wanted = put(client, 160) | put(client, 300, 200, "small") | put(client, 1, 0, "empty")
        assert {info.key for info in client.list()} == set(wanted)
        readers = [make_worker(offload_node) for _ in range(4)]
        for seed, reader in enumerate(readers):
            reader.start(f"""
                import random
                wanted = {wanted!r}
                keys = random.Random({seed}).sample(list(wanted), len(wanted))
                [key for key in keys if digest(c.get(key)) != wanted[key]]
            """)
        assert [reader.result() for reader in readers] == [[]] * 4
        stats = client.stats()
        assert stats["load"]["from_offload"] > 0
        assert stats["offload"]["failures"] == 0
        assert stats["objects"] == len(wanted)


def test_a_batch_larger_than_the_pool_is_stored_and_read_whole(offload_node: NodeProcess) -> None:
    with offload_node.client() as client:
        results = client.put_many({f"k{i}": pattern(i, 20 * MIB) for i in range(8)}, softpin=True)
        assert all(isinstance(result, PutInfo) for result in results.values())
        for i in range(8):
            assert digest(client.get(f"k{i}")) == digest(pattern(i, 20 * MIB))
        # All at once they do not fit: key by key right, or no room.
        found = client.get_many([f"k{i}" for i in range(8)])
        right = [
            digest(got) == digest(pattern(i, 20 * MIB)) for i, got in enumerate(found) if isinstance(got, memoryview)
        ]
        assert all(right)
        assert 2 <= len(right) < 8
        assert all(got.code in (-200, -703) for got in found if isinstance(got, StoreError))


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete", "empty"])
def test_a_damaged_file_is_reported_lost_once_counted_and_never_served(
    offload_node: NodeProcess, tmp_path: Path, damage: str
) -> None:
    with offload_node.client() as client:
        wanted = put(client, 100)
        files = [path for path in (tmp_path / "tier" / "objects").rglob("*") if path.is_file()]
        for path in files[::5]:
            if damage == "flip":
                with path.open("r+b") as file:
                    file.seek(random.Random(1).randrange(MIB))
                    byte = file.read(1)
                    file.seek(-1, os.SEEK_CUR)
                    file.write(bytes([byte[0] ^ 1]))
            elif damage == "truncate":
                os.truncate(path, path.stat().st_size // 2)
            elif damage == "delete":
                path.unlink()
            else:
                os.truncate(path, 0)
        lost = []
        for key, right in wanted.items():
            try:
                assert digest(client.get(key)) == right
            except ObjectLostError:
                lost.append(key)
                assert not client.exists(key)
                with pytest.raises(ObjectLostError):
                    client.get(key)
        assert len(lost) == len(files[::5])
        stats = client.stats()
        assert stats["offload"]["failures"] == len(lost)
        assert stats["objects"] == len(wanted) - len(lost)
        # The key is free for another life.
        client.put(lost[0], b"again")
        assert bytes(client.get(lost[0])) == b"again"


def test_failed_writes_lose_nothing(offload_node: NodeProcess) -> None:
    with offload_node.client() as client:
        for point in ("TierBeforeWrite", "TierAfterWrite", "TierBeforeRename", "TierAfterRename"):
            client.inject_fault_local_master(point, "return_error", -800, start=2, times=2)
        wanted = put(client, 150)
        assert all(digest(client.get(key)) == right for key, right in wanted.items())
        assert client.stats()["offload"]["failures"] == 8


def test_a_failed_read_is_told_and_the_next_try_succeeds(offload_node: NodeProcess) -> None:
    with offload_node.client() as client:
        wanted = put(client, 100)
        client.inject_fault_local_master("TierBeforeRead", "return_error", -800)
        client.inject_fault_local_master("NodeBeforeAnswerLoad", "return_error", -800, start=1)
        key = on_disk(client)[0]
        for _ in range(2):
            with pytest.raises(TransferError):
                client.get(key)
            assert client.exists(key)
        assert digest(client.get(key)) == wanted[key]


def test_a_full_tier_keeps_what_is_pinned_in_memory_and_says_why_a_put_fails(
    make_node: MakeNode, tmp_path: Path
) -> None:
    node = make_node("--offload-dir", str(tmp_path / "tier"), "--set", "offload_max_bytes=20MiB")
    with node.client() as client:
        wanted = {}
        refused = None
        for number in range(100):
            data = pattern(number, MIB)
            try:
                client.put(f"k{number}", data, softpin=True, timeout=2)
            except StoreError as error:
                refused = error
                break
            wanted[f"k{number}"] = digest(data)
        assert refused is not None
        assert refused.code == -200
        assert "offload tier takes nothing now" in str(refused)
        assert len(wanted) >= 75
        # To read from disk takes room too.
        for info in [info for info in client.list() if info.state == "complete"][:2]:
            client.remove(info.key)
            del wanted[info.key]
        assert all(digest(client.get(key)) == right for key, right in wanted.items())


# -- nobody starves ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clients", "objects"), [(4, 160), pytest.param(16, 640, marks=[pytest.mark.long, pytest.mark.timeout(1800)])]
)
def test_restores_and_offloads_do_not_wait_for_each_other(
    offload_node: NodeProcess, make_worker: MakeWorker, clients: int, objects: int
) -> None:
    with offload_node.client() as client:
        wanted = put(client, objects)
        client.inject_fault_local_master("TierBeforeRead", "sleep", 5, times=10**6)
        client.inject_fault_local_master("TierBeforeWrite", "sleep", 5, times=10**6)
    readers = [make_worker(offload_node) for _ in range(clients)]
    putters = [make_worker(offload_node) for _ in range(2)]
    for number, putter in enumerate(putters):
        putter.start(f"""
            count = 0
            while not c.exists('stop'):
                c.put(f'new {number} {{count}}', pattern(count, 1 << 20), softpin=True)
                if count >= 20:
                    c.remove(f'new {number} {{count - 20}}')
                count += 1
            count
        """)
    for seed, reader in enumerate(readers):
        reader.start(f"""
            import random
            wanted = {wanted!r}
            keys = random.Random({seed}).sample(list(wanted), len(wanted))
            [key for key in keys if digest(c.get(key)) != wanted[key]]
        """)
    assert [reader.result() for reader in readers] == [[]] * clients
    with offload_node.client() as client:
        client.put("stop", b"", softpin=True)
    assert all(putter.result() > 20 for putter in putters)


def test_a_slow_read_from_disk_holds_up_nobody_else(offload_node: NodeProcess, make_worker: MakeWorker) -> None:
    with offload_node.client() as client:
        wanted = put(client, 100)
        idle = make_worker(offload_node)
        idle.run("c.put('held', pattern('held', 1 << 20), softpin=True); view = c.get('held')")
        key = on_disk(client)[0]
        client.inject_fault_local_master("TierBeforeRead", "sleep", 3000)
        done = threading.Event()

        def read() -> None:
            with offload_node.client() as slow:
                assert digest(slow.get(key)) == wanted[key]
            done.set()

        thread = threading.Thread(target=read)
        thread.start()
        eventually(lambda: client.stats()["load"]["under_way"] == 1, "the slow read to begin")
        for _ in range(200):
            assert client.exists("held")
            client.put("quick", b"quick")
            assert client.remove("quick")
        assert not done.is_set(), "the others were as slow as the slow one"
        assert idle.run("digest(view)") == digest(pattern("held", MIB))
        thread.join()
        assert done.is_set()


# -- a remove is for ever ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [150, pytest.param(20_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_a_late_remove_of_an_old_generation_never_harms_the_new_one(
    offload_node: NodeProcess, make_worker: MakeWorker, rounds: int
) -> None:
    """While everything is being offloaded and brought back around it."""
    others = make_worker(offload_node)
    others.start("""
        count = 0
        while not c.exists('stop'):
            c.put(f'other {count}', pattern(count, 1 << 20), softpin=True)
            if count >= 100:
                c.remove(f'other {count - 100}')
            count += 1
        count
    """)
    with offload_node.client() as client, offload_node.client() as remover:
        views = []
        for number in range(rounds):
            old = client.put("k", pattern(f"old {number}", 100_000), softpin=True)
            if number % 3 == 0:
                views.append((number, client.get("k")))
            assert client.remove("k")
            client.put("k", pattern(f"new {number}", 100_000), softpin=True)
            assert not remover.remove("k", generation=old.generation)
            assert digest(client.get("k")) == digest(pattern(f"new {number}", 100_000))
            assert client.remove("k")
            if len(views) > 10:
                was, view = views.pop(0)
                assert digest(view) == digest(pattern(f"old {was}", 100_000))
        with pytest.raises(NotFoundError):
            client.get("k")
        client.put("stop", b"", softpin=True)
        assert others.result() > 0
