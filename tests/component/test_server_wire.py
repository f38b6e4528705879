"""What a daemon does with every kind of bad client: it says why, ends that connection, and serves all others on."""

import os
import random
import resource
import select
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from mooncake_client import Client, wire
from mooncake_client.codes import Code
from mooncake_client.framing import Unpacker, pack
from tests.support import NodeProcess, Worker, eventually, ledger_check

HANG_LIMIT_S = 60


class Wire:
    """A bare connection that says what it is told to."""

    def __init__(self, path: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(HANG_LIMIT_S)
        self.sock.connect(path)
        self._unpacker: Unpacker[wire.AnyReply] = Unpacker(wire.AnyReply)
        self._replies: list[wire.AnyReply] = []

    def send(self, *messages: wire.Message | bytes) -> None:
        self.sock.sendall(b"".join(m if isinstance(m, bytes) else pack(m) for m in messages))

    def receive(self) -> wire.AnyReply | None:
        """The next reply; None at the end of the connection."""
        while not self._replies:
            try:
                data, fds, _flags, _address = socket.recv_fds(self.sock, 65536, 2)
            except ConnectionResetError:
                return None
            for fd in fds:
                os.close(fd)
            if not data:
                return None
            self._replies += self._unpacker.feed(data)
        return self._replies.pop(0)

    def hello(self, **changed: Any) -> wire.Welcome:
        hello = wire.Hello(1, [], wire.PROTOCOL_VERSION, "bare", os.getpid(), False)
        self.send(msgspec.structs.replace(hello, **changed))
        welcome = self.receive()
        assert isinstance(welcome, wire.Welcome), welcome
        return welcome

    def expect_the_end(self, code: Code, *words: str) -> None:
        """The daemon says why it gives this connection up, and ends it."""
        farewell = self.receive()
        assert isinstance(farewell, wire.Failed), farewell
        assert (farewell.request_id, farewell.code) == (0, code)
        assert all(word in farewell.message for word in words), farewell.message
        assert self.receive() is None

    def close(self) -> None:
        self.sock.close()


@pytest.fixture(scope="module")
def module_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path_factory.mktemp("node"), "--set", "clients_max=200").start()
    yield node
    ledger_check(node.socket)
    node.close()


@pytest.fixture
def node(module_node: NodeProcess) -> Iterator[NodeProcess]:
    """The module's daemon; another client holds a view all the time, and nothing of the test may be left."""
    with module_node.client(name="bystander") as client:
        client.put_from("bystander", b"b" * 10_000)
        view = client.get("bystander")
        yield module_node
        assert bytes(view) == b"b" * 10_000
        assert client.get("bystander") == b"b" * 10_000
        del view
        client.remove_all()
        eventually(lambda: client.stats()["clients"] == 1, f"the connections to end: {client.stats()['clients']}")
        eventually(lambda: client.stats()["handles"] == client.stats()["unpublished"] == 0, "nothing to be left")


@pytest.fixture
def connect(node: NodeProcess) -> Iterator[Callable[..., Wire]]:
    wires: list[Wire] = []

    def make(path: str = node.socket) -> Wire:
        wires.append(Wire(path))
        return wires[-1]

    yield make
    for one in wires:
        one.close()


def admin_path(node: NodeProcess) -> str:
    return node.socket.replace("node.sock", "node.admin.sock")


