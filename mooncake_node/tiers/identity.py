"""Who a directory belongs to: one process at a time, one node for ever."""

import contextlib
import fcntl
import os
import secrets
from pathlib import Path

import msgspec

from mooncake_node.tiers.errors import TierCorruptError, TierError, TierIOError, TierLockedError, from_os


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The file `identity.json`."""

    node_id: str  # random, made once
    floor: int = 0  # no generation up to this one may be given again


def lock(root: Path) -> int:
    """The descriptor that keeps the directory for this process; TierLockedError if another one has it."""
    path = root / "lock"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise from_os("cannot use this directory as a tier", path, error) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(fd, 32, 0).decode("ascii", "replace")
        os.close(fd)
        if isinstance(error, BlockingIOError):
            raise TierLockedError(
                f"another daemon (process {holder}) uses this offload directory; each needs one of its own", path=root
            ) from error
        raise from_os("cannot lock the offload directory", path, error) from error
    with contextlib.suppress(OSError):  # a full disk: only the message to others is the poorer
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
    return fd


def load(root: Path) -> Identity:
    """What the directory says of itself; a new one gets its identity now."""
    path = root / "identity.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Identity)
    except FileNotFoundError:
        identity = Identity(node_id=secrets.token_hex(16))
        save(root, identity)
        return identity
    except OSError as error:
        raise TierIOError("cannot read", path=path, errno=error.errno or 0) from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TierCorruptError(
            f"damaged ({error}); without it this node would give generations anew: mend it, or empty the directory",
            path=path,
        ) from error


def save(root: Path, identity: Identity) -> None:
    """Replace the file whole; when this returns it survives a loss of power. Raises TierError."""
    path = root / "identity.json"
    try:
        _replace(path, msgspec.json.encode(identity))
        directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        cannot: TierError = from_os("cannot write", path, error)
        raise cannot from error


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_suffix(".tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        left = memoryview(content)
        while left.nbytes:
            left = left[os.write(fd, left) :]
        os.fdatasync(fd)
    finally:
        os.close(fd)
    temporary.rename(path)
