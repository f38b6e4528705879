"""The wire contract between client and daemon: every message as a tagged array, the limits, the version.

A frame is a 4-byte little-endian length and one message. Fields are only ever appended, with a default. Object bytes
lie in G at (offset, nbytes) and do not travel here, but for those of small puts. Times are milliseconds, relative;
generations are 64-bit numbers, shown to users as 16 hexadecimal digits.
"""

from typing import Any

import msgspec

from mooncake_client.index_layout import Shape

PROTOCOL_VERSION = 1
FRAME_NBYTES_MAX = 16 << 20
ITEMS_MAX = 4096  # keys, replicas or puts in one message
KEY_NBYTES_MAX = 1024
# Up to here an object's bytes may ride in the message: a copy more costs less than a second round trip.
CARRIED_NBYTES_MAX = 8 << 10
CARRIED_TOTAL_NBYTES_MAX = 1 << 20  # in one message
NAME_CHARS_MAX = 128
TIMEOUT_MS_MAX = 7 * 24 * 3600 * 1000


class Message(msgspec.Struct, array_like=True):
    """One request or reply. *request_id* pairs them; 0 is a notice that has no reply."""

    request_id: int


class Request(Message):
    """What a client sends. *released* are handles it let go since its last message."""

    released: list[int]


# -- parts of messages ------------------------------------------------------------------------------------------------


class Failure(msgspec.Struct, array_like=True, tag=0, gc=False):
    """One item's no; *code* as in `codes`."""

    code: int
    message: str


class Deferred(msgspec.Struct, array_like=True, tag=1, gc=False):
    """This item would have had to wait, and only the first of a batch may: ask again."""


class Grant(msgspec.Struct, array_like=True, tag=2, gc=False):
    """A handle on readable bytes in G."""

    handle_id: int
    replica_id: int
    offset: int
    nbytes: int
    kind: int
    generation: int


class Reservation(msgspec.Struct, array_like=True, tag=3, gc=False):
    """Room to write into; answered by PutEnd or PutRevoke after the last store."""

    replica_id: int
    offset: int


class Published(msgspec.Struct, array_like=True, tag=4, gc=False):
    """The object is readable by everyone."""

    generation: int
    nbytes: int
    scope: str


class ObjectInfo(msgspec.Struct, array_like=True, tag=5, gc=False, kw_only=True):
    """What is known of one readable object, without touching it."""

    key: str
    nbytes: int
    kind: str  # "raw" | "encoded" | "pickled"
    generation: str
    state: str
    refs: int  # live views, over all clients of this node
    age_s: float  # since it became readable
    softpin: bool
    softpin_deadline_s: float | None  # seconds from now; None: until removed, or not pinned
    hardpin: bool
    scope: str


class ReplicaInfo(msgspec.Struct, array_like=True, gc=False, kw_only=True):
    """One replica on this node, for a reader on another."""

    replica_id: int
    tier: str  # "memory" | "disk"
    offset: int  # in G; 0 on disk
    nbytes: int
    kind: int
    generation: int
    lease_token: int  # 0: no lease was given
    lease_ms: int  # how long it runs


class Holder(msgspec.Struct, array_like=True, gc=False, kw_only=True):
    """How one client holds one generation of a key."""

    client: str
    pid: int
    handles: int
    oldest_s: float
    generation: str
    note: str  # "" | "removed, memory kept for this reader" | …


class PutSpec(msgspec.Struct, array_like=True, gc=False):
    """One object that asks for room."""

    key: str
    nbytes: int
    kind: int
    upsert: bool
    softpin: bool = False
    softpin_ttl_ms: int | None = None
    hardpin: bool = False
    scope: str | None = None


# -- requests ---------------------------------------------------------------------------------------------------------


class Hello(Request, tag=1):
    """The first message on a data or admin socket."""

    version: int
    name: str
    pid: int
    readonly: bool
    can_pin: bool = False  # it is registered for the barrier that the shared index needs


class Released(Request, tag=2):
    """A notice that carries nothing but released handles."""


class Goodbye(Request, tag=3):
    """A notice: this client holds no view and stores into nothing any more; all that is left of it may go."""


class Unpinned(Request, tag=5):
    """A notice: something was let go of in the pin row that the daemon wants to hear of."""


class Cancel(Request, tag=4):
    """A notice: the caller of *target* has given up waiting. Its reply still comes."""

    target: int


class Acquire(Request, tag=10):
    """Handles on *keys*; each waits up to *timeout_ms* while its first generation is being written."""

    keys: list[str]
    timeout_ms: int


class PutStart(Request, tag=11):
    """Room for each of *puts*. Only the first may wait; later ones that would are answered `Deferred`."""

    puts: list[PutSpec]
    timeout_ms: int


class PutBytes(Request, tag=9):
    """Small objects whole: room, bytes and publication in one step. None waits: one that would is `Deferred`."""

    puts: list[PutSpec]
    data: list[memoryview]  # as long as each spec says, up to CARRIED_NBYTES_MAX


