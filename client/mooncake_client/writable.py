"""Room in G to fill in place, as the blocking client gives it."""

from typing import TYPE_CHECKING, Any, Self

from mooncake_client import operations
from mooncake_client.handle import Draft
from mooncake_client.link import Link
from mooncake_client.results import PutInfo

if TYPE_CHECKING:
    from mooncake_client.blocking import Client


class WritableBuffer(Draft):
    """Room in G to fill in place: write through `view`, then `publish`; as a context manager it does so at its end.

    An exception inside the `with` block, or dropping the buffer, gives the room up.
    """

    __slots__ = ("_client", "_link")

    def __init__(self, client: "Client", link: Link, *draft: Any) -> None:
        super().__init__(*draft)
        self._client = client
        self._link = link

    def publish(self) -> PutInfo:
        """Make the object readable by everyone; copies nothing.

        BufferError, and the buffer stays open, while anything derived from `view` is alive: it could still store.
        """
        writable = self._end_writing()
        try:
            info = self._client.run_on(
                self._link, operations.publish(self.key, self._replica_id), self._client.settings.timeout_s
            )
            # Until here the view's death gives the room back; behind an end that went out that does nothing.
            self._link.attachment.session.drafts.pop(self._replica_id, None)
            return info
        finally:
            self._writable = None
            del writable

    def abort(self) -> None:
        """Give the room up; it goes back when nothing derived from `view` is alive. A second call does nothing."""
        super().abort()
        self._link.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: object, *_exc: object) -> None:
        if self.open:
            if exc_type is None:
                self.publish()
            else:
                self.abort()
