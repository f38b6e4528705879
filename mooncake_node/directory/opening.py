"""A directory by its URL."""

import importlib

from mooncake_node.directory.port import Directory, DirectoryError


def open_directory(
    url: str, *, namespace: str, liveness_ttl_s: float, tombstone_s: float, timeout_s: float
) -> Directory:
    """The directory at *url*, not connected yet. DirectoryError: the URL or the namespace is bad, or the extra missing.

    A node goes unseen *liveness_ttl_s* after its last renewal, a removal is remembered for *tombstone_s*, and a call
    without an answer ends after *timeout_s*.
    """
    # By name and only now: redis is an extra, and costs a node that stands alone its start-up time.
    try:
        valkey = importlib.import_module("mooncake_node.directory.valkey")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "redis":
            raise
        raise DirectoryError("a directory needs an extra: pip install 'mooncake-node[cluster]'") from error
    directory: Directory = valkey.ValkeyDirectory(
        url, namespace=namespace, liveness_ttl_s=liveness_ttl_s, tombstone_s=tombstone_s, timeout_s=timeout_s
    )
    return directory
