"""The pool made warm behind the back of a daemon that already serves."""

import threading
import time
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

from mooncake_client.mapping import CHUNK, Mapping
from mooncake_node.pool.hugepages import huge_bytes

# The kernel keeps the address space locked while it populates, and meanwhile the event loop cannot grow its heap:
# a few ms. Collapse takes that lock for each huge page anew. stop() waits for one step of either.
_PREFAULT_STEP = 4 << 20
_COLLAPSE_STEP = 16 << 20
_FAILURES_MAX = 64  # chunks in a row that the kernel refused to make huge


class WarmupState(Enum):
    """How far a warm-up is."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class WarmupStatus:
    """What a warm-up has reached."""

    state: WarmupState = WarmupState.PENDING
    bytes_prefaulted: int = 0
    bytes_huge: int = 0  # as the kernel counts it; looked up after each of the two passes
    method: Literal["mount", "collapse", "none"] = "none"  # what gave the huge pages
    seconds: float = 0.0
    error: str = ""


class Warmup:
    """A thread that pre-faults the whole pool and then tries to turn it into huge pages.

    The pool may be read and written by anybody meanwhile: nothing here changes a byte of it. Must
    be stopped before *mapping* is unmapped. A pool that stays cold or on small pages is slower at
    first touch and otherwise the same, so every failure ends in ``status()`` and nowhere else.
    """

    def __init__(self, mapping: Mapping, *, huge_pages: Literal["auto", "off"] = "auto") -> None:
        assert mapping.writable
        self._mapping = mapping
        self._huge_pages = huge_pages
        self._stop = threading.Event()
        self._status = WarmupStatus()  # replaced whole, after start() only by the thread
        self._thread = threading.Thread(target=self._run, name="pool-warmup", daemon=True)

    def start(self) -> None:
        """Begin. Once."""
        self._status = replace(self._status, state=WarmupState.RUNNING)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and return when it has ended, after one step at most; twice is harmless.

        Blocks for that step: not for an event loop.
        """
        self._stop.set()
        self.join()

    def join(self) -> None:
        """Return when the thread has ended, by itself or by ``stop()`` elsewhere."""
        if self._thread.ident is not None:
            self._thread.join()

    def status(self) -> WarmupStatus:
        """Where it stands now."""
        return self._status

    def _run(self) -> None:
        begun = time.monotonic()
        state, error = WarmupState.FAILED, ""
        try:
            self._prefault()
            self._make_huge()
            state = WarmupState.DONE
        except _StopError:
            state = WarmupState.STOPPED
        except OSError as trouble:
            error = str(trouble)
        finally:
            self._status = replace(self._status, state=state, error=error, seconds=time.monotonic() - begun)

    def _prefault(self) -> None:
        nbytes = self._mapping.nbytes
        for start in range(0, nbytes, _PREFAULT_STEP):
            self._check_stop()
            step = min(_PREFAULT_STEP, nbytes - start)
            if not self._mapping.populate(start, step):
                raise OSError(f"the kernel did not pre-fault the pool from byte {start} on")
            self._status = replace(self._status, bytes_prefaulted=start + step)
        huge = huge_bytes(self._mapping)
        self._status = replace(self._status, bytes_huge=huge, method="mount" if huge else "none")

    def _make_huge(self) -> None:
        before = self._status.bytes_huge
        whole = self._mapping.nbytes // CHUNK * CHUNK
        if self._huge_pages == "off" or before == whole:
            return
        try:
            self._collapse(whole)
        finally:
            huge = huge_bytes(self._mapping)
            method = "collapse" if huge > before else self._status.method
            self._status = replace(self._status, bytes_huge=huge, method=method)

    def _collapse(self, whole: int) -> None:
        failures = 0
        for start in range(0, whole, _COLLAPSE_STEP):
            self._check_stop()
            step = min(_COLLAPSE_STEP, whole - start)
            if self._mapping.collapse(start, step):
                failures = 0
                continue
            # The kernel did what it could of the step; what is done already costs nothing again.
            for chunk in range(start, start + step, CHUNK):
                failures = 0 if self._mapping.collapse(chunk, CHUNK) else failures + 1
                if failures == _FAILURES_MAX:
                    return

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise _StopError


class _StopError(Exception):
    """stop() was called."""
