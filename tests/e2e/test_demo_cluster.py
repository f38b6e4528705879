"""The cluster demo on small objects: what it shows, that its proofs can fail, and that it leaves nothing behind."""

import io
import json
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from mooncake_node.cli.app import app
from mooncake_node.demo import cluster_run
from mooncake_node.demo.cluster_findings import (
    AT_ONCE,
    WORKERS,
    ClusterFindings,
    Get,
    Loads,
    Story,
    nothing_left,
    prove,
)
from mooncake_node.demo.cluster_show import print_findings
from mooncake_node.demo.memory import Place
from mooncake_node.demo.orders import Got, Removed, Stored
from tests.support import eventually
from tests.support.demo import HANG_LIMIT_S, Demo


@pytest.fixture
def demo() -> Iterator[Demo]:
    temporary = Path(tempfile.mkdtemp(prefix="d"))
    yield Demo("demo-cluster", temporary)
    shutil.rmtree(temporary)


def test_each_object_crosses_once_and_lies_on_each_node_once(demo):
    code, out, err = demo.run("--sizes", "0,200,1MiB", "--pool-size", "16MiB", "--json")
    assert code == 0, out + err
    found = json.loads(out)
    assert found["holds"] is True
    assert [proof["claim"] for proof in found["proofs"] if not proof["holds"]] == []
    assert [story["nbytes"] for story in found["stories"]] == [0, 0, 200, 200, 1 << 20, 1 << 20]
    for one_by_one, at_once in zip(found["stories"][::2], found["stories"][1::2], strict=True):
        stored = one_by_one["stored"]["stored_nbytes"]
        lines = [(get["who"], get["how"], get["crossed_nbytes"], get["copies"]) for get in one_by_one["gets"]]
        assert lines == [
            ([11], "local", 0, 1),
            ([12], "local", 0, 1),
            ([21], "copied", stored, 2),
            ([22], "local", 0, 2),
        ]
        (get,) = at_once["gets"]
        assert get["who"] == [21, 22, 23, 24]
        assert get["loads"]["local_copies"] == 1
        assert get["loads"]["local_hits"] + get["loads"]["coalesced"] == 3
        assert (get["crossed_nbytes"], get["copies"], get["content"]) == (stored, 2, [True] * 4)
    assert [line.split()[0] for line in err.splitlines()] == ["valkey", "nodes", "workers", "0", "200", "1", "clean"]
    demo.check_clean()


def test_it_shows_a_table_the_proofs_and_what_they_come_to(demo):
    code, out, err = demo.run("--sizes", "4KiB")
    assert (code, err) == (0, "")
    assert "FAILED" not in out
    assert "WRONG" not in out
    rows = [line.split() for line in out.splitlines() if line.rstrip().endswith("  ok")]
    assert [" ".join(row[:4]) for row in rows[:1]] == ["4 KiB 11 local"]
    assert [row[:2] for row in rows[1:]] == [["12", "local"], ["21", "copied"], ["22", "local"], ["21", "to"]]
    assert out.splitlines()[-1].startswith("Shown: 2 objects put on one node were read on both")
    demo.check_clean()


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--sizes", "64KiB,2MiB", "--pool-size", "1MiB"], 1, "mooncake-node: 2 MiB cannot lie in a pool of 1 MiB\n"),
        (["--sizes", "4KiB,much"], 2, "'much' must be a number of bytes"),
        (["--sizes", ""], 2, "'' must be a number of bytes"),
        (["--pool-size", "much"], 2, "'much' must be a number of bytes"),
    ],
)
def test_what_cannot_be_is_refused(demo, args, code, message):
    got, _out, err = demo.run(*args)
    assert got == code
    assert message in err
    demo.check_clean()


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_demo_takes_everything_with_it(demo, signum, code):
    with demo.start("--sizes", ",".join(["1MiB"] * 1000)) as process:
        for line in process.stdout:
            if line.startswith("1 MiB "):
                break
        eventually(lambda: sum("demo.worker" in line for line in demo.processes()) == 6, "the workers to run")
        process.send_signal(signum)
        _out, err = process.communicate(timeout=HANG_LIMIT_S)
    assert (process.returncode, err) == (code, "")
    demo.check_clean()


# -- the proofs can fail ----------------------------------------------------------------------------------------------

HERE, THERE = Place("00:1:5", 4096, writable=False), Place("00:1:6", 8192, writable=False)


def got(place: Place, **changed) -> Got:
    return Got(**{"found": True, "took_ns": 1, "nbytes": 100, "xxh3": 7, "place": place, **changed})


def get(who: tuple[int, ...], place: Place, loads: Loads, crossed_nbytes: int, copies: int) -> Get:
    return Get(who, [got(place) for _ in who], loads, crossed_nbytes, copies)


