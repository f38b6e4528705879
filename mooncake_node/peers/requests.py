"""What other nodes ask of this one."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

from mooncake_client import wire
from mooncake_client.codes import Code
from mooncake_client.errors import StoreError
from mooncake_node.obs.log import get_logger
from mooncake_node.peers.messages import PeerRequest
from mooncake_node.peers.tasks import Tasks

INFLIGHT_MAX = 1024  # of one peer

Handler = Callable[[str, PeerRequest], Awaitable[wire.Message | None]]

log = get_logger()


class Requests:
    """Each request in a task of its own, which outlives the link that it came by: what was begun is carried out."""

    def __init__(self, handler: Handler, inflight_max: int = INFLIGHT_MAX) -> None:
        self._handler = handler
        self._inflight_max = inflight_max
        self._inflight: Counter[str] = Counter()  # by peer: requests whose tasks have not ended
        self._tasks = Tasks()
        self.refused = 0

    def __len__(self) -> int:
        return len(self._tasks)

    def take(self, peer: str, request: PeerRequest, send: Callable[[wire.Message], None]) -> None:
        """Begin *request*; those of one peer begin in the order they are taken. *send* gets the reply if one is due."""
        if self._inflight[peer] >= self._inflight_max:
            self.refused += 1
            if request.request_id:
                send(wire.Failed(request.request_id, Code.DAEMON_GONE, "too many requests"))
            return
        self._inflight[peer] += 1
        self._tasks.run(self._handle(peer, request, send)).add_done_callback(partial(self._ended, peer))

    async def close(self) -> None:
        """Give up what is under way."""
        await self._tasks.close()

    async def _handle(self, peer: str, request: PeerRequest, send: Callable[[wire.Message], None]) -> None:
        kind = type(request).__name__
        reply: wire.Message | None
        try:
            reply = await self._handler(peer, request)
        except StoreError as exc:
            reply = wire.Failed(request.request_id, exc.code, exc.message)
        except AssertionError:
            raise
        except Exception:
            log.exception("peer_request_failed", request=kind, peer=peer)
            reply = wire.Failed(request.request_id, Code.INTERNAL, "the node failed; its log says more")
        if request.request_id:
            if reply is None:
                reply = wire.Failed(request.request_id, Code.INTERNAL, f"{kind} is a notice, it has no answer")
            reply.request_id = request.request_id
            send(reply)

    def _ended(self, peer: str, _task: asyncio.Task[None]) -> None:
        self._inflight[peer] -= 1
        if not self._inflight[peer]:
            del self._inflight[peer]
