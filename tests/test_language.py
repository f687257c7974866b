"""Texts are plain technical English: home-made phrases that crept in before stay out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = [
    *sorted((ROOT / "ackstream").rglob("*.py")),
    *sorted((ROOT / "docs").glob("*.md")),
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
