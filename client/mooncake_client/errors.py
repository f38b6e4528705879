"""The exceptions a caller can see. Each carries the numeric code and, where there is one, the key."""

from mooncake_client.codes import Code


class StoreError(Exception):
    """A request was refused or failed; *code* says why, *key* which object it was about."""

    default_code = Code.INTERNAL

    def __init__(self, message: str, *, code: int | None = None, key: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = int(self.default_code if code is None else code)
        self.key = key

    def __str__(self) -> str:
        # KeyError would show the repr of the message.
        return f"{self.message} ({self.code})"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.code, self.key)


class NotFoundError(StoreError, KeyError):
    """No object of that key is readable here."""

    default_code = Code.NOT_FOUND


class ExistsError(StoreError):
    """The key already holds an object; ``upsert`` replaces, ``remove`` frees the key."""

    default_code = Code.EXISTS


class NotReadyError(StoreError):
    """The key is being written by another client and was not finished by the deadline."""

    default_code = Code.NOT_READY


class NoSpaceError(StoreError):
    """No room in the pool by the deadline, or the object can never fit; the message says what holds it."""

    default_code = Code.NO_SPACE


class InvalidArgumentError(StoreError, ValueError):
    """The caller's mistake. Nothing was changed."""

    default_code = Code.INVALID_ARGUMENT


class TransferError(StoreError):
    """Bytes could not be brought from another node or tier."""

    default_code = Code.TRANSFER_FAILED


class ObjectLostError(StoreError):
    """The object was promised to stay readable and no copy of it is left."""

    default_code = Code.OBJECT_LOST


class DaemonGoneError(StoreError, ConnectionError):
    """No daemon answers on the socket. A put that was under way has an unknown outcome."""

    default_code = Code.DAEMON_GONE


class StoreTimeoutError(StoreError, TimeoutError):
    """The daemon lives but did not answer by the deadline."""

    default_code = Code.TIMEOUT


_BY_CODE: dict[int, type[StoreError]] = {
    cls.default_code: cls
    for cls in (
        NotFoundError,
        ExistsError,
        NotReadyError,
        NoSpaceError,
        InvalidArgumentError,
        TransferError,
        ObjectLostError,
        DaemonGoneError,
        StoreTimeoutError,
    )
}
_BY_CODE[Code.CHECKSUM_MISMATCH] = TransferError


def error_for(code: int, message: str, key: str | None = None) -> StoreError:
    """The exception for a code that came over the wire; unknown codes give the base class."""
    return _BY_CODE.get(code, StoreError)(message, code=code, key=key)


def _rebuild(cls: type[StoreError], message: str, code: int, key: str | None) -> StoreError:
    return cls(message, code=code, key=key)
