"""The blocking connection: one socket shared by threads, and a housekeeper that tidies up behind them.

A thread that waits for its reply reads the socket for everyone (the leader); the others sleep until their reply came
or until it is their turn to lead. The housekeeper tells the daemon of handles let go when no request does, and
notices at once when the daemon is gone, so that G is not kept mapped for nothing.
"""

import contextlib
import os
import select
import socket
import struct
import threading
import time

from mooncake_client import fork, wire
from mooncake_client.arguments import Deadline
from mooncake_client.attachment import Attachment
from mooncake_client.errors import StoreError, StoreTimeoutError, error_for
from mooncake_client.framing import FramingError
from mooncake_client.handshake import Attached
from mooncake_client.session import Call

# How long handles may wait for a request to ride on.
FLUSH_INTERVAL_S = 0.01
# The daemon answers at a call's deadline by itself; after this much more it is taken as stuck.
GRACE_S = 1.0

# The daemon is taken as stuck when its socket takes nothing for that long.
SEND_TIMEOUT_S = 5

# How long a leader looks for what comes before it sleeps: about what a plain request takes (ADR 8).
SPIN_S = 80e-6
# With one processor the daemon could not run meanwhile.
_CAN_SPIN = (os.cpu_count() or 1) > 1

_RECEIVE_NBYTES = (64 << 10,)
_NOT_BLOCKING = (False,)
_DONT_WAIT = (socket.MSG_DONTWAIT,)
# A receive wakes up that often to look at its deadline: seconds, microseconds.
_RECEIVE_TICK = struct.pack("ll", 0, 200_000)
_SEND_TIMEOUT = struct.pack("ll", SEND_TIMEOUT_S, 0)


