"""What every directory does: the same suite for the one in memory and for the one on a real server."""

import asyncio
import time

import msgspec
import pytest

from mooncake_node.directory import (
    Created,
    Creation,
    DirectoryAwayError,
    DirectoryError,
    Entry,
    Holding,
    MemoryCluster,
    MemoryDirectory,
    NameTakenError,
    Taken,
    TooOld,
    open_directory,
)
from tests.support.valkey import ValkeyServer, eventually_async, namespace

HIGH = (1 << 63) + 5  # a generation that no signed or floating number holds
TOP = (1 << 64) - 1


class MemoryKit:
    """Directories over one cluster in memory, whose time is the test's."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.cluster = MemoryCluster(lambda: self.now_ns, liveness_ttl_s=1000.0, tombstone_s=1000.0)

    def shorten(self, *, liveness_ttl_s: float = 1000.0, tombstone_s: float = 1000.0) -> None:
        """Directories opened from now on have these times."""
        self.cluster.ttl_ns, self.cluster.tombstone_ns = int(liveness_ttl_s * 1e9), int(tombstone_s * 1e9)

    def open(self):
        return MemoryDirectory(self.cluster)

    def step(self) -> None:
        self.now_ns += 10_000_000


class ValkeyKit:
    """Directories of one namespace on a server, whose time is the world's."""

    def __init__(self, server: ValkeyServer) -> None:
        self.server = server
        self.namespace = namespace()
        self.shorten()

    def shorten(self, *, liveness_ttl_s: float = 1000.0, tombstone_s: float = 1000.0) -> None:
        """Directories opened from now on have these times."""
        self.times = {"liveness_ttl_s": liveness_ttl_s, "tombstone_s": tombstone_s}

    def open(self):
        # The time limit is a hang limit here.
        return open_directory(self.server.url, namespace=self.namespace, timeout_s=30.0, **self.times)

    def step(self) -> None:
        """It passes by itself."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = ValkeyServer(tmp_path_factory.mktemp("valkey"))
    yield server
    server.stop()


@pytest.fixture(params=["memory", "valkey"])
def kit(request):
    return MemoryKit() if request.param == "memory" else ValkeyKit(request.getfixturevalue("server"))


@pytest.fixture
async def make(kit):
    made = []

    def make():
        made.append(kit.open())
        return made[-1]

    yield make
    for directory in made:
        await directory.close()


@pytest.fixture
def directory(make):
    return make()


def holding(node: str, generation: int, **facts) -> Holding:
    facts = {"incarnation": 1, "nbytes": 10, "kind": 0, "epoch": 0, "is_owner": False, **facts}
    return Holding(node=node, generation=generation, **facts)


def owned(node: str, generation: int, **facts) -> Holding:
    return holding(node, generation, is_owner=True, **facts)


def demoted(of: Holding) -> Holding:
    return msgspec.structs.replace(of, is_owner=False)


def promoted(of: Holding) -> Holding:
    return msgspec.structs.replace(of, is_owner=True)


async def create(directory, item: Holding, key: str = "k", **facts):
    [answer] = await directory.create([Creation(key=key, holding=item, **facts)])
    return answer


async def look(directory, key: str = "k") -> Entry:
    [entry] = await directory.lookup([key])
    return entry


async def publish(directory, *items: Holding) -> list[bool]:
    return await directory.publish([("k", item) for item in items])


# -- who lives -------------------------------------------------------------------------------------------------------


async def test_a_life_has_a_name_a_slot_an_endpoint_and_an_incarnation(make):
    one, other = make(), make()
    assert await one.members() == await other.members()
    assert (await one.members()).nodes == ()
    a, b = await one.join("a", "h:1"), await other.join("b", "[::1]:2")
    assert (a.name, a.slot, a.endpoint, b.name, b.slot, b.endpoint) == ("a", 0, "h:1", "b", 1, "[::1]:2")
    assert 0 < a.incarnation < b.incarnation
    assert (await one.members()).nodes == (await other.members()).nodes == (a, b)
    assert one.state == other.state == "up"


async def test_renewing_carries_the_free_bytes(make):
    one, other = make(), make()
    node = msgspec.structs.replace(await one.join("a", "h:1"), free_bytes=1 << 50)
    assert await one.renew(node) is True
    assert (await other.members()).nodes == (node,)


async def test_a_life_that_is_not_renewed_is_over(kit, make):
    kit.shorten(liveness_ttl_s=0.3)
    directory = make()
    node = await directory.join("a", "h:1")

    async def gone():
        return not (await directory.members()).nodes

    await eventually_async(gone, "the life to lapse", step=kit.step)
    assert await directory.renew(node) is False
    assert (await directory.members()).nodes == ()
    again = await directory.join("a", "h:2")
    assert again.incarnation > node.incarnation
    assert again.slot == node.slot


async def test_to_renew_is_to_live_on(kit, make):
    kit.shorten(liveness_ttl_s=1.0)
    directory = make()
    node = await directory.join("a", "h:1")
    if isinstance(kit, ValkeyKit):
        kit.shorten(liveness_ttl_s=1000.0)
        assert await make().renew(node)
        lapsed_at = time.monotonic() + 1.2

        async def a_former_end_is_over():
            return time.monotonic() > lapsed_at

        await eventually_async(a_former_end_is_over, "the end that the life had")
    else:
        for _ in range(5):
            kit.now_ns += 900_000_000
            assert await directory.renew(node)
    assert (await directory.members()).nodes == (node,)


async def test_to_leave_ends_the_life_at_once_and_only_that_one(directory):
    first = await directory.join("a", "h:1")
    await directory.leave(first)
    assert (await directory.members()).nodes == ()
    assert await directory.renew(first) is False
    second = await directory.join("a", "h:1")
    assert second.incarnation > first.incarnation
    await directory.leave(first)
    assert await directory.renew(first) is False
    assert (await directory.members()).nodes == (second,)


async def test_a_name_that_renews_is_taken(kit, make):
    one, other = make(), make()
    node = await one.join("a", "h:1")
    joining = asyncio.create_task(other.join("a", "h:2"))

    async def renewed():
        kit.step()
        assert await one.renew(node)
        return joining.done()

    await eventually_async(renewed, "the join to end")
    with pytest.raises(NameTakenError, match="'a'"):
        await joining
    assert await one.renew(node)
    assert (await one.members()).nodes == (node,)


async def test_a_name_that_does_not_renew_is_waited_for(kit, make):
    kit.shorten(liveness_ttl_s=0.3)
    one, other = make(), make()
    node = await one.join("a", "h:1")
    joining = asyncio.create_task(other.join("a", "h:2"))

    async def joined():
        return joining.done()

    await eventually_async(joined, "the join to end", step=kit.step)
    again = await joining
    assert (again.endpoint, again.slot) == ("h:2", node.slot)
    assert again.incarnation > node.incarnation
    assert await one.renew(node) is False


async def test_of_two_that_join_under_one_name_one_lives(make):
    one, other = make(), make()
    answers = []

    async def join(directory, endpoint):
        try:
            node = await directory.join("a", endpoint)
        except NameTakenError:
            answers.append(None)
            return
        answers.append(node)
        while len(answers) < 2:
            assert await directory.renew(node)
            await asyncio.sleep(0.01)

    tasks = [asyncio.create_task(join(one, "h:1")), asyncio.create_task(join(other, "h:2"))]
    # In memory the clock stands, so a renewal is not seen there: the test moves it.
    while len(answers) < 2:
        await asyncio.sleep(0.005)
        if isinstance(one, MemoryDirectory):
            one.cluster.ttl_ns += 1
    await asyncio.gather(*tasks)
    assert answers.count(None) == 1
    assert len((await one.members()).nodes) == 1


async def test_slots_stay_with_their_names_over_all_lives(make):
    directory = make()
    nodes = [await directory.join(name, "h:1") for name in ("c", "a", "b")]
    assert [node.slot for node in nodes] == [0, 1, 2]
    for node in nodes:
        await directory.leave(node)
    again = [await make().join(name, "h:1") for name in ("b", "new", "a", "c")]
    assert [node.slot for node in again] == [2, 3, 1, 0]


async def test_slots_run_out_at_2048_names(directory):
    for start in range(0, 2048, 128):
        nodes = await asyncio.gather(*(directory.join(f"n{n}", "h:1") for n in range(start, start + 128)))
    assert {node.slot for node in (await directory.members()).nodes} == set(range(2048))
    await directory.leave(nodes[0])
    with pytest.raises(DirectoryError, match=r"2,048"):
        await directory.join("one more", "h:1")
    assert (await directory.join(nodes[0].name, "h:1")).slot == nodes[0].slot


@pytest.mark.parametrize("name", ["", "!", "x" * 256])
async def test_some_names_are_none(directory, name):
    with pytest.raises(DirectoryError, match="name"):
        await directory.join(name, "h:1")


async def test_the_clear_epoch_rises_and_everybody_sees_it(make):
    one, other = make(), make()
    epochs = [(await one.members()).clear_epoch]
    for directory in (one, other, one):
        epochs.append(await directory.raise_clear_epoch())
        assert (await one.members()).clear_epoch == (await other.members()).clear_epoch == epochs[-1]
    assert epochs == sorted(set(epochs))
    assert epochs[-1] < 1 << 53


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
    for older, newer in zip(generations, generations[1:], strict=False):
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
    assert await look(directory) == Entry((), 6)


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
    assert await look(directory) == Entry((), 5)


# -- remove, withdraw ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", [None, HIGH])
async def test_what_is_removed_leaves_a_tombstone_and_does_not_come_back(directory, generation):
    held = (owned("a", HIGH), holding("b", HIGH))
    await create(directory, held[0])
    await publish(directory, held[1])
    assert await directory.remove([("k", generation)]) == [Entry(held)]
    assert await look(directory) == Entry((), HIGH)
    for late in (owned("a", HIGH), owned("c", HIGH - 1)):
        for replaces in (False, True):
            assert await create(directory, late, replaces=replaces) == TooOld(HIGH)
    assert (await directory.remove([("k", generation)]))[0].holdings == ()
    assert await look(directory) == Entry((), HIGH)


async def test_a_newer_generation_takes_the_place_of_a_tombstone(directory):
    await create(directory, owned("a", 5))
    await directory.remove([("k", None)])
    assert await create(directory, owned("b", 6)) == Created()
    assert await look(directory) == Entry((owned("b", 6),))


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
    created = await create(directory, owned("a", 7), key="again")
    await directory.remove([("k", None)])

    async def forgotten():
        return await look(directory) == Entry()

    await eventually_async(forgotten, "the tombstone to go", step=kit.step)
    assert await create(directory, owned("a", 4)) == Created()
    if created == Created():  # else the machine was so slow that the tombstone had gone before
        assert await look(directory, "again") == Entry((owned("a", 7),))


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


# -- keys and batches ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    ["", "a" * 1024, "\N{GREEK SMALL LETTER ALPHA}" * 512, "../x", "\0", "a\r\nb", " ", "{x}", "\U0001f600", "%s{}",
     "e\u0301", "!"],
)  # fmt: skip
async def test_a_key_is_any_text(directory, key):
    assert await create(directory, owned("a", 5), key=key) == Created()
    assert await directory.lookup([key, f"{key}x"]) == [Entry((owned("a", 5),)), Entry()]
    assert await directory.remove([(key, 5)]) == [Entry((owned("a", 5),))]


async def test_keys_that_look_alike_are_different(directory):
    for generation, key in enumerate(("e\u0301", "\u00e9", "k", "k ", "K"), 1):
        assert await create(directory, owned("a", generation), key=key) == Created()


async def test_namespaces_know_nothing_of_each_other(server):
    one, other = (ValkeyKit(server).open() for _ in range(2))
    await create(one, owned("a", 5))
    await one.join("a", "h:1")
    assert await look(other) == Entry()
    assert (await other.members()).nodes == ()
    assert (await other.join("b", "h:1")).slot == 0
    await one.close()
    await other.close()


async def test_batches_of_any_size_are_answered_in_order(directory):
    count = 700
    keys = [f"k{n}" for n in range(count)]
    items = [Creation(key=key, holding=owned("a", n + 1)) for n, key in enumerate(keys)]
    assert await directory.create(items) == [Created()] * count
    assert await directory.lookup(keys) == [Entry((item.holding,)) for item in items]
    published = await directory.publish([(key, holding("b", 1 + n - n % 3)) for n, key in enumerate(keys)])
    assert published == [n % 3 == 0 for n in range(count)]
    updates = [(key, holding("b", n + 1, on_disk=True)) for n, key in enumerate(keys)]
    assert await directory.update(updates) == published
    await directory.withdraw([(key, "a", 1, n + 1) for n, key in enumerate(keys) if n % 3 == 0])
    removed = await directory.remove([(key, None) for key in keys])
    assert [entry.owner.node for entry in removed] == ["a" if n % 3 else "b" for n in range(count)]
    assert await directory.lookup(keys) == [Entry((), n + 1) for n in range(count)]


async def test_a_batch_of_nothing_is_answered_with_nothing(directory):
    assert await directory.lookup([]) == await directory.create([]) == await directory.publish([]) == []
    assert await directory.update([]) == await directory.remove([]) == []
    assert await directory.withdraw([]) is None


async def test_of_many_that_put_one_key_at_once_one_has_it(make):
    directories = [make() for _ in range(8)]
    answers = await asyncio.gather(*(create(one, owned(f"n{n}", n + 1)) for n, one in enumerate(directories)))
    [winner] = [n for n, answer in enumerate(answers) if answer == Created()]
    assert {answer for answer in answers if answer != Created()} == {Taken(owned(f"n{winner}", winner + 1))}


async def test_to_close_twice_is_harmless(make):
    directory = make()
    await directory.members()
    await directory.close()
    await directory.close()


async def test_the_one_in_memory_can_be_away():
    directory = MemoryDirectory(MemoryCluster())
    await create(directory, owned("a", 5))
    directory.is_away = True
    for call in (directory.lookup(["k"]), directory.members(), directory.join("a", "h:1"), directory.remove([])):
        with pytest.raises(DirectoryAwayError):
            await call
    assert directory.state == "away"
    directory.is_away = False
    assert await look(directory) == Entry((owned("a", 5),))
    assert directory.state == "up"


async def test_a_cluster_in_memory_that_lost_its_data_gives_higher_numbers_again():
    directory = MemoryDirectory(MemoryCluster())
    node = await directory.join("a", "h:1")
    await create(directory, owned("a", 5))
    epoch = await directory.raise_clear_epoch()
    directory.cluster.lose()
    assert await directory.renew(node) is False
    assert await look(directory) == Entry()
    assert (await directory.join("a", "h:1")).incarnation > node.incarnation
    assert await directory.raise_clear_epoch() > epoch
