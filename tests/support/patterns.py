"""Deterministic bytes and their digest.

Every worker has both: it runs the source of this file, hence no imports of ours.
"""

import hashlib

# A prime, so that no two pages, lines or granules of one pattern are equal.
_PERIOD = 1_000_003


def pattern(seed: object, nbytes: int) -> bytes:
    """The first *nbytes* of the one endless pattern of *seed*."""
    block = hashlib.shake_128(str(seed).encode()).digest(min(nbytes, _PERIOD))
    return (block * (nbytes // _PERIOD + 1))[:nbytes]


def digest(buffer: object) -> str:
    """SHA-256 of any bytes-like object, without a copy."""
    return hashlib.sha256(buffer).hexdigest()  # type: ignore[arg-type]  # that is what bytes-like means
