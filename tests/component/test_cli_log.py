"""The daemon's log lines: their form, what is left out, and that none raises into the daemon."""

import io
import json
import logging

import pytest
import structlog

from mooncake_node.obs.log import configure, get_logger
from mooncake_node.settings import Settings


@pytest.fixture
def configured():
    """Configure with some settings; gives the stream that lines go to."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def start(stream=None, **settings):
        out = io.StringIO() if stream is None else stream
        configure(Settings(name="n1", **settings), out)
        return out

    yield start
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(out):
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_line_is_json_with_time_level_event_and_node_first(configured):
    out = configured(log_format="json")
    get_logger(room="pool").info("pool_reserved", nbytes=3, key="é\n")
    (line,) = lines(out)
    assert list(line) == ["ts", "level", "event", "node", "room", "nbytes", "key"]
    assert line.pop("ts").endswith("Z")
    assert line == {
        "level": "info",
        "event": "pool_reserved",
        "node": "n1",
        "room": "pool",
        "nbytes": 3,
        "key": "é\n",
    }


def test_logger_made_at_import_obeys_a_later_configure(configured):
    early = get_logger()
    out = configured(log_format="json", log_level="warning")
    early.info("pool_reserved")
    early.warning("client_dropped")
    assert [line["event"] for line in lines(out)] == ["client_dropped"]


def test_auto_is_json_unless_the_stream_is_a_terminal(configured):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    pipe = configured()
    get_logger().info("pool_reserved")
    assert lines(pipe)[0]["event"] == "pool_reserved"
    terminal = configured(Terminal())
    get_logger().info("pool_reserved", nbytes=3)
    assert "pool_reserved" in terminal.getvalue()
    assert not terminal.getvalue().startswith("{")


def test_exception_keeps_its_traceback_without_local_variables(configured):
    for log_format in ("json", "console"):
        out = configured(log_format=log_format)
        secret = "stored by a client"  # noqa: F841
        try:
            raise ValueError("wrong")
        except ValueError:
            get_logger().exception("request_failed")
        assert "ValueError: wrong" in out.getvalue()
        assert out.getvalue().count("stored by a client") == 0


def test_what_python_libraries_log_takes_the_same_form(configured):
    out = configured(log_format="json")
    logging.getLogger("asyncio").error("Task %s was destroyed", 7)
    logging.getLogger("odd").log(25, "between levels")
    logging.getLogger("odd").warning("%d", "no number")
    assert [(line["event"], line["logger"], line["message"]) for line in lines(out)] == [
        ("library_logged", "asyncio", "Task 7 was destroyed"),
        ("library_logged", "odd", "between levels"),
        ("library_logged", "odd", "%d"),
    ]


def test_value_that_json_cannot_hold_is_spelt_out(configured):
    out = configured(log_format="json")
    get_logger().info("client_connected", name="\udc80", pid=3, cause=ValueError("x"))
    get_logger().info("client_left", cause=ValueError("x"))
    first, second = lines(out)
    assert (first["event"], first["name"], first["pid"]) == ("client_connected", "\\udc80", "3")
    assert second["cause"] == "ValueError('x')"


def test_stream_that_is_gone_loses_the_line_and_nothing_else(configured):
    class Broken(io.StringIO):
        def write(self, _text):
            raise BrokenPipeError

    configured(Broken(), log_format="json")
    get_logger().error("request_failed")
    closed = configured(log_format="json")
    closed.close()
    get_logger().error("request_failed")
