"""Frames without IO: bytes in, messages out; messages in, bytes out."""

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from mooncake_client.wire import FRAME_NBYTES_MAX, Message

M = TypeVar("M", bound=Message)
HEADER_NBYTES = 4

_encoder = msgspec.msgpack.Encoder()


class FramingError(Exception):
    """The peer sent what is no frame of ours; nothing after it can be trusted."""


def pack(message: Message) -> bytes:
    """One frame."""
    body = _encoder.encode(message)
    nbytes = len(body)
    if nbytes > FRAME_NBYTES_MAX:
        raise FramingError(f"a message of {nbytes} bytes exceeds the frame limit of {FRAME_NBYTES_MAX}")
    return nbytes.to_bytes(HEADER_NBYTES, "little") + body


class Unpacker(Generic[M]):
    """Cuts a byte stream into messages of *types*.

    Reading and accepting are two steps, so that a reader interrupted in between (KeyboardInterrupt) loses nothing: it
    reads the same messages again. After a `FramingError` the stream is worthless.
    """

    def __init__(self, types: object) -> None:
        self._decode: Callable[[bytes | memoryview], M] = msgspec.msgpack.Decoder(types).decode
        # What came in and is not accepted yet. The owner appends.
        self.chunks: list[bytes] = []
        self._needed_nbytes = HEADER_NBYTES

    def read_one(self) -> M | None:
        """The message, if what came in is one whole frame, as it nearly always is; then `chunks.clear()` accepts it."""
        chunks = self.chunks
        if len(chunks) == 1:
            data = chunks[0]
            if int.from_bytes(data[:HEADER_NBYTES], "little") == len(data) - HEADER_NBYTES:
                return self._decode_one(data[HEADER_NBYTES:])
        return None

    def read(self) -> tuple[list[M], bytes]:
        """The complete messages at the head of the stream, and what is left behind them, to be given to `accept`."""
        chunks = self.chunks
        if len(chunks) > 1 and sum(map(len, chunks)) < self._needed_nbytes:
            return [], b""
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        messages: list[M] = []
        # Of the frame before, perhaps a longer one: a rest too short for a header says nothing of its own.
        self._needed_nbytes = HEADER_NBYTES
        begin, end = 0, len(data)
        view = memoryview(data)
        while end - begin >= HEADER_NBYTES:
            nbytes = int.from_bytes(view[begin : begin + HEADER_NBYTES], "little")
            if nbytes > FRAME_NBYTES_MAX:
                raise FramingError(f"a frame of {nbytes} bytes exceeds the limit of {FRAME_NBYTES_MAX}")
            stop = begin + HEADER_NBYTES + nbytes
            if stop > end:
                self._needed_nbytes = HEADER_NBYTES + nbytes
                break
            messages.append(self._decode_one(view[begin + HEADER_NBYTES : stop]))
            begin = stop
        return messages, data[begin:]

    def accept(self, messages: list[M], rest: bytes) -> None:
        """Drop what `read` has returned."""
        if messages:
            self.chunks[:] = [rest] if rest else []

    def feed(self, data: bytes) -> list[M]:
        """`read` and `accept` in one, for a reader that nothing interrupts."""
        if not self.chunks and int.from_bytes(data[:HEADER_NBYTES], "little") == len(data) - HEADER_NBYTES:
            return [self._decode_one(data[HEADER_NBYTES:])]
        self.chunks.append(data)
        messages, rest = self.read()
        self.accept(messages, rest)
        return messages

    def _decode_one(self, body: bytes | memoryview) -> M:
        try:
            return self._decode(body)
        except msgspec.MsgspecError as exc:
            raise FramingError(f"not a message of this protocol: {exc}") from exc
