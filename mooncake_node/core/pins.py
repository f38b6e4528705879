"""Contracts of objects: checked when a put asks for one, counted while the object is readable, ended in time.

What a pin does to reclaim is not decided here.
"""

import heapq

from mooncake_client.codes import Code
from mooncake_node.core.config import MasterConfig
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.replica import PLAIN, Contract, Replica
from mooncake_node.core.waiting import Put

_STALE_MAX = 64


def contract_for(*, softpin: bool, softpin_ttl_ns: int | None, hardpin: bool, scope: str) -> Contract:
    """The contract a put asks for; a soft pin of 0 s is none. Plain ones are one shared object."""
    softpin = softpin and softpin_ttl_ns != 0
    if not softpin and not hardpin and scope == PLAIN.scope:
        return PLAIN
    ttl_ns = softpin_ttl_ns if softpin else None
    return Contract(softpin=softpin, softpin_ttl_ns=ttl_ns, hardpin=hardpin, scope=scope)


class Pins:
    """Bytes of pinned objects, and the limits on pinning."""

    def __init__(self, config: MasterConfig) -> None:
        self._config = config
        # Objects readable by key whose contract has softpin, in memory or on disk.
        self.soft_nbytes = 0
        # Objects readable by key, and reservations, whose contract has hardpin: counted early so that puts under way
        # cannot together pass the cap.
        self.hard_nbytes = 0
        # All and only those of `soft_nbytes` that have a deadline, by replica_id; and when to look at them. Entries of
        # pins that were changed or ended meanwhile are passed over.
        self._timed: dict[int, Replica] = {}
        self._heap: list[tuple[int, int]] = []

    def check(self, put: Put) -> None:
        """Refuse a contract this node does not offer."""
        contract = put.contract
        self._check_ttl(contract.softpin_ttl_ns)
        if contract.hardpin and self._config.hard_pin_nbytes_max == 0:
            raise Refusal(
                Code.INVALID_ARGUMENT,
                "hard pins are off on this node (hard_pin_max_bytes is 0)",
            )

    def check_cap(self, put: Put) -> None:
        """Refuse a hard pin that would pass the cap, immediately before its room is reserved."""
        cap = self._config.hard_pin_nbytes_max
        if put.contract.hardpin and self.hard_nbytes + put.nbytes > cap:
            raise Refusal(
                Code.NO_SPACE,
                f"hard pins hold {self.hard_nbytes} of {cap} bytes; {put.nbytes} more do not fit",
            )

    def reserve(self, replica: Replica) -> None:
        """A put with that contract has begun."""
        if replica.contract.hardpin:
            self.hard_nbytes += replica.nbytes

    def start(self, replica: Replica, now_ns: int) -> None:
        """The object became readable: its pin runs from here."""
        contract = replica.contract
        if contract.softpin:
            self.soft_nbytes += replica.nbytes
            ttl_ns = contract.softpin_ttl_ns
            if ttl_ns is None:
                ttl_ns = self._config.softpin_ttl_default_ns
            if ttl_ns is not None:
                self._set_deadline(replica, now_ns + ttl_ns)

    def adopt(self, replica: Replica) -> None:
        """The object was found on disk with the pin it has."""
        if replica.contract.softpin:
            self.soft_nbytes += replica.nbytes
            if replica.softpin_until_ns is not None:
                self._set_deadline(replica, replica.softpin_until_ns)

    def hand_over(self, on_disk: Replica, replica: Replica) -> None:
        """*replica* is the same object, in memory again, under the contract it has had."""
        replica.contract = on_disk.contract
        if self._timed.pop(on_disk.replica_id, None) is not None:
            assert on_disk.softpin_until_ns is not None
            self._set_deadline(replica, on_disk.softpin_until_ns)

    def stop(self, replica: Replica) -> None:
        """The object is no longer readable by key, or its put was given up."""
        contract = replica.contract
        if contract.softpin and not replica.writer:
            self.soft_nbytes -= replica.nbytes
            self._timed.pop(replica.replica_id, None)
        if contract.hardpin:
            self.hard_nbytes -= replica.nbytes

    def pin(self, replica: Replica, ttl_ns: int | None, now_ns: int) -> None:
        """Give a readable object a soft pin from now on; replaces the one it has."""
        self._check_ttl(ttl_ns)
        self.unpin(replica)
        if ttl_ns != 0:
            self._change(replica, softpin=True, ttl_ns=ttl_ns)
            self.start(replica, now_ns)

    def unpin(self, replica: Replica) -> None:
        """End a soft pin; the object becomes ordinary cache."""
        if replica.contract.softpin:
            self.soft_nbytes -= replica.nbytes
            self._timed.pop(replica.replica_id, None)
            self._change(replica, softpin=False, ttl_ns=None)
            replica.softpin_until_ns = None

    def expire(self, now_ns: int) -> list[Replica]:
        """End the soft pins whose deadline has come; whose they were: ordinary cache from here on."""
        ended: list[Replica] = []
        while self._heap and self._heap[0][0] <= now_ns:
            until_ns, replica_id = heapq.heappop(self._heap)
            replica = self._timed.get(replica_id)
            if replica is not None and replica.softpin_until_ns == until_ns:
                self.unpin(replica)
                ended.append(replica)
        return ended

    def next_deadline_ns(self) -> int | None:
        """When `expire` may have something to do."""
        return self._heap[0][0] if self._heap else None

    def _set_deadline(self, replica: Replica, until_ns: int) -> None:
        replica.softpin_until_ns = until_ns
        self._timed[replica.replica_id] = replica
        heapq.heappush(self._heap, (until_ns, replica.replica_id))
        # Pins that were ended early leave their entries behind; swept out before they are the greater part.
        if len(self._heap) > 2 * len(self._timed) + _STALE_MAX:
            self._heap = [
                (timed.softpin_until_ns, number)
                for number, timed in self._timed.items()
                if timed.softpin_until_ns is not None
            ]
            heapq.heapify(self._heap)

    def _check_ttl(self, ttl_ns: int | None) -> None:
        ttl_max_ns = self._config.softpin_ttl_max_ns
        if ttl_ns is not None and not 0 <= ttl_ns <= ttl_max_ns:
            raise Refusal(
                Code.INVALID_ARGUMENT,
                f"a soft pin lasts 0 to {ttl_max_ns / 1e9:g} s on this node, not {ttl_ns / 1e9:g}",
            )

    @staticmethod
    def _change(replica: Replica, *, softpin: bool, ttl_ns: int | None) -> None:
        old = replica.contract
        replica.contract = Contract(softpin=softpin, softpin_ttl_ns=ttl_ns, hardpin=old.hardpin, scope=old.scope)
