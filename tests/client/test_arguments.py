"""What callers may hand in, and that each mistake is named before anything happens. For both clients."""

import pytest

from mooncake_client import (
    AsyncClient,
    Client,
    DaemonGoneError,
    InvalidArgumentError,
    StoreError,
    StoreTimeoutError,
)

KEYS = ["a", "k" * 1024, "é" * 512, "𝄞" * 256, "\n\0\t ", "../../etc", "%s{}\\", "🙂/日本語"]
BAD_KEYS = ["", "k" * 1025, "é" * 513, "\ud800", b"bytes", None, 7, ["a"], ("a",)]


@pytest.mark.parametrize("key", KEYS)
def test_any_valid_key_works_in_every_call(c, key):
    info = c.put(key, b"v")
    assert c.get(key) == b"v"
    assert c.get_many([key]) == [b"v"]
    assert c.exists(key)
    assert c.info(key).key == key
    assert [found.key for found in c.list(key)] == [key]
    c.wait(key)
    assert c.remove(key, generation=info.generation)
    assert not c.exists(key)


@pytest.mark.parametrize("key", BAD_KEYS, ids=repr)
def test_any_invalid_key_is_refused_by_every_call(c, key):
    calls = [
        lambda: c.put(key, b""),
        lambda: c.put_parts(key, b""),
        lambda: c.put_from(key, b""),
        lambda: c.upsert(key, b""),
        lambda: c.create(key, 1),
        lambda: c.get(key),
        lambda: c.get_buffer(key),
        lambda: c.get_into(key, bytearray()),
        lambda: c.get_many(["a", key]),
        lambda: c.get_buffers([key]),
        lambda: c.exists(key),
        lambda: c.exists_many([key]),
        lambda: c.size(key),
        lambda: c.info(key),
        lambda: c.remove(key),
        lambda: c.remove_many([key]),
        lambda: c.wait(key),
        lambda: c.pin(key),
        lambda: c.unpin(key),
        lambda: c.holders(key),
    ]
    for call in calls:
        with pytest.raises(InvalidArgumentError) as caught:
            call()
        assert isinstance(caught.value, ValueError)
        assert caught.value.code == -600
    if key != "":
        for call in (lambda: list(c.list(key)), lambda: c.remove_prefix(key)):
            with pytest.raises(InvalidArgumentError):
                call()


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), 1e9, "5", [], True], ids=repr)
def test_silly_timeouts_are_refused(c, connect, timeout):
    calls = [
        lambda: c.put("k", b"", timeout=timeout),
        lambda: c.create("k", 1, timeout=timeout),
        lambda: c.put_many({"k": b""}, timeout=timeout),
        lambda: c.get("k", timeout=timeout),
        lambda: c.get_buffer("k", timeout=timeout),
        lambda: c.get_into("k", bytearray(), timeout=timeout),
        lambda: c.wait("k", timeout=timeout),
        lambda: connect(timeout=timeout),
    ]
    for call in calls:
        with pytest.raises(InvalidArgumentError, match="timeout"):
            call()
    assert not c.exists("k")


def test_timeout_of_zero_does_what_needs_no_waiting(c):
    c.put("k", b"1", timeout=0)
    assert c.get("k", timeout=0) == b"1"
    assert c.put_many({"m": b"2"}, timeout=0)["m"].nbytes == 1
    with c.create("r", 1, timeout=0):
        pass
    c.wait("r", 0)


def test_client_whose_own_timeout_is_zero_works(connect):
    c = connect(timeout=0)
    c.put("k", b"1")
    assert c.get("k") == b"1"
    assert c.stats()["objects"] == 1
    with pytest.raises(StoreTimeoutError):
        c.wait("none")


@pytest.mark.parametrize("nbytes", [-1, 1.0, "1", None, True, 1 << 62], ids=repr)
def test_create_takes_a_length(c, nbytes):
    with pytest.raises(InvalidArgumentError):
        c.create("k", nbytes)


@pytest.mark.parametrize("scope", ["", "global", 1, b"node", ["node"], {}], ids=repr)
def test_scope_is_one_of_two_words(c, scope):
    for call in (
        lambda: c.put("k", b"", scope=scope),
        lambda: c.remove("k", scope=scope),
        lambda: c.remove_all(scope=scope),
    ):
        with pytest.raises(InvalidArgumentError, match="scope"):
            call()


@pytest.mark.parametrize(
    "generation", ["", "1", 5, "g" * 16, b"0" * 16, "0x00000000000000", "-000000000000001"], ids=repr
)
def test_generation_is_what_put_gave(c, generation):
    c.put("k", b"")
    with pytest.raises(InvalidArgumentError, match="generation"):
        c.remove("k", generation=generation)
    assert c.exists("k")


