"""How the shared index and the pin rows lie in memory: the contract between the daemon, which writes, and its clients.

Control segment, read-only for clients: a header of one page, `slots` words of a hash table with linear probing, and
`records` records of 128 bytes. A slot's word: 0 empty, else the upper half of the key's hash and, in the
lower half, the record's number + 2. `docs/FASTPATH.md` says why it is right.
"""

import msgspec

VERSION = 1

# Words of the header.
HEADER_VERSION = 0
HEADER_UNLISTED = 1  # readable objects that are not in the index; 0: what is not found is not there
HEADER_MOVES = 2  # counted up before that number falls
HEADER_WORDS = 512

# Words of a record.
RECORD_WORDS = 16
RECORD_ID = 0  # replica_id << ID_SHIFT | number of the record; 0: not readable
RECORD_HASH = 1
RECORD_OFFSET = 2
RECORD_NBYTES = 3
RECORD_KEY = 4  # bytes of the key | kind << KIND_SHIFT
RECORD_WANTED = 5  # not 0: whoever lets go tells the daemon
RECORD_GENERATION = 6
RECORD_KEY_BYTES = 7  # from here to the end
KEY_NBYTES_MAX = (RECORD_WORDS - RECORD_KEY_BYTES) * 8
KIND_SHIFT = 16
ID_SHIFT = 24
RECORDS_MAX = 1 << ID_SHIFT

EMPTY, FIRST = 0, 2  # words of a slot

# A pin row: one client's, which alone writes it.
ROW_WORDS = 4096
ROW_LIMIT = 0  # so many pin words have been in use so far
ROW_HITS = 1  # gets answered without the daemon; a statistic
ROW_PINS = 2  # from here on: an id, or 0
ROW_PINS_MAX = ROW_WORDS - ROW_PINS
ROW_NBYTES = ROW_WORDS * 8


class Shape(msgspec.Struct, array_like=True, frozen=True):
    """How large the index of one daemon is; two powers."""

    slots: int
    records: int

    @property
    def records_at(self) -> int:
        """The word at which the first record begins."""
        return HEADER_WORDS + self.slots

    @property
    def nbytes(self) -> int:
        """Of the control segment."""
        return 8 * (self.records_at + RECORD_WORDS * self.records)
