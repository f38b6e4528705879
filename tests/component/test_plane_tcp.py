"""The receiving side of the TCP plane alone: connections, what a sender can do to it, its shares of the loop."""

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys

import msgspec
import pytest
import xxhash

from mooncake_node.planes import Outcome, TcpCounters
from mooncake_node.planes.tcp_frames import (
    Reply,
    pack,
)
from tests.support.planes import HANG_LIMIT_S, KIB, MIB, ok, on, request_on, until

BIG = 4 * MIB  # more than the sockets keep while the receiver does not read, less than the pool


async def fetched(kit, source, offset: int = 0) -> Outcome:
    return await kit.plane.submit(source, offset).done(HANG_LIMIT_S)


async def failed(kit, source, offset: int = 0) -> str:
    """Why it has; it is over, then."""
    ticket = kit.plane.submit(source, offset)
    assert await ticket.done(HANG_LIMIT_S) is Outcome.FAILED
    await ticket.quiesced()
    return ticket.reason


def answering(kit, *pieces) -> None:
    """Every connection gets these bytes as its answer; a function is given the request; then it stays open."""

    async def serve(sock: socket.socket) -> None:
        try:
            request = await request_on(sock)
            for piece in pieces:
                await asyncio.get_running_loop().sock_sendall(sock, piece(request) if callable(piece) else piece)
            while await asyncio.get_running_loop().sock_recv(sock, 1):
                pass
        except ConnectionError:
            pass
        finally:
            sock.close()

    kit.serve = serve


# -- connections ---------------------------------------------------------------------------------------------------


@on("tcp", connections_max=3)
async def test_many_transfers_share_few_connections(kit):
    kit.lender.part_nbytes = 10_000
    sources = [kit.add(f"k/{number}", 30_000) for number in range(100)]
    tickets = [kit.plane.submit(source, 32_000 * number) for number, source in enumerate(sources)]
    assert kit.plane.facts()["transfers_waiting"] == 100
    assert {await ticket.done(HANG_LIMIT_S) for ticket in tickets} == {Outcome.OK}
    assert len(kit.dialled) <= 3
    assert kit.plane.facts()["connections"] == len(kit.dialled)
    kit.assert_only(*((32_000 * number, source) for number, source in enumerate(sources)))
    assert kit.plane.counters == TcpCounters(
        transfers_ok=100, received_nbytes=3_000_000, connections_dialled=len(kit.dialled)
    )
    await until(lambda: kit.far.counters.loans_sent == 100, "the last loan ends")
    assert kit.far.counters == TcpCounters(connections_served=len(kit.dialled), loans_sent=100, sent_nbytes=3_000_000)


@on("tcp", connections_max=1)
async def test_first_come_first_served(kit):
    sources = [kit.add(f"k/{number}", 100) for number in range(20)]
    tickets = [kit.plane.submit(source, 0) for source in sources]
    for ticket in tickets:
        assert await ticket.done(HANG_LIMIT_S) is Outcome.OK
    assert [key for key, *_ in kit.lender.asked] == [source.key for source in sources]


@on("tcp")
async def test_one_after_the_other_take_one_connection(kit):
    for number in range(10):
        assert await fetched(kit, kit.add(f"k/{number}", 10_000 * number)) is Outcome.OK
    assert await failed(kit, kit.describe("unknown", 5))  # a refusal leaves it in order
    assert await fetched(kit, kit.add("k", 7)) is Outcome.OK
    assert kit.dialled == ["far"]


@on("tcp")
@pytest.mark.parametrize("changed", [{"incarnation": 2}, {"endpoint": "127.0.0.1:2"}])
async def test_another_incarnation_or_endpoint_has_connections_of_its_own(kit, changed):
    source = kit.add("k", 5000)
    assert await fetched(kit, source) is Outcome.OK
    assert await fetched(kit, msgspec.structs.replace(source, **changed)) is Outcome.OK
    assert await fetched(kit, source) is Outcome.OK
    assert kit.dialled == ["far", "far"]


