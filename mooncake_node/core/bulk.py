"""Many puts in one step, where nothing stands in the way of any of them: what each would ask for is asked for once.

Either objects whose bytes are here already (`place`, `publish`), or room for their client to fill (`begin`, `end`).
"""

from collections.abc import Sequence

from mooncake_node.core.admission import Admission
from mooncake_node.core.config import MasterConfig
from mooncake_node.core.objects import Objects
from mooncake_node.core.replica import PLAIN, Replica, ReplicaState
from mooncake_node.core.sessions import Session
from mooncake_node.core.waiting import Put, PutMode


class Bulk:
    """Objects of one size under no contract; any others go one by one."""

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

    def begin(self, session: Session, puts: Sequence[Put], now_ns: int) -> list[Replica] | None:
        """As `place`, but for the client to fill: each is a reservation of *session* from here on."""
        if len(session.reservations) + len(puts) > self._config.reservations_max:
            return None
        replicas = self.place(puts, now_ns)
        for replica in replicas or ():
            replica.writer = session.session_id
            self._objects.table.add_writing(replica)
            session.reservations[replica.replica_id] = replica
        return replicas

    def end(self, session: Session, replica_ids: Sequence[int], now_ns: int) -> list[Replica] | None:
        """Publish what `begin` gave; None: each is to be published by itself."""
        reservations, table = session.reservations, self._objects.table
        by_key, loads, lost = self._admission.waiting.by_key, self._admission.loads.by_key, self._admission.lost
        writing = ReplicaState.WRITING
        replicas = [reservations[id_] for id_ in dict.fromkeys(replica_ids) if id_ in reservations]
        if len(replicas) < len(replica_ids):
            return None
        nbytes = replicas[0].nbytes
        for replica in replicas:
            key = replica.key
            if replica.nbytes != nbytes or replica.contract is not PLAIN or replica.state is not writing:
                return None
            # Something is replaced, or somebody is to be told.
            if key in table.current or key in by_key or key in loads or key in lost:
                return None
        for replica in replicas:
            del reservations[replica.replica_id]
        table.publish_written(replicas, now_ns)
        self.publish(replicas, now_ns)
        return replicas
