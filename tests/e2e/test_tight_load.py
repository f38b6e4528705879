"""The whole at once: a full pool, a disk, ten times as much pinned data, kills and faults, and every byte right."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import NodeProcess, Worker, eventually

MIB = 1 << 20
MakeWorker = Callable[..., Worker]
MakeNode = Callable[..., NodeProcess]

TIER_POINTS = ("TierBeforeWrite", "TierAfterWrite", "TierBeforeRename", "TierAfterRename", "TierBeforeRead")

# Each client owns the keys of its number, so that it knows what must be there: put, read anyone's, remove, put again.
CLIENT = """
import random, time
rng = random.Random({seed})
mine, until = {{}}, time.monotonic() + {seconds}
count = wrong = failed = 0
def data_of(key, nbytes):
    return pattern(key, nbytes)
while time.monotonic() < until:
    key = f'{number} {{rng.randrange({keys})}} {{count}}'
    nbytes = rng.choice((200, 5_000, 70_000, 1 << 20, 3 << 20))
    try:
        if len(mine) < {keys}:
            c.put(key, data_of(key, nbytes), softpin=True)
            mine[key] = nbytes
        elif rng.random() < 0.1:
            gone = rng.choice(list(mine))
            del mine[gone]
            assert c.remove(gone), gone
        else:
            key = rng.choice(list(mine))
            if c.get(key) != data_of(key, mine[key]):
                wrong += 1
    except TransferError:
        failed += 1  # injected: the bytes stay where they are
    count += 1
for key, nbytes in mine.items():
    for attempt in range(100):
        try:
            wrong += c.get(key) != data_of(key, nbytes)
            break
        except TransferError:
            failed += 1
(count, wrong, failed, len(mine))
"""


@pytest.mark.parametrize(
    ("pool_size", "clients", "keys", "seconds"),
    [
        ("64MiB", 4, 200, 20),
        pytest.param("256MiB", 16, 200, 600, marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
    ],
)
def test_every_byte_is_right_on_a_full_pool_with_a_disk_while_clients_die_and_the_disk_fails(
    make_node: MakeNode, make_worker: MakeWorker, tmp_path: Path, pool_size: str, clients: int, keys: int, seconds: int
) -> None:
    node = make_node("--faults", "--offload-dir", str(tmp_path / "tier"), pool_size=pool_size)
    workers = [make_worker(node, client_args="timeout=60") for _ in range(clients)]
    for number, worker in enumerate(workers):
        worker.start(CLIENT.format(seed=number, number=number, seconds=seconds, keys=keys))
    rng = random.Random(1)
    victims = 0
    until = time.monotonic() + seconds
    with node.client(timeout=60) as client:
        while time.monotonic() < until:
            victim = make_worker(node, client_args="timeout=60")
            victim.start(CLIENT.format(seed=victims, number=f"victim {victims}", seconds=seconds, keys=10))
            point = rng.choice(TIER_POINTS)
            client.inject_fault_local_master(point, "return_error", -800, start=rng.randrange(1, 20), times=2)
            time.sleep(rng.uniform(0.2, 2.0))
            victim.kill()
            victim.end()  # its pipes, of which there would be thousands
            victims += 1
            client.remove_prefix(f"victim {victims - 1} ")
        for point in TIER_POINTS:
            client.inject_fault_local_master(point, "reset")
        results = [worker.result(hang_limit_s=600) for worker in workers]
        assert [wrong for _, wrong, _, _ in results] == [0] * clients
        assert all(count > 0 for count, _, _, _ in results)
        stats = client.stats()
        assert stats["offload"]["lost"] == 0
        # A victim may have published its last just before it was heard to be dead.
        for number in range(victims):
            client.remove_prefix(f"victim {number} ")
        assert client.stats()["objects"] == sum(left for _, _, _, left in results)
        assert client.stats()["load"]["from_offload"] > 0
        for worker in workers:
            worker.kill()
        client.remove_all()
        eventually(lambda: client.stats()["pool"]["bytes_used"] == 0, "the pool to be empty")
