"""The way to one life of one other node: dials when needed, and not too often."""

import asyncio
import random
from collections import deque

import msgspec

from mooncake_node.obs.log import get_logger
from mooncake_node.peers.errors import PeerError, PeerGoneError, PeerRefusedError
from mooncake_node.peers.handshake import HANDSHAKE_TIMEOUT_S, dial
from mooncake_node.peers.identity import Identity, Me
from mooncake_node.peers.link import UNSENT_NBYTES_MAX, PeerLink, attach
from mooncake_node.peers.messages import PeerReply, PeerRequest
from mooncake_node.peers.requests import Requests
from mooncake_node.peers.tasks import Tasks

log = get_logger()


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How patient a line is. After n failed dials in a row the next may come *backoff_s*·2ⁿ⁻¹ later, with jitter."""

    handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S
    backoff_s: float = 0.1
    backoff_max_s: float = 5.0
    queued_max: int = 4096  # requests and notices that wait for the link
    unsent_nbytes_max: int = UNSENT_NBYTES_MAX


class Counters(msgspec.Struct):
    """What became of what this node asked of others."""

    dials: int = 0
    dials_failed: int = 0
    refused: int = 0  # dials failed because one side did not accept the other
    calls: int = 0
    timeouts: int = 0
    gone: int = 0  # calls that ended with PeerGoneError
    notices_dropped: int = 0
    late_replies: int = 0


class Common(msgspec.Struct, frozen=True):
    """What the lines of one node share."""

    me: Me
    secret: bytes
    requests: Requests
    tasks: Tasks
    counters: Counters
    pace: Pace
    links: set[PeerLink]  # all and only those whose connection is not over


class Line:
    """At most one link at a time; what is sent goes out in the order of the calls, also what waits for the link."""

    def __init__(self, common: Common, peer: Identity, endpoint: str) -> None:
        self.peer, self.endpoint = peer, endpoint
        self._common = common
        self._loop = asyncio.get_running_loop()
        self._link: PeerLink | None = None
        self._dialing: asyncio.Task[None] | None = None
        self._queue: deque[tuple[PeerRequest, asyncio.Future[PeerReply] | None]] = deque()
        self._held = False
        self._closed = ""  # why
        self._failures = 0  # in a row
        self._retry_at = 0.0
        self._failure: PeerGoneError = PeerGoneError("")  # the last one

    @property
    def is_connected(self) -> bool:
        """A link is there."""
        return self._link is not None

    def check(self) -> None:
        """PeerGoneError if the peer is known not to be reachable for the time being."""
        if self._closed:
            raise PeerGoneError(f"{self.peer.name} is gone: {self._closed}")
        left_s = self._retry_at - self._loop.time()
        if self._link is None and self._dialing is None and left_s > 0:
            raise type(self._failure)(f"{self._failure}; not tried again for {left_s:.2f} s")

    def call(self, request: PeerRequest) -> asyncio.Future[PeerReply]:
        """Send *request* as soon as may be. Cancel the future if the answer is wanted no more."""
        reply: asyncio.Future[PeerReply] = self._loop.create_future()
        self._submit(request, reply)
        return reply

    def notify(self, message: PeerRequest) -> None:
        """Send a notice, if it can be done without further ado; else it is counted and forgotten."""
        message.request_id = 0
        try:
            self._submit(message, None)
        except PeerError:
            self._common.counters.notices_dropped += 1

    def hold(self) -> None:
        """For tests: send nothing until `release`."""
        self._held = True

    def release(self) -> None:
        """End `hold`."""
        self._held = False
        self._flush()

    def sever(self) -> None:
        """For tests: break the link as a network would. The next call dials at once."""
        if self._link is not None:
            self._link.heard = True  # no failure of the peer's
            self._cut("the link was severed")
            self._fail_queued(PeerGoneError(f"{self.peer.name} is gone: the link was severed"))

    def close(self, reason: str) -> None:
        """The peer is not to be spoken to any more; calls under way fail."""
        self._closed = self._closed or reason
        if self._dialing is not None:
            self._dialing.cancel()
            self._dialing = None
        self._cut(reason)
        self._fail_queued(PeerGoneError(f"{self.peer.name} is gone: {reason}"))

    # -- LinkOwner ---------------------------------------------------------------------------------------------------

    def link_made(self, link: PeerLink) -> None:
        """Part of `LinkOwner`."""
        self._common.links.add(link)
        if link.reason:
            return
        self._link, self._dialing = link, None
        self._flush()

    def link_ready(self, link: PeerLink) -> None:
        """Part of `LinkOwner`."""
        if link is self._link:
            self._flush()

    def link_lost(self, link: PeerLink) -> None:
        """Part of `LinkOwner`."""
        self._common.links.discard(link)
        self._common.counters.late_replies += link.late_replies
        if link.heard:
            self._failures, self._retry_at = 0, 0.0
        if link is not self._link:
            return
        self._link = None
        failure = PeerGoneError(f"{self.peer.name} is gone: {link.reason}")
        if not link.heard and not link.is_stale:
            # It lets us in and drops us: as bad as one that does not let us in.
            self._back_off(failure)
        self._fail_queued(failure)

    # -- sending -----------------------------------------------------------------------------------------------------

    def _submit(self, message: PeerRequest, reply: asyncio.Future[PeerReply] | None) -> None:
        if self._link is not None and self._link.is_stale:
            self._cut("this node has a new incarnation")
        self.check()
        if len(self._queue) >= self._common.pace.queued_max:
            self._queue = deque(item for item in self._queue if item[1] is None or not item[1].done())
            if len(self._queue) >= self._common.pace.queued_max:
                raise PeerGoneError(f"{len(self._queue)} requests wait for {self.peer.name} already")
        if self._link is None and self._dialing is None:
            self._dialing = self._common.tasks.run(self._dial())
        self._queue.append((message, reply))
        self._flush()

    def _flush(self) -> None:
        link, queue = self._link, self._queue
        while queue and link is not None and link.ready and not self._held:
            message, reply = queue.popleft()
            if reply is None:
                link.send(message)
            elif not reply.done():
                link.call(message, reply)

    def _fail_queued(self, failure: PeerGoneError) -> None:
        queue, self._queue = self._queue, deque()
        for _, reply in queue:
            if reply is None:
                self._common.counters.notices_dropped += 1
            elif not reply.done():
                reply.set_exception(type(failure)(str(failure)))  # each its own: a traceback grows where it is raised

    def _cut(self, reason: str) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.cut(reason)

    # -- dialing -----------------------------------------------------------------------------------------------------

    async def _dial(self) -> None:
        common, pace = self._common, self._common.pace
        common.counters.dials += 1
        mine = common.me.identity
        try:
            sock = await dial(
                mine,
                self.peer,
                self.endpoint,
                kind="control",
                secret=common.secret,
                timeout_s=pace.handshake_timeout_s,
            )
            link = PeerLink(
                common.me,
                mine,
                self.peer,
                common.requests,
                self,
                accepted=False,
                unsent_nbytes_max=pace.unsent_nbytes_max,
            )
            await attach(sock, link, accepted=False)
        except (PeerGoneError, OSError) as exc:
            common.counters.dials_failed += 1
            common.counters.refused += isinstance(exc, PeerRefusedError)
            self._dialing = None
            if not self._failures:
                log.warning("peer_not_reached", peer=self.peer.name, endpoint=self.endpoint, reason=str(exc))
            failure = exc if isinstance(exc, PeerGoneError) else PeerGoneError(f"cannot reach {self.peer.name}: {exc}")
            self._back_off(failure)
            self._fail_queued(failure)

    def _back_off(self, failure: PeerGoneError) -> None:
        pace = self._common.pace
        # The exponent is bounded too: a node may be away for days.
        delay_s = min(pace.backoff_max_s, pace.backoff_s * 2 ** min(self._failures, 32))
        self._failures += 1
        self._failure = failure
        self._retry_at = self._loop.time() + delay_s * random.uniform(0.5, 1.0)  # noqa: S311  it keeps nodes apart
