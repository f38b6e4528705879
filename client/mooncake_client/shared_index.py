"""Gets that need nobody: look a key up in the daemon's index, pin the replica in a row of one's own, read.

The pin is a word in shared memory that the daemon looks at before it reuses an object's memory. It is stored first and
the record looked at again after that; `docs/FASTPATH.md` says why this is enough. What cannot be had this way, for
whatever reason, is None here, and goes by request.
"""

import ctypes
import mmap
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

from xxhash import xxh3_64_intdigest

from mooncake_client import fork, wire
from mooncake_client.index_layout import (
    EMPTY,
    FIRST,
    HEADER_MOVES,
    HEADER_UNLISTED,
    HEADER_WORDS,
    ID_SHIFT,
    KEY_NBYTES_MAX,
    KIND_SHIFT,
    RECORD_GENERATION,
    RECORD_ID,
    RECORD_KEY,
    RECORD_KEY_BYTES,
    RECORD_NBYTES,
    RECORD_OFFSET,
    RECORD_WANTED,
    RECORD_WORDS,
    ROW_HITS,
    Shape,
)
from mooncake_client.mapping import Mapping
from mooncake_client.pin_row import PinRow

# Keys whose place is remembered.
_CACHED_MAX = 65_536
# Handle ids of pins; the daemon's own begin at 1.
_HANDLE_IDS_FROM = 1 << 62


class Entry(NamedTuple):
    """Where a key was found."""

    id: int
    word: int  # of its record
    record: int
    offset: int
    end: int
    kind: int
    generation: int


