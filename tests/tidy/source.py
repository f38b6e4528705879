"""The source as the rules see it: files, and their syntax trees."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "client" / "mooncake_client"
NODE = ROOT / "mooncake_node"


def modules(*packages: Path) -> list[Path]:
    """Every Python file of our packages, or of *packages*."""
    found = [path for package in packages or (CLIENT, NODE) for path in sorted(package.rglob("*.py"))]
    assert found
    return found


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def where(path: Path, node: ast.AST | None = None) -> str:
    """File and line, as an editor takes it."""
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


def imported(path: Path) -> Iterator[tuple[ast.AST, str]]:
    """Every module that *path* names in an import; they are absolute."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            yield node, node.module or ""
