"""The threads of a tier, and how the event loop waits for them."""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from mooncake_node.tiers.errors import TierError, from_os

T = TypeVar("T")


class Workers:
    """Offloads and restores have threads of their own, so that neither waits for the other.

    Removals have one too: they are short, and a reader's `remove` should not wait for a gigabyte being written.
    """

    def __init__(self, *, offloads: int, restores: int) -> None:
        self.offloads = ThreadPoolExecutor(offloads, "tier-offload")
        self.restores = ThreadPoolExecutor(restores, "tier-restore")
        self.removals = ThreadPoolExecutor(1, "tier-remove")

    def end(self) -> None:
        """Let the threads end when they have done what they were given."""
        for pool in (self.offloads, self.restores, self.removals):
            pool.shutdown(wait=False)


def start(pool: ThreadPoolExecutor, job: Callable[[], T]) -> asyncio.Future[T | TierError]:
    """Run *job* in *pool*; what it gives, or the TierError it raises, as the future's value."""
    return asyncio.wrap_future(pool.submit(_answer, [job]))


async def run(
    pool: ThreadPoolExecutor, job: Callable[[], T], on_cancel: Callable[[], None] | None = None
) -> T | TierError:
    """`start`, and wait as `all_done` does."""
    future = start(pool, job)
    await all_done([future], on_cancel)
    return future.result()


async def all_done(futures: Iterable[asyncio.Future[T]], on_cancel: Callable[[], None] | None = None) -> None:
    """Return when all are done, even if cancelled: that is told to *on_cancel* at once, and raised at the end.

    So nobody's memory is touched any more by a thread when its owner goes on.
    """
    pending = set(futures)
    is_cancelled = False
    while pending:
        try:
            _, pending = await asyncio.wait(pending)
        except asyncio.CancelledError:
            if on_cancel is not None and not is_cancelled:
                on_cancel()
            is_cancelled = True
    if is_cancelled:
        raise asyncio.CancelledError


def bare(error: TierError) -> TierError:
    """*error* without the frames it came through: they would keep the caller's memory."""
    error.__cause__ = error.__context__ = error.__traceback__ = None
    return error


def _answer(box: list[Callable[[], T]]) -> T | TierError:
    # The pool keeps what it was given until after it has told the outcome, and a job has the caller's memory.
    job = box.pop()
    try:
        return job()
    except TierError as error:
        return bare(error)
    except OSError as error:  # no memory for a buffer, say
        return bare(from_os("cannot do what was asked", "", error))
