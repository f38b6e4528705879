"""Where a node listens: "host:port", an IPv6 address in brackets."""

import asyncio
import ipaddress
import socket

# A link that carries nothing notices a dead host after about half a minute.
_KEEPALIVE_IDLE_S = 15
_KEEPALIVE_INTERVAL_S = 5
_KEEPALIVE_PROBES = 3
_UNACKED_MS_MAX = 30_000


def parse_endpoint(endpoint: str) -> tuple[str, int]:
    """Host and port; ValueError says what is wrong."""
    host, colon, port = endpoint.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 0xFFFF:
        raise ValueError(f"{endpoint!r} is not host:port")
    return host, int(port)


def format_endpoint(host: str, port: int) -> str:
    """What `parse_endpoint` reads."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Family and first address of *host*, as `bind` and `connect` take them; OSError if there is none."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    return family, (str(address[0]), int(address[1]))


def is_loopback(host: str) -> bool:
    """Whether the numeric address *host* leads nowhere but to this machine."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback


def tune(sock: socket.socket) -> None:
    """Small messages leave at once; a host that vanished is noticed although nothing is sent to it."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKED_MS_MAX)
