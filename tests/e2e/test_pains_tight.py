"""Others' pains with a pool that is always full, each from a public report: what may go goes, what is read stays."""

import time
from collections.abc import Callable

import pytest

from mooncake_client import Client, InvalidArgumentError, NoSpaceError, NotFoundError, PutInfo, StoreError, wire
from mooncake_client.arguments import Deadline
from tests.support import NodeProcess, Worker, digest, eventually, pattern

MIB = 1 << 20
POOL_NBYTES = 64 * MIB
OBJECTS = POOL_NBYTES // MIB
MakeWorker = Callable[..., Worker]
MakeNode = Callable[..., NodeProcess]


def fill(client: Client, count: int, prefix: str, **kwargs) -> list[str]:
    """Put *count* objects of 1 MiB; their keys."""
    keys = [f"{prefix}{number}" for number in range(count)]
    for key in keys:
        client.put(key, pattern(key, MIB), **kwargs)
    return keys


def is_right(key: str, data: object) -> bool:
    return digest(data) == digest(pattern(key, MIB))


# -- a full pool goes on taking puts ----------------------------------------------------------------------------------


def test_probes_protect_nothing_and_views_do(shared_node: NodeProcess, make_worker: MakeWorker) -> None:
    probers = [make_worker(shared_node) for _ in range(2)]
    with shared_node.client() as client:
        keys = fill(client, OBJECTS, "old ")
        for prober in probers:
            prober.start(f"""
                keys, probes = {keys!r}, 0
                while not c.exists('stop'):
                    c.exists_many(keys)
                    probes += 1
                probes
            """)
        fill(client, 2 * OBJECTS, "new ")
        assert client.stats()["reclaim"]["dropped"] >= OBJECTS
        client.put("stop", b"")
        assert all(prober.result() > 0 for prober in probers)

        held = [
            got for got in client.get_buffers([info.key for info in client.list()]) if not isinstance(got, StoreError)
        ]
        while not isinstance(client.put_many({"x": pattern("x", MIB)}, timeout=0)["x"], NoSpaceError):
            held.append(client.get_buffer("x"))
            client.remove("x")
        with pytest.raises(NoSpaceError, match=r"held by readers.*by .*pid \d+") as refused:
            client.put("one more", bytes(MIB), timeout=0.2)
        assert refused.value.code == -200
        before = client.stats()["reclaim"]
        held.clear()
        client.put("one more", bytes(MIB))
        assert client.stats()["reclaim"]["dropped"] > before["dropped"]


def test_nothing_is_looked_at_while_nothing_can_go(shared_node: NodeProcess) -> None:
    """Soft pins with nowhere to go, and views: the put fails by its deadline, and no pass was spent on it."""
    with shared_node.client() as client:
        fill(client, OBJECTS - 8, "pinned ", softpin=True)
        held = []
        for number in range(8):
            client.put(f"read {number}", bytes(MIB))
            held.append(client.get_buffer(f"read {number}"))
        before = client.stats()["reclaim"]["passes"]
        with pytest.raises(NoSpaceError, match="no offload directory"):
            client.put("more", bytes(MIB), timeout=0.3)
        assert client.stats()["reclaim"]["passes"] == before
        del held


def test_a_large_put_gets_its_room_among_small_cold_objects(shared_node: NodeProcess) -> None:
    with shared_node.client() as client:
        small = client.put_many({f"small {number}": bytes(64 << 10) for number in range(16 * OBJECTS)})
        assert all(isinstance(result, PutInfo) for result in small.values())
        data = pattern("large", 40 * MIB)
        client.put("large", data)
        assert digest(client.get("large")) == digest(data)


# -- what is read stays as it is --------------------------------------------------------------------------------------


def test_a_stopped_reader_still_has_its_bytes_after_three_pools_of_other_data(
    shared_node: NodeProcess, make_worker: MakeWorker
) -> None:
    reader = make_worker(shared_node)
    with shared_node.client() as client:
        client.put("k", pattern("k", 32 * MIB))
        reader.run("handle = c.get_buffer('k')")
        reader.pause()
        assert client.remove("k")
        fill(client, 3 * OBJECTS, "other ")
        reader.resume()
        assert reader.run("digest(handle.view)") == digest(pattern("k", 32 * MIB))


