"""The settings themselves: name, kind, limits and default of each, in one place."""

import os
import re
from pathlib import Path
from typing import Annotated, Literal, get_type_hints

import msgspec

from mooncake_client.paths import default_socket_path
from mooncake_node.settings import rules
from mooncake_node.settings.rules import Rule

POOL_STEP_BYTES = 2 << 20  # a huge page, and the largest alignment of an object

_FREE_LOW_BYTES_MAX = 256 << 20
_YEAR_S = 365 * 86400.0
_DERIVED = Path()


def _host_name() -> str:
    """The host's name as a node's name: what a name may not hold becomes a dash."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", os.uname().nodename)[:64] or "node"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the operator decided, in base units: bytes and seconds.

    ``load`` checks limits; building one directly does not. Both derive ``admin_socket`` where it is
    not given, and the watermarks, and round ``pool_size`` up.
    """

    name: Annotated[str, rules.node_name("This node in logs, statistics and the cluster.")] = msgspec.field(
        default_factory=_host_name
    )
    socket: Annotated[Path, rules.socket_path("The clients' socket.")] = msgspec.field(
        default_factory=default_socket_path
    )
    admin_socket: Annotated[Path, rules.socket_path("The operators' socket: faults, drain, details of clients.")] = (
        _DERIVED
    )
    socket_mode: Annotated[int, rules.socket_mode("Who may connect: mode of the clients' socket.")] = 0o660

    pool_size: Annotated[int, rules.size("Shared memory for objects, rounded up to whole 2 MiB.", POOL_STEP_BYTES)] = (
        1 << 30
    )
    huge_pages: Annotated[
        Literal["auto", "off"],
        rules.choice("Ask for huge pages where /dev/shm offers them.", "auto", "off"),
    ] = "auto"
    shared_index: Annotated[
        Literal["auto", "off"],
        rules.choice("Let clients read without a request, where the machine can do it.", "auto", "off"),
    ] = "auto"
    prefault: Annotated[bool, rules.switch("Touch every page in the background, so that first puts are fast.")] = True

    free_min_bytes: Annotated[int, rules.size("Below so many free bytes a put reclaims what it takes. 0: derived.")] = 0
    free_low_bytes: Annotated[int, rules.size("Below so many free bytes reclaim runs unasked. 0: derived.")] = 0
    free_high_bytes: Annotated[int, rules.size("At so many free bytes background reclaim stops. 0: derived.")] = 0

    offload_dir: Annotated[
        Path | None,
        rules.optional(rules.directory("Where objects go that must stay readable but not in memory; none: nowhere.")),
    ] = None
    offload_max_bytes: Annotated[
        int, rules.size("What the offload directory may take. 0: nine tenths of what its disk has free at start.")
    ] = 0
    offload_small_max_bytes: Annotated[
        int, rules.size("Objects below this share files in the offload directory.", 0, 1 << 20)
    ] = 64 << 10
    offload_threads: Annotated[int, rules.count("Threads that write to the offload directory.", 1, 64)] = 2
    restore_threads: Annotated[int, rules.count("Threads that read from the offload directory.", 1, 64)] = 2
    offload_unpinned: Annotated[bool, rules.switch("Offload ordinary objects too, instead of dropping them.")] = False
    offload_durable: Annotated[bool, rules.switch("Have every offloaded object survive a loss of power, by fsync.")] = (
        False
    )

    default_kv_lease_ttl: Annotated[
        float,
        rules.seconds(
            "How long a remote reader may rely on a replica.",
            0.001,
            # So low that the bare milliseconds of a Mooncake configuration are refused, not obeyed.
            600.0,
            hint='; a bare number is seconds: write milliseconds as "30000ms"',
        ),
    ] = 30.0
    softpin_ttl_default: Annotated[
        float | None,
        rules.optional(rules.seconds("Deadline of a soft pin whose put names none.", 0.001, _YEAR_S)),
    ] = None
    softpin_ttl_max: Annotated[float, rules.seconds("Longest deadline a soft pin may ask for.", 0.001, _YEAR_S)] = (
        86400.0
    )
    hard_pin_max_bytes: Annotated[int, rules.size("Bytes that clients may pin hard; 0 refuses hard pins.")] = 0

    clients_max: Annotated[int, rules.count("Clients connected at one time.", 1, 65_536)] = 1024
    handles_max: Annotated[int, rules.count("References of one client.", 1, 100_000_000)] = 1_000_000
    reservations_max: Annotated[int, rules.count("Unfinished puts of one client.", 1, 10_000_000)] = 65_536
    waiters_max: Annotated[
        int, rules.count("Requests of all clients that wait for room, a writer or a key.", 1, 10_000_000)
    ] = 65_536
    request_timeout_max: Annotated[
        float, rules.seconds("Longest deadline a request may ask for.", 1.0, 7 * 86400.0)
    ] = 3600.0

    listen: Annotated[
        str | None,
        rules.optional(rules.endpoint("Where other nodes reach this one; none: any port of 127.0.0.1, in a cluster.")),
    ] = None
    directory: Annotated[
        str | None,
        rules.optional(rules.directory_url("The server that knows which node has what; none: this node is alone.")),
    ] = None
    directory_namespace: Annotated[str, rules.node_name("Which cluster, of those that share a directory server.")] = (
        "mooncake"
    )
    directory_timeout: Annotated[
        float,
        rules.seconds("After so long without an answer the directory is away; work goes on here.", 0.01, 60.0),
    ] = 0.5
    cluster_secret_file: Annotated[
        Path | None,
        rules.optional(rules.file("Holds what nodes prove to each other; needed to listen beyond 127.0.0.1.")),
    ] = None
    node_ttl: Annotated[float, rules.seconds("A node not heard of for so long is dead to the others.", 0.5, 600.0)] = (
        3.0
    )
    tombstone_ttl: Annotated[
        float, rules.seconds("How long a removal is remembered for nodes that are away.", 1.0, 30 * 86400.0)
    ] = 600.0
    quarantine_max_bytes: Annotated[
        int, rules.size("Memory that failed transfers may hold until they are over. 0: an eighth of the pool.")
    ] = 0

    start_wait: Annotated[
        float,
        rules.seconds("Patience at start with memory that old clients still hold.", 0.0, 3600.0),
    ] = 30.0
    stop_timeout: Annotated[
        float, rules.seconds("How long a stop may take to keep what was promised.", 0.0, 3600.0)
    ] = 30.0

    faults: Annotated[bool, rules.switch("Allow fault injection, for tests.")] = False
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        rules.choice("Least weight of a line that is logged.", "debug", "info", "warning", "error"),
    ] = "info"
    log_format: Annotated[
        Literal["auto", "console", "json"],
        rules.choice("auto: console on a terminal, else JSON.", "auto", "console", "json"),
    ] = "auto"

    def __post_init__(self) -> None:
        if self.admin_socket == _DERIVED:
            admin = self.socket.with_name(f"{self.socket.stem}.admin{self.socket.suffix}")
            msgspec.structs.force_setattr(self, "admin_socket", admin)
        whole = -(-self.pool_size // POOL_STEP_BYTES) * POOL_STEP_BYTES
        msgspec.structs.force_setattr(self, "pool_size", whole)
        # A 64th of the pool, of a large one 256 MiB: what puts take while a pass or a write is under way.
        low = self.free_low_bytes or min(whole // 64, _FREE_LOW_BYTES_MAX)
        msgspec.structs.force_setattr(self, "free_low_bytes", low)
        msgspec.structs.force_setattr(self, "free_min_bytes", self.free_min_bytes or low // 4)
        msgspec.structs.force_setattr(self, "free_high_bytes", self.free_high_bytes or 2 * low)


def _rules() -> dict[str, Rule]:
    found: dict[str, Rule] = {}
    for name, hint in get_type_hints(Settings, include_extras=True).items():
        (rule,) = hint.__metadata__
        assert isinstance(rule, Rule)
        found[name] = rule
    return found


RULES = _rules()  # the rule of every setting, in the order of the class

# Settings with a flag of their own; ``--set key=value`` reaches the others.
FLAGS = frozenset(
    {
        "name",
        "socket",
        "admin_socket",
        "pool_size",
        "offload_dir",
        "listen",
        "directory",
        "faults",
        "log_level",
        "log_format",
    }
)
assert set(RULES) >= FLAGS
