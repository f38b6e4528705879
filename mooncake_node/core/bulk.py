"""Many puts in one step, where nothing stands in the way of any of them: what each would ask for is asked for once."""

from collections.abc import Sequence

from mooncake_node.core.admission import Admission
from mooncake_node.core.config import MasterConfig
from mooncake_node.core.objects import Objects
from mooncake_node.core.replica import PLAIN, Replica
from mooncake_node.core.waiting import Put, PutMode


class Bulk:
    """Objects of one size under no contract, whose bytes are here already; any others go one by one."""

    def __init__(self, config: MasterConfig, objects: Objects, admission: Admission) -> None:
        self._config = config
        self._objects = objects
        self._admission = admission

    def has_room(self, puts: Sequence[Put]) -> bool:
        """Whether it is worth to look at them one by one: a full pool, where all reclaim, is the usual case."""
        space, waiting = self._objects.space, self._admission.waiting
        left_nbytes = space.bytes_free - len(puts) * max(puts[0].nbytes, 1)
        return not waiting.for_room and not self._objects.index.sweep_due and left_nbytes > self._config.free_low_nbytes

    def place(self, puts: Sequence[Put], now_ns: int) -> list[Replica] | None:
        """Room for all of *puts*, which are allowed as such and `has_room`; None: some would wait or be refused."""
        nbytes = puts[0].nbytes
        space, by_key = self._objects.space, self._admission.waiting.by_key
        current, writing = self._objects.table.current, self._objects.table.writing
        put_mode, lost = PutMode.PUT, self._admission.lost
        keys: set[str] = set()
        for put in puts:
            key = put.key
            if put.nbytes != nbytes or put.contract is not PLAIN or put.mode is not put_mode:
                return None
            if key in current or key in writing or key in by_key or key in lost:
                return None
            keys.add(key)
        if len(keys) < len(puts):
            return None
        offsets = space.reserve_many(len(puts), nbytes)
        return None if offsets is None else self._objects.place_many(puts, offsets, now_ns)

    def publish(self, replicas: Sequence[Replica], now_ns: int) -> None:
        """What `place` gave is readable from here on, in the same step."""
        self._objects.publish_many(replicas)
        self._admission.retry(now_ns)
