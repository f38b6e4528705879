"""Nodes that die, come back, hang or change their incarnation."""

import asyncio
import signal
import socket
import sys
from pathlib import Path

import pytest

from mooncake_client import wire
from mooncake_node.peers import Pace, PeerGoneError, PeerRefusedError, PeerTimeoutError
from mooncake_node.peers.messages import GetHolders
from tests.support.peers import Node, net, on_uvloop
from tests.support.waiting import until


async def ask(a: Node, name: str = "b", timeout_s: float = 30) -> type:
    return type(await a.links.call(name, GetHolders(0, "k"), timeout_s))


@on_uvloop
async def test_node_that_was_killed_is_gone_and_back_under_the_same_incarnation():
    a, b = Node("a"), Node("b")
    async with net(a, b):
        assert await ask(a) is wire.Done
        endpoint = b.listener.endpoint
        await b.listener.close()
        await until(lambda: a.links.facts()["connected"] == 0, "the end to be noticed")
        with pytest.raises(PeerGoneError, match=f"cannot reach b at {endpoint}"):
            await ask(a)
        await b.restart(1)
        assert await ask(a) is wire.Done
        assert a.links.counters.dials == 3
        assert a.links.counters.dials_failed == 1


@on_uvloop
async def test_node_that_came_back_as_another_is_not_taken_for_the_one_before():
    a, b = Node("a"), Node("b")
    async with net(a, b):
        assert await ask(a) is wire.Done
        await b.restart(2)
        await until(lambda: a.links.facts()["connected"] == 0, "the end to be noticed")
        with pytest.raises(
            PeerRefusedError, match="node 'b', incarnation 2 answers there, not node 'b', incarnation 1"
        ):
            await ask(a)
        with pytest.raises(PeerRefusedError):
            await a.links.dial_data("b")
        assert len(b.asked) == 1
        a.links.set_peers(b.entry)
        assert await ask(a) is wire.Done
        with await a.links.dial_data("b"):
            pass


@on_uvloop
async def test_another_node_at_the_endpoint_is_not_the_one_expected():
    a, c = Node("a"), Node("c")
    async with net(a, c):
        a.links.set_peers({"b": (1, c.listener.endpoint)})
        with pytest.raises(PeerRefusedError, match="node 'c'"):
            await ask(a)
        assert c.asked == []


@on_uvloop
async def test_request_to_the_life_before_is_not_served():
    """A node that was taken for dead lives on under another incarnation; others do not know yet."""
    a, b = Node("a"), Node("b")
    async with net(a, b):
        assert await ask(a) is wire.Done
        b.me.incarnation = 2
        with pytest.raises(PeerGoneError):
            await ask(a)
        assert len(b.asked) == 1


@on_uvloop
async def test_answer_of_the_life_before_is_not_sent():
    a, b = Node("a"), Node("b")

    async def answer(request):
        b.me.incarnation = 2
        return wire.Done(0)

    b.answer = answer
    async with net(a, b):
        with pytest.raises(PeerGoneError):
            await ask(a)


@on_uvloop
async def test_own_new_incarnation_means_a_new_link():
    a, b = Node("a", pace=Pace(backoff_s=1000)), Node("b")
    async with net(a, b):
        assert await ask(a) is wire.Done
        a.me.incarnation = 2
        assert await ask(a) is wire.Done
        assert a.links.counters.dials == 2
        assert {link.peer.incarnation for link in b.listener._links if not link.reason} == {2}


@on_uvloop
async def test_severed_link_is_dialled_anew_at_once():
    a, b = Node("a", pace=Pace(backoff_s=1000)), Node("b")
    async with net(a, b):
        for dials in (1, 2, 3):
            assert await ask(a) is wire.Done
            assert a.links.counters.dials == dials
            a.links.sever("b")
        b.listener.sever("a")


# -- backing off ------------------------------------------------------------------------------------------------------


@on_uvloop
async def test_while_the_next_dial_has_to_wait_calls_fail_at_once_and_say_why():
    a, b = Node("a", pace=Pace(backoff_s=1000, backoff_max_s=3000)), Node("b")
    async with net(a, b):
        await b.listener.close()
        with pytest.raises(PeerGoneError, match="cannot reach b"):
            await ask(a)
        for _ in range(3):
            with pytest.raises(PeerGoneError, match="cannot reach b .*; not tried again for"):
                await ask(a)
            with pytest.raises(PeerGoneError, match="not tried again"):
                await a.links.dial_data("b")
        assert a.links.counters.dials == 1