@on("tcp", connections_max=1)
async def test_a_transfer_given_up_while_it_waits_costs_no_connection_and_is_never_begun(kit):
    kit.lender.gate.clear()
    first = kit.plane.submit(kit.add("first", 5000), 0)
    second = kit.plane.submit(kit.add("second", 5000), 5000)
    third_source = kit.add("third", 5000)
    third = kit.plane.submit(third_source, 10_000)
    assert await second.done(0) is Outcome.FAILED
    kit.lender.gate.set()
    assert await first.done(HANG_LIMIT_S) is await third.done(HANG_LIMIT_S) is Outcome.OK
    assert [key for key, *_ in kit.lender.asked] == ["first", "third"]
    assert kit.dialled == ["far"]


@on("tcp", idle_timeout_s=0.05)
async def test_an_idle_connection_is_closed_and_its_peer_forgotten(kit):
    source = kit.add("k", 5000)
    assert await fetched(kit, source) is Outcome.OK
    await until(lambda: kit.plane.facts()["connections"] == 0, "it is closed")
    assert kit.plane._peers == {}
    await asyncio.gather(*kit.served)  # the far side ends without an error
    assert await fetched(kit, source) is Outcome.OK
    assert kit.dialled == ["far", "far"]


@on("tcp")
async def test_a_peer_that_has_hung_up_is_dialled_again(kit):
    source = kit.add("k", 5000)
    assert await fetched(kit, source) is Outcome.OK
    await kit.hang_up()
    await until(lambda: kit.plane.facts()["connections"] == 0, "it is noticed")
    assert await fetched(kit, source) is Outcome.OK


@on("tcp")
async def test_nobody_there_fails_all_who_wait(kit):
    await kit.stop_listening()
    tickets = [kit.plane.submit(kit.add(f"k/{number}", 10), 0) for number in range(20)]
    assert {await ticket.done(HANG_LIMIT_S) for ticket in tickets} == {Outcome.FAILED}
    assert all("no connection" in ticket.reason for ticket in tickets)
    assert kit.plane.counters.dials_failed == len(kit.dialled) <= 4
    await until(lambda: kit.plane._peers == {}, "the peer is forgotten")
    kit.assert_only()


@on("tcp", stall_timeout_s=0.05)
async def test_a_dial_that_takes_too_long_fails(kit):
    async def never(node):
        await asyncio.Event().wait()

    kit.plane._dial = never
    assert "TimeoutError" in await failed(kit, kit.add("k", 10))


@on("tcp", connections_max=2)
async def test_a_dial_that_fails_beside_a_connection_that_works_costs_nobody_anything(kit):
    source = kit.add("k", 5000)
    kit.lender.gate.clear()
    first = kit.plane.submit(source, 0)
    await until(lambda: kit.lender.lent, "it is under way")
    await kit.stop_listening()
    others = [kit.plane.submit(source, 5000 * number) for number in range(1, 5)]
    await until(lambda: kit.plane.counters.dials_failed, "one dial has failed")
    kit.lender.gate.set()
    assert {await ticket.done(HANG_LIMIT_S) for ticket in [first, *others]} == {Outcome.OK}
    kit.assert_only(*((5000 * number, source) for number in range(5)))


@on("tcp", connections_max=1)
async def test_a_queue_has_an_end(kit, monkeypatch):
    monkeypatch.setattr("mooncake_node.planes.tcp.WAITING_MAX", 3)
    tickets = [kit.plane.submit(kit.add("k", 10), 0) for _ in range(5)]
    outcomes = [await ticket.done(HANG_LIMIT_S) for ticket in tickets]
    assert outcomes == [Outcome.OK] * 3 + [Outcome.FAILED] * 2


# -- what a sender can do ------------------------------------------------------------------------------------------


@on("tcp")
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "a frame of"),
        (b"\0\0\0\0" + bytes(100), "a frame of 0"),
        ((100).to_bytes(4, "little") + b"\xc1" * 100, "no reply"),
        ((2).to_bytes(4, "little") + b"\x91\x01", "no reply"),
    ],
    ids=["http", "zeros", "rubbish", "short"],
)
async def test_a_rubbish_header_fails_and_ends_the_connection(kit, answer, why):
    answering(kit, answer, bytes(5000))
    assert why in await failed(kit, kit.add("k", 5000), 64)
    assert kit.plane.facts()["connections"] == 0
    kit.assert_only()


