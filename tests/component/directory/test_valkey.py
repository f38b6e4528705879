"""The directory on a real server when that is paused, killed, empty, closed to us or far behind TLS."""

import asyncio
import contextlib
import sys
import time

import pytest
from redis.asyncio import Redis

from mooncake_node.directory import (
    Created,
    Creation,
    DirectoryAwayError,
    DirectoryError,
    Entry,
    open_directory,
)
from mooncake_node.directory.encoding import digest_of
from mooncake_node.directory.url import parse_url
from mooncake_node.directory.valkey import ValkeyDirectory
from tests.support.directories import create, eventually_async, holding, look, owned
from tests.support.valkey import ValkeyServer, make_certificate, tls_front
from tests.support.waiting import HANG_LIMIT_S

SECRET = "s3cret"
LONG_S = 1000.0


@pytest.fixture
def start(tmp_path):
    servers: list[ValkeyServer] = []

    def start(**facts) -> ValkeyServer:
        servers.append(ValkeyServer(tmp_path / f"server{len(servers)}", **facts))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
async def connect():
    async with contextlib.AsyncExitStack() as stack:

        def connect(url: str, **facts) -> ValkeyDirectory:
            facts = {"liveness_ttl_s": LONG_S, "timeout_s": 30.0, "pause_s": 0.1, **facts}
            directory = ValkeyDirectory(url, namespace="test", **facts)
            stack.push_async_callback(directory.close)
            return directory

        yield connect


async def answered_again(directory) -> None:
    async def answered():
        try:
            return await directory.members()
        except DirectoryAwayError:
            assert directory.state == "away"
            return None

    await eventually_async(answered, "an answer")
    assert directory.state == "up"


async def test_a_paused_server_is_away_after_the_time_limit_and_then_at_once(start, connect):
    server = start()
    directory = connect(server.url, timeout_s=0.3, pause_s=LONG_S)
    await directory.members()
    server.pause()
    began = time.monotonic()
    with pytest.raises(DirectoryAwayError, match=r"within 0\.3 s"):
        await directory.lookup(["k"])
    assert 0.25 < time.monotonic() - began < HANG_LIMIT_S / 2
    assert directory.state == "away"
    # Without the breaker these would take five minutes.
    for _ in range(1000):
        with pytest.raises(DirectoryAwayError, match="a moment ago"):
            await directory.lookup(["k"])
    assert time.monotonic() - began < HANG_LIMIT_S


async def test_many_callers_of_a_paused_server_do_not_wait_for_one_another(start, connect):
    server = start()
    directory = connect(server.url, timeout_s=0.5, pause_s=LONG_S)
    await directory.members()
    server.pause()
    began = time.monotonic()
    answers = await asyncio.gather(*(directory.lookup(["k"]) for _ in range(1000)), return_exceptions=True)
    assert {type(answer) for answer in answers} == {DirectoryAwayError}
    # One after another, even sixteen at a time, they would take half a minute.
    assert time.monotonic() - began < 15


async def test_a_resumed_server_is_back_after_one_probe_and_answers_are_not_mixed_up(start, connect):
    server = start()
    directory = connect(server.url, timeout_s=0.3)
    keys = [f"k{n}" for n in range(40)]
    items = [Creation(key=key, holding=owned("a", n + 1)) for n, key in enumerate(keys)]
    assert await connect(server.url).create(items) == [Created()] * 40
    server.pause()
    await asyncio.gather(*(directory.lookup([key]) for key in keys), return_exceptions=True)
    assert directory.state == "away"
    server.resume()
    await answered_again(directory)
    patient = connect(server.url)
    for one in (patient, directory):
        answers = await asyncio.gather(*(one.lookup([key]) for key in keys), return_exceptions=True)
        right = [[Entry((item.holding,))] for item in items]
        assert [answer for answer in answers if not isinstance(answer, DirectoryAwayError)] == (
            right if one is patient else [a for a, b in zip(right, answers, strict=True) if a == b]
        )


async def test_cancelled_calls_leave_nothing_behind(start, connect):
    server = start()
    directory = connect(server.url)
    keys = [f"k{n}" for n in range(64)]
    items = [Creation(key=key, holding=owned("a", n + 1)) for n, key in enumerate(keys)]
    await directory.create(items)
    server.pause()
    calls = [asyncio.create_task(directory.lookup([key])) for key in keys]
    for call in calls[::2]:
        for _ in range(20):
            await asyncio.sleep(0)
        call.cancel()
    server.resume()
    await asyncio.wait(calls)
    assert all(call.cancelled() for call in calls[::2])
    assert [call.result() for call in calls[1::2]] == [[Entry((item.holding,))] for item in items[1::2]]
    assert directory.state == "up"
    answers = await asyncio.gather(*(directory.lookup([key]) for key in keys))
    assert answers == [[Entry((item.holding,))] for item in items]


