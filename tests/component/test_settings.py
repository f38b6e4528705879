"""Settings: three sources by weight, limits, and reports that say what is wrong and where."""

import socket
import tomllib
from pathlib import Path

import pytest

from mooncake_client.paths import default_socket_path
from mooncake_node.settings import (
    FLAGS,
    RULES,
    Settings,
    SettingsError,
    format_seconds,
    format_size,
    load,
    parse_seconds,
    parse_size,
    unknown_env,
)

CONFIGS = Path(__file__).parents[2] / "configs"


def problems(config=None, env=None, flags=None):
    with pytest.raises(SettingsError) as caught:
        load(config, env or {}, flags or {})
    return [str(problem) for problem in caught.value.problems]


@pytest.fixture
def toml(tmp_path):
    def write(text):
        path = tmp_path / "node.toml"
        path.write_text(text)
        return path

    return write


def test_nothing_given_is_the_defaults():
    assert load(None, {}, {}) == Settings(socket=default_socket_path({}))


def test_flag_outweighs_environment_outweighs_file(toml):
    config = toml('name = "file"\nlog_level = "debug"\nclients_max = 7\n')
    env = {"MOONCAKE_NODE_NAME": "env", "MOONCAKE_NODE_LOG_LEVEL": "error"}
    settings = load(config, env, {"name": "flag"})
    assert (settings.name, settings.log_level, settings.clients_max) == ("flag", "error", 7)


@pytest.mark.parametrize("key", RULES)
def test_every_setting_can_come_from_file_environment_and_flag(key, toml):
    texts = {
        "name": "n",
        "socket": "/s/a.sock",
        "admin_socket": "/s/b.sock",
        "socket_mode": "0600",
        "pool_size": "64MiB",
        "huge_pages": "off",
        "shared_index": "off",
        "prefault": "false",
        "faults": "true",
        "log_level": "error",
        "log_format": "json",
        "hard_pin_max_bytes": "1MiB",
        "free_high_bytes": "64MiB",
        "offload_dir": "/o",
        "offload_unpinned": "true",
        "offload_durable": "true",
        "listen": "10.0.0.7:7400",
        "directory": "valkey://10.0.0.1:6379/0",
        "cluster_secret_file": __file__,
        "node_ttl": "5",
    }
    text = texts.get(key, "3")
    values = {
        getattr(settings, key)
        for settings in (
            load(toml(f'{key} = "{text}"\n'), {}, {}),
            load(None, {f"MOONCAKE_NODE_{key.upper()}": text}, {}),
            load(None, {}, {key: text}),
        )
    }
    assert len(values) == 1
    assert values != {getattr(load(None, {}, {}), key)}


def test_empty_variable_and_absent_flag_count_as_not_given():
    assert load(None, {"MOONCAKE_NODE_CLIENTS_MAX": ""}, {"name": None}) == load(None, {}, {})


def test_toml_types_are_taken(toml):
    config = toml("prefault = false\npool_size = 4_194_304\nstart_wait = 1.5\nstop_timeout = 2\n")
    settings = load(config, {}, {})
    assert (settings.prefault, settings.pool_size) == (False, 4 << 20)
    assert (settings.start_wait, settings.stop_timeout) == (1.5, 2.0)


def test_pool_size_is_rounded_up_to_whole_huge_pages():
    assert load(None, {}, {"pool_size": "2097153"}).pool_size == 4 << 20
    assert Settings(pool_size=3 << 20).pool_size == 4 << 20


def test_admin_socket_lies_beside_the_socket_unless_given():
    assert load(None, {}, {"socket": "/s/n.sock"}).admin_socket == Path("/s/n.admin.sock")
    given = load(None, {}, {"socket": "/s/n.sock", "admin_socket": "/t/a"})
    assert given.admin_socket == Path("/t/a")


def test_relative_socket_path_becomes_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load(None, {}, {"socket": "n.sock"}).socket == tmp_path / "n.sock"


def test_none_is_no_default_soft_pin_deadline():
    assert load(None, {}, {"softpin_ttl_default": "none"}).softpin_ttl_default is None
    assert load(None, {}, {"softpin_ttl_default": "5m"}).softpin_ttl_default == 300.0


def test_all_problems_of_all_sources_are_reported_together(toml):
    config = toml('clients_max = "many"\n\nhandels_max = 3\n')
    found = problems(config, {"MOONCAKE_NODE_POOL_SIZE": "1M"}, {"log_level": "loud"})
    assert found == [
        f"{config}:1: clients_max = 'many' must be a whole number",
        f"{config}:3: handels_max = 3 names no setting; did you mean handles_max?",
        "environment variable MOONCAKE_NODE_POOL_SIZE: pool_size = '1M' must be a number of bytes "
        "or a size such as 24GiB (KiB, MiB, GiB, TiB, KB, MB, GB, TB)",
        "flag --log-level: log_level = 'loud' must be one of debug, info, warning, error",
    ]


