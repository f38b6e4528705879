"""Where other nodes come in: who is let in, who is not and is told why, and data connections."""

import asyncio
import contextlib
import os
import socket

import msgspec
import pytest
from structlog.testing import capture_logs

from mooncake_client.framing import pack
from mooncake_node.peers import (
    Identity,
    Limits,
    Me,
    PeerGoneError,
    PeerLinks,
    PeerListener,
    PeerListenError,
    PeerRefusedError,
)
from mooncake_node.peers import listener as listener_module
from mooncake_node.peers.auth import Answering, Dialing, HandshakeMessage, Hello, Proof, Refusal
from mooncake_node.peers.handshake import recv_message, send_message
from mooncake_node.peers.messages import PEER_VERSION, GetHolders
from tests.support.peers import SECRET, Node, net, on_uvloop, raw_connection, read_all
from tests.support.waiting import until


def frame(message: object) -> bytes:
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(4, "little") + body


def hello(**changes) -> Hello:
    return msgspec.structs.replace(Hello(PEER_VERSION, "a", 1, "control", bytes(32)), **changes)


async def refusal(sock: socket.socket) -> str:
    """What a node says before it closes."""
    data = await read_all(sock)
    message = msgspec.msgpack.decode(data[4:], type=HandshakeMessage)
    assert int.from_bytes(data[:4], "little") == len(data) - 4
    assert isinstance(message, Refusal)
    return message.reason


# -- who is let in ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rubbish", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: b\r\n\r\n", "no handshake of this protocol"),
        (b"\xff" * 100_000, "no handshake of this protocol"),
        ((4097).to_bytes(4, "little"), "no handshake of this protocol"),
        ((3).to_bytes(4, "little") + b"\xc1\xc1\xc1", "no handshake of this protocol"),
        (bytes(4), "no handshake of this protocol"),
        (frame(hello(name="")), "no handshake of this protocol"),
        (frame(hello(name="n" * 129)), "no handshake of this protocol"),
        (frame(hello(nonce=b"short")), "no handshake of this protocol"),
        (frame(Proof(bytes(32))), "out of place"),
        (frame(hello(version=PEER_VERSION + 1)), "version"),
        (frame(hello(kind="gossip")), "kind"),
        (frame(hello(name="b")), "name of its own"),
    ],
)
@on_uvloop
async def test_rubbish_is_answered_with_a_reason_and_closed(rubbish, reason):
    a, b = Node("a"), Node("b")
    async with net(a, b), raw_connection(b) as sock:
        await asyncio.get_running_loop().sock_sendall(sock, rubbish)
        assert reason in await refusal(sock)
        assert b.listener.counters.refused == 1
        await a.links.call("b", GetHolders(0, "k"), 30)
        assert b.listener.counters.accepted == 1


@pytest.mark.parametrize(("mine", "theirs"), [(b"x-secret", b"y-secret"), (b"", b"y-secret"), (b"x-secret", b"")])
@on_uvloop
async def test_wrong_secret_is_refused_and_nothing_of_it_is_told(mine, theirs):
    a, b = Node("a", secret=mine), Node("b", secret=theirs)
    async with net(a, b):
        with pytest.raises(PeerRefusedError, match="cluster secret") as caught:
            await a.links.call("b", GetHolders(0, "k"), 30)
        assert not caught.value.sent
        assert "-secret" not in str(caught.value)
        with pytest.raises(PeerRefusedError, match="cluster secret"):
            await a.links.dial_data("b")
        assert a.links.counters.refused == 2
        assert b.listener.counters.refused == 2
        assert b.asked == []


@on_uvloop
async def test_false_listener_that_lets_in_anybody_is_not_spoken_to():
    """It knows names and endpoint, not the secret."""
    a = Node("a")
    async with net(a):
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.setblocking(False)
            a.links.set_peers({"b": (1, f"127.0.0.1:{server.getsockname()[1]}")})
            calling = asyncio.ensure_future(a.links.call("b", GetHolders(0, "k"), 30))
            sock, _ = await loop.sock_accept(server)
            with sock:
                answering = Answering(Identity("b", 1), b"guess")
                await send_message(sock, answering.challenge(await recv_message(sock)))
                # The best it can do: send back what it got.
                await send_message(sock, await recv_message(sock))
                with pytest.raises(PeerRefusedError, match="does not know the cluster secret"):
                    await calling
                assert await read_all(sock) == b""


