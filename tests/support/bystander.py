"""A client whom nothing that happens to other clients may touch."""

from typing import Any

from tests.support.node import NodeProcess
from tests.support.patterns import digest, pattern
from tests.support.waiting import eventually

MIB = 1 << 20
_NBYTES = {"shared": MIB, "own": 300_001}


class Bystander:
    """Holds views, and remembers the node's ledger as it was when only it was there. A context manager."""

    def __init__(self, node: NodeProcess) -> None:
        self.client = node.client(name="bystander")
        for key, nbytes in _NBYTES.items():
            self.client.put_from(key, pattern(key, nbytes))
        self._handles = {key: self.client.get_buffer(key) for key in _NBYTES}
        self.before = self.ledger()

    def __enter__(self) -> "Bystander":
        return self

    def __exit__(self, *_exc: object) -> None:
        for handle in self._handles.values():
            handle.release()
        self.client.remove_many(_NBYTES)
        self.client.close()

    def ledger(self) -> dict[str, Any]:
        """What the node keeps for its clients, all together."""
        stats = self.client.stats()
        kept = ("objects", "unpublished", "handles", "stash", "waiting", "waiting_puts", "clients")
        return {"pool": stats["pool"], **{name: stats[name] for name in kept}}

    def stat(self, name: str) -> int:
        """One number of the statistics."""
        return self.client.stats()[name]

    def check(self) -> None:
        """The ledger is again as before, to the byte; the views are right; the daemon serves on."""
        self._await_ledger()
        for key, handle in self._handles.items():
            assert digest(handle.view) == digest(pattern(key, _NBYTES[key])), key
            assert [holder.handles for holder in self.client.holders(key)] == [1], key
        # Room that was freed twice would be given out twice: this would overwrite what the views show.
        nbytes = self.before["pool"]["largest_free_extent"]
        with self.client.create("new", nbytes) as draft:
            draft.view[::4096] = b"\xff" * len(draft.view[::4096])
        for key, handle in self._handles.items():
            assert digest(handle.view) == digest(pattern(key, _NBYTES[key])), key
        assert self.client.remove("new")
        self._await_ledger()

    def _await_ledger(self) -> None:
        last: dict[str, Any] = {}

        def as_before() -> bool:
            last.update(self.ledger())
            return last == self.before

        try:
            eventually(as_before, "the ledger of before")
        except AssertionError as error:
            raise AssertionError(f"{error}\nbefore {self.before}\nnow    {last}") from None
