"""The sending side: lends objects, and sends their bytes to who asks for them."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, AsyncIterator

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

    def __init__(self, counters: TcpCounters, threads: bulk.Threads, *, stall_timeout_s: float) -> None:
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
            with contextlib.closing(_Requests(sock)) as requests:
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
        reply = pack(Reply(request_id=request.request_id, nbytes=loan.nbytes))
        try:
            if loan.view is None:
                await self._send(sock, reply)
                await self._send_parts(sock, loan)
            elif loan.nbytes >= bulk.BULK_NBYTES_MIN and self._threads.any_free:
                await self._send(sock, reply)
                await self._push(sock, loan.view)
                self._counters.sent_nbytes += loan.nbytes
            else:
                await self._send_pieces(sock, loan.view, reply)
        except BaseException:
            self._counters.loans_broken += 1
            raise

    async def _send_parts(self, sock: socket.socket, loan: Loan) -> None:
        left = loan.nbytes
        async with _closing(loan.parts()) as parts:
            async for part in parts:
                if part.nbytes > left:
                    raise LoanBrokenError(f"{part.nbytes - left} bytes more than were announced")
                left -= part.nbytes
                await self._send_pieces(sock, part)
        if left:
            raise LoanBrokenError(f"{left} bytes less than were announced")

    async def _send_pieces(self, sock: socket.socket, part: memoryview, before: bytes = b"") -> None:
        for start in range(0, max(1, part.nbytes), PART_NBYTES_MAX):
            piece = part[start : start + PART_NBYTES_MAX]
            await self._send(sock, piece, before)
            before = b""
            self._counters.sent_nbytes += piece.nbytes
            # A peer that takes all at once would otherwise have this loop for itself.
            await asyncio.sleep(0)

    async def _push(self, sock: socket.socket, data: memoryview) -> None:
        """In a thread, which has ended when this ends: until then it reads the lender's memory."""
        pushing = self._threads.run(bulk.push, sock, data, self._stall_timeout_s)
        try:
            await asyncio.shield(pushing)
        finally:
            if not pushing.done():
                bulk.stop(sock)
                await asyncio.wait([pushing])
                pushing.exception()

    async def _send(self, sock: socket.socket, data: bytes | memoryview, before: bytes = b"") -> None:
        """Send *before* and *data*. Mostly the kernel takes all at once; what it does not is waited for."""
        try:
            sent = sock.sendmsg((before, data)) - len(before)
        except BlockingIOError:
            sent = -len(before)
        if sent == len(data):
            return
        async with asyncio.timeout(self._stall_timeout_s):
            loop = asyncio.get_running_loop()
            if sent < 0:
                await loop.sock_sendall(sock, before[sent:])
                sent = 0
            await loop.sock_sendall(sock, data[sent:])


class _Requests:
    """Cuts what comes in on a socket into requests. Looks at the socket from when it is made until it is closed."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._came = b""
        self._end: BaseException | bool = False  # what else came: the end of the connection, or an error
        self._waiter: asyncio.Future[None] | None = None
        self._looks = False
        self._look()

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

    def close(self) -> None:
        """Look no more."""
        self._looks = False
        self._loop.remove_reader(self._sock.fileno())

    def _look(self) -> None:
        if not self._looks:
            self._looks = True
            self._loop.add_reader(self._sock.fileno(), self._receive)

    def _receive(self) -> None:
        try:
            data = self._sock.recv(FRAME_NBYTES_MAX)
        except BlockingIOError:
            return
        except OSError as error:
            self._end = error
        else:
            self._came += data
            self._end = not data
        if self._end or len(self._came) > FRAME_NBYTES_MAX:
            # Of requests that come before they are due, no more than that are taken in.
            self.close()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _have(self, nbytes: int) -> bool:
        while len(self._came) < nbytes and not self._end:
            self._look()
            self._waiter = self._loop.create_future()
            await self._waiter
        if isinstance(self._end, BaseException) and len(self._came) < nbytes:
            raise self._end
        return len(self._came) >= nbytes


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
