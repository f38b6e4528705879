"""The store as a transit station: `python -m mooncake_node.demo.transit SOCKET SECONDS`."""

import sys
import time

import numpy as np

from mooncake_client import Client
from mooncake_node.demo.errors import DemoError
from mooncake_node.demo.messages import Transit, play, send

OBJECT_NBYTES = 1 << 20


def loop(client: Client, seconds: float) -> Transit:
    """Put, get, remove one object after the other; each get must give what was put in that round."""
    array = np.zeros(OBJECT_NBYTES // 8, dtype=np.int64)
    rounds = 0
    begun = time.perf_counter()
    while (elapsed := time.perf_counter() - begun) < seconds:
        rounds += 1
        array[0] = array[-1] = rounds
        client.put("demo-transit", array)
        got = client.get("demo-transit")
        if got[0] != rounds or got[-1] != rounds:
            raise DemoError(f"round {rounds}: the object that came is not the one that was put")
        if not client.remove("demo-transit"):
            raise DemoError(f"round {rounds}: the object was gone before it was removed")
        del got
    return Transit(array.nbytes, rounds, elapsed)


def main() -> None:
    """Loop, and tell how far it came."""
    socket, seconds = sys.argv[1:]
    with Client(socket, name="demo-transit") as client:
        send(loop(client, float(seconds)))


if __name__ == "__main__":
    play(main)
