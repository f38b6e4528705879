"""The receiving end of one data connection: raw bytes go from the socket straight into their place."""

import asyncio
import socket
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import cast

import msgspec

from mooncake_node.planes import bulk
from mooncake_node.planes.port import Outcome
from mooncake_node.planes.tcp_counters import TcpCounters
from mooncake_node.planes.tcp_frames import (
    FRAME_NBYTES_MAX,
    HEADER_NBYTES,
    PART_NBYTES_MAX,
    FrameError,
    Request,
    body_nbytes,
    decode_reply,
    pack,
)
from mooncake_node.planes.transfer import Transfer

# A transport may read on while there is something to be read; after so many bytes others have their turn.
TURN_NBYTES_MAX = 1 << 20


class _Phase(Enum):
    """What the next bytes are."""

    IDLE = "idle"  # none may come
    HEADER = "header"  # the length of a reply
    BODY = "body"  # a reply
    RAW = "raw"  # the object
    BULK = "bulk"  # the object, and a thread reads it
    OVER = "over"  # nobody's: the connection ends


class Pool(msgspec.Struct, frozen=True):
    """Who has a connection, and what all of its have in common."""

    view: Callable[[int, int], memoryview]  # of this node's pool: offset, nbytes
    on_idle: Callable[["Connection"], None]  # it can take the next transfer
    on_lost: Callable[["Connection"], None]  # it is no more
    counters: TcpCounters
    threads: bulk.Threads  # for large objects
    stall_timeout_s: float
    idle_timeout_s: float


