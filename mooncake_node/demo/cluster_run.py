"""The cluster demo from start to end: a directory, two nodes, their workers, objects there and away, what is left."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from mooncake_client import Client
from mooncake_node.demo.cluster_findings import (
    AT_ONCE,
    NODES,
    ONE_BY_ONE,
    REMOVER,
    WORKERS,
    WRITER,
    ClusterFindings,
    Get,
    Loads,
    Story,
    node_of,
    nothing_left,
    prove,
)
from mooncake_node.demo.errors import DemoError
from mooncake_node.demo.nodes import wait_until_acquainted, wait_until_warm
from mooncake_node.demo.orders import Got, Order, Removed, Stored
from mooncake_node.demo.processes import Child, child, terminable
from mooncake_node.local import LocalNode, LocalNodeError
from mooncake_node.local_directory import LocalDirectory, LocalDirectoryError
from mooncake_node.settings import format_size

# Beside the largest object: its header, and the gap before a 2 MiB boundary.
_POOL_SPARE_NBYTES = 64 << 20
# Workers that are to ask at once are told so this long before.
_NOTICE_NS = 50_000_000
# A let-go view is given back by a message of its own; what is still taken then is taken as left.
_ROOM_LIMIT_S = 10.0
_PAUSE_S = 0.02

Say = Callable[[str, str], None]
T = TypeVar("T")


def run(sizes: Sequence[int], *, pool_nbytes: int | None, say: Say) -> ClusterFindings:
    """Run it for objects of these *sizes*; everything started is gone when this returns or raises.

    DemoError: the machine, what was asked or a process of the demo is at fault.
    """
    if pool_nbytes is None:
        pool_nbytes = max(sizes) + max(sizes) // 10 + _POOL_SPARE_NBYTES
    elif pool_nbytes < max(sizes):
        raise DemoError(f"{format_size(max(sizes))} cannot lie in a pool of {format_size(pool_nbytes)}")
    try:
        with terminable():
            with ExitStack() as stack:
                demo = _start(stack, pool_nbytes, say)
                stories = [story for nbytes in sizes for story in demo.tell(nbytes, say)]
            left = nothing_left(
                [pid for pid in demo.pids if Path(f"/proc/{pid}").exists()],
                [str(path) for path in demo.paths if path.exists()],
            )
    except LocalDirectoryError as error:
        raise DemoError(str(error)) from error
    except LocalNodeError as error:
        raise DemoError(f"a node did not start: {error}") from error
    say("clean", f"looked for {len(demo.pids)} processes and {len(demo.paths)} directories: {left.detail}")
    return ClusterFindings(pool_nbytes=pool_nbytes, stories=stories, proofs=[*prove(stories), left])


class _Ledger(NamedTuple):
    """Both nodes' own accounts at one moment, by node."""

    loads: dict[int, Loads]
    received_nbytes: int  # from each other
    copies: int  # of any object, readable or not, in memory
    used_nbytes: list[int]

    @classmethod
    def of(cls, clients: dict[int, Client]) -> "_Ledger":
        """Ask both."""
        facts: dict[int, dict[str, Any]] = {node: client.stats() for node, client in clients.items()}
        return cls(
            {
                node: Loads(**{name: fact["load"][name] for name in Loads.__struct_fields__})
                for node, fact in facts.items()
            },
            sum(fact["cluster"]["copies"]["bytes_copied"] for fact in facts.values()),
            sum(fact["objects"] + fact["unpublished"] + fact["stash"]["objects"] for fact in facts.values()),
            [fact["pool"]["bytes_used"] for fact in facts.values()],
        )


