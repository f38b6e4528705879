"""The tiers' fault points. They are passed in a worker thread, once for each file or pack."""

import threading
import time
from pathlib import Path

from mooncake_client.errors import StoreError
from mooncake_client.faults import FaultTable
from mooncake_node.tiers.errors import TierIOError

POINTS = {
    "TierBeforeWrite": "a tier is about to write an object or a pack, no file is there yet",
    "TierAfterWrite": "the bytes are in a temporary file",
    "TierBeforeRename": "the temporary file is complete and about to get its name",
    "TierAfterRename": "the file has its name, nobody knows yet",
    "TierBeforeRead": "a tier is about to open an object's file",
    "TierBeforeAmend": "a tier is about to write the changed contract of an object",
    "TierBeforeAmendRename": "the changed contract is in a temporary file and about to get its name",
    "TierAfterAmendRename": "the changed contract is in force, nobody knows yet",
    "TierAfterRead": "the bytes are in their place and verified, nobody knows yet",
}


class Points:
    """The points of one tier. Its threads take turns at the table, so that no hit is lost."""

    def __init__(self, faults: FaultTable | None) -> None:
        self._faults = faults if faults is not None and faults.enabled else None
        self._locks = {name: threading.Lock() for name in POINTS}

    def hit_blocking(self, name: str, path: Path) -> None:
        """Pass the point: sleep in this thread, or raise the injected error as a TierIOError with its code."""
        if self._faults is None:
            return
        try:
            with self._locks[name]:
                seconds = self._faults.hit(name)
        except StoreError as error:
            raise TierIOError(error.message, path=path, code=error.code) from None
        if seconds:
            time.sleep(seconds)
