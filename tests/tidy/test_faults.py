"""A fault point that is never passed arms nothing and says nothing: each must be somewhere in the source."""

import ast
import importlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import ModuleType

from mooncake_client.faults import CLIENT_POINTS
from tests.tidy.source import CLIENT, NODE, modules, tree

JOBS = "mooncake_node.jobs"  # a room of one file
PASSING = {"_point", "hit", "hit_blocking"}


def names_passed(package: Path) -> Iterator[str]:
    """Every literal given to a function that passes a point."""
    for path in modules(package):
        for node in ast.walk(tree(path)):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            first = node.args[0]
            if name in PASSING and isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value


def rooms() -> list[ModuleType]:
    """The modules that name the points of a room of the daemon."""
    names = [path.parent.name for path in sorted(NODE.glob("*/points.py"))]
    assert "server" in names
    return [importlib.import_module(name) for name in (*(f"mooncake_node.{name}.points" for name in names), JOBS)]


def test_every_client_point_is_passed_and_every_passed_one_is_named():
    assert sorted(set(names_passed(CLIENT))) == sorted(CLIENT_POINTS)


def test_every_node_point_is_passed_and_every_passed_one_is_named():
    """By a literal where it stands, or by the tables of which requests pass which."""
    tables = [table for room in rooms() for table in (getattr(room, "BEFORE", {}), getattr(room, "AFTER", {}))]
    passed = {*names_passed(NODE), *chain.from_iterable(table.values() for table in tables)}
    assert sorted(passed) == sorted(name for room in rooms() for name in room.POINTS)


def test_no_two_points_share_a_name():
    """Which table to use follows from where a point runs, so its name must say it."""
    names = [*CLIENT_POINTS, *chain.from_iterable(room.POINTS for room in rooms())]
    assert len(set(names)) == len(names)
    # Those of a copy from another node bear the names they had where the client was part of the daemon.
    assert all(name.startswith("Client") == (name in CLIENT_POINTS) for name in names if "LocalCopy" not in name)
