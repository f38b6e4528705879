"""A client that is stopped for a while loses nothing, and costs others their deadline, never its memory."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from mooncake_client import NoSpaceError, NotReadyError, PutInfo, StoreError
from tests.support import NodeProcess, digest, eventually, pattern
from tests.support.bystander import MIB, Bystander

FAULTS = {"MOONCAKE_NODE_FAULTS": "1"}
# How long it is stopped: longer than the timeouts it was given itself, in the long run also than the default one.
STOPS_S = [2, pytest.param(60, marks=[pytest.mark.long, pytest.mark.timeout(300)])]


def fails_at_its_deadline(pool: ThreadPoolExecutor, calls: list, error: type[StoreError], *words: str) -> None:
    """Each of *calls* raises *error* with all *words* in its message; they run side by side, as each takes its time."""
    for future in [pool.submit(call) for call in calls]:
        with pytest.raises(error) as caught:
            future.result()
        for word in words:
            assert word in str(caught.value), (word, str(caught.value))


@pytest.mark.parametrize("stop_s", STOPS_S)
def test_views_of_a_stopped_client_stay_right_while_the_pool_is_used_up(
    shared_node: NodeProcess, make_worker, stop_s: float
) -> None:
    with Bystander(shared_node) as bystander, ThreadPoolExecutor() as pool:
        client = bystander.client
        worker = make_worker(shared_node)
        client.put_from("k", pattern(1, 32 * MIB))
        worker.run("h = c.get_buffer('k'); again = c.get_buffer('k').view[5:]")
        worker.pause()
        client.remove("k")
        client.put_from("k", pattern(2, 20 * MIB), softpin=True)
        fails_at_its_deadline(
            pool,
            [lambda: client.put_from("more", pattern(3, 20 * MIB), timeout=stop_s)],
            NoSpaceError,
            f"1 removed but still read ({32 * MIB} bytes)",
        )
        worker.resume()
        assert worker.run("digest(h.view), digest(again)") == (
            digest(pattern(1, 32 * MIB)),
            digest(pattern(1, 32 * MIB)[5:]),
        )
        assert worker.run("digest(c.get('k'))") == digest(pattern(2, 20 * MIB))
        # Its releases are heard of as those of any other client.
        more = pool.submit(client.put_from, "more", pattern(3, 30 * MIB))
        eventually(lambda: bystander.stat("waiting_puts") == 1, "the put to wait for room")
        worker.run("h.release(); again = None")
        assert isinstance(more.result(), PutInfo)
        assert worker.run("digest(c.get('more'))") == digest(pattern(3, 30 * MIB))
        client.remove_many(["k", "more"])
        worker.kill()
        bystander.check()


@pytest.mark.parametrize("stop_s", STOPS_S)
def test_a_writer_stopped_in_its_copy_costs_others_their_deadline_and_finishes(
    shared_node: NodeProcess, make_worker, stop_s: float
) -> None:
    with Bystander(shared_node) as bystander, ThreadPoolExecutor() as pool:
        client = bystander.client
        worker = make_worker(shared_node, client_args="name='sleepyhead'", env=FAULTS)
        worker.run(f"c.inject_fault('ClientPutInsideCopy', 'sleep', {1000 * (stop_s + 2)})")
        worker.run_in_background(f"c.put_from('k', pattern(1, {30 * MIB}), timeout=1)")
        eventually(lambda: worker.run("c.get_fault_status('ClientPutInsideCopy')['fired']"), "the copy to be half done")
        worker.pause()
        assert not client.exists("k")
        fails_at_its_deadline(
            pool,
            [
                lambda: client.get("k", timeout=stop_s),
                lambda: client.get_buffer("k", timeout=stop_s),
                lambda: client.put("k", b"mine", timeout=stop_s),
                lambda: client.upsert("k", b"mine", timeout=stop_s),
            ],
            NotReadyError,
            f"still being written by sleepyhead (pid {worker.pid})",
        )
        # Nor does anybody get its room.
        fails_at_its_deadline(
            pool,
            [lambda: client.put_from("more", pattern(2, 40 * MIB), timeout=0)],
            NoSpaceError,
            f"1 being written ({30 * MIB} bytes)",
        )
        client.put_from("more", pattern(2, 20 * MIB), timeout=0)
        worker.resume()
        assert isinstance(worker.background_result(), PutInfo)
        assert digest(client.get("k")) == digest(pattern(1, 30 * MIB))
        assert digest(client.get("more")) == digest(pattern(2, 20 * MIB))
        client.remove_many(["k", "more"])
        worker.kill()
        bystander.check()


@pytest.mark.parametrize("stop_s", STOPS_S)
def test_a_put_stopped_while_it_waits_keeps_its_place_and_the_room_it_is_given(
    shared_node: NodeProcess, make_worker, stop_s: float
) -> None:
    with Bystander(shared_node) as bystander, ThreadPoolExecutor() as pool:
        client = bystander.client
        worker = make_worker(shared_node, client_args="name='sleepyhead'")
        block = client.create("block", 40 * MIB)
        worker.run_in_background(f"c.put_from('k', pattern(1, {30 * MIB}), softpin=True, timeout=200)")
        eventually(lambda: bystander.stat("waiting_puts") == 1, "the worker to wait for room")
        worker.pause()
        behind = pool.submit(client.put_from, "behind", pattern(2, 40 * MIB), timeout=200)
        eventually(lambda: bystander.stat("waiting_puts") == 2, "another to wait behind it")
        block.abort()
        eventually(
            lambda: (bystander.stat("waiting_puts"), bystander.stat("unpublished")) == (1, 1),
            "the stopped one to be given its room",
        )
        fails_at_its_deadline(
            pool,
            [lambda: client.get("k", timeout=stop_s)],
            NotReadyError,
            f"still being written by sleepyhead (pid {worker.pid})",
        )
        worker.resume()
        assert isinstance(worker.background_result(), PutInfo)
        assert digest(client.get("k")) == digest(pattern(1, 30 * MIB))
        client.remove("k")
        assert isinstance(behind.result(), PutInfo)
        assert digest(client.get("behind")) == digest(pattern(2, 40 * MIB))
        client.remove("behind")
        worker.kill()
        bystander.check()


@pytest.mark.parametrize("stop_s", STOPS_S)
def test_a_waiting_call_whose_deadline_passes_while_it_is_stopped_hears_why(
    shared_node: NodeProcess, make_worker, stop_s: float
) -> None:
    """The daemon's answer, not the client's own guess that the daemon be stuck."""
    with Bystander(shared_node) as bystander, ThreadPoolExecutor() as pool:
        client = bystander.client
        reader, writer = make_worker(shared_node), make_worker(shared_node)
        draft = client.create("k", 40 * MIB)
        reader.run_in_background("c.get('k', timeout=0.5)")
        writer.run_in_background(f"c.put_from('new', pattern(1, {30 * MIB}), timeout=0.5)")
        reader.pause()
        writer.pause()
        fails_at_its_deadline(
            pool,
            [lambda: client.get("k", timeout=stop_s), lambda: client.put("k", b"mine", timeout=stop_s)],
            NotReadyError,
            "still being written by bystander",
        )
        reader.resume()
        writer.resume()
        assert isinstance(reader.background_result(), NotReadyError)
        assert isinstance(writer.background_result(), NoSpaceError)
        draft.abort()
        reader.kill()
        writer.kill()
        bystander.check()


def test_a_copy_that_outlasts_its_deadline_is_published_by_a_busy_daemon(shared_node: NodeProcess, make_worker) -> None:
    with Bystander(shared_node) as bystander:
        client = bystander.client
        worker = make_worker(shared_node, env=FAULTS)
        worker.run("c.inject_fault('ClientPutInsideCopy', 'sleep', 1500)")
        client.inject_fault_local_master("NodeBeforePutEnd", "sleep", 400)
        assert isinstance(worker.run(f"c.put_from('k', pattern(1, {MIB}), timeout=0.1)"), PutInfo)
        assert digest(client.get("k")) == digest(pattern(1, MIB))
        client.remove("k")
        worker.kill()
        bystander.check()


def test_a_writer_stopped_between_its_last_store_and_its_publish_keeps_its_room(shared_node: NodeProcess) -> None:
    """The end of the view gave the room up, and a revoke that overtook the end of the put lost the object."""
    with Bystander(shared_node) as bystander:
        draft = bystander.client.create("k", MIB)
        writable = draft._end_writing()
        session = draft._link.attachment.session
        assert not session.given_up
        assert list(session.drafts) == [draft._replica_id]
        draft.abort()
        del writable
        bystander.check()
