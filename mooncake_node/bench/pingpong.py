"""The reference for latencies: a bare msgpack ping-pong over the same kind of socket and loop, doing nothing else."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Self, cast

import msgspec
import uvloop


class Ball(msgspec.Struct, array_like=True, tag=1):
    """What goes to and fro; about as long as an acquire and its reply."""

    request_id: int
    key: str


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Ball).decode


def frame(ball: Ball) -> bytes:
    """Length and body, as on the real wire."""
    body = _encode(ball)
    return len(body).to_bytes(4, "little") + body


class _Wall(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(frame(_decode(data[4:])))


async def _serve(path: str) -> None:
    server = await asyncio.get_running_loop().create_unix_server(_Wall, path)
    async with server:
        await server.serve_forever()


class PingPong:
    """A player here, a wall in a process pinned to *cpu*."""

    def __init__(self, directory: Path, cpu: int) -> None:
        path = str(directory / "pingpong.sock")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mooncake_node.bench.pingpong", path],
            preexec_fn=lambda: os.sched_setaffinity(0, {cpu}),  # noqa: PLW1509  no threads yet
        )
        self._socket = socket.socket(socket.AF_UNIX)
        while True:
            try:
                self._socket.connect(path)
                break
            except (FileNotFoundError, ConnectionRefusedError):
                if self._process.poll() is not None:
                    raise
        self._ball = Ball(7, "layers.11.attention.output.weight/shard-00")

    def play(self) -> None:
        """One round trip."""
        self._socket.sendall(frame(self._ball))
        _decode(self._socket.recv(65536)[4:])

    def close(self) -> None:
        """End the wall."""
        self._socket.close()
        self._process.terminate()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


if __name__ == "__main__":
    asyncio.Runner(loop_factory=uvloop.new_event_loop).run(_serve(sys.argv[1]))