async def test_a_server_that_is_not_there_is_away(start, connect):
    server = start()
    directory = connect(server.url)
    server.kill()
    with pytest.raises(DirectoryAwayError, match=server.place):
        await directory.members()
    assert directory.state == "away"
    server.start()
    await answered_again(directory)


async def test_a_server_that_restarts_empty_gives_higher_numbers_and_the_same_slots(start, connect):
    server = start()
    one, other = connect(server.url), connect(server.url)
    a, b = await one.join("a", "h:1"), await other.join("b", "h:2")
    await create(one, owned("a", 5, incarnation=a.incarnation))
    epoch = await one.raise_clear_epoch()
    assert len((await other.members()).nodes) == 2
    server.kill()
    server.start()
    await answered_again(other)
    # Who has seen the clear epoch puts it back.
    stranger = connect(server.url)
    assert (await stranger.members()).clear_epoch == epoch
    assert (await stranger.members()).nodes == ()
    assert await look(stranger) == Entry()
    assert await other.renew(b) is False
    # Not the lowest free one: that was another's.
    again = await other.join("b", "h:2")
    assert again.slot == b.slot
    assert again.incarnation > max(a.incarnation, b.incarnation)
    newcomer = await stranger.join("c", "h:3")
    assert newcomer.incarnation > again.incarnation
    await answered_again(one)
    assert await one.renew(a) is False
    assert (await one.join("a", "h:1")).incarnation > newcomer.incarnation
    assert await stranger.raise_clear_epoch() > epoch


async def test_numbers_do_not_fall_below_what_was_seen_though_the_servers_clock_does(start, connect):
    server = start()
    directory = connect(server.url)
    ahead = 1 << 52
    async with Redis(port=server.port) as raw:
        await raw.set("d:test:incarnation", ahead)
        await raw.set("d:test:epoch", ahead)
        first = await directory.join("a", "h:1")
        assert (first.incarnation, await directory.raise_clear_epoch()) == (ahead + 1, ahead + 1)
        await raw.flushall()
        assert (await directory.join("a", "h:1")).incarnation == ahead + 2
        assert await directory.raise_clear_epoch() == ahead + 2


async def test_a_server_that_restarts_with_its_data_knows_all_but_the_scripts(start, connect):
    server = start(keeps_data=True)
    directory = connect(server.url)
    node = await directory.join("a", "h:1")
    await create(directory, owned("a", 5))
    server.stop()
    server.start()
    await answered_again(directory)
    assert await directory.renew(node) is True
    assert await directory.publish([("k", holding("b", 5))] * 300) == [True] * 300
    assert await look(directory) == Entry((owned("a", 5), holding("b", 5)))


async def test_what_the_server_holds_is_one_hash_a_key_and_ends_only_as_a_tombstone(start, connect):
    server = start()
    directory = connect(server.url, tombstone_s=50.0)
    await create(directory, owned("a", 5))
    async with Redis(port=server.port) as raw:
        name = f"o:test:{digest_of('k')}"
        assert await raw.keys("*") == [name.encode()]
        assert await raw.ttl(name) == -1
        await directory.remove([("k", None)])
        assert 0 < await raw.pttl(name) <= 50_000
        await create(directory, owned("a", 6))
        assert await raw.ttl(name) == -1


async def test_values_of_others_under_our_names_are_an_error_and_the_server_stays_up(start, connect):
    server = start()
    directory = connect(server.url)
    async with Redis(port=server.port) as raw:
        await raw.hset(f"o:test:{digest_of('k')}", "a", "nonsense")
        await raw.set(f"o:test:{digest_of('text')}", "nonsense")
    for key in ("k", "text"):
        with pytest.raises(DirectoryError) as caught:
            await look(directory, key)
        assert not isinstance(caught.value, DirectoryAwayError)
        assert directory.state == "up"


async def test_a_full_server_is_away_for_now(start, connect):
    server = start()
    directory = connect(server.url)
    async with Redis(port=server.port) as raw:
        await raw.config_set("maxmemory", 1)
        with pytest.raises(DirectoryAwayError, match="cannot serve now"):
            await create(directory, owned("a", 5))
        await raw.config_set("maxmemory", 0)
    await answered_again(directory)
    assert await create(directory, owned("a", 5)) == Created()


# -- passwords and TLS -----------------------------------------------------------------------------------------------


