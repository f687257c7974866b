"""What docs/operate/troubleshooting.md quotes is what the product says."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest

from ackstream.settings.base import parse_toml

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/operate/troubleshooting.md").read_text("utf-8")
GAP = "…"
"""Stands for what differs, on the page and in the texts of the source."""


def _rows() -> list[str]:
    parts = PAGE.split("| sentence | cause | remedy |\n| --- | --- | --- |\n")[1:]
    rows = [line for part in parts for line in part.split("\n\n")[0].splitlines()]
    cells = [re.split(r" \| ", row.removeprefix("| "))[0] for row in rows]
    # sentences with one remedy share a row
    return [sentence for cell in cells for sentence in cell.split("<br>")]


SENTENCES = _rows()


@lru_cache
def _texts() -> list[str]:
    """Return the texts in the source of the product; a gap stands for each value that is put in."""
    found = []
    for path in sorted(
        [*(ROOT / "ackstream").rglob("*.py"), ROOT / "tests/demo/broker.py", ROOT / "tests/demo/secured.py"]
    ):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(str(one.value) if isinstance(one, ast.Constant) else GAP for one in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    catalogue = parse_toml((ROOT / "ackstream" / "gateway" / "errors.toml").read_text("utf-8"))
    return [*found, *(str(text).replace("{}", GAP) for error in catalogue.values() for text in error.values())]


@pytest.mark.parametrize("sentence", SENTENCES)
def test_the_product_says_a_sentence_of_the_page(sentence: str) -> None:
    fixed = [part.strip() for part in sentence.split(GAP) if part.strip(" .:;)")]
    assert sum(map(len, fixed)) >= 12, "too little of it to be found"
    said = re.compile(".*".join(map(re.escape, fixed)), re.DOTALL)
    assert any(said.search(text) for text in _texts())


def test_no_sentence_is_on_the_page_twice() -> None:
    assert len(SENTENCES) == len(set(SENTENCES)) >= 50
