"""The daemon's side of the stress test: the real `IndexPins` over `SharedReaders`, and what the core does with them."""

import mmap
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np

from mooncake_node.core.index_pins import IndexPins
from mooncake_node.core.replica import Replica, ReplicaState
from mooncake_node.readers import SharedReaders
from mooncake_node.readers.index import open_memory
from tests.proof.board import (
    BOARD_NBYTES,
    DONE,
    DROP,
    END,
    FALSE,
    KEYS,
    PAGE,
    PHASE,
    PLACES,
    POOL_NBYTES,
    READER_WORDS,
    READERS_AT,
    READERS_MAX,
    READS,
    WRONG,
    Place,
    content,
    name,
)

ROOT = Path(__file__).parents[2]
VICTIMS_MAX = 8
# What is free holds no object's bytes.
_POISON = (1 << 64) - 1


class Daemon:
    """Keeps KEYS objects readable all the time, each at another place and with other bytes every moment."""

    def __init__(self, readers: SharedReaders, *, is_careless: bool = False) -> None:
        """*is_careless*: its readers do not look again after they have pinned."""
        assert readers.works
        self.readers = readers
        self.pins = IndexPins(readers)
        self.evicted = self.kept = self.replaced = self.pins_of_killed = 0
        self._is_careless = is_careless
        self._chance = random.Random(1)
        self._tell_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._board_fd = open_memory("test-board", BOARD_NBYTES)
        self._board = memoryview(mmap.mmap(self._board_fd, BOARD_NBYTES)).cast("Q")
        self._pool_fd = open_memory("test-pool", POOL_NBYTES)
        self._pool = np.frombuffer(mmap.mmap(self._pool_fd, POOL_NBYTES), np.uint64).reshape(PLACES, PAGE // 8)
        self._places = list(range(PLACES))
        self._last_replica_id = 0
        # Readers that run, by number; there is a session of each.
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._last_reader = -1
        self._current: dict[int, Replica] = {}
        for key in range(KEYS):
            self._put(key)

    # -- what a daemon does ------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Evict or replace some, and do what was asked for."""
        if self.was_told():
            self.sweep()
        keys = self._chance.sample(range(KEYS), self._chance.randint(1, VICTIMS_MAX))
        if self._chance.random() < 0.7:
            self._evict(keys)
        else:
            for key in keys:
                self._replace(key)
        if self.pins.sweep_due:
            self.sweep()

    def was_told(self) -> bool:
        """Whether a reader has said that it let go of something."""
        try:
            return os.eventfd_read(self._tell_fd) > 0
        except BlockingIOError:
            return False

    def sweep(self) -> None:
        """As `Objects.sweep`."""
        for replica in self.pins.sweep():
            if replica.state is ReplicaState.STASHED:
                self.readers.unlist([replica])
                self._free(replica)
            else:
                self.readers.want(replica, wanted=False)

    def _evict(self, keys: list[int]) -> None:
        """As if they went to disk and were loaded again at once: readable all the while."""
        victims = [self._current[key] for key in keys if not self._current[key].pinned]
        out = self.pins.take_out(victims)
        self.evicted += len(out)
        self.kept += len(victims) - len(out)
        for replica in out:
            self._free(replica)
        for replica in self._chance.sample(out, len(out)):
            self._put(key_of(replica))
            self.pins.count_unlisted(-1)

    def _replace(self, key: int) -> None:
        """As `Objects.publish` of an upsert."""
        if not self._places:
            return
        replaced = self._current[key]
        self.pins.count_unlisted(1)
        self.pins.withdraw(replaced)
        if replaced.pinned:
            replaced.state = ReplicaState.STASHED
        else:
            self._free(replaced)
        self._put(key)
        self.pins.count_unlisted(-1)
        self.replaced += 1

    def _put(self, key: int) -> None:
        self._last_replica_id += 1
        # The place that was free last: memory is used again at once.
        place = self._places.pop()
        self._pool[place] = content(self._last_replica_id, key)
        replica = Replica(self._last_replica_id, name(key), 1, place * PAGE, PAGE, 0, 0, state=ReplicaState.COMPLETE)
        self._current[key] = replica
        self.pins.publish(replica)

    def _free(self, replica: Replica) -> None:
        place = replica.offset // PAGE
        self._pool[place] = _POISON
        self._places.append(place)

    # -- readers -----------------------------------------------------------------------------------------------------

    def start_reader(self) -> None:
        """One more process."""
        self._last_reader += 1
        assert self._last_reader < READERS_MAX
        shape = self.readers.shape
        place = Place(self._last_reader, shape.slots, shape.records, self._is_careless)
        fds = [*self.readers.open_row(self._last_reader), self._pool_fd, self._board_fd, self._tell_fd]
        self.processes[self._last_reader] = subprocess.Popen(
            [sys.executable, "-m", "tests.proof.reader", *(str(int(word)) for word in (*place, *fds))],
            cwd=ROOT,
            pass_fds=fds,
        )
        os.close(fds[2])

    def kill_reader(self, number: int) -> None:
        """SIGKILL, and what follows when its end is heard of."""
        process = self.processes.pop(number)
        process.kill()
        process.wait()
        self.pins_of_killed += sum(self.readers.holders(replica).get(number, 0) for replica in self._all())
        assert self.readers.close_row(number)
        self.sweep()

    def reads(self, number: int) -> int:
        """How many looks of that reader were good so far."""
        return self._count(number, READS)

    @property
    def total(self) -> int:
        """How many looks were good."""
        return self._sum(READS)

    @property
    def wrong(self) -> int:
        """How many looks have found bytes of something else."""
        return self._sum(WRONG)

    @property
    def false(self) -> int:
        """How often a key was said not to be there."""
        return self._sum(FALSE)

    def end_readers(self) -> None:
        """Have all let go, and let them end."""
        self._board[PHASE] = DROP
        for number, process in self.processes.items():
            while not self._count(number, DONE):
                assert process.poll() is None
                self.step()
        if self.was_told():
            self.sweep()

    def everything_can_go(self) -> bool:
        """Whether nothing is pinned any more."""
        objects = list(self._current.values())
        return not self.pins.kept and len(self.pins.take_out(objects)) == len(objects)

    def close(self) -> None:
        self._board[PHASE] = END
        codes = [process.wait(60) for process in self.processes.values()]
        self.readers.close()
        for fd in (self._tell_fd, self._board_fd, self._pool_fd):
            os.close(fd)
        assert not any(codes)

    def _all(self) -> list[Replica]:
        return [*self._current.values(), *(r for r in self.pins.kept.values() if r.state is ReplicaState.STASHED)]

    def _count(self, number: int, word: int) -> int:
        return self._board[READERS_AT + number * READER_WORDS + word]

    def _sum(self, word: int) -> int:
        return sum(self._count(number, word) for number in range(self._last_reader + 1))


def key_of(replica: Replica) -> int:
    return int(replica.key.split()[1])
