"""What two nodes say on a data connection.

The receiver asks with one request; the sender answers with one reply and, if that is not a refusal, exactly so many
raw bytes; then the receiver may ask again. Requests and replies are frames: 4 bytes of length, little-endian, then
msgpack. Fields are only ever appended, with a default.
"""

import msgspec

HEADER_NBYTES = 4
FRAME_NBYTES_MAX = 4096
REASON_CHARS_MAX = 400
PART_NBYTES_MAX = 256 << 10  # in one system call


class Request(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """Send this replica, if it is still there as described."""

    request_id: int  # not 0; unlike that before on this connection
    key: str
    replica_id: int
    generation: int
    lease_token: int
    nbytes: int


class Reply(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """Either `nbytes` raw bytes follow, or none and `refusal` says why."""

    request_id: int  # the request's
    nbytes: int
    refusal: str = ""


_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(Request).decode
_decode_reply = msgspec.msgpack.Decoder(Reply).decode


class FrameError(Exception):
    """The other side sent what is no frame of ours; nothing after it can be trusted."""


def pack(frame: Request | Reply) -> bytes:
    """One frame."""
    body = _encode(frame)
    assert 0 < len(body) <= FRAME_NBYTES_MAX
    return len(body).to_bytes(HEADER_NBYTES, "little") + body


def refusal(request: Request, reason: str) -> Reply:
    """The answer no, with as much of *reason* as a frame takes."""
    return Reply(request_id=request.request_id, nbytes=0, refusal=reason[:REASON_CHARS_MAX] or "no reason given")


def body_nbytes(header: bytes | bytearray | memoryview) -> int:
    """How many bytes follow these 4. Raises FrameError."""
    nbytes = int.from_bytes(header[:HEADER_NBYTES], "little")
    if not 0 < nbytes <= FRAME_NBYTES_MAX:
        raise FrameError(f"a frame of {nbytes} bytes; the limit is {FRAME_NBYTES_MAX}")
    return nbytes


def decode_request(body: bytes | bytearray | memoryview) -> Request:
    """Raises FrameError."""
    try:
        request = _decode_request(body)
    except msgspec.MsgspecError as error:
        raise FrameError(f"no request: {error}") from error
    if request.nbytes < 0:
        raise FrameError(f"{request.nbytes} bytes were asked for")
    return request


def decode_reply(body: bytes | bytearray | memoryview) -> Reply:
    """Raises FrameError."""
    try:
        return _decode_reply(body)
    except msgspec.MsgspecError as error:
        raise FrameError(f"no reply: {error}") from error
