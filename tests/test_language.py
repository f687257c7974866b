"""Texts are plain technical English: home-made phrases stay out. What they name exists: tests, files, commands."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest
import typer.main

from ackstream.cli.main import app

ROOT = Path(__file__).parent.parent
FILES = [
    *sorted((ROOT / "ackstream").rglob("*.py")),
    *sorted((ROOT / "ackstream").rglob("*.toml")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "conf").glob("*.toml")),
    ROOT / "README.md",
]
PHRASES = re.compile(
    r"\b(one row a|what (it|this|that|they) comes? to|comes to nothing|of no use|somebody|nobody else|whoever|"
    r"so long as|is heard of|be told|is told|are told|tells? (whether|how|what|who|everybody))\b",
    re.IGNORECASE,
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_text_uses_the_words_of_the_field(path: Path) -> None:
    found = [
        f"{number}: {line.strip()}"
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if PHRASES.search(line)
    ]
    assert not found


PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
NAMED_TEST = re.compile(r"(?P<file>[\w/.]+\.py)?::(?P<name>test_\w+)")
NAMED_FILE = re.compile(r"(?<![\w/.:-])(?:[\w-]+/)+[\w-]+\.(?:py|md|json|toml|xml|properties|ipynb)(?!\w)")
LEVELS = (".", "ackstream", "docs")
"""A page names files from here, or from its own directory."""


@lru_cache
def _tests_in(file: str) -> frozenset[str]:
    path = ROOT / file
    tree = ast.parse(path.read_text("utf-8") if path.is_file() else "")
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_test_that_a_page_names_exists(path: Path) -> None:
    missing = []
    for line in path.read_text("utf-8").splitlines():
        file = ""
        for named in NAMED_TEST.finditer(line):
            # ::test_x continues the file before it
            file = named["file"] or file
            if named["name"] not in _tests_in(file):
                missing.append(f"{file}::{named['name']}")
    assert not missing


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_that_a_page_names_exists(path: Path) -> None:
    named = set(NAMED_FILE.findall(path.read_text("utf-8")))
    assert not {file for file in named if not any((ROOT / level / file).exists() for level in (*LEVELS, path.parent))}


BARE_FILE = re.compile(r"(?<![\w/.-])\w+\.py\b")
_FOLDERS = ("ackstream", "tests", "benchmarks", "jobs", "docs/clients")
KNOWN_FILES = {path.name for folder in _FOLDERS for path in (ROOT / folder).rglob("*.py")}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_that_a_page_names_without_its_directory_exists(path: Path) -> None:
    assert not set(BARE_FILE.findall(path.read_text("utf-8"))) - KNOWN_FILES


CHANGES = (ROOT / "docs/project/contributing.md").read_text("utf-8").partition("## Where a change goes")[2]
NAMED_IN = re.findall(r"`(\w+(?:/\w+)*\.py)` \(((?:`\w+`(?:, )?)+)\)", CHANGES)
"""Files of that table, and the names in parentheses behind them."""


@pytest.mark.parametrize(("file", "names"), NAMED_IN, ids=lambda text: text.replace("`", ""))
def test_a_name_that_a_row_of_where_a_change_goes_gives_is_in_its_file(file: str, names: str) -> None:
    texts = [
        path.read_text("utf-8")
        for path in (ROOT / "ackstream").rglob(file.rpartition("/")[2])
        if str(path).endswith(file)
    ]
    assert [name for name in names.replace("`", "").split(", ") if not any(name in text for text in texts)] == []


TARGETS = dict(re.findall(r"(?m)^([a-z-]+):.*?  ## (.*)$", (ROOT / "Makefile").read_text("utf-8")))
"""The targets that ``make help`` lists, with their texts."""


def _commands(path: Path, program: str) -> set[str]:
    """Return the first words after a program's name, in code of a page."""
    text = path.read_text("utf-8")
    code = [*re.findall(r"(?ms)^```$(.*?)^```$", text), *re.findall(r"`([^`\n]+)`", text)]
    return {word for part in code for word in re.findall(rf"(?m)^{program} ([a-z][a-z-]*)", part)}


@pytest.mark.parametrize("path", [*PAGES, ROOT / "benchmarks/README.md"], ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_that_a_page_names_exists(path: Path) -> None:
    assert _commands(path, "make") <= TARGETS.keys()
    assert _commands(path, "ackstream") <= typer.main.get_command(app).commands.keys()  # type: ignore[attr-defined]
