"""The demo on small files: what it shows, what it refuses, and that it leaves nothing behind however it ends."""

import json
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mooncake_node.demo.findings import Ledger, copies, prove
from mooncake_node.demo.memory import Place, Usage, find
from mooncake_node.demo.messages import Publication, Reading, Tensor
from tests.support import eventually
from tests.support.demo import HANG_LIMIT_S, Demo


@pytest.fixture
def demo() -> Iterator[Demo]:
    temporary = Path(tempfile.mkdtemp(prefix="d"))
    yield Demo("demo", temporary)
    shutil.rmtree(temporary)


def write_safetensors(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> Path:
    """By hand, so that types numpy does not have can be written without torch."""
    header, data = {"__metadata__": {"made": "here"}}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.fixture
def safetensors(tmp_path: Path) -> Path:
    noise = np.random.default_rng(1).bytes
    return write_safetensors(
        tmp_path / "all types.safetensors",
        {
            "big [0]": ("F32", [1024, 700], noise(4 * 1024 * 700)),
            "bf16": ("BF16", [3, 5], noise(30)),
            "f8": ("F8_E4M3", [130], noise(130)),
            "half": ("F16", [2, 2048], noise(8192)),
            "position": ("I64", [], noise(8)),
            "flags": ("BOOL", [9], b"\1\0\1\0\1\0\1\0\1"),
            "nothing": ("F32", [0, 7], b""),
        },
    )


def test_safetensors_of_every_type_are_read_from_one_copy(demo, safetensors):
    code, out, err = demo.run("--input", safetensors, "--readers", 3, "--transit-seconds", 0.2)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[:6]] == ["input", "node", "publish", "read", "transit", "clean"]
    assert f"{safetensors}: 7 tensors, 2.74 MiB" in lines[0]
    assert "(BF16 1, BOOL 1, F16 1, F8_E4M3 1, I64 1" not in lines[2]
    assert "(F32 2, BF16 1, BOOL 1, F16 1, F8_E4M3 1, I64 1)" in lines[2]
    assert "FAILED" not in out
    assert "rounds a second" in out
    assert lines[-1].startswith("Shown: 3 processes read 2.74 MiB in 7 tensors out of one copy")
    demo.check_clean()


def test_npz_gives_figures_for_programs(demo, tmp_path):
    arrays = {"a": np.arange(300_000), "f": np.asfortranarray(np.ones((50, 60), np.float32)), "s": np.float64(2)}
    np.savez(tmp_path / "x.npz", **arrays)
    code, out, err = demo.run("--input", tmp_path / "x.npz", "--readers", 2, "--transit-seconds", 0, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["holds"] is True
    assert found["copies"] == 1
    assert found["nbytes"] == sum(array.nbytes for array in arrays.values())
    assert len(found["readers"]) == len(found["extra"]) == 2
    assert found["transit"] is None
    assert all(proof["holds"] for proof in found["proofs"])
    assert err.startswith("input ")
    demo.check_clean()


def make_empty(path: Path) -> None:
    path.write_bytes(b"")


def make_noise(path: Path) -> None:
    path.write_bytes(b"no tensors here" * 100)


def make_no_tensors(path: Path) -> None:
    write_safetensors(path, {})


def make_objects(path: Path) -> None:
    np.savez(path, a=np.array([{}], dtype=object))


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("missing.safetensors", lambda path: None, "cannot be read: No such file or directory"),
        ("empty.safetensors", make_empty, "is empty"),
        ("noise.safetensors", make_noise, "is not a safetensors file: "),
        ("noise.npz", make_noise, "is not an .npz file: "),
        ("none.safetensors", make_no_tensors, "holds no tensor with any bytes in it"),
        ("directory", Path.mkdir, "is a directory; give a .safetensors or .npz file"),
        ("objects.npz", make_objects, "cannot be read: Object arrays cannot be loaded"),
    ],
)
def test_wrong_input_is_one_line_and_exit_1(demo, tmp_path, name, make, message):
    make(tmp_path / name)
    code, _out, err = demo.run("--input", tmp_path / name)
    assert code == 1
    assert err.count("\n") == 1, err
    assert err.startswith("mooncake-node: ")
    assert f"{tmp_path / name} {message}" in err
    demo.check_clean()


