"""What the demo's processes tell each other: one JSON value a line, over stdin and stdout."""

import sys
from collections.abc import Callable
from typing import TypeVar

import msgspec

from mooncake_client import StoreError
from mooncake_node.demo.errors import DemoError
from mooncake_node.demo.memory import Place, Usage

T = TypeVar("T")


class Tensor(msgspec.Struct, frozen=True):
    """One published tensor."""

    key: str
    dtype: str  # as its file calls it
    nbytes: int
    xxh3: int  # of its bytes in the file
    put_ns: int


class Publication(msgspec.Struct, frozen=True):
    """All that was published; one put a tensor."""

    tensors: list[Tensor]

    @property
    def nbytes(self) -> int:
        """Of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def put_ns(self) -> int:
        """In the calls of put alone."""
        return sum(tensor.put_ns for tensor in self.tensors)

    @property
    def largest(self) -> Tensor:
        """The largest tensor."""
        return max(self.tensors, key=lambda tensor: tensor.nbytes)


class Reading(msgspec.Struct, frozen=True):
    """What one reader found; by tensor, in the order of the publication."""

    pid: int
    get_ns: list[int]
    bad_content: list[str]  # keys whose bytes are not what was published
    writable: list[str]  # keys whose array could be written to
    places: list[Place | None]  # None: not in the pool, or nothing to be anywhere


class Transit(msgspec.Struct, frozen=True):
    """A loop of put, get, remove."""

    nbytes: int  # of one object
    rounds: int
    seconds: float


class Measured(msgspec.Struct, frozen=True):
    """What a reader takes on top of what it took before its first get."""

    extra: Usage


def send(message: object) -> None:
    """To the process that started this one."""
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


def receive(kind: type[T]) -> T:
    """From the process that started this one; EOFError when it is gone."""
    line = sys.stdin.buffer.readline()
    if not line:
        raise EOFError
    return msgspec.json.decode(line, type=kind)


def play(role: Callable[[], None]) -> None:
    """Be one of the demo's processes; what went wrong is the last line on stderr."""
    try:
        role()
    except (DemoError, StoreError) as error:
        sys.exit(" ".join(str(error).split()))
    except EOFError:
        sys.exit("the demo has ended")
