"""The moment at which a file gets its name, against the removal of what lies in it."""

import os
import threading
from itertools import groupby
from pathlib import Path

from mooncake_node.tiers.errors import TierRemovedError
from mooncake_node.tiers.place import TEMPORARY, Place
from mooncake_node.tiers.trailer import DEAD


class Publication:
    """One file under way to its name, with the objects in it numbered from 0.

    Whatever comes first, publishing or a removal, when both have returned the removed objects are gone: a removal
    before the rename is carried over into the file, or stops it; one after it changes the named file. Neither waits
    for more than the other's few system calls. For the threads of the tier.
    """

    def __init__(self, place: Place, path: Path, count: int) -> None:
        self.path = path
        self.count = count
        self.temporary = path.with_name(path.name + TEMPORARY)
        self.flags_offset = 0  # known when the trailer is
        self._place = place
        self._lock = threading.Lock()
        self._revoked: set[int] = set()
        self._is_published = False
        self._is_given_up = False

    def give_up(self) -> None:
        """Have the writer stop when it next looks. For the loop: it waits for nothing, and promises nothing."""
        self._is_given_up = True

    def check(self) -> None:
        """Raise TierRemovedError if nothing is left that is worth writing."""
        if self._is_given_up or len(self._revoked) == self.count:
            raise TierRemovedError("removed while it was being written", path=self.path)

    def publish(self) -> None:
        """Give the temporary file its name. Raises TierRemovedError, or OSError: then there is no such name."""
        with self._lock:
            self.check()
            if self._revoked:
                mark_dead(self._place, self.temporary, self.flags_offset, self._revoked)
            self.temporary.rename(self.path)
            self._is_published = True
        self._place.sync_parent(self.path)

    def revoke(self, numbers: set[int]) -> None:
        """Have these objects not be there, neither now nor later. OSError: they may be."""
        with self._lock:
            self._revoked |= numbers
            if not self._is_published:
                return
            if len(self._revoked) == self.count:
                self._place.unlink(self.path)
            else:
                mark_dead(self._place, self.path, self.flags_offset, numbers)

    def revoke_all(self) -> None:
        """Have nothing of the file be there."""
        self.revoke(set(range(self.count)))


def mark_dead(place: Place, path: Path, flags_offset: int, numbers: set[int]) -> None:
    """Turn the flags of these objects, so that no restart finds them. A file that is gone is no error."""
    ordered = sorted(numbers)
    runs = [list(run) for _, run in groupby(enumerate(ordered), lambda item: item[1] - item[0])]
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        for run in runs:
            os.pwrite(fd, bytes((DEAD,)) * len(run), flags_offset + run[0][1])
        if place.durable:
            os.fdatasync(fd)
    finally:
        os.close(fd)
