"""One of the cluster demo's workers, a process of its own: `python -m mooncake_node.demo.worker SOCKET NAME`."""

import sys
import time

import numpy as np

from mooncake_client import Client, NotFoundError
from mooncake_node.demo.memory import find, own_maps
from mooncake_node.demo.messages import play, receive, send
from mooncake_node.demo.orders import Got, Order, Removed, Stored
from mooncake_node.demo.publisher import checksum
from mooncake_node.demo.source import Array


class Worker:
    """Does what it is told, and holds what it has got until it is told to let go."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._held: dict[str, Array] = {}

    def do(self, order: Order) -> object:
        """Carry out one order; what came of it."""
        _sleep_until(order.at_ns)
        if order.call == "put":
            return self._put(order.key, order.nbytes)
        if order.call == "get":
            return self._get(order.key)
        if order.call == "remove":
            return self._remove(order.key)
        self._held.pop(order.key, None)
        return "let go"

    def _put(self, key: str, nbytes: int) -> Stored:
        # Random, so that no two objects are alike and none is all zeros.
        array = np.frombuffer(np.random.default_rng().bytes(nbytes), dtype=np.uint8)
        digest = checksum(array)
        begun_ns = time.perf_counter_ns()
        put = self._client.put(key, array)
        return Stored(put.nbytes, digest, time.perf_counter_ns() - begun_ns)

    def _get(self, key: str) -> Got:
        begun_ns = time.perf_counter_ns()
        try:
            array = self._client.get(key)
        except NotFoundError:
            return Got(False, time.perf_counter_ns() - begun_ns)
        took_ns = time.perf_counter_ns() - begun_ns
        self._held[key] = array
        place = find(array.ctypes.data, array.nbytes, own_maps()) if array.nbytes else None
        return Got(True, took_ns, array.nbytes, checksum(array), place)

    def _remove(self, key: str) -> Removed:
        begun_ns = time.perf_counter_ns()
        was_there = self._client.remove(key)
        return Removed(was_there, time.perf_counter_ns() - begun_ns)


def _sleep_until(at_ns: int) -> None:
    time.sleep(max(0, at_ns - time.monotonic_ns()) / 1e9)


def main() -> None:
    """Attach, and obey until the input ends."""
    socket, name = sys.argv[1:]
    with Client(socket, name=name) as client:
        client.exists("demo")
        send("attached")
        worker = Worker(client)
        while True:
            try:
                order = receive(Order)
            except EOFError:
                return
            send(worker.do(order))


if __name__ == "__main__":
    play(main)
