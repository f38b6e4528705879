"""Runs the local master's jobs on the offload tier: writes, reads and deletions; adopts at start, saves at stop."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from mooncake_client.codes import Code
from mooncake_client.errors import StoreError
from mooncake_client.faults import FaultTable
from mooncake_node.core.generations import GenerationClock
from mooncake_node.core.jobs import Amend, Delete, Job, Load, Offload
from mooncake_node.core.master import Master
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.replica import Contract, Replica
from mooncake_node.obs.log import get_logger
from mooncake_node.pool import Room
from mooncake_node.tiers import Tier, TierCorruptError, TierError, TierMeta, TierMissingError, TierRecord

POINTS = {
    "NodeAfterIsolate": "an object was chosen to leave memory, nothing of it is written yet",
    "NodeBeforeOffloadFree": "an object is on disk, its memory is not free yet",
    "NodeBeforeAnswerLoad": "an object is back in memory, those who wait for it do not know yet",
}

# Objects below this are written in one call, so that they share a file.
_TOGETHER_NBYTES_MAX = 1 << 20
# A deletion that the disk refuses is tried again, that often and that far apart.
_DELETIONS_MAX = 5
_DELETION_PAUSE_S = 1.0
# What a stop has under way at once.
_RESCUE_NBYTES = 64 << 20
_RESCUE_COUNT = 1024
_NAMED_MAX = 20
# How far ahead the floor of generations is kept on disk.
_FLOOR_AHEAD_NS = 120 * 1_000_000_000
_FLOOR_INTERVAL_S = 60.0

log = get_logger()


class Jobs:
    """What is under way on the tier of one node."""

    def __init__(self, tier: Tier, room: Room, faults: FaultTable) -> None:
        self.tier = tier
        self._room = room
        self._faults = faults
        self._loop = asyncio.get_running_loop()
        self._wall_offset_ns = time.time_ns() - time.monotonic_ns()
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself holds them only weakly
        self._master: Master | None = None
        self._settle: Callable[[], None] = _nothing

    def facts(self) -> dict[str, Any]:
        """What `stats` shows of the tier itself."""
        counters: dict[str, Any] = msgspec.to_builtins(self.tier.counters)
        return {"bytes_used": self.tier.bytes_used, "bytes_limit": self.tier.bytes_limit, **counters}

    # -- start and stop ----------------------------------------------------------------------------------------------

    async def open(self) -> list[TierRecord]:
        """Make the tier usable; what lies in it."""
        return await self.tier.open()

    def cost(self, replica: Replica) -> int:
        """What an object takes of the tier's limit."""
        return self.tier.cost(self._meta(replica))

    def attach(
        self, master: Master, clock: GenerationClock, found: Sequence[TierRecord], settle: Callable[[], None]
    ) -> None:
        """Work for *master*, which adopts what was found; *settle* is called after each outcome."""
        self._master, self._settle = master, settle
        now_ns = time.monotonic_ns()
        for record in found:
            until_ms = record.softpin_until_unix_ms
            until_ns = None if until_ms is None else until_ms * 1_000_000 - self._wall_offset_ns
            pinned = record.softpin and (until_ns is None or until_ns > now_ns)
            master.adopt(
                key=record.key,
                generation=record.generation,
                nbytes=record.nbytes,
                kind=record.kind,
                contract=Contract(softpin=pinned, scope=record.scope),
                softpin_until_ns=until_ns if pinned else None,
                record=record,
                now_ns=now_ns,
            )
        self._run(self._keep_floor(clock))

    async def save_pinned(self, timeout_s: float) -> None:
        """Write what is pinned and not on disk yet; what does not make it is named in the log."""
        master = self._master
        assert master is not None
        todo = master.unsaved()
        count = len(todo)
        if todo:
            log.info("pinned_objects_saving", objects=count, bytes=sum(replica.nbytes for replica in todo))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._save(master, todo)
        lost = master.unsaved()
        if lost:
            log.error(
                "pinned_objects_lost",
                objects=len(lost),
                bytes=sum(replica.nbytes for replica in lost),
                keys=[replica.key for replica in lost[:_NAMED_MAX]],
                stop_timeout=timeout_s,
            )
        elif count:
            log.info("pinned_objects_saved", objects=count)

    async def close(self) -> None:
        """Give up what is under way, and let go of the tier."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.tier.close()

    async def _save(self, master: Master, todo: list[Replica]) -> None:
        done_nbytes, said_s = 0, time.monotonic()
        total_nbytes = sum(replica.nbytes for replica in todo)
        while todo:
            # What the background has begun is waited for too.
            await self._all_writes()
            batch_nbytes, count = 0, 0
            while todo and batch_nbytes < _RESCUE_NBYTES and count < _RESCUE_COUNT:
                replica = todo.pop()
                count += master.rescue(replica, time.monotonic_ns())
                batch_nbytes += replica.nbytes
            self.start()
            await self._all_writes()
            done_nbytes += batch_nbytes
            if time.monotonic() - said_s >= 1.0:
                said_s = time.monotonic()
                log.info("pinned_objects_saving", percent=100 * done_nbytes // max(1, total_nbytes))
        await self._all_writes()

    async def _all_writes(self) -> None:
        writes = [task for task in self._tasks if task.get_name() == "write"]
        if writes:
            await asyncio.wait(writes)

    async def _keep_floor(self, clock: GenerationClock) -> None:
        while True:
            try:
                await self.tier.raise_floor(clock.reach(time.monotonic_ns() + _FLOOR_AHEAD_NS))
            except TierError as error:
                log.warning("generation_floor_not_kept", error=str(error))
            await asyncio.sleep(_FLOOR_INTERVAL_S)

    # -- jobs --------------------------------------------------------------------------------------------------------

    def start(self) -> "asyncio.Future[None] | None":
        """Begin what the master asks for; a future of what is to be on disk before anybody is told, None if nothing is.

        In the order asked for: each job's first step runs before that of the next.
        """
        master = self._master
        assert master is not None
        if not master.jobs:
            return None
        jobs: list[Job] = master.jobs[:]
        master.jobs.clear()
        deleted = [job.replica for job in jobs if isinstance(job, Delete)]
        told_after = [self._run(self._delete(deleted))] if deleted else []
        told_after += [self._run(self._amend(job.replica)) for job in jobs if isinstance(job, Amend)]
        together: list[Replica] = []
        for job in jobs:
            if isinstance(job, Load):
                self._run(self._load(master, job))
            elif isinstance(job, Offload):
                if job.replica.nbytes < _TOGETHER_NBYTES_MAX:
                    together.append(job.replica)
                else:
                    self._run(self._write(master, [job.replica]), "write")
        if together:
            self._run(self._write(master, together), "write")
        if len(told_after) <= 1:
            return told_after[0] if told_after else None
        return asyncio.ensure_future(_all(told_after))

    async def remove_all(self) -> None:
        """Remove everything that lies in the tier or is being written there now."""
        try:
            await self.tier.remove_all()
        except TierError as error:
            log.error("tier_not_cleared", error=str(error))  # noqa: TRY400  its message says it all

    async def _write(self, master: Master, replicas: list[Replica]) -> None:
        answers: dict[int, TierRecord | TierError | None] = {}
        try:
            await self._point("NodeAfterIsolate")
            # Whoever took a name away has had the copy deleted, and a copy begun after that would stay.
            wanted = [replica for replica in replicas if master.is_wanted(replica)]
            views = [(self._meta(replica), self._room.view(replica.offset, replica.nbytes)) for replica in wanted]
            outcome = await self.tier.write(views)
            answers = {replica.replica_id: answer for replica, answer in zip(wanted, outcome, strict=True)}
            with contextlib.suppress(StoreError):  # the copy is there, whatever a drill says
                await self._point("NodeBeforeOffloadFree")
        except StoreError as error:
            log.warning("offload_failed", error=error.message, objects=len(replicas))
        finally:
            for replica in replicas:
                answer = answers.get(replica.replica_id)
                if isinstance(answer, TierError) and master.is_wanted(replica):
                    log.warning("offload_failed", key=replica.key, error=str(answer))
                record = answer if isinstance(answer, TierRecord) else None
                master.offload_done(replica, record, time.monotonic_ns())
            self._settle()

    async def _load(self, master: Master, job: Load) -> None:
        into, record = job.replica, job.record
        assert isinstance(record, TierRecord)
        failure: Refusal | None = Refusal(Code.TRANSFER_FAILED, "the load was given up")
        gone = False
        try:
            await self.tier.read(record, self._room.view(into.offset, into.nbytes))
            self._room.zero_tail(into.offset, into.nbytes)
            await self._point("NodeBeforeAnswerLoad")
            failure = None
        except TierError as error:
            gone = isinstance(error, TierMissingError | TierCorruptError)
            failure = Refusal(Code.TRANSFER_FAILED, str(error))
            log.warning("load_failed", key=into.key, gone=gone, error=str(error))
        except StoreError as error:
            failure = Refusal(Code.TRANSFER_FAILED, error.message)
        finally:
            master.load_done(into, failure, time.monotonic_ns(), gone=gone)
            self._settle()

    async def _delete(self, replicas: list[Replica]) -> None:
        for attempt in range(1, _DELETIONS_MAX + 1):
            # One that gave up its copy alone may have been written again meanwhile.
            metas = [self._meta(replica) for replica in replicas if attempt == 1 or replica.copy is None]
            try:
                await self.tier.remove(*metas)
                break
            except TierError as error:
                if attempt == _DELETIONS_MAX:
                    keys = [meta.key for meta in metas[:_NAMED_MAX]]
                    log.error("deletion_given_up", keys=keys, error=str(error))  # noqa: TRY400
                else:
                    await asyncio.sleep(_DELETION_PAUSE_S)

    async def _amend(self, replica: Replica) -> None:
        try:
            await self.tier.amend(self._meta(replica))
        except TierError as error:
            log.error("contract_not_amended", key=replica.key, error=str(error))  # noqa: TRY400  its message says it all

    async def _point(self, name: str) -> None:
        if self._faults.enabled and (seconds := self._faults.hit(name)):
            await asyncio.sleep(seconds)

    def _meta(self, replica: Replica) -> TierMeta:
        contract, until_ns = replica.contract, replica.softpin_until_ns
        return TierMeta(
            key=replica.key,
            generation=replica.generation,
            nbytes=replica.nbytes,
            kind=replica.kind,
            softpin=contract.softpin,
            hardpin=contract.hardpin,
            softpin_until_unix_ms=None if until_ns is None else (until_ns + self._wall_offset_ns) // 1_000_000,
            scope=contract.scope,
            origin=self.tier.node_id,
        )

    def _run(self, work: Coroutine[Any, Any, None], name: str = "") -> asyncio.Task[None]:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # A failed assertion must reach the loop's handler, which ends the process.
            task.result()


async def _all(tasks: list[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks)


def _nothing() -> None:
    pass
