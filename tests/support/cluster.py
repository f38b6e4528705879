"""Several daemons with one directory, their clients, and whether directory and nodes agree."""

import asyncio
import contextlib
import inspect
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import redis

from mooncake_client import Client, ObjectInfo, StoreError, operations
from mooncake_node.directory import Holding, Members, open_directory
from mooncake_node.directory.encoding import digest_of, entry_from
from tests.support.node import NodeProcess
from tests.support.valkey import ValkeyServer
from tests.support.waiting import HANG_LIMIT_S, eventually
from tests.support.worker import Worker

T = TypeVar("T")
NAMESPACE = "mooncake"
MIB = 1 << 20
# What a copy from node 1 to node 2 passes, in order: the node, the point.
COPY_POINTS = [
    (2, "ClientLocalCopyBeforeRefreshReplicaListRemote"),
    (2, "ClientLocalCopyAfterLookup"),
    (2, "ClientLocalCopyAfterPutStart"),
    (1, "PeerBeforeGetReplicaList"),
    (1, "PeerAfterGetReplicaList"),
    (2, "ClientLocalCopyAfterGetReplicaList"),
    (2, "ClientLocalCopyAfterTransfer"),
    (2, "ClientLocalCopyBeforePublish"),
    (2, "DirectoryBeforePublish"),
    (2, "DirectoryAfterPublish"),
    (2, "ClientLocalCopyBeforePutEnd"),
]


