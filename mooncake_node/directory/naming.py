"""What names and namespaces may be, and limits that hold in every directory."""

import re

from mooncake_node.directory.port import DirectoryError

SLOTS = 2_048
BATCH_MAX = 256  # items in one round trip

_NAMESPACE = re.compile(r"[A-Za-z0-9._-]{1,64}")
_NAME_NBYTES_MAX = 255
RESERVED_NAME = "!"  # stands for the tombstone among the nodes of an entry


def check_namespace(namespace: str) -> None:
    """DirectoryError unless it is 1 to 64 letters, digits, dots, dashes or underscores.

    Without colons two namespaces never meet in one name, and without braces keys spread over a cluster's servers.
    """
    if not _NAMESPACE.fullmatch(namespace):
        raise DirectoryError(
            f"the directory's namespace is 1 to 64 letters, digits, '.', '_' or '-', not {namespace!r}"
        )


def check_name(name: str) -> None:
    """DirectoryError unless it can be a node's name: 1 to 255 bytes, and not the one word that is taken."""
    if not 1 <= len(name.encode()) <= _NAME_NBYTES_MAX or name == RESERVED_NAME:
        raise DirectoryError(f"a node's name is 1 to {_NAME_NBYTES_MAX} bytes and not {RESERVED_NAME!r}: {name!r}")
