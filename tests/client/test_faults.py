"""The fault table: what is armed, when it acts, and that it is off unless asked for."""

import subprocess
import sys

import pytest

from mooncake_client import InvalidArgumentError, NotFoundError, StoreError
from mooncake_client.faults import CLIENT_FAULTS, FaultTable


@pytest.fixture
def table():
    return FaultTable({"A": "first", "B": "second"}, enabled=True)


def test_point_acts_from_its_start_as_often_as_asked(table):
    assert table.inject("A", "sleep", 250, start=3, times=2) == 0
    assert [table.hit("A") for _ in range(6)] == [0.0, 0.0, 0.25, 0.25, 0.0, 0.0]
    status = table.status("A")
    assert (status.hits, status.fired, status.armed) == (6, 2, False)
    assert table.hit("B") == 0.0


def test_error_has_the_class_of_its_code(table):
    table.inject("A", "return_error", -704)
    with pytest.raises(NotFoundError, match="A"):
        table.hit("A")
    table.inject("A", "return_error", -12345)
    with pytest.raises(StoreError) as caught:
        table.hit("A")
    assert caught.value.code == -12345


def test_reset_disarms_and_forgets(table):
    table.inject("A", "sleep", 10)
    table.hit("A")
    table.inject("A", "sleep", 10)
    table.inject("A", "reset")
    assert table.hit("A") == 0.0
    assert (table.status("A").hits, table.status("A").fired) == (1, 0)
    table.inject("A", "sleep", 10)
    table.inject("B", "sleep", 10)
    table.reset_all()
    assert [status.armed for status in table.statuses()] == [False, False]


@pytest.mark.parametrize(
    "arguments",
    [
        ("C", "sleep", 1),
        ("A", "explode", 1),
        ("A", "sleep", -1),
        ("A", "sleep", 10**9),
        ("A", "return_error", 0),
        ("A", "return_error", 5),
        ("A", "sleep", 1, 0),
        ("A", "sleep", 1, 1, 0),
    ],
)
def test_bad_input_is_refused_and_arms_nothing(table, arguments):
    with pytest.raises(InvalidArgumentError):
        table.inject(*arguments)
    assert not any(status.armed for status in table.statuses())


def test_arming_is_refused_where_faults_are_off():
    table = FaultTable({"A": ""}, enabled=False)
    with pytest.raises(InvalidArgumentError, match="off"):
        table.inject("A", "sleep", 1)


@pytest.mark.parametrize(("value", "enabled"), [(None, False), ("", False), ("0", False), ("1", True), ("true", True)])
def test_environment_switches_a_process_on(value, enabled):
    env = {} if value is None else {"MOONCAKE_NODE_FAULTS": value}
    code = "from mooncake_client.faults import CLIENT_FAULTS; print(CLIENT_FAULTS.enabled)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert done.stdout == f"{enabled}\n"


def test_faults_of_a_client_are_its_own(c, client_faults):
    assert c.inject_fault("ClientPutAfterStart", "return_error", -800) == 0
    with pytest.raises(StoreError) as caught:
        c.put("k", b"")
    assert caught.value.code == -800
    status = c.get_fault_status("ClientPutAfterStart")
    assert (status["hits"], status["fired"], status["armed"]) == (1, 1, False)
    c.put("k", b"")
    with pytest.raises(InvalidArgumentError, match="ClientPutAfterStart"):
        c.inject_fault("NodeAfterPutEnd", "sleep", 1)


def test_arming_a_daemon_without_faults_is_refused(make_node):
    node = make_node()
    with node.client() as client:
        with pytest.raises(InvalidArgumentError, match="off"):
            client.inject_fault_local_master("NodeAfterPutEnd", "sleep", 1)
        assert not CLIENT_FAULTS.enabled
        with pytest.raises(InvalidArgumentError, match="off"):
            client.inject_fault("ClientPutAfterStart", "sleep", 1)