class Cluster:
    """Nodes n1, n2, … of one directory. A context manager: everything ends with it."""

    def __init__(
        self,
        directory: Path,
        *flags: str,
        count: int = 2,
        pool_size: str = "64MiB",
        own_flags: dict[int, list[str]] | None = None,
        own_pool_size: dict[int, str] | None = None,
        env: dict[str, str] | None = None,
        own_env: dict[int, dict[str, str]] | None = None,
        spawned: Sequence[int] | None = None,
    ) -> None:
        """*flags*, *pool_size* and *env* are every node's, those of its *own* by number; nodes are numbered from 1.

        *spawned*: those that are there at the start; None: all.
        """
        self._spawned = spawned
        self.flags = flags
        self.valkey = ValkeyServer(directory / "valkey")
        self.nodes: dict[int, NodeProcess] = {}
        self.workers: list[Worker] = []
        self._stopped: set[int] = set()
        for number in range(1, count + 1):
            place = directory / f"n{number}"
            place.mkdir()
            self.nodes[number] = NodeProcess(
                place,
                *("--name", f"n{number}", "--directory", self.valkey.url, "--listen", "127.0.0.1:0"),
                *flags,
                *(own_flags or {}).get(number, []),
                pool_size=(own_pool_size or {}).get(number, pool_size),
                env={**(env or {}), **(own_env or {}).get(number, {})},
            )

    def __enter__(self) -> Self:
        try:
            numbers = self._spawned or list(self.nodes)
            for number in numbers:
                self.nodes[number].spawn()
            for number in numbers:
                self.await_start(number)
            self.await_members()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.end(check=kind is None)

    def end(self, *, check: bool = False) -> None:
        """End every process. *check*: no node may have logged a traceback."""
        for worker in self.workers:
            self.end_worker(worker)
        for number, node in self.nodes.items():
            self.cont(number)
            if node.process is not None:
                node.stop(signal.SIGTERM if check else signal.SIGKILL)
        self.valkey.stop()
        if check:
            for node in self.nodes.values():
                node.close()

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def await_start(self, number: int) -> None:
        """Wait until that node, which was spawned, serves."""
        node = self.nodes[number]

        def serves() -> bool:
            assert node.process is not None
            assert node.process.poll() is None, f"n{number} ended with {node.process.returncode}:\n{node.read_log()}"
            with contextlib.suppress(ConnectionError, TimeoutError):
                Client(node.socket, timeout=5).close()
                return True
            return False

        eventually(serves, f"n{number} to serve", hang_limit_s=120)

    def await_members(self, *numbers: int) -> None:
        """Wait until the running nodes, or those named, know each other and nobody else."""
        wanted = {f"n{number}" for number in numbers or self.living()}
        for number in numbers or self.living():
            with self.client(number) as client:
                eventually(
                    lambda client=client: set(client.stats()["cluster"]["nodes"]) == wanted,
                    f"n{number} to know all of {sorted(wanted)}",
                )

    def living(self) -> list[int]:
        """The nodes that run and are not stopped."""
        return [n for n, node in self.nodes.items() if node.process is not None and n not in self._stopped]

    def start(self, number: int) -> None:
        """Start a node that has ended."""
        self.nodes[number].spawn()
        self.await_start(number)

    def kill(self, number: int) -> None:
        """SIGKILL."""
        self._stopped.discard(number)
        self.nodes[number].kill()

    def stop(self, number: int) -> None:
        """SIGSTOP, and wait until it stands."""
        pid = self._pid(number)
        os.kill(pid, signal.SIGSTOP)
        stat = Path(f"/proc/{pid}/stat")
        eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", f"n{number} to stand still")
        self._stopped.add(number)

    def cont(self, number: int) -> None:
        """SIGCONT; harmless if it runs."""
        if number in self._stopped:
            self._stopped.discard(number)
            os.kill(self._pid(number), signal.SIGCONT)

    def _pid(self, number: int) -> int:
        process = self.nodes[number].process
        assert process is not None
        return process.pid

    # -- clients -------------------------------------------------------------------------------------------------------

    def client(self, number: int, **kwargs: Any) -> Client:
        """A client of that node in this process."""
        return self.nodes[number].client(**kwargs)

    def begin(self, number: int, call: Callable[[Client], T], **kwargs: Any) -> "Future[T]":
        """Let a thread do that with a client of its own; `outcome` takes the result."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                with self.client(number, **kwargs) as client:
                    future.set_result(call(client))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return future

    def worker(self, number: int, **kwargs: Any) -> Worker:
        """A client of that node in a process of its own, which has `place` too."""
        worker = Worker(self.nodes[number].socket, **kwargs)
        self.workers.append(worker)
        worker.run("import numpy as np\n" + inspect.getsource(place))
        return worker

    def has_answered(self, worker: Worker) -> bool:
        """Whether there is a result of what the worker was sent last."""
        assert worker.process.stdout is not None
        return bool(select.select([worker.process.stdout], [], [], 0)[0])

    def end_worker(self, worker: Worker) -> None:
        """End that process; it is part of the cluster no more."""
        if worker in self.workers:
            self.workers.remove(worker)
        worker.end()

    # -- faults --------------------------------------------------------------------------------------------------------

    def arm(self, number: int, point: str, action: str, value: int = 0, *, start: int = 1, times: int = 1) -> None:
        """Arm a point of that daemon."""
        with self.client(number) as client:
            assert client.inject_fault_local_master(point, action, value, start, times) == 0

    def sleep_at(self, number: int, point: str, seconds: float = 30.0) -> None:
        """Have the next who passes the point sleep there; a sleep under way is not ended by `disarm`."""
        self.arm(number, point, "sleep", int(seconds * 1000))

    def disarm(self) -> None:
        """Every point of every node."""
        if "--faults" not in self.flags:
            return
        for number in self.living():
            with self.client(number) as client:
                for point in client.list_faults_local_master():
                    client.inject_fault_local_master(point["name"], "reset")

    def fired(self, number: int, point: str) -> int:
        """How often a point has acted."""
        with self.client(number) as client:
            return int(client.get_fault_status_local_master(point)["fired"])

    def hits(self, number: int, point: str) -> int:
        """How often it was passed."""
        with self.client(number) as client:
            return int(client.get_fault_status_local_master(point)["hits"])

    def await_fired(self, number: int, point: str) -> None:
        """Wait until somebody is held up at that point, or was."""
        eventually(lambda: self.fired(number, point), f"{point} to act on n{number}")

    # -- what there is -------------------------------------------------------------------------------------------------

    def stats(self, number: int) -> dict[str, Any]:
        """Of that node."""
        with self.client(number) as client:
            return client.stats()

    def here(self, number: int) -> dict[str, ObjectInfo]:
        """What that node has itself, by key; at most a page."""
        with self.client(number) as client:
            page, _ = client.run_on(client._attached(), operations.list_page("", 0), 10.0)
            return {item.key: item for item in page}

    def members(self) -> Members:
        """Who lives, says the directory."""

        async def ask() -> Members:
            directory = open_directory(
                self.valkey.url, namespace=NAMESPACE, liveness_ttl_s=3.0, tombstone_s=600.0, timeout_s=5.0
            )
            try:
                return await directory.members()
            finally:
                await directory.close()

        return asyncio.run(ask())

    def claims(self) -> list[tuple[str, Holding]]:
        """What the directory says living nodes have: (digest of the key, holding)."""
        members = self.members()
        lives = {(node.name, node.incarnation) for node in members.nodes}
        with redis.Redis(port=self.valkey.port) as server:
            names = list(server.scan_iter(f"o:{NAMESPACE}:*"))
            entries = {name.rpartition(b":")[2].decode(): server.hgetall(name) for name in names}
        return [
            (digest, holding)
            for digest, fields in entries.items()
            for holding in entry_from([part for field in fields.items() for part in field]).holdings
            if (holding.node, holding.incarnation) in lives and holding.epoch >= members.clear_epoch
        ]

    def held_by(self, key: str) -> dict[str, bool]:
        """Which living nodes have *key* as the directory says, and whether as its owner."""
        return {holding.node: holding.is_owner for digest, holding in self.claims() if digest == digest_of(key)}

    def differences(self) -> list[str]:
        """What the directory says otherwise than the living nodes."""
        claims = self.claims()
        said = {
            (holding.node, digest, f"{holding.generation:016x}", holding.nbytes): holding.is_owner
            for digest, holding in claims
        }
        had: dict[tuple[str, str, str, int], str] = {}
        for number in self.living():
            for key, info in self.here(number).items():
                if info.scope != "node":
                    had[f"n{number}", digest_of(key), info.generation, info.nbytes] = key
        found = [f"{had[fact]!r} of {fact} is not in the directory" for fact in had.keys() - said.keys()]
        found += [f"the directory says {fact}, which is not so" for fact in said.keys() - had.keys()]
        for digest in {digest for digest, _ in claims}:
            owners = [holding.node for other, holding in claims if other == digest and holding.is_owner]
            if len(owners) != 1:
                found.append(f"{digest} has the owners {owners}")
        return found

    def unsettled(self) -> list[str]:
        """What is under way or held on living nodes."""
        found = []
        for number in self.living():
            stats = self.stats(number)
            facts = {
                "unpublished": stats["unpublished"],
                "handles": stats["handles"],
                "leases": stats["leases"],
                "stash": stats["stash"]["objects"],
                "waiting_puts": stats["waiting_puts"],
                "quarantined_bytes": stats["pool"]["quarantined_bytes"],
                "doomed_bytes": stats["pool"]["doomed_bytes"],
                "leaving_bytes": stats["pool"]["leaving_bytes"],
                "queued": stats["directory"]["queued"],
                "transfers_running": stats["cluster"]["plane"]["transfers_running"],
            }
            found += [f"n{number}: {name} {value}" for name, value in facts.items() if value]
        return found

    def agree(self) -> None:
        """Wait until nothing is under way; then directory and nodes say the same."""
        _gone(lambda: self.unsettled() + self.differences())

    def ledger(self) -> None:
        """After remove_all nothing is left, anywhere, and all of every pool can be used."""
        with self.client(self.living()[0]) as client:
            client.remove_all()

        def left() -> list[str]:
            used = [(n, self.stats(n)["pool"]["bytes_used"]) for n in self.living()]
            found = [f"n{n}: {nbytes} bytes are used" for n, nbytes in used if nbytes]
            return found + self.unsettled() + [f"entry {digest}: {holding}" for digest, holding in self.claims()]

        _gone(left)


def place(view):  # type: ignore[no-untyped-def]
    """Which file's bytes a view shows, and where in it: equal in two processes, it is the same physical memory."""
    address = np.frombuffer(view, dtype=np.uint8).ctypes.data
    with open("/proc/self/maps") as maps:  # noqa: PTH123
        for line in maps:
            span, _, offset, device, inode, *_ = line.split()
            start, end = (int(part, 16) for part in span.split("-"))
            if start <= address < end:
                return device, inode, address - start + int(offset, 16)
    raise AssertionError("nowhere")


def outcome(future: "Future[T]") -> T | StoreError:
    """What a call has given, or the StoreError that it raised."""
    try:
        return future.result(HANG_LIMIT_S)
    except StoreError as error:
        return error.with_traceback(None)


def _gone(look: Callable[[], list[str]]) -> None:
    """Wait until *look* finds nothing."""
    deadline = time.monotonic() + HANG_LIMIT_S
    while found := look():
        assert time.monotonic() < deadline, "\n".join(found)
        time.sleep(0.02)


@contextlib.contextmanager
def lent(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster for one test of several; at its end nothing of the test is left."""
    try:
        yield cluster
        for worker in list(cluster.workers):
            cluster.end_worker(worker)
        cluster.disarm()
        cluster.agree()
        cluster.ledger()
    except BaseException:
        # What follows shall not fail for its sake.
        with contextlib.suppress(Exception):
            cluster.disarm()
            with cluster.client(1) as client:
                client.remove_all()
        raise
    finally:
        for worker in list(cluster.workers):
            cluster.end_worker(worker)