class PutEnd(Request, tag=12):
    """Publish; sent after the last store."""

    replica_ids: list[int]


class PutRevoke(Request, tag=13):
    """Give reservations back; sent after the last store."""

    replica_ids: list[int]


class Exists(Request, tag=14):
    """Which of *keys* are readable. No reference, no lease, no recency."""

    keys: list[str]


class Info(Request, tag=15):
    """`ObjectInfo` of each of *keys*."""

    keys: list[str]


class Remove(Request, tag=16):
    """Take *keys* away; with *generation* only that one."""

    keys: list[str]
    generation: int | None
    scope: str | None


class RemovePrefix(Request, tag=17):
    """Remove every key that starts with *prefix* and is there when the request arrives."""

    prefix: str
    scope: str | None


class RemoveAll(Request, tag=18):
    """The barrier: nothing put or begun before the reply is readable after it."""

    scope: str | None


class Wait(Request, tag=19):
    """Answered when *key* is readable."""

    key: str
    timeout_ms: int


class Pin(Request, tag=20):
    """A soft pin from now on; *ttl_ms* None: until removed."""

    key: str
    ttl_ms: int | None


class Unpin(Request, tag=21):
    """End the soft pin."""

    key: str


class GetReplicaList(Request, tag=25):
    """The replicas of *key* on this node, with a lease on the one in memory. For readers on other nodes."""

    key: str


class ReleaseLease(Request, tag=26):
    """A hint: the lease is needed no more. What fits no running lease changes nothing."""

    key: str
    replica_id: int
    lease_token: int


class ListKeys(Request, tag=22):
    """One page of objects by prefix. *cursor* 0 begins, else as the last page said."""

    prefix: str
    cursor: int


class Holders(Request, tag=23):
    """Who holds views of *key*."""

    key: str


class Stats(Request, tag=24):
    """The statistics of SPEC 11."""


class Fault(Request, tag=30):
    """Fault injection; admin socket only. *verb*: "list" | "inject" | "status" | "reset"."""

    verb: str
    name: str = ""
    action: str = ""
    value: int = 0
    start: int = 1
    times: int = 1


AnyRequest = (
    Hello
    | Released
    | Goodbye
    | Unpinned
    | Cancel
    | Acquire
    | PutStart
    | PutBytes
    | PutEnd
    | PutRevoke
    | Exists
    | Info
    | Remove
    | RemovePrefix
    | RemoveAll
    | Wait
    | Pin
    | Unpin
    | GetReplicaList
    | ReleaseLease
    | ListKeys
    | Holders
    | Stats
    | Fault
)


# -- replies ----------------------------------------------------------------------------------------------------------


class Failed(Message, tag=100):
    """The request as a whole was refused; request_id 0: the connection was."""

    code: int
    message: str


class Welcome(Message, tag=101):
    """Answer to Hello. G's descriptors travel beside it: read-only, then writable unless `readonly`.

    With *index* three more: its control segment, the accessed bytes, this client's pin row.
    """

    version: int
    node: str
    session_id: int
    pool_nbytes: int
    admin_socket: str
    faults: bool
    huge_pages: bool  # all of the pool lies on them by now
    index: Shape | None = None


class Done(Message, tag=102):
    """Carried out; nothing more to say."""


class Acquired(Message, tag=103):
    """Answer to Acquire, in the order of its keys."""

    items: list[Grant | Failure]


class PutStarted(Message, tag=104):
    """Answer to PutStart, in the order of its puts."""

    items: list[Reservation | Failure | Deferred]


class PutEnded(Message, tag=105):
    """Answer to PutEnd and PutBytes, in the order of their items."""

    items: list[Published | Failure | Deferred]


class Flags(Message, tag=106):
    """Answer to Exists and Remove, in the order of their keys."""

    items: list[bool]


class Infos(Message, tag=107):
    """Answer to Info and ListKeys. *cursor* 0: no more pages."""

    items: list[ObjectInfo | Failure]
    cursor: int = 0


class Count(Message, tag=108):
    """Answer to RemovePrefix and RemoveAll: how many objects were removed."""

    count: int


class HolderList(Message, tag=109):
    """Answer to Holders."""

    items: list[Holder]


class Facts(Message, tag=110):
    """Answer to Stats and Fault."""

    facts: dict[str, Any]


class ReplicaList(Message, tag=111):
    """Answer to GetReplicaList."""

    items: list[ReplicaInfo]


AnyReply = (
    Failed
    | Welcome
    | Done
    | Acquired
    | PutStarted
    | PutEnded
    | Flags
    | Infos
    | Count
    | HolderList
    | Facts
    | ReplicaList
)


def generation_text(generation: int) -> str:
    """16 hexadecimal digits; ordered as text like the numbers."""
    return f"{generation:016x}"
