"""Views of G whose memory lives as long as anything derived from them.

The root of every view is a ctypes array over the whole pool. memoryview slices and casts, numpy arrays, tensors and
DLPack capsules all keep that root alive, each for itself; when the last one dies, the root's `__del__` gives the
claim back. An ndarray as root would not do: numpy collapses `.base`, so the root would die too early.
"""

import ctypes
import gc
import sys
from collections.abc import Callable
from typing import Any

from mooncake_client import fork
from mooncake_client.mapping import Mapping


def _root_type(pool_nbytes: int) -> type[Any]:
    """The type of the roots of one mapping; made once, since making a ctypes type costs 7 µs."""

    state = fork.STATE

    class Root(ctypes.c_char * pool_nbytes):  # type: ignore[misc]  # the length is known at run time only
        """One claim on bytes of G: a handle, or a reservation that is being filled."""

        # No more than these in the type's own closure: a type lives until the next collection of garbage.
        __slots__ = ("claim_id", "leases")

        def __del__(self) -> None:
            # In a child of fork the parent still holds the claim; at exit the process's end gives it back.
            try:
                leases = self.leases
                if state.count == leases.fork_count:
                    leases.let_go(self.claim_id)
            except AttributeError:
                pass  # interrupted while it was made; whoever made it gives the claim back
            except BaseException:
                # A KeyboardInterrupt: Python drops it here, which must not drop the claim. One that strikes before
                # the `try` does, until the end of the process; there is no way around that in Python.
                self.leases.let_go(self.claim_id)
                raise

    return Root


class LeaseMaker:
    """Makes views over one mapping, each of which gives its claim back when it and all derived from it are dead.

    Every root refers to it, so the mapping lives as long as the last of them.
    """

    def __init__(self, mapping: Mapping, let_go: Callable[[int], None]) -> None:
        """*let_go* is called from `__del__`, in any thread: it may take no lock."""
        self.let_go = let_go
        self.fork_count = fork.STATE.count
        self._mapping = mapping
        self._from_address = _root_type(mapping.nbytes).from_address
        self._address = mapping.address

    def root(self, claim_id: int) -> Any:
        """The object whose death gives the claim back."""
        root = self._from_address(self._address)
        root.leases = self
        root.claim_id = claim_id
        return root

    def view(self, claim_id: int, offset: int, nbytes: int) -> memoryview:
        """The bytes of one claim, as writable as the mapping says and no more: ask `toreadonly` of it."""
        return memoryview(self.root(claim_id)).cast("B")[offset : offset + nbytes]


class WritableView:
    """A writable view of one reservation that can tell whether anything derived from it is still alive."""

    def __init__(self, leases: LeaseMaker, claim_id: int, offset: int, nbytes: int) -> None:
        # Outlives the view: else `close` would give the room up, and the revoke could overtake the end of the put.
        self._root = leases.root(claim_id)
        self.view = memoryview(self._root).cast("B")[offset : offset + nbytes]

    def close(self) -> None:
        """End `view`: it can be used no more. BufferError, and nothing is changed, while something made of it lives.

        An array exports the memoryview, so releasing that is refused; a slice or a cast shares its managed buffer, one
        reference each. A tensor does neither: it refers to the memoryview as a variable would. Where torch is loaded,
        every other reference to `view` is therefore taken for a tensor.
        """
        view = self.view
        try:
            memoryview(view).release()
        except ValueError:
            return  # its user has released it
        (managed,) = gc.get_referents(view)
        derived = sys.getrefcount(managed) - _OWN_REFS - 1
        others = sys.getrefcount(view) - _OWN_REFS - 1 if "torch" in sys.modules else 0
        del managed
        if derived or others:
            what = "anything made of it" if derived else "the view itself, or a tensor made of it,"
            raise BufferError(f"the buffer cannot be published while {what} is alive")
        view.release()


def _own_refs() -> int:
    """What getrefcount counts for an object that only one variable names."""
    alone = object()
    return sys.getrefcount(alone)


_OWN_REFS = _own_refs()
