from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from ackstream.lake.schemas import ALL_TABLES
from ackstream.protocol import dispositions
from ackstream.protocol.dispositions import (
    ACKNOWLEDGEMENTS,
    COMPLETIONS,
    DUPLICATE,
    EXITS,
    MESSAGES,
    OUTCOME_UNKNOWN,
    REFUSALS,
    WITHDRAWN,
    AckDisposition,
    Completion,
    ExitReason,
    MessageDisposition,
    explained,
)
from ackstream.protocol.record_headers import COMPLETED_BY, UPDATE
from tests.contract.asyncapi import HEADERS

ROOT = Path(__file__).parent.parent.parent
SQL = ROOT / "ackstream" / "lake" / "sql"
UNUSED = [word for word in ACKNOWLEDGEMENTS if word not in ("accepted", "progress")]


@pytest.mark.parametrize(
    ("words", "form"),
    [
        (ACKNOWLEDGEMENTS, AckDisposition),
        (COMPLETIONS, Completion),
        (MESSAGES, MessageDisposition),
        (EXITS, ExitReason),
    ],
)
def test_each_word_has_its_meaning(words: Mapping[str, str], form: Any) -> None:
    assert tuple(words) == get_args(form)


def test_the_reasons_for_refusals_are_the_constants() -> None:
    constants = {value for name, value in vars(dispositions).items() if name.isupper() and isinstance(value, str)}
    assert constants == REFUSALS.keys() | {DUPLICATE, WITHDRAWN, OUTCOME_UNKNOWN}


def test_the_tables_explain_all_dispositions() -> None:
    def comment(table: str, column: str) -> str:
        return str(ALL_TABLES[table].schema[column].metadata["comment"])

    assert comment("acknowledgements", "disposition") == explained(ACKNOWLEDGEMENTS)
    assert all(word in comment("outcomes", "completed_by") for word in COMPLETIONS)
    assert all(word in comment("queue_events", "outcome") for word in MESSAGES)
    assert all(word in comment("queue_events", "reason") for word in EXITS)
    assert all(word in comment("messages", "reason") for word in REFUSALS)


def test_the_contract_lists_all_completions() -> None:
    assert HEADERS[COMPLETED_BY]["enum"] == [*COMPLETIONS, UPDATE]


def _row(page: str, begin: str) -> str:
    """Return the first line of a page that begins so, with the lines of its sentence."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    found = re.search(rf"^{re.escape(begin)}.*?(?=\.\s|\n\||\n-)", text, re.DOTALL | re.MULTILINE)
    assert found is not None, begin
    return found[0]


@pytest.mark.parametrize(
    ("page", "begin", "words"),
    [
        ("operate/monitoring.md", "| `ackstream_acknowledgements_total`", ACKNOWLEDGEMENTS),
        ("operate/monitoring.md", "| `ackstream_requests_total`", COMPLETIONS),
        ("concepts/glossary.md", "- **disposition**", ACKNOWLEDGEMENTS),
        ("compatibility/ditto.md", "- **Unused acks are rows**", UNUSED),
    ],
)
def test_the_docs_list_all_words(page: str, begin: str, words: Mapping[str, str] | list[str]) -> None:
    row = _row(page, begin)
    assert [word for word in words if not re.search(rf"\b{word}\b", row)] == []


def test_the_page_about_refused_messages_names_reasons_that_exist() -> None:
    page = (ROOT / "docs/guides/publish-safely.md").read_text("utf-8")
    table = page.partition("## Why a message is refused")[2].partition("\n## ")[0]
    reasons = {
        reason for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for reason in re.findall("`(.*?)`", row)
    }
    assert reasons
    assert reasons <= REFUSALS.keys()


def test_the_page_about_replies_names_all_completions() -> None:
    page = (ROOT / "docs/guides/send-a-command.md").read_text("utf-8")
    assert set(re.findall(r"^\| [^|]*\| `(\w+)` \|", page, re.MULTILINE)) - {"completed_by"} == COMPLETIONS.keys()


def test_questions_compare_with_words_that_exist() -> None:
    sql = {path: path.read_text("utf-8") for path in SQL.rglob("*.sql")}
    for column, words in (("disposition", ACKNOWLEDGEMENTS), ("completed_by", COMPLETIONS)):
        for path, text in sql.items():
            compared = re.findall(rf"\b{column} (?:=|<>|IN) ('[^']*'|\([^)]*\))", text)
            named = {word for found in compared for word in re.findall(r"'([^']*)'", found)}
            assert named <= words.keys(), path
    text = (SQL / "requests" / "unused_acknowledgements.sql").read_text("utf-8")
    assert set(re.findall(r"^-- disposition: .*?: (.*)$", text, re.MULTILINE)[0].split(", ")) == set(UNUSED)
