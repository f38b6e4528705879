"""Puts that are to be readable on every node: told to the directory first, then published here, then answered."""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import NamedTuple

from mooncake_client import wire
from mooncake_client.codes import Code
from mooncake_client.errors import StoreError
from mooncake_node.cluster.changes import Changes
from mooncake_node.cluster.dues import Due
from mooncake_node.cluster.entries import Entries
from mooncake_node.cluster.fanout import FanOut
from mooncake_node.cluster.membership import Membership
from mooncake_node.cluster.points import Points
from mooncake_node.cluster.watches import Watches
from mooncake_node.core.master import Master
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.replica import Replica, ReplicaState
from mooncake_node.core.sessions import Session
from mooncake_node.directory.port import DirectoryError, Holding
from mooncake_node.server.translate import failure

Item = wire.Published | wire.Failure | wire.Deferred


class _Begun(NamedTuple):
    """What held when the directory was told of a put."""

    life: int  # of this node
    epoch: int


class Publishing:
    """Ends puts."""

    def __init__(
        self,
        *,
        master: Master,
        changes: Changes,
        entries: Entries,
        fan_out: FanOut,
        membership: Membership,
        watches: Watches,
        points: Points,
    ) -> None:
        self._master = master
        self._changes = changes
        self._entries = entries
        self._fan_out = fan_out
        self._membership = membership
        self._watches = watches
        self._points = points

    async def publish(self, session: Session, request_id: int, items: Sequence[Item | Replica]) -> wire.Message:
        """Publish those items that are reservations, in the directory and then here; the others are answers."""
        # One that was given up by a clear is refused below.
        new = [r for r in items if isinstance(r, Replica) and r.state is ReplicaState.WRITING]
        shared = [replica for replica in new if replica.contract.scope != "node"]
        refusals: list[Refusal | None] = []
        replaced: list[tuple[str, list[Holding]]] = []
        if shared:
            with contextlib.suppress(DirectoryError):
                await self._membership.live_on()
        with self._entries.publishing(shared):
            begun = _Begun(self._membership.me.incarnation, self._master.clear_epoch)
            try:
                if shared:
                    refusals, replaced = await self._entries.create(shared)
                    # The answer may have come to a node that the others have taken for dead meanwhile.
                    await self._membership.live_on()
                    await self._points.hit("NodeAfterDirectoryCreate")
            except DirectoryError:
                refusals = refusals or [None] * len(shared)
                for replica in shared:
                    if replica.told:
                        replica.told = False
                        self._entries.mark(replica.key, Due(replica.generation))
            except (Refusal, StoreError) as error:
                # Not known to hold everywhere: taken back.
                refusals = [Refusal(Code(error.code), error.message)] * len(shared)
            refused = {r.replica_id: refusal for r, refusal in zip(shared, refusals, strict=True)}
            answers = [
                self._end(session, item, begun, refused.get(item.replica_id)) if isinstance(item, Replica) else item
                for item in items
            ]
        # Only now, when the new ones are readable: in between nobody would find either.
        await asyncio.gather(self._changes.on_disk(), self._fan_out.drop(replaced, is_replaced=True))
        if shared and not await self._lives(begun.life):
            # It stood still meanwhile, and what was told is void, unless its new life has told all again.
            is_back = self._membership.is_serving
            for item, answer in zip(items, answers, strict=True):
                if isinstance(answer, wire.Published) and not (is_back and isinstance(item, Replica) and item.told):
                    answer.scope = "node"
        return wire.PutEnded(request_id, answers)

    async def _lives(self, life: int) -> bool:
        """Whether others surely take this node for alive, and have since that life of it began."""
        try:
            await self._membership.live_on()
        except DirectoryError:
            return False
        return life == self._membership.me.incarnation

    def _end(self, session: Session, replica: Replica, begun: "_Begun", refusal: Refusal | None) -> Item:
        """One reservation becomes readable here, or is given back."""
        now_ns, key = time.monotonic_ns(), replica.key
        was_told, generation = replica.told, replica.generation
        try:
            if refusal is not None:
                raise refusal
            replaced = self._master.table.current.get(key)
            if replaced is not None and was_told:
                replaced.told = False  # the directory has the new one
            self._master.put_end(session, replica.replica_id, now_ns)
        except Refusal as error:
            if was_told:
                # It was given up meanwhile, by its client's death or a clear.
                self._entries.mark(key, Due(generation))
                if error is not refusal and error.code is Code.NOT_FOUND and begun.epoch == self._master.clear_epoch:
                    # Put, and removed or replaced by somebody else since.
                    return wire.Published(generation, replica.nbytes, "cluster")
            if replica.replica_id in session.reservations:
                replica.told = False
                self._master.put_revoke(session, replica.replica_id, now_ns)
            return failure(error)
        if was_told and begun.life != self._membership.me.incarnation:
            # What was told is void, and the inventory of this life has passed over what was not readable yet.
            replica.told = False
            self._entries.mark(key, Due(generation))
        is_shared = replica.contract.scope != "node" and replica.told
        if is_shared:
            self._watches.published(key)  # else when the directory hears of it
        scope = "cluster" if is_shared else "node"
        return wire.Published(replica.generation, replica.nbytes, scope)
