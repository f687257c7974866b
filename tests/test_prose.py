"""Every prose case of the vectors is used by a test, or is listed here with the reason why no test can use it."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path

from tests.prose import DIRECTORY, prose

TESTS = Path(__file__).parent
SELECTING = ("each", "startswith")
"""Functions that select cases by the beginnings of their ids."""

SERVICES = "JSON between Ditto's services: nothing here exchanges it"
TYPED = "Ditto's typed header builder: headers are text here"
KAFKA = "Ditto's conversion of Kafka records to external messages: a record's value and headers are used as they are"
VERSIONS = "the units that earlier versions of Ditto knew"
CLASSES = "internals of Ditto's classes and actors"

UNUSED = {
    "parse-acks-": SERVICES,
    "parse-ack-": SERVICES,
    "json-acknowledgements": SERVICES,
    "duration-validator-": TYPED,
    "kafka-inbound-": KAFKA,
    "units-": VERSIONS,
    "forwarder-name": CLASSES,
    "forwarder-effective-policy-announcement": "policies have no announcements here",
    "multi-report-as-soon-as-count": CLASSES,
    "conn-status-mapper-no-acks": "there is no mapper of connection statuses",
    "doc-default-rr-A": "the case itself says that the code does not do what the page says",
    "actor-resetConnectivityHeadersForLive": "replies carry no header of connections that a subscriber could change",
    "weak-search-persisted-nothing-to-index": "the twin indexes every change, so none is acknowledged weakly",
    "acksfilter-quote-in-header": "requested acks are not spliced into the text of a filter",
    "outgoing-conn-target-issued-removed": "a target sees the labels of the connection's other targets here",
    "outgoing-live-message-target-issued-kept": "Ditto merges a message's own headers over the signal's: an accident",
    "setAmount-": "a duration is parsed, never made of an amount in another's unit",
    "to-external-": "the translation of headers at Ditto's edge: replies carry a list of headers of their own here",
    "other-nonditto-error": "asking correlate fails with a Ditto error or not at all",
    "kafka-dryrun": "connections have no dry run",
    "kafka-rejected-error": "a rejected record fails no stream here: it is tried again by itself",
}
"""Ids, or their beginnings, and why no test uses them. Programming errors of Java (null arguments) are left out."""


@lru_cache(maxsize=1)
def _tests() -> tuple[str, list[tuple[tuple[str, ...], tuple[str, ...]]]]:
    """Return the text of all tests, letters and digits alone, and the beginnings of ids that they select or exclude."""
    texts, selections = [], []
    for path in TESTS.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path == Path(__file__):
            continue
        texts.append(text)
        for call in ast.walk(ast.parse(text)) if "tests.prose" in text else ():
            if isinstance(call, ast.Call) and getattr(call.func, "id", getattr(call.func, "attr", "")) in SELECTING:
                excluded = [keyword.value for keyword in call.keywords if keyword.arg == "but"]
                selections.append((_texts(call.args), _texts(excluded)))
    return _plain("\n".join(texts)), selections


def _texts(nodes: list[ast.expr]) -> tuple[str, ...]:
    constants = [node.value for one in nodes for node in ast.walk(one) if isinstance(node, ast.Constant)]
    return tuple(text for text in constants if isinstance(text, str) and "-" in text)


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9\n]", "", text.lower())


def _unused() -> set[str]:
    """Return the ids that no test selects, names in its text, or has in its own name."""
    text, selections = _tests()
    cases = {identity: case for path in DIRECTORY.glob("*.jsonl") for identity, case in prose(path.stem).items()}
    return {
        identity
        for identity, case in cases.items()
        if not any(identity.startswith(chosen) and not identity.startswith(but or ("?",)) for chosen, but in selections)
        and _plain(identity) not in text
        and "programmingError" not in case["expect"]
    }


def test_every_prose_case_is_used_or_listed_with_a_reason() -> None:
    unused = _unused()
    assert {identity for identity in unused if not identity.startswith(tuple(UNUSED))} == set()
    assert {beginning for beginning in UNUSED if not any(one.startswith(beginning) for one in unused)} == set()
