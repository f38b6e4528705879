"""A node that is taken for dead, comes back, or inherits from one that is (SPEC 6, rules 4, 5, 8)."""

from mooncake_node.directory.port import Created, Creation, DirectoryAwayError, TooOld

FOR_EVER = 1 << 62


class Lives:
    """That part of a `Node`."""

    def cut_off(self):
        """Fenced first; then others take it for dead."""
        self.master.peers.serve_secondaries_until(self.now)
        self.is_serving = False
        self.directory.is_away = True
        self.cluster.server.end(self.life)

    async def come_back(self):
        """A new life, in which secondary replicas are served when the directory has every one of them."""
        self.directory.is_away = False
        self.life = await self.directory.join(self.name, "here:1")
        self.clear(self.cluster.server.clear_epoch)
        for key in list(self.master.table.current):
            await self._tell(key)
        if not self.directory.is_away:
            self.master.peers.serve_secondaries_until(FOR_EVER)
            self.is_serving = True

    async def _tell(self, key):
        """The directory has what this node has of *key*; what it does not take is given up."""
        while not self.directory.is_away:
            replica = self.master.table.current.get(key)
            if replica is None:
                return
            try:
                if replica.owner is None:
                    is_kept = await self._claim(replica)
                else:
                    holding = self._holding(replica, is_owner=False)
                    [is_kept] = await self.ask(lambda h=holding: self.directory.publish([(key, h)]))
            except DirectoryAwayError:
                continue
            replica.told = is_kept
            if not is_kept and self.master.table.current.get(key) is replica:
                self.master.remove(key, self.now, replica.generation)
                self.settle()
            return

    async def _claim(self, replica):
        """True if the directory has it as this node's; a lost answer is asked for again."""
        dead = ()
        while True:
            creation = Creation(key=replica.key, holding=self._holding(replica, is_owner=True), dead=dead)
            [outcome] = await self.ask(lambda c=creation: self.directory.create([c]))
            if isinstance(outcome, Created):
                await self._drop_elsewhere(replica.key, outcome.replaced)
                return True
            if isinstance(outcome, TooOld) or (self.cluster.lives(outcome.by) and outcome.by.node != self.name):
                return False
            dead = (*dead, (outcome.by.node, outcome.by.incarnation))

    async def inherit(self, key):
        """Own a copy whose owner is dead (SPEC 6, rule 4)."""
        replica = self.master.table.current.get(key)
        if replica is None or replica.owner is None:
            return
        try:
            [entry] = await self.ask(lambda: self.directory.lookup([key]))
            owner = entry.owner
            if owner is None or owner.generation != replica.generation:
                return
            heir = self._holding(replica, is_owner=True)
            is_mine = (owner.node, owner.incarnation) == (self.name, self.life.incarnation)
            if not is_mine:
                if self.cluster.lives(owner):
                    return
                is_mine = await self.ask(
                    lambda: self.directory.transfer(key, node=owner.node, incarnation=owner.incarnation, to=heir)
                )
        except DirectoryAwayError:
            return
        if is_mine and self.master.table.current.get(key) is replica and replica.owner is not None:
            self.master.peers.promote(replica)
        self.settle()
