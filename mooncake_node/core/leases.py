"""Leases: promises to remote readers that a replica of this node stays readable for a while.

`Replica.leased_until_ns` alone says whether reclaim and the freeing of a stash must wait. The tokens are kept so that
the last early release can end a lease now. All leases of a node last equally long, so of one replica the youngest
token is the last to expire.
"""

import heapq
from collections import OrderedDict

import msgspec

from mooncake_node.core.replica import Replica


class _Granted(msgspec.Struct, eq=False):
    """The leases on one replica."""

    replica: Replica
    expiry_of: "OrderedDict[int, int]"  # token -> expiry (ns), in the order of both


class Leases:
    """Grants, releases and expires them; O(1) each, amortised."""

    def __init__(self, ttl_ns: int) -> None:
        assert ttl_ns > 0
        self.ttl_ns = ttl_ns
        # Tokens neither released nor seen to have expired.
        self.count = 0
        # Replicas leased within the last ttl, by replica_id.
        self._granted: dict[int, _Granted] = {}
        # When to look at a replica again. One entry for each of the above, and of freed ones; it may come too early.
        self._heap: list[tuple[int, int]] = []
        self._last_token = 0

    def grant(self, replica: Replica, now_ns: int) -> int:
        """One more lease on *replica*; the token that releases it."""
        self._last_token += 1
        expiry_ns = now_ns + self.ttl_ns
        granted = self._granted.get(replica.replica_id)
        if granted is None:
            granted = self._granted[replica.replica_id] = _Granted(replica, OrderedDict())
            heapq.heappush(self._heap, (expiry_ns, replica.replica_id))
        self._drop_expired(granted, now_ns)
        granted.expiry_of[self._last_token] = replica.leased_until_ns = expiry_ns
        self.count += 1
        return self._last_token

    def find(self, replica_id: int) -> Replica | None:
        """The replica of that id, if it was leased within the last ttl and is not freed."""
        granted = self._granted.get(replica_id)
        return None if granted is None else granted.replica

    def is_running(self, replica: Replica, token: int, now_ns: int) -> bool:
        """Whether that lease on *replica* runs."""
        granted = self._granted.get(replica.replica_id)
        return granted is not None and granted.expiry_of.get(token, 0) > now_ns

    def release(self, replica: Replica, token: int, now_ns: int) -> bool:
        """End one lease early; True if no other runs. A repeated, stale or foreign token changes nothing: False."""
        granted = self._granted.get(replica.replica_id)
        if granted is None or granted.expiry_of.get(token, 0) <= now_ns:
            return False
        del granted.expiry_of[token]
        self.count -= 1
        self._drop_expired(granted, now_ns)
        if granted.expiry_of:
            replica.leased_until_ns = next(reversed(granted.expiry_of.values()))
            return False
        replica.leased_until_ns = now_ns
        return True

    def expire(self, now_ns: int) -> list[Replica]:
        """The replicas whose last lease has run out since the call before."""
        ended: list[Replica] = []
        while self._heap and self._heap[0][0] <= now_ns:
            _, replica_id = heapq.heappop(self._heap)
            granted = self._granted.get(replica_id)
            if granted is None:
                continue
            seen = bool(granted.expiry_of)
            self._drop_expired(granted, now_ns)
            if granted.expiry_of:
                # At the oldest, not the youngest: that may be released before the others run out.
                heapq.heappush(self._heap, (next(iter(granted.expiry_of.values())), replica_id))
                continue
            del self._granted[replica_id]
            if seen:
                ended.append(granted.replica)
        return ended

    def forget(self, replica: Replica) -> None:
        """Its memory is freed; no lease on it runs any more."""
        granted = self._granted.pop(replica.replica_id, None)
        if granted is not None:
            self.count -= len(granted.expiry_of)

    def runs_on(self, replica: Replica) -> bool:
        """Whether a lease on *replica* has neither been released nor been seen to expire."""
        granted = self._granted.get(replica.replica_id)
        return granted is not None and len(granted.expiry_of) > 0

    def check(self, replicas: list[Replica]) -> None:
        """Assert that all is counted right, and that only *replicas* are leased."""
        there = {replica.replica_id: replica for replica in replicas}
        looked_at = {replica_id for _, replica_id in self._heap}
        for replica_id, granted in self._granted.items():
            assert there[replica_id] is granted.replica
            assert replica_id in looked_at, "a lease that never expires"
            expiries = list(granted.expiry_of.values())
            assert expiries == sorted(expiries)
            assert not expiries or granted.replica.leased_until_ns == expiries[-1]
        assert self.count == sum(len(granted.expiry_of) for granted in self._granted.values())

    def next_expiry_ns(self) -> int | None:
        """When `expire` may have something to do."""
        return self._heap[0][0] if self._heap else None

    def _drop_expired(self, granted: _Granted, now_ns: int) -> None:
        expiry_of = granted.expiry_of
        while expiry_of and next(iter(expiry_of.values())) <= now_ns:
            expiry_of.popitem(last=False)
            self.count -= 1
