"""Directories to test: what each kind is made with, and facts to put into them."""

import asyncio
import os
import time

import msgspec
from redis.asyncio import Redis

from mooncake_node.directory import (
    Creation,
    Directory,
    Entry,
    Holding,
    MemoryCluster,
    MemoryDirectory,
    open_directory,
)
from tests.support.valkey import ValkeyServer
from tests.support.waiting import HANG_LIMIT_S

HIGH = (1 << 63) + 5  # a generation that no signed or floating number holds
TOP = (1 << 64) - 1


class MemoryKit:
    """Directories over one cluster in memory, whose time is the test's."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.cluster = MemoryCluster(lambda: self.now_ns, liveness_ttl_s=1000.0, tombstone_s=1000.0)

    def shorten(self, *, liveness_ttl_s: float = 1000.0, tombstone_s: float = 1000.0) -> None:
        """Directories opened from now on have these times."""
        self.cluster.ttl_ns, self.cluster.tombstone_ns = int(liveness_ttl_s * 1e9), int(tombstone_s * 1e9)

    def open(self) -> MemoryDirectory:
        """Another node's directory."""
        return MemoryDirectory(self.cluster)

    async def close(self) -> None:
        """Close every directory."""

    async def know_names(self, count: int) -> None:
        """As many nodes "n0" and so on have lived, and have their slots."""
        self.cluster.slots.update({f"n{n}": n for n in range(count)})

    def step(self) -> None:
        """Time passes."""
        self.now_ns += 10_000_000


class ValkeyKit:
    """Directories of one namespace on a server, whose time is the world's."""

    def __init__(self, server: ValkeyServer) -> None:
        self.server = server
        self.namespace = os.urandom(8).hex()
        self.opened: list[Directory] = []
        self.shorten()

    def shorten(self, *, liveness_ttl_s: float = 1000.0, tombstone_s: float = 1000.0) -> None:
        """Directories opened from now on have these times."""
        self.times = {"liveness_ttl_s": liveness_ttl_s, "tombstone_s": tombstone_s}

    def open(self) -> Directory:
        """Another node's directory. Its time limit is a hang limit."""
        self.opened.append(open_directory(self.server.url, namespace=self.namespace, timeout_s=30.0, **self.times))
        return self.opened[-1]

    async def close(self) -> None:
        """Close every directory."""
        for directory in self.opened:
            await directory.close()

    async def know_names(self, count: int) -> None:
        """As many nodes "n0" and so on have lived, and have their slots."""
        async with Redis(port=self.server.port) as raw:
            await raw.hset(f"d:{self.namespace}:slots", mapping={f"n{n}": n for n in range(count)})

    def step(self) -> None:
        """It passes by itself."""


def holding(node: str, generation: int, **facts) -> Holding:
    facts = {"incarnation": 1, "nbytes": 10, "kind": 0, "epoch": 0, "is_owner": False, **facts}
    return Holding(node=node, generation=generation, **facts)


def owned(node: str, generation: int, **facts) -> Holding:
    return holding(node, generation, is_owner=True, **facts)


def demoted(of: Holding) -> Holding:
    return msgspec.structs.replace(of, is_owner=False)


def promoted(of: Holding) -> Holding:
    return msgspec.structs.replace(of, is_owner=True)


async def create(directory, item: Holding, key: str = "k", **facts):
    [answer] = await directory.create([Creation(key=key, holding=item, **facts)])
    return answer


async def look(directory, key: str = "k") -> Entry:
    [entry] = await directory.lookup([key])
    return entry


async def publish(directory, *items: Holding) -> list[bool]:
    return await directory.publish([("k", item) for item in items])


async def eventually_async(probe, what: str, *, step=None, hang_limit_s: float = HANG_LIMIT_S):
    """The first true value that *probe* gives when awaited; *step* lets time pass in between."""
    deadline = time.monotonic() + hang_limit_s
    while True:
        value = await probe()
        if value:
            return value
        assert time.monotonic() < deadline, f"still waiting after {hang_limit_s:g} s: {what}"
        if step is not None:
            step()
        await asyncio.sleep(0.01)