@on_uvloop
async def test_backing_off_doubles_up_to_its_limit_with_jitter_and_ends_with_an_answer():
    a, b = Node("a", pace=Pace(backoff_s=1000, backoff_max_s=3000)), Node("b")
    loop = asyncio.get_running_loop()
    async with net(a, b):
        line = a.links._lines["b"]
        await b.listener.close()
        for longest in (1000, 2000, 3000, 3000):
            line._retry_at = 0.0
            with pytest.raises(PeerGoneError):
                await ask(a)
            assert longest * 0.4 < line._retry_at - loop.time() <= longest
        line._retry_at = 0.0
        await b.restart(1)
        assert await ask(a) is wire.Done
        await b.listener.close()
        await until(lambda: not line.is_connected, "the end to be noticed")
        with pytest.raises(PeerGoneError):
            await ask(a)
        assert line._retry_at - loop.time() <= 1000


@on_uvloop
async def test_node_that_lets_in_and_hangs_up_at_once_is_not_dialled_without_end():
    a, b = Node("a", pace=Pace(backoff_s=1000)), Node("b")

    async def answer(request):
        b.listener.sever("a")

    b.answer = answer
    async with net(a, b):
        with pytest.raises(PeerGoneError):
            await ask(a)
        with pytest.raises(PeerGoneError, match="not tried again"):
            await ask(a)


# -- hanging ----------------------------------------------------------------------------------------------------------


@on_uvloop
async def test_node_that_accepts_and_says_nothing_costs_its_callers_their_time_only():
    a, c = Node("a", pace=Pace(handshake_timeout_s=1000)), Node("c")
    async with net(a, c):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            a.links.set_peers({"b": (1, f"127.0.0.1:{silent.getsockname()[1]}"), **c.entry})
            waiting = asyncio.ensure_future(ask(a, "b", 1000))
            with pytest.raises(PeerTimeoutError):
                await ask(a, "b", 0.05)
            assert await ask(a, "c") is wire.Done
            assert not waiting.done()
            a.links.set_peers(c.entry)
            with pytest.raises(PeerGoneError, match="does not live any more"):
                await waiting


@on_uvloop
async def test_handshake_that_is_not_answered_ends_the_dial():
    a = Node("a", pace=Pace(handshake_timeout_s=0.05, backoff_s=1000))
    async with net(a):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            a.links.set_peers({"b": (1, f"127.0.0.1:{silent.getsockname()[1]}")})
            with pytest.raises(PeerGoneError, match="no handshake in 0.05 s"):
                await ask(a)
            with pytest.raises(PeerGoneError, match="not tried again"):
                await ask(a)


@pytest.mark.parametrize("endpoint", ["nonsense", "host:port", "127.0.0.1:99999", ":1"])
@on_uvloop
async def test_endpoint_that_is_none_is_a_node_that_is_gone(endpoint):
    a = Node("a")
    async with net(a):
        a.links.set_peers({"b": (1, endpoint)})
        with pytest.raises(PeerGoneError, match="is not host:port"):
            await ask(a)


CHILD = """
import asyncio, uvloop
from tests.support.peers import Node

async def main():
    node = Node("b")
    await node.listener.start()
    print(node.listener.endpoint, flush=True)
    await asyncio.Event().wait()

uvloop.run(main())
"""


@on_uvloop
async def test_stopped_process_costs_its_callers_their_time_and_serves_on_when_it_runs_again():
    a, c = Node("a"), Node("c")
    async with net(a, c):
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CHILD, stdout=asyncio.subprocess.PIPE, cwd=Path.cwd()
        )
        try:
            assert child.stdout is not None
            a.links.set_peers({"b": (1, (await child.stdout.readline()).decode().strip()), **c.entry})
            assert await ask(a) is wire.Done
            child.send_signal(signal.SIGSTOP)
            calls = [asyncio.ensure_future(ask(a, timeout_s=0.2)) for _ in range(3)]
            assert await ask(a, "c") is wire.Done
            for call in calls:
                with pytest.raises(PeerTimeoutError):
                    await call
            child.send_signal(signal.SIGCONT)
            assert await ask(a) is wire.Done
            assert a.links.counters.dials == 2
            child.kill()
            await child.wait()
            await until(lambda: a.links.facts()["connected"] == 1, "its death to be noticed")
        finally:
            if child.returncode is None:
                child.kill()
            await child.wait()
            child._transport.close()