class Link:
    """One attachment over one blocking socket."""

    def __init__(self, attached: Attached) -> None:
        self.lost = False
        self._closing = False
        self._cut_off = False
        self._sock = attached.sock
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _RECEIVE_TICK)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIMEOUT)
        self._send_lock = threading.Lock()
        # Held by the thread that reads the socket for everyone.
        self._lead = threading.Lock()
        # What was last slept for came so soon that looking for it would have found it.
        self._spins = False
        # All and only the threads that sleep until their reply came or they may lead.
        self._sleepers: dict[int, threading.Event] = {}
        # Open as long as this object lives: views that outlive the connection still write to it.
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._awake = False
        self.attachment = Attachment(attached, notify=self.notify, on_leftover=self._wake_housekeeper)
        self._session = self.attachment.session
        fork.register(self)
        self._housekeeper = threading.Thread(target=self._keep_house, name="mooncake-client-housekeeper", daemon=True)
        self._housekeeper.start()

    def __del__(self) -> None:
        if self._wake_fd >= 0:
            os.close(self._wake_fd)

    # -- calls -------------------------------------------------------------------------------------------------------

    def call(self, request: wire.Request, deadline: Deadline) -> wire.AnyReply:
        """Send *request* and wait for its reply.

        Raises what the daemon refused it with; DaemonGoneError when the connection is lost, with an unknown outcome;
        StoreTimeoutError when a daemon that lives does not answer.
        """
        if self.lost:
            raise self._gone()
        try:
            call, frame = self._session.begin(request)
        except FramingError as exc:
            raise error_for(-600, str(exc)) from exc
        try:
            self._send(frame)
            self._await(call, deadline)
            return self._session.outcome(call)
        except BaseException:
            if not call.ended or isinstance(call.reply, wire.Acquired | wire.PutStarted):
                self._session.keep(request)
                for notice in self._session.abandon(call):
                    self.notify(notice)
                self._wake_housekeeper()
            raise
        finally:
            # An error of the call refers to this frame, which would keep it, and every frame it passes, alive.
            del call

    def give_back(self, reply: wire.AnyReply | None) -> None:
        """What *reply* granted goes back, but for what is in use: its caller was interrupted before it had it."""
        if reply is not None:
            for notice in self._session.give_back(reply):
                self.notify(notice)

    def notify(self, notice: wire.Request) -> None:
        """Send a notice; dropped when that cannot be done, since the daemon then frees what it is about."""
        if not self.lost:
            try:
                self._send(self._session.frame(notice))
            except StoreError:
                self.lose()
            except BaseException:
                self._session.keep(notice)
                raise

    def flush(self) -> None:
        """Tell the daemon now of what was let go."""
        for notice in self._session.leftovers():
            self.notify(notice)

    def _send(self, frame: bytes) -> None:
        # The results of send() are collected by C code that runs no signal handler in between, so that after a
        # KeyboardInterrupt we still know how much of the frame went out. Half a frame would make the rest unreadable.
        sent: list[int] = []
        with self._send_lock:
            try:
                sent.extend(map(self._sock.send, (frame,)))
                if sent[0] < len(frame):
                    self._send_rest(frame, sent)
            except BlockingIOError as exc:
                if sent:
                    self.lose()
                raise StoreTimeoutError(f"the daemon took no request for {SEND_TIMEOUT_S} s") from exc
            except OSError as exc:
                self.lose()
                raise self._gone() from exc
            except BaseException:
                if 0 < sum(sent) < len(frame):
                    self.lose()
                raise

    def _send_rest(self, frame: bytes, sent: list[int]) -> None:
        view = memoryview(frame)
        while sum(sent) < len(frame):
            sent.extend(map(self._sock.send, (view[sum(sent) :],)))

    # -- leader and sleepers -----------------------------------------------------------------------------------------

    def _await(self, call: Call, deadline: Deadline) -> None:
        due_s = 0.0
        while not call.ended:
            # As in _send: whether the lead was had is in the list before a signal handler can run.
            leads: list[bool] = []
            try:
                leads.extend(map(self._lead.acquire, _NOT_BLOCKING))
                if leads[0]:
                    self._receive()
                    while not call.ended:
                        due_s = due_s or _due_s(deadline)
                        if time.monotonic() >= due_s + GRACE_S:
                            break
                        self._receive()
            finally:
                if leads and leads[0]:
                    try:
                        self._lead.release()
                    finally:
                        if self._sleepers:
                            self._wake_a_sleeper()
            if not leads[0]:
                due_s = due_s or _due_s(deadline)
                self._sleep(call, due_s)
            if not call.ended and time.monotonic() >= due_s + GRACE_S:
                raise StoreTimeoutError(f"the daemon did not answer within {deadline.timeout_s:g} s (+{GRACE_S:g} s)")

    def _sleep(self, call: Call, due_s: float) -> None:
        """Sleep until the reply came or the lead is free."""
        wake = threading.Event()
        call.on_end = wake.set
        self._sleepers[call.request_id] = wake
        try:
            # Looked at once more: the reply may have come before on_end was set, the leader may have left before we
            # stood among the sleepers.
            if not call.ended and self._lead.locked():
                # Twice, since the process may have been stopped meanwhile: then the leader has yet to read what came.
                _ = wake.wait(max(0.0, due_s - time.monotonic())) or wake.wait(GRACE_S)
        finally:
            self._sleepers.pop(call.request_id, None)
            # Woken to lead and with no need to: another must.
            if call.ended and not self._lead.locked():
                self._wake_a_sleeper()

    def _wake_a_sleeper(self) -> None:
        for wake in list(self._sleepers.values())[:1]:
            wake.set()

    def _receive(self) -> None:
        """Take in what comes, for everybody."""
        chunks = self._session.unpacker.chunks
        try:
            if not (self._spins and self._spin(chunks)):
                self._spins, begin_s = False, time.monotonic()
                # As in _send: what recv() returned is in the list before a signal handler can run.
                chunks.extend(map(self._sock.recv, _RECEIVE_NBYTES))
                self._spins = _CAN_SPIN and time.monotonic() - begin_s < SPIN_S
        except BlockingIOError:
            return
        except OSError:
            self.lose()
            return
        if not chunks[-1]:
            self.lose()
            return
        try:
            notices = self._session.receive()
        except FramingError:
            self.lose()
            return
        for notice in notices:
            self.notify(notice)

    def _spin(self, chunks: list[bytes]) -> bool:
        """Look for what comes for a moment, without sleeping; whether it came."""
        recv, end_s = self._sock.recv, time.monotonic() + SPIN_S
        while True:
            try:
                chunks.extend(map(recv, _RECEIVE_NBYTES, _DONT_WAIT))
            except BlockingIOError:
                if time.monotonic() >= end_s:
                    return False
                os.sched_yield()
            else:
                return True

    # -- the end -----------------------------------------------------------------------------------------------------

    def lose(self) -> None:
        """The connection is no more: end all calls under way, let go of G where no view needs it."""
        self.lost = True
        # First: what is pinned once the daemon has seen the end of the connection would not be protected.
        self.attachment.detach()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._session.lose(self._gone)
        self._wake_housekeeper()

    def close(self) -> None:
        """No more calls. The connection itself ends when the last view of G has died: the daemon must hear of it."""
        # In this order: the housekeeper says goodbye when it is closing and idle, and nothing may be pinned after that.
        self.attachment.detach()
        self._closing = True
        self._wake_housekeeper()
        held = self._session.holds or self._cut_off
        if not held and threading.current_thread() is not self._housekeeper:
            self._housekeeper.join()

    def cut_off_in_child(self) -> None:
        """After fork, in the child: the connection belongs to the parent alone."""
        if self._cut_off:
            return
        self.lost = self._cut_off = True
        # Not shutdown(), which would end the parent's connection too.
        self._sock.close()
        os.close(self._wake_fd)
        self._wake_fd = -1

    def _gone(self) -> StoreError:
        return fork.refusal() if self._cut_off else self._session.gone()

    # -- the housekeeper ---------------------------------------------------------------------------------------------

    def _wake_housekeeper(self) -> None:
        # Runs in __del__ too: no lock, one system call, and only while it sleeps.
        if not self._awake and not self._cut_off:
            self._awake = True
            try:
                os.eventfd_write(self._wake_fd, 1)
            except BaseException:
                # Interrupted before or after it; twice is harmless.
                os.eventfd_write(self._wake_fd, 1)
                raise

    def _keep_house(self) -> None:
        poll = select.poll()
        poll.register(self._wake_fd, select.POLLIN)
        poll.register(self._sock, select.POLLRDHUP)
        while not self.lost and not (self._closing and self._session.idle):
            for fd, events in poll.poll():
                if fd == self._wake_fd:
                    os.eventfd_read(fd)
                elif events == select.POLLIN:
                    self._receive_late()
                else:
                    self._receive_to_the_end()
            if not self._closing:
                # Most releases ride on the next request.
                time.sleep(FLUSH_INTERVAL_S)
            self._awake = False
            for notice in self._session.leftovers():
                self.notify(notice)
            late = select.POLLIN if self._session.awaits_late_replies else 0
            poll.modify(self._sock, select.POLLRDHUP | late)
        if not self.lost:
            self.notify(wire.Goodbye(0, []))
        self.lose()
        self._sock.close()
        # Each refers to this object: without them it ends, and its descriptor with it, at the last reference and not at
        # some collection of garbage.
        self.attachment.notify = _drop
        if not self._session.holds:
            self._session.on_leftover = _nothing

    def _receive_late(self) -> None:
        """Take in the reply of a call that was given up, so that what it grants goes back though nobody calls."""
        if self._lead.acquire(blocking=False):
            try:
                self._receive()
            finally:
                self._lead.release()
                if self._sleepers:
                    self._wake_a_sleeper()
        else:
            # A thread that waits for its own reply takes in this one too.
            time.sleep(FLUSH_INTERVAL_S)

    def _receive_to_the_end(self) -> None:
        """The daemon is gone, or has given this connection up: take in its last words."""
        while not self.lost:
            if self._lead.acquire(blocking=False):
                try:
                    self._receive()
                finally:
                    self._lead.release()
            else:
                # A thread that waits for its reply reads the same words.
                time.sleep(FLUSH_INTERVAL_S)


def _drop(_notice: wire.Request) -> None:
    pass


def _nothing() -> None:
    pass


def _due_s(deadline: Deadline) -> float:
    """When to expect the daemon's answer: now if the deadline passed before, as it may in a put's copy."""
    return time.monotonic() + max(0.0, deadline.remaining_s())
