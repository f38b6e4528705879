"""Rules about our source that no linter holds."""

import ast

import pytest

from tests.tidy.source import CLIENT, NODE, ROOT, imported, modules, tree, where

LINES_MAX = 450

# What the core may name. None of it waits, reads a clock, draws a random number or touches a file.
CORE_IMPORTS = {
    "contextlib",
    "bisect", "collections", "collections.abc", "dataclasses", "enum", "functools", "heapq", "itertools", "math",
    "typing", "msgspec", "numpy", "sortedcontainers", "mooncake_client.codes",
}  # fmt: skip
CORE_BUILTINS_BANNED = {"open", "print", "input", "exec", "eval", "hash", "id"}

# Linux counts free memory by that name, Mooncake used memory: say `free_low_bytes`, or what is meant.
BANNED_WORDS = ("high watermark", "high_watermark", "high-watermark", "TODO", "FIXME", "XXX")


def test_no_file_has_outgrown_its_noun():
    too_long = {
        str(path.relative_to(ROOT)): lines
        for path in modules()
        if (lines := len(path.read_text().splitlines())) > LINES_MAX
    }
    assert too_long == {}


def test_the_core_names_nothing_impure():
    found = [
        f"{where(path, node)} imports {name}"
        for path in modules(NODE / "core")
        for node, name in imported(path)
        if name not in CORE_IMPORTS and not f"{name}.".startswith("mooncake_node.core.")
    ]
    assert found == []


def test_the_core_waits_for_nothing_and_talks_to_nobody():
    found = []
    for path in modules(NODE / "core"):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.Global):
                found.append(f"{where(path, node)} {type(node).__name__}")
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in CORE_BUILTINS_BANNED:
                found.append(f"{where(path, node)} calls {ast.unparse(node.func)}()")
    assert found == []


def test_imports_stand_at_the_top():
    """One inside a function hides a cycle, or a cost, or both; what must be lazy is imported by name."""
    found = [
        f"{where(path, node)} in {function.name}"
        for path in modules()
        for function in ast.walk(tree(path))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert found == []


def test_an_assertion_has_one_condition():
    """Of two joined by `and` nobody knows which one failed."""
    found = [
        where(path, node)
        for path in modules()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And)
    ]
    assert found == []


@pytest.mark.parametrize("word", BANNED_WORDS)
def test_banned_word_is_nowhere(word):
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in modules()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if word in line
    ]
    assert found == []


def test_tests_fake_by_ports_not_by_mocks():
    found = [
        where(path, node)
        for path in modules(ROOT / "tests")
        for node, name in imported(path)
        if name in ("mock", "unittest.mock", "unittest")
    ]
    assert found == []


def test_only_the_command_line_and_child_processes_write_to_stdout():
    """A library or daemon that prints writes into somebody else's output."""
    talking = {NODE / "cli", NODE / "bench", NODE / "demo"}
    found = [
        where(path, node)
        for path in modules()
        if not talking.intersection(path.parents)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert found == []
    assert modules(CLIENT)
