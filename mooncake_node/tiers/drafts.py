"""Objects on their way into a directory."""

import asyncio
from collections.abc import Callable

from mooncake_node.tiers.errors import TierError, TierRemovedError
from mooncake_node.tiers.port import TierMeta, TierRecord
from mooncake_node.tiers.publication import Publication


class Draft:
    """One object's write under way, from the call to its answer. Belongs to the event loop."""

    __slots__ = ("answer", "is_removed", "meta", "number", "on_end", "publication", "reserved_nbytes", "view")

    def __init__(self, meta: TierMeta, view: memoryview, reserved_nbytes: int) -> None:
        self.meta = meta
        self.view = view
        self.reserved_nbytes = reserved_nbytes
        self.is_removed = False  # by a removal, or because the writer has given up
        self.publication: Publication | None = None  # from when a thread has it
        self.number = 0  # in the publication
        self.on_end: list[Callable[[], None]] = []  # called in turn, and at once, when the answer is given
        self.answer: asyncio.Future[TierRecord | TierError] = asyncio.get_running_loop().create_future()

    def give_up(self) -> None:
        """Nobody waits for it any more: a thread that is at it stops soon. What it has written must be removed."""
        self.is_removed = True
        if self.publication is not None and self.publication.count == 1:
            self.publication.give_up()

    def settle(self, answer: TierRecord | TierError) -> None:
        """Answer the writer, and let go of its memory."""
        if self.is_removed and not isinstance(answer, TierRemovedError):
            answer = TierRemovedError("removed while it was being written")
        self.view = memoryview(b"")
        self.answer.set_result(answer)
        self._end()

    def fail(self, bug: BaseException) -> None:
        """Raise *bug* where the writer waits."""
        self.answer.set_exception(bug)
        self._end()

    def _end(self) -> None:
        for call in self.on_end:
            call()
