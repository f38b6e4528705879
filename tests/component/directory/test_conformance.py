"""What every directory does with entries: one suite for the one in memory and for the one on a real server."""

import itertools

import pytest

from mooncake_node.directory import (
    Created,
    Entry,
    Taken,
    TooOld,
)
from tests.support.directories import (
    HIGH,
    TOP,
    create,
    demoted,
    eventually_async,
    holding,
    look,
    owned,
    promoted,
    publish,
)

# -- create ----------------------------------------------------------------------------------------------------------


async def test_what_nobody_has_has_an_empty_entry(directory):
    assert await directory.lookup(["x", "y"]) == [Entry(), Entry()]
    assert Entry().owner is None


async def test_an_owner_creates_and_everybody_sees_every_fact(make):
    item = owned(
        "a", TOP, incarnation=(1 << 53) - 1, nbytes=1 << 45, kind=7, epoch=(1 << 53) - 1, on_disk=True, softpin=True,
        softpin_until_unix_ms=1_900_000_000_123,
    )  # fmt: skip
    assert await create(make(), item) == Created()
    entry = await look(make())
    assert entry == Entry((item,))
    assert entry.owner == item


@pytest.mark.parametrize("node", ["b", "host:7", "\N{SNOWMAN}", "with space", "o:1", "x" * 255])
async def test_a_node_may_have_any_name(directory, node):
    item = owned(node, 5)
    assert await create(directory, item) == Created()
    assert await create(directory, owned("z", 6)) == Taken(item)
    assert await create(directory, owned("z", 6), dead=((node, 1),)) == Created((item,))


async def test_put_if_absent_is_refused_by_the_owner_whatever_the_generations(directory):
    item = owned("a", 5)
    await create(directory, item)
    await publish(directory, holding("0", 5))
    for generation in (4, 5, 6, HIGH):
        assert await create(directory, owned("b", generation)) == Taken(item)
    assert (await look(directory)).holdings == (holding("0", 5), item)


async def test_creating_can_be_repeated_also_by_a_later_life(directory):
    first = owned("a", HIGH)
    await create(directory, first)
    await publish(directory, holding("b", HIGH))
    for again in (first, owned("a", HIGH, incarnation=9, on_disk=True, epoch=2)):
        assert await create(directory, again) == Created(() if again is first else (holding("b", HIGH),))
    assert await look(directory) == Entry((owned("a", HIGH, incarnation=9, on_disk=True, epoch=2),))


@pytest.mark.parametrize("replaces", [False, True])
async def test_a_repeated_creation_keeps_others_of_that_generation_as_secondary_ones(directory, replaces):
    await create(directory, owned("a", 5))
    await publish(directory, holding("b", 5), holding("c", 5), holding("d", 5))
    # a has become secondary to b, and says again that it has created.
    await directory.withdraw([("k", "a", 1, 5)])
    [owner] = [item for item in (await look(directory)).holdings if item.is_owner]
    others = [item for item in (await look(directory)).holdings if not item.is_owner]
    assert await publish(directory, holding("a", 5)) == [True]
    again = owned("a", 5, incarnation=2)
    assert await create(directory, again, replaces=replaces, dead=((others[0].node, 1),)) == Created((others[0],))
    assert set((await look(directory)).holdings) == {again, demoted(owner), *others[1:]}


async def test_an_upsert_replaces_what_is_older_and_says_what_gave_way(directory):
    held = (owned("a", 5), holding("b", 5), holding("c", 5, on_disk=True))
    await create(directory, held[0])
    await publish(directory, *held[1:])
    new = owned("b", 6)
    assert await create(directory, new, replaces=True) == Created(held)
    assert await look(directory) == Entry((new,))
    assert await create(directory, new, replaces=True) == Created()


async def test_an_upsert_by_the_owner_itself_replaces_its_own(directory):
    await create(directory, owned("a", 5))
    assert await create(directory, owned("a", 6), replaces=True) == Created((owned("a", 5),))
    assert await look(directory) == Entry((owned("a", 6),))


