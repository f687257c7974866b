"""Every sentence of the reference documents has its state, its reason if it differs, and tests that exist."""

from __future__ import annotations

import re

import pytest

from tests import documents
from tests.documents import RUNNING, Sentence

SENTENCES = {identity: one for document in documents.load().values() for identity, one in document.sentences.items()}


def test_every_sentence_has_one_place() -> None:
    listed = [identity for document in documents.load().values() for identity in document.sentences]
    assert listed == [f"SEED-{number:03}" for number in range(1, 331)]


def test_the_page_is_what_the_files_say() -> None:
    assert documents.PAGE.read_text("utf-8") == documents.page(), "run `python -m tests.documents`"


def test_every_named_test_exists() -> None:
    missing = {test for one in SENTENCES.values() for test in one.tests if not documents.exists(test)}
    assert missing == set()


@pytest.mark.parametrize("page", ["project/evidence/reliability", "project/evidence/security"])
def test_every_test_that_a_page_names_exists(page: str) -> None:
    named = []
    for line in (documents.ROOT / f"docs/{page}.md").read_text("utf-8").splitlines():
        path = ""
        for given, name in re.findall(r"(tests/[\w/]+\.py)?(?:::(\w+))?", line):
            path = given or path
            named += [f"{path}::{name}"] if name else []
    assert len(named) > 200
    assert {test for test in named if not documents.exists(test)} == set()


def complaint(one: Sentence) -> str | None:
    """Say what is missing."""
    if one.state != "works" and not one.reason:
        return "no reason"
    if one.state == "works" and one.reason:
        return "a reason for what works"
    if (one.state == "open") is not bool(one.item):
        return "what is open, and nothing else, belongs to a part of the plan"
    if one.state != "open" and not one.tests:
        return "no test"
    if one.state == "works" and not one.pure and not any(test.startswith(RUNNING) for test in one.tests):
        return "no test on the running system, and no word of why"
    return None


def test_what_works_is_shown_on_the_running_system_and_what_differs_has_its_reason() -> None:
    assert {identity: found for identity, one in SENTENCES.items() if (found := complaint(one))} == {}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"state": "differs", "tests": ("x",)}, "no reason"),
        ({"state": "open", "reason": "x"}, "what is open, and nothing else, belongs to a part of the plan"),
        ({"state": "works"}, "no test"),
        ({"state": "works", "tests": ("tests/a.py::b",)}, "no test on the running system, and no word of why"),
        ({"state": "works", "tests": ("tests/a.py::b",), "pure": "x"}, None),
    ],
)
def test_what_is_missing_is_found(fields: dict[str, object], expected: str | None) -> None:
    assert complaint(Sentence(says="x", **fields)) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("test", "found"),
    [
        ("tests/test_documents.py::test_what_is_missing_is_found", True),
        ("tests/test_documents.py::complaint", False),
        ("tests/test_nothing.py::test_nothing", False),
        ("tests/integration/test_query.py::a_second_client_of_a_name_ends_the_first", True),
        ("tests/integration/test_scenarios.py::test_a_scenario_on_the_running_system[AMPS-01]", True),
        ("tests/integration/test_scenarios.py::test_a_scenario_on_the_running_system[RTI-01]", False),
    ],
)
def test_a_test_is_a_test_function_a_story_or_a_scenario_that_runs(test: str, *, found: bool) -> None:
    assert documents.exists(test) is found
