"""What this node gives to others: replicas under a lease, and their bytes while a data plane reads them."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import xxhash

from mooncake_client.codes import Code
from mooncake_node.core.master import Master
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.replica import Replica, ReplicaState
from mooncake_node.peers.messages import CARRIED_NBYTES_MAX, ReplicaItem
from mooncake_node.peers.tasks import Tasks
from mooncake_node.planes.port import Loan, RefusedError
from mooncake_node.pool import Room
from mooncake_node.tiers import Tier, TierError, TierRecord

MS_NS = 1_000_000
# What a part of a loan has at most; of one from disk, what is read at once.
_PART_NBYTES = 256 << 10
_DISK_PART_NBYTES = 1 << 20
# Up to here a checksum is computed in the loop.
_INLINE_NBYTES_MAX = 4 << 20


class _MemoryLoan:
    """A replica's bytes in the pool, kept by the core."""

    def __init__(self, view: memoryview) -> None:
        self.nbytes = view.nbytes
        self._view = view
        self.view: memoryview | None = view

    async def parts(self) -> AsyncIterator[memoryview]:
        """See Loan."""
        for start in range(0, self.nbytes, _PART_NBYTES):
            yield self._view[start : start + _PART_NBYTES]


class _DiskLoan:
    """An object's bytes in the tier, read part by part into a buffer of their own: nothing leaves memory for them."""

    def __init__(self, tier: Tier, record: TierRecord) -> None:
        self.nbytes = record.nbytes
        self.view: memoryview | None = None
        self._tier = tier
        self._record = record

    async def parts(self) -> AsyncIterator[memoryview]:
        """See Loan; RefusedError if the object is removed meanwhile, or cannot be read."""
        buffer = memoryview(bytearray(min(self.nbytes, _DISK_PART_NBYTES)))
        for start in range(0, self.nbytes, _DISK_PART_NBYTES):
            part = buffer[: min(_DISK_PART_NBYTES, self.nbytes - start)]
            try:
                await self._tier.read_part(self._record, start, part)
            except TierError as error:
                raise RefusedError(str(error)) from error
            for at in range(0, part.nbytes, _PART_NBYTES):
                yield part[at : at + _PART_NBYTES]


class Lending:
    """Implements `Lender`, and answers who asks for a replica."""

    def __init__(self, master: Master, room: Room, tier: Tier | None, tasks: Tasks, settle: Callable[[], None]) -> None:
        self._master = master
        self._room = room
        self._tier = tier
        self._tasks = tasks
        self._settle = settle
        # Checksums being computed, by replica_id.
        self._checksums: dict[int, asyncio.Task[None]] = {}

    async def lease(self, key: str) -> ReplicaItem:
        """The replica of *key*, with a lease if it is in memory, or whole if it is small; Refusal if there is none."""
        now_ns = time.monotonic_ns()
        small = self._master.readable(key, now_ns)
        if small.nbytes <= CARRIED_NBYTES_MAX and small.state is not ReplicaState.ON_DISK:
            data = memoryview(bytes(self._room.view(small.offset, small.nbytes)))
            if small.checksum < 0:
                small.checksum = xxhash.xxh3_64_intdigest(data)
            return self._item(small, 0, 0, small.checksum, data)
        replica, token = self._master.peers.get_replica_list(key, now_ns)
        self._settle()
        if replica.state is ReplicaState.ON_DISK:
            return self._item(replica, 0, 0, _record(replica).xxh3)
        if replica.checksum < 0 and replica.nbytes <= _INLINE_NBYTES_MAX:
            replica.checksum = xxhash.xxh3_64_intdigest(self._room.view(replica.offset, replica.nbytes))
        elif replica.checksum < 0:
            await self._compute(replica)
        left_ns = replica.leased_until_ns - time.monotonic_ns()
        return self._item(replica, token, max(0, left_ns) // MS_NS, replica.checksum)

    @contextlib.asynccontextmanager
    async def lend(self, key: str, replica_id: int, generation: int, lease_token: int) -> AsyncIterator[Loan]:
        """See Lender."""
        if not lease_token:
            yield self._from_disk(key, generation)
            return
        try:
            replica = self._master.peers.lend(key, replica_id, generation, lease_token, time.monotonic_ns())
        except Refusal as refusal:
            raise RefusedError(refusal.message) from refusal
        try:
            yield _MemoryLoan(self._room.view(replica.offset, replica.nbytes))
        finally:
            self._master.peers.give_back(replica, time.monotonic_ns())
            self._settle()

    def _from_disk(self, key: str, generation: int) -> Loan:
        replica = self._master.table.current.get(key)
        if self._tier is None or replica is None or replica.generation != generation or replica.copy is None:
            raise RefusedError("no such object on disk here any more")
        return _DiskLoan(self._tier, _record(replica))

    async def _compute(self, replica: Replica) -> None:
        """The checksum of a replica is computed once, when it first leaves the node."""
        task = self._checksums.get(replica.replica_id)
        if task is None:
            task = self._checksums[replica.replica_id] = self._tasks.run(self._checksum(replica))
        await asyncio.shield(task)

    async def _checksum(self, replica: Replica) -> None:
        view = self._room.view(replica.offset, replica.nbytes)
        self._master.objects.lend(replica)
        try:
            replica.checksum = await asyncio.to_thread(xxhash.xxh3_64_intdigest, view)
        finally:
            del self._checksums[replica.replica_id]
            self._master.peers.give_back(replica, time.monotonic_ns())
            self._settle()

    def _item(
        self, replica: Replica, token: int, lease_ms: int, xxh3: int, data: memoryview | None = None
    ) -> ReplicaItem:
        return ReplicaItem(
            replica_id=replica.replica_id,
            on_disk=replica.state is ReplicaState.ON_DISK,
            offset=replica.offset if token else 0,
            nbytes=replica.nbytes,
            kind=replica.kind,
            generation=replica.generation,
            xxh3=xxh3,
            lease_token=token,
            lease_ms=lease_ms,
            data=data,
        )


def _record(replica: Replica) -> TierRecord:
    if replica.copy is None:
        raise Refusal(Code.NOT_FOUND, "its copy on disk is no more")
    assert isinstance(replica.copy.record, TierRecord)
    return replica.copy.record
