"""The sending side of the TCP plane alone, and its frames: what a receiver can do to it."""

import asyncio
import contextlib
import socket

import pytest

from mooncake_node.planes.tcp_frames import (
    FRAME_NBYTES_MAX,
    HEADER_NBYTES,
    FrameError,
    Reply,
    Request,
    body_nbytes,
    decode_request,
    pack,
    refusal,
)
from tests.support.planes import MIB, asking, on, until

BIG = 4 * MIB  # more than the sockets keep while the receiver does not read, less than the pool


async def dialled(kit) -> socket.socket:
    """A connection to the far node, its own small buffers, past the plane."""
    sock = await kit.dial("far")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    return sock


@on("tcp", sender_stall_timeout_s=0.1)
async def test_a_receiver_that_takes_nothing_loses_the_loan(kit):
    source = kit.add("k", 64 * MIB)
    with contextlib.closing(await dialled(kit)) as sock:
        await asyncio.get_running_loop().sock_sendall(sock, asking(source))
        await until(lambda: kit.far.counters.stalled, "the sender has had enough")
        await asyncio.gather(*kit.served)
        assert kit.lender.lent == kit.lender.parts_open == 0
        assert kit.far.counters.loans_broken == 1
        assert kit.far_socks[0].fileno() == -1


@on("tcp")
async def test_a_receiver_that_goes_in_the_middle_ends_the_loan(kit):
    sock = await dialled(kit)
    await asyncio.get_running_loop().sock_sendall(sock, asking(kit.add("k", 64 * MIB)))
    await until(lambda: kit.far.counters.sent_nbytes, "it is under way")
    assert kit.lender.lent == 1
    sock.close()
    await asyncio.gather(*kit.served)
    assert kit.lender.lent == kit.lender.parts_open == 0
    assert kit.far.counters.loans_broken == 1


@on("tcp")
async def test_a_cancelled_sender_ends_the_loan_and_the_connection(kit):
    with contextlib.closing(await dialled(kit)) as sock:
        await asyncio.get_running_loop().sock_sendall(sock, asking(kit.add("k", 64 * MIB)))
        await until(lambda: kit.far.counters.sent_nbytes, "it is under way")
        await kit.hang_up()
        assert kit.served[0].cancelled()
        assert kit.lender.lent == kit.lender.parts_open == 0
        assert kit.far_socks[0].fileno() == -1


@on("tcp")
@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(10),
        (FRAME_NBYTES_MAX + 1).to_bytes(4, "little"),
        (3).to_bytes(4, "little") + b"\xc1\xc1\xc1",
        pack(Request(request_id=1, key="k", replica_id=1, generation=1, lease_token=1, nbytes=-1)),
    ],
    ids=["http", "zeros", "long", "rubbish", "negative"],
)
async def test_a_request_that_is_none_ends_the_connection_and_asks_nobody(kit, data):
    with contextlib.closing(await dialled(kit)) as sock:
        await asyncio.get_running_loop().sock_sendall(sock, data)
        assert await asyncio.get_running_loop().sock_recv(sock, 1) == b""
        await asyncio.gather(*kit.served)
        assert kit.lender.asked == []


@on("tcp")
async def test_requests_in_any_pieces_are_answered_one_after_the_other(kit):
    sources = [kit.add(f"k/{number}", 10) for number in range(3)]
    requests = b"".join(asking(source, request_id=number) for number, source in enumerate(sources, 1))
    expected = b"".join(
        pack(Reply(request_id=number, nbytes=10)) + kit.lender.objects[source.key]
        for number, source in enumerate(sources, 1)
    )
    loop = asyncio.get_running_loop()
    for step in (1, 7, len(requests)):
        with contextlib.closing(await dialled(kit)) as sock:
            for start in range(0, len(requests), step):
                await loop.sock_sendall(sock, requests[start : start + step])
                await asyncio.sleep(0)
            got = b""
            while len(got) < len(expected):
                got += await loop.sock_recv(sock, 100)
            assert got == expected


def test_a_refusal_fits_its_frame_whatever_its_reason():
    request = Request(request_id=1 << 62, key="k", replica_id=1, generation=1, lease_token=1, nbytes=1)
    for reason in ("", "\N{SNOWMAN}" * 10_000):
        assert refusal(request, reason).refusal
        assert len(pack(refusal(request, reason))) < FRAME_NBYTES_MAX


def test_a_request_with_the_longest_key_fits_its_frame():
    longest = (1 << 64) - 1
    request = Request(
        request_id=longest, key="k" * 1024, replica_id=longest, generation=longest, lease_token=longest,
        nbytes=(1 << 63) - 1,
    )  # fmt: skip
    frame = pack(request)
    assert decode_request(frame[HEADER_NBYTES : HEADER_NBYTES + body_nbytes(frame)]) == request
    with pytest.raises(FrameError):
        body_nbytes(b"\xff\xff\xff\xff")
