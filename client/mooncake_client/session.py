"""The client's end of one connection, without IO: request ids, replies, released handles.

Bytes go in and out as arguments; the fronts (`blocking`, `aio`) do the sending, the waiting and the clocks. May be
used from several threads: every shared structure is changed by single steps that the interpreter does not divide,
because handles are let go from `__del__`, where no lock may be taken.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import count, repeat

import msgspec

from mooncake_client import wire
from mooncake_client.errors import DaemonGoneError, StoreError, error_for
from mooncake_client.framing import Unpacker, pack
from mooncake_client.pin_row import PinRow

# Handles carried by one message; more wait for the next one.
RELEASED_MAX = 65_536


class Call(msgspec.Struct, eq=False):
    """One request on its way. Ends by a reply or by an error, which *on_end* hears of."""

    request_id: int
    on_end: Callable[[], None] | None
    reply: wire.AnyReply | None = None
    error: StoreError | None = None
    ended: bool = False  # a reply or an error is here
    abandoned: bool = False


class Session:
    """Requests under way and handles held on one connection."""

    def __init__(self, on_leftover: Callable[[], None]) -> None:
        """*on_leftover* is told, from `__del__`, that there is something to tell the daemon when there is time."""
        self.on_leftover = on_leftover
        self._ids = count(1)
        self.unpacker: Unpacker[wire.AnyReply] = Unpacker(wire.AnyReply)
        # All and only the calls that have neither reply nor error.
        self._calls: dict[int, Call] = {}
        # All and only the handles whose view may still be alive.
        self.live: dict[int, object] = {}
        # Handles let go and not yet told to the daemon.
        self.released: deque[int] = deque()
        # All and only the reservations whose writable view may still be alive.
        self.drafts: dict[int, object] = {}
        # All and only the reservations that a put is copying into.
        self.writing: dict[int, object] = {}
        # Reservations given up and not yet told to the daemon.
        self.given_up: deque[int] = deque()
        # What is pinned by way of the shared index, if there is one.
        self.pin_row: PinRow | None = None
        # The daemon is to be told that something was unpinned.
        self.unpinned = False
        # What the daemon said when it gave this connection up.
        self.farewell: wire.Failed | None = None

    def begin(self, request: wire.Request, on_end: Callable[[], None] | None = None) -> tuple[Call, bytes]:
        """Enter a call; returns it and the frame to send. A frame that cannot be packed enters nothing."""
        request.request_id = request_id = next(self._ids)
        try:
            frame = self.frame(request)
            call = Call(request_id, on_end)
        except BaseException:
            self.keep(request)
            raise
        self._calls[request_id] = call
        return call, frame

    def frame(self, request: wire.Request) -> bytes:
        """The frame of a request or notice, with the released handles riding along."""
        if self.released:
            _move(self.released, request.released, RELEASED_MAX)
        return pack(request)

    def receive(self) -> Sequence[wire.Request]:
        """Take in what was appended to `unpacker.chunks` and end the calls it answers; returns notices to send.

        Those give back what arrived for callers who had given up. Interrupted, it may be called again: a reply ends
        its call once, and giving back twice is harmless.
        """
        reply = self.unpacker.read_one()
        if reply is not None and (call := self._calls.get(reply.request_id)) is not None and not call.abandoned:
            # The reply somebody waits for and nothing else.
            call.reply = reply
            call.ended = True
            if call.on_end is not None:
                call.on_end()
            del self._calls[call.request_id]
            self.unpacker.chunks.clear()
            return ()
        notices: list[wire.Request] = []
        replies, rest = self.unpacker.read()
        for reply in replies:
            call = self._calls.get(reply.request_id)
            if call is None:
                if isinstance(reply, wire.Failed) and reply.request_id == 0:
                    self.farewell = reply
                continue
            call.reply = reply
            call.ended = True
            if call.abandoned:
                notices += self.give_back(reply)
            elif call.on_end is not None:
                call.on_end()
            self._calls.pop(reply.request_id, None)
        self.unpacker.accept(replies, rest)
        return notices

    def abandon(self, call: Call) -> list[wire.Request]:
        """The caller gives up; returns notices to send. What still comes for it is given back by `receive`."""
        call.abandoned = True
        if call.reply is not None:
            return self.give_back(call.reply)
        if call.error is not None:
            return []
        return [wire.Cancel(0, [], call.request_id)]

    def lose(self, make_error: Callable[[], StoreError]) -> None:
        """The connection is gone: every call under way ends with an error of its own."""
        while self._calls:
            _, call = self._calls.popitem()
            call.error = make_error()
            call.ended = True
            if call.on_end is not None and not call.abandoned:
                call.on_end()

    # Interrupted, the next two may be called again: told twice is harmless, not told is not.

    def gone(self) -> DaemonGoneError:
        """What a call is told that the end of the connection has overtaken."""
        reason = f": {self.farewell.message}" if self.farewell else ""
        return DaemonGoneError(
            f"the connection to the daemon was lost{reason}; whether a request under way was carried out is unknown"
        )

    def let_go(self, handle_id: int) -> None:
        """No view of the handle is left. Called from `__del__`, in any thread; twice is harmless."""
        self.released.append(handle_id)
        self.live.pop(handle_id, None)
        self.on_leftover()

    def tell_unpinned(self) -> None:
        """The daemon, or the end of this connection, waits for an unpin that has happened. Called from `__del__`."""
        self.unpinned = True
        self.on_leftover()

    def give_up(self, replica_id: int) -> None:
        """No writable view of the reservation is left; given back unless published. Called from `__del__`."""
        if replica_id in self.drafts:
            self.given_up.append(replica_id)
            self.drafts.pop(replica_id, None)
        # In any case: the connection of a closed client may have been waiting for nothing else.
        self.on_leftover()

    def leftovers(self) -> list[wire.Request]:
        """Notices that tell the daemon now what would else ride on the next request."""
        notices: list[wire.Request] = []
        if self.given_up:
            revoke = wire.PutRevoke(0, [], [])
            _move(self.given_up, revoke.replica_ids, wire.ITEMS_MAX)
            notices.append(revoke)
        if self.released:
            notices.append(wire.Released(0, []))
        if self.unpinned:
            self.unpinned = False
            notices.append(wire.Unpinned(0, []))
        return notices

    @property
    def awaits_late_replies(self) -> bool:
        """A call was given up whose reply has not come."""
        return any(call.abandoned for call in list(self._calls.values()))

    @property
    def holds(self) -> bool:
        """Something of G can be reached through this connection."""
        return bool(self.live or self.drafts or self.writing) or (self.pin_row is not None and self.pin_row.in_use)

    @property
    def idle(self) -> bool:
        """Nothing of G can be reached through this connection any more, and the daemon knows."""
        return not (self.holds or self.released or self.given_up or self.unpinned)

    def outcome(self, call: Call) -> wire.AnyReply:
        """The reply of a call that has ended; raises what it was refused with or ended by."""
        if call.error is not None:
            try:
                raise call.error
            finally:
                # It refers to this frame, which would keep it, and every frame it passes, alive.
                del call
        reply = call.reply
        assert reply is not None
        if isinstance(reply, wire.Failed):
            raise error_for(reply.code, reply.message)
        return reply

    def give_back(self, reply: wire.AnyReply) -> list[wire.Request]:
        """Notices that give back what *reply* granted and nobody took; twice is harmless.

        Entered before they are made: should the sender be interrupted, the next one has it.
        """
        if isinstance(reply, wire.Acquired):
            # But for those whose view was made: its death gives them back.
            self.released.extend(
                item.handle_id
                for item in reply.items
                if isinstance(item, wire.Grant) and item.handle_id not in self.live
            )
        elif isinstance(reply, wire.PutStarted):
            self.given_up.extend(item.replica_id for item in reply.items if isinstance(item, wire.Reservation))
        return self.leftovers()

    def keep(self, unsent: wire.Request) -> None:
        """*unsent* may not have gone out; what it was to tell is told again. Twice is harmless."""
        self.released.extend(unsent.released)
        if isinstance(unsent, wire.PutRevoke):
            self.given_up.extend(unsent.replica_ids)
        elif isinstance(unsent, wire.Unpinned):
            self.unpinned = True


def _move(queue: deque[int], target: list[int], count_max: int) -> None:
    # In C, so that no signal handler comes between the taking out and the putting in.
    try:  # noqa: SIM105  contextlib.suppress costs as much as all the rest
        target.extend(map(deque.popleft, repeat(queue, min(len(queue), count_max))))
    except IndexError:
        pass  # another thread took the last one