@on_uvloop
async def test_recorded_handshake_is_refused():
    b = Node("b")
    async with net(b):
        dialing = Dialing(Identity("a", 1), Identity("b", 1), "control", SECRET)
        async with raw_connection(b) as sock:
            await send_message(sock, dialing.hello)
            proof = dialing.prove(await recv_message(sock))
            await send_message(sock, proof)
            dialing.finish(await recv_message(sock))
        async with raw_connection(b) as sock:
            await send_message(sock, dialing.hello)
            await recv_message(sock)
            await send_message(sock, proof)
            assert "secret" in await refusal(sock)


@on_uvloop
async def test_silent_dialers_hold_up_others_for_the_handshakes_time_only():
    """With room for one handshake the good node waits in the backlog until the silent ones are told off."""
    a, b = Node("a"), Node("b", limits=Limits(handshakes_max=1, handshake_timeout_s=0.05))
    async with net(a, b), raw_connection(b) as silent, raw_connection(b) as slow:
        await asyncio.get_running_loop().sock_sendall(slow, b"\x10")
        a.links.set_peers(b.entry)
        while not b.asked:
            # Its own handshake too has that little time.
            with contextlib.suppress(PeerGoneError):
                await a.links.call("b", GetHolders(0, "k"), 30)
        assert "no handshake in" in await refusal(silent)
        assert "no handshake in" in await refusal(slow)
        assert b.listener.counters.refused >= 2


@on_uvloop
async def test_refusals_of_one_address_are_logged_once_a_minute_and_all_counted(monkeypatch):
    monkeypatch.setattr(listener_module, "log", listener_module.get_logger())
    b = Node("b")
    with capture_logs() as lines:
        async with net(b):
            for _ in range(3):
                async with raw_connection(b) as sock:
                    await asyncio.get_running_loop().sock_sendall(sock, b"\xff" * 8)
                    await refusal(sock)
            assert b.listener.facts()["refused"] == 3
    assert [line["event"] for line in lines].count("peer_refused") == 1


@on_uvloop
async def test_further_nodes_are_refused_when_links_max_are_there_but_a_known_one_may_come_back():
    a, b, c = Node("a"), Node("b", limits=Limits(links_max=1)), Node("c")
    async with net(a, b, c):
        await a.links.call("b", GetHolders(0, "k"), 30)
        with pytest.raises(PeerRefusedError, match="1 nodes are connected already"):
            await c.links.call("b", GetHolders(0, "k"), 30)
        a.links.sever("b")
        await a.links.call("b", GetHolders(0, "k"), 30)


@on_uvloop
async def test_node_that_dials_anew_has_one_link():
    """As after its host lost power: nothing was heard of the end of the one before."""
    b, before, after = Node("b"), Node("a", 1), Node("a", 2)
    async with net(b, before, after):
        for node in (before, after):
            node.links.set_peers(b.entry)
            await node.links.call("b", GetHolders(0, "k"), 30)
        await until(lambda: before.links.facts()["connected"] == 0, "the first link to end")
        assert b.listener.facts()["links"] == 1
        await after.links.call("b", GetHolders(0, "k"), 30)
        assert after.links.counters.dials == 1


@on_uvloop
async def test_links_of_a_life_that_is_over_are_ended():
    a, b = Node("a"), Node("b")
    async with net(a, b):
        await a.links.call("b", GetHolders(0, "k"), 30)
        b.listener.set_peers({"a": (1, "x:1"), "c": (9, "y:1")})
        await a.links.call("b", GetHolders(0, "k"), 30)
        assert a.links.counters.dials == 1
        b.listener.set_peers({"a": (2, "x:1")})
        await until(lambda: b.listener.facts()["links"] == 0, "the link to end")


# -- listening --------------------------------------------------------------------------------------------------------


def listener(host: str, port: int = 0, secret: bytes = b"") -> PeerListener:
    node = Node("n")
    return PeerListener(host, port, Me("n", 1), secret, node._handle, node._data)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
@on_uvloop
async def test_without_a_secret_only_loopback_is_listened_on(host):
    with pytest.raises(PeerListenError, match="without a cluster secret"):
        await listener(host).start()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost"])
@on_uvloop
async def test_without_a_secret_loopback_will_do(host):
    one = listener(host)
    await one.start()
    assert one.endpoint.rpartition(":")[2] != "0"
    await one.close()


@on_uvloop
async def test_with_a_secret_any_address_will_do():
    one = listener("0.0.0.0", secret=b"s")
    await one.start()
    await one.close()


@on_uvloop
async def test_without_a_secret_nobody_is_dialled_elsewhere():
    links = PeerLinks(Me("a", 1), b"", Node("a")._handle)
    links.set_peers({"b": (1, "192.0.2.1:9")})
    with pytest.raises(PeerRefusedError, match="without a cluster secret"):
        await links.call("b", GetHolders(0, "k"), 30)
    await links.close()


