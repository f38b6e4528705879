"""The shared index as its only writer sees it."""

import fcntl
import mmap
import os
import struct
from array import array
from collections.abc import Sequence

import numpy as np
from xxhash import xxh3_64_intdigest

from mooncake_client.index_layout import (
    EMPTY,
    FIRST,
    HEADER_MOVES,
    HEADER_UNLISTED,
    HEADER_VERSION,
    HEADER_WORDS,
    ID_SHIFT,
    KEY_NBYTES_MAX,
    KIND_SHIFT,
    RECORD_HASH,
    RECORD_ID,
    RECORD_KEY_BYTES,
    RECORD_WANTED,
    RECORD_WORDS,
    VERSION,
    Shape,
)
from mooncake_node.core.replica import Replica

_RECORDS_MIN, _RECORDS_MAX = 1 << 12, 1 << 20
_POOL_NBYTES_PER_RECORD = 512
# Of a record that is not among the slots any more.
_NO_SLOT = 0xFFFF_FFFF
# From RECORD_HASH on: hash, offset, nbytes, key and kind, wanted, generation, the key's bytes.
_FIELDS = struct.Struct(f"=6Q{KEY_NBYTES_MAX}s")
assert RECORD_KEY_BYTES - RECORD_HASH == 6


def shape_for(pool_nbytes: int) -> Shape:
    """An index for as many objects as such a pool may well hold; more go by request. Its pages are taken when used."""
    records = max(_RECORDS_MIN, min(_RECORDS_MAX, pool_nbytes // _POOL_NBYTES_PER_RECORD))
    slots = 1 << (2 * records - 1).bit_length()
    return Shape(slots, records)


def open_memory(name: str, nbytes: int) -> int:
    """Memory without a name in any directory, zeroed; who is given a read-only descriptor cannot write to it.

    Its length is sealed: a client that cut it off would take the daemon with it.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, nbytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    os.fchmod(fd, 0o400)
    return fd


class Index:
    """Publishes where replicas are. A record's fields change only while its id is 0 and nobody can have pinned it.

    The slots of records that are gone are closed up at once. Marking them instead (tombstones) leaves, in a full index
    that lives long, hardly an empty one, and whoever looks for what is not there would look at them all.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        write_fd = open_memory("mooncake-node-index", shape.nbytes)
        try:
            self._memory = mmap.mmap(write_fd, shape.nbytes)
            self.control_fd = os.open(f"/proc/self/fd/{write_fd}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(write_fd)
        self.accessed_fd = open_memory("mooncake-node-accessed", shape.records)
        # By record: not 0 if it was read since this was last set to 0. Clients write it too.
        self.accessed = mmap.mmap(self.accessed_fd, shape.records)
        self._bytes = memoryview(self._memory)
        self._words = self._bytes.cast("Q")
        self._words[HEADER_VERSION] = VERSION
        self._mask = shape.slots - 1
        self._records_at = shape.records_at
        self._free: list[int] = []  # records that were used and are free again
        self._used = 0  # records used so far
        self._slot_of = array("I", [0]) * shape.records  # of each record in use

    def close(self) -> None:
        """Close the descriptors; the memory goes with the last mapping."""
        os.close(self.control_fd)
        os.close(self.accessed_fd)

    def add(self, replica: Replica) -> int:
        """Make *replica* readable by way of the index; its record, -1 if it has no room there."""
        encoded = replica.key.encode()
        if len(encoded) > KEY_NBYTES_MAX:
            return -1
        if self._free:
            record = self._free.pop()
        elif self._used < self.shape.records:
            record = self._used
            self._used += 1
        else:
            return -1
        words = self._words
        word = self._records_at + record * RECORD_WORDS
        digest = xxh3_64_intdigest(encoded)
        described = len(encoded) | replica.kind << KIND_SHIFT
        _FIELDS.pack_into(
            self._memory, 8 * (word + RECORD_HASH),
            digest, replica.offset, replica.nbytes, described, 0, replica.generation, encoded,
        )  # fmt: skip
        self.accessed[record] = 0
        words[word + RECORD_ID] = replica.replica_id << ID_SHIFT | record
        slot, mask = digest & self._mask, self._mask
        while words[HEADER_WORDS + slot] != EMPTY:
            slot = (slot + 1) & mask
        self._slot_of[record] = slot
        words[HEADER_WORDS + slot] = digest >> 32 << 32 | record + FIRST
        return record

    def hide(self, records: Sequence[int]) -> None:
        """Readable no more; whoever has pinned one will say when it lets go."""
        words, records_at = self._words, self._records_at
        for record in records:
            word = records_at + record * RECORD_WORDS
            words[word + RECORD_WANTED] = 1
            words[word + RECORD_ID] = 0

    def hide_all(self) -> None:
        """Hide everything. Records stay taken until they are removed one by one."""
        records = np.frombuffer(self._memory, np.uint64, offset=8 * self._records_at).reshape(-1, RECORD_WORDS)
        records[: self._used, RECORD_WANTED] = 1
        records[: self._used, RECORD_ID] = 0
        np.frombuffer(self._memory, np.uint64, self.shape.slots, offset=8 * HEADER_WORDS)[:] = EMPTY
        np.frombuffer(self._slot_of, np.uint32)[: self._used] = _NO_SLOT

    def show(self, replica: Replica, *, wanted: bool) -> None:
        """Readable again, at the same place."""
        word = self._records_at + replica.record * RECORD_WORDS
        self._words[word + RECORD_WANTED] = wanted
        self._words[word + RECORD_ID] = self.id_of(replica, replica.record)

    def want(self, record: int, *, wanted: bool) -> None:
        """Whether whoever lets go of it is to say so."""
        self._words[self._records_at + record * RECORD_WORDS + RECORD_WANTED] = wanted

    def remove(self, records: Sequence[int]) -> None:
        """Free records; they are hidden, and nobody has them pinned."""
        words, mask, slot_of = self._words, self._mask, self._slot_of
        self._free += records
        for record in records:
            slot = slot_of[record]
            if slot == _NO_SLOT:
                continue  # cleared meanwhile
            if words[HEADER_WORDS + ((slot + 1) & mask)] == EMPTY:
                words[HEADER_WORDS + slot] = EMPTY
                continue
            # A reader may look behind a word and then before it, and not find it: one unlisted, as far as readers know.
            unlisted = words[HEADER_UNLISTED]
            self.set_unlisted(unlisted + 1)
            self._close_up(slot)
            self.set_unlisted(unlisted)

    def _close_up(self, hole: int) -> None:
        """Empty a slot. Those behind it move up, as far as a way from their own slot led over it."""
        words, mask, slot = self._words, self._mask, hole
        while (found := words[HEADER_WORDS + (slot := (slot + 1) & mask)]) != EMPTY:
            record = (found & 0xFFFF_FFFF) - FIRST
            home = words[self._records_at + record * RECORD_WORDS + RECORD_HASH] & mask
            if (slot - home) & mask >= (slot - hole) & mask:
                words[HEADER_WORDS + hole] = found
                self._slot_of[record] = hole
                hole = slot
        words[HEADER_WORDS + hole] = EMPTY

    def set_unlisted(self, count: int) -> None:
        """So many objects are readable that are not in here."""
        words = self._words
        if count < words[HEADER_UNLISTED]:
            words[HEADER_MOVES] += 1
        words[HEADER_UNLISTED] = count

    @staticmethod
    def id_of(replica: Replica, record: int) -> int:
        """Never given twice, since a replica_id is not."""
        return replica.replica_id << ID_SHIFT | record
