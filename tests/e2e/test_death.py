"""A client killed at any moment is cleaned up at once and exactly once, and nobody else notices."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from mooncake_client import DaemonGoneError, ExistsError, NotFoundError, PutInfo
from tests.support import NodeProcess, Worker, digest, eventually, pattern
from tests.support.bystander import MIB, Bystander

FAULTS = {"MOONCAKE_NODE_FAULTS": "1"}
# Longer than any test: the kill falls inside.
FOR_EVER_MS = 600_000
# In the daemon, whose step goes on when its client is dead.
A_WHILE_MS = 400


def kill_at(victim: Worker, point: str, start: int, call: str) -> None:
    """Let *victim* run into a fault point of its own, and kill it there."""
    victim.run(f"c.inject_fault({point!r}, 'sleep', {FOR_EVER_MS}, start={start})")
    victim.run_in_background(call)
    eventually(lambda: victim.run(f"c.get_fault_status({point!r})['fired']"), f"the client to be at {point}")
    victim.kill()


@pytest.mark.parametrize(
    ("point", "start", "call"),
    [
        ("ClientPutAfterStart", 1, "c.put('k', pattern(1, 5_000_000))"),
        ("ClientPutInsideCopy", 1, "c.put('k', pattern(1, 5_000_000))"),
        ("ClientPutBeforeEnd", 1, "c.put('k', pattern(1, 5_000_000))"),
        ("ClientPutInsideCopy", 3, "c.put_many({f'k{i}': pattern(i, 500_000) for i in range(5)})"),
        ("ClientPutBeforeEnd", 1, "c.upsert('shared', pattern(1, 5_000_000))"),
        ("ClientPutAfterStart", 1, "c.create('k', 5_000_000)"),
        ("ClientGetAfterAcquire", 1, "c.get_buffer('shared')"),
    ],
)
def test_a_client_killed_inside_its_call_leaves_nothing(
    shared_node: NodeProcess, make_worker, point: str, start: int, call: str
) -> None:
    with Bystander(shared_node) as bystander:
        kill_at(make_worker(shared_node, env=FAULTS), point, start, call)
        bystander.check()
        assert not bystander.client.exists("k")
        bystander.client.put_from("k", pattern("next", MIB), timeout=0)
        assert digest(bystander.client.get("k")) == digest(pattern("next", MIB))
        bystander.client.remove("k")


@pytest.mark.parametrize(
    ("point", "call"),
    [
        ("NodeBeforePutStart", "c.put('k', pattern(1, MIB))"),
        ("NodeAfterPutStart", "c.put('k', pattern(1, MIB))"),
        ("NodeBeforePutEnd", "c.put('k', pattern(1, MIB))"),
        ("NodeAfterPutEnd", "c.put('k', pattern(1, MIB))"),
        ("NodeAfterAcquire", "c.get_buffer('shared')"),
    ],
)
def test_a_client_killed_while_the_daemon_serves_it_leaves_nothing(
    shared_node: NodeProcess, make_worker, point: str, call: str
) -> None:
    with Bystander(shared_node) as bystander:
        client = bystander.client
        victim = make_worker(shared_node)
        victim.run(f"MIB = {MIB}")
        client.inject_fault_local_master(point, "sleep", A_WHILE_MS, times=2)
        victim.run_in_background(call)
        eventually(lambda: client.get_fault_status_local_master(point)["fired"], f"the daemon to be at {point}")
        victim.kill()
        # Sleeps at the same point, but began later: when it is done, so is what was begun for the dead one.
        client.put_from("later", pattern("later", MIB))
        assert digest(client.get("later")) == digest(pattern("later", MIB))
        client.remove("later")
        assert client.get_fault_status_local_master(point)["fired"] == 2
        # All or nothing, also where the object became visible before its writer died.
        if point != "NodeAfterAcquire" and client.exists("k"):
            assert digest(client.get("k")) == digest(pattern(1, MIB))
            client.remove("k")
        bystander.check()


def test_a_reader_killed_before_it_hears_of_its_handle_leaves_none(shared_node: NodeProcess, make_worker) -> None:
    point = "NodeBeforeAnswerWaiter"
    with Bystander(shared_node) as bystander:
        victim = make_worker(shared_node)
        draft = bystander.client.create("k", MIB)
        victim.run_in_background("c.get_buffer('k')")
        eventually(lambda: bystander.stat("waiting") == 1, "the reader to wait")
        bystander.client.inject_fault_local_master(point, "sleep", A_WHILE_MS)
        draft.publish()
        eventually(
            lambda: bystander.client.get_fault_status_local_master(point)["fired"], f"the daemon to be at {point}"
        )
        assert bystander.stat("handles") == bystander.before["handles"] + 1
        victim.kill()
        bystander.client.remove("k")
        bystander.check()


def test_a_death_that_is_slow_to_be_cleaned_up_holds_up_nobody(shared_node: NodeProcess, make_worker) -> None:
    with Bystander(shared_node) as bystander:
        client = bystander.client
        victim = make_worker(shared_node)
        victim.run(f"c.put('k', pattern(1, {MIB})); h = c.get_buffer('k'); b = c.create('half', {MIB})")
        client.remove("k")
        client.inject_fault_local_master("NodeBeforeFree", "sleep", A_WHILE_MS)
        victim.kill()
        eventually(lambda: client.get_fault_status_local_master("NodeBeforeFree")["fired"], "the death to be heard of")
        client.put_from("k", pattern(2, MIB))
        assert digest(client.get("k")) == digest(pattern(2, MIB))
        client.remove("k")
        bystander.check()


@pytest.mark.parametrize("count", [1000, pytest.param(20_000, marks=pytest.mark.long)])
def test_a_client_killed_with_its_views_gives_them_all_back_once(
    shared_node: NodeProcess, make_worker, count: int
) -> None:
    with Bystander(shared_node) as bystander:
        client = bystander.client
        client.put_many({f"k{i}": pattern(i, 2000) for i in range(count)})
        victim, reader = make_worker(shared_node), make_worker(shared_node)
        for worker in (victim, reader):
            worker.run(f"handles = c.get_buffers(f'k{{i}}' for i in range({count}))")
        assert bystander.stat("handles") == bystander.before["handles"] + 2 * count
        client.remove_many(f"k{i}" for i in range(0, count, 2))
        victim.kill()
        eventually(lambda: bystander.stat("handles") == bystander.before["handles"] + count, "one handle each")
        # What was removed is kept for the reader alone, and its bytes are what they were.
        assert client.stats()["stash"]["objects"] == count // 2
        assert reader.run("[digest(h.view) for h in handles]") == [digest(pattern(i, 2000)) for i in range(count)]
        reader.kill()
        client.remove_prefix("k")
        bystander.check()


def test_a_client_killed_while_it_waits_for_room_leaves_the_queue_to_the_next(
    shared_node: NodeProcess, make_worker
) -> None:
    with Bystander(shared_node) as bystander:
        victim, other = make_worker(shared_node), make_worker(shared_node)
        block = bystander.client.create("block", 40 * MIB)
        victim.run_in_background(f"c.put_from('k', pattern(1, {30 * MIB}))")
        eventually(lambda: bystander.stat("waiting_puts") == 1, "the victim to wait for room")
        other.run_in_background(f"c.put_from('other', pattern(2, {30 * MIB}))")
        eventually(lambda: bystander.stat("waiting_puts") == 2, "the other to wait for room")
        victim.kill()
        eventually(lambda: bystander.stat("waiting_puts") == 1, "the victim to have left the queue")
        block.abort()
        assert isinstance(other.background_result(), PutInfo)
        assert digest(bystander.client.get("other")) == digest(pattern(2, 30 * MIB))
        assert not bystander.client.exists("k")
        bystander.client.remove("other")
        other.kill()
        bystander.check()


def test_the_room_of_a_killed_client_goes_to_those_who_wait_for_it(shared_node: NodeProcess, make_worker) -> None:
    """Whatever kind of hold it had: unpublished, and removed but still read."""
    with Bystander(shared_node) as bystander:
        victim, other = make_worker(shared_node), make_worker(shared_node)
        victim.run(f"c.create('removed', {20 * MIB}).publish(); h = c.get_buffer('removed'); c.remove('removed')")
        victim.run(f"b = c.create('k', {20 * MIB})")
        other.run_in_background(f"c.put_from('k', pattern(2, {50 * MIB}))")
        eventually(lambda: bystander.stat("waiting") == 1, "the other to wait")
        victim.kill()
        assert isinstance(other.background_result(), PutInfo)
        assert digest(bystander.client.get("k")) == digest(pattern(2, 50 * MIB))
        bystander.client.remove("k")
        other.kill()
        bystander.check()


@pytest.mark.parametrize("call", ["c.put('k', b'late')", "c.upsert('k', b'late')", "c.get_buffer('k')", "c.wait('k')"])
def test_a_client_killed_while_it_waits_for_a_writer_leaves_nothing(
    shared_node: NodeProcess, make_worker, call: str
) -> None:
    with Bystander(shared_node) as bystander:
        victim = make_worker(shared_node)
        with bystander.client.create("k", MIB) as draft:
            victim.run_in_background(call)
            eventually(lambda: bystander.stat("waiting") == 1, "the victim to wait")
            victim.kill()
            eventually(lambda: bystander.stat("waiting") == 0, "the victim to wait no more")
            draft.view[:] = pattern(3, MIB)
        assert digest(bystander.client.get("k")) == digest(pattern(3, MIB))
        bystander.client.remove("k")
        bystander.check()


def test_a_killed_writer_is_followed_by_exactly_one_of_those_who_wait(shared_node: NodeProcess, make_worker) -> None:
    with Bystander(shared_node) as bystander, ThreadPoolExecutor(5) as pool:
        victim = make_worker(shared_node)
        victim.run(f"b = c.create('k', {MIB}); b.view[:1000] = b'x' * 1000")
        clients = [shared_node.client() for _ in range(5)]
        puts = [pool.submit(clients[i].put_from, "k", pattern(i, MIB)) for i in range(3)]
        gets = [pool.submit(lambda client: digest(client.get("k")), client) for client in clients[3:]]
        eventually(lambda: bystander.stat("waiting") == 5, "all to wait")
        victim.kill()
        errors = [put.exception() for put in puts]
        winner = errors.index(None)
        assert [type(error) for i, error in enumerate(errors) if i != winner] == [ExistsError, ExistsError]
        assert [get.result() for get in gets] == [digest(pattern(winner, MIB))] * 2
        for client in clients:
            client.close()
        bystander.client.remove("k")
        bystander.check()


def test_readers_of_a_killed_writer_hear_at_once_that_there_is_nothing(shared_node: NodeProcess, make_worker) -> None:
    with Bystander(shared_node) as bystander, ThreadPoolExecutor(1) as pool:
        victim = make_worker(shared_node)
        victim.run(f"b = c.create('k', {MIB})")
        reader = shared_node.client()
        got = pool.submit(reader.get_buffer, "k")
        eventually(lambda: bystander.stat("waiting") == 1, "the reader to wait")
        victim.kill()
        with pytest.raises(NotFoundError, match="its writer gave up"):
            got.result()
        reader.close()
        bystander.check()


def test_a_living_client_that_lost_its_connection_waits_no_more_and_keeps_its_views(
    shared_node: NodeProcess, make_worker
) -> None:
    with Bystander(shared_node) as bystander:
        worker = make_worker(shared_node)
        block = bystander.client.create("block", 40 * MIB)
        worker.run("h = c.get_buffer('shared')")
        worker.run_in_background(f"c.put_from('k', pattern(1, {30 * MIB}))")
        eventually(lambda: bystander.stat("waiting_puts") == 1, "the put to wait")
        worker.run("c._link.lose()")
        assert isinstance(worker.background_result(), DaemonGoneError)
        eventually(lambda: bystander.stat("waiting_puts") == 0, "the put to wait no more")
        block.abort()
        eventually(lambda: bystander.stat("unpublished") == 0, "the room to be free")
        assert bystander.stat("handles") == bystander.before["handles"] + 1
        assert worker.run("digest(h.view)") == digest(pattern("shared", MIB))
        # Attached anew beside what it still holds through the old connection.
        assert worker.run("digest(c.get('shared'))") == digest(pattern("shared", MIB))
        worker.kill()
        bystander.check()


def test_connections_that_ended_are_no_clients_while_their_process_lives_on(shared_node: NodeProcess) -> None:
    with Bystander(shared_node) as bystander:
        for _ in range(20):
            bystander.client.list_faults_local_master()
        bystander.check()