class _Demo:
    """Two nodes that serve, and their workers. One object at a time, so that the nodes' figures are about it."""

    def __init__(
        self, clients: dict[int, Client], workers: dict[int, Child], pids: list[int], paths: list[Path]
    ) -> None:
        self._clients = clients
        self._workers = workers
        self.pids = pids  # of all processes
        self.paths = paths  # of all they write to

    def tell(self, nbytes: int, say: Say) -> list[Story]:
        """Two objects: one is read by one worker after the other, one by all of node 2 at once."""
        stories = [
            self._story(nbytes, [(who,) for who in ONE_BY_ONE]),
            self._story(nbytes, [AT_ONCE]),
        ]
        puts = " and ".join(f"{story.stored.took_ns / 1e6:.1f}" for story in stories)
        removes = " and ".join(f"{story.removed.took_ns / 1e6:.1f}" for story in stories)
        gets = sum(len(get.who) for story in stories for get in story.gets)
        say(
            format_size(nbytes),
            f"{WRITER} put two objects in {puts} ms; {gets} gets; {REMOVER} removed them in {removes} ms",
        )
        return stories

    def _story(self, nbytes: int, askers: Sequence[tuple[int, ...]]) -> Story:
        key = f"demo/{nbytes}/{time.monotonic_ns()}"
        stored = self._ask(WRITER, Order("put", key, nbytes), Stored)
        gets = [self._get(who, key) for who in askers]
        removed = self._ask(REMOVER, Order("remove", key), Removed)
        finders = [who for who in WORKERS if self._ask(who, Order("get", key), Got).found]
        for who in WORKERS:
            self._ask(who, Order("let_go", key), str)
        return Story(nbytes, stored, gets, removed, finders, self._wait_for_room())

    def _get(self, who: tuple[int, ...], key: str) -> Get:
        before = _Ledger.of(self._clients)
        order = Order("get", key, at_ns=time.monotonic_ns() + _NOTICE_NS if len(who) > 1 else 0)
        for each in who:
            self._workers[each].tell(order)
        answers = [self._workers[each].hear(Got) for each in who]
        after = _Ledger.of(self._clients)
        node = node_of(who[0])
        return Get(
            who=who,
            answers=answers,
            loads=after.loads[node].since(before.loads[node]),
            crossed_nbytes=after.received_nbytes - before.received_nbytes,
            copies=after.copies,
        )

    def _ask(self, who: int, order: Order, kind: type[T]) -> T:
        self._workers[who].tell(order)
        return self._workers[who].hear(kind)

    def _wait_for_room(self) -> list[int]:
        """What is taken of each pool: nothing, or what nobody has given back after a good while."""
        until_s = time.monotonic() + _ROOM_LIMIT_S
        while any(used := _Ledger.of(self._clients).used_nbytes) and time.monotonic() < until_s:
            time.sleep(_PAUSE_S)
        return used


def _start(stack: ExitStack, pool_nbytes: int, say: Say) -> _Demo:
    """Everything, in *stack*."""
    directory = stack.enter_context(LocalDirectory())
    directory_path = Path(f"/proc/{directory.pid}/cwd").readlink()
    say("valkey", f"pid {directory.pid} serves the nodes' directory, {directory.url}")

    begun_s = time.monotonic()
    nodes: dict[int, LocalNode] = {}
    for number in NODES:
        # The environment may say things for the user's own node that are not meant for these.
        nodes[number] = node = LocalNode(
            pool_nbytes,
            *("--name", _name(number), "--directory", directory.url, "--listen", "127.0.0.1:0"),
            *("--log-level", "warning", "--set", "start_wait=0", "--set", "prefault=true"),
        )
        stack.callback(node.close)
    for node in nodes.values():
        node.wait_until_it_serves()
    clients = {number: stack.enter_context(Client(node.socket, name="demo")) for number, node in nodes.items()}
    for client in clients.values():
        wait_until_warm(client)
    wait_until_acquainted(list(clients.values()), list(map(_name, NODES)))
    named = " and ".join(f"{_name(number)} (pid {node.pid})" for number, node in nodes.items())
    took_s = time.monotonic() - begun_s
    say(
        "nodes",
        f"{named}, a pool of {format_size(pool_nbytes)} each, are ready and know of each other after {took_s:.1f} s",
    )

    workers: dict[int, Child] = {}
    for who in WORKERS:
        node = nodes[node_of(who)]
        workers[who] = stack.enter_context(child("worker", node.directory, str(node.socket), str(who)))
    for worker in workers.values():
        worker.hear(str)
    say("workers", "; ".join(f"{_workers_of(number)} attached to {_name(number)}" for number in NODES))
    pids = [directory.pid, *(node.pid for node in nodes.values()), *(worker.pid for worker in workers.values())]
    return _Demo(clients, workers, pids, [directory_path, *(node.directory for node in nodes.values())])


def _name(number: int) -> str:
    return f"node-{number}"


def _workers_of(number: int) -> str:
    return ", ".join(str(who) for who in WORKERS if node_of(who) == number)
