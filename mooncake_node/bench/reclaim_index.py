"""What reclaim costs when readers pin by way of the index, beside a core whose readers all ask."""

import os
import statistics
import time
from itertools import count

from mooncake_node.bench.measure import Result, judge
from mooncake_node.core.config import MasterConfig
from mooncake_node.core.generations import GenerationClock
from mooncake_node.core.master import Master
from mooncake_node.core.readers import Readers
from mooncake_node.core.replica import PLAIN, Rank
from mooncake_node.core.waiting import Put
from mooncake_node.readers import SharedReaders

_PAGE = 4096
_OBJECTS = 8192
_BATCH = 64


class _Full:
    """A master full of objects that nobody reads."""

    def __init__(self, readers: Readers | None) -> None:
        self._master = Master(
            MasterConfig(pool_nbytes=_OBJECTS * _PAGE), GenerationClock(time.time_ns()), None, readers
        )
        self._session = self._master.open_session("bench", os.getpid())
        self._numbers = count()
        self.refill()

    def refill(self) -> None:
        """Put as long as there is room."""
        master = self._master
        while master.space.bytes_free >= _PAGE:
            put = Put(key=f"reclaim/{next(self._numbers)}", nbytes=_PAGE, contract=PLAIN)
            replica = master.place(self._session, put, 0)
            assert replica is not None
            master.publish_placed(replica, 0)

    def drop(self) -> float:
        """Drop half of them, a batch a pass; microseconds an object."""
        master, objects = self._master, 0
        begin = time.perf_counter_ns()
        while objects < _OBJECTS // 2:
            victims = master.objects.lists.isolate(_BATCH * _PAGE, (Rank.PLAIN,))
            master.eviction.evict(victims, 0)
            objects += len(victims)
        return (time.perf_counter_ns() - begin) / 1000 / objects


def measure(*, quick: bool) -> Result:
    """Dropping in batches of 64, by turns, with one client that has a row of pins and with none."""
    readers = SharedReaders(_OBJECTS * _PAGE)
    if not readers.works:
        readers.close()
        return judge("reclaim with the index on, against without", 0, "", "", "this machine has no index")
    os.close(readers.open_row(1)[-1])
    try:
        indexed, bare = _Full(readers), _Full(None)
        with_index, without = [], []
        for _ in range(8 if quick else 40):
            with_index.append(indexed.drop())
            without.append(bare.drop())
            indexed.refill()
            bare.refill()
    finally:
        readers.close()
    value = statistics.median(a / b for a, b in zip(with_index, without, strict=True))
    ours_us, bare_us = statistics.median(with_index), statistics.median(without)
    detail = f"{ours_us:.2f} µs an object in batches of {_BATCH}, {bare_us:.2f} without"
    return judge("reclaim with the index on, against without", value, "x", "<= 1.3", detail)
