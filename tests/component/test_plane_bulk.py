"""Large objects, which go through a thread at both ends of a connection."""

import asyncio
import contextlib
import socket

import pytest
from xxhash import xxh3_64_intdigest

from mooncake_node.planes import Outcome
from mooncake_node.planes.bulk import BULK_NBYTES_MIN
from tests.support.patterns import pattern
from tests.support.planes import GUARD, HANG_LIMIT_S, MIB, asking, ok, on, request_on, until

BIG = 4 * MIB  # more than the sockets keep while nobody reads, less than the pool


@on("tcp")
@pytest.mark.parametrize("nbytes", [5000, BULK_NBYTES_MIN - 1, BULK_NBYTES_MIN, BIG + 1])
async def test_what_lies_in_memory_comes_whole_and_with_its_checksum_if_it_is_large(kit, nbytes):
    kit.lender.lies_in_memory = True
    source = kit.add("k", nbytes)
    ticket = kit.plane.submit(source, 0)
    assert await ticket.done(HANG_LIMIT_S) is Outcome.OK
    assert kit.pool[:nbytes] == pattern("k", nbytes)
    assert kit.is_untouched(nbytes, len(kit.pool))
    assert ticket.xxh3 == (xxh3_64_intdigest(pattern("k", nbytes)) if nbytes >= BULK_NBYTES_MIN else None)
    assert kit.plane.counters.received_nbytes == nbytes
    # The sender hears of the end of its thread a little later.
    await until(lambda: kit.far.counters.sent_nbytes == nbytes, "the sender has counted it")
    # The connection goes on.
    assert await kit.plane.submit(kit.add("l", 5000), 0).done(HANG_LIMIT_S) is Outcome.OK
    assert kit.plane.facts()["connections"] == 1


@on("tcp", sender_stall_timeout_s=0.1)
async def test_a_large_object_in_memory_that_is_not_taken_is_a_stall(kit):
    kit.lender.lies_in_memory = True
    source = kit.add("k", BIG)
    sock = await kit.dial("far")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with contextlib.closing(sock):
        await asyncio.get_running_loop().sock_sendall(sock, asking(source))
        await until(lambda: kit.far.counters.stalled, "the sender has had enough")
    await until(lambda: not kit.lender.lent, "the loan ends")


@on("tcp")
async def test_a_sender_that_is_ended_while_it_sends_a_large_object_ends_its_loan(kit):
    kit.lender.lies_in_memory = True
    source = kit.add("k", BIG)
    sock = await kit.dial("far")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with contextlib.closing(sock):
        await asyncio.get_running_loop().sock_sendall(sock, asking(source))
        await until(lambda: kit.lender.lent, "the loan begins")
        await kit.hang_up()
        assert not kit.lender.lent


@on("tcp")
async def test_a_receiver_that_gives_up_a_large_object_writes_no_more_of_it(kit):
    content = memoryview(bytes(BIG))
    sent = asyncio.Event()

    async def serve(sock: socket.socket) -> None:
        with contextlib.closing(sock), contextlib.suppress(OSError):
            request = await request_on(sock)
            await asyncio.get_running_loop().sock_sendall(sock, ok(request))
            await asyncio.get_running_loop().sock_sendall(sock, content[:MIB])
            await sent.wait()
            await asyncio.get_running_loop().sock_sendall(sock, content[MIB:])

    kit.serve = serve
    ticket = kit.plane.submit(kit.add("k", BIG), 0)
    await until(lambda: kit.pool[MIB - 1] == 0, "some of it came")
    assert await ticket.done(0) is Outcome.FAILED
    await ticket.quiesced()
    kit.pool[:BIG] = bytes((GUARD,)) * BIG
    sent.set()
    await asyncio.gather(*kit.served, return_exceptions=True)
    assert kit.is_untouched(0, len(kit.pool))


@on("tcp", threads_max=1)
async def test_a_large_object_that_finds_no_thread_free_comes_by_the_loop(kit):
    """Both the sender's only thread and the receiver's are taken by peers that do not go on."""
    kit.lender.lies_in_memory = True
    slow = await kit.dial("far")
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

    async def never(sock: socket.socket) -> None:
        with contextlib.closing(sock):
            await asyncio.get_running_loop().sock_sendall(sock, ok(await request_on(sock)))
            await asyncio.Event().wait()

    with contextlib.closing(slow):
        await asyncio.get_running_loop().sock_sendall(slow, asking(kit.add("slow", BIG)))
        await until(lambda: kit.lender.lent, "the sender's thread to be taken")
        serve, kit.serve = kit.serve, never
        stuck = kit.plane.submit(kit.add("stuck", BULK_NBYTES_MIN), 5 * MIB)
        await until(lambda: kit.views, "the receiver's too")
        kit.serve = serve
        ticket = kit.plane.submit(kit.add("k", BIG + 1), 0)
        assert await ticket.done(HANG_LIMIT_S) is Outcome.OK
        assert ticket.xxh3 is None
        assert kit.pool[: BIG + 1] == pattern("k", BIG + 1)
        assert await stuck.done(0) is Outcome.FAILED
