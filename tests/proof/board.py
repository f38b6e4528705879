"""What the processes of the stress test share beside the pool, and what every object's bytes are."""

from typing import NamedTuple

PAGE = 4096
KEYS = 64
# More than there are keys: what is replaced and still read needs room of its own.
PLACES = 192
POOL_NBYTES = PLACES * PAGE
THREADS = 2

# Words of the board.
BOARD_NBYTES = 64 << 10
PHASE = 0
READ, DROP, END = range(3)  # go on; let go of everything, and say so; leave
READERS_AT = 8
READER_WORDS = 4  # of each reader, and in them:
READS, WRONG, FALSE, DONE = range(READER_WORDS)
READERS_MAX = BOARD_NBYTES // 8 // READER_WORDS - READERS_AT


class Place(NamedTuple):
    """What a reader process is started with, besides its descriptors."""

    reader: int
    slots: int
    records: int
    is_careless: bool


def name(key: int) -> str:
    return f"key {key}"


def content(replica_id: int, key: int) -> int:
    """The word that all of an object is made of."""
    return replica_id << 8 | key