@pytest.mark.parametrize("generation", [1, HIGH - 1, HIGH])
async def test_an_upsert_that_is_not_newer_changes_nothing(directory, generation):
    item = owned("a", HIGH)
    await create(directory, item)
    assert await create(directory, owned("b", generation), replaces=True) == TooOld(HIGH)
    assert await look(directory) == Entry((item,))


async def test_generations_are_ordered_as_unsigned_numbers(directory):
    generations = [9, 10, 255, 256, (1 << 53) - 1, 1 << 53, (1 << 53) + 1, (1 << 63) - 1, 1 << 63, HIGH, TOP - 1, TOP]
    for older, newer in itertools.pairwise(generations):
        key = f"k{older}"
        await create(directory, owned("a", newer), key=key)
        assert await create(directory, owned("b", older), key=key, replaces=True) == TooOld(newer)
        await directory.remove([(key, newer)])
        assert await create(directory, owned("b", older), key=key) == TooOld(newer)
        key = f"up{older}"
        await create(directory, owned("a", older), key=key)
        assert await create(directory, owned("b", newer), key=key, replaces=True) == Created((owned("a", older),))


async def test_an_own_older_generation_gives_way_to_put_if_absent(directory):
    """Its node knows best what it has: a withdrawal was lost, or the node lives again."""
    await create(directory, owned("a", 5))
    assert await create(directory, owned("a", 7, incarnation=2)) == Created((owned("a", 5),))
    assert await create(directory, owned("a", 6, incarnation=3)) == TooOld(7)
    await publish(directory, holding("b", 7))
    assert await create(directory, owned("a", 8, incarnation=3)) == Taken(holding("b", 7))
    assert (await look(directory)).holdings == (owned("a", 7, incarnation=2), holding("b", 7))


async def test_holdings_of_lives_that_are_over_count_as_absent(directory):
    held = (owned("a", 9), holding("b", 9))
    await create(directory, held[0])
    await publish(directory, held[1])
    new = owned("c", 5)
    assert await create(directory, new, dead=(("a", 2), ("b", 2), ("c", 1))) == Taken(held[0])
    assert await create(directory, new, dead=(("a", 1),)) == Taken(held[1])
    assert await look(directory) == Entry(held)
    assert await create(directory, new, dead=(("b", 1), ("a", 1))) == Created(held)
    assert await look(directory) == Entry((new,))


async def test_who_stands_in_for_a_dead_owner_is_in_memory_if_one_is_and_began_to_live_last(directory):
    await create(directory, owned("a", 9))
    await publish(
        directory,
        holding("b", 9, incarnation=30, on_disk=True),
        holding("c", 9, incarnation=10),
        holding("d", 9, incarnation=20),
    )
    assert await create(directory, owned("e", 10), dead=(("a", 1),)) == Taken(holding("d", 9, incarnation=20))


async def test_dead_holdings_give_way_to_an_upsert_too(directory):
    await create(directory, owned("a", 9))
    assert await create(directory, owned("b", 5), replaces=True) == TooOld(9)
    assert await create(directory, owned("b", 5), replaces=True, dead=(("a", 1),)) == Created((owned("a", 9),))


async def test_holdings_of_an_older_epoch_count_as_absent(directory):
    held = (owned("a", 9, epoch=3), holding("b", 9, epoch=3))
    await create(directory, held[0])
    await publish(directory, held[1])
    for epoch in (2, 3):
        assert await create(directory, owned("c", 5, epoch=epoch)) == Taken(held[0])
    assert await create(directory, owned("c", 5, epoch=4)) == Created(held)
    assert await look(directory) == Entry((owned("c", 5, epoch=4),))


# -- publish, update, transfer ---------------------------------------------------------------------------------------


async def test_a_secondary_is_published_only_while_the_owner_has_that_generation(directory):
    assert await publish(directory, holding("b", 5)) == [False]
    await create(directory, owned("a", 5))
    assert await publish(directory, holding("b", 4), holding("b", 6), holding("b", 5)) == [False, False, True]
    assert await publish(directory, holding("b", 5, incarnation=2)) == [True]
    assert await look(directory) == Entry((owned("a", 5), holding("b", 5, incarnation=2)))
    await create(directory, owned("a", 6), replaces=True)
    assert await publish(directory, holding("b", 5)) == [False]
    await directory.remove([("k", None)])
    assert await publish(directory, holding("b", 6)) == [False]
    assert await look(directory) == Entry((), 6, (holding("a", 6),))


