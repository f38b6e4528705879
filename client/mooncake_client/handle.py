"""What `get_buffer` and `create` give: a reference on an object's bytes, and room to fill."""

from typing import Self

from mooncake_client import wire
from mooncake_client.errors import InvalidArgumentError
from mooncake_client.views import WritableView


class BufferHandle:
    """One reference on one object's bytes in G, without a copy.

    The bytes stay as they are while this handle is unreleased or anything derived from `view` is alive: slices, casts,
    arrays, tensors. A view is bound to this process: it is not protected in a child of fork, nor can it be pickled.
    """

    __slots__ = ("__weakref__", "_view", "generation", "handle_id", "nbytes")

    def __init__(self, session_id: int, grant: wire.Grant, view: memoryview) -> None:
        self._view: memoryview | None = view
        # Length in bytes; still known after release().
        self.nbytes = grant.nbytes
        # 16 hexadecimal digits.
        self.generation = wire.generation_text(grant.generation)
        # (session, counter): unique on the node; two gets of one key have two.
        self.handle_id = (session_id, grant.handle_id)

    @property
    def view(self) -> memoryview:
        """The object's bytes, read-only; InvalidArgumentError after `release`."""
        if self._view is None:
            raise InvalidArgumentError("the handle was released")
        return self._view

    def release(self) -> None:
        """Let go. Takes effect when nothing derived from `view` is alive; a second call does nothing."""
        self._view = None

    def __bytes__(self) -> bytes:
        return bytes(self.view)

    def __len__(self) -> int:
        return self.nbytes

    def __bool__(self) -> bool:
        # An empty object is an object.
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.release()

    def __repr__(self) -> str:
        state = "released" if self._view is None else "held"
        return f"<BufferHandle {self.handle_id} {self.nbytes} bytes, {state}>"


class Draft:
    """Reserved room in G that its owner fills in place; the common part of both fronts' WritableBuffer.

    Dropped without publishing, the room goes back when nothing derived from `view` is alive any more.
    """

    __slots__ = ("_replica_id", "_writable", "key", "nbytes")

    def __init__(self, key: str, nbytes: int, replica_id: int, writable: WritableView) -> None:
        self.key = key
        # Length in bytes.
        self.nbytes = nbytes
        self._replica_id = replica_id
        self._writable: WritableView | None = writable

    @property
    def view(self) -> memoryview:
        """The room, writable; unusable after `publish`. InvalidArgumentError after publish or abort."""
        if self._writable is None:
            raise InvalidArgumentError(f"the buffer for {self.key!r} was published or given up")
        return self._writable.view

    @property
    def open(self) -> bool:
        """Neither published nor given up."""
        return self._writable is not None

    def abort(self) -> None:
        """Give the room up; it goes back when nothing derived from `view` is alive. A second call does nothing."""
        self._writable = None

    def __len__(self) -> int:
        return self.nbytes

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key!r} {self.nbytes} bytes, {'open' if self.open else 'closed'}>"

    def _end_writing(self) -> WritableView:
        """Nothing can store any more; BufferError, and nothing is changed, if something derived from `view` could."""
        if self._writable is None:
            raise InvalidArgumentError(f"the buffer for {self.key!r} was published or given up")
        self._writable.close()
        return self._writable