def test_wrong_value_is_reported_even_where_a_heavier_source_replaces_it(toml):
    config = toml("clients_max = 0\n")
    assert problems(config, {}, {"clients_max": "5"}) == [f"{config}:1: clients_max = 0 is below the minimum of 1"]


def test_bad_toml_names_the_line(toml):
    config = toml('name = "a"\nclients_max = \n')
    (problem,) = problems(config)
    assert problem.startswith(f"{config}: is not TOML: ")
    assert "line 2" in problem


def test_file_that_cannot_be_read_is_a_problem(tmp_path):
    missing = tmp_path / "no.toml"
    assert problems(missing) == [f"{missing}: cannot be read: No such file or directory"]
    assert problems(tmp_path) == [f"{tmp_path}: cannot be read: Is a directory"]
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b'name = "\xe9"')
    assert problems(latin) == [f"{latin}: is not UTF-8 (byte 8)"]


def test_table_in_the_file_is_no_setting(toml):
    config = toml('name = "a"\n[memory]\nsize = 3\n')
    assert problems(config) == [f"{config}:2: memory = {{'size': 3}} names no setting"]


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("name", "a b", "must be 1 to 64 characters out of A-Z a-z 0-9 . _ -"),
        ("name", "a" * 65, "must be 1 to 64 characters out of A-Z a-z 0-9 . _ -"),
        ("name", "a\n", "must be 1 to 64 characters out of A-Z a-z 0-9 . _ -"),
        ("name", 5, "must be 1 to 64 characters out of A-Z a-z 0-9 . _ -"),
        ("pool_size", "1MiB", "is below the minimum of 2 MiB"),
        ("pool_size", "17TiB", "is above the maximum of 16 TiB"),
        ("pool_size", -1, "is below the minimum of 2 MiB"),
        ("pool_size", "0.3B", "is not a whole number of bytes"),
        ("prefault", "perhaps", "must be true or false"),
        ("prefault", 1, "must be true or false"),
        ("clients_max", True, "must be a whole number"),
        ("clients_max", 1.5, "must be a whole number"),
        ("clients_max", "65537", "is above the maximum of 65536"),
        ("huge_pages", "on", "must be one of auto, off"),
        ("huge_pages", ["off"], "must be one of auto, off"),
        ("socket_mode", 660, 'must be an octal mode in quotes, such as "0660"'),
        ("socket_mode", "0060", "must let the owner read and write, and go up to 0777"),
        ("socket_mode", "1660", "must let the owner read and write, and go up to 0777"),
        ("socket", "/", "must be the path of a socket, not of the root directory"),
        ("socket", "/a\0b", "must be the path of a socket"),
        ("socket", "/" + "x" * 107, "is a path of 108 bytes; a Unix socket can have 107"),
        ("socket", "/" + "é" * 54, "is a path of 109 bytes; a Unix socket can have 107"),
        ("start_wait", float("nan"), "must be a number of seconds or a duration such as"),
        ("start_wait", -1, "is below the minimum of 0 s"),
        ("start_wait", "5 parsecs", "must be a number of seconds or a duration such as"),
        ("softpin_ttl_default", "0", "is below the minimum of 1 ms"),
    ],
)
def test_value_out_of_its_limits_is_refused_in_plain_words(key, value, reason):
    (problem,) = problems(flags={key: value})
    assert reason in problem
    assert f"{key} = " in problem


def test_milliseconds_of_a_mooncake_configuration_are_refused_not_read_as_seconds(toml):
    (problem,) = problems(toml("default_kv_lease_ttl = 5000\n"))
    assert problem.endswith('a bare number is seconds: write milliseconds as "30000ms"')
    assert load(toml('default_kv_lease_ttl = "5000ms"'), {}, {}).default_kv_lease_ttl == 5.0


def test_socket_of_107_bytes_is_what_the_kernel_takes(tmp_path):
    path = tmp_path / ("x" * (107 - len(str(tmp_path)) - 1))
    settings = load(None, {}, {"socket": str(path), "admin_socket": "/a"})
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(settings.socket))


def test_derived_admin_socket_is_checked_too():
    (problem,) = problems(flags={"socket": "/" + "x" * 104})
    assert problem.startswith("default: admin_socket = /xxx")
    assert problem.endswith("is a path of 111 bytes; a Unix socket can have 107")


