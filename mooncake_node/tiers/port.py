"""The port of a tier: where objects lie that have left memory, or have a second copy outside it.

A tier keeps complete objects or nothing. Which objects it should hold, and which go when room is needed, is decided
elsewhere; here are sizes to decide by. An object is named by its key and generation: several generations of a key can
lie side by side, and to remove one says nothing about the others.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from mooncake_node.tiers.errors import TierError

WRITE_BATCH_MAX = 65_536  # objects in one call of `write`


class TierMeta(msgspec.Struct, frozen=True, gc=False, kw_only=True, array_like=True):
    """What is known about an object before it is written."""

    key: str  # UTF-8, 1 to 1,024 bytes, any characters
    generation: int  # unsigned, 64 bits
    nbytes: int
    kind: int = 0
    softpin: bool = False
    softpin_until_unix_ms: int | None = None  # wall clock, which alone survives a restart; None: until removed
    hardpin: bool = False
    scope: str = "cluster"
    origin: str = ""  # id of the node that has put it

    @property
    def identity(self) -> tuple[str, int]:
        """Its name in a tier."""
        return self.key, self.generation


class TierRecord(TierMeta, frozen=True, gc=False, kw_only=True, array_like=True):
    """An object that lies complete in a tier: all that is needed to adopt it after a restart."""

    xxh3: int  # XXH3-64 of its bytes, unsigned

    def amended(self, meta: TierMeta) -> "TierRecord":
        """The same object under the contract of *meta*."""
        return msgspec.structs.replace(
            self,
            softpin=meta.softpin,
            softpin_until_unix_ms=meta.softpin_until_unix_ms,
            hardpin=meta.hardpin,
            scope=meta.scope,
        )


class TierCounters(msgspec.Struct, kw_only=True):
    """What has happened since the tier was opened, in objects unless said otherwise."""

    written: int = 0
    restored: int = 0
    removed: int = 0
    amended: int = 0
    # Failures, by kind. A write of n objects that meets a full disk counts n.
    write_full: int = 0
    write_failed: int = 0
    read_missing: int = 0
    read_corrupt: int = 0
    read_failed: int = 0
    remove_failed: int = 0
    amend_failed: int = 0
    # What opening it found, in files: not usable and set aside, left by a crash, of an older generation.
    scan_bad: int = 0
    scan_temporary: int = 0
    scan_outdated: int = 0

    @property
    def failures(self) -> int:
        """Writes, reads, removals and amendments that failed, and files found unusable."""
        return (
            self.write_full
            + self.write_failed
            + self.read_missing
            + self.read_corrupt
            + self.read_failed
            + self.remove_failed
            + self.amend_failed
            + self.scan_bad
        )


class Tier(Protocol):
    """A place for objects outside memory. Every method is for one event loop and blocks it never.

    A call that is cancelled ends only when no thread of the tier touches the caller's memory any more.
    """

    counters: TierCounters
    bytes_limit: int  # may be changed at any time; lower than what is used only stops writes

    @property
    def node_id(self) -> str:
        """Whose tier this is: random, made once, kept with the objects. Known once open."""

    @property
    def floor(self) -> int:
        """No generation up to this one may be given again. Known once open."""

    @property
    def bytes_used(self) -> int:
        """What is taken of `bytes_limit`, by objects being written, dead ones not yet freed and amendments too."""

    @property
    def objects(self) -> int:
        """How many can be read."""

    def cost(self, meta: TierMeta) -> int:
        """Bytes of the limit that this object takes or would take; for one that shares a file, its share.

        Without what `amend` may add.
        """

    async def open(self) -> list[TierRecord]:
        """Make the tier usable; return what lies in it, one generation a key. First, and once.

        Leftovers of a crash, older generations and what cannot be used are cleaned away and counted. Raises
        TierLockedError if another process has it, else TierError. Every object written and not removed before the
        last process ended, however it ended, is returned, under the contract it was last given; none is that was
        removed. A damaged amendment is counted and cleaned away, and its object found as it was written.
        """

    async def write(self, objects: Sequence[tuple[TierMeta, memoryview]]) -> list[TierRecord | TierError]:
        """Write each object; the answers stand in the same order. Only a bug or a cancellation raises.

        A view has exactly `nbytes` bytes, which are not to change until the call has ended; nothing is read beyond
        them. An answer of a record means complete and readable; of an error, that nothing of this object is there:
        TierFullError, TierIOError, or TierRemovedError if it was removed meanwhile. One that already lies there is
        not written again, and its record answered as it is. No second write of one generation while the first is
        under way. One that was amended and whose removal has not ended, or has failed, gets TierIOError: the old
        contract would be taken for that of the new object.
        Cancelled: nothing of the batch is left.
        """

    async def read(self, record: TierRecord, into: memoryview) -> None:
        """Fill *into*, which has exactly `nbytes` bytes, with the object, verified; not one byte beyond it.

        Raises TierMissingError, TierCorruptError (in both cases the object is gone from the tier), or TierIOError
        (it stays). After an error or a cancellation the content of *into* is anything.
        """

    async def read_part(self, record: TierRecord, offset: int, into: memoryview) -> None:
        """Fill *into* with the object's bytes from *offset* on, unverified: whoever has them all verifies by xxh3.

        *into* is any memory, and ends where the object does or before; nothing is written beyond it. Raises as `read`
        does, except that corruption is not looked for: TierCorruptError only says that the file is too short. What is
        being removed meanwhile may be read in part and be missing from then on.
        """

    async def remove(self, *objects: TierMeta) -> None:
        """Remove these generations; unknown ones are no error.

        From the call on they are not read again. When it returns they cannot come back: neither by a restart, nor by
        a write that is still under way, for which it does not wait. Cancelled, it is carried out all the same.
        Raises TierIOError, after having tried them all, if one could not be removed: it is not served, but a restart
        would find it; to remove it again tries again.
        """

    async def amend(self, meta: TierMeta) -> None:
        """Change the contract of an object that lies there complete to that of *meta*: its pins and its scope.

        The object is named by key and generation; what else *meta* says of it has no effect. When it returns a
        restart finds the new contract, also when the object has been moved since. Of several for one object the last
        call's stays. Unknown or removed: no error, nothing is done. While the write of this generation is under way
        it waits for that to end, and then does it, if the object is there: so neither outcome of the write undoes
        it, and the writer's answer is what was written. The bytes it takes are counted, but never refused for the
        limit's sake.
        Cancelled, it is carried out all the same. Raises TierIOError: the old contract stays on disk.
        """

    async def remove_all(self) -> int:
        """Remove all that lies there or is being written, as `remove` does; what is written later stays. The count."""

    async def raise_floor(self, generation: int) -> None:
        """Keep *generation* as the floor, for this process and all later ones. A lower one than before does nothing.

        When it returns it is on the disk.
        """

    async def close(self) -> None:
        """Wait for the calls under way, then let go of the place. Twice is harmless."""
