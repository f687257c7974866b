from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ackstream.cli.demo.check import Answered, DeviceAnswer, Evidence, check, expected

LABELS = ("a:b", "c:d")
TIMEOUT = 5_000
START = 1_000
GOOD = {"a:b": 200, "c:d": 200}


def said(label: str | None, status: int = 200, at: int = START, offset: int = 0, key: str = "c-1") -> DeviceAnswer:
    return DeviceAnswer(key, label, status, at, ("acks", 0, offset))


def answered(key: str = "c-1", status: int = 200, completed_by: str = "acknowledgements", **changes: Any) -> Answered:
    return replace(Answered(key, f"r-{key}", status, completed_by, GOOD), **changes)


def whole() -> Evidence:
    """Two commands, each acknowledged twice and answered once."""
    keys = ("c-1", "c-2")
    words = [said("a:b", offset=0), said("c:d", offset=1)]
    words += [said("a:b", offset=2, key="c-2"), said("c:d", offset=3, key="c-2")]
    return Evidence(
        sent=keys,
        received=[answered(key) for key in keys],
        commands=[(key, START) for key in keys],
        acks=words,
        replies=[answered(key, content=b"{}") for key in keys],
        signal_rows=keys,
        outcome_rows=[answered(key) for key in keys],
        ack_rows=[word.coordinates for word in words],
        dead_letters=0,
    )


def differences(evidence: Evidence) -> list[str]:
    return [difference for finding in check(evidence, LABELS, TIMEOUT) for difference in finding.differences]


def test_what_adds_up_has_no_differences():
    assert differences(whole()) == []
    texts = [finding.text for finding in check(whole(), LABELS, TIMEOUT)]
    assert texts[0] == "2 commands sent = 2 replies received = 2 rows in outcomes = 2 rows in signals"
    assert texts[1] == "4 acknowledgements, responses and errors of devices and twin = 4 rows in acknowledgements"


def test_a_repeated_reply_with_the_same_content_is_no_difference():
    evidence = whole()
    assert differences(replace(evidence, replies=[*evidence.replies, evidence.replies[0]])) == []


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"received": [answered()]}, ["the replies: lacks c-2"]),
        ({"outcome_rows": [answered()]}, ["outcomes: lacks c-2", "outcome differs from the reply: c-2"]),
        ({"outcome_rows": [answered(), answered("c-2"), answered("c-2")]}, ["outcomes: has duplicates of c-2"]),
        ({"signal_rows": ["c-1", "c-2", "c-3"]}, ["signals: has duplicates of c-3"]),
        ({"dead_letters": 1_000}, ["1,000 rows in dead_letters"]),
        (
            {"ack_rows": [("acks", 0, 0), ("acks", 0, 0), ("acks", 0, 2), ("acks", 0, 3)]},
            ["acknowledgements: lacks acks-0-1", "acknowledgements: has duplicates of acks-0-0"],
        ),
        (
            {"replies": [answered(content=b"{}"), answered(content=b"[]")]},
            ["several different replies to c-1"],
        ),
        (
            {"replies": [answered(), answered(reply_id="other")]},
            ["several different replies to c-1"],
        ),
        (
            {"outcome_rows": [answered(), answered("c-2", status=424)]},
            ["outcome differs from the reply: c-2"],
        ),
        (
            {"commands": [("c-1", START - TIMEOUT - 1), ("c-2", START)]},
            ["reply does not match the acknowledgements: c-1"],
        ),
    ],
)
def test_what_differs_is_named(changes: dict[str, Any], wanted: list[str]):
    assert differences(replace(whole(), **changes)) == wanted


def test_of_many_differences_the_first_are_named():
    assert differences(replace(whole(), sent=[f"c-{number}" for number in range(1, 8)]))[0] == (
        "the replies: lacks c-3, c-4, c-5 and 2 more"
    )


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([said("a:b"), said("c:d")], (200, "acknowledgements", GOOD)),
        ([said("a:b"), said("c:d", 507)], (424, "acknowledgements", {"a:b": 200, "c:d": 507})),
        # the first one of a label counts
        ([said("a:b", 500), said("a:b"), said("c:d")], (424, "acknowledgements", {"a:b": 500, "c:d": 200})),
        ([said("a:b")], (424, "timeout", {"a:b": 200, "c:d": 408})),
        ([], (424, "timeout", {"a:b": 408, "c:d": 408})),
        ([said("a:b"), said("c:d", at=START + TIMEOUT)], (200, "acknowledgements", GOOD)),
        ([said("a:b"), said("c:d", at=START + TIMEOUT + 1)], (424, "timeout", {"a:b": 200, "c:d": 408})),
        ([said("a:b"), said(None, 404), said("c:d")], (404, "error", {})),
        ([said("a:b"), said("c:d"), said(None, 404)], (200, "acknowledgements", GOOD)),
    ],
)
def test_the_answer_follows_from_what_was_said(words: list[DeviceAnswer], wanted: tuple[int, str, dict[str, int]]):
    assert expected(LABELS, words, START + TIMEOUT) == wanted