class SharedIndex:
    """One client's way to the objects of G without the daemon; of one attachment."""

    def __init__(self, shape: Shape, descriptors: list[int], pool: Mapping, tell: Callable[[], None]) -> None:
        """*descriptors*: control, accessed bytes, row; they stay the caller's. *tell*: somebody waits for a pin."""
        control_fd, accessed_fd, row_fd = descriptors
        # Unmapped by the last reference, since they are exported to the views below, and not by a finalizer: in garbage
        # with a cycle the root of a view may have to look there after that has run.
        control = mmap.mmap(control_fd, shape.nbytes, prot=mmap.PROT_READ)
        control.madvise(mmap.MADV_DONTDUMP)
        self._accessed = memoryview(mmap.mmap(accessed_fd, shape.records))
        self.row = PinRow(row_fd)
        self._bytes = memoryview(control)
        self.words = self._bytes.cast("Q")  # the index; written by the daemon
        self._mask = shape.slots - 1
        self._records_at = shape.records_at
        self._cache: dict[str, Entry] = {}
        self._handle_ids = count(_HANDLE_IDS_FROM)
        self._address = pool.address
        self._pool = pool
        self._root = _root_type(pool.nbytes, self.row, tell).from_address

    def view(self, key: str) -> tuple[memoryview, Entry] | None:
        """A read-only view of the object's bytes, which stay as they are until the last thing made of it dies."""
        try:
            entry = self._cache.get(key)
        except TypeError:  # no key at all; said by who checks it
            return None
        if entry is not None:
            view = self._pin(entry)
            if view is not None:
                return view, entry
            # The object of that name is another by now, or none.
            self._cache.pop(key, None)
        found = self._find(key)
        if found is None or (view := self._pin(found)) is None:
            return None
        return view, found

    def grant(self, entry: Entry) -> wire.Grant:
        """What the daemon would have said of it."""
        nbytes = entry.end - entry.offset
        handle_id = next(self._handle_ids)
        return wire.Grant(handle_id, entry.id >> ID_SHIFT, entry.offset, nbytes, entry.kind, entry.generation)

    def contains(self, key: str) -> bool | None:
        """Whether *key* is readable; None: that is not known here. Takes no pin and does not count as a use."""
        if type(key) is not str or not 0 < len(key) <= KEY_NBYTES_MAX or not key.isascii():
            return None
        words = self.words
        entry = self._cache.get(key)
        if entry is not None and words[entry.word] == entry.id:
            return True
        moves = words[HEADER_MOVES]
        if self._find(key) is not None:
            return True
        # Not in the index is not there, unless something is readable that is not in the index, or came into it while
        # we looked.
        if words[HEADER_UNLISTED] == 0 and words[HEADER_MOVES] == moves:
            return False
        return None

    def nbytes(self, key: str) -> int | None:
        """The object's length; None if it is not known here."""
        entry = self._cache.get(key)
        if entry is None or self.words[entry.word] != entry.id:
            entry = self._find(key)
        return None if entry is None else entry.end - entry.offset

    def _pin(self, entry: Entry) -> memoryview | None:
        row = self.row
        try:
            pin = row.free.pop()
        except IndexError:
            pin = row.more()
            if pin == 0:
                return None
        # Before the pin is set: whatever interrupts us from here on, the root's death clears it.
        root = self._root(self._address)
        root.index = self
        root.pin = pin
        root.word = entry.word
        pins = row.words
        pins[pin] = entry.id
        # Nobody may come any more once the daemon may have been told that nothing is pinned.
        if self.words[entry.word] != entry.id or row.closing:
            return None
        accessed = self._accessed
        if not accessed[entry.record]:
            accessed[entry.record] = 1
        # May lose some between threads: it is a statistic.
        pins[ROW_HITS] += 1
        return memoryview(root).cast("B")[entry.offset : entry.end].toreadonly()

    def _find(self, key: str) -> Entry | None:
        try:
            encoded = key.encode()
        except (UnicodeEncodeError, AttributeError):  # no key of ours; said by who checks it
            return None
        if len(encoded) > KEY_NBYTES_MAX:
            return None
        digest = xxh3_64_intdigest(encoded)
        words, mask = self.words, self._mask
        slot, tag = digest & mask, digest >> 32
        for _ in range(mask):
            found = words[HEADER_WORDS + slot]
            if found == EMPTY:
                return None
            if found >> 32 == tag and found & 0xFFFF_FFFF >= FIRST:
                entry = self._read(found & 0xFFFF_FFFF, encoded)
                if entry is not None:
                    if len(self._cache) >= _CACHED_MAX:
                        self._cache.clear()
                    self._cache[key] = entry
                    return entry
            slot = (slot + 1) & mask
        return None

    def _read(self, numbered: int, encoded: bytes) -> Entry | None:
        """The record, if it is readable and that key's. Its fields lie still between two looks at one id."""
        record = numbered - FIRST
        words = self.words
        word = self._records_at + record * RECORD_WORDS
        found = words[word + RECORD_ID]
        key_nbytes = len(encoded)
        described = words[word + RECORD_KEY]
        at = 8 * (word + RECORD_KEY_BYTES)
        if not found or described & 0xFFFF != key_nbytes or self._bytes[at : at + key_nbytes] != encoded:
            return None
        offset, nbytes = words[word + RECORD_OFFSET], words[word + RECORD_NBYTES]
        generation = words[word + RECORD_GENERATION]
        if words[word + RECORD_ID] != found:
            return None
        return Entry(found, word, record, offset, offset + nbytes, described >> KIND_SHIFT, generation)


def _root_type(pool_nbytes: int, row: PinRow, tell: Callable[[], None]) -> type[Any]:
    """The type of the roots of one client's pinned views; as in `views`.

    Refers to neither pool nor index: a type is not freed at once when its last reference goes.
    """
    pins, free = row.words, row.free
    state, fork_count = fork.STATE, fork.STATE.count

    class Pinned(ctypes.c_char * pool_nbytes):  # type: ignore[misc]  # the length is known at run time only
        """One pin on a replica."""

        __slots__ = ("index", "pin", "word")
        index: SharedIndex  # keeps the pool mapped
        pin: int
        word: int

        def __del__(self) -> None:
            try:
                # In a child of fork the pin is the parent's; at exit the process's end gives it back.
                if state.count == fork_count:
                    pin = self.pin
                    # Cleared before it can be taken again.
                    pins[pin] = 0
                    self.pin = 0
                    free.append(pin)
                    if self.index.words[self.word + RECORD_WANTED] or row.closing:
                        tell()
            except AttributeError:
                pass  # interrupted while it was made: the pin word was not set
            except BaseException:
                # A KeyboardInterrupt: Python drops it here, which must not leave the pin. Its word may be lost.
                if self.pin:
                    pins[self.pin] = 0
                tell()
                raise

    return Pinned