@pytest.mark.parametrize("ttl", [-1, "1", float("nan"), float("inf"), 1e13, True], ids=repr)
def test_pin_takes_seconds(c, ttl):
    c.put("k", b"")
    for call in (lambda: c.pin("k", ttl), lambda: c.put("n", b"", softpin=True, softpin_ttl=ttl)):
        with pytest.raises(InvalidArgumentError, match="ttl"):
            call()
    with pytest.raises(InvalidArgumentError, match="softpin"):
        c.put("n", b"", softpin_ttl=5)
    assert not c.exists("n")


def test_unknown_keyword_arguments_are_refused(c):
    calls = [
        lambda: c.put("k", b"", sofpin=True),
        lambda: c.put_parts("k", b"", sofpin=True),
        lambda: c.put_from("k", b"", sofpin=True),
        lambda: c.upsert("k", b"", sofpin=True),
        lambda: c.put_many({"k": b""}, sofpin=True),
        lambda: c.create("k", 1, sofpin=True),
        lambda: c.get("k", sofpin=True),
        lambda: c.remove("k", force=True),
    ]
    for call in calls:
        with pytest.raises(TypeError):
            call()
    assert not c.exists("k")


def test_several_keys_are_not_one_str(c):
    for call in (c.get_many, c.get_buffers, c.exists_many, c.remove_many):
        for keys in ("abc", b"abc", None, 5):
            with pytest.raises(InvalidArgumentError, match="several keys"):
                call(keys)
    c.put_many({"a": b"", "b": b""})
    assert c.exists_many(iter(("a", "b"))) == [True, True]
    assert c.remove_many({"a": 1, "b": 2}) == [True, True]
    with pytest.raises(InvalidArgumentError):
        c.put_many(["a"])


@pytest.mark.parametrize(
    "buffer", ["text", None, 5, [1], memoryview(bytearray(8))[::2]], ids=["str", "None", "int", "list", "strided"]
)
def test_put_from_takes_one_contiguous_buffer(c, buffer):
    with pytest.raises(InvalidArgumentError):
        c.put_from("k", buffer)
    with pytest.raises(InvalidArgumentError):
        c.put_parts("k", b"good", buffer)
    assert not c.exists("k")


def test_object_that_cannot_be_stored_is_refused_and_leaves_the_key_free(c, watcher):
    with pytest.raises(InvalidArgumentError, match="pickle"):
        c.put("k", {"deep": [object()]})
    assert watcher.stats()["unpublished"] == 0
    c.put("k", b"")


def test_hooks_and_pickle_are_the_clients(connect):
    class Point:
        def __init__(self, x):
            self.x = x

    hooked = connect(enc_hook=lambda obj: {"x": obj.x}, dec_hook=lambda kind, obj: kind(obj["x"]))
    hooked.put("p", Point(5))
    assert hooked.get("p") == {"x": 5}
    assert hooked.get("p", type=Point).x == 5
    pickler, plain = connect(pickle=True), connect()
    pickler.put("z", {"z": complex(1, 2), "f": range(3)})
    assert pickler.get("z")["f"] == range(3)
    if plain.info("z").kind == "pickled":
        with pytest.raises(InvalidArgumentError, match="pickle"):
            plain.get("z")


def test_closed_client_says_so_and_may_be_closed_again(connect):
    c = connect()
    c.close()
    c.close()
    for call in (lambda: c.put("k", b""), lambda: c.get("k"), lambda: c.stats(), lambda: list(c.list())):
        with pytest.raises(DaemonGoneError, match="closed") as caught:
            call()
        assert isinstance(caught.value, ConnectionError)
        assert caught.value.code == -900
    assert "closed" in repr(c)


def test_client_of_a_socket_where_nobody_listens_says_how_to_start_one(tmp_path):
    with pytest.raises(DaemonGoneError, match="mooncake-node serve"):
        Client(tmp_path / "none.sock")
    with pytest.raises(InvalidArgumentError, match="too long"):
        Client("/tmp/" + "x" * 200)
    with pytest.raises(InvalidArgumentError, match="name"):
        Client(name=5)


async def test_async_client_attaches_on_first_use(tmp_path):
    c = AsyncClient(tmp_path / "none.sock")
    with pytest.raises(DaemonGoneError, match="mooncake-node serve"):
        await c.exists("k")
    await c.close()


def test_socket_of_the_environment_is_the_default(daemon, monkeypatch, watcher):
    monkeypatch.setenv("MOONCAKE_NODE_SOCKET", daemon.socket)
    with Client() as c:
        c.put("k", b"")


def test_client_of_the_admin_socket_is_told_that_it_is_the_wrong_one(connect, daemon):
    with pytest.raises(StoreError, match="admin"):
        connect(daemon.socket.replace("node.sock", "node.admin.sock"))
