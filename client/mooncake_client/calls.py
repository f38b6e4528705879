"""What both fronts share: the checks of arguments, and the decoding of what came."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from mooncake_client import wire
from mooncake_client.arguments import check_key, check_timeout
from mooncake_client.codec import Codec, Encoded, Kind
from mooncake_client.copying import copy_to, writable_bytes
from mooncake_client.errors import DaemonGoneError, InvalidArgumentError, StoreError
from mooncake_client.framing import pack
from mooncake_client.handshake import attach, receive_reply
from mooncake_client.operations import Got
from mooncake_client.paths import default_socket_path
from mooncake_client.shared_index import Entry


class ClientSettings:
    """What a client was made with."""

    def __init__(
        self,
        socket: object,
        *,
        name: str | None,
        timeout: float,
        readonly: bool,
        enc_hook: Callable[[Any], Any] | None,
        dec_hook: Callable[[type, Any], Any] | None,
        pickle: bool,
    ) -> None:
        if socket is not None and not isinstance(socket, str | os.PathLike):
            raise InvalidArgumentError(f"a socket is a path, not {type(socket).__name__}")
        self.path = str(default_socket_path()) if socket is None else os.fspath(socket)
        if name is not None and not (isinstance(name, str) and name.isprintable()):
            raise InvalidArgumentError(f"a client's name is a printable str, not {name!r}")
        self.name = name or _program_name()
        self.timeout_s = check_timeout(timeout)
        self.readonly = bool(readonly)
        self.codec = Codec(enc_hook=enc_hook, dec_hook=dec_hook, pickle=pickle)

    def timeout_of(self, timeout: float | None) -> float:
        """A call's own timeout, else the client's."""
        return self.timeout_s if timeout is None else check_timeout(timeout)

    def encode_each(self, objects: Mapping[str, Any]) -> tuple[list[tuple[str, Encoded]], dict[str, StoreError]]:
        """What can be put, and why the rest cannot."""
        if not isinstance(objects, Mapping):
            raise InvalidArgumentError(f"put_many takes a dict of key: object, not {type(objects).__name__}")
        puts: list[tuple[str, Encoded]] = []
        refused: dict[str, StoreError] = {}
        for key, obj in objects.items():
            try:
                puts.append((check_key(key), self.codec.encode(obj)))
            except StoreError as error:
                refused[key] = error
        return puts, refused

    def decode(self, got: Got, *, copy: bool, type: Any = None) -> Any:  # noqa: A002  as msgspec names it
        """The object."""
        return self.codec.decode(got.grant.kind, got.view, copy=copy, type=type)

    def decode_each(self, found: list[Got | StoreError]) -> list[Any]:
        """Objects and errors, item by item; an object that cannot be decoded is an error of its own."""
        return [
            got if isinstance(got, StoreError) else self._decode_or_error(got.grant.kind, got.view) for got in found
        ]

    def decode_views(self, found: Iterable[tuple[memoryview, Entry]]) -> list[Any]:
        """As `decode_each`, for what the index gave."""
        decode = self._decode_or_error
        return [view if entry.kind == Kind.RAW else decode(entry.kind, view) for view, entry in found]

    def _decode_or_error(self, kind: int, view: memoryview) -> Any:
        try:
            return self.codec.decode(kind, view)
        except StoreError as error:
            return error


def copy_into(got: Got, buffer: object) -> int:
    """Copy an object's stored bytes over the first bytes of *buffer*; returns their number.

    InvalidArgumentError, and nothing written, when the buffer is read-only, not contiguous or too short.
    """
    target = writable_bytes(buffer)
    if target.nbytes < got.view.nbytes:
        raise InvalidArgumentError(f"the buffer has {target.nbytes} bytes, the object {got.view.nbytes}")
    copy_to(target, got.view)
    return got.view.nbytes


def ask_admin(path: str, request: wire.Request, settings: ClientSettings) -> dict[str, Any]:
    """One request on the daemon's admin socket."""
    attached = attach(path, name=settings.name, timeout_s=settings.timeout_s)
    with attached.sock as sock:
        sock.settimeout(settings.timeout_s)
        request.request_id = 1
        try:
            sock.sendall(pack(request))
            reply = receive_reply(sock, wire.Facts)
        except OSError as exc:
            raise DaemonGoneError(f"the admin socket {path} failed: {exc}") from exc
    return reply.facts


def _program_name() -> str:
    return Path(sys.argv[0]).name or "python"
