"""The ordinary no of the local master."""

from mooncake_client.codes import Code


class Refusal(Exception):  # noqa: N818 - a refusal is an answer, not a failure
    """A request that is not carried out. Nothing was changed."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
