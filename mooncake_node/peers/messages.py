"""What nodes say to each other, in frames as between client and daemon (`mooncake_client.wire`).

Fields are only ever appended, with a default. A request is answered once, by the reply its docstring names or by
`Failed`. A notice (request id 0) is not answered.
"""

import msgspec

from mooncake_client import wire
from mooncake_client.wire import Message

PEER_VERSION = 1
# Up to here an object comes whole: a lease and a transfer would cost two round trips more.
CARRIED_NBYTES_MAX = 8 << 10


class GetReplicas(Message, tag=40):
    """What this node has of each of *keys*, with a lease on it if it is in memory: `Replicas`.

    Waits while one is being published. A small object in memory comes whole, without a lease.
    """

    keys: list[str]


class ReleaseLeases(Message, tag=41):
    """A hint, sent at most once: these leases (key, replica_id, token) are needed no more. `Done`."""

    items: list[tuple[str, int, int]]


class Drop(Message, tag=42):
    """These generations were removed or replaced: each (key, generation) and all before it. `Done` when unreadable."""

    items: list[tuple[str, int]]
    is_replaced: bool = False  # by a newer one, which the directory has


class Clear(Message, tag=43):
    """Everything of a clear epoch below *epoch* goes: `Count` of the objects that this node owned."""

    epoch: int


class RemovePrefix(Message, tag=44):
    """Remove what this node owns under *prefix*, everywhere: `Count`."""

    prefix: str


class Pin(Message, tag=45):
    """Change the contract of what this node owns: *softpin* False ends it. `Done`."""

    key: str
    softpin: bool
    ttl_ms: int | None


class GetInfo(Message, tag=46):
    """`Infos` of each of *keys*."""

    keys: list[str]


class ListOwned(Message, tag=47):
    """One page of what this node owns under *prefix*; *cursor* as in `wire.ListKeys`: `Infos`."""

    prefix: str
    cursor: int


class Watch(Message, tag=48):
    """The sender has somebody who waits for these keys: `Flags`, which of them are readable here now."""

    keys: list[str]


class Unwatch(Message, tag=49):
    """A notice: nobody waits for them any more."""

    keys: list[str]


class Appeared(Message, tag=50):
    """A notice: these keys, which you watch, have just become readable here."""

    keys: list[str]


class GetHolders(Message, tag=51):
    """Who holds views of *key* on this node: `HolderList`."""

    key: str


class Announce(Message, tag=52):
    """The sender has begun a life: look who lives. `Done` when its objects are counted with those of all others."""


class ReplicaItem(msgspec.Struct, array_like=True, tag=1, gc=False, kw_only=True):
    """One replica, ready to be read by a data plane, or whole."""

    replica_id: int
    on_disk: bool
    offset: int  # in the pool; 0 on disk
    nbytes: int
    kind: int
    generation: int
    xxh3: int  # XXH3-64 of its bytes
    lease_token: int  # 0: nothing is leased, since it is on disk or comes whole
    lease_ms: int  # how long it runs
    data: memoryview | None = None  # its bytes, if it comes whole


class Replicas(Message, tag=120):
    """Answer to GetReplicas, in the order of its keys."""

    items: list[ReplicaItem | wire.Failure]


PeerRequest = (
    GetReplicas
    | ReleaseLeases
    | Drop
    | Clear
    | RemovePrefix
    | Pin
    | GetInfo
    | ListOwned
    | Watch
    | Unwatch
    | Appeared
    | GetHolders
    | Announce
)
PeerReply = wire.Failed | wire.Done | wire.Flags | wire.Infos | wire.Count | wire.HolderList | Replicas
