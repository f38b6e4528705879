"""Planes to test, each kind behind one kit.

A kit is two nodes: "far" has objects to lend, "near" has a pool into which its plane reads them.
"""

import asyncio
import contextlib
import functools
import inspect
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
import uvloop

from mooncake_node.planes import MemoryPlane, Mode, RefusedError, RemoteRange, TcpPlane
from mooncake_node.planes.tcp import THREADS_MAX
from mooncake_node.planes.tcp_frames import (
    FRAME_NBYTES_MAX,
    HEADER_NBYTES,
    Reply,
    Request,
    body_nbytes,
    decode_request,
    pack,
)
from tests.support.patterns import pattern
from tests.support.waiting import HANG_LIMIT_S, until

GUARD = 0xA5  # what is in the near pool before anything is read into it
KIB, MIB = 1 << 10, 1 << 20


class FakeLoan:
    """Implements `Loan`."""

    def __init__(self, lender: "FakeLender", content: bytes) -> None:
        self.nbytes = len(content) + lender.announced_too_many
        self._lender = lender
        self._content = memoryview(content)

    @property
    def view(self) -> memoryview | None:
        return self._content if self._lender.lies_in_memory else None

    async def parts(self) -> AsyncIterator[memoryview]:
        lender = self._lender
        lender.parts_open += 1
        try:
            for start in range(0, len(self._content), lender.part_nbytes):
                if start and lender.breaks:
                    raise RefusedError("the disk is gone")
                await lender.gate.wait()
                yield self._content[start : start + lender.part_nbytes]
        finally:
            lender.parts_open -= 1


