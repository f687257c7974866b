from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.protocol.ditto.signal_defaults import (
    DEFAULT_TIMEOUT_MS,
    LIVE_KINDS,
    SMART_MAXIMUM_MS,
    STREAM_TIMEOUT_MS,
    check_combination,
    default_headers,
    effective_headers,
    signal_kind,
    timeout_milliseconds,
    waits_for_acks,
)
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.durations import Duration
from ackstream.protocol.errors import DittoError
from tests.outcomes import refusal
from tests.prose import each, prose

KINDS = ["twin", "live", "message", "liveQuery", "twinQuery", "smartQuery", "other", "otherQuery"]
ACKABLE = ["twin", "live", "message"]
LABELS = st.lists(st.sampled_from(["twin-persisted", "live-response", "search-persisted", "foo-ack", "bar-ack"]))
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "requested-acks": LABELS,
        "response-required": st.booleans(),
        "timeout": st.sampled_from(["0", "0s", "-0ms", "10s", "2h"]),
        "foo": st.just("bar"),
    },
)


@pytest.mark.parametrize(
    ("topic", "headers", "kind"),
    [
        ("ns/name/things/twin/commands/modify", {}, "twin"),
        ("ns/name/things/twin/commands/create", {}, "twin"),
        ("ns/name/things/twin/commands/migrate", {}, "twin"),
        ("ns/name/things/twin/commands/modify", {"channel": "live"}, "live"),
        ("ns/name/things/twin/commands/modify", {"channel": "LIVE"}, "twin"),
        ("ns/name/things/twin/commands/modify", {"live-channel-condition": "eq(x,1)"}, "twin"),
        ("ns/name/things/live/commands/delete", {}, "live"),
        ("ns/name/things/live/commands/retrieve", {}, "liveQuery"),
        ("ns/name/things/twin/commands/retrieve", {}, "twinQuery"),
        ("ns/name/things/twin/commands/retrieve", {"live-channel-condition": "eq(x,1)"}, "smartQuery"),
        ("ns/name/things/live/messages/ask", {}, "message"),
        ("ns/name/things/live/messages", {}, None),
        ("ns/name/things/twin/messages/ask", {}, None),
        ("ns/name/things/twin/messages/ask", {"channel": "live"}, None),
        ("ns/name/things/none/messages/ask", {}, None),
        ("ns/name/policies/messages/ask", {}, None),
        ("ns/name/policies/commands/modify", {}, "other"),
        ("ns/name/policies/commands/retrieve", {}, "otherQuery"),
        ("ns/name/things/twin/search/subscribe", {}, "other"),
        ("ns/name/things/twin/search/next", {}, None),
        ("ns/name/things/twin/streaming/subscribeForPersistedEvents", {}, "other"),
        ("ns/name/things/twin/streaming/complete", {}, None),
        ("ns/name/things/none/commands/modify", {}, None),
        ("_/id/connections/commands/modify", {}, None),
        ("ns/name/things/twin/commands/modified", {}, None),
        ("ns/name/things/twin/events/modified", {}, None),
        ("ns/name/things/twin/acks/foo", {}, None),
        ("ns/name/things/twin/errors", {}, None),
        ("ns/name/policies/announcements/x", {}, None),
    ],
)
def test_the_kind_of_a_signal_follows_from_its_topic_and_headers(
    topic: str, headers: dict[str, Any], kind: str | None
) -> None:
    assert signal_kind(TopicPath.parse(topic), headers) == kind


@given(st.sampled_from([*ACKABLE, "other"]), HEADERS)
def test_defaults_are_idempotent_but_for_live_labels_that_were_filtered(kind: Any, headers: dict[str, Any]) -> None:
    once = default_headers(kind, headers)
    twice = default_headers(kind, once)
    if kind in {"live", "message"} and once.get("requested-acks") and once["response-required"]:
        # filtering throws the added label away; a second run adds it for good
        assert twice["requested-acks"] in (once["requested-acks"], [*once["requested-acks"], "live-response"])
    elif kind in {"live", "message"} and not once["response-required"]:
        assert twice["requested-acks"] == [x for x in once["requested-acks"] if x != "live-response"]
    else:
        assert twice == once


@given(st.sampled_from(ACKABLE), HEADERS)
def test_defaults_complete_the_two_headers_and_touch_nothing_else(kind: Any, headers: dict[str, Any]) -> None:
    before = {name: list(value) if isinstance(value, list) else value for name, value in headers.items()}
    effective = default_headers(kind, headers)
    assert headers == before
    assert isinstance(effective["requested-acks"], list)
    assert isinstance(effective["response-required"], bool)
    assert {name for name in effective if effective[name] != headers.get(name)} <= {
        "requested-acks",
        "response-required",
    }


@given(st.sampled_from(KINDS), HEADERS.filter(lambda headers: not (headers.keys() & {"timeout", "response-required"})))
def test_defaults_alone_never_make_an_error(kind: Any, headers: dict[str, Any]) -> None:
    assert prose("header_defaults")["doc-never-error"]["expect"] == {"holds": True}
    check_combination("WebSocket", kind, default_headers(kind, headers))


def test_prose_doc_independent_of_each_other() -> None:
    assert prose("header_defaults")["doc-independent"]["expect"] == {"holds": True}
    # an empty list by default does not switch the response off, nor the other way round
    assert default_headers("twin", {"response-required": False})["requested-acks"] == []
    assert default_headers("twin", {"requested-acks": []})["response-required"] is True


