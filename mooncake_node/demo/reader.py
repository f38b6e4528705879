"""One of the demo's readers, a process of its own: `python -m mooncake_node.demo.reader SOCKET`."""

import os
import sys
import time

from mooncake_client import Client
from mooncake_node.demo.memory import find, own_maps, usage
from mooncake_node.demo.messages import Measured, Publication, Reading, play, receive, send
from mooncake_node.demo.publisher import checksum
from mooncake_node.demo.source import Array


def read(client: Client, published: Publication) -> tuple[Reading, list[Array]]:
    """Get every tensor and look at it; the arrays are still held."""
    arrays: list[Array] = []
    get_ns: list[int] = []
    for tensor in published.tensors:
        begun_ns = time.perf_counter_ns()
        array = client.get(tensor.key)
        get_ns.append(time.perf_counter_ns() - begun_ns)
        arrays.append(array)
    maps = own_maps()
    both = list(zip(published.tensors, arrays, strict=True))
    reading = Reading(
        os.getpid(),
        get_ns,
        [tensor.key for tensor, array in both if checksum(array) != tensor.xxh3 or array.nbytes != tensor.nbytes],
        [tensor.key for tensor, array in both if array.flags.writeable],
        [find(array.ctypes.data, array.nbytes, maps) if array.nbytes else None for array in arrays],
    )
    return reading, arrays


def main() -> None:
    """Attach; on a list of what there is, read it all; on a word, measure; on the next, let go."""
    (socket,) = sys.argv[1:]
    with Client(socket, name="demo-reader", readonly=True) as client:
        client.exists("demo/")
        send("attached")
        published = receive(Publication)
        before = usage()
        reading, arrays = read(client, published)
        send(reading)
        # Measured only when every reader holds everything: a page's share depends on how many have it.
        receive(str)
        send(Measured(usage().since(before)))
        receive(str)
        arrays.clear()


if __name__ == "__main__":
    play(main)
