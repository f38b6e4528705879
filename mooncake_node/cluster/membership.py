"""Whether this node lives, as others see it, and who else does."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from mooncake_client.errors import StoreError
from mooncake_node.core.refusal import Refusal
from mooncake_node.directory.port import Directory, DirectoryAwayError, DirectoryError, Holding, Members, Node
from mooncake_node.obs.log import get_logger
from mooncake_node.peers.tasks import Tasks

# Renewals within one time to live.
_RENEWALS = 3
# What waits for a new life waits for its inventory no longer than that.
_RETURN_S = 1.0

log = get_logger()


class Membership:
    """One life after another: renewed while the directory answers, begun anew when one has lapsed."""

    def __init__(
        self,
        directory: Directory,
        *,
        ttl_s: float,
        free_bytes: Callable[[], int],
        served_until: Callable[[int], None],
        on_members: Callable[[bool], None],
        on_return: Callable[[], Awaitable[None]],
        tasks: Tasks,
    ) -> None:
        """*served_until* hears how long (ns, monotonic) others surely take this node for alive.

        *on_members* hears after each renewal, and whether somebody's life has ended since; *on_return*: this node has
        begun a new life, and is not to serve others before that has returned.
        """
        self._directory = directory
        self._ttl_s = ttl_s
        self._free_bytes = free_bytes
        self._tell_served_until = served_until
        self._served_until_ns = 0
        self._renewing = asyncio.Lock()
        self._on_members = on_members
        self._on_return = on_return
        self.me = Node(name="", incarnation=0, slot=0, endpoint="")
        # All and only the other nodes that live, by name, as last heard.
        self.others: dict[str, Node] = {}
        self.clear_epoch = 0
        # This life is known to others and what it has is in the directory: it may serve them.
        self.is_serving = False
        self.lives = 0
        # This life is to be followed by another at the next renewal: the directory is to forget what it has of it.
        self.is_ending = False
        # The newest life that was heard of, wherever: each is above all that began before.
        self._newest = 0
        self._tasks = tasks
        self._returning: asyncio.Task[None] | None = None
        self._heard = asyncio.Event()

    async def join(self, name: str, endpoint: str) -> None:
        """Begin a life; raises DirectoryError if the directory does not let it."""
        began_ns = time.monotonic_ns()
        self.me = await self._directory.join(name, endpoint)
        self.lives += 1
        self.is_ending = False
        self._served_until(began_ns)
        self._take(await self._directory.members())

    async def run(self) -> None:
        """Live on until cancelled."""
        while True:
            await asyncio.sleep(self._ttl_s / _RENEWALS)
            try:
                await self.renew()
            except DirectoryAwayError as error:
                log.debug("directory_away", error=str(error))
            except DirectoryError as error:
                log.error("life_not_renewed", error=str(error))  # noqa: TRY400  its message says it all

    def come_back(self) -> asyncio.Task[None]:
        """Serve others once they can know what this node has; renewals go on meanwhile. Ends when that was tried."""
        if self._returning is None or self._returning.done():
            self._returning = self._tasks.run(self._return(self.me.incarnation))
        return self._returning

    def begin_anew(self) -> None:
        """End this life at the next renewal, and with it whatever the directory has of it; then tell everything."""
        self.is_ending, self.is_serving = True, False

    async def heard(self, timeout_s: float) -> None:
        """Returns when the directory has answered the next time, or after that long."""
        self._heard.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._heard.wait()
        except TimeoutError:
            pass

    def is_alive(self, name: str, incarnation: int) -> bool:
        """Whether that life of a node runs, as far as is known; this node's own counts."""
        if name == self.me.name:
            return incarnation == self.me.incarnation
        node = self.others.get(name)
        return node is not None and node.incarnation == incarnation

    async def meet(self, holdings: Iterable[Holding]) -> None:
        """Ask who lives if some are of a life that has begun since that was heard; raises DirectoryError.

        Else a node that has just come would be taken for dead, and what it has for lost.
        """
        newest = max((holding.incarnation for holding in holdings), default=0)
        if newest > self._newest:
            await self.look()
            self._newest = max(self._newest, newest)

    async def look(self) -> None:
        """See who lives now; raises DirectoryError."""
        self._take(await self._directory.members())

    async def live_on(self) -> None:
        """Returns when others surely take this node for alive; raises DirectoryError.

        If that takes a new life, it is waited for a little that others can know what this node has.
        """
        if time.monotonic_ns() >= self._served_until_ns:
            await self.renew()
            if self._returning is not None and not self.is_serving:
                await asyncio.wait([self._returning], timeout=_RETURN_S)

    async def renew(self) -> None:
        """Live on for the time to live from now, in a new life if this one has lapsed; raises DirectoryError."""
        async with self._renewing:
            await self._renew()

    async def _renew(self) -> None:
        if self.is_ending:
            await self._directory.leave(self.me)
        began_ns = time.monotonic_ns()
        if await self._directory.renew(msgspec.structs.replace(self.me, free_bytes=self._free_bytes())):
            self._served_until(began_ns)
            self._take(await self._directory.members())
        else:
            # Others may have taken this node for dead, and what it has for lost.
            log.warning("life_lapsed", incarnation=self.me.incarnation)
            self.is_serving = False
            if self._returning is not None and not self._returning.done():
                self._returning.cancel()
                await asyncio.wait([self._returning])
            await self.join(self.me.name, self.me.endpoint)
        if not self.is_serving:
            self.come_back()

    async def _return(self, incarnation: int) -> None:
        try:
            await self._on_return()
        except (DirectoryError, Refusal, StoreError) as error:
            log.warning("return_postponed", error=str(error))
            return
        if incarnation == self.me.incarnation and not self.is_ending:
            self.is_serving = True
            self._tell_served_until(self._served_until_ns)

    def _served_until(self, began_ns: int) -> None:
        self._served_until_ns = began_ns + int(self._ttl_s * 1e9)
        if self.is_serving:
            # Until then what it has may have been removed or replaced while it was dead to the others.
            self._tell_served_until(self._served_until_ns)

    def _take(self, members: Members) -> None:
        others = {node.name: node for node in members.nodes if node.name != self.me.name}
        lives = {(name, node.incarnation, node.endpoint) for name, node in others.items()}
        known = {(name, node.incarnation, node.endpoint) for name, node in self.others.items()}
        self.others = others
        self._newest = max([self._newest, *(node.incarnation for node in members.nodes)])
        self.clear_epoch = max(self.clear_epoch, members.clear_epoch)
        self._heard.set()
        if lives != known:
            log.info("members_changed", nodes=sorted([self.me.name, *others]))
        self._on_members(known - lives != set())