@pytest.mark.parametrize("reads", [40, pytest.param(1000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_a_read_that_dawdles_between_look_up_and_copy_is_right_or_an_error(
    make_node: MakeNode, make_worker: MakeWorker, reads: int
) -> None:
    node = make_node("--faults")
    putter = make_worker(node)
    reader = make_worker(node, env={"MOONCAKE_NODE_FAULTS": "1"})
    with node.client() as client:
        for number in range(OBJECTS):
            client.put(f"k{number}", pattern(number, MIB))
    putter.start("""
        for number in range(10**9):
            c.put(f'k{number % 200}', pattern(number % 200, 1 << 20)) if not c.exists(f'k{number % 200}') else None
            if c.exists('stop'):
                break
        number
    """)
    outcomes = reader.run(f"""
        import random
        right = missing = 0
        buffer = bytearray(1 << 20)
        for _ in range({reads}):
            number = random.randrange(200)
            c.inject_fault('ClientGetAfterAcquire', 'sleep', random.randrange(100))
            try:
                c.get_into(f'k{{number}}', buffer)
            except KeyError:
                missing += 1
            else:
                assert bytes(buffer) == pattern(number, 1 << 20), number
                right += 1
        right, missing
    """)
    with node.client() as client:
        client.put("stop", b"", softpin=True)
        assert putter.result() > 0
    assert sum(outcomes) == reads
    assert outcomes[0] > 0


def test_what_was_granted_stays_until_released_or_its_holder_dies(
    shared_node: NodeProcess, make_worker: MakeWorker
) -> None:
    with shared_node.client() as client:
        for ending in ("release", "kill"):
            keys = fill(client, 40, f"{ending} ")
            holder = make_worker(shared_node)
            granted = holder.run(f"""
                held = c.get_buffers({keys!r})
                sum(not isinstance(got, Exception) for got in held)
            """)
            assert granted == 40
            fill(client, 5 * OBJECTS, f"{ending} new ")
            wanted = {key: digest(pattern(key, MIB)) for key in keys}
            assert holder.run("[digest(got.view) for got in held]") == list(wanted.values())
            if ending == "release":
                holder.run("del held")
            else:
                holder.kill()
            fill(client, 4 * OBJECTS, f"{ending} again ")
            assert not any(client.exists_many(keys))
            client.remove_all()


# -- pins -------------------------------------------------------------------------------------------------------------


def test_soft_pins_end_at_their_deadline_whoever_reads_meanwhile(make_node: MakeNode) -> None:
    node = make_node("--set", "hard_pin_max_bytes=8MiB", "--set", "softpin_ttl_max=60s")
    with node.client() as client:
        hard = fill(client, 4, "hard ", hardpin=True)
        soft = fill(client, 20, "soft ", softpin=True, softpin_ttl=4)
        fill(client, 20, "plain ")
        fill(client, 22, "more ")
        # Only ordinary ones went, if any.
        assert all(client.exists_many(soft + hard))
        while client.stats()["pinned"]["soft_bytes"]:
            # Reading extends nothing.
            for key in soft:
                assert is_right(key, client.get(key))
            time.sleep(0.1)
        assert client.info(soft[0]).softpin is False
        fill(client, 4 * OBJECTS, "later ")
        assert not any(client.exists_many(soft))
        assert all(is_right(key, client.get(key)) for key in hard)
        assert client.stats()["pinned"]["hard_bytes"] == 4 * MIB
        with pytest.raises(InvalidArgumentError, match="0 to 60 s") as refused:
            client.put("x", b"", softpin=True, softpin_ttl=61)
        assert refused.value.code == -600
        client.put("ordinary", b"", softpin=True, softpin_ttl=0)
        assert client.info("ordinary").softpin is False
        with pytest.raises(NoSpaceError, match="hard pins hold"):
            client.put("too much", bytes(5 * MIB), hardpin=True, timeout=0.2)


# -- leases -----------------------------------------------------------------------------------------------------------


def test_a_leased_replica_stays_until_its_lease_ends_and_reclaim_never_looks_in_vain(make_node: MakeNode) -> None:
    """The load of the posts, shortened: readers that release early, late or never, on a pool that is full."""
    node = make_node("--set", "default_kv_lease_ttl=1s")
    with node.client() as client:
        tokens = []
        for key in fill(client, 30, "leased "):
            [replica] = ask(client, wire.GetReplicaList(0, [], key)).items
            assert replica.tier == "memory"
            assert 0 < replica.lease_ms <= 1000
            tokens.append((key, replica.replica_id, replica.lease_token))
        assert client.stats()["leases"] == 30
        [holder] = client.holders("leased 0")
        assert "leased for another" in holder.note
        for number in range(2 * OBJECTS):
            client.put(f"new {number}", pattern(number, MIB))
            if number % 8 == 0:
                key, replica_id, token = tokens[number // 8]
                # Twice, and once with a token that is not its own: a hint, never an error.
                for said in (token, token, token + 10_000):
                    ask(client, wire.ReleaseLease(0, [], key, replica_id, said))
        eventually(lambda: client.stats()["leases"] == 0, "the leases that nobody released to run out")
        fill(client, 4 * OBJECTS, "last ")
        assert not any(client.exists_many([key for key, _, _ in tokens]))
        reclaim = client.stats()["reclaim"]
        assert reclaim["parked_lease_only"] == 30
        assert reclaim["productive_passes"] >= 0.99 * reclaim["passes"]


def test_an_unknown_key_has_no_replicas(shared_node: NodeProcess) -> None:
    with shared_node.client() as client, pytest.raises(NotFoundError):
        ask(client, wire.GetReplicaList(0, [], "nothing"))


def ask(client: Client, request: wire.Request) -> wire.AnyReply:
    """As a node on behalf of its clients does."""
    return client._attached().call(request, Deadline(30.0))
