"""sd_notify: what the manager receives, and that its absence or failure is nobody's trouble."""

import contextlib
import os
import socket

import pytest

from mooncake_node.systemd import Notifier


@pytest.fixture(params=["path", "abstract"])
def manager(request, tmp_path):
    """A manager's socket and the environment it gives."""
    named = str(tmp_path / "notify")
    address = named if request.param == "path" else f"@mooncake-node-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(address.replace("@", "\0", 1) if request.param == "abstract" else address)
        receiver.setblocking(False)
        yield receiver, {"NOTIFY_SOCKET": address}


def test_every_state_reaches_the_manager(manager):
    receiver, env = manager
    notifier = Notifier(env)
    notifier.extend_timeout(1.5)
    notifier.status("reserving 1 of 24 GiB")
    notifier.ready("serving")
    notifier.watchdog()
    notifier.stopping("draining")
    assert [receiver.recv(4096) for _ in range(5)] == [
        b"EXTEND_TIMEOUT_USEC=1500000",
        b"STATUS=reserving 1 of 24 GiB",
        b"READY=1\nSTATUS=serving",
        b"WATCHDOG=1",
        b"STOPPING=1\nSTATUS=draining",
    ]


def test_status_cannot_smuggle_in_another_field(manager):
    receiver, env = manager
    Notifier(env).status("node\nREADY=1")
    assert receiver.recv(4096) == b"STATUS=node READY=1"


@pytest.mark.parametrize(
    "address",
    [None, "", "relative", "vsock:2:1234", "/no/such/socket", "@", "/" + "x" * 200, "/a\0b"],
)
def test_without_a_manager_nothing_happens(address):
    notifier = Notifier({} if address is None else {"NOTIFY_SOCKET": address})
    notifier.ready("serving")
    notifier.status("\udc80")


def test_full_queue_of_a_stopped_manager_does_not_hold_the_daemon(manager):
    receiver, env = manager
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as filler:
        filler.setblocking(False)
        filler.connect(receiver.getsockname())
        with contextlib.suppress(BlockingIOError):
            while True:
                filler.send(b"x")
    Notifier(env).watchdog()


def test_watchdog_is_asked_for_by_the_manager_and_for_this_process():
    assert Notifier({}).watchdog_interval_s is None
    assert Notifier({"WATCHDOG_USEC": "soon"}).watchdog_interval_s is None
    assert Notifier({"WATCHDOG_USEC": "20000000"}).watchdog_interval_s == 10.0
    mine = {"WATCHDOG_USEC": "20000000", "WATCHDOG_PID": str(os.getpid())}
    assert Notifier(mine).watchdog_interval_s == 10.0
    assert Notifier(mine | {"WATCHDOG_PID": "1"}).watchdog_interval_s is None
