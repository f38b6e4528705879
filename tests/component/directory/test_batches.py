"""What every directory does with keys and batches, however odd or many, and the same answers to the same calls."""

import asyncio
import random
from collections import Counter

import msgspec
import pytest

from mooncake_node.directory import (
    Created,
    Creation,
    DirectoryAwayError,
    Entry,
    Holding,
    MemoryCluster,
    MemoryDirectory,
    Taken,
)
from tests.support.directories import (
    HIGH,
    TOP,
    MemoryKit,
    ValkeyKit,
    create,
    holding,
    look,
    owned,
)


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
    assert [(e.holdings, e.tombstone) for e in await directory.lookup(keys)] == [((), n + 1) for n in range(count)]


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


# -- the same answers to the same calls ------------------------------------------------------------------------------


class Calls:
    """Random calls about few keys, nodes, lives and generations, so that they meet."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.keys = ("", "")
        self.generations = [*range(HIGH, HIGH + 6), 1, TOP]

    def holding(self, *, is_owner: bool) -> Holding:
        return Holding(
            node=self.random.choice("abcd"),
            incarnation=self.random.randint(1, 3),
            generation=self.generation(),
            nbytes=self.random.randrange(1 << 40),
            kind=self.random.randrange(5),
            epoch=self.random.choice([0, 0, 0, 1, 2]),
            is_owner=is_owner,
            on_disk=self.random.random() < 0.3,
            softpin=self.random.random() < 0.3,
            softpin_until_unix_ms=self.random.choice([None, 0, 1 << 41]),
        )

    def generation(self) -> int:
        return self.random.choice(self.generations)

    def key(self) -> str:
        return self.random.choice(self.keys)

    def items(self, make) -> list:
        return [make() for _ in range(self.random.choice([0, 1, 1, 1, 2, 5]))]

    def next(self, known: list[tuple[str, Entry]]) -> tuple[str, tuple, dict]:
        """A call, mostly about what is there: its name and arguments."""
        there = [(key, holding) for key, entry in known for holding in entry.holdings]

        def some(*, is_owner: bool) -> tuple[str, Holding]:
            """A key and a holding: one that is there, one of the generation of another, or any."""
            key, new = self.key(), self.holding(is_owner=is_owner)
            if not there or self.random.random() < 0.2:
                return key, new
            key, old = self.random.choice(there)
            if self.random.random() < 0.5:
                return key, msgspec.structs.replace(old, is_owner=is_owner, on_disk=new.on_disk)
            return key, msgspec.structs.replace(new, generation=old.generation)

        def creation() -> Creation:
            key, new = some(is_owner=True) if self.random.random() < 0.4 else (self.key(), self.holding(is_owner=True))
            dead = tuple(
                (self.random.choice("abcd"), self.random.randint(1, 3)) for _ in range(self.random.choice([0, 0, 2, 5]))
            )
            return Creation(key=key, holding=new, replaces=self.random.random() < 0.4, dead=dead)

        def removal() -> tuple[str, int | None]:
            key, old = some(is_owner=False)
            return key, self.random.choice([None, old.generation])

        def withdrawal() -> tuple[str, str, int, int]:
            key, old = some(is_owner=False)
            return key, old.node, old.incarnation, old.generation

        name = self.random.choice(
            ["create", "create", "create", "publish", "publish", "publish", "update", "transfer", "withdraw", "remove"]
        )
        if name == "transfer":
            (key, old), (_, to) = some(is_owner=True), some(is_owner=True)
            owners = [(where, holding) for where, holding in there if holding.is_owner]
            if owners and self.random.random() < 0.6:
                key, old = self.random.choice(owners)
                to = msgspec.structs.replace(to, generation=old.generation)
            return name, (key,), {"node": old.node, "incarnation": old.incarnation, "to": to}
        make = {
            "create": creation,
            "publish": lambda: some(is_owner=False),
            "update": lambda: some(is_owner=self.random.random() < 0.5),
            "remove": removal,
            "withdraw": withdrawal,
        }
        return name, (self.items(make[name]),), {}


@pytest.mark.parametrize("seed", range(30))
async def test_both_directories_answer_the_same_to_the_same_calls(server, seed):
    calls, kits = Calls(seed), (MemoryKit(), ValkeyKit(server))
    directories = [kit.open() for kit in kits]
    known: list[tuple[str, Entry]] = []
    outcomes: Counter[str] = Counter()
    for turn in range(240):
        if turn % 30 == 0:  # the highest generation is the end of a key
            calls.keys, known = (f"x{turn}", f"y{turn}"), []
        name, arguments, facts = calls.next(known)
        answers = [await getattr(directory, name)(*arguments, **facts) for directory in directories]
        assert answers[0] == answers[1], (name, arguments, facts, known)
        entries = [await directory.lookup(calls.keys) for directory in directories]
        assert entries[0] == entries[1], (name, arguments, facts, known)
        for entry in entries[0]:
            assert len({item.generation for item in entry.holdings}) == (bool(entry.holdings))
            assert sum(item.is_owner for item in entry.holdings) == (bool(entry.holdings))
            assert all(item.generation > entry.tombstone for item in entry.holdings)
        known = list(zip(calls.keys, entries[0], strict=True))
        listed = answers[0] if isinstance(answers[0], list) else [answers[0]]
        outcomes.update(f"{name} {answer if isinstance(answer, bool) else type(answer).__name__}" for answer in listed)
    for kit in kits:
        await kit.close()
    # It is worth something only if calls of all kinds do and do not succeed.
    wanted = {"create Created", "create Taken", "create TooOld", "publish True", "publish False", "update True"}
    assert wanted | {"transfer True", "transfer False", "remove Entry"} <= outcomes.keys()
