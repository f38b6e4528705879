"""The protocol of pins is right in every interleaving, and the checker finds what is wrong with its neighbours."""

from itertools import product

import pytest

from tests.proof.model import Fence, Variant, check

ROUNDS = list(product(("evict", "remove"), repeat=2))
WRONG = {
    "no barrier": Variant(fence=Fence.NONE),
    "a fence in the daemon alone": Variant(fence=Fence.DAEMON),
    "a fence in the reader alone": Variant(fence=Fence.READER),
    "no second look": Variant(looks_again=False),
    "pins looked at before hiding": Variant(hides_first=False),
    "pins not looked at": Variant(looks_at_pins=False),
}


@pytest.mark.parametrize("rounds", ROUNDS, ids="-".join)
def test_what_is_read_under_a_pin_is_the_objects_and_no_unpin_is_lost(rounds):
    outcome = check(Variant(rounds=rounds))
    assert outcome.broken is None, "\n".join(outcome.broken)
    # Fewer would mean that something is not tried.
    assert outcome.states > 10_000


@pytest.mark.parametrize("rounds", ROUNDS, ids="-".join)
def test_a_fence_on_either_side_would_do_as_well(rounds):
    """What the reader is spared by a barrier that the daemon has it pass."""
    assert check(Variant(rounds=rounds, fence=Fence.BOTH)).broken is None


@pytest.mark.parametrize("rounds", ROUNDS, ids="-".join)
@pytest.mark.parametrize("name", WRONG)
def test_a_reader_sees_bytes_of_another_object_with(name, rounds):
    broken = check(WRONG[name]._replace(rounds=rounds)).broken
    assert broken is not None
    assert "loads bytes" in broken[-1], broken


@pytest.mark.parametrize("rounds", ROUNDS, ids="-".join)
@pytest.mark.parametrize("order", ["wants_first", "unpins_first"])
def test_an_unpin_is_lost_if_it_is_wanted_only_after_the_look_or_looked_at_before_it_is_done(order, rounds):
    broken = check(Variant(rounds=rounds)._replace(**{order: False})).broken
    assert broken is not None
    assert "nobody will tell" in broken[-1], broken
