"""One life of a connection: its session and its mappings of G.

A client gets a new attachment after the daemon was restarted. The old one lives on, with its mapping, exactly as long
as views of it do; nothing of one is ever mixed with another.
"""

import contextlib
import os
import threading
from collections.abc import Callable

from mooncake_client import wire
from mooncake_client.copying import WriteWindow
from mooncake_client.errors import DaemonGoneError, InvalidArgumentError
from mooncake_client.faults import CLIENT_FAULTS
from mooncake_client.handshake import Attached
from mooncake_client.mapping import Mapping
from mooncake_client.session import Session
from mooncake_client.shared_index import SharedIndex
from mooncake_client.views import LeaseMaker, WritableView


class Attachment:
    """G as one client sees it: reads through a read-only mapping, writes through a second one made on first use."""

    def __init__(
        self,
        attached: Attached,
        *,
        notify: Callable[[wire.Request], None],
        on_leftover: Callable[[], None],
    ) -> None:
        """Takes the descriptors over. *notify* sends a notice, or drops it when the connection is gone."""
        if not attached.descriptors:
            attached.close()
            raise InvalidArgumentError(
                f"that is the admin socket of node {attached.welcome.node}, which gives no access to objects"
            )
        self.welcome = attached.welcome
        self.notify = notify
        self.session = Session(on_leftover)
        self.pool_nbytes = attached.welcome.pool_nbytes
        read_fd, *rest = attached.descriptors
        attached.descriptors = []
        index_fds: list[int] = []
        if attached.welcome.index is not None:
            rest, index_fds = rest[:-3], rest[-3:]
        # The way to objects without the daemon; None: there is none.
        self.index: SharedIndex | None = None
        # At most one; a list, since its pop() cannot be divided: whoever has taken it out may use or close it.
        self._write_fds = rest
        self._leases: LeaseMaker | None = None
        self._window: WriteWindow | None = None
        self._opening = threading.Lock()
        self._drafts: LeaseMaker | None = None
        try:
            pool = Mapping(read_fd, self.pool_nbytes, writable=False)
            self._leases = LeaseMaker(pool, self.session.let_go)
            if attached.welcome.index is not None:
                index = SharedIndex(attached.welcome.index, index_fds, pool, self.session.tell_unpinned)
                self.index, self.session.pin_row = index, index.row
        except BaseException:
            self.detach()
            attached.close()
            raise
        finally:
            for descriptor in (read_fd, *index_fds):
                os.close(descriptor)

    def view(self, grant: wire.Grant) -> memoryview:
        """A read-only view of granted bytes; the handle is let go when the last thing derived from it dies."""
        # Entered first: a close in another thread either sees it, or has detached and is noticed here.
        self.session.live[grant.handle_id] = None
        try:
            leases = self._leases
            if leases is None:
                raise _gone()
            return leases.view(grant.handle_id, grant.offset, grant.nbytes).toreadonly()
        except BaseException:
            self.session.let_go(grant.handle_id)
            raise

    @property
    def carries_puts(self) -> bool:
        """Small puts may go whole in one message. With fault injection on either side they take the way with points."""
        return not (self.welcome.faults or CLIENT_FAULTS.enabled)

    def window(self) -> WriteWindow:
        """Where to write. Whoever uses it keeps a reference, so that a detach cannot unmap it meanwhile."""
        return self._window or self._open_window()

    def begin_writing(self, replica_id: int) -> WriteWindow:
        """`window`, for a copy into a reservation; the connection does not end before `end_writing`."""
        # Entered first, as in view().
        self.session.writing[replica_id] = None
        try:
            return self.window()
        except BaseException:
            self.end_writing(replica_id)
            raise

    def end_writing(self, replica_id: int) -> None:
        """The copy has stopped."""
        self.session.writing.pop(replica_id, None)
        if self._leases is None:
            # Detached; the connection may have been waiting for this to end.
            self.session.on_leftover()

    def draft(self, reservation: wire.Reservation, nbytes: int) -> WritableView:
        """A writable view of reserved room; a reservation whose view dies unpublished is given back."""
        # Entered first, as in view().
        self.session.drafts[reservation.replica_id] = None
        try:
            drafts = self._drafts
            if drafts is None:
                drafts = self._drafts = LeaseMaker(self.window().mapping, self.session.give_up)
            return WritableView(drafts, reservation.replica_id, reservation.offset, nbytes)
        except BaseException:
            self.session.give_up(reservation.replica_id)
            raise

    def detach(self) -> None:
        """Let go of G as far as no view or copy under way needs it, so that a new daemon finds room for its pool."""
        index = self.index
        if index is not None:
            # Before it is gone from here: another thread that finds it gone takes it for closed, and may say goodbye.
            index.row.closing = True
        self.index = None
        self._leases = None
        self._window = None
        self._drafts = None
        # Two threads may see the connection end.
        with contextlib.suppress(IndexError):
            os.close(self._write_fds.pop())

    def _open_window(self) -> WriteWindow:
        with self._opening:
            window = self._window
            if window is None:
                if not self._write_fds:
                    raise _gone()
                # Taken out, so that a detach in another thread cannot close it in our hands.
                fd = self._write_fds.pop()
                try:
                    mapping = Mapping(fd, self.pool_nbytes, writable=True)
                    window = self._window = WriteWindow(mapping, fd, huge_pages=self.welcome.huge_pages)
                finally:
                    self._write_fds.append(fd)
                if self._leases is None:
                    self.detach()
                    raise _gone()
            return window


def _gone() -> DaemonGoneError:
    return DaemonGoneError("the connection to the daemon was lost or closed")
