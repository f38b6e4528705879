"""The node: joins pool, local master, sockets and signals into one process."""

import asyncio
import os
import resource
import signal
import threading
import time
from typing import Any

import uvloop

from mooncake_client import wire
from mooncake_client.faults import FaultTable
from mooncake_client.mapping import Mapping
from mooncake_node import directory, jobs, tiers
from mooncake_node.cluster import points as cluster_points
from mooncake_node.cluster.cluster import Cluster
from mooncake_node.cluster.service import ClusterService
from mooncake_node.core.config import SECOND_NS, MasterConfig
from mooncake_node.core.generations import GenerationClock
from mooncake_node.core.master import Master
from mooncake_node.core.report import stats
from mooncake_node.directory import DirectoryError, FaultyDirectory, open_directory
from mooncake_node.jobs import Jobs
from mooncake_node.obs.log import get_logger
from mooncake_node.obs.process import process_facts
from mooncake_node.peers.errors import PeerListenError
from mooncake_node.pool import Holder, PoolError, PoolStoppedError, PoolWriter, Segment, Warmup, sweep, wait_for_room
from mooncake_node.readers import SharedReaders
from mooncake_node.server import points as server_points
from mooncake_node.server.listener import Listener, ListenError
from mooncake_node.server.server import Server
from mooncake_node.server.service import Service
from mooncake_node.settings import Settings, format_size
from mooncake_node.systemd import Notifier
from mooncake_node.tiers import DirectoryTier, TierError, TierRecord

# Asked of the service manager again at every step of the reservation.
PATIENCE_S = 60.0

log = get_logger()


class NodeError(Exception):
    """The node cannot run; the message is for the operator."""


def run(settings: Settings) -> int:
    """Run a node until it is told to stop; the exit code. Blocks."""
    if not __debug__:
        raise NodeError("the daemon does not run under python -O: its assertions guard the pool")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_main(settings))


async def _main(settings: Settings) -> int:
    stop = threading.Event()
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ask_to_stop(name: str) -> None:
        log.info("stop_requested", signal=name)
        stop.set()
        stopped.set()

    def on_unhandled(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        exc = context.get("exception")
        log.error("callback_failed", message=context.get("message"), exc_info=exc)
        if isinstance(exc, AssertionError):
            # The pool's bookkeeping cannot be trusted any more; a restart begins with an empty one.
            log.critical("invariant_broken")
            os._exit(70)

    loop.set_exception_handler(on_unhandled)
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, ask_to_stop, signum.name)
    node = Node(settings)
    try:
        await node.start(stop)
        await stopped.wait()
    except PoolStoppedError:
        log.info("start_abandoned")
    except (PoolError, ListenError, PeerListenError) as exc:
        raise NodeError(str(exc)) from exc
    finally:
        await node.stop()
    return 0


