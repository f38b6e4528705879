"""Error codes: Mooncake Store's numbers, so that programs which branch on them keep working.

A number, once given a meaning, is never reused.
"""

from enum import IntEnum


class Code(IntEnum):
    """Why a request was not carried out. Negative, stable, the same on the wire and in exceptions."""

    INTERNAL = -1
    NO_SPACE = -200
    INVALID_VERSION = -300
    INVALID_ARGUMENT = -600
    ILLEGAL_CLIENT = -601
    NOT_READY = -703
    NOT_FOUND = -704
    EXISTS = -705
    HAS_LEASE = -706
    LEASE_EXPIRED = -707
    OBJECT_LOST = -712
    TRANSFER_FAILED = -800
    CHECKSUM_MISMATCH = -801
    DAEMON_GONE = -900
    TIMEOUT = -901
