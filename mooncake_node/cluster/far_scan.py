"""A listing that goes on over other nodes, when this one's own objects have been listed."""

from mooncake_client import wire
from mooncake_node.peers.errors import PeerError
from mooncake_node.peers.links import PeerLinks
from mooncake_node.peers.messages import ListOwned

_CALL_S = 10.0


class FarScan:
    """What the living nodes own under *prefix*, one page after the other."""

    def __init__(self, links: PeerLinks, nodes: list[str], prefix: str, listed: set[str]) -> None:
        """*listed*: keys of this node, which were shown with its own."""
        self._links = links
        self._nodes = nodes
        self._prefix = prefix
        self._listed = listed
        self._cursor = 0

    @property
    def done(self) -> bool:
        """Every node has been asked for all it has."""
        return not self._nodes

    async def next(self) -> list[wire.ObjectInfo]:
        """The next page; may be empty before the end. A node that cannot be reached is passed over."""
        node = self._nodes[0]
        try:
            reply = await self._links.call(node, ListOwned(0, self._prefix, self._cursor), _CALL_S)
        except PeerError:
            reply = wire.Infos(0, [])
        items = reply.items if isinstance(reply, wire.Infos) else []
        self._cursor = reply.cursor if isinstance(reply, wire.Infos) else 0
        if not self._cursor:
            del self._nodes[0]
        new = [item for item in items if isinstance(item, wire.ObjectInfo) and item.key not in self._listed]
        # One may move to a node that is asked later.
        self._listed.update(item.key for item in new)
        return new