async def test_an_owner_is_not_made_secondary_by_publishing(directory):
    await create(directory, owned("a", 5))
    assert await publish(directory, holding("a", 5), holding("a", 5, incarnation=2)) == [True, False]
    assert await look(directory) == Entry((owned("a", 5),))


async def test_one_updates_what_is_said_of_ones_own(directory):
    await create(directory, owned("a", 5))
    await publish(directory, holding("b", 5))
    facts = {"on_disk": True, "softpin": True, "softpin_until_unix_ms": 77, "nbytes": 11, "kind": 3}
    items = [owned("a", 5, **facts), holding("b", 5, on_disk=True)]
    assert await directory.update([("k", item) for item in items]) == [True, True]
    assert (await look(directory)).holdings == tuple(items)
    wrong = [owned("a", 5, incarnation=2), owned("a", 6), holding("c", 5)]
    assert await directory.update([*(("k", item) for item in wrong), ("x", items[0])]) == [False] * 4
    assert (await look(directory)).holdings == tuple(items)
    assert await look(directory, "x") == Entry()


async def test_an_update_does_not_change_who_owns(directory):
    """Who was promoted may not know yet; who was demoted neither."""
    await create(directory, owned("a", 5))
    await publish(directory, holding("b", 5))
    await directory.update([("k", owned("b", 5, on_disk=True)), ("k", holding("a", 5, on_disk=True))])
    assert (await look(directory)).holdings == (owned("a", 5, on_disk=True), holding("b", 5, on_disk=True))


async def test_ownership_goes_over_from_the_life_that_has_it_and_its_holding_goes(directory):
    await create(directory, owned("a", HIGH))
    await publish(directory, holding("b", HIGH), holding("c", HIGH))
    to = owned("b", HIGH, softpin=True)
    for _ in range(2):
        assert await directory.transfer("k", node="a", incarnation=1, to=to) is True
        assert await look(directory) == Entry((to, holding("c", HIGH)))


async def test_a_transfer_needs_no_earlier_holding_of_the_new_owner(directory):
    await create(directory, owned("a", 5))
    assert await directory.transfer("k", node="a", incarnation=1, to=owned("b", 5)) is True
    assert await look(directory) == Entry((owned("b", 5),))
    assert await directory.transfer("k", node="b", incarnation=1, to=owned("b", 5, incarnation=2)) is True
    assert await look(directory) == Entry((owned("b", 5, incarnation=2),))


async def test_a_transfer_from_any_other_owner_or_generation_changes_nothing(directory):
    async def transfer(node, incarnation, to):
        return await directory.transfer("k", node=node, incarnation=incarnation, to=to)

    assert await transfer("a", 1, owned("b", 5)) is False
    await create(directory, owned("a", 5))
    await publish(directory, holding("b", 5))
    assert await transfer("a", 2, owned("c", 5)) is False
    assert await transfer("b", 1, owned("c", 5)) is False
    assert await transfer("a", 1, owned("c", 6)) is False
    assert await transfer("a", 1, owned("a", 6)) is False
    assert await look(directory) == Entry((owned("a", 5), holding("b", 5)))
    await directory.remove([("k", 5)])
    assert await transfer("a", 1, owned("b", 5)) is False
    assert await look(directory) == Entry((), 5, (holding("a", 5), holding("b", 5)))


# -- remove, withdraw ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", [None, HIGH])
async def test_what_is_removed_leaves_a_tombstone_and_does_not_come_back(directory, generation):
    held = (owned("a", HIGH), holding("b", HIGH))
    await create(directory, held[0])
    await publish(directory, held[1])
    assert await directory.remove([("k", generation)]) == [Entry(held)]
    gone = Entry((), HIGH, (demoted(held[0]), held[1]))
    assert await look(directory) == gone
    for late in (owned("a", HIGH), owned("c", HIGH - 1)):
        for replaces in (False, True):
            assert await create(directory, late, replaces=replaces) == TooOld(HIGH)
    assert await directory.remove([("k", generation)]) == [gone]
    assert await look(directory) == gone


