"""The handshake on a socket: frames as everywhere, but small, and never a byte read beyond the last of them."""

import asyncio
import socket
from collections.abc import Callable

import msgspec

from mooncake_client.framing import HEADER_NBYTES
from mooncake_node.peers.auth import (
    REASON_CHARS_MAX,
    Answering,
    AuthError,
    Dialing,
    HandshakeMessage,
    Kind,
    Refusal,
)
from mooncake_node.peers.endpoint import is_loopback, parse_endpoint, resolve, tune
from mooncake_node.peers.errors import PeerGoneError, PeerRefusedError
from mooncake_node.peers.identity import Identity

HANDSHAKE_TIMEOUT_S = 5.0
HANDSHAKE_NBYTES_MAX = 4096  # of one frame

# Of what a refused dialer still sends: read so that the refusal is not lost in a reset, up to here.
_DRAINED_NBYTES_MAX = 64 << 10
_DRAIN_TIMEOUT_S = 1.0

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[HandshakeMessage] = msgspec.msgpack.Decoder(HandshakeMessage)


async def send_message(sock: socket.socket, message: HandshakeMessage) -> None:
    """Send one frame."""
    body = _encoder.encode(message)
    await asyncio.get_running_loop().sock_sendall(sock, len(body).to_bytes(HEADER_NBYTES, "little") + body)


async def recv_message(sock: socket.socket) -> HandshakeMessage:
    """Exactly one frame; AuthError if it is no message of a handshake."""
    nbytes = int.from_bytes(await _recv_exactly(sock, HEADER_NBYTES), "little")
    if nbytes > HANDSHAKE_NBYTES_MAX:
        raise AuthError("that is no handshake of this protocol")
    body = await _recv_exactly(sock, nbytes)
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as exc:
        raise AuthError("that is no handshake of this protocol") from exc


async def answer(sock: socket.socket, answering: Answering, admit: Callable[[Identity, Kind], str]) -> None:
    """The listener's side. *admit* is asked about who has proved itself; what it says, unless "", is the refusal."""
    await send_message(sock, answering.challenge(await recv_message(sock)))
    proof = answering.finish(await recv_message(sock))
    if reason := admit(answering.peer, answering.kind):
        raise AuthError(reason)
    await send_message(sock, proof)


async def refuse(sock: socket.socket, reason: str) -> None:
    """Tell the dialer why not, as well as it will listen. The caller closes the socket."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_DRAIN_TIMEOUT_S):
            await send_message(sock, Refusal(reason[:REASON_CHARS_MAX]))
            sock.shutdown(socket.SHUT_WR)
            left = _DRAINED_NBYTES_MAX
            while left > 0 and (data := await loop.sock_recv(sock, left)):
                left -= len(data)
    except OSError:  # a timeout too
        pass


async def dial(
    me: Identity, peer: Identity, endpoint: str, *, kind: Kind, secret: bytes, timeout_s: float = HANDSHAKE_TIMEOUT_S
) -> socket.socket:
    """A connected non-blocking socket to *peer*, both sides proved; PeerGoneError says why there is none."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _dial(endpoint, Dialing(me, peer, kind, secret), secret)
    except AuthError as exc:
        raise PeerRefusedError(f"no connection to {peer.name} at {endpoint}: {exc}") from exc
    except TimeoutError as exc:
        raise PeerGoneError(f"{peer.name} at {endpoint} does not answer: no handshake in {timeout_s:g} s") from exc
    except OSError as exc:
        raise PeerGoneError(f"cannot reach {peer.name} at {endpoint}: {exc.strerror or exc}") from exc
    except ValueError as exc:
        raise PeerGoneError(f"cannot reach {peer.name}: {exc}") from exc


async def _dial(endpoint: str, dialing: Dialing, secret: bytes) -> socket.socket:
    family, address = await resolve(*parse_endpoint(endpoint))
    if not secret and not is_loopback(address[0]):
        raise AuthError("without a cluster secret only nodes on this machine are spoken to")
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        tune(sock)
        await asyncio.get_running_loop().sock_connect(sock, address)
        await send_message(sock, dialing.hello)
        await send_message(sock, dialing.prove(await recv_message(sock)))
        dialing.finish(await recv_message(sock))
    except BaseException:
        sock.close()
        raise
    return sock


async def _recv_exactly(sock: socket.socket, nbytes: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < nbytes:
        part = await loop.sock_recv(sock, nbytes - len(data))
        if not part:
            raise ConnectionResetError("it hung up during the handshake")
        data += part
    return data
