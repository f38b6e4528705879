"""What a call to another node can end with, beside its answer."""


class PeerError(Exception):
    """The request was not answered. *sent* False: it never left this node, so it was certainly not carried out."""

    def __init__(self, message: str, *, sent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent


class PeerGoneError(PeerError):
    """No such node can be reached, or the link to it broke; the message says why."""


class PeerRefusedError(PeerGoneError):
    """Who answers there is not the node expected, or one of the two did not accept the other's proof."""


class PeerTimeoutError(PeerError):
    """The node did not answer in time. What was asked may still be carried out."""


class PeerListenError(Exception):
    """This node cannot listen for others as it was told to; the message says why and what to do."""
