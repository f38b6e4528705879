"""Why there is no pool."""


class PoolError(Exception):
    """The pool cannot be made; the message has the numbers and says what to change."""


class PoolStoppedError(PoolError):
    """The daemon was told to stop while the pool was being made."""
