"""The asyncio connection: a protocol on the loop, which also tells the daemon of handles let go."""

import asyncio
import contextlib
import os
import socket
from typing import Self, cast

from mooncake_client import fork, wire
from mooncake_client.arguments import Deadline
from mooncake_client.attachment import Attachment
from mooncake_client.codes import Code
from mooncake_client.errors import StoreError, StoreTimeoutError, error_for
from mooncake_client.framing import FramingError
from mooncake_client.handshake import Attached
from mooncake_client.link import FLUSH_INTERVAL_S, GRACE_S


class AsyncLink(asyncio.Protocol):
    """One attachment on one event loop."""

    def __init__(self, attached: Attached) -> None:
        self.lost = False
        self._closing = False
        self._cut_off = False
        self._loop = asyncio.get_running_loop()
        self._socket_fd = attached.sock.fileno()
        # For the time after the loop's end, when the transport has closed its own or never will.
        self._last_sock = attached.sock.dup()
        # Open as long as this object lives: views that outlive the connection still write to it.
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._awake = False
        self.attachment = Attachment(attached, notify=self.notify, on_leftover=self._wake)
        self._session = self.attachment.session
        self._ended = self._loop.create_future()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, attached: Attached) -> Self:
        """Put an attached connection on the running loop."""
        link = cls(attached)
        attached.sock.setblocking(False)
        try:
            await link._loop.create_unix_connection(lambda: link, sock=attached.sock)
        except BaseException:
            link.attachment.detach()
            if link._transport is None:
                attached.sock.close()
            else:
                link._transport.abort()
            raise
        return link

    def __del__(self) -> None:
        if self._wake_fd >= 0:
            os.close(self._wake_fd)
        self._last_sock.close()

    async def call(self, request: wire.Request, deadline: Deadline) -> wire.AnyReply:
        """Send *request* and await its reply. Raises as `Link.call`."""
        if self.lost or self._transport is None:
            raise self._gone()
        ended = asyncio.Event()
        try:
            call, frame = self._session.begin(request, ended.set)
        except FramingError as exc:
            raise error_for(Code.INVALID_ARGUMENT, str(exc)) from exc
        self._transport.write(frame)
        timer = self._loop.call_later(max(0.0, deadline.remaining_s()) + GRACE_S, ended.set)
        try:
            await ended.wait()
            if not call.ended:
                raise StoreTimeoutError(f"the daemon did not answer within {deadline.timeout_s:g} s (+{GRACE_S:g} s)")
        except BaseException:
            for notice in self._session.abandon(call):
                self.notify(notice)
            raise
        finally:
            timer.cancel()
        try:
            return self._session.outcome(call)
        finally:
            # An error of the call refers to this frame, which would keep it, and every frame it passes, alive.
            del call

    def notify(self, notice: wire.Request) -> None:
        """Send a notice; dropped when the connection is lost, since the daemon then frees what it is about."""
        if not self.lost and self._transport is not None:
            self._transport.write(self._session.frame(notice))

    async def close(self) -> None:
        """No more calls. The connection itself ends when the last view of G has died: the daemon must hear of it."""
        self._closing = True
        self.attachment.detach()
        if not self._session.holds:
            self.flush()
            await self._ended

    def cut_off_in_child(self) -> None:
        """After fork, in the child: the connection belongs to the parent alone."""
        if self._cut_off:
            return
        self.lost = self._cut_off = True
        os.close(self._socket_fd)
        self._last_sock.close()
        os.close(self._wake_fd)
        self._wake_fd = -1

    # -- called by the loop ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)
        self._loop.add_reader(self._wake_fd, self._on_wake)
        fork.register(self)

    def data_received(self, data: bytes) -> None:
        """Part of `asyncio.Protocol`."""
        self._session.unpacker.chunks.append(data)
        try:
            notices = self._session.receive()
        except FramingError:
            assert self._transport is not None
            self._transport.abort()
            return
        for notice in notices:
            self.notify(notice)

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of `asyncio.Protocol`. Ends all calls under way, lets go of G where no view needs it."""
        del exc
        self.lost = True
        self._loop.remove_reader(self._wake_fd)
        self._session.lose(self._gone)
        self.attachment.detach()
        self._last_sock.close()
        self._ended.set_result(None)

    # -- handles let go ----------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        # Runs in __del__, in any thread: no lock, one system call, and only when no flush is due anyway.
        if self._loop.is_closed():
            self._flush_without_loop()
        elif not self._awake and not self._cut_off:
            self._awake = True
            os.eventfd_write(self._wake_fd, 1)

    def _on_wake(self) -> None:
        os.eventfd_read(self._wake_fd)
        # Most releases ride on the next request.
        self._loop.call_later(FLUSH_INTERVAL_S, self.flush)

    def flush(self) -> None:
        """Tell the daemon now of what was let go."""
        if self._loop.is_closed():
            self._flush_without_loop()
            return
        self._awake = False
        for notice in self._session.leftovers():
            self.notify(notice)
        if self._closing and self._session.idle and not self.lost:
            assert self._transport is not None
            self.notify(wire.Goodbye(0, []))
            self._transport.close()

    def _flush_without_loop(self) -> None:
        """Views that outlive the loop are given back too: all that is left to say is sent at once, or not at all."""
        if self.lost:
            return
        frames = [self._session.frame(notice) for notice in self._session.leftovers()]
        if self._session.idle:
            # Nothing can be pinned any more, and nothing was in between.
            self.attachment.detach()
            if self._session.idle:
                frames.append(self._session.frame(wire.Goodbye(0, [])))
        with contextlib.suppress(OSError):
            self._last_sock.send(b"".join(frames), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def _gone(self) -> StoreError:
        return fork.refusal() if self._cut_off else self._session.gone()
