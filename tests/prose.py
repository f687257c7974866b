"""The cases that are partly in words: who turns one into a test puts its id into the name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

DIRECTORY = Path(__file__).parent / "vectors" / "prose"


def prose(file: str) -> dict[str, dict[str, Any]]:
    """Return the cases of a file by id."""
    return {case["id"]: case for case in json.loads((DIRECTORY / f"{file}.json").read_text(encoding="utf-8"))}


def each(file: str, *beginnings: str, but: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """Run a test with ``given`` and ``expect`` of the cases whose ids begin so."""
    found = [
        pytest.param(case["given"], case["expect"], id=identity)
        for identity, case in prose(file).items()
        if identity.startswith(beginnings) and not identity.startswith(but or ("?",))
    ]
    assert found
    return pytest.mark.parametrize(("given_", "expect"), found)
