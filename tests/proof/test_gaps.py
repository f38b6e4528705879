"""What comes between two steps of the other side: each gap that was open once, and is found shut."""

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from mooncake_client import Client, membarrier, wire
from mooncake_client.mapping import Mapping
from mooncake_client.shared_index import SharedIndex
from mooncake_node.core.config import MasterConfig
from mooncake_node.core.generations import EPOCH_MS, GenerationClock
from mooncake_node.core.master import Master
from mooncake_node.core.replica import PLAIN, Replica
from mooncake_node.core.sessions import Session
from mooncake_node.core.waiting import Put, PutMode
from mooncake_node.readers import SharedReaders
from mooncake_node.readers.index import open_memory
from tests.support import NodeProcess, eventually, pattern

PAGE = 4096
POOL_NBYTES = 64 * PAGE

pytestmark = pytest.mark.skipif(
    not membarrier.register(), reason="NOT TESTED: this machine has no membarrier, or is no x86-64; nothing is pinned"
)


class Side:
    """A master with a real index, and a client's side of it, in one process."""

    def __init__(self) -> None:
        self.readers = SharedReaders(POOL_NBYTES)
        self.master = Master(
            MasterConfig(pool_nbytes=POOL_NBYTES), GenerationClock(EPOCH_MS * 1_000_000), readers=self.readers
        )
        self.session: Session = self.master.open_session("client", os.getpid())
        pool_fd = open_memory("test-pool", POOL_NBYTES)
        fds = self.readers.open_row(self.session.session_id)
        self.told = 0
        self.index = SharedIndex(self.readers.shape, fds, Mapping(pool_fd, POOL_NBYTES, writable=False), self._tell)
        for fd in (pool_fd, fds[-1]):
            os.close(fd)

    def upsert(self, key: str) -> Replica:
        put = Put(key=key, nbytes=PAGE, contract=PLAIN, mode=PutMode.UPSERT)
        replica = self.master.put_start(self.session, put, 0, None)
        assert isinstance(replica, Replica)
        return self.master.put_end(self.session, replica.replica_id, 0)

    def _tell(self) -> None:
        self.told += 1


@pytest.fixture
def side() -> Iterator[Side]:
    side = Side()
    yield side
    side.readers.close()


def test_a_key_that_is_replaced_is_never_said_not_to_be_there(side, monkeypatch):
    """Between the hiding of the old record and the adding of the new one neither is found."""
    side.upsert("k")
    said = []
    for name in ("hide", "unlist", "list"):
        step = getattr(side.readers, name)

        def watched(replica: Replica, step: Callable[[Replica], object] = step) -> object:
            said.append(side.index.contains("k"))
            result = step(replica)
            said.append(side.index.contains("k"))
            return result

        monkeypatch.setattr(side.readers, name, watched)
    side.upsert("k")
    assert None in said
    assert False not in said
    assert side.index.contains("k") is True


def test_without_a_barrier_everything_counts_as_pinned(side, monkeypatch):
    """It worked at the start, so this is not expected; but then the rows say nothing."""
    replica = side.upsert("k")
    assert side.readers.pinned([replica]) == set()
    monkeypatch.setattr(membarrier, "reach_all", lambda: False)
    assert side.readers.pinned([replica]) == {replica.replica_id}


def test_nothing_can_be_pinned_once_goodbye_is_said(make_node, monkeypatch):
    """The housekeeper may come by at any step of `close`."""
    client = make_node().client()
    client.put("k", b"v")
    link = client._attached()
    index, detach, notify = link.attachment.index, link.attachment.detach, link.notify
    assert index is not None
    pinned_at_goodbye = []

    def late_detach() -> None:
        if threading.current_thread() is not link._housekeeper:
            link._wake_housekeeper()
            link._housekeeper.join(0.3)
        detach()

    def watched_notify(notice: wire.Request) -> None:
        if isinstance(notice, wire.Goodbye):
            pinned_at_goodbye.append(index.view("k") is not None)
        notify(notice)

    monkeypatch.setattr(link.attachment, "detach", late_detach)
    monkeypatch.setattr(link, "notify", watched_notify)
    client.close()
    assert pinned_at_goodbye == [False]


def test_nothing_can_be_pinned_once_an_attachment_is_seen_detached(make_node):
    """A second thread that detaches, finds nothing left to do and goes on to say goodbye."""
    client = make_node().client()
    client.put("k", b"v")
    attachment = client._attached().attachment
    index = attachment.index
    seen: list[bool] = []

    class Watched(type(attachment)):
        def __setattr__(self, name: str, value: object) -> None:
            if name == "index" and self.index is not None:
                seen.append(index.view("k") is not None)
            super().__setattr__(name, value)

    attachment.__class__ = Watched
    attachment.detach()
    assert seen == [False]
    client.close()


def test_what_is_pinned_outlives_the_connection(make_node, make_worker):
    """A process whose connection is lost reads on, though no handle says so."""
    node: NodeProcess = make_node(pool_size="2MiB")
    reader = make_worker(node)
    reader.run(f"c.put('k', pattern(1, {1200 << 10})); v = c.get('k'); assert c._link._session.pin_row.in_use")
    reader.run("c._link.lose()")
    with Client(node.socket) as writer:
        writer.remove("k")
        for number in range(16):
            writer.put(f"new {number}", bytes(400 << 10), timeout=5)
        assert reader.run("bytes(v) == pattern(1, len(v))")
        reader.kill()
        eventually(lambda: writer.stats()["clients"] == 1, "the daemon to have seen its end")
        writer.put("large", pattern(2, 1800 << 10))


def test_a_view_in_garbage_with_a_cycle_is_unpinned_whatever_was_finalized_before_it(make_node, make_worker):
    """All of a closed client's index is then garbage too, and its finalizers run in any order."""
    node = make_node()
    with node.client() as client:
        client.put("k", bytes(1000))
        reader = make_worker(node)
        reader.run("import gc; box = [c.get_buffer('k').view]; box.append(box); c.close(); del c")
        assert client.stats()["clients"] == 2
        assert reader.run("del box; gc.collect() > 0")
        eventually(lambda: client.stats()["clients"] == 1, "the reader's goodbye")
        assert reader.close() == (0, "")