@each("header_defaults", "doc-default-rr-B")
def test_prose_default_of_response_required(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert given_
    assert default_headers("twin", {})["response-required"] is expect["allUnset"]
    assert default_headers("twin", {"timeout": "0"})["response-required"] is False


@each("header_defaults", "doc-default-acks-")
def test_prose_default_of_requested_acks(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert default_headers(given_["channel"], {})["requested-acks"] == expect["allUnset"]


@each("header_defaults", "http-ensureResponseRequiredStaysFalse", "headers-isResponseRequired")
def test_prose_response_required(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    (expected,) = expect.values()
    assert default_headers("twin", given_["headers"])["response-required"] is expected


@each("header_defaults", "aggregator-start-")
def test_prose_acks_are_awaited(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    kind = {"policyModify": "other"}.get(given_["signal"], given_["signal"])
    assert waits_for_acks(kind, given_["effective"]["requested-acks"]) is expect["startsAggregator"]


@each("header_defaults", "timeout-", but=("timeout-claim",))
def test_prose_timeout(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    api, kind = given_["api"], given_.get("signal", "twin")
    # Ditto's own defaults
    usual = DEFAULT_TIMEOUT_MS if api == "HTTP" else STREAM_TIMEOUT_MS
    if "error" in expect:
        error = refusal(timeout_milliseconds, api, kind, given_["headers"], usual)
        assert error.to_dict().items() >= expect["error"].items()
    else:
        assert timeout_milliseconds(api, kind, given_["headers"], usual) == expect["effectiveTimeoutMillis"]


@each("header_validation", "http-bound-", "http-message-bound-", "http-claim-bound-")
def test_prose_bound_of_http(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    timeout = given_["timeout"] if "timeout" in given_ else f"{given_['timeoutMillis']}ms"
    kind: Any = "message" if "message" in given_["api"] else "twin"
    maximum = 600_000 if "claim" in given_["api"] else 60_000
    if "error" in expect:
        error = refusal(lambda: timeout_milliseconds("HTTP", kind, {"timeout": timeout}, DEFAULT_TIMEOUT_MS, maximum))
        assert error.to_dict() == expect["error"]
    else:
        expected = min(Duration.parse(timeout).milliseconds, maximum)
        assert timeout_milliseconds("HTTP", kind, {"timeout": timeout}, DEFAULT_TIMEOUT_MS, maximum) == expected


def test_a_smart_query_waits_ten_seconds_longer_and_at_most_a_day() -> None:
    assert timeout_milliseconds("Connectivity", "smartQuery", {}, DEFAULT_TIMEOUT_MS) == 70_000
    assert timeout_milliseconds("HTTP", "smartQuery", {"timeout": "10s"}, DEFAULT_TIMEOUT_MS) == 20_000
    longest = timeout_milliseconds("WebSocket", "smartQuery", {"timeout": "100y"}, DEFAULT_TIMEOUT_MS)
    assert longest == SMART_MAXIMUM_MS + 10_000
    with pytest.raises(DittoError, match="61,000ms"):
        timeout_milliseconds("HTTP", "smartQuery", {"timeout": "61s"}, DEFAULT_TIMEOUT_MS)


@each("header_validation", "rule-live-", "rule-twin-")
def test_prose_labels_are_removed_before_the_check(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    effective = default_headers(given_["signal"], given_["headers"])
    for api in ("HTTP", "WebSocket", "Connectivity"):
        check_combination(api, given_["signal"], effective)
    assert effective.items() >= expect["effective"].items()


@each("header_validation", "rule-http-")
def test_prose_a_query_needs_a_response(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert given_["headers"] == {"response-required": "false"}
    assert refusal(default_headers, "twinQuery", {"response-required": False}).to_dict() == expect["error"]


@each("header_validation", "rule-query-rr-true")
def test_prose_a_query_with_a_response(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert expect == {"ok": True}
    for kind in ("twinQuery", "liveQuery", "smartQuery", "otherQuery"):
        check_combination("HTTP", kind, default_headers(kind, given_["headers"]))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["live", "message", "liveQuery"])
@pytest.mark.parametrize(
    ("headers", "requested"),
    [
        ({"requested-acks": ["twin-persisted", "x-ack"]}, ["x-ack", "live-response"]),
        ({"requested-acks": ["twin-persisted", "x-ack"], "response-required": True}, ["x-ack", "live-response"]),
        ({"requested-acks": ["search-persisted"], "response-required": True}, ["live-response"]),
        ({"requested-acks": []}, []),
    ],
)
def test_a_live_signal_keeps_the_implied_live_response_whatever_else_it_requests(
    kind: Any, headers: dict[str, Any], requested: list[str]
) -> None:
    assert effective_headers(kind, headers)["requested-acks"] == requested


@pytest.mark.parametrize("kind", ["live", "message"])
def test_a_live_signal_without_response_awaits_none_whatever_else_it_requests(kind: Any) -> None:
    headers = {"requested-acks": ["live-response", "twin-persisted", "x-ack"], "response-required": False}
    assert effective_headers(kind, headers)["requested-acks"] == ["x-ack"]


@given(st.sampled_from([*ACKABLE, "other"]), HEADERS)
def test_effective_headers_are_those_of_ditto_without_labels_of_the_other_channel(
    kind: Any, headers: dict[str, Any]
) -> None:
    foreign = {"twin-persisted", "search-persisted"} & set(headers.get("requested-acks") or ())
    effective = effective_headers(kind, headers)
    if kind not in LIVE_KINDS or not foreign:
        assert effective == default_headers(kind, headers)
