"""Knows whether this process is a child that fork made of one with clients.

A forked child shares its parent's socket and handles, so nothing of the parent's may act in it: views of the parent
let nothing go, clients of the parent refuse to work.
"""

import atexit
import os
import weakref
from typing import Protocol

from mooncake_client.errors import InvalidArgumentError


class _State:
    """Reached through closures and slots, which outlive module globals at interpreter exit."""

    # Changes in a child of fork, and when the interpreter begins to end.
    count = 0


STATE = _State()


def refusal() -> InvalidArgumentError:
    """What a child is told that uses a client of its parent."""
    return InvalidArgumentError("this client was made before a fork; make one in the child process")


class Forkable(Protocol):
    """What has to be cut off in a child."""

    def cut_off_in_child(self) -> None:
        """Runs in the child, before any of its own code; other threads of the parent do not exist there.

        Runs again in a child of the child.
        """
        ...


_registered: "weakref.WeakSet[Forkable]" = weakref.WeakSet()


def register(thing: Forkable) -> None:
    """Have *thing* cut off in every child forked while it lives."""
    _registered.add(thing)


def _in_child() -> None:
    STATE.count += 1
    for thing in list(_registered):
        thing.cut_off_in_child()


def _at_exit() -> None:
    # What dies from here on is given back by the end of the process.
    STATE.count += 1


os.register_at_fork(after_in_child=_in_child)
atexit.register(_at_exit)
