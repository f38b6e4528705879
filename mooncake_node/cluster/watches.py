"""Waiting for keys over nodes: who waits here for what may appear elsewhere, and the other way round."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable

from mooncake_client import wire
from mooncake_client.codes import Code
from mooncake_node.cluster.membership import Membership
from mooncake_node.core.master import Master
from mooncake_node.core.refusal import Refusal
from mooncake_node.peers.errors import PeerError
from mooncake_node.peers.links import PeerLinks
from mooncake_node.peers.messages import Appeared, Unwatch, Watch
from mooncake_node.peers.tasks import Tasks

_CALL_S = 5.0
# Keys that all other nodes together may watch here; who asks for more asks again until there is room.
WATCHED_MAX = 100_000
_AGAIN_S = 1.0


class Watches:
    """Every live node is told what is waited for here, and tells when it appears; nobody polls."""

    def __init__(
        self, master: Master, membership: Membership, links: PeerLinks, tasks: Tasks, settle: Callable[[], None]
    ) -> None:
        self._master = master
        self._membership = membership
        self._links = links
        self._tasks = tasks
        self._settle = settle
        # Keys waited for on this node, of which the others were told.
        self._wanted: set[str] = set()
        # Key → nodes that wait for it.
        self._watchers: defaultdict[str, set[str]] = defaultdict(set)
        # Lives of nodes that know all of `_wanted`.
        self._told: set[tuple[str, int]] = set()

    # -- here --------------------------------------------------------------------------------------------------------

    def want(self, key: str) -> None:
        """Somebody has begun to wait for *key* on this node."""
        # Also if others have waited before: a node that has told them does not watch it any more.
        self._wanted.add(key)
        for node in self._membership.others:
            self._tasks.run(self._ask(node, [key]))

    def members_changed(self) -> None:
        """Tell those who have come, and forget those who went."""
        lives = {(node.name, node.incarnation) for node in self._membership.others.values()}
        for name, incarnation in lives - self._told:
            if self._wanted:
                self._tasks.run(self._ask(name, sorted(self._wanted)))
            self._told.add((name, incarnation))
        for name, _ in self._told - lives:
            if name not in self._membership.others:
                for key in [key for key, nodes in self._watchers.items() if name in nodes]:
                    self.unwatch(name, [key])
        self._told &= lives

    def tidy(self) -> None:
        """Nobody waits here any more for some keys: tell the others."""
        over = [key for key in self._wanted if key not in self._master.waiting.by_key]
        if over:
            self._wanted.difference_update(over)
            for node in self._membership.others:
                self._links.notify(node, Unwatch(0, over))

    def appeared(self, keys: Iterable[str]) -> None:
        """Another node has these now."""
        for key in keys:
            self._master.peers.appeared(key)
        self._settle()

    async def _ask(self, node: str, keys: list[str]) -> None:
        for start in range(0, len(keys), wire.ITEMS_MAX):
            batch = keys[start : start + wire.ITEMS_MAX]
            while batch and node in self._membership.others:
                with contextlib.suppress(PeerError):
                    reply = await self._links.call(node, Watch(0, batch), _CALL_S)
                    if isinstance(reply, wire.Flags):
                        self.appeared(key for key, is_there in zip(batch, reply.items, strict=True) if is_there)
                        break
                await asyncio.sleep(_AGAIN_S)
                batch = [key for key in batch if key in self._wanted]

    # -- elsewhere ---------------------------------------------------------------------------------------------------

    def watch(self, node: str, keys: Iterable[str]) -> None:
        """*node* wants to hear of these keys; a Refusal if there are too many."""
        for key in keys:
            if len(self._watchers) >= WATCHED_MAX and key not in self._watchers:
                raise Refusal(Code.NOT_READY, f"{WATCHED_MAX} keys are watched on this node already")
            self._watchers[key].add(node)

    def unwatch(self, node: str, keys: Iterable[str]) -> None:
        """No more."""
        for key in keys:
            if key in self._watchers:
                self._watchers[key].discard(node)
                if not self._watchers[key]:
                    del self._watchers[key]

    def published(self, key: str) -> None:
        """*key* has become readable on this node."""
        if self._watchers:
            for node in self._watchers.pop(key, ()):
                self._links.notify(node, Appeared(0, [key]))
