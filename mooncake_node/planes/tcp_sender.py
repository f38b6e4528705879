"""The sending side: lends objects, and sends their bytes to who asks for them."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import Executor

from mooncake_node.obs.log import get_logger
from mooncake_node.planes import bulk
from mooncake_node.planes.port import Lender, Loan, RefusedError
from mooncake_node.planes.tcp_counters import TcpCounters
from mooncake_node.planes.tcp_frames import (
    FRAME_NBYTES_MAX,
    HEADER_NBYTES,
    PART_NBYTES_MAX,
    FrameError,
    Reply,
    Request,
    body_nbytes,
    decode_request,
    pack,
    refusal,
)

# Seconds until a peer that is gone without a word is noticed while nothing is sent, about a minute in all.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))

log = get_logger()


class LoanBrokenError(Exception):
    """The bytes that were announced cannot be sent to the end."""


class TcpSender:
    """Serves data connections. Between connections it keeps nothing but its counters."""

    def __init__(self, counters: TcpCounters, threads: Executor, *, stall_timeout_s: float) -> None:
        """*threads*: for large objects."""
        self._counters = counters
        self._threads = threads
        self._stall_timeout_s = stall_timeout_s

    async def serve(self, sock: socket.socket, peer: str, lender: Lender) -> None:
        """Answer what *peer* asks on *sock*, one request after the other, until it or the connection ends.

        *sock* is connected, authenticated and non-blocking, and belongs to this call, which closes it however it
        ends. A loan is held until its last byte is in the kernel, which keeps a copy of its own, and is ended in
        every case. Returns when the peer has gone, has sent what is no request, has not taken a part for
        `stall_timeout_s`, or when a loan has broken: then it cannot be told so otherwise than by the end.
        """
        self._counters.connections_served += 1
        try:
            _prepare(sock)
            requests = _Requests(sock)
            while (request := await requests.next()) is not None:
                await self._answer(sock, request, lender)
        except TimeoutError:
            self._counters.stalled += 1
            log.warning("data_connection_stalled", peer=peer, timeout_s=self._stall_timeout_s)
        except (FrameError, LoanBrokenError, RefusedError) as error:
            log.warning("data_connection_ended", peer=peer, error=str(error))
        except OSError as error:
            log.info("data_connection_lost", peer=peer, error=str(error))
        finally:
            sock.close()

    async def _answer(self, sock: socket.socket, request: Request, lender: Lender) -> None:
        counters = self._counters
        is_lent = False
        try:
            loan_of = lender.lend(request.key, request.replica_id, request.generation, request.lease_token)
            async with loan_of as loan:
                is_lent = True
                if loan.nbytes == request.nbytes:
                    await self._send_loan(sock, request, loan)
                    counters.loans_sent += 1
                    return
                reason = f"it has {loan.nbytes} bytes, not {request.nbytes}"
        except RefusedError as error:
            if is_lent:
                raise
            reason = str(error)
        counters.loans_refused += 1
        await self._send(sock, pack(refusal(request, reason)))

    async def _send_loan(self, sock: socket.socket, request: Request, loan: Loan) -> None:
        counters = self._counters
        left = loan.nbytes
        try:
            await self._send(sock, pack(Reply(request_id=request.request_id, nbytes=left)))
            if loan.view is not None and left >= bulk.BULK_NBYTES_MIN:
                await self._push(sock, loan.view)
                counters.sent_nbytes += left
                return
            async with _closing(loan.parts()) as parts:
                async for part in parts:
                    if part.nbytes > left:
                        raise LoanBrokenError(f"{part.nbytes - left} bytes more than were announced")
                    left -= part.nbytes
                    for start in range(0, part.nbytes, PART_NBYTES_MAX):
                        piece = part[start : start + PART_NBYTES_MAX]
                        await self._send(sock, piece)
                        counters.sent_nbytes += piece.nbytes
                        # A peer that takes all at once would otherwise have this loop for itself.
                        await asyncio.sleep(0)
            if left:
                raise LoanBrokenError(f"{left} bytes less than were announced")
        except BaseException:
            counters.loans_broken += 1
            raise

    async def _push(self, sock: socket.socket, data: memoryview) -> None:
        """In a thread, which has ended when this ends: until then it reads the lender's memory."""
        loop = asyncio.get_running_loop()
        pushing = loop.run_in_executor(self._threads, bulk.push, sock, data, self._stall_timeout_s)
        try:
            await asyncio.shield(pushing)
        finally:
            if not pushing.done():
                bulk.stop(sock)
                await asyncio.wait([pushing])
                pushing.exception()

    async def _send(self, sock: socket.socket, data: bytes | memoryview) -> None:
        async with asyncio.timeout(self._stall_timeout_s):
            await asyncio.get_running_loop().sock_sendall(sock, data)


class _Requests:
    """Cuts what comes in on a socket into requests."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._came = b""

    async def next(self) -> Request | None:
        """The next one; None at the end of the connection. Raises FrameError and OSError."""
        if not await self._have(HEADER_NBYTES):
            return None
        end = HEADER_NBYTES + body_nbytes(self._came)
        if not await self._have(end):
            return None
        request = decode_request(self._came[HEADER_NBYTES:end])
        self._came = self._came[end:]
        return request

    async def _have(self, nbytes: int) -> bool:
        loop = asyncio.get_running_loop()
        while len(self._came) < nbytes:
            data = await loop.sock_recv(self._sock, FRAME_NBYTES_MAX)
            if not data:
                return False
            self._came += data
        return True


@contextlib.asynccontextmanager
async def _closing(parts: AsyncIterator[memoryview]) -> AsyncIterator[AsyncIterator[memoryview]]:
    # A generator that is left in the middle would keep its part until it is collected, beyond the loan.
    try:
        yield parts
    finally:
        if isinstance(parts, AsyncGenerator):
            await parts.aclose()


def _prepare(sock: socket.socket) -> None:
    assert sock.gettimeout() == 0.0
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