class Node:
    """One daemon."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._notifier = Notifier()
        self._listeners: list[Listener] = []
        self._segment: Segment | None = None
        self._mapping: Mapping | None = None
        self._warmup: Warmup | None = None
        self._server: Server | None = None
        self._jobs: Jobs | None = None
        self._cluster: Cluster | None = None
        self._readers: SharedReaders | None = None
        self._started_s = time.monotonic()
        self._told_of_wait = False
        self.master: Master | None = None

    async def start(self, stop: threading.Event) -> None:
        """Get the pool, then listen. *stop* ends a long reservation with PoolStoppedError."""
        settings = self.settings
        _allow_descriptors()
        # The sockets' locks first: a second daemon on them is refused before it reserves anything.
        self._listeners = [Listener(settings.socket)]
        self._listeners.append(Listener(settings.admin_socket))
        self._segment = segment = await asyncio.to_thread(self._make_segment, stop)
        self._mapping = Mapping(segment.write_fd, segment.nbytes, writable=True)
        pool = PoolWriter(self._mapping)
        faults = FaultTable(
            {**server_points.POINTS, **jobs.POINTS, **tiers.POINTS, **cluster_points.POINTS, **directory.POINTS},
            enabled=settings.faults,
        )
        found = await self._open_tier(pool, faults)
        floor = self._floor(found)
        slot = 0
        if settings.directory is not None:
            self._cluster = await self._join_cluster(settings.directory, faults)
            slot = self._cluster.membership.me.slot
            try:
                found = await self._cluster.ours(found)
            except DirectoryError as error:
                raise NodeError(f"directory: {error}") from error
        clock = GenerationClock(time.time_ns() - time.monotonic_ns(), slot=slot, floor=floor)
        tier_nbytes_max = 0 if self._jobs is None else self._jobs.tier.bytes_limit
        tier_cost = None if self._jobs is None else self._jobs.cost
        self._readers = self._open_index(segment.nbytes)
        self.master = Master(_master_config(settings, tier_nbytes_max), clock, tier_cost, self._readers)
        service = (Service if self._cluster is None else ClusterService)(
            self.master,
            faults,
            store=pool.store,
            node_facts=self.facts,
            timeout_max_ns=int(settings.request_timeout_max * SECOND_NS),
            jobs=self._jobs,
            start_errands=None if self._cluster is None else self._cluster.start_errands,
        )
        if self._cluster is not None:
            assert isinstance(service, ClusterService)
            tier = None if self._jobs is None else self._jobs.tier
            self._cluster.connect(self.master, service, room=pool, tier=tier, jobs=self._jobs)
        if self._jobs is not None:
            self._jobs.attach(self.master, clock, found, service.settle)
        self._server = Server(service, (self._listeners[0], self._listeners[1]), settings.clients_max)
        self._warmup = Warmup(self._mapping, huge_pages=settings.huge_pages)
        if self._cluster is not None:
            await self._cluster.serve()
        await self._server.start(
            self._welcome, segment.read_fd, segment.write_fd, mode=settings.socket_mode, readers=self._readers
        )
        if settings.prefault:
            self._warmup.start()
        self._notifier.ready(f"serving {format_size(segment.nbytes)} on {settings.socket}")
        log.info("node_started", socket=str(settings.socket), pool=format_size(segment.nbytes))

    async def stop(self) -> None:
        """Give everything back; works on a half-started node too."""
        self._notifier.stopping("stopping")
        if self._server is not None:
            self._server.stop()
        if self._cluster is not None:
            await self._cluster.close()
        if self._jobs is not None:
            self._notifier.extend_timeout(self.settings.stop_timeout + PATIENCE_S)
            if self._server is not None:
                await self._jobs.save_pinned(self.settings.stop_timeout)
            await self._jobs.close()
        if self._warmup is not None:
            await asyncio.to_thread(self._warmup.stop)
        if self._readers is not None:
            self._readers.close()
        if self._mapping is not None:
            self._mapping.unmap()
        if self._segment is not None:
            self._segment.close()
        for listener in self._listeners:
            listener.close()
        if self._server is not None:
            log.info("node_stopped")

    def facts(self) -> dict[str, Any]:
        """Everything that `stats()` shows."""
        assert self.master is not None
        assert self._warmup is not None
        warmup = self._warmup.status()
        facts = stats(self.master)
        if self._jobs is not None:
            facts["tier"] = self._jobs.facts()
        if self._cluster is not None:
            facts |= self._cluster.facts()
        facts["node"] = {
            "name": self.settings.name,
            "uptime_s": time.monotonic() - self._started_s,
            **process_facts(),
        }
        facts["pages"] = {
            "prefault": warmup.state.value,
            "prefaulted_bytes": warmup.bytes_prefaulted,
            "huge_bytes": warmup.bytes_huge,
            "huge_method": warmup.method,
            "seconds": warmup.seconds,
        }
        return facts

    def _open_index(self, pool_nbytes: int) -> SharedReaders | None:
        """The index by which clients read without a request, where this machine can have one."""
        if self.settings.shared_index == "off":
            return None
        readers = SharedReaders(pool_nbytes)
        if readers.works:
            return readers
        log.info("shared_index_impossible")
        readers.close()
        return None

    async def _open_tier(self, pool: PoolWriter, faults: FaultTable) -> list[TierRecord]:
        """The offload directory, if there is one; what lies in it."""
        settings = self.settings
        if settings.offload_dir is None:
            return []
        self._notifier.extend_timeout(PATIENCE_S)
        try:
            tier = DirectoryTier(
                settings.offload_dir,
                bytes_limit=settings.offload_max_bytes,
                small_max_nbytes=settings.offload_small_max_bytes,
                offloads=settings.offload_threads,
                restores=settings.restore_threads,
                durable=settings.offload_durable,
                faults=faults,
            )
            self._jobs = Jobs(tier, pool, faults)
            found = await self._jobs.open()
        except TierError as error:
            self._jobs = None
            raise NodeError(f"offload_dir: {error}") from error
        if not settings.offload_max_bytes:
            free = os.statvfs(settings.offload_dir)
            tier.bytes_limit = tier.bytes_used + free.f_bavail * free.f_frsize * 9 // 10
        return found

    async def _join_cluster(self, url: str, faults: FaultTable) -> Cluster:
        settings = self.settings
        self._notifier.extend_timeout(settings.start_wait + PATIENCE_S)
        host, _, port = (settings.listen or "127.0.0.1:0").rpartition(":")
        secret = b"" if settings.cluster_secret_file is None else settings.cluster_secret_file.read_bytes().strip()
        try:
            found = open_directory(
                url,
                namespace=settings.directory_namespace,
                liveness_ttl_s=settings.node_ttl,
                tombstone_s=settings.tombstone_ttl,
                timeout_s=settings.directory_timeout,
            )
            if faults.enabled:
                found = FaultyDirectory(found, faults)
            cluster = Cluster(
                found, faults, host=host.strip("[]"), port=int(port), secret=secret, liveness_ttl_s=settings.node_ttl
            )
            await cluster.join(settings.name, settings.start_wait)
        except DirectoryError as error:
            raise NodeError(f"directory: {error}") from error
        return cluster

    def _floor(self, found: list[TierRecord]) -> int:
        """No generation up to this one may be given again."""
        floor = 0 if self._jobs is None else self._jobs.tier.floor
        return max([floor, *(record.generation for record in found)])

    def _welcome(self) -> wire.Welcome:
        assert self._segment is not None
        assert self._warmup is not None
        settings = self.settings
        return wire.Welcome(
            request_id=0,
            version=wire.PROTOCOL_VERSION,
            node=settings.name,
            session_id=0,
            pool_nbytes=self._segment.nbytes,
            admin_socket=str(settings.admin_socket),
            faults=settings.faults,
            huge_pages=self._warmup.status().bytes_huge == self._segment.nbytes,
        )

    def _wait_for_room(self, holders: list[Holder]) -> None:
        self._notifier.extend_timeout(PATIENCE_S)
        if not self._told_of_wait:
            self._told_of_wait = True
            named = [f"{holder.comm} (pid {holder.pid}, {format_size(holder.nbytes)})" for holder in holders]
            log.warning("pool_room_awaited", seconds_max=self.settings.start_wait, holders=named)

    def _make_segment(self, stop: threading.Event) -> Segment:
        settings = self.settings
        for name in sweep():
            log.warning("stale_pool_removed", name=name)
        wait_for_room(
            settings.pool_size,
            start_wait_s=settings.start_wait,
            stop=stop,
            on_wait=self._wait_for_room,
        )
        segment = Segment(settings.pool_size)
        reported_percent = 0

        def progress(done_nbytes: int, total_nbytes: int) -> None:
            nonlocal reported_percent
            self._notifier.extend_timeout(PATIENCE_S)
            percent = 100 * done_nbytes // total_nbytes
            if percent >= reported_percent + 10:
                reported_percent = percent
                self._notifier.status(f"reserving the pool: {percent} %")
                log.info("pool_reserved", percent=percent, total=format_size(total_nbytes))

        segment.reserve(progress, stop, huge_pages=settings.huge_pages == "auto")
        return segment


def _master_config(settings: Settings, tier_nbytes_max: int) -> MasterConfig:
    return MasterConfig(
        pool_nbytes=settings.pool_size,
        handles_max=settings.handles_max,
        reservations_max=settings.reservations_max,
        waiters_max=settings.waiters_max,
        softpin_ttl_default_ns=_optional_ns(settings.softpin_ttl_default),
        softpin_ttl_max_ns=int(settings.softpin_ttl_max * SECOND_NS),
        hard_pin_nbytes_max=settings.hard_pin_max_bytes,
        lease_ttl_ns=int(settings.default_kv_lease_ttl * SECOND_NS),
        free_min_nbytes=settings.free_min_bytes,
        free_low_nbytes=settings.free_low_bytes,
        free_high_nbytes=settings.free_high_bytes,
        tier_nbytes_max=tier_nbytes_max,
        offload_unpinned=settings.offload_unpinned,
        has_peers=settings.directory is not None,
        quarantine_nbytes_max=settings.quarantine_max_bytes or settings.pool_size // 8,
    )


def _optional_ns(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * SECOND_NS)


def _allow_descriptors() -> None:
    """Two descriptors a client, against a soft limit that is often 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
