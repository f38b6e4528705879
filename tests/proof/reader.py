"""A client process of the stress test: gets by the real `SharedIndex`, and looks whether the bytes are the object's.

Of each object it keeps an array alone, as users do; some for a while, and looks at them again before it lets go.
"""

import mmap
import os
import random
import sys
import threading
import time
from collections import deque

import numpy as np

from mooncake_client import membarrier
from mooncake_client.index_layout import ID_SHIFT, Shape
from mooncake_client.mapping import Mapping
from mooncake_client.shared_index import Entry, SharedIndex
from tests.proof.board import (
    BOARD_NBYTES,
    DONE,
    DROP,
    END,
    FALSE,
    KEYS,
    PHASE,
    POOL_NBYTES,
    READ,
    READER_WORDS,
    READERS_AT,
    READS,
    THREADS,
    WRONG,
    Place,
    content,
    name,
)

HELD_MAX = 8


class CarelessIndex(SharedIndex):
    """Does not mind what it sees when it looks again after it has pinned."""

    whole: memoryview  # of the pool

    def _pin(self, entry: Entry) -> memoryview | None:
        return super()._pin(entry) or self.whole[entry.offset : entry.end]


def read(index: SharedIndex, board: memoryview, at: int, seed: int) -> None:
    """Get objects until the phase ends. Counts are threads' own, or may miss one: only 0 has to be exact."""
    chance = random.Random(seed)
    held: deque[tuple[np.ndarray, int]] = deque()
    while board[PHASE] == READ:
        key = chance.randrange(KEYS)
        # Every key is readable all the time, if not by way of the index.
        if index.contains(name(key)) is False:
            board[at + FALSE] += 1
        found = index.view(name(key))
        if found is not None:
            view, entry = found
            array, word = np.frombuffer(view, np.uint64), content(entry.id >> ID_SHIFT, key)
            del view, found
            look(board, at, array, word)
            held.append((array, word))
        if len(held) > chance.randrange(HELD_MAX):
            look(board, at, *held.popleft())


def look(board: memoryview, at: int, array: np.ndarray, word: int) -> None:
    if (array == word).all():
        board[at + READS] += 1
    else:
        board[at + WRONG] += 1


def main(place: Place, control_fd: int, accessed_fd: int, row_fd: int, pool_fd: int, board_fd: int, tell_fd: int):
    assert membarrier.register()
    sys.setswitchinterval(1e-4)
    board = memoryview(mmap.mmap(board_fd, BOARD_NBYTES)).cast("Q")
    at = READERS_AT + place.reader * READER_WORDS
    index_type = CarelessIndex if place.is_careless else SharedIndex
    index = index_type(
        Shape(place.slots, place.records),
        [control_fd, accessed_fd, row_fd],
        Mapping(pool_fd, POOL_NBYTES, writable=False),
        lambda: os.eventfd_write(tell_fd, 1),
    )
    if isinstance(index, CarelessIndex):
        index.whole = memoryview(mmap.mmap(pool_fd, POOL_NBYTES, prot=mmap.PROT_READ))
    threads = [
        threading.Thread(target=read, args=(index, board, at, place.reader * THREADS + number))
        for number in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert board[PHASE] >= DROP
    assert not index.row.in_use
    board[at + DONE] = 1
    while board[PHASE] != END:
        time.sleep(0.001)


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    main(Place(*numbers[: len(Place._fields)]), *numbers[len(Place._fields) :])
