"""A cancelled or timed-out call leaves nothing behind, wherever it was; on both event loops."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from mooncake_client import AsyncClient, Client, NotFoundError, StoreError, StoreTimeoutError
from mooncake_client.faults import CLIENT_FAULTS
from tests.client.conftest import is_clean
from tests.support import NodeProcess
from tests.support.waiting import until

BIG = bytes(5 << 20)


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest, daemon: NodeProcess, watcher: Client) -> Callable[..., None]:
    """Run a test's coroutine with a client of each loop."""

    def run(body: Callable[[AsyncClient], Any]) -> None:
        async def main() -> None:
            async with AsyncClient(daemon.socket, name="cancelled") as client:
                await body(client)

        factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())

    return run


async def cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def nothing_is_left(c: AsyncClient, watcher: Client, key: str = "k") -> None:
    """No room, no handle, no waiter; the key is free for the next put, by anybody."""

    def clean() -> bool:
        stats = watcher.stats()
        return stats["unpublished"] == stats["handles"] == stats["waiting"] == 0

    await until(clean, "nothing to be left")
    watcher.put(key, b"next", timeout=0)
    assert bytes(await c.get(key)) == b"next"
    watcher.remove(key)


def test_put_cancelled_while_it_waits_for_room(run, watcher):
    async def body(c: AsyncClient) -> None:
        room = watcher.create("full", 62 << 20)
        task = asyncio.create_task(c.put("k", BIG))
        await until(lambda: watcher.stats()["waiting_puts"] == 1, "the put to wait")
        await cancel(task)
        await until(lambda: watcher.stats()["waiting_puts"] == 0, "nobody to wait")
        room.abort()
        await nothing_is_left(c, watcher)

    run(body)


def test_put_cancelled_while_it_waits_for_another_writer(run, watcher):
    async def body(c: AsyncClient) -> None:
        room = watcher.create("k", 10)
        task = asyncio.create_task(c.put("k", b""))
        await until(lambda: watcher.stats()["waiting"] == 1, "the put to wait")
        await cancel(task)
        room.abort()
        await nothing_is_left(c, watcher)

    run(body)


@pytest.mark.parametrize("point", ["ClientPutAfterStart", "ClientPutInsideCopy", "ClientPutBeforeEnd"])
@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.put("k", BIG),
        lambda c: c.put("k", b"small"),
        lambda c: c.upsert("k", BIG),
        lambda c: c.put_many({"k": BIG, "l": b"small"}),
    ],
    ids=["put", "small put", "upsert", "put_many"],
)
def test_put_cancelled_on_its_way(run, watcher, client_faults, point, call):
    async def body(c: AsyncClient) -> None:
        CLIENT_FAULTS.inject(point, "sleep", 100)
        task = asyncio.create_task(call(c))
        await until(lambda: CLIENT_FAULTS.status(point).fired, "the put to be there")
        await cancel(task)
        await nothing_is_left(c, watcher)
        await nothing_is_left(c, watcher, "l")

    run(body)


def test_cancelled_put_ends_only_after_its_copy_has_stopped(run, watcher, client_faults, monkeypatch):
    half_way, go_on = threading.Event(), threading.Event()

    def hold(point: str) -> None:
        if point == "ClientPutInsideCopy":
            half_way.set()
            go_on.wait()

    async def body(c: AsyncClient) -> None:
        source = bytearray(5 << 20)
        task = asyncio.create_task(c.put_from("k", source))
        try:
            await until(half_way.is_set, "the copy to be under way")
            # A second cancellation is no reason to leave a copy behind either.
            for _ in range(2):
                task.cancel()
                await asyncio.sleep(0)
            # The room is not given back as long as the copy goes on.
            for _ in range(100):
                assert watcher.stats()["unpublished"] == 1
                assert not task.done()
                await asyncio.sleep(0)
        finally:
            go_on.set()
        await until(task.done, "the put to end")
        assert task.cancelled()
        # A copy that went on would hold an export of its source.
        del task
        source.append(1)
        await nothing_is_left(c, watcher)

    monkeypatch.setattr(CLIENT_FAULTS, "hit_blocking", hold)
    run(body)


def test_put_cancelled_when_its_room_is_granted_and_not_yet_known(run, watcher):
    async def body(c: AsyncClient) -> None:
        await c.inject_fault_local_master("NodeAfterPutStart", "sleep", 100)
        task = asyncio.create_task(c.put("k", b"x"))
        await until(lambda: watcher.stats()["unpublished"] == 1, "the room to be granted")
        await cancel(task)
        await nothing_is_left(c, watcher)

    run(body)


@pytest.mark.parametrize("point", ["NodeBeforePutEnd", "NodeAfterPutEnd"])
def test_put_cancelled_while_it_is_published_is_whole_or_absent(run, watcher, point):
    async def body(c: AsyncClient) -> None:
        await c.inject_fault_local_master(point, "sleep", 100)
        ended = watcher.get_fault_status_local_master("NodeAfterPutEnd")["hits"]
        task = asyncio.create_task(c.put("k", b"whole"))
        await until(lambda: watcher.get_fault_status_local_master(point)["fired"], "the end to be told")
        await cancel(task)
        await until(lambda: watcher.stats()["unpublished"] == 0, "the outcome")
        # Where each request passes points of its own, the revoke that follows the end may overtake it.
        if watcher.exists("k") or point == "NodeAfterPutEnd":
            assert watcher.get("k") == b"whole"
        watcher.remove("k")
        # An end that was held up comes all the same, and must not pass the points of the next test.
        await until(
            lambda: watcher.get_fault_status_local_master("NodeAfterPutEnd")["hits"] > ended, "the end to be through"
        )
        await nothing_is_left(c, watcher)

    run(body)


