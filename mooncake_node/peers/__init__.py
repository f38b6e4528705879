"""Peers: what nodes say to each other, and the links they say it over."""

from mooncake_node.peers.errors import (
    PeerError,
    PeerGoneError,
    PeerListenError,
    PeerRefusedError,
    PeerTimeoutError,
)
from mooncake_node.peers.identity import Identity, Me
from mooncake_node.peers.line import Pace
from mooncake_node.peers.links import PeerLinks
from mooncake_node.peers.listener import Limits, PeerListener

__all__ = [
    "Identity",
    "Limits",
    "Me",
    "Pace",
    "PeerError",
    "PeerGoneError",
    "PeerLinks",
    "PeerListenError",
    "PeerListener",
    "PeerRefusedError",
    "PeerTimeoutError",
]
