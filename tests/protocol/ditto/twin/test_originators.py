"""Who sent a signal, and who believes it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.protocol.ditto.headers import names_sender
from ackstream.protocol.ditto.twin.access import believed, signature

KEY, VALUE = "k" * 32, b'{"topic":"a/b/things/twin/commands/modify"}'
NAMED = {"correlation-id": "c-1", "ditto-originator": "user:ann", "x-own": "y"}
UNNAMED = {"correlation-id": "c-1", "x-own": "y"}


def test_a_signed_sender_is_believed() -> None:
    assert believed(NAMED, KEY, "c-1", VALUE, signature(KEY, "c-1", VALUE)) == NAMED


@pytest.mark.parametrize(
    ("key", "identity", "value", "signed"),
    [
        (KEY, "c-1", VALUE, None),
        (KEY, "c-1", VALUE, b""),
        (KEY, "c-1", VALUE, b"x" * 32),
        (None, "c-1", VALUE, signature(KEY, "c-1", VALUE)),
        ("", "c-1", VALUE, signature("", "c-1", VALUE)),
        ("other" * 10, "c-1", VALUE, signature(KEY, "c-1", VALUE)),
        (KEY, "c-2", VALUE, signature(KEY, "c-1", VALUE)),
        (KEY, "c-1", VALUE + b" ", signature(KEY, "c-1", VALUE)),
        (KEY, "", b"c-1" + VALUE, signature(KEY, "c-1", VALUE)),
    ],
    ids=[
        "unsigned", "empty", "invented", "no-key", "empty-key", "other-key", "other-id", "other-command", "moved-border"
    ],
)  # fmt: skip
def test_any_other_sender_is_taken_out(key: str | None, identity: str, value: bytes, signed: bytes | None) -> None:
    assert believed(NAMED, key, identity, value, signed) == UNNAMED


@pytest.mark.parametrize("name", ["ditto-originator", "Ditto-Originator", "DITTO-ORIGINATOR"])
def test_the_name_of_the_header_may_be_in_any_case(name: str) -> None:
    headers = {name: "user:root", "x-own": "y"}
    assert names_sender(headers)
    assert believed(headers, KEY, "c-1", VALUE, None) == {"x-own": "y"}


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=5)))
def test_headers_without_a_sender_stay_as_they_are(headers: dict[str, Any]) -> None:
    if not names_sender(headers):
        assert believed(headers, None, "", b"", None) == headers
