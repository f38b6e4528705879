"""Asking other nodes: order, answers, failures of the other side, limits, the end."""

import asyncio

import pytest

from mooncake_client import NotFoundError, wire
from mooncake_client.codes import Code
from mooncake_client.framing import FRAME_NBYTES_MAX
from mooncake_node.peers import Limits, Pace, PeerError, PeerGoneError, PeerTimeoutError
from mooncake_node.peers.link import UNANSWERED_MAX
from mooncake_node.peers.messages import Appeared, GetHolders, GetInfo, ListOwned, Unwatch, Watch
from tests.support.peers import AT_ONCE, Node, net, on_uvloop
from tests.support.waiting import until


def keys(node: Node) -> list[str]:
    return [request.key for _, request in node.asked if isinstance(request, GetHolders)]


@on_uvloop
async def test_calls_are_pipelined_both_ways_and_each_gets_its_own_answer():
    a, b = Node("a"), Node("b")

    async def answer(request):
        for _ in range(request.cursor % 7):  # out of order
            await asyncio.sleep(0)
        return wire.Count(0, request.cursor)

    a.answer = b.answer = answer
    async with net(a, b):
        numbers = range(300)
        calls = [a.links.call("b", ListOwned(0, "", number), 30) for number in numbers]
        calls += [b.links.call("a", ListOwned(0, "", number), 30) for number in numbers]
        replies = await asyncio.gather(*calls)
        assert [reply.count for reply in replies] == [*numbers, *numbers]
        assert (a.links.counters.dials, b.links.counters.dials) == (1, 1)
        assert {peer for peer, _ in a.asked} == {"b"}
        assert {peer for peer, _ in b.asked} == {"a"}


@on_uvloop
async def test_requests_begin_in_the_order_of_the_calls_also_those_before_the_link_is_made():
    a, b = Node("a"), Node("b")
    async with net(a, b):
        calls = []
        for number in range(200):
            calls.append(asyncio.ensure_future(a.links.call("b", GetHolders(0, f"{number}"), 30)))
            if number >= 100:
                await asyncio.sleep(0)
        await asyncio.gather(*calls)
        assert keys(b) == [f"{number}" for number in range(200)]


@on_uvloop
async def test_notice_keeps_its_place_between_calls_and_dials_by_itself():
    a, b = Node("a"), Node("b")
    async with net(a, b):
        a.links.notify("b", Appeared(7, ["first"]))
        watching = asyncio.ensure_future(a.links.call("b", Watch(0, ["k"]), 30))
        await asyncio.sleep(0)
        a.links.notify("b", Unwatch(0, ["k"]))
        await watching
        await until(lambda: len(b.asked) == 3, "the notices")
        assert [type(request) for _, request in b.asked] == [Appeared, Watch, Unwatch]
        assert b.asked[0][1].request_id == 0


@on_uvloop
async def test_notice_that_cannot_be_sent_is_counted_and_forgotten():
    a, b = Node("a", pace=Pace(backoff_s=1000)), Node("b")
    async with net(a, b):
        await b.listener.close()
        a.links.notify("nobody", Appeared(0, ["k"]))
        a.links.notify("b", Appeared(0, ["k"]))
        await until(lambda: a.links.counters.dials_failed, "the dial to fail")
        a.links.notify("b", Appeared(0, ["k"]))
        assert a.links.counters.notices_dropped == 3


@on_uvloop
async def test_large_messages_travel_both_ways_while_others_do_too():
    a, b = Node("a"), Node("b")

    async def answer(request):
        return wire.Flags(0, [True] * (FRAME_NBYTES_MAX - 64))

    a.answer = b.answer = answer
    async with net(a, b):
        big = ["k" * 1024] * 15_000
        calls = [one.links.call(name, GetInfo(0, big), 60) for one, name in ((a, "b"), (b, "a")) for _ in range(2)]
        for reply in await asyncio.gather(*calls):
            assert len(reply.items) == FRAME_NBYTES_MAX - 64
        assert b.asked[0][1].keys == big


