"""Sessions and handles: who holds what.

A session is one attached client. A handle is one reference of one session on one replica; its id is unique on the
node as (session, counter). Two gets of one key are two handles, though their bytes are the same.
"""

import msgspec

from mooncake_node.core.replica import Replica


class Handle(msgspec.Struct, gc=False, eq=False):
    """One reference. Lives until released by its client or by the client's death."""

    handle_id: int  # counter within the session, from 1
    replica: Replica
    since_ns: int


class Held(msgspec.Struct):
    """The replicas that have at least one handle, over all sessions."""

    count: int = 0
    nbytes: int = 0


class Session:
    """What one attached client holds. Changed only by the master."""

    __slots__ = (
        "handles",
        "name",
        "next_handle_id",
        "open",
        "pid",
        "readonly",
        "reservations",
        "session_id",
        "waiting",
    )

    def __init__(self, session_id: int, name: str, pid: int, *, readonly: bool) -> None:
        self.session_id = session_id
        self.name = name
        self.pid = pid
        self.readonly = readonly
        self.open = True
        self.next_handle_id = 1
        # All and only its live handles.
        self.handles: dict[int, Handle] = {}
        # All and only the WRITING and DOOMED replicas it reserved.
        self.reservations: dict[int, Replica] = {}
        # Requests of it that wait; counts them only.
        self.waiting = 0

    def take(self, replica: Replica, now_ns: int) -> Handle:
        """One more reference on *replica*, which must be readable."""
        handle = Handle(self.next_handle_id, replica, now_ns)
        self.next_handle_id += 1
        self.handles[handle.handle_id] = handle
        replica.refs += 1
        return handle

    def let_go(self, handle_id: int) -> Replica | None:
        """Give one reference back; None if it was given back before."""
        handle = self.handles.pop(handle_id, None)
        if handle is None:
            return None
        handle.replica.refs -= 1
        assert handle.replica.refs >= 0
        return handle.replica