@pytest.mark.parametrize(
    "call", [lambda c: c.get("k"), lambda c: c.get_buffers(["k", "none", "k"]), lambda c: c.wait("k")]
)
def test_reader_cancelled_while_it_waits_for_a_writer(run, watcher, call):
    async def body(c: AsyncClient) -> None:
        room = watcher.create("k", 10)
        task = asyncio.create_task(call(c))
        await until(lambda: watcher.stats()["waiting"] >= 1, "the reader to wait")
        await cancel(task)
        room.publish()
        await until(lambda: watcher.stats()["handles"] == 0, "no handle to be left")
        watcher.remove("k")
        await nothing_is_left(c, watcher)

    run(body)


def test_get_cancelled_when_its_handle_is_granted_and_not_yet_known(run, watcher):
    async def body(c: AsyncClient) -> None:
        watcher.put("k", b"x")
        await c.inject_fault_local_master("NodeAfterAcquire", "sleep", 100)
        task = asyncio.create_task(c.get("k"))
        await until(lambda: watcher.stats()["handles"] == 1, "the handle to be granted")
        await cancel(task)
        await until(lambda: watcher.stats()["handles"] == 0, "the handle to be given back")
        watcher.remove("k")
        await nothing_is_left(c, watcher)

    run(body)


def test_get_cancelled_between_its_handle_and_its_view(run, watcher, client_faults):
    async def body(c: AsyncClient) -> None:
        watcher.put("k", b"x")
        CLIENT_FAULTS.inject("ClientGetAfterAcquire", "sleep", 100)
        task = asyncio.create_task(c.get("k"))
        await until(lambda: CLIENT_FAULTS.status("ClientGetAfterAcquire").fired, "the handle to be here")
        await cancel(task)
        del task
        await until(lambda: watcher.stats()["handles"] == 0, "the handle to be given back")
        watcher.remove("k")
        await nothing_is_left(c, watcher)

    run(body)


def test_calls_cancelled_at_every_step_leave_nothing(run, watcher):
    async def one_round(c: AsyncClient, steps: int) -> None:
        async def calls() -> None:
            await c.put("k", b"x")
            first = await c.get("k")
            second = await c.get_many(["k", "k", "none"])
            async with await c.create("room", 1000) as room:
                room.view[:5] = b"abcde"
            await c.upsert("k", b"y")
            await c.remove_many(["k", "room"])
            del first, second

        task = asyncio.create_task(calls())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except (asyncio.CancelledError, StoreError):
            pass
        await c.remove_many(["k", "room"])

    async def body(c: AsyncClient) -> None:
        for steps in [*range(120), *range(0, 3000, 37)]:
            await one_round(c, steps)
        await until(lambda: watcher.stats()["unpublished"] == watcher.stats()["handles"] == 0, "nothing to be left")

    run(body)


def test_call_timed_out_from_outside_leaves_nothing(run, watcher):
    async def body(c: AsyncClient) -> None:
        room = watcher.create("k", 10)
        for call in (c.get("k"), c.wait("k"), c.put("k", b"")):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(call, 0.02)
        room.abort()
        await nothing_is_left(c, watcher)

    run(body)


def test_fault_between_handle_and_view_gives_the_handle_back(daemon, watcher, client_faults):
    with daemon.client() as c:
        c.put("k", b"x")
        CLIENT_FAULTS.inject("ClientGetAfterAcquire", "return_error", -800)
        with pytest.raises(StoreError):
            c.get("k")
        watcher.remove("k")
        c.exists("k")
        assert watcher.stats()["handles"] == 0


@pytest.mark.parametrize("point", ["ClientPutAfterStart", "ClientPutInsideCopy", "ClientPutBeforeEnd"])
@pytest.mark.parametrize("nbytes", [10, 5 << 20])
def test_fault_inside_a_put_gives_the_room_back(daemon, watcher, client_faults, point, nbytes):
    with daemon.client() as c:
        CLIENT_FAULTS.inject(point, "return_error", -800)
        with pytest.raises(StoreError) as caught:
            c.put("k", bytes(nbytes))
        assert caught.value.code == -800
        assert watcher.stats()["unpublished"] == 0
        with pytest.raises(NotFoundError):
            c.get("k")
        c.put("k", b"")


async def test_cancelled_attach_leaves_no_client(daemon, watcher):
    for _ in range(20):
        c = AsyncClient(daemon.socket)
        task = asyncio.create_task(c.exists("k"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await c.close()
    await until(lambda: is_clean(watcher.stats()), "no client to be left")


async def test_stuck_daemon_is_a_timeout_and_its_late_answers_are_given_back(daemon, watcher):
    watcher.put("k", b"x")
    async with AsyncClient(daemon.socket) as c:
        await c.exists("k")
        os.kill(daemon.process.pid, signal.SIGSTOP)
        try:
            results = await asyncio.gather(
                c.get("k", timeout=0.01),
                c.put("n", b"", timeout=0.01),
                c.wait("k", timeout=0.01),
                return_exceptions=True,
            )
        finally:
            os.kill(daemon.process.pid, signal.SIGCONT)
        assert [type(result) for result in results] == [StoreTimeoutError] * 3
        del results
        await until(
            lambda: watcher.stats()["handles"] == watcher.stats()["unpublished"] == 0, "late answers given back"
        )
        assert bytes(await c.get("k")) == b"x"
