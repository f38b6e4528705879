"""What the documents say of this tree is so."""

import re
import tomllib

import pytest

from mooncake_node.cli.app import app
from mooncake_node.settings import RULES
from tests.tidy.source import ROOT

DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
DECISIONS = sorted((ROOT / "docs" / "adr").glob("*.md"))


def version() -> str:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_changelog_tells_of_this_version_or_the_next():
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## \[?([^\]\s]+)", text, re.MULTILINE)
    assert {"Unreleased", version()} & set(headings)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document):
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text())
    local = [link for link in links if "://" not in link]
    missing = [link for link in local if not (document.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_are_named_exist(document):
    """Written as `mooncake_node/…`, `client/…`, `tests/…` and so on, with or without the ending."""
    named = re.findall(r"`((?:mooncake_node|client|tests|configs|deploy|docs|scripts)/[\w./-]+)`", document.read_text())
    missing = [name for name in named if not (ROOT / name).exists()]
    assert missing == []


def test_readme_names_only_settings_and_commands_that_exist():
    text = (ROOT / "README.md").read_text()
    settings = set(re.findall(r"^\| `([a-z_]+)` \|", text, re.MULTILINE))
    assert settings
    assert settings <= set(RULES)
    commands = set(re.findall(r"mooncake-node ([a-z]+)\b", text))
    groups = {group.typer_instance.info.name for group in app.registered_groups}
    known = {command.name or command.callback.__name__ for command in app.registered_commands} | groups
    assert commands
    assert commands <= known


def test_decisions_are_numbered_without_a_gap_and_have_their_three_parts():
    numbers = [int(path.name[:4]) for path in DECISIONS]
    assert numbers == list(range(1, len(numbers) + 1))
    for path in DECISIONS:
        text = path.read_text()
        assert [part for part in ("## Context", "## Decision", "## Consequences") if part not in text] == [], path.name


def test_make_help_names_every_goal_of_the_readme():
    goals = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert {"demo", "test"} <= named <= goals