@on_uvloop
async def test_port_in_use_and_address_of_another_host_are_clear_errors():
    one = listener("127.0.0.1")
    await one.start()
    port = int(one.endpoint.rpartition(":")[2])
    with pytest.raises(PeerListenError, match=f"127.0.0.1:{port}: another program listens there"):
        await listener("127.0.0.1", port).start()
    with pytest.raises(PeerListenError, match="cannot listen on 192.0.2.1"):
        await listener("192.0.2.1", secret=b"s").start()
    await one.close()
    await one.close()
    again = listener("127.0.0.1", port)
    await again.start()
    await again.close()


# -- data connections -------------------------------------------------------------------------------------------------


@on_uvloop
async def test_data_connection_carries_bytes_untouched_both_ways():
    """The first of them follow the handshake without a pause, so they may have arrived together with it."""
    a, b = Node("a"), Node("b")
    loop = asyncio.get_running_loop()
    there, back = os.urandom(3 << 20), os.urandom(3 << 20)
    got: list[object] = []

    async def on_data(sock: socket.socket, peer: str) -> None:
        assert sock.getblocking() is False
        sending = asyncio.ensure_future(loop.sock_sendall(sock, back))
        got.append((peer, await read_all(sock)))
        await sending

    b.on_data = on_data
    async with net(a, b):
        with await a.links.dial_data("b") as sock:
            assert sock.getblocking() is False

            async def send() -> None:
                await loop.sock_sendall(sock, there)
                sock.shutdown(socket.SHUT_WR)

            sending = asyncio.ensure_future(send())
            assert await read_all(sock) == back  # and closed when on_data has returned
            await sending
        assert got == [("a", there)]
        await until(lambda: b.listener.facts()["data_sockets"] == 0, "the data connection to be forgotten")


@on_uvloop
async def test_data_connections_have_a_limit_and_end_with_the_listener():
    a, b = Node("a"), Node("b", limits=Limits(data_max=1))
    ended: list[str] = []

    async def on_data(sock: socket.socket, peer: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(peer)

    b.on_data = on_data
    async with net(a, b):
        with await a.links.dial_data("b") as sock:
            with pytest.raises(PeerRefusedError, match="1 data connections are open already"):
                await a.links.dial_data("b")
            await b.listener.close()
            assert ended == ["a"]
            assert await read_all(sock) == b""
        with pytest.raises(PeerGoneError, match="cannot reach b"):
            await a.links.dial_data("b")


@pytest.mark.parametrize("error", [ConnectionResetError("reset"), ValueError("a bug")])
@on_uvloop
async def test_data_connection_that_fails_is_closed_and_others_are_served(error):
    a, b = Node("a"), Node("b")

    async def on_data(sock: socket.socket, peer: str) -> None:
        raise error

    b.on_data = on_data
    async with net(a, b):
        for _ in range(2):
            with await a.links.dial_data("b") as sock:
                assert await read_all(sock) == b""


# -- what an accepted link does not bear ------------------------------------------------------------------------------


async def shake_hands(node: Node, sock: socket.socket) -> None:
    dialing = Dialing(Identity("raw", 1), node.me.identity, "control", SECRET)
    await send_message(sock, dialing.hello)
    await send_message(sock, dialing.prove(await recv_message(sock)))
    dialing.finish(await recv_message(sock))


@pytest.mark.parametrize("rubbish", [(17 << 20).to_bytes(4, "little"), frame(["what"]), frame([40, "no id", "k"])])
@on_uvloop
async def test_link_that_sends_what_is_no_message_is_given_up_with_a_reason(rubbish):
    b = Node("b")
    async with net(b), raw_connection(b) as sock:
        await shake_hands(b, sock)
        await asyncio.get_running_loop().sock_sendall(sock, rubbish)
        code, number, *_ = msgspec.msgpack.decode((await read_all(sock))[4:])
        assert (code, number) == (100, 0)
        await until(lambda: b.listener.facts()["links"] == 0, "the link to end")


@on_uvloop
async def test_node_that_does_not_take_its_answers_is_given_up():
    b = Node("b", limits=Limits(unsent_nbytes_max=8 << 20))

    async def answer(request):
        return GetHolders(0, "x" * (4 << 20))  # any message will do

    b.answer = answer
    async with net(b), raw_connection(b) as sock:
        await shake_hands(b, sock)
        requests = b"".join(pack(GetHolders(number, "k")) for number in range(1, 21))
        await asyncio.get_running_loop().sock_sendall(sock, requests)
        await until(lambda: len(b.asked) == 20, "the requests to arrive")
        await until(lambda: b.listener.facts()["links"] == 0, "the link to end")
