"""What every directory does with lives: one suite for the one in memory and for the one on a real server."""

import asyncio
import time

import msgspec
import pytest

from mooncake_node.directory import (
    DirectoryError,
    MemoryDirectory,
    NameTakenError,
)
from tests.support.directories import (
    ValkeyKit,
    eventually_async,
)


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
    kit.shorten(liveness_ttl_s=2.0)
    directory = make()
    node = await directory.join("a", "h:1")
    if isinstance(kit, ValkeyKit):
        kit.shorten(liveness_ttl_s=1000.0)
        assert await make().renew(node)
        lapsed_at = time.monotonic() + 2.2

        async def a_former_end_is_over():
            return time.monotonic() > lapsed_at

        await eventually_async(a_former_end_is_over, "the end that the life had")
    else:
        for _ in range(5):
            kit.now_ns += 1_900_000_000
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


async def test_slots_run_out_at_2048_names(kit, directory):
    await kit.know_names(2047)
    last = await directory.join("last", "h:1")
    assert last.slot == 2047
    with pytest.raises(DirectoryError, match=r"2,048"):
        await directory.join("one more", "h:1")
    assert (await directory.join("n1000", "h:1")).slot == 1000
    assert [node.slot for node in (await directory.members()).nodes] == [2047, 1000]


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
