"""What other nodes watch here is bounded, and who is refused is told."""

import pytest

from mooncake_client.codes import Code
from mooncake_node.cluster import watches
from mooncake_node.cluster.watches import Watches
from mooncake_node.core.refusal import Refusal


def test_a_node_that_watches_too_much_is_refused_until_there_is_room(monkeypatch):
    monkeypatch.setattr(watches, "WATCHED_MAX", 2)
    watched = Watches(None, None, None, None, lambda: None)  # what others watch needs none of them
    watched.watch("b", ["k1", "k2"])
    watched.watch("c", ["k1"])
    with pytest.raises(Refusal, match="2 keys are watched") as caught:
        watched.watch("c", ["k3"])
    assert caught.value.code is Code.NOT_READY
    watched.unwatch("b", ["k1", "k2"])
    watched.watch("c", ["k3"])
