"""One daemon a module, and one set of test bodies for the blocking and the asyncio client.

`LoopClient` gives an AsyncClient, which lives on an event loop in a thread, the blocking client's calls, so that a
test written once says the same of both.
"""

import asyncio
import gc
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
import uvloop

from mooncake_client import AsyncClient, AsyncWritableBuffer, Client
from mooncake_client.faults import CLIENT_FAULTS
from tests.support import NodeProcess, eventually, ledger_check

POOL_NBYTES = 64 << 20
HANG_LIMIT_S = 90.0
FRONTS = ["blocking", "asyncio", "uvloop"]


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self, kind: str) -> None:
        self.loop = uvloop.new_event_loop() if kind == "uvloop" else asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=f"test-{kind}")
        self._thread.start()

    def run(self, coroutine: Any) -> Any:
        """What *coroutine* gives or raises."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(HANG_LIMIT_S)

    def close(self) -> None:
        """End it and see that no task was left."""
        self.run(self._finish())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(HANG_LIMIT_S)
        self.loop.close()

    async def _finish(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        await self.loop.shutdown_asyncgens()
        await self.loop.shutdown_default_executor()
        assert not left, f"tasks left behind: {left}"


class LoopBuffer:
    """An AsyncWritableBuffer with blocking calls."""

    def __init__(self, loop: LoopThread, buffer: AsyncWritableBuffer) -> None:
        self._loop = loop
        self._buffer = buffer

    def publish(self) -> Any:
        return self._loop.run(self._buffer.publish())

    def abort(self) -> None:
        async def on_the_loop() -> None:
            self._buffer.abort()

        self._loop.run(on_the_loop())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._buffer, name)

    def __len__(self) -> int:
        return len(self._buffer)

    def __enter__(self) -> Self:
        self._loop.run(self._buffer.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._loop.run(self._buffer.__aexit__(kind, exc, tb))


class LoopClient:
    """An AsyncClient with blocking calls."""

    def __init__(self, loop: LoopThread, socket: object = None, **kwargs: Any) -> None:
        self._loop = loop
        self.client = AsyncClient(socket, **kwargs)
        loop.run(self.client.__aenter__())

    def create(self, *args: Any, **kwargs: Any) -> LoopBuffer:
        return LoopBuffer(self._loop, self._loop.run(self.client.create(*args, **kwargs)))

    def list(self, *args: Any) -> Iterator[Any]:
        iterator = self.client.list(*args)

        async def following() -> list[Any]:
            return [item async for item in iterator]

        return iter(self._loop.run(following()))

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.client, name)
        if not callable(attribute):
            return attribute
        return lambda *args, **kwargs: self._loop.run(attribute(*args, **kwargs))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.run(self.client.__aexit__(*exc))

    def __repr__(self) -> str:
        return repr(self.client)


AnyClient = Client | LoopClient


@pytest.fixture(scope="module")
def daemon(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """The module's daemon: 64 MiB, fault injection on, unless the module says FAULTS = False."""
    flags = ["--faults"] if getattr(request.module, "FAULTS", True) else []
    node = NodeProcess(tmp_path_factory.mktemp("node"), *flags).start()
    yield node
    if node.process is not None:
        gc.collect()
        ledger_check(node.socket)
    node.close()


@pytest.fixture
def watcher(daemon: NodeProcess) -> Iterator[Client]:
    """A second client, which looks at what the first ones do; nothing of the test may be left when it ends."""
    with daemon.client(name="watcher") as client:
        yield client
        client.remove_all()
        eventually(lambda: is_clean(client.stats()) or collect(), f"nothing left behind; stats: {client.stats()}")


def collect() -> bool:
    """A caught exception and the frame that caught it refer to each other, and the frame to views."""
    gc.collect()
    return False


def is_clean(stats: dict[str, Any]) -> bool:
    """Nothing is in G, nobody waits, and only the client that asks is attached."""
    nothing = ("objects", "unpublished", "handles", "leases", "waiting_puts")
    return (
        all(stats[name] == 0 for name in nothing)
        and stats["stash"]["objects"] == 0
        and stats["pool"]["bytes_used"] == 0
        and stats["clients"] == 1
    )


@pytest.fixture(params=FRONTS)
def front(request: pytest.FixtureRequest) -> str:
    """Which client a test runs with."""
    return request.param


@pytest.fixture
def connect(front: str, daemon: NodeProcess, watcher: Client) -> Iterator[Callable[..., AnyClient]]:
    """Make clients of the front under test; they are closed with the test."""
    loop = None if front == "blocking" else LoopThread(front)
    clients: list[AnyClient] = []

    def make(socket: object = daemon.socket, **kwargs: Any) -> AnyClient:
        client = Client(socket, **kwargs) if loop is None else LoopClient(loop, socket, **kwargs)
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()
    if loop is not None:
        try:
            # A client that was closed while it still held something says goodbye by its loop.
            eventually(lambda: watcher.stats()["clients"] == 1 or collect(), "every client to be gone")
        finally:
            loop.close()


@pytest.fixture
def c(connect: Callable[..., AnyClient]) -> AnyClient:
    """A client of the front under test."""
    return connect(name="tested")


@pytest.fixture
def client_faults() -> Iterator[None]:
    """Fault points of this process can be armed."""
    was, CLIENT_FAULTS.enabled = CLIENT_FAULTS.enabled, True
    yield
    CLIENT_FAULTS.reset_all()
    CLIENT_FAULTS.enabled = was


def run_script(
    code: str, *arguments: str, flags: tuple[str, ...] = (), env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A Python process of its own that runs *code* to its end."""
    return subprocess.run(
        [sys.executable, *flags, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_LIMIT_S,
        env={**os.environ, **(env or {})},
        cwd=Path(__file__).parents[2],
    )
