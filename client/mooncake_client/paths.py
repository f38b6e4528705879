"""Where the daemon's socket is when nobody names one: the same answer in daemon and client."""

import os
from collections.abc import Mapping
from pathlib import Path

SOCKET_VARIABLE = "MOONCAKE_NODE_SOCKET"

_ROOT_SOCKET = Path("/run/mooncake-node/node.sock")


def default_socket_path(env: Mapping[str, str] | None = None, *, uid: int | None = None) -> Path:
    """The data socket to serve or to connect to; the file need not exist.

    ``MOONCAKE_NODE_SOCKET`` if set and not empty; else below ``/run`` for root, below the user's
    ``XDG_RUNTIME_DIR`` for others, and below ``/tmp``, with the user's number, where there is none.
    *env* and *uid* stand for this process's own unless given.
    """
    variables = os.environ if env is None else env
    user = os.getuid() if uid is None else uid
    if named := variables.get(SOCKET_VARIABLE):
        return Path(named)
    if user == 0:
        return _ROOT_SOCKET
    runtime_dir = Path(variables.get("XDG_RUNTIME_DIR", ""))
    # The XDG specification tells programs to ignore a relative path here.
    if runtime_dir.is_absolute():
        return runtime_dir / "mooncake-node" / "node.sock"
    # Anyone may create this directory first: the daemon must check its owner before it binds there.
    return Path(f"/tmp/mooncake-node-{user}/node.sock")  # noqa: S108  fixed, so that clients find it