@on("tcp")
@pytest.mark.parametrize("nbytes", [0, 4999, 5001, 1 << 62, -1])
async def test_another_length_announced_than_asked_for_is_not_taken(kit, nbytes):
    answering(kit, lambda request: ok(request, nbytes=nbytes), bytes(5001))
    assert f"{nbytes} bytes are announced" in await failed(kit, kit.add("k", 5000))
    assert kit.views == 0


@on("tcp")
async def test_an_answer_to_another_request_is_not_taken(kit):
    answering(kit, lambda request: ok(request, request_id=request.request_id + 1), bytes(5000))
    assert "request 2 instead of 1" in await failed(kit, kit.add("k", 5000))
    kit.assert_only()


@on("tcp")
async def test_bytes_behind_the_object_go_nowhere_and_end_the_connection(kit):
    source = kit.add("k", 5000)
    answering(kit, lambda request: ok(request) + kit.lender.objects["k"] + b"\xee" * 100_000)
    assert await fetched(kit, source, 64) is Outcome.OK
    await until(lambda: kit.plane.facts()["connections"] == 0, "it is ended")
    kit.assert_only((64, source))


@on("tcp")
async def test_bytes_nobody_asked_for_are_not_taken_for_an_answer(kit):
    """A sender that says too much is caught by the next request at the latest."""
    source = kit.add("k", 5000)
    answering(kit, lambda request: ok(request) + kit.lender.objects["k"] + ok(request))
    first = kit.plane.submit(source, 0)
    assert await first.done(HANG_LIMIT_S) is Outcome.OK
    await until(lambda: kit.plane.facts()["connections"] == 0, "it is ended")


@on("tcp")
async def test_a_sender_that_hangs_up_in_the_middle_fails(kit):
    async def serve(sock: socket.socket) -> None:
        request = await request_on(sock)
        await asyncio.get_running_loop().sock_sendall(sock, ok(request) + bytes(1000))
        sock.close()

    kit.serve = serve
    assert await failed(kit, kit.add("k", 5000))
    assert kit.is_untouched(1000, len(kit.pool))
    assert kit.plane.facts()["connections"] == 0


@on("tcp", stall_timeout_s=0.1)
@pytest.mark.parametrize("pieces", [[], [ok], [ok, bytes(1000)], [b"\x05"]], ids=["mute", "header", "part", "byte"])
async def test_a_sender_that_stalls_is_given_up(kit, pieces):
    answering(kit, *pieces)
    assert "not a byte for 0.1 s" in await failed(kit, kit.add("k", 5000))
    assert kit.plane.counters.stalled == 1
    assert kit.plane.facts()["connections"] == 0


@on("tcp", stall_timeout_s=2.0)
async def test_a_slow_sender_is_no_stall(kit):
    """It takes longer in all than the limit for standing still, of which each pause is a twentieth."""
    content = bytes(240)

    async def serve(sock: socket.socket) -> None:
        with contextlib.closing(sock):
            await asyncio.get_running_loop().sock_sendall(sock, ok(await request_on(sock)))
            for start in range(0, 240, 10):
                await asyncio.sleep(0.1)
                await asyncio.get_running_loop().sock_sendall(sock, content[start : start + 10])

    kit.serve = serve
    assert await fetched(kit, kit.add("k", 240)) is Outcome.OK
    assert kit.pool[:240] == content


@on("tcp")
async def test_a_loan_that_breaks_in_the_middle_fails_the_transfer_only(kit):
    kit.lender.breaks = True
    source = kit.add("k", 3 * MIB)
    assert await failed(kit, source)
    kit.lender.breaks = False
    assert await fetched(kit, source) is Outcome.OK
    await until(lambda: kit.far.counters.loans_sent == 1, "the loan ends")
    assert kit.far.counters.loans_broken == 1


