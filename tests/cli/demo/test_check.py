from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ackstream.cli.demo.check import Evidence, check
from ackstream.client import Reply


def reply(key: str = "c-1", status: int = 200, reply_id: str = "", *statuses: int) -> Reply:
    value = {f"a:{number}": {"status": entry, "headers": {}} for number, entry in enumerate(statuses or (200, 200))}
    data = json.dumps({"topic": "a/b/things/twin/acks", "path": "/", "value": value, "status": status}).encode()
    return Reply(key, reply_id or f"r-{key}", status, "acknowledgements", data)


def whole() -> Evidence:
    """Two commands, each acknowledged twice and answered once."""
    keys = ("c-1", "c-2")
    acks = [f"acks-0-{offset}" for offset in range(4)]
    replies = [reply(key) for key in keys]
    return Evidence(keys, replies, replies, acks, signal_rows=keys, outcome_rows=replies, ack_rows=acks, dead_letters=0)


def differences(evidence: Evidence) -> list[str]:
    return [difference for finding in check(evidence) for difference in finding.differences]


def test_what_adds_up_has_no_differences():
    assert differences(whole()) == []
    texts = [finding.text for finding in check(whole())]
    assert texts[0] == "2 commands sent = 2 replies received = 2 rows in outcomes = 2 rows in signals"
    assert texts[1] == "4 acknowledgements, responses and errors of devices and twin = 4 rows in acknowledgements"


def test_a_repeated_reply_with_the_same_content_is_no_difference():
    evidence = whole()
    assert differences(replace(evidence, replies=[*evidence.replies, evidence.replies[0]])) == []


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"received": [reply()]}, ["the replies: lacks c-2"]),
        ({"outcome_rows": [reply()]}, ["outcomes: lacks c-2", "outcome differs from the reply: c-2"]),
        ({"outcome_rows": [reply(), reply("c-2"), reply("c-2")]}, ["outcomes: has duplicates of c-2"]),
        ({"signal_rows": ["c-1", "c-2", "c-3"]}, ["signals: has duplicates of c-3"]),
        ({"dead_letters": 1_000}, ["1,000 rows in dead_letters"]),
        (
            {"ack_rows": ["acks-0-0", "acks-0-0", "acks-0-2", "acks-0-3"]},
            ["acknowledgements: lacks acks-0-1", "acknowledgements: has duplicates of acks-0-0"],
        ),
        (
            {"replies": [reply(), reply("c-1", 200, "", 500)]},
            ["several different replies to c-1"],
        ),
        (
            {"replies": [reply(), reply("c-1", 200, "other")]},
            ["several different replies to c-1"],
        ),
        (
            {"outcome_rows": [reply(), reply("c-2", status=424)]},
            ["outcome differs from the reply: c-2"],
        ),
        (
            {"outcome_rows": [reply(), reply("c-2", 200, "", 200, 204)]},
            ["outcome differs from the reply: c-2"],
        ),
    ],
)
def test_what_differs_is_named(changes: dict[str, Any], wanted: list[str]):
    assert differences(replace(whole(), **changes)) == wanted


def test_of_many_differences_the_first_are_named():
    assert differences(replace(whole(), sent=[f"c-{number}" for number in range(1, 8)]))[0] == (
        "the replies: lacks c-3, c-4, c-5 and 2 more"
    )