ONE_BY_ONE_GETS = [
    get((11,), HERE, Loads(local_hits=1), 0, 1),
    get((12,), HERE, Loads(local_hits=1), 0, 1),
    get((21,), THERE, Loads(local_copies=1), 164, 2),
    get((22,), THERE, Loads(local_hits=1), 0, 2),
]
AT_ONCE_GETS = [get(AT_ONCE, THERE, Loads(local_copies=1, local_hits=1, coalesced=2), 164, 2)]


def story(gets: list[Get], **changed) -> Story:
    usual = {"stored": Stored(164, 7, 1), "removed": Removed(True, 1), "finders": [], "left_nbytes": [0, 0]}
    return Story(**{"nbytes": 100, "gets": gets, **usual, **changed})


def failed(*stories: Story) -> list[str]:
    return [proof.claim for proof in prove(list(stories)) if not proof.holds]


def with_get(number: int, **changed) -> Story:
    gets = ONE_BY_ONE_GETS.copy()
    gets[number] = msgspec.structs.replace(gets[number], **changed)
    return story(gets)


def test_everything_as_it_should_be_is_proven():
    assert failed(story(ONE_BY_ONE_GETS), story(AT_ONCE_GETS)) == []
    nowhere = [msgspec.structs.replace(each, answers=[got(None, nbytes=0)]) for each in ONE_BY_ONE_GETS]
    assert failed(story(nowhere, nbytes=0)) == []


@pytest.mark.parametrize(
    ("wrong", "claims"),
    [
        (with_get(3, answers=[got(THERE, xxh3=8)]), ["content"]),
        (with_get(3, answers=[got(THERE, nbytes=99)]), ["content"]),
        (with_get(1, answers=[got(HERE, found=False)]), ["content"]),
        (with_get(2, crossed_nbytes=165), ["one transfer"]),
        (with_get(2, loads=Loads(local_hits=1)), ["one transfer"]),
        (with_get(3, loads=Loads(local_copies=1), crossed_nbytes=164), ["one transfer", "local when it is there"]),
        (with_get(3, crossed_nbytes=1), ["one transfer", "local when it is there"]),
        (with_get(1, crossed_nbytes=1), ["local when it is there"]),
        (with_get(1, loads=Loads(coalesced=1)), ["local when it is there"]),
        (with_get(3, copies=3), ["one copy per node"]),
        (with_get(0, copies=2), ["one copy per node"]),
        (with_get(3, answers=[got(Place("00:1:6", 0, writable=False))]), ["same memory"]),
        (with_get(3, answers=[got(Place("00:1:9", 8192, writable=False))]), ["same memory"]),
        (with_get(3, answers=[got(None)]), ["same memory"]),
        (story([*ONE_BY_ONE_GETS[:2], *(msgspec.structs.replace(g, answers=[got(HERE)]) for g in ONE_BY_ONE_GETS[2:])]),
         ["same memory"]),
        (story(ONE_BY_ONE_GETS, removed=Removed(False, 1)), ["removed for all"]),
        (story(ONE_BY_ONE_GETS, finders=[12]), ["removed for all"]),
        (story(ONE_BY_ONE_GETS, left_nbytes=[0, 4096]), ["room back"]),
    ],
)  # fmt: skip
def test_what_went_wrong_with_one_object_fails_its_claim(wrong, claims):
    assert failed(story(ONE_BY_ONE_GETS), wrong) == claims


def test_a_second_transfer_while_all_ask_at_once_fails():
    twice = [msgspec.structs.replace(AT_ONCE_GETS[0], loads=Loads(local_copies=2, coalesced=2), crossed_nbytes=328)]
    assert failed(story(ONE_BY_ONE_GETS), story(twice)) == ["one transfer"]


def test_what_is_left_fails():
    assert nothing_left([], []).holds
    assert not nothing_left([17], []).holds
    assert not nothing_left([], ["x"]).holds


def test_how_is_what_was_counted():
    assert Loads(local_copies=1).words == "copied"
    assert Loads(local_hits=1, coalesced=2).since(Loads(coalesced=1)).words == "1 local, 1 coalesced"
    assert Loads().words == "not counted"


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_proof_that_fails_is_exit_1(monkeypatch, options):
    stories = [story(ONE_BY_ONE_GETS, finders=[WORKERS[0]])]
    found = ClusterFindings(pool_nbytes=1, stories=stories, proofs=prove(stories))
    monkeypatch.setattr(cluster_run, "run", lambda sizes, *, pool_nbytes, say: found)
    result = CliRunner().invoke(app, ["demo-cluster", *options])
    assert result.exit_code == 1
    if options:
        assert json.loads(result.stdout)["holds"] is False
    else:
        assert result.stdout.splitlines()[-1] == "Not shown: removed for all."


def test_wrong_content_shows_in_its_row():
    stories = [with_get(3, answers=[got(THERE, xxh3=8)])]
    out = io.StringIO()
    print_findings(Console(width=120, file=out), ClusterFindings(pool_nbytes=1, stories=stories, proofs=prove(stories)))
    text = out.getvalue()
    assert text.count("WRONG") == 1
    assert "FAILED   content" in text