async def test_who_creates_hears_once_who_had_what_was_removed_before(directory):
    """Those may not have heard of it yet, and serve it still."""
    await create(directory, owned("a", 5))
    await publish(directory, holding("b", 5))
    await directory.remove([("k", None)])
    for late in (owned("c", 4), owned("c", 5)):
        assert await create(directory, late) == TooOld(5)
    assert await create(directory, owned("b", 6)) == Created((holding("a", 5), holding("b", 5)))
    assert await look(directory) == Entry((owned("b", 6),), 5)
    assert await create(directory, owned("c", 7), replaces=True) == Created((owned("b", 6),))


async def test_what_was_removed_is_nobodys_to_change(directory):
    await create(directory, owned("a", 5))
    await publish(directory, holding("b", 5))
    await directory.remove([("k", None)])
    gone = await look(directory)
    assert await directory.update([("k", holding("b", 5, on_disk=True))]) == [False]
    await directory.withdraw([("k", "b", 1, 5)])
    assert await look(directory) == gone


async def test_a_newer_generation_stands_beside_a_tombstone_which_outlives_it(directory):
    await create(directory, owned("a", 5))
    await directory.remove([("k", None)])
    assert await create(directory, owned("b", 6)) == Created((holding("a", 5),))
    assert await look(directory) == Entry((owned("b", 6),), 5)
    await directory.withdraw([("k", "b", 1, 6)])
    assert await look(directory) == Entry((), 5)
    assert await create(directory, owned("a", 5)) == TooOld(5)


async def test_a_removal_of_another_generation_or_of_nothing_changes_nothing(directory):
    await create(directory, owned("a", 5))
    answers = await directory.remove([("k", 4), ("k", 6), ("x", None), ("x", 5)])
    assert [answer.holdings for answer in answers] == [()] * 4
    assert await directory.lookup(["k", "x"]) == [Entry((owned("a", 5),)), Entry()]


async def test_a_tombstone_stays_for_its_time_and_what_was_created_again_for_longer(kit, make):
    kit.shorten(tombstone_s=0.3)
    directory = make()
    for key in ("k", "again"):
        await create(directory, owned("a", 5), key=key)
    await directory.remove([("again", None)])
    assert await create(directory, owned("a", 7), key="again") == Created((holding("a", 5),))
    await directory.remove([("k", None)])

    async def forgotten():
        return await look(directory) == Entry()

    await eventually_async(forgotten, "the tombstone to go", step=kit.step)
    assert await create(directory, owned("a", 4)) == Created()
    assert await look(directory, "again") == Entry((owned("a", 7),), 5)


async def test_withdrawing_takes_out_that_holding_alone_without_a_tombstone(directory):
    await create(directory, owned("a", HIGH))
    await publish(directory, holding("b", HIGH))
    await directory.withdraw([("k", "b", 2, HIGH), ("k", "b", 1, 5), ("k", "c", 1, HIGH), ("x", "a", 1, 1)])
    assert await look(directory) == Entry((owned("a", HIGH), holding("b", HIGH)))
    await directory.withdraw([("k", "b", 1, HIGH)])
    assert await look(directory) == Entry((owned("a", HIGH),))
    await directory.withdraw([("k", "a", 1, HIGH), ("k", "a", 1, HIGH)])
    assert await directory.lookup(["k", "x"]) == [Entry(), Entry()]
    assert await create(directory, owned("c", 1)) == Created()


async def test_when_the_owner_is_withdrawn_another_becomes_it(directory):
    heirs = [
        holding("b", 5, incarnation=40, on_disk=True),
        holding("c", 5, incarnation=20),
        holding("d", 5, incarnation=30, softpin=True),
    ]
    await create(directory, owned("a", 5))
    await publish(directory, *heirs)
    await directory.withdraw([("k", "a", 1, 5)])
    assert await look(directory) == Entry((heirs[0], heirs[1], promoted(heirs[2])))
    await directory.withdraw([("k", "d", 30, 5)])
    assert (await look(directory)).owner == promoted(heirs[1])
    await directory.withdraw([("k", "c", 20, 5)])
    assert await look(directory) == Entry((promoted(heirs[0]),))
