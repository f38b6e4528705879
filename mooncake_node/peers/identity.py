"""Who a node is: a name, and which of its lives."""

import msgspec


class Identity(msgspec.Struct, frozen=True):
    """One life of one node."""

    name: str
    incarnation: int

    def __str__(self) -> str:
        return f"node {self.name!r}, incarnation {self.incarnation}"


class Me(msgspec.Struct):
    """This node. A new incarnation may be set at any time: links made under the one before end at their next use."""

    name: str
    incarnation: int

    @property
    def identity(self) -> Identity:
        """As of now."""
        return Identity(self.name, self.incarnation)
