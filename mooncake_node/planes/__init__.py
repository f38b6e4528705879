"""Data planes: how objects' bytes come from another node's pool, or its disk, straight into ours."""

from mooncake_node.planes.memory import MemoryPlane, Mode
from mooncake_node.planes.port import DataPlane, Lender, Loan, Outcome, RefusedError, RemoteRange, Ticket
from mooncake_node.planes.tcp import TcpPlane
from mooncake_node.planes.tcp_counters import TcpCounters

__all__ = [
    "DataPlane",
    "Lender",
    "Loan",
    "MemoryPlane",
    "Mode",
    "Outcome",
    "RefusedError",
    "RemoteRange",
    "TcpCounters",
    "TcpPlane",
    "Ticket",
]
