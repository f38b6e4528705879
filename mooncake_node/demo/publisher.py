"""The demo's publisher, a process of its own: `python -m mooncake_node.demo.publisher SOCKET FILE`."""

import sys
import time
from pathlib import Path

import xxhash

from mooncake_client import Client
from mooncake_node.demo.messages import Publication, Tensor, play, send
from mooncake_node.demo.source import Array, look_at


def publish(client: Client, path: Path) -> Publication:
    """Put every tensor of *path* under its name."""
    tensors: list[Tensor] = []
    for name, dtype, array in look_at(path).tensors():
        # Also brings the file's pages in, so that the disk is not timed below.
        digest = checksum(array)
        begun_ns = time.perf_counter_ns()
        client.put(f"demo/{name}", array)
        put_ns = time.perf_counter_ns() - begun_ns
        tensors.append(Tensor(f"demo/{name}", dtype, array.nbytes, digest, put_ns))
    return Publication(tensors)


def checksum(array: Array) -> int:
    """xxh3 of the bytes of a contiguous array."""
    return xxhash.xxh3_64_intdigest(array.reshape(-1).view("u1").data)


def main() -> None:
    """Publish, tell what, and end: what was put needs its publisher no more."""
    socket, file = sys.argv[1:]
    with Client(socket, name="demo-publisher") as client:
        send(publish(client, Path(file)))


if __name__ == "__main__":
    play(main)
