"""The thin client of the node-local object store: zero-copy reads, puts straight to their final place.

>>> from mooncake_client import Client
>>> with Client() as c:
...     c.put("weights/0", array)
...     view = c.get("weights/0")   # read-only, over the pool itself
"""

from mooncake_client.aio import AsyncClient, AsyncWritableBuffer
from mooncake_client.blocking import Client
from mooncake_client.codes import Code
from mooncake_client.errors import (
    DaemonGoneError,
    ExistsError,
    InvalidArgumentError,
    NoSpaceError,
    NotFoundError,
    NotReadyError,
    ObjectLostError,
    StoreError,
    StoreTimeoutError,
    TransferError,
)
from mooncake_client.handle import BufferHandle
from mooncake_client.results import Holder, ObjectInfo, PutInfo
from mooncake_client.writable import WritableBuffer

__all__ = [
    "AsyncClient",
    "AsyncWritableBuffer",
    "BufferHandle",
    "Client",
    "Code",
    "DaemonGoneError",
    "ExistsError",
    "Holder",
    "InvalidArgumentError",
    "NoSpaceError",
    "NotFoundError",
    "NotReadyError",
    "ObjectInfo",
    "ObjectLostError",
    "PutInfo",
    "StoreError",
    "StoreTimeoutError",
    "TransferError",
    "WritableBuffer",
]
