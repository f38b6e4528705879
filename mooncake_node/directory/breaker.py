"""A circuit breaker: after a failure nobody waits for the same trouble again; one call at a time tries."""

from collections.abc import Callable


class Breaker:
    """Closed: calls go. Open: after a failure, for a pause, none does. Then one goes as a probe, and decides."""

    def __init__(self, *, pause_s: float, clock: Callable[[], float]) -> None:
        self._pause_s = pause_s
        self._clock = clock
        self._open_until: float | None = None  # None: closed
        self._is_probing = False  # a probe is under way; only while open

    @property
    def is_closed(self) -> bool:
        """The last call that went was answered."""
        return self._open_until is None

    @property
    def lets_through(self) -> bool:
        """A call that begins now would go."""
        return self._open_until is None or (not self._is_probing and self._clock() >= self._open_until)

    def begin(self) -> bool:
        """A call begins, to be followed by `end`. False: it must not."""
        if not self.lets_through:
            return False
        self._is_probing = self._open_until is not None
        return True

    def end(self, *, answered: bool | None) -> None:
        """That call has ended; None: without telling anything, its caller went away."""
        self._is_probing = False
        if answered:
            self._open_until = None
        elif answered is not None:
            self._open_until = self._clock() + self._pause_s