def frame(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


GARBAGE = {
    "text": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "oversized frame": struct.pack("<I", wire.FRAME_NBYTES_MAX + 1),
    "largest length": b"\xff" * 8,
    "not msgpack": frame(b"\xc1\xc1\xc1"),
    "a map": frame(msgspec.msgpack.encode({"a": 1})),
    "empty frame": frame(b""),
    "unknown tag": frame(msgspec.msgpack.encode([99, 1, []])),
    "a reply's tag": frame(msgspec.msgpack.encode([102, 1])),
    "too few fields": frame(msgspec.msgpack.encode([10, 1])),
    "wrong types": frame(msgspec.msgpack.encode([10, 1, [], "keys", "soon"])),
    "text that is no UTF-8": frame(b"\x96\x13\x01\x90" + b"\xa2\xff\xfe" + b"\x00"),
    "deep nesting": frame(b"\x91" * 100_000),
    "negative id": frame(msgspec.msgpack.encode([24, -(1 << 63), [], 0][:3]) + b"trailing"),
}


@pytest.mark.parametrize("bad", GARBAGE)
@pytest.mark.parametrize("greeted", [False, True], ids=["stranger", "client"])
def test_bytes_that_are_no_frame_end_the_connection_with_a_reason(node, connect, bad, greeted):
    one = connect()
    if greeted:
        one.hello()
    one.send(GARBAGE[bad])
    one.expect_the_end(Code.INVALID_ARGUMENT)


def test_random_bytes_never_harm_others(node, connect):
    draw = random.Random(7)
    for i in range(100):
        one = connect()
        if i % 2:
            one.hello()
        valid = pack(wire.Exists(5, [], ["k", "key"]))
        data = bytearray(valid * 3) if i % 3 else bytearray(draw.randbytes(200))
        for _ in range(draw.randint(1, 5)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        one.send(bytes(data))
        one.close()


def test_frames_that_come_byte_by_byte_are_understood(node, connect):
    one = connect()
    data = pack(wire.Hello(1, [], wire.PROTOCOL_VERSION, "slow", os.getpid(), False)) + pack(
        wire.Exists(2, [], ["bystander"])
    )
    for i in range(len(data)):
        one.send(data[i : i + 1])
    assert isinstance(one.receive(), wire.Welcome)
    assert one.receive() == wire.Flags(2, [True])


def test_many_requests_in_one_segment_are_answered_in_order(node, connect):
    one = connect()
    one.hello()
    one.send(*(wire.Exists(i, [], ["bystander", "none"]) for i in range(2, 2000)))
    assert [one.receive() for _ in range(2, 2000)] == [wire.Flags(i, [True, False]) for i in range(2, 2000)]


@pytest.mark.parametrize("greeted", [False, True], ids=["stranger", "client"])
def test_half_a_frame_and_then_silence_holds_up_nobody(node, connect, greeted):
    one = connect()
    if greeted:
        one.hello()
    one.send(pack(wire.Stats(9, []))[:5])
    with node.client() as other:
        assert other.get("bystander") == b"b" * 10_000
    one.close()


def test_request_before_the_hello_is_refused(node, connect):
    one = connect()
    one.send(wire.Stats(1, []))
    one.expect_the_end(Code.INVALID_ARGUMENT, "hello")


def test_second_hello_is_refused_and_the_first_holds(node, connect):
    one = connect()
    one.hello()
    one.send(wire.Hello(2, [], wire.PROTOCOL_VERSION, "again", os.getpid(), False), wire.Exists(3, [], ["bystander"]))
    refusal = one.receive()
    assert isinstance(refusal, wire.Failed)
    assert (refusal.request_id, refusal.code) == (2, Code.INVALID_ARGUMENT)
    assert one.receive() == wire.Flags(3, [True])


@pytest.mark.parametrize("version", [0, wire.PROTOCOL_VERSION + 1, 1 << 40])
def test_another_protocol_version_is_told_both_numbers(node, connect, version):
    one = connect()
    one.send(wire.Hello(1, [], version, "other", os.getpid(), False))
    one.expect_the_end(Code.INVALID_VERSION, f"version {wire.PROTOCOL_VERSION}", str(version))


def test_each_socket_refuses_the_others_requests_and_goes_on(node, connect):
    data, admin = connect(), connect(admin_path(node))
    data.hello()
    data.send(wire.Fault(2, [], "list"), wire.Exists(3, [], ["bystander"]))
    refusal = data.receive()
    assert isinstance(refusal, wire.Failed)
    assert "socket" in refusal.message
    assert data.receive() == wire.Flags(3, [True])
    admin.hello()
    refused: list[wire.Request] = [
        wire.Acquire(2, [], ["bystander"], 0),
        wire.PutStart(2, [], [wire.PutSpec("k", 10, 0, False)], 0),
        wire.Remove(2, [], ["bystander"], None, None),
        wire.RemoveAll(2, [], None),
        wire.Pin(2, [], "bystander", None),
        wire.Wait(2, [], "bystander", 0),
    ]
    for request in refused:
        admin.send(request)
        refusal = admin.receive()
        assert isinstance(refusal, wire.Failed), request
        assert (refusal.request_id, refusal.code) == (2, Code.INVALID_ARGUMENT)
    for request in (
        wire.Stats(3, []),
        wire.Holders(4, [], "bystander"),
        wire.ListKeys(5, [], "", 0),
        wire.Info(6, [], ["x"]),
    ):
        admin.send(request)
        answer = admin.receive()
        assert not isinstance(answer, wire.Failed)
        assert answer.request_id == request.request_id


IMPOSSIBLE: list[wire.Request] = [
    wire.Acquire(2, [], ["k"] * (wire.ITEMS_MAX + 1), 0),
    wire.PutStart(2, [], [wire.PutSpec("k", 1, 0, False)] * (wire.ITEMS_MAX + 1), 0),
    wire.PutEnd(2, [], [1] * (wire.ITEMS_MAX + 1)),
    wire.Exists(2, [], ["k"] * (wire.ITEMS_MAX + 1)),
    wire.ListKeys(2, [], "", 77),
]


@pytest.mark.parametrize("request_", IMPOSSIBLE, ids=lambda request: type(request).__name__)
def test_request_beyond_a_limit_is_refused_and_the_connection_goes_on(node, connect, request_):
    one = connect()
    one.hello()
    one.send(request_, wire.Exists(3, [], ["bystander"]))
    refusal = one.receive()
    assert isinstance(refusal, wire.Failed)
    assert (refusal.request_id, refusal.code) == (2, Code.INVALID_ARGUMENT)
    assert one.receive() == wire.Flags(3, [True])


def test_items_no_good_client_asks_for_are_refused_one_by_one(node, connect):
    one = connect()
    one.hello()
    specs = [
        wire.PutSpec("", 1, 0, False),
        wire.PutSpec("k" * 1025, 1, 0, False),
        wire.PutSpec("k", -1, 0, False),
        wire.PutSpec("k", 1 << 62, 0, False),
        wire.PutSpec("k", 1, 0, False, softpin=True, softpin_ttl_ms=-5),
        wire.PutSpec("k", 1, 0, False, hardpin=True),
    ]
    one.send(wire.PutStart(2, [], specs, -1000))
    started = one.receive()
    assert isinstance(started, wire.PutStarted)
    assert all(isinstance(item, wire.Failure) for item in started.items), started.items
    one.send(wire.PutEnd(3, [], [123456, -1]), wire.PutRevoke(4, [], [99]), wire.Released(0, [77, 77, -1]))
    ended = one.receive()
    assert isinstance(ended, wire.PutEnded)
    assert all(isinstance(item, wire.Failure) for item in ended.items)
    assert one.receive() == wire.Done(4)
    one.send(wire.Cancel(0, [], 4711), wire.Exists(5, [], [""]))
    assert one.receive() == wire.Flags(5, [False])


def test_nobody_can_end_or_release_what_is_anothers(node, connect):
    one, other = connect(), connect()
    one.hello()
    other.hello()
    one.send(wire.PutStart(2, [], [wire.PutSpec("k", 10, 0, False)], 0), wire.Acquire(3, [], ["bystander"], 0))
    started, acquired = one.receive(), one.receive()
    assert isinstance(started, wire.PutStarted)
    assert isinstance(acquired, wire.Acquired)
    reservation, grant = started.items[0], acquired.items[0]
    assert isinstance(reservation, wire.Reservation)
    assert isinstance(grant, wire.Grant)
    other.send(
        wire.PutEnd(2, [grant.handle_id], [reservation.replica_id]), wire.PutRevoke(3, [], [reservation.replica_id])
    )
    ended = other.receive()
    assert isinstance(ended, wire.PutEnded)
    assert isinstance(ended.items[0], wire.Failure)
    assert other.receive() == wire.Done(3)
    with Client(node.socket) as client:
        assert client.stats()["unpublished"] == 1
        assert client.stats()["handles"] == 2
    one.send(wire.PutEnd(4, [], [reservation.replica_id]))
    ended = one.receive()
    assert isinstance(ended, wire.PutEnded)
    assert isinstance(ended.items[0], wire.Published)
    one.send(wire.Goodbye(0, []))


def test_nothing_is_answered_after_the_goodbye(node, connect):
    one = connect()
    one.hello()
    one.send(wire.Goodbye(0, []), wire.Acquire(2, [], ["bystander"], 0))
    answer = one.receive()
    assert answer is None or isinstance(answer, wire.Failed)


def test_client_that_reads_no_replies_is_held_back_and_holds_up_nobody(node, connect):
    with node.client() as other:
        other.put_many({f"page/{i}": b"" for i in range(1000)})
        one = connect()
        one.hello()
        one.sock.setblocking(False)
        # Each reply has 100 KiB: without back-pressure they would pile up to gigabytes.
        requests = pack(wire.ListKeys(2, [], "page/", 0)) * 100
        sent = 0
        for _ in range(20_000):
            try:
                sent += one.sock.send(requests)
            except BlockingIOError:
                if not select.select([], [one.sock], [], 0.5)[1]:
                    break
            except BrokenPipeError:
                break
        else:
            raise AssertionError("the daemon took everything")
        assert other.stats()["node"]["rss_bytes"] < 1 << 30
        assert other.get("bystander") == b"b" * 10_000


def test_given_up_connection_keeps_what_it_refers_to_until_its_process_is_gone(
    node: NodeProcess, make_worker: Callable[..., Worker]
) -> None:
    worker = make_worker(node)
    worker.run("c.put_from('mine', pattern(1, 100_000)); v = c.get('mine'); r = c.create('room', 1000); w = r.view")
    worker.run("try: c._link._send(b'\\xff' * 64); c.stats()\nexcept StoreError: pass")
    with node.client() as other:
        assert worker.run("c._link.lost") or True
        other.remove("mine")
        other.put_from("next", bytes(100_000))
        # It is read no more, but its view may still be looked at and its room written to.
        assert worker.run("digest(v) == digest(pattern(1, 100_000))")
        assert other.stats()["handles"] == 2
        assert other.stats()["unpublished"] == 1
        # A new connection of the same process changes nothing for the old one.
        worker.run("c.put_from('again', b'x')")
        assert other.stats()["handles"] == 2
        worker.kill()
        eventually(lambda: other.stats()["handles"] == 1, "the views of the dead process to go")
        eventually(lambda: other.stats()["unpublished"] == 0, "the room of the dead process to go")


def test_connections_beyond_the_limit_are_told_and_those_below_are_served(node, connect):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    idle = [connect() for _ in range(150)]
    greeted = []
    refused = 0
    for _ in range(220):
        one = connect()
        one.send(wire.Hello(1, [], wire.PROTOCOL_VERSION, "many", os.getpid(), False))
        answer = one.receive()
        if isinstance(answer, wire.Welcome):
            greeted.append(one)
        else:
            assert isinstance(answer, wire.Failed)
            assert answer.code == Code.NO_SPACE
            assert "clients_max" in answer.message
            refused += 1
            assert one.receive() is None
    # The bystander is one of the 200.
    assert (len(greeted), refused) == (199, 21)
    for one in (greeted[0], greeted[-1]):
        one.send(wire.Exists(2, [], ["bystander"]))
        assert one.receive() == wire.Flags(2, [True])
    for one in greeted[:10]:
        one.close()
    # Their places are free again, and no stranger keeps anybody out.
    eventually(lambda: can_attach(node), "a place to be free")
    for one in [*idle, *greeted]:
        one.close()


def can_attach(node: NodeProcess) -> bool:
    one = Wire(node.socket)
    one.send(wire.Hello(1, [], wire.PROTOCOL_VERSION, "one more", os.getpid(), False))
    answer = one.receive()
    one.close()
    return isinstance(answer, wire.Welcome)


def test_strangers_beyond_their_limit_are_told_and_clients_are_served(node, connect):
    with node.client() as client:
        # 200 clients and 256 strangers, of which the bystander and this client are two.
        strangers = [connect() for _ in range(200 + 256)]
        for one in strangers[-2:]:
            one.expect_the_end(Code.NO_SPACE, "connections")
        assert client.get("bystander") == b"b" * 10_000
        for one in strangers:
            one.close()
        eventually(lambda: can_attach(node), "room for a newcomer")
