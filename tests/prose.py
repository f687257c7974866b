"""The cases that are partly in words: a test that covers one uses it, or carries its id in its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

Test = TypeVar("Test")

DIRECTORY = Path(__file__).parent / "vectors" / "prose"


def prose(file: str) -> dict[str, dict[str, Any]]:
    """Return the cases of a file by id."""
    lines = (DIRECTORY / f"{file}.jsonl").read_text(encoding="utf-8").splitlines()
    return {case["id"]: case for case in map(json.loads, lines)}


def each(file: str, *beginnings: str, but: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """Run a test with ``given`` and ``expect`` of each case whose id has one of these beginnings."""
    found = [
        pytest.param(case["given"], case["expect"], id=identity)
        for identity, case in prose(file).items()
        if identity.startswith(beginnings) and not identity.startswith(but or ("?",))
    ]
    assert found
    return pytest.mark.parametrize(("given_", "expect"), found)


def covers(file: str, *identities: str) -> Callable[[Test], Test]:
    """Name the cases of a file that a test covers without reading them."""
    unknown = set(identities) - prose(file).keys()
    assert not unknown, unknown
    return lambda test: test
