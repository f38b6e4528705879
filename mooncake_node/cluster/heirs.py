"""Copies whose owners have died: this node comes to own them, under the contract they had (SPEC 6, rule 4)."""

from collections.abc import Callable

import msgspec

from mooncake_node.cluster.dues import Due
from mooncake_node.cluster.entries import BATCH, Entries
from mooncake_node.cluster.holdings import found_at, holding_of, live_holdings
from mooncake_node.cluster.membership import Membership
from mooncake_node.core.master import Master
from mooncake_node.core.replica import Replica
from mooncake_node.directory.port import Directory, DirectoryError, Entry, Holding
from mooncake_node.obs.log import get_logger

log = get_logger()


class Heirs:
    """Inherits what is due."""

    def __init__(
        self,
        directory: Directory,
        membership: Membership,
        master: Master,
        entries: Entries,
        settle: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._membership = membership
        self._master = master
        self._entries = entries
        self._settle = settle
        # Owners may have died whose copies are here.
        self.is_due = False

    async def inherit(self) -> None:
        """Own those copies whose owners have died; if the directory goes away meanwhile the rest is due again."""
        if not self.is_due or not self._membership.is_serving:
            return
        self.is_due = False
        copies = [r for r in self._master.table.current.values() if r.owner is not None]
        try:
            for start in range(0, len(copies), BATCH):
                batch = copies[start : start + BATCH]
                for replica, entry in zip(batch, await self._entries.lookup([r.key for r in batch]), strict=True):
                    if entry.owner is not None and entry.owner.generation == replica.generation:
                        await self._inherit(replica, entry.owner)
                    else:
                        # Who removed or replaced it may have died before this node heard of that.
                        self._entries.mark(replica.key)
        except DirectoryError as error:
            self.is_due = True
            log.debug("inheritance_postponed", error=str(error))
        self._settle()

    async def _inherit(self, replica: Replica, owner: Holding) -> None:
        membership, epoch = self._membership, self._master.clear_epoch
        me = (membership.me.name, membership.me.incarnation)
        # Under the contract that the owner last told, not the one it had when it was copied.
        told = found_at(owner, None)
        replica.remembered, replica.softpin_until_ns = told.contract, told.softpin_until_ns
        heir = msgspec.structs.replace(holding_of(replica, membership, epoch), is_owner=True)
        # It may be the owner already, by a transfer whose answer was lost, or since the owner has withdrawn its own.
        if (owner.node, owner.incarnation) != me:
            if live_holdings(Entry((owner,)), membership, epoch):
                return
            if not await self._directory.transfer(replica.key, node=owner.node, incarnation=owner.incarnation, to=heir):
                return
        if self._master.table.current.get(replica.key) is not replica:
            self._entries.mark(replica.key, Due(replica.generation))
        elif replica.owner is not None:
            self._master.peers.promote(replica)
            log.info("object_inherited", key=replica.key, owner=owner.node)
