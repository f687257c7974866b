from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.protocol.errors import DittoError
from tests.conformance.runner import effect, parse_request, requested_acks_out
from tests.outcomes import refusal
from tests.prose import each
from tests.protocol.ditto.test_signal_defaults import HEADERS, KINDS


@given(st.sampled_from(KINDS), HEADERS)
def test_every_combination_has_an_effect_on_every_api(kind: Any, headers: dict[str, Any]) -> None:
    for api in ("HTTP", "WebSocket", "Connectivity"):
        found = effect(api, kind, headers)
        assert ("error" in found) == (found["reply"] == "error") == ("content" not in found)
        assert (found["settlement"] is None) == (api != "Connectivity")
        assert found.get("error", {"status": 400})["status"] == 400


# what an outcome in words is in terms of an effect: reply, content, settlement
OUTCOMES: dict[str, tuple[str, str | None, str | None]] = {
    "202 immediately": ("202-without-body", "none-on-success", None),
    "202 after requested acks": ("202-without-body", "none-on-success", None),
    "400": ("error", None, None),
    "response": ("full", "plain-response", None),
    "aggregated response and acks": ("full", "aggregate-or-single-response", None),
    "no response": ("none", "none", None),
    "error (zero timeout)": ("error", None, None),
    "error (acks without response)": ("error", None, None),
    "error published; settled negatively": ("error", None, "reject-without-redelivery"),
    "nothing published; settled immediately": ("none", "none", "immediately"),
    "nothing published; settled after acks": ("none", "none", "after-acks"),
    "response published; settled immediately": ("published-at-reply-target", "plain-response", "immediately"),
    "aggregate published; settled after acks": (
        "published-at-reply-target",
        "aggregate-or-single-response",
        "after-acks",
    ),
}


@each("header_defaults", "doc-HTTP", "doc-WebSocket", "doc-Connectivity")
def test_prose_outcome_of_a_combination(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    headers = {
        "response-required": given_["response-required"],
        "requested-acks": ["foo-ack"] if given_["requested-acks"] == "non-empty" else [],
        "timeout": "0s" if given_["timeout"] == "zero" else "10s",
    }
    found = effect(given_["api"], "twin", headers)
    assert found["client-error"] is expect["clientError"]
    assert (found["reply"], found.get("content"), found["settlement"]) == OUTCOMES[expect["outcome"]]
    if "error" not in found:
        assert found["waits-for-acks"] is (given_["requested-acks"] == "non-empty")


@each("header_defaults", "doc-default-timeout")
def test_prose_default_timeout(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert given_
    assert effect("HTTP", "twin", {})["effective"]["timeout"] == expect["allUnset"]
    assert effect("WebSocket", "twin", {})["effective"]["timeout"] == "65s"


def _answer(found: dict[str, Any], downstream: int) -> int | None:
    """The status the requester gets of what comes from downstream."""
    if "error" in found:
        return int(found["error"]["status"])
    if found["reply"] == "none":
        return None
    if found["reply"] == "202-without-body" and downstream == 204:
        return 202
    return downstream


@each("header_defaults", "interaction-")
def test_prose_interaction(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    found = effect(given_["api"], given_["signal"], given_["headers"])
    downstream = 404 if given_["downstream"].startswith("404") else 204
    assert _answer(found, downstream) == expect.get("httpStatus", expect.get("publishedStatus"))
    if given_["api"] == "Connectivity":
        assert expect["forwarded"] is not found["client-error"]
        settled = {"immediately": "settle immediately", "after-acks": "after response"}
        assert expect["settlement"].startswith(settled.get(str(found["settlement"]), "reject-without-redelivery"))
        assert f"setCount({int(found.get('waits-for-acks', False))})" in expect["collector"]


@each("header_defaults", "http-", but=("http-ensure", "http-fireAndForget-noReply"))
def test_prose_http_forwards_with_defaults(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    found = effect("HTTP", given_["signal"], given_["headers"])
    assert found["effective"].items() >= expect.get("forwarded", {}).items()
    if "404" in given_["downstream"]:
        assert _answer(found, 404) == expect["httpStatus"]
    else:
        assert (_answer(found, 204) == 202) is (expect["httpStatus"] == 202)


@each("header_validation", "bound-")
def test_prose_cap_without_error(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    found = effect(given_["api"], "twin", {"timeout": given_["timeout"]})
    assert not found["client-error"]
    assert found["effective"]["timeout"] == expect["effectiveTimeout"]


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("[]", []),
        ('["twin-persisted"]', None),
        ('["twin-persisted","live-response","search-persisted"]', None),
        ('["foo",5,null,["x"],"bar"]', ["foo", "bar"]),
        ("[5]", None),
        ("null", None),
        ("{}", None),
    ],
)
def test_built_in_and_odd_labels_are_not_shown(text: str, labels: list[str] | None) -> None:
    assert requested_acks_out(text) == labels


def test_an_invalid_label_is_not_handed_out() -> None:
    with pytest.raises(DittoError, match="Acknowledgement label <no> is invalid"):
        requested_acks_out('["no"]')


def test_a_bad_request_tells_the_cause() -> None:
    error = refusal(parse_request, "ab")
    assert error.status == 422
    assert error.message.endswith("Cause: Acknowledgement label <ab> is invalid.")
