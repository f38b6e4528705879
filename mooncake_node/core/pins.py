"""Contracts of objects: checked when a put asks for them, counted while the object is readable.

What a pin does to reclaim is not decided here.
"""

from mooncake_client.codes import Code
from mooncake_node.core.config import MasterConfig
from mooncake_node.core.refusal import Refusal
from mooncake_node.core.replica import PLAIN, Contract, Replica
from mooncake_node.core.waiting import Put


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
        # Objects readable by key whose contract has softpin.
        self.soft_nbytes = 0
        # Objects readable by key, and reservations, whose contract has hardpin: counted early so that puts under way
        # cannot together pass the cap.
        self.hard_nbytes = 0

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
            replica.softpin_until_ns = None if ttl_ns is None else now_ns + ttl_ns

    def stop(self, replica: Replica) -> None:
        """The object is no longer readable by key, or its put was given up."""
        contract = replica.contract
        if contract.softpin and not replica.writer:
            self.soft_nbytes -= replica.nbytes
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
            self._change(replica, softpin=False, ttl_ns=None)
            replica.softpin_until_ns = None

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
