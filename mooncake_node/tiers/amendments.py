"""Changes of contract: what they mean for the index, and their order against writes and removals."""

import asyncio
from functools import partial

from mooncake_node.obs.log import get_logger
from mooncake_node.tiers.contents import Contents, Entry
from mooncake_node.tiers.contracts import write_contract
from mooncake_node.tiers.drafts import Draft
from mooncake_node.tiers.errors import TierError
from mooncake_node.tiers.place import Place
from mooncake_node.tiers.port import TierCounters, TierMeta, TierRecord
from mooncake_node.tiers.workers import Workers, all_done, start

log = get_logger()

Done = asyncio.Future[TierError | None]


class Amendments:
    """Carries them out, one by one, in the thread of the removals. Belongs to the event loop."""

    def __init__(self, place: Place, contents: Contents, counters: TierCounters, workers: Workers) -> None:
        self._place = place
        self._contents = contents
        self._counters = counters
        self._workers = workers

    async def carry_out(self, meta: TierMeta, draft: Draft | None) -> None:
        """As `Tier.amend`; *draft* is the write under way of this generation."""
        done: Done = asyncio.get_running_loop().create_future()
        if draft is None or draft.answer.done():
            self._begin(meta, done)
        else:
            # Not by a task that waits for the answer: a later call could come before it is woken.
            draft.on_end.append(partial(self._begin, meta, done))
        await all_done([done])
        error = done.result()
        if error is not None:
            raise error

    def _begin(self, meta: TierMeta, done: Done) -> None:
        entry = self._contents.living(meta.identity)
        if entry is None:
            done.set_result(None)
            return
        # Before the file is there: a removal comes after it in the same thread, and has to take it along.
        entry.is_amended = True
        record = entry.record.amended(meta)
        future = start(self._workers.removals, partial(write_contract, self._place, record))
        future.add_done_callback(partial(self._end, entry, record, done))

    def _end(self, entry: Entry, record: TierRecord, done: Done, future: Done) -> None:
        if (bug := future.exception()) is not None:
            done.set_exception(bug)
            return
        error = future.result()
        if error is None:
            self._contents.amend(entry, record)
            self._counters.amended += 1
        else:
            self._counters.amend_failed += 1
            log.warning("tier_amendment_failed", key=record.key, generation=record.generation, error=str(error))
        done.set_result(error)
