"""The client commands against a fake client: what they ask of it, what they print, how they end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from mooncake_client import errors
from mooncake_client.wire import Holder
from mooncake_node.cli import app as cli_app
from mooncake_node.cli import common, fault, objects, stats
from mooncake_node.cli.app import app
from tests.support.fake_client import FakeClient


@pytest.fixture
def client(monkeypatch):
    fake = FakeClient()

    def connect(socket, timeout_s):
        fake.connected_with = (socket, timeout_s)
        return fake

    for module in (objects, stats, fault):
        monkeypatch.setattr(module, "connect", connect)
    return fake


@pytest.fixture
def run(client):
    """Run a command line: exit code, stdout, stderr."""

    def invoke(*args, stdin=None):
        result = CliRunner().invoke(app, [str(arg) for arg in args], input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.stdout, result.stderr

    return invoke


def put(client, **objects_):
    for key, data in objects_.items():
        client.store(key, data, {})


class TestPut:
    def test_file_is_read_straight_into_its_room(self, run, client, tmp_path):
        (tmp_path / "f").write_bytes(b"abc" * 1000)
        assert run("put", "k", tmp_path / "f") == (0, "", "")
        assert client.objects == {"k": b"abc" * 1000}
        expected = {"softpin": False, "softpin_ttl": None, "hardpin": False, "scope": None}
        assert client.pins["k"] == expected

    @pytest.mark.parametrize("options", [(), ("--upsert",)])
    def test_empty_file_is_an_empty_object(self, run, client, tmp_path, options):
        (tmp_path / "f").touch()
        assert run("put", "k", tmp_path / "f", *options) == (0, "", "")
        assert client.objects == {"k": b""}

    def test_file_that_lies_about_its_size_is_read_whole(self, run, client):
        assert run("put", "k", "/proc/self/status")[0] == 0
        assert client.objects["k"].startswith(b"Name:")

    @pytest.mark.parametrize("options", [(), ("--upsert",)])
    def test_dash_is_standard_input(self, run, client, options):
        assert run("put", "k", "-", *options, stdin=b"\x00\xff") == (0, "", "")
        assert client.objects == {"k": b"\x00\xff"}

    def test_existing_key_is_refused_with_advice_and_the_room_given_back(self, run, client, tmp_path):
        put(client, k=b"old")
        (tmp_path / "f").write_bytes(b"new")
        code, out, err = run("put", "k", tmp_path / "f")
        assert (code, out) == (1, "")
        assert err.startswith("mooncake-node: already there (-705); --upsert replaces it")
        assert err.count("\n") == 1
        assert client.objects == {"k": b"old"}
        assert client.aborted == ["k"]

    def test_upsert_replaces(self, run, client, tmp_path):
        put(client, k=b"old")
        (tmp_path / "f").write_bytes(b"new")
        assert run("put", "k", tmp_path / "f", "--upsert") == (0, "", "")
        assert client.objects == {"k": b"new"}

    def test_failed_upsert_says_why_though_its_buffer_is_still_exported(self, run, client, tmp_path, monkeypatch):
        def full(_key, data, **_pins):
            export = memoryview(data)
            raise errors.NoSpaceError(f"no room for {len(export)} bytes")

        monkeypatch.setattr(client, "upsert", full)
        (tmp_path / "f").write_bytes(b"new")
        code, _, err = run("put", "k", tmp_path / "f", "--upsert")
        assert code == 1
        assert err.startswith("mooncake-node: no room for 3 bytes (-200)")

    def test_pins_and_scope_reach_the_client(self, run, client, tmp_path):
        (tmp_path / "f").write_bytes(b"x")
        run("put", "k", tmp_path / "f", "--softpin-ttl", "5m", "--hardpin", "--scope", "node")
        expected = {"softpin": True, "softpin_ttl": 300.0, "hardpin": True, "scope": "node"}
        assert client.pins["k"] == expected

    def test_missing_file_is_a_failure_of_one_line(self, run, tmp_path):
        code, out, err = run("put", "k", tmp_path / "no")
        assert (code, out) == (1, "")
        assert err == f"mooncake-node: {tmp_path / 'no'}: No such file or directory\n"

    def test_file_that_shrinks_is_not_published(self, run, client, tmp_path, monkeypatch):
        (tmp_path / "f").write_bytes(b"abc")
        monkeypatch.setattr(objects.files, "size_ahead", lambda _stream: 5)
        code, _, err = run("put", "k", tmp_path / "f")
        assert code == 1
        assert err == "mooncake-node: the file ended 2 bytes early; it is being changed\n"
        assert client.objects == {}
        assert run("put", "k", tmp_path / "f", "--upsert")[0] == 1

    def test_file_longer_than_one_step_is_complete(self, run, client, tmp_path, monkeypatch):
        monkeypatch.setattr(objects.files, "_STEP_BYTES", 7)
        (tmp_path / "f").write_bytes(bytes(range(100)))
        assert run("put", "k", tmp_path / "f")[0] == 0
        assert client.objects["k"] == bytes(range(100))
        assert run("get", "k", tmp_path / "g")[0] == 0
        assert (tmp_path / "g").read_bytes() == bytes(range(100))


class TestGet:
    def test_writes_the_bytes_and_releases_the_handle(self, run, client, tmp_path):
        put(client, k=b"\x00\xffdata")
        assert run("get", "k", tmp_path / "f") == (0, "", "")
        assert (tmp_path / "f").read_bytes() == b"\x00\xffdata"
        assert [path.name for path in tmp_path.iterdir()] == ["f"]
        assert client.handles[0].released

    def test_dash_is_standard_output(self, run, client):
        put(client, k=b"data\n")
        assert run("get", "k", "-") == (0, "data\n", "")

    def test_missing_key_leaves_the_file_as_it_was(self, run, tmp_path):
        (tmp_path / "f").write_bytes(b"old")
        code, out, err = run("get", "k", tmp_path / "f")
        assert (code, out, err) == (1, "", "mooncake-node: no object 'k' (-704)\n")
        assert (tmp_path / "f").read_bytes() == b"old"

    def test_failed_write_leaves_nothing_behind(self, run, client, tmp_path, monkeypatch):
        put(client, k=b"new")
        (tmp_path / "f").write_bytes(b"old")

        def full(_view, _stream):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(objects.files, "_write_all", full)
        code, _, err = run("get", "k", tmp_path / "f")
        assert (code, err) == (1, f"mooncake-node: {tmp_path / 'f'}: No space left on device\n")
        assert [path.name for path in tmp_path.iterdir()] == ["f"]
        assert (tmp_path / "f").read_bytes() == b"old"

    def test_replaced_file_keeps_its_mode_and_a_link_stays_a_link(self, run, client, tmp_path):
        put(client, k=b"new")
        (tmp_path / "f").write_bytes(b"old")
        (tmp_path / "f").chmod(0o640)
        (tmp_path / "link").symlink_to("f")
        assert run("get", "k", tmp_path / "link")[0] == 0
        assert (tmp_path / "f").read_bytes() == b"new"
        assert (tmp_path / "f").stat().st_mode & 0o777 == 0o640
        assert (tmp_path / "link").is_symlink()

    def test_device_is_written_to_and_not_replaced(self, run, client):
        put(client, k=b"data")
        assert run("get", "k", os.devnull)[0] == 0
        assert Path(os.devnull).is_char_device()

    def test_directory_that_is_not_there_is_named(self, run, client, tmp_path):
        put(client, k=b"data")
        code, _, err = run("get", "k", tmp_path / "no" / "f")
        assert (code, err) == (
            1,
            f"mooncake-node: {tmp_path / 'no' / 'f'}: No such file or directory\n",
        )


class TestLs:
    def test_lists_keys_of_the_prefix(self, run, client):
        put(client, a1=b"", a2=b"", b=b"")
        assert run("ls", "a") == (0, "a1\na2\n", "")
        assert run("ls") == (0, "a1\na2\nb\n", "")

    def test_what_is_not_printable_is_escaped(self, run, client):
        client.store("a\nb\x1b[31m\\c\u202e é", b"", {})
        assert run("ls")[1] == "a\\nb\\x1b[31m\\\\c\\u202e é\n"

    def test_long_has_all_columns(self, run, client):
        client.store("k", b"x" * 2048, {"softpin": True, "softpin_ttl": 60, "hardpin": True})
        heading, line = run("ls", "--long")[1].splitlines()
        assert heading.split() == ["SIZE", "KIND", "STATE", "REFS", "GENERATION", "KEY"]
        state = "complete+soft(60", "s)+hard"
        assert line.split() == ["2", "KiB", "raw", *state, "2", "00000000000000a1", "k"]
        assert heading.index("KEY") == line.index(" k") + 1

    def test_json_is_one_object_a_line_with_the_exact_key(self, run, client):
        client.store("a\nb", b"xy", {"softpin": True})
        client.store("c", b"", {})
        first, second = map(json.loads, run("ls", "--json")[1].splitlines())
        assert (first["key"], first["nbytes"], first["softpin"]) == ("a\nb", 2, True)
        assert second["key"] == "c"


class TestRm:
    def test_removes_the_named_keys(self, run, client):
        put(client, a=b"", b=b"", c=b"")
        assert run("rm", "a", "b") == (0, "", "")
        assert list(client.objects) == ["c"]

    def test_key_that_was_not_there_is_a_failure_after_the_others_are_gone(self, run, client):
        put(client, a=b"", b=b"")
        assert run("rm", "a", "x\n", "b") == (1, "", "mooncake-node: not there: x\\n\n")
        assert client.objects == {}

    def test_many_missing_keys_are_counted(self, run):
        err = run("rm", *map(str, range(12)))[2]
        assert err.endswith("7, 8, 9 and 2 more\n")

    def test_prefix_and_all_say_how_many(self, run, client):
        put(client, a1=b"", a2=b"", b=b"")
        assert run("rm", "--prefix", "a") == (0, "removed 2\n", "")
        assert run("rm", "--all", "--yes") == (0, "removed 1\n", "")

    def test_generation_limits_the_removal(self, run, client):
        put(client, a=b"")
        assert run("rm", "a", "--generation", "00000000000000b2")[0] == 1
        assert run("rm", "a", "--generation", "00000000000000a1")[0] == 0

    @pytest.mark.parametrize(
        "args",
        [
            (),
            ("--all",),
            ("--all", "--yes", "a"),
            ("--prefix", "a", "b"),
            ("--prefix", ""),
            ("--prefix", "a", "--all", "--yes"),
            ("a", "b", "--generation", "1"),
            ("--prefix", "a", "--generation", "1"),
        ],
    )
    def test_unclear_wish_is_wrong_usage_and_removes_nothing(self, run, client, args):
        put(client, a=b"", b=b"")
        assert run("rm", *args)[0] == 2
        assert set(client.objects) == {"a", "b"}


class TestHolders:
    HOLDER = Holder(
        client="trainer\x07",
        pid=42,
        handles=3,
        oldest_s=12.345,
        generation="00000000000000a1",
        note="removed",
    )

    def test_table(self, run, client):
        put(client, k=b"")
        client.held = [self.HOLDER]
        heading, row = run("holders", "k")[1].splitlines()
        assert heading.split() == ["CLIENT", "PID", "HANDLES", "OLDEST", "GENERATION", "NOTE"]
        assert row.split() == [
            "trainer\\x07",
            "42",
            "3",
            "12.3",
            "s",
            "00000000000000a1",
            "removed",
        ]

    def test_json(self, run, client):
        put(client, k=b"")
        client.held = [self.HOLDER]
        assert json.loads(run("holders", "k", "--json")[1]) == msgspec.structs.asdict(self.HOLDER)

    def test_nobody(self, run, client):
        put(client, k=b"")
        assert run("holders", "k") == (0, "nobody holds k\n", "")
        assert run("holders", "k", "--json") == (0, "", "")
        assert run("holders", "other")[0] == 1


FIGURES = {
    "objects": 12345,
    "pool": {"bytes_total": 1 << 30, "largest_free_extent": 3 << 20, "prefaulted": True},
    "reclaim": {"passes": 7, "earliest": {"p50_ms": 17000}},
    "uptime_s": 1.23456,
    "version": "0.1",
    "last": None,
}


class TestStats:
    def test_groups_with_sizes_for_people(self, run, client):
        client.figures = FIGURES
        code, out, _ = run("stats")
        words = out.split()
        assert code == 0
        for name, *text in (
            ("objects", "12,345"),
            ("bytes_total", "1", "GiB"),
            ("largest_free_extent", "3", "MiB"),
            ("prefaulted", "yes"),
            ("earliest.p50_ms", "17,000"),
            ("uptime_s", "1.235", "s"),
            ("last", "-"),
        ):
            at = words.index(name)
            assert words[at + 1 : at + 1 + len(text)] == text

    def test_json_is_the_dict_as_it_is(self, run, client):
        client.figures = FIGURES
        assert json.loads(run("stats", "--json")[1]) == FIGURES


class TestFault:
    def test_list_and_status(self, run, client):
        client.faults["A"] |= {"action": "sleep", "armed": True, "hits": 5, "fired": 2}
        rows = [line.split() for line in run("fault", "list")[1].splitlines()]
        assert rows == [["NAME", "ARMED", "DESCRIPTION"], ["A", "yes", "…"], ["B", "no", "…"]]
        rows = [line.split() for line in run("fault", "status")[1].splitlines()]
        assert rows[1:] == [["A", "sleep", "yes", "5", "2"], ["B", "-", "no", "0", "0"]]
        assert run("fault", "status", "B")[1].splitlines()[1].split()[0] == "B"

    def test_inject_takes_a_negative_code(self, run, client):
        assert run("fault", "inject", "A", "return_error", "-900", "--times", "3") == (0, "", "")
        assert run("fault", "inject", "B", "sleep", "50", "--start", "2") == (0, "", "")
        assert client.injected == [("A", "return_error", -900, 1, 3), ("B", "sleep", 50, 2, 1)]

    @pytest.mark.parametrize(
        "args", [("explode",), ("sleep", "soon"), ("sleep", "5", "--tmies", "3"), ("sleep", "--x")]
    )
    def test_wrong_usage(self, run, client, args):
        assert run("fault", "inject", "A", *args)[0] == 2
        assert client.injected == []

    def test_reset_of_one_and_of_all(self, run, client):
        run("fault", "reset", "A")
        run("fault", "reset")
        assert [call[:2] for call in client.injected] == [
            ("A", "reset"),
            ("A", "reset"),
            ("B", "reset"),
        ]

    def test_unknown_point_is_refused(self, run):
        code, _, err = run("fault", "status", "C")
        assert (code, err) == (1, "mooncake-node: no fault point 'C' here (-600)\n")


class TestEnds:
    def test_socket_and_timeout_reach_the_client(self, run, client):
        run("ls", "--socket", "/s", "--timeout", "500ms")
        assert client.connected_with == (Path("/s"), 0.5)
        run("ls")
        assert client.connected_with == (None, common.TIMEOUT_DEFAULT_S)

    def test_daemon_that_is_away_is_one_line_with_advice(self, run, client):
        client.failure = errors.DaemonGoneError("nobody listens on /s\nreally")
        code, out, err = run("ls")
        assert (code, out) == (1, "")
        assert err.startswith("mooncake-node: nobody listens on /s really (-900); --socket or ")
        assert err.count("\n") == 1

    @pytest.mark.parametrize(
        "args",
        [
            ("fly",),
            ("ls", "--no-such-option"),
            ("put", "k"),
            ("ls", "--timeout", "soon"),
            ("put", "k", "-", "--scope", "moon"),
        ],
    )
    def test_wrong_usage_ends_in_2(self, run, args):
        assert run(*args)[0] == 2

    def test_ctrl_c_is_quiet(self, run, client):
        client.failure = KeyboardInterrupt()
        assert run("ls") == (130, "", "")

    def test_bug_of_ours_keeps_its_traceback(self, run, client):
        client.failure = ZeroDivisionError()
        with pytest.raises(ZeroDivisionError):
            run("ls")

    def test_version_and_help(self, run):
        assert run("--version")[1].startswith("mooncake-node 0.")
        for args in (("--help",), ("rm", "-h"), ("fault", "--help")):
            assert run(*args)[0] == 0

    def test_main_gives_the_exit_code(self, client, monkeypatch, capsys):
        for args, code in ((["ls"], 0), (["fly"], 2), (["rm", "x"], 1)):
            monkeypatch.setattr(sys, "argv", ["mooncake-node", *args])
            assert cli_app.main() == code
        capsys.readouterr()

    def test_reader_that_goes_away_is_no_error_message(self, tmp_path):
        """As in ``ls | head -1``: far more output than a pipe holds, into a pipe nobody reads."""
        script = tmp_path / "ls.py"
        script.write_text(
            "import sys\n"
            "from mooncake_node.cli import app, objects\n"
            "from mooncake_client.wire import ObjectInfo\n"
            "class Client:\n"
            "    def __enter__(self): return self\n"
            "    def __exit__(self, *_): pass\n"
            "    def list(self, prefix):\n"
            "        for n in range(100_000):\n"
            "            yield ObjectInfo(key='k' * 100, nbytes=0, kind='raw', generation='1',\n"
            "                state='complete', refs=0, age_s=0.0, softpin=False,\n"
            "                softpin_deadline_s=None, hardpin=False, scope='node')\n"
            "objects.connect = lambda *_: Client()\n"
            "sys.argv = ['mooncake-node', 'ls']\n"
            "sys.exit(app.main())\n"
        )
        read_end, write_end = os.pipe()
        os.close(read_end)
        try:
            done = subprocess.run([sys.executable, script], stdout=write_end, stderr=subprocess.PIPE, check=False)
        finally:
            os.close(write_end)
        assert (done.returncode, done.stderr) == (141, b"")

    def test_python_dash_m_is_the_same_program(self):
        done = subprocess.run([sys.executable, "-m", "mooncake_node", "--version"], capture_output=True, check=True)
        assert done.stdout.startswith(b"mooncake-node 0.")