async def test_the_right_password_is_needed_and_told_to_nobody(start, connect):
    server = start(password=SECRET)
    assert (await connect(server.url).join("a", "h:1")).name == "a"
    assert (await connect(f"redis://default:{SECRET}@{server.place}").members()).nodes
    for url in (f"valkey://{server.place}", f"valkey://:wr0ng@{server.place}", f"valkey://who:wr0ng@{server.place}"):
        directory = connect(url)
        for _ in range(2):
            with pytest.raises(DirectoryError, match="password") as caught:
                await directory.members()
            assert not isinstance(caught.value, DirectoryAwayError)
            assert "wr0ng" not in repr(caught.value)
            assert caught.value.__suppress_context__
    assert SECRET not in repr(parse_url(server.url))
    assert SECRET not in str(parse_url(server.url))


async def test_tls_is_spoken_with_whom_the_named_certificates_vouch_for(start, connect, tmp_path):
    """The wheel's server is built without TLS, so it stands behind a front that has it."""
    server = start(password=SECRET)
    certificate, key = make_certificate(tmp_path)
    async with tls_front(server, certificate, key) as port:
        directory = connect(f"valkeys://:{SECRET}@127.0.0.1:{port}/0?ca={certificate}")
        node = await directory.join("a", "h:1")
        assert (await directory.members()).nodes == (node,)
        for url in (
            f"valkeys://:{SECRET}@127.0.0.1:{port}/0",
            f"rediss://:{SECRET}@localhost:{port}/0?ca={certificate}",
        ):
            stranger = connect(url)
            with pytest.raises(DirectoryAwayError, match="certificate"):
                await stranger.members()
            await stranger.close()
        await directory.close()


def test_a_missing_file_of_certificates_is_told_at_once():
    with pytest.raises(DirectoryError, match="/nowhere/ca.pem"):
        ValkeyDirectory("valkeys://h?ca=/nowhere/ca.pem", namespace="n")


# -- URLs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "facts"),
    [
        ("valkey://h", {"host": "h", "port": 6379, "db": 0, "is_tls": False}),
        ("redis://h:1/", {"host": "h", "port": 1, "db": 0, "is_tls": False}),
        ("rediss://h:1/3", {"host": "h", "port": 1, "db": 3, "is_tls": True}),
        ("valkeys://[::1]:7/2?ca=/x/y.pem", {"host": "::1", "port": 7, "db": 2, "is_tls": True, "ca_file": "/x/y.pem"}),
        ("valkey://u:p%40%2F%3A@h", {"username": "u", "password": "p@/:", "host": "h"}),
        ("valkey://:p@h", {"username": None, "password": "p"}),
    ],
)
def test_a_url_is_understood(url, facts):
    address = parse_url(url)
    assert {name: getattr(address, name) for name in facts} == facts


@pytest.mark.parametrize(
    "url",
    [
        "", "h:6379", f"http://:{SECRET}@h", f"valkey:{SECRET}@h", f"valkey://:{SECRET}@", f"valkey://:{SECRET}@:77",
        f"valkey://:{SECRET}@h:port", f"valkey://:{SECRET}@h:0", f"valkey://:{SECRET}@h:65536",
        f"valkey://:{SECRET}@h/one", f"valkey://:{SECRET}@h/-1", f"valkey://u:/{SECRET}@h", f"valkey://h:{SECRET}",
        f"valkey://u:#{SECRET}@h:1", f"valkey://u:{SECRET}@[h", f"valkey://:{SECRET}@h?x=1", f"{SECRET}://h",
        f"valkey://:{SECRET}@h?ca=x", f"valkey://u:?{SECRET}@h",
    ],
)  # fmt: skip
def test_a_url_that_is_not_understood_is_told_in_words_without_its_secrets(url):
    with pytest.raises(DirectoryError) as caught:
        open_directory(url, namespace="n", liveness_ttl_s=3.0, tombstone_s=60.0, timeout_s=0.5)
    assert "directory's URL" in str(caught.value)
    assert SECRET not in repr(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("namespace", ["", "a:b", "{a}", "a b", "x" * 65, "\N{SNOWMAN}", "a\n"])
def test_a_namespace_is_a_plain_word(namespace):
    with pytest.raises(DirectoryError, match="namespace"):
        open_directory("valkey://h", namespace=namespace, liveness_ttl_s=3.0, tombstone_s=60.0, timeout_s=0.5)


def test_without_the_extra_the_error_names_it(monkeypatch):
    for name in list(sys.modules):
        if name.partition(".")[0] == "redis" or name in (
            "mooncake_node.directory.valkey", "mooncake_node.directory.server", "mooncake_node.directory.lives",
        ):  # fmt: skip
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(DirectoryError, match=r"mooncake-node\[cluster\]"):
        open_directory("valkey://h", namespace="n", liveness_ttl_s=3.0, tombstone_s=60.0, timeout_s=0.5)