class Connection(asyncio.BufferedProtocol):
    """Carries one transfer at a time. Any failure but a refusal ends it.

    The destination is handed to the transport only in the phase RAW, never beyond its end; the transport fills a
    buffer within the same callback in which it asks for it, so once the phase is another nothing is written there.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._phase = _Phase.OVER  # until it is made
        self._transfer: Transfer | None = None  # set in HEADER, BODY and RAW, and in OVER until the connection is lost
        self._requests = 0
        # Frames come here, byte for byte, so that no raw byte does. Never given out empty.
        self._scratch = memoryview(bytearray(HEADER_NBYTES + FRAME_NBYTES_MAX))
        self._target = self._scratch  # what is to be filled; by phase the frame or the destination
        self._filled = 0
        self._turn_nbytes = 0
        self._touched_at = self._loop.time()  # when the last byte came or the phase IDLE began or ended
        self._timer: asyncio.TimerHandle | None = None
        self._bulk_sock: socket.socket | None = None  # the same connection, in the phase BULK
        self._lost_by: Exception | None = None  # how it was lost in that phase

    # -- called by the plane -----------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """It can take a transfer."""
        return self._phase is _Phase.IDLE

    @property
    def is_busy(self) -> bool:
        """It has a transfer that has not ended."""
        return self._transfer is not None

    def begin(self, transfer: Transfer) -> None:
        """Ask for it. It ends here in every case."""
        assert self._phase is _Phase.IDLE
        assert self._transport is not None
        source = transfer.source
        self._transfer = transfer
        self._requests += 1
        request = Request(
            request_id=self._requests,
            key=source.key,
            replica_id=source.replica_id,
            generation=source.generation,
            lease_token=source.lease_token,
            nbytes=source.nbytes,
        )
        transfer.stop = self.give_up
        self._touched_at = self._loop.time()
        self._expect(_Phase.HEADER, self._scratch[:HEADER_NBYTES])
        self._transport.write(pack(request))

    def give_up(self, reason: str) -> None:
        """End the connection; from now on nothing is written into a destination. `lost` follows."""
        if self._phase is _Phase.OVER:
            return
        if self._transfer is not None:
            self._transfer.reason = self._transfer.reason or reason
        if self._bulk_sock is not None:
            bulk.stop(self._bulk_sock)  # when its thread has ended, the connection does
            return
        self._expect(_Phase.OVER, self._scratch)
        assert self._transport is not None
        self._transport.abort()

    # -- called by the loop ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of `asyncio.BufferedProtocol`."""
        self._transport = cast("asyncio.Transport", transport)
        self._phase = _Phase.IDLE
        self._watch()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Part of `asyncio.BufferedProtocol`. Where the next bytes go."""
        del sizehint
        if self._phase in (_Phase.IDLE, _Phase.BULK, _Phase.OVER):
            return self._scratch
        return self._target[self._filled : self._filled + PART_NBYTES_MAX]

    def buffer_updated(self, nbytes: int) -> None:
        """Part of `asyncio.BufferedProtocol`."""
        if self._phase is _Phase.OVER:
            return
        if self._phase is _Phase.IDLE or self._phase is _Phase.BULK:
            self.give_up("bytes that nobody has asked for")
            return
        self._touched_at = self._loop.time()
        self._filled += nbytes
        if self._phase is _Phase.RAW:
            self._pool.counters.received_nbytes += nbytes
            if self._filled < self._target.nbytes:
                self._take_turns(nbytes)
        if self._filled == self._target.nbytes:
            try:
                self._target_filled()
            except FrameError as error:
                self.give_up(str(error))

    def eof_received(self) -> bool:
        """Part of `asyncio.BufferedProtocol`. False: the transport closes itself."""
        if self._phase is _Phase.IDLE:
            self._expect(_Phase.OVER, self._scratch)  # no transfer is to begin here in between
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of `asyncio.BufferedProtocol`. Nothing is written any more, but by a thread, which ends first."""
        self._transport = None
        if self._bulk_sock is not None:
            bulk.stop(self._bulk_sock)
            self._lost_by = exc
            return
        self._expect(_Phase.OVER, self._scratch)
        if self._timer is not None:
            self._timer.cancel()
        transfer, self._transfer = self._transfer, None
        self.lost.set_result(None)
        if transfer is not None:
            transfer.end(Outcome.FAILED, f"the connection was lost: {exc}" if exc else "the sender has hung up")
        self._pool.on_lost(self)

    # -- within ------------------------------------------------------------------------------------------------------

    def _expect(self, phase: _Phase, target: memoryview) -> None:
        assert target.nbytes
        self._phase, self._target, self._filled = phase, target, 0

    def _target_filled(self) -> None:
        if self._phase is _Phase.HEADER:
            self._expect(_Phase.BODY, self._scratch[: body_nbytes(self._target)])
        elif self._phase is _Phase.BODY:
            self._reply_came()
        else:
            self._finish(Outcome.OK)

    def _reply_came(self) -> None:
        reply = decode_reply(self._target)
        assert self._transfer is not None
        source = self._transfer.source
        if reply.request_id != self._requests:
            raise FrameError(f"an answer to request {reply.request_id} instead of {self._requests}")
        if reply.refusal:
            self._finish(Outcome.FAILED, f"refused: {reply.refusal}")
        elif reply.nbytes != source.nbytes:
            raise FrameError(f"{reply.nbytes} bytes are announced, {source.nbytes} were asked for")
        elif source.nbytes == 0:
            self._finish(Outcome.OK)
        else:
            destination = self._pool.view(self._transfer.local_offset, source.nbytes)
            assert destination.nbytes == source.nbytes
            if source.nbytes >= bulk.BULK_NBYTES_MIN and self._pool.threads.any_free:
                self._begin_bulk(destination)
            else:
                self._expect(_Phase.RAW, destination)

    def _begin_bulk(self, destination: memoryview) -> None:
        """Leave the connection to a thread until the object is here."""
        assert self._transport is not None
        self._expect(_Phase.BULK, self._scratch)
        self._transport.pause_reading()
        self._bulk_sock = sock = socket.socket(fileno=socket.dup(self._transport.get_extra_info("socket").fileno()))
        sock.setblocking(False)
        pulling = self._pool.threads.run(bulk.pull, sock, destination, self._pool.stall_timeout_s)
        pulling.add_done_callback(partial(self._bulk_ended, destination.nbytes))

    def _bulk_ended(self, nbytes: int, pulling: "asyncio.Future[int]") -> None:
        """The thread has ended, and writes nothing any more."""
        assert self._bulk_sock is not None
        self._bulk_sock.close()
        self._bulk_sock = None
        self._touched_at = self._loop.time()
        error = pulling.exception()
        if self._transport is None:
            self.connection_lost(self._lost_by)
        elif error is None:
            self._pool.counters.received_nbytes += nbytes
            assert self._transfer is not None
            self._transfer.xxh3 = pulling.result()
            self._transport.resume_reading()
            self._finish(Outcome.OK)
        else:
            self._phase = _Phase.RAW
            if isinstance(error, TimeoutError):
                self._pool.counters.stalled += 1
            self.give_up(str(error) or f"not a byte for {self._pool.stall_timeout_s:g} s")

    def _finish(self, outcome: Outcome, reason: str = "") -> None:
        transfer, self._transfer = self._transfer, None
        assert transfer is not None
        self._expect(_Phase.IDLE, self._scratch)
        transfer.end(outcome, reason)
        self._pool.on_idle(self)

    def _take_turns(self, nbytes: int) -> None:
        # uvloop reads up to 32 times without a look at anything else.
        self._turn_nbytes += nbytes
        if self._turn_nbytes >= TURN_NBYTES_MAX:
            self._turn_nbytes = 0
            assert self._transport is not None
            self._transport.pause_reading()
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _watch(self) -> None:
        """End what stands still: a transfer, or a connection that nobody needs. One timer for both."""
        pool = self._pool
        limit_s = pool.idle_timeout_s if self._phase is _Phase.IDLE else pool.stall_timeout_s
        left_s = self._touched_at + limit_s - self._loop.time()
        if left_s > 0 or self._phase is _Phase.BULK:
            # Idle connections look up no less often, for they may be busy by then.
            self._timer = self._loop.call_later(min(max(left_s, 0.1), pool.stall_timeout_s), self._watch)
        elif self._phase is _Phase.IDLE:
            self.give_up("not needed")
        else:
            pool.counters.stalled += 1
            self.give_up(f"not a byte for {limit_s:g} s")
