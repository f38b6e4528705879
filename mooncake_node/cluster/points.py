"""Fault points of what leads to other nodes, and the way through them."""

import asyncio

from mooncake_client.faults import FaultTable

# The first and the third bear the names users know them by.
POINTS = {
    "ClientLocalCopyBeforeRefreshReplicaListRemote": "a key is not in memory here, others are not asked yet",
    "ClientLocalCopyAfterLookup": "the directory has said who has the key, nothing is reserved yet",
    "ClientLocalCopyAfterPutStart": "room for a copy is reserved, its source is not asked for a lease yet",
    "ClientLocalCopyAfterGetReplicaList": "the source has given a lease, nothing is transferred yet",
    "ClientLocalCopyAfterTransfer": "the bytes are here, the lease is not released yet",
    "ClientLocalCopyBeforePublish": "the bytes are verified, the directory does not know of the copy yet",
    "ClientLocalCopyBeforePutEnd": "the directory knows of the copy, no client can read it yet",
    "PeerBeforeGetReplicaList": "another node asks for a replica, no lease is given yet",
    "PeerAfterGetReplicaList": "a lease is given, the other node does not know yet",
    "PeerBeforeDrop": "a remove or upsert from another node was heard of, nothing is dropped yet",
    "PeerAfterDrop": "it is dropped, the other node does not know yet",
    "NodeAfterDirectoryCreate": "the directory has the new object, it is not readable on its own node yet",
    "NodeBeforeFanOut": "the directory knows of a remove or upsert, other nodes with copies do not yet",
}


class Points:
    """Passes points of *faults*, in the loop."""

    def __init__(self, faults: FaultTable) -> None:
        self._faults = faults

    async def hit(self, name: str) -> None:
        """Sleep there, or raise the StoreError injected there."""
        if self._faults.enabled and (seconds := self._faults.hit(name)):
            await asyncio.sleep(seconds)
