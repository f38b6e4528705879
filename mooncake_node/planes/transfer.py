"""One transfer under way, as every plane of ours keeps it."""

import asyncio
from collections.abc import Callable

from mooncake_node.planes.port import Outcome, RemoteRange

# How long an outcome is held back so that it can be FAILED, which frees the destination, instead of EXPIRED.
QUIESCE_TIMEOUT_S = 0.2


class Transfer:
    """Implements `Ticket`. It has ended when nothing is written into its destination any more."""

    def __init__(self, source: RemoteRange, local_offset: int, on_end: Callable[["Transfer", Outcome], None]) -> None:
        """*on_end* is told its outcome, once: also EXPIRED, and then not how it ended in the end."""
        self.source = source
        self.local_offset = local_offset
        self.reason = ""
        self.xxh3: int | None = None
        # Stops whoever works on it; called once at most, and not after the end. Set by whoever does.
        self.stop: Callable[[str], None] | None = None
        self._on_end = on_end
        self._outcome: Outcome | None = None
        self._is_given_up = False
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def has_ended(self) -> bool:
        """Nothing is written into its destination any more."""
        return self._ended.done()

    def end(self, outcome: Outcome, reason: str = "") -> None:
        """Nothing is written into the destination any more. First reasons stay."""
        assert outcome is not Outcome.EXPIRED
        assert not self.has_ended
        self.reason = self.reason or reason
        self.stop = None
        self._ended.set_result(None)
        if self._outcome is None:
            self._outcome = outcome
            self._on_end(self, outcome)

    def give_up(self, reason: str) -> None:
        """Have it end soon. Nothing happens if it has ended or was given up."""
        if self.has_ended or self._is_given_up:
            return
        self._is_given_up = True
        self.reason = self.reason or reason
        if self.stop is not None:
            self.stop(reason)

    async def done(self, timeout_s: float) -> Outcome:
        """See Ticket."""
        try:
            await asyncio.wait([self._ended], timeout=max(0.0, timeout_s))
        except asyncio.CancelledError:
            self.give_up("nobody waits for it any more")
            raise
        if not self.has_ended:
            self.give_up(f"not done within {timeout_s:g} s")
            await asyncio.wait([self._ended], timeout=QUIESCE_TIMEOUT_S)
        if self._outcome is None:
            self._outcome = Outcome.EXPIRED
            self._on_end(self, Outcome.EXPIRED)
        return self._outcome

    async def quiesced(self) -> None:
        """See Ticket."""
        if not self.has_ended:
            await asyncio.wait([self._ended])
