"""Why a tier did not do what it was asked."""

import os
from errno import EDQUOT, ENOSPC
from pathlib import Path

from mooncake_client.codes import Code


class TierError(Exception):
    """An object was not written, read or removed. The message says what was tried, why it failed, and where."""

    default_code = Code.INTERNAL

    def __init__(self, message: str, *, path: Path | str = "", errno: int = 0, code: int | None = None) -> None:
        why = f": {os.strerror(errno)}" if errno else ""
        where = f" ({path})" if str(path) else ""
        super().__init__(f"{message}{why}{where}")
        self.path = str(path)
        self.errno = errno  # of the system call that failed; 0: none did
        self.code = int(self.default_code if code is None else code)


class TierMissingError(TierError):
    """The tier has no such object, or its file has gone behind the tier's back."""

    default_code = Code.NOT_FOUND


class TierCorruptError(TierError):
    """What lies there is not what was written. It is set aside and never served again."""

    default_code = Code.CHECKSUM_MISMATCH


class TierFullError(TierError):
    """The tier's limit would be passed, or its disk is full. Nothing was written."""

    default_code = Code.NO_SPACE


class TierIOError(TierError):
    """The system refused or failed: a read-only or broken disk, no permission, an injected fault."""

    default_code = Code.TRANSFER_FAILED


class TierRemovedError(TierError):
    """The object was removed, or its write given up, before the write had ended. Nothing of it is left: no failure."""

    default_code = Code.NOT_FOUND


class TierLockedError(TierError):
    """Another process uses this tier."""

    default_code = Code.INVALID_ARGUMENT


def from_os(what: str, path: Path | str, error: OSError) -> TierError:
    """The tier's word for *error*, met at *what* on *path*: TierFullError or TierIOError."""
    cls = TierFullError if error.errno in (ENOSPC, EDQUOT) else TierIOError
    return cls(what, path=path, errno=error.errno or 0)
