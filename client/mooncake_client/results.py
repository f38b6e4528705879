"""What calls give back."""

import msgspec

from mooncake_client import wire
from mooncake_client.wire import Holder, ObjectInfo

__all__ = ["Holder", "ObjectInfo", "PutInfo"]


class PutInfo(msgspec.Struct, frozen=True, gc=False):
    """A finished put: the object is readable by everyone it is meant for."""

    generation: str  # 16 hexadecimal digits; later lives of a key compare greater
    nbytes: int
    scope: str  # "cluster" | "node"


def put_info(published: wire.Published) -> PutInfo:
    """The public form of a wire reply."""
    return PutInfo(wire.generation_text(published.generation), published.nbytes, published.scope)