@on_uvloop
async def test_message_beyond_the_frame_limit_fails_alone():
    a, b = Node("a"), Node("b")

    async def answer(request):
        return wire.Flags(0, [True] * FRAME_NBYTES_MAX if request.key == "long" else [])

    b.answer = answer
    async with net(a, b):
        with pytest.raises(PeerError, match="too long") as caught:
            await a.links.call("b", GetHolders(0, "x" * FRAME_NBYTES_MAX), 30)
        assert not caught.value.sent
        reply = await a.links.call("b", GetHolders(0, "long"), 30)
        assert (type(reply), reply.code) == (wire.Failed, Code.INVALID_ARGUMENT)
        assert isinstance(await a.links.call("b", GetHolders(0, "k"), 30), wire.Flags)
        assert a.links.counters.dials == 1


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (NotFoundError("no such object"), Code.NOT_FOUND, "no such object"),
        (ValueError("inner matters"), Code.INTERNAL, "its log says more"),
        (None, Code.INTERNAL, "has no answer"),
    ],
)
@on_uvloop
async def test_failed_request_is_answered_with_its_code(error, code, message):
    a, b = Node("a"), Node("b")

    async def answer(request):
        if error is not None:
            raise error

    b.answer = answer
    async with net(a, b):
        reply = await a.links.call("b", GetHolders(0, "k"), 30)
        assert isinstance(reply, wire.Failed)
        assert reply.code == code
        assert message in reply.message
        b.answer = b.done
        assert isinstance(await a.links.call("b", GetHolders(0, "k"), 30), wire.Done)


@on_uvloop
async def test_failed_assertion_reaches_the_loop():
    a, b = Node("a"), Node("b")

    async def answer(request):
        raise AssertionError("our bug")

    b.answer = answer
    async with net(a, b):
        loop = asyncio.get_running_loop()
        unhandled: asyncio.Future[BaseException] = loop.create_future()
        handler = loop.get_exception_handler()
        loop.set_exception_handler(lambda _, context: unhandled.set_result(context["exception"]))
        calling = asyncio.ensure_future(a.links.call("b", GetHolders(0, "k"), 30))
        assert isinstance(await unhandled, AssertionError)
        loop.set_exception_handler(handler)
        await b.listener.close()
        with pytest.raises(PeerGoneError):
            await calling


# -- a node that hangs ------------------------------------------------------------------------------------------------


@on_uvloop
async def test_answer_that_does_not_come_in_time_is_a_timeout_and_holds_up_nobody():
    a, b = Node("a"), Node("b")
    gate = asyncio.Event()

    async def answer(request):
        if request.key == "slow":
            await gate.wait()
        return wire.Done(0)

    b.answer = answer
    async with net(a, b):
        await a.links.call("b", GetHolders(0, "k"), 30)
        with pytest.raises(PeerTimeoutError, match="b did not answer GetHolders within 0.01 s") as caught:
            await a.links.call("b", GetHolders(0, "slow"), 0.01)
        assert caught.value.sent
        await until(lambda: keys(b) == ["k", "slow"], "the request to arrive")
        assert isinstance(await a.links.call("b", GetHolders(0, "k"), 30), wire.Done)
        assert a.links.facts()["timeouts"] == 1
        gate.set()
        await until(lambda: b.listener.facts()["requests"] == 0, "the late answer")
        await a.links.call("b", GetHolders(0, "k"), 30)
        a.links.sever("b")
        await until(lambda: a.links.facts()["late_replies"] == 1, "the late answer to be counted")


@on_uvloop
async def test_call_given_up_by_its_caller_leaves_nothing_behind():
    a, b = Node("a"), Node("b")

    async def answer(request):
        await asyncio.Event().wait()

    b.answer = answer
    async with net(a, b):
        calling = asyncio.ensure_future(a.links.call("b", GetHolders(0, "k"), 30))
        await until(lambda: b.asked, "the request to arrive")
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await until(lambda: not a.links._lines["b"]._link._calls, "the call to be forgotten")


# -- limits -----------------------------------------------------------------------------------------------------------


@on_uvloop
async def test_more_requests_than_a_peer_may_have_under_way_are_answered_so():
    a, b, c = Node("a"), Node("b", limits=Limits(inflight_max=2)), Node("c")
    gate = asyncio.Event()

    async def answer(request):
        await gate.wait()
        return wire.Done(0)

    b.answer = answer
    async with net(a, b, c):
        calls = [asyncio.ensure_future(a.links.call("b", GetHolders(0, f"{n}"), 30)) for n in range(3)]
        reply = await calls[2]
        assert (reply.code, reply.message) == (Code.DAEMON_GONE, "too many requests")
        other = asyncio.ensure_future(c.links.call("b", GetHolders(0, "c"), 30))
        await until(lambda: "c" in keys(b), "another node's request to begin")
        gate.set()
        assert [type(await call) for call in (*calls[:2], other)] == [wire.Done] * 3
        assert isinstance(await a.links.call("b", GetHolders(0, "k"), 30), wire.Done)
        assert b.listener.facts()["requests_refused"] == 1