class FakeLender:
    """Implements `Lender` on objects in memory, and knows who has borrowed."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.asked: list[tuple[str, int, int, int]] = []
        self.lent = 0  # loans that have not ended
        self.parts_open = 0  # generators of parts that have begun and not ended
        self.part_nbytes = 1 * MIB
        self.announced_too_many = 0
        self.lies_in_memory = False  # its bytes can be had at once
        self.breaks = False  # after the first part of every loan
        self.gate = asyncio.Event()  # every part waits here
        self.gate.set()

    @contextlib.asynccontextmanager
    async def lend(self, key: str, replica_id: int, generation: int, lease_token: int) -> AsyncIterator[FakeLoan]:
        self.asked.append((key, replica_id, generation, lease_token))
        if key not in self.objects:
            raise RefusedError(f"no {key!r} here")
        self.lent += 1
        try:
            yield FakeLoan(self, self.objects[key])
        finally:
            self.lent -= 1


class Kit:
    """What both kinds have."""

    def __init__(self, pool_nbytes: int = 8 * MIB) -> None:
        self.lender = FakeLender()
        self.pool = memoryview(bytearray(bytes((GUARD,)) * pool_nbytes))
        self.views = 0  # how often a place in the pool was asked for

    def view(self, offset: int, nbytes: int) -> memoryview:
        self.views += 1
        assert 0 <= offset <= len(self.pool) - nbytes
        return self.pool[offset : offset + nbytes]

    def add(self, key: str, nbytes: int) -> RemoteRange:
        """An object of the far node, as it describes it."""
        self.lender.objects[key] = pattern(key, nbytes)
        return self.describe(key, nbytes)

    def describe(self, key: str, nbytes: int, **changed: object) -> RemoteRange:
        facts = {
            "node": "far", "incarnation": 1, "endpoint": "127.0.0.1:1", "key": key, "replica_id": 3, "offset": 4096,
            "nbytes": nbytes, "generation": 5, "lease_token": 7,
        }  # fmt: skip
        return RemoteRange(**{**facts, **changed})

    def assert_only(self, *written: tuple[int, RemoteRange]) -> None:
        """These objects are in the pool, each at its offset, and nothing else was written anywhere."""
        at = 0
        for offset, source in sorted(written, key=lambda item: item[0]):
            assert self.is_untouched(at, offset), f"written between {at} and {offset}"
            at = offset + source.nbytes
            assert self.pool[offset:at] == pattern(source.key, source.nbytes), source.key
        assert self.is_untouched(at, len(self.pool)), f"written behind {at}"

    def is_untouched(self, start: int, end: int) -> bool:
        return self.pool[start:end] == bytes((GUARD,)) * (end - start)


class MemoryKit(Kit):
    """The plane in memory."""

    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self.plane = MemoryPlane({"far": self.lender}, self.view)

    async def close(self) -> None:
        await self.plane.close()


class TcpKit(Kit):
    """The TCP plane, and another that serves what dials a port of this host."""

    def __init__(
        self, *, sender_stall_timeout_s: float = HANG_LIMIT_S, threads_max: int = THREADS_MAX, **settings
    ) -> None:
        pool = {name: settings.pop(name) for name in ("pool_nbytes",) if name in settings}
        super().__init__(**pool)
        settings = {"stall_timeout_s": HANG_LIMIT_S, "threads_max": threads_max, **settings}
        self.plane = TcpPlane(self.dial, self.view, **settings)
        self.far = TcpPlane(self.dial, self.view, stall_timeout_s=sender_stall_timeout_s, threads_max=threads_max)
        self.dialled: list[str] = []
        self.served: list[asyncio.Task[None]] = []
        self.far_socks: list[socket.socket] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())

    async def dial(self, node: str) -> socket.socket:
        self.dialled.append(node)
        sock = socket.socket()
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, self.listener.getsockname())
        except BaseException:
            sock.close()
            raise
        return sock

    async def serve(self, sock: socket.socket) -> None:
        """What the far node does with a connection; a test may put something else here."""
        await self.far.serve(sock, "near", self.lender)

    async def hang_up(self) -> None:
        """End all connections, as the death of the far node would."""
        for task in self.served:
            task.cancel()
        await asyncio.gather(*self.served, return_exceptions=True)

    async def stop_listening(self) -> None:
        self._accepting.cancel()
        await asyncio.gather(self._accepting, return_exceptions=True)
        self.listener.close()

    async def close(self) -> None:
        self.lender.gate.set()
        await self.plane.close()
        await self.stop_listening()
        await self.hang_up()
        await self.far.close()
        assert self.lender.lent == self.lender.parts_open == 0

    async def _accept(self) -> None:
        while True:
            sock, _ = await asyncio.get_running_loop().sock_accept(self.listener)
            sock.setblocking(False)
            self.far_socks.append(sock)
            self.served.append(asyncio.create_task(self.serve(sock)))


KITS = {"memory": MemoryKit, "tcp": TcpKit}

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}

__all__ = [
    "GUARD",
    "HANG_LIMIT_S",
    "KIB",
    "KITS",
    "MIB",
    "FakeLender",
    "Kit",
    "MemoryKit",
    "Mode",
    "TcpKit",
    "asking",
    "ok",
    "on",
    "request_on",
    "until",
]


def on(*kinds: str, **settings: Any) -> Callable:
    """Run a coroutine function with a kit of each kind on each event loop; nothing may be left unhandled there."""

    def decorate(test: Callable) -> Callable:
        @pytest.mark.parametrize("kind", kinds)
        @pytest.mark.parametrize("loop", LOOPS)
        @functools.wraps(test)
        def run(kind: str, loop: str, **arguments: Any) -> None:
            unhandled: list[dict] = []

            async def main() -> None:
                asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
                kit = KITS[kind](**settings)
                try:
                    await test(kit, **arguments)
                finally:
                    async with asyncio.timeout(HANG_LIMIT_S):
                        await kit.close()

            with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
                runner.run(main())
            assert not unhandled

        own = [p for p in inspect.signature(test).parameters.values() if p.name != "kit"]
        given = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in ("kind", "loop")]
        run.__signature__ = inspect.Signature([*own, *given])
        return run

    return decorate


# -- frames, for tests that are one of the two ends themselves -----------------------------------------------------


async def request_on(sock: socket.socket) -> Request:
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < HEADER_NBYTES or len(data) < HEADER_NBYTES + body_nbytes(data):
        came = await loop.sock_recv(sock, FRAME_NBYTES_MAX)
        assert came
        data += came
    return decode_request(data[HEADER_NBYTES:])


def ok(request: Request, **changed) -> bytes:
    return pack(msgspec.structs.replace(Reply(request_id=request.request_id, nbytes=request.nbytes), **changed))


def asking(source, **changed) -> bytes:
    request = Request(request_id=1, key=source.key, replica_id=3, generation=5, lease_token=7, nbytes=source.nbytes)
    return pack(msgspec.structs.replace(request, **changed))