def test_values_that_contradict_each_other_are_refused():
    assert problems(
        flags={"hard_pin_max_bytes": "3GiB", "softpin_ttl_default": "2d", "admin_socket": "/s"},
        env={"MOONCAKE_NODE_SOCKET": "/s"},
    ) == [
        "flag --admin-socket: admin_socket = /s must be another path than socket",
        "flag --set hard_pin_max_bytes: hard_pin_max_bytes = 3221225472 must not be more than "
        "pool_size, which is 1 GiB",
        "flag --set softpin_ttl_default: softpin_ttl_default = 172800.0 must not be more than "
        "softpin_ttl_max, which is 86400 s",
    ]


def test_contradiction_with_a_value_already_refused_is_not_reported():
    (problem,) = problems(flags={"hard_pin_max_bytes": "3GiB", "pool_size": "4 GB!"})
    assert "pool_size" in problem


def test_unknown_variable_is_a_warning_and_not_an_error():
    env = {"MOONCAKE_NODE_POOLSIZE": "1", "MOONCAKE_NODE_SOCKET": "/s", "PATH": "/bin"}
    assert unknown_env(env) == [
        "environment variable MOONCAKE_NODE_POOLSIZE names no setting; did you mean MOONCAKE_NODE_POOL_SIZE?"
    ]
    assert load(None, env, {}).socket == Path("/s")


def test_long_value_is_cut_in_the_report():
    (problem,) = problems(flags={"clients_max": "9" * 10_000})
    assert len(problem) < 400


def test_default_file_loads_to_the_defaults_and_names_every_setting():
    path = CONFIGS / "default.toml"
    assert load(path, {}, {}) == load(None, {}, {})
    text = path.read_text()
    live = set(tomllib.loads(text))
    commented = {line[2:].split(" = ")[0] for line in text.splitlines() if " = " in line}
    assert live | commented >= set(RULES)
    derived = {"free_min_bytes", "free_low_bytes", "free_high_bytes"}
    assert set(RULES) - live == {"name", "socket", "admin_socket", *derived}


def test_shipped_files_load():
    assert {load(path, {}, {}).pool_size for path in CONFIGS.glob("*.toml")} == {1 << 30, 24 << 30}


def test_every_rule_has_words_and_every_flag_a_rule():
    assert all(rule.doc for rule in RULES.values())
    assert set(RULES) >= FLAGS


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0),
        ("17", 17),
        (17, 17),
        ("1KiB", 1024),
        ("1.5GiB", 3 << 29),
        ("64 MB", 64_000_000),
        ("2tb", 2 * 10**12),
        (" 1B ", 1),
    ],
)
def test_sizes_are_read(text, nbytes):
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "GiB", "1G", "-1", "1e3", "0x10", "1 GiB 2", "٣", 1.5, None, True])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="must be a number of bytes"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("30s", 30.0), ("5m", 300.0), ("2h", 7200.0), ("1d", 86400.0), ("1.5", 1.5)],
)
def test_durations_are_read(text, seconds):
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "5M", "-1s", "inf", float("inf"), True, None])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match="must be a number of seconds"):
        parse_seconds(text)


def test_sizes_and_durations_are_written_for_people():
    sizes = {0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1023 << 10: "1023 KiB", 3 << 29: "1.5 GiB"}
    assert {nbytes: format_size(nbytes) for nbytes in sizes} == sizes
    assert [format_seconds(s) for s in (0, 0.005, 1, 86400.0)] == ["0 s", "5 ms", "1 s", "86400 s"]


class TestDefaultSocketPath:
    def test_named_by_the_environment(self):
        env = {"MOONCAKE_NODE_SOCKET": "/x/y", "XDG_RUNTIME_DIR": "/run/user/5"}
        assert default_socket_path(env, uid=5) == Path("/x/y")

    def test_root_has_the_system_wide_one(self):
        env = {"XDG_RUNTIME_DIR": "/run/user/0", "MOONCAKE_NODE_SOCKET": ""}
        assert default_socket_path(env, uid=0) == Path("/run/mooncake-node/node.sock")

    def test_user_has_the_runtime_directory(self):
        env = {"XDG_RUNTIME_DIR": "/run/user/5"}
        assert default_socket_path(env, uid=5) == Path("/run/user/5/mooncake-node/node.sock")

    @pytest.mark.parametrize("env", [{}, {"XDG_RUNTIME_DIR": ""}, {"XDG_RUNTIME_DIR": "run"}])
    def test_else_a_directory_of_the_user_in_tmp(self, env):
        assert default_socket_path(env, uid=5) == Path("/tmp/mooncake-node-5/node.sock")