@on_uvloop
async def test_a_crowd_of_calls_waits_here_and_is_not_refused_there():
    a, b = Node("a"), Node("b", limits=Limits(inflight_max=UNANSWERED_MAX))
    gate = asyncio.Event()

    async def answer(request):
        await gate.wait()
        return wire.Done(0)

    b.answer = answer
    async with net(a, b):
        calls = [asyncio.ensure_future(a.links.call("b", GetHolders(0, f"{n}"), 30)) for n in range(3000)]
        await until(lambda: len(b.asked) == UNANSWERED_MAX, "as many as may be")
        gate.set()
        assert {type(reply) for reply in await asyncio.gather(*calls)} == {wire.Done}
        assert keys(b) == [f"{n}" for n in range(3000)]


@on_uvloop
async def test_queue_for_a_link_has_an_end_and_those_who_gave_up_do_not_count():
    a, b = Node("a", pace=Pace(queued_max=3)), Node("b")
    async with net(a, b):
        a.links.hold("b")
        calls = [asyncio.ensure_future(a.links.call("b", GetHolders(0, f"{n}"), 30)) for n in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(PeerGoneError, match="3 requests wait for b already"):
            await a.links.call("b", GetHolders(0, "k"), 30)
        calls[1].cancel()
        await asyncio.wait([calls[1]])
        calls[1] = asyncio.ensure_future(a.links.call("b", GetHolders(0, "3"), 30))
        await asyncio.sleep(0)
        assert b.asked == []
        a.links.release("b")
        await asyncio.gather(*calls)
        assert keys(b) == ["0", "2", "3"]


# -- the end ----------------------------------------------------------------------------------------------------------


async def calls_under_way(a: Node, b: Node) -> list[asyncio.Future]:
    """One that was sent, and one that waits for the link."""

    async def answer(request):
        await asyncio.Event().wait()

    b.answer = answer
    calls = [asyncio.ensure_future(a.links.call("b", GetHolders(0, "sent"), 30))]
    await until(lambda: b.asked, "the request to arrive")
    a.links.hold("b")
    calls.append(asyncio.ensure_future(a.links.call("b", GetHolders(0, "queued"), 30)))
    await asyncio.sleep(0)
    return calls


@pytest.mark.parametrize("end", ["close", "removed", "moved", "reborn", "severed"])
@on_uvloop
async def test_calls_under_way_fail_when_the_link_ends(end):
    a, b = Node("a"), Node("b")
    async with net(a, b):
        sent, queued = await calls_under_way(a, b)
        match end:
            case "close":
                await a.links.close()
                await a.links.close()
            case "removed":
                a.links.set_peers({})
            case "moved":
                a.links.set_peers({"b": (1, "127.0.0.1:9")})
            case "reborn":
                a.links.set_peers({"b": (2, b.listener.endpoint)})
            case "severed":
                a.links.sever("b")
        with pytest.raises(PeerGoneError, match="b is gone") as caught:
            await sent
        assert caught.value.sent
        with pytest.raises(PeerGoneError, match="b is gone") as caught:
            await queued
        assert not caught.value.sent
        assert keys(b) == ["sent"]


@pytest.mark.parametrize("closes", ["links", "listener"])
@on_uvloop
async def test_an_end_closes_in_the_middle_of_a_handshake(closes):
    """At whatever step of it: the loop's turns are gone through one by one."""
    for turns in range(40):
        a, b = Node("a"), Node("b")
        async with net(a, b):
            calling = asyncio.ensure_future(a.links.call("b", GetHolders(0, "k"), 30))
            for _ in range(turns):
                await asyncio.sleep(0)
            await (a.links if closes == "links" else b.listener).close()
            try:
                await calling
            except PeerGoneError:
                pass
        with pytest.raises(PeerGoneError):
            await a.links.call("b", GetHolders(0, "k"), 30)


@on_uvloop
async def test_who_is_not_among_the_peers_is_gone_and_this_node_is_no_peer_of_its_own():
    a = Node("a")
    async with net(a):
        for name in ("a", "nobody"):
            with pytest.raises(PeerGoneError, match="not among the nodes that live"):
                await a.links.call(name, GetHolders(0, "k"), 30)
            with pytest.raises(PeerGoneError):
                await a.links.dial_data(name)
        assert a.links.facts()["gone"] == 2


@on_uvloop
async def test_peers_that_did_not_change_keep_their_link():
    a, b = Node("a"), Node("b")
    async with net(a, b):
        await a.links.call("b", GetHolders(0, "k"), 30)
        a.links.set_peers({**b.entry, "c": (1, "127.0.0.1:9")})
        await a.links.call("b", GetHolders(0, "k"), 30)
        assert a.links.counters.dials == 1
        assert a.links.facts()["peers"] == 2
        assert AT_ONCE.backoff_s == 0