def test_a_pool_that_cannot_hold_the_input_is_refused(demo, safetensors):
    code, _out, err = demo.run("--input", safetensors, "--pool-size", "2MiB")
    assert (code, err) == (1, "mooncake-node: 2.74 MiB cannot lie in a pool of 2 MiB\n")
    assert demo.run("--input", safetensors, "--pool-size", "much")[0] == 2
    demo.check_clean()


def test_a_pool_that_cannot_be_made_says_why(demo, safetensors):
    code, _out, err = demo.run("--input", safetensors, "--pool-size", "1TiB")
    assert code == 1
    assert err.count("\n") == 1, err
    assert "the node did not start: " in err
    assert "no room for the pool: asked 1099511627776 bytes (1 TiB)" in err
    demo.check_clean()


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_demo_takes_everything_with_it(demo, safetensors, signum, code):
    with demo.start("--input", safetensors, "--readers", 1, "--transit-seconds", 600) as process:
        for line in process.stdout:
            if line.startswith("read "):
                break
        eventually(lambda: any("demo.transit" in line for line in demo.processes()), "the transit loop to run")
        process.send_signal(signum)
        _out, err = process.communicate(timeout=HANG_LIMIT_S)
    assert (process.returncode, err) == (code, "")
    demo.check_clean()


# -- the proofs can fail ----------------------------------------------------------------------------------------------

PUBLISHED = Publication([Tensor("a", "F32", 8192, 1, 1), Tensor("none", "F32", 0, 2, 1)])
PLACE = Place("00:1:5", 4096, writable=False)
LEDGER = Ledger(objects=2, others=0, used_nbytes=12288 + 65536, stored_nbytes=[8192 + 64, 60])


def reading(**changed) -> Reading:
    return Reading(**{"pid": 1, "get_ns": [1], "bad_content": [], "writable": [], "places": [PLACE, None], **changed})


def failed(readings: list[Reading], ledger: Ledger = LEDGER, own: int = 0) -> list[str]:
    proofs = prove(PUBLISHED, readings, [Usage(own, 0)], ledger)
    return [proof.claim for proof in proofs if not proof.holds]


def test_everything_as_it_should_be_is_proven():
    assert failed([reading(), reading()]) == []
    assert copies([reading(), reading()]) == 1


@pytest.mark.parametrize(
    ("changed", "claim"),
    [
        ({"bad_content": ["a"]}, "content"),
        ({"places": [None, None]}, "in the pool"),
        ({"writable": ["a"]}, "read-only"),
        ({"places": [Place("00:1:5", 4096, writable=True), None]}, "read-only"),
        ({"places": [Place("00:1:5", 8192, writable=False), None]}, "one copy"),
        ({"places": [Place("00:1:6", 4096, writable=False), None]}, "one copy"),
    ],
)
def test_what_one_reader_finds_wrong_fails_its_claim(changed, claim):
    assert failed([reading(), reading(**changed)]) == [claim]


@pytest.mark.parametrize(
    "ledger",
    [
        Ledger(objects=3, others=0, used_nbytes=12288, stored_nbytes=[8256, 60]),
        Ledger(objects=2, others=1, used_nbytes=12288, stored_nbytes=[8256, 60]),
        Ledger(objects=2, others=0, used_nbytes=12288 + 65536 + 4096, stored_nbytes=[8256, 60]),
    ],
)
def test_a_second_copy_on_the_nodes_books_fails(ledger):
    assert failed([reading()], ledger) == ["one copy"]


def test_a_reader_that_grew_by_the_tensors_fails():
    assert failed([reading()], own=9 << 20) == ["no private copy"]


def test_only_a_nameless_pool_counts_as_the_pool():
    pool = "7f0000400000-7f0000600000 r--s 00200000 00:19 77 /dev/shm/mooncake-node.0123 (deleted)"
    other = "7f0000600000-7f0000800000 r--s 00000000 00:19 78 /dev/shm/other (deleted)"
    maps = f"{pool}\n{other}\n"
    assert find(0x7F0000401000, 4096, maps) == Place("00:19:77", 0x201000, writable=False)
    assert find(0x7F00005FF000, 8192, maps) is None
    assert find(0x7F0000600000, 4096, maps) is None
    assert find(0x1000, 4096, maps) is None