@on("tcp")
@pytest.mark.parametrize("too_many", [-100, 100])
async def test_a_loan_with_other_bytes_than_it_says_breaks_and_no_byte_too_many_is_sent(kit, too_many):
    kit.lender.announced_too_many = too_many
    kit.add("k", 5000)
    assert await failed(kit, kit.describe("k", 5000 + too_many))
    await until(lambda: kit.far.counters.loans_broken == 1, "the sender has noticed")
    assert kit.is_untouched(5000, len(kit.pool))


SENDER = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
sock, _ = listener.accept()
sock.recv(4096)
sock.sendall(bytes.fromhex(sys.argv[1]) + bytes(100_000))
print("sent", flush=True)
sys.stdin.read()
"""


@on("tcp")
async def test_a_peer_killed_in_the_middle_fails_the_transfer(kit):
    header = pack(Reply(request_id=1, nbytes=BIG))
    process = subprocess.Popen(
        [sys.executable, "-c", SENDER, header.hex()], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        port = int(await asyncio.to_thread(process.stdout.readline))

        async def dial(node: str) -> socket.socket:
            sock = socket.create_connection(("127.0.0.1", port))
            sock.setblocking(False)
            return sock

        kit.plane._dial = dial
        ticket = kit.plane.submit(kit.add("k", BIG), 0)
        await until(lambda: kit.pool[99_999] == 0, "some of it came")
        assert await asyncio.to_thread(process.stdout.readline) == b"sent\n"
        process.send_signal(signal.SIGKILL)
        assert await ticket.done(HANG_LIMIT_S) is Outcome.FAILED
        await ticket.quiesced()
        assert kit.is_untouched(100_000, len(kit.pool))
        assert kit.plane.facts()["connections"] == 0
    finally:
        process.kill()
        process.communicate()


# -- giving up in the middle, large objects, the loop --------------------------------------------------------------


@on("tcp")
async def test_the_place_of_a_transfer_given_up_in_the_middle_belongs_to_the_next(kit):
    """The old connection's bytes, already on their way, must not come into the new object."""
    old, new = kit.add("old", BIG), kit.add("new", BIG)
    for _ in range(10):
        ticket = kit.plane.submit(old, 4096)
        waiting = asyncio.create_task(ticket.done(HANG_LIMIT_S))
        before = kit.plane.counters.received_nbytes
        await until(lambda before=before: kit.plane.counters.received_nbytes > before, "some of it came")
        waiting.cancel()
        await asyncio.wait([waiting])
        await ticket.quiesced()
        assert await fetched(kit, new, 4096) is Outcome.OK
        kit.assert_only((4096, new))


@on("tcp", pool_nbytes=65 * MIB)
async def test_sixty_four_mebibytes_come_exact_while_the_loop_serves_others(kit):
    """Turns are counted, not time: at most 4 MiB may move, on both sides together, between two of them."""
    source = kit.add("k", 64 * MIB)
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    turning = asyncio.create_task(turn())
    ticket = kit.plane.submit(source, 4 * KIB)
    outcome = await ticket.done(HANG_LIMIT_S)
    turning.cancel()
    assert outcome is Outcome.OK
    assert turns >= 2 * source.nbytes // (4 * MIB)
    place = kit.pool[4 * KIB : 4 * KIB + source.nbytes]
    assert xxhash.xxh3_64_intdigest(place) == xxhash.xxh3_64_intdigest(kit.lender.objects["k"])
    assert kit.is_untouched(0, 4 * KIB)
    assert kit.is_untouched(4 * KIB + source.nbytes, len(kit.pool))
    assert kit.views == 1


@on("tcp")
async def test_facts_are_plain_values(kit):
    assert await fetched(kit, kit.add("k", 5000)) is Outcome.OK
    facts = kit.plane.facts()
    assert facts["transfers_ok"] == facts["connections"] == 1
    assert facts["received_nbytes"] == 5000
    assert facts["transfers_running"] == facts["transfers_waiting"] == 0
    assert facts["congestion_control"]
