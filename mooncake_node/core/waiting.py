"""Requests that wait: for a key's writer, for a key to appear or to come back from disk, or for room.

The master closes a waiter exactly once, by an outcome in the outbox. Deadlines are kept in one heap, so that the
shell needs one timer.
"""

import heapq
from collections import OrderedDict
from enum import Enum
from itertools import islice

import msgspec

from mooncake_node.core.refusal import Refusal
from mooncake_node.core.replica import Contract, Replica
from mooncake_node.core.sessions import Handle, Session

# How many puts that do not fit are looked at when room came back. A bound, so that no request pays for a long queue;
# those behind them come into view when one of them leaves.
PUTS_RETRIED_MAX = 64


class PutMode(Enum):
    """What a put does about a key that is already there."""

    PUT = "put"  # refuse
    UPSERT = "upsert"  # replace when the new generation is complete
    PUT_OR_ACQUIRE = "put_or_acquire"  # take a handle on what is there


class Put(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What a client asks room for."""

    key: str
    nbytes: int
    kind: int = 0
    contract: Contract
    mode: PutMode = PutMode.PUT


class Want(Enum):
    """What a waiter waits for."""

    READ = "read"  # the writer of its key to finish
    PRESENCE = "presence"  # its key to be readable
    TURN = "turn"  # the writer of its key to finish, to write itself
    ROOM = "room"  # room in G
    LOAD = "load"  # its key to be back in memory


class Waiter(msgspec.Struct, eq=False, kw_only=True):
    """One request that is answered later."""

    session: Session
    want: Want
    key: str
    put: Put | None = None
    deadline_ns: int
    began_ns: int
    open: bool = True
    ticket: object = None  # the shell's own, to find whom to answer
    number: int = 0  # order of arrival
    nbytes: int = 0  # of room it needs, if it waits for that


# None: the key is readable now (answer to PRESENCE).
Outcome = Handle | Replica | Refusal | None


class WaitingRoom:
    """All and only the open waiters, by key, in order of arrival for room, and by deadline."""

    def __init__(self) -> None:
        # Every one of them, by the key it is about, in order of arrival.
        self.by_key: dict[str, dict[int, Waiter]] = {}
        # Those with want ROOM, first come first. An OrderedDict, since it loses its front.
        self.for_room: OrderedDict[int, Waiter] = OrderedDict()
        # One of those for room left, so that another came into view who may fit in what is free already. Taken back by
        # the master when it has looked.
        self.moved_up = False
        self._heap: list[tuple[int, int, Waiter]] = []
        self._last_number = 0
        self._closed_in_heap = 0

    def __len__(self) -> int:
        return len(self._heap) - self._closed_in_heap

    def add(self, waiter: Waiter) -> None:
        """Enter *waiter* where what it wants will be looked for."""
        self._last_number += 1
        waiter.number = self._last_number
        heapq.heappush(self._heap, (waiter.deadline_ns, waiter.number, waiter))
        waiter.session.waiting += 1
        self.by_key.setdefault(waiter.key, {})[waiter.number] = waiter
        if waiter.want is Want.ROOM:
            self.for_room[waiter.number] = waiter

    def turn_into(self, waiter: Waiter, want: Want) -> None:
        """An open waiter waits on for something else; its deadline stays."""
        if waiter.want is want:
            return
        if waiter.want is Want.ROOM:
            self._leave_room_queue(waiter)
        waiter.want = want
        if want is Want.ROOM:
            self.for_room[waiter.number] = waiter

    @property
    def head(self) -> Waiter | None:
        """The first of those for room."""
        return next(iter(self.for_room.values()), None)

    def first_within(self, nbytes: int) -> Waiter | None:
        """The first of those for room, as far as they are looked at, that wants no more than *nbytes*."""
        looked_at = islice(self.for_room.values(), PUTS_RETRIED_MAX)
        return next((waiter for waiter in looked_at if waiter.nbytes <= nbytes), None)

    def of_key(self, key: str) -> list[Waiter]:
        """The open waiters of *key*, in order of arrival."""
        waiters = self.by_key.get(key)
        return list(waiters.values()) if waiters else []

    def close(self, waiter: Waiter) -> None:
        """*waiter* is answered or given up."""
        if not waiter.open:
            return
        self._shut(waiter)
        self._closed_in_heap += 1
        # Closed ones lie in the heap until their deadline; swept out before they are the greater part of it.
        if self._closed_in_heap > 64 and self._closed_in_heap * 2 > len(self._heap):
            self._heap = [item for item in self._heap if item[2].open]
            heapq.heapify(self._heap)
            self._closed_in_heap = 0

    def of_session(self, session: Session) -> list[Waiter]:
        """Every open waiter of *session*."""
        if not session.waiting:
            return []
        return [waiter for waiter in self.all_open() if waiter.session is session]

    def all_open(self) -> list[Waiter]:
        """Every open waiter."""
        return [item[2] for item in self._heap if item[2].open]

    def next_deadline_ns(self) -> int | None:
        """When the next open waiter runs out of time."""
        self._drop_closed_front()
        return self._heap[0][0] if self._heap else None

    def close_expired(self, now_ns: int) -> list[Waiter]:
        """Close the waiters whose deadline has come and return them, earliest deadline first."""
        due: list[Waiter] = []
        self._drop_closed_front()
        while self._heap and self._heap[0][0] <= now_ns:
            waiter = heapq.heappop(self._heap)[2]
            self._shut(waiter)
            due.append(waiter)
            self._drop_closed_front()
        return due

    def _drop_closed_front(self) -> None:
        while self._heap and not self._heap[0][2].open:
            heapq.heappop(self._heap)
            self._closed_in_heap -= 1

    def _shut(self, waiter: Waiter) -> None:
        waiter.open = False
        waiter.session.waiting -= 1
        waiters = self.by_key[waiter.key]
        del waiters[waiter.number]
        if not waiters:
            del self.by_key[waiter.key]
        if waiter.want is Want.ROOM:
            self._leave_room_queue(waiter)

    def _leave_room_queue(self, waiter: Waiter) -> None:
        del self.for_room[waiter.number]
        if len(self.for_room) >= PUTS_RETRIED_MAX:
            self.moved_up = True
