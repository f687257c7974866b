""""""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.protocol.ditto.envelopes import Envelope, decode
from ackstream.protocol.ditto.requests import Request, message_headers, read_request, response_matches
from ackstream.protocol.errors import DittoError
from tests.outcomes import outcome, refusal
from tests.prose import each, prose
from tests.protocol.ditto.test_envelopes import ENVELOPES

TWIN = "org.example/lamp/things/twin/commands/modify"
LIVE = "org.example/lamp/things/live/commands/modify"
MESSAGE = "org.example/lamp/things/live/messages/ask"
QUERY = "org.example/lamp/things/twin/commands/retrieve"


def read(topic: str, headers: dict[str, Any] | None = None, /, **fields: Any) -> Request:
    message = {"topic": topic, "headers": headers or {}, "path": "/"} | fields
    return read_request(decode(json.dumps(message).encode()))


def refused(topic: str, headers: dict[str, Any] | None = None, /, **fields: Any) -> DittoError:
    error = refusal(lambda: read(topic, headers, **fields))
    assert error.status == 400
    return error


def test_a_modifying_command_awaits_twin_persisted_for_65_seconds() -> None:
    request = read(TWIN, {"correlation-id": "c"}, path="/attributes/x")
    assert request == Request(
        thing_id="org.example:lamp",
        channel="twin",
        kind="twin",
        awaited=("twin-persisted",),
        response_required=True,
        waits_for_acks=True,
        timeout_ms=60_000,
        headers={"correlation-id": "c", "response-required": False},
        criterion="commands",
        action="modify",
        subject=None,
        path="/attributes/x",
    )


@pytest.mark.parametrize(
    ("topic", "headers", "awaited", "response_required"),
    [
        (TWIN, {"requested-acks": ["foo-ack"]}, ("foo-ack",), True),
        (TWIN, {"requested-acks": ["b-ack", "a-ack", "b-ack"]}, ("b-ack", "a-ack"), True),
        (TWIN, {"requested-acks": ["live-response"]}, (), True),
        (TWIN, {"requested-acks": []}, (), True),
        (TWIN, {"response-required": False}, (), False),
        (TWIN, {"response-required": False, "requested-acks": ["foo-ack"]}, ("foo-ack",), False),
        (TWIN, {"timeout": 0}, (), False),
        (TWIN, {"channel": "live"}, ("live-response",), True),
        (LIVE, {}, ("live-response",), True),
        (LIVE, {"requested-acks": ["foo-ack"]}, ("foo-ack", "live-response"), True),
        (LIVE, {"requested-acks": ["twin-persisted", "foo-ack"]}, ("foo-ack", "live-response"), True),
        (LIVE, {"requested-acks": ["live-response"], "response-required": False}, (), False),
        (MESSAGE, {}, ("live-response",), True),
        (MESSAGE, {"requested-acks": []}, (), True),
        (QUERY, {}, (), True),
        (QUERY, {"requested-acks": ["foo-ack"]}, (), True),
        (QUERY, {"live-channel-condition": "eq(x,1)"}, ("live-response",), True),
        (LIVE.replace("modify", "retrieve"), {}, ("live-response",), True),
        ("org.example/lamp/policies/commands/modify", {"requested-acks": ["foo-ack"]}, (), True),
    ],
)
def test_what_is_awaited_follows_from_kind_and_headers(
    topic: str,
    headers: dict[str, Any],
    awaited: tuple[str, ...],
    response_required: bool,  # noqa: FBT001 - a column of the table
) -> None:
    request = read(topic, headers)
    assert (request.awaited, request.response_required) == (awaited, response_required)
    assert request.waits_for_acks is bool(awaited)


def test_a_smart_query_waits_even_without_a_label() -> None:
    request = read(QUERY, {"live-channel-condition": "eq(x,1)", "requested-acks": []})
    assert (request.awaited, request.waits_for_acks, request.live, request.channel) == ((), True, True, "twin")


@pytest.mark.parametrize(
    ("topic", "channel", "live"),
    [(TWIN, "twin", False), (LIVE, "live", True), (MESSAGE, "live", True), (QUERY, "twin", False)],
)
def test_the_channel_is_that_of_the_answer(topic: str, channel: str, live: object) -> None:
    request = read(topic)
    assert (request.channel, request.live) == (channel, live)
    assert request.headers.get("channel") == ("live" if live else None)


def test_what_concerns_no_thing_has_no_thing_id() -> None:
    assert read("org.example/rules/policies/commands/delete").thing_id is None


def test_the_answers_headers_are_those_of_the_command_in_external_form() -> None:
    headers = {
        "correlation-id": "c", "requested-acks": ["foo-ack"], "response-required": True, "timeout": "10s",
        "x-number": 5, "ditto-entity-id": "a:b", "ditto-weak-ack": True, "condition": "eq(x,1)", "gone": None,
    }  # fmt: skip
    expected = {"correlation-id": "c", "response-required": False, "timeout": "10s", "x-number": "5"}
    assert read(TWIN, headers).headers == expected


@pytest.mark.parametrize(
    ("topic", "headers", "error", "key"),
    [
        (TWIN, {"timeout": "0", "requested-acks": ["foo-ack"]}, "header.invalid", "timeout"),
        (TWIN, {"timeout": "0", "response-required": True}, "header.invalid", "timeout"),
        (QUERY, {"timeout": "0"}, "header.invalid", "timeout"),
        ("org.example/rules/policies/commands/modify", {"timeout": "0"}, "header.invalid", "timeout"),
        (TWIN, {"timeout": "soon"}, "timeout.invalid", None),
        (TWIN, {"timeout": {"a": 1}}, "timeout.invalid", None),
        (TWIN, {"requested-acks": "foo-ack"}, "header.invalid", "requested-acks"),
        (TWIN, {"requested-acks": ["no"]}, "header.invalid", "requested-acks"),
        (TWIN, {"correlation-id": ""}, "header.invalid", None),
        (TWIN, {"channel": "both"}, "header.invalid", "channel"),
        (QUERY, {"response-required": False}, "command.headers.invalid", None),
        ("org.example/rules/policies/commands/retrieve", {"response-required": False}, "command.headers.invalid", None),
        (LIVE.replace("modify", "retrieve"), {"timeout": "0"}, "command.headers.invalid", None),
    ],
)
def test_invalid_headers_are_refused(topic: str, headers: dict[str, Any], error: str, key: str | None) -> None:
    refusal = refused(topic, headers)
    assert (refusal.error, refusal.extra.get("invalidHeaderKey")) == (error, key)


@pytest.mark.parametrize("topic", [LIVE, LIVE.replace("modify", "retrieve"), MESSAGE])
def test_a_condition_that_nobody_looks_at_before_the_device_acts_is_refused(topic: str) -> None:
    error = refusal(lambda: read(topic, {"condition": "eq(attributes/locked,false)"}))
    assert (error.status, error.error) == (501, "command.notavailable")


@pytest.mark.parametrize(
    ("topic", "status", "description"),
    [
        ("ns/n/things/twin/events/modified", None, "Only commands and messages can be requested; this is an event."),
        ("ns/n/things/twin/acks/foo", 200, "Only commands and messages can be requested; this is an acknowledgement."),
        ("ns/n/things/twin/acks", None, "Only commands and messages can be requested; this is an acknowledgement."),
        ("ns/n/things/twin/errors", 404, "Only commands and messages can be requested; this is an error."),
        (
            "ns/n/policies/announcements/x",
            None,
            "Only commands and messages can be requested; this is an announcement.",
        ),
        (TWIN, 204, "Only commands and messages can be requested; this is a response, because it has a status."),
        (MESSAGE, 200, "Only commands and messages can be requested; this is a response, because it has a status."),
        ("ns/n/things/live/messages", None, "Messages are sent on the channel 'live', with a subject."),
        ("ns/n/things/twin/messages/ask", None, "Messages are sent on the channel 'live', with a subject."),
        ("ns/n/things/twin/commands/modified", None, "Check if the topic path is correct."),
        ("ns/n/things/none/commands/modify", None, "Check if the topic path is correct."),
        ("ns/n/things/twin/search/next", None, "Check if the topic path is correct."),
    ],
)
def test_what_is_no_request_is_refused(topic: str, status: int | None, description: str) -> None:
    error = refused(topic, status=status)
    assert (error.error, error.description) == ("protocoladapter:unknown.topicpath", description)


@pytest.mark.parametrize(
    ("headers", "milliseconds"),
    [
        ({}, 7_000),
        ({"timeout": "2500ms"}, 2_500),
        ({"timeout": "2h"}, 9_000),
        ({"timeout": "9223372036854775807"}, 9_000),
        ({"timeout": "4294967295w"}, 9_000),
    ],
)
def test_default_and_maximum_of_the_timeout_can_be_chosen(headers: dict[str, Any], milliseconds: int) -> None:
    envelope = decode(json.dumps({"topic": TWIN, "path": "/", "headers": headers}).encode())
    request = read_request(envelope, default_timeout_ms=7_000, max_timeout_ms=9_000)
    assert request.timeout_ms == milliseconds


@each("aggregation", "actor-code-smart-channel-cap", "actor-code-smart-channel-timeout", "actor-code-timeout-equal")
def test_prose_deadline(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    smart = given_.get("signal") == "smart"
    headers = {"timeout": given_["timeout"]} | ({"live-channel-condition": "eq(x,1)"} if smart else {})
    assert read(QUERY if smart else TWIN, headers).timeout_ms == expect["deadlineMillis"]


@each("protocol_acks", "doc-command-requesting-acks")
def test_prose_a_command_that_requests_acks(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    request = read_request(decode(json.dumps(given_["protocol"]).encode()))
    assert list(request.awaited) == expect["requests"]


@each("protocol_acks", "doc-event-requesting-acks")
def test_prose_an_event_has_no_built_in_label(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert expect["note"].startswith("built-in labels are no longer present")
    protocol = given_["protocol"]
    assert not {"twin-persisted", "live-response"} & set(protocol["headers"]["requested-acks"])
    assert refused(protocol["topic"], protocol["headers"]).error == "protocoladapter:unknown.topicpath"


@each("header_defaults", "conn-query-no-acks")
def test_prose_a_query_awaits_nothing(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert expect["collector"] == ["setCount(0)"]
    assert not read(QUERY, given_["headers"]).waits_for_acks


@given(ENVELOPES)
def test_any_envelope_is_a_request_or_refused_and_a_request_can_be_stored(message: dict[str, Any]) -> None:
    request = outcome(lambda: read_request(decode(json.dumps(message).encode())))
    if isinstance(request, DittoError):
        assert request.status == 400
        return
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=Request) == request
    assert len(set(request.awaited)) == len(request.awaited)
    assert 0 <= request.timeout_ms <= 65_000 or request.kind == "smartQuery"


@given(st.lists(st.sampled_from(["foo-ack", "bar-ack", "twin-persisted"]), max_size=5))
def test_repeated_labels_are_awaited_once_at_their_first_place(labels: list[str]) -> None:
    assert list(read(TWIN, {"requested-acks": labels}).awaited) == sorted(set(labels), key=labels.index)


THING = "org.example/lamp/things/live"


def envelope(topic: str, path: str = "/", **fields: Any) -> Envelope:
    return decode(json.dumps({"topic": topic, "path": path, "headers": {"correlation-id": "c"}} | fields).encode())


def command(suffix: str, path: str = "/") -> Request:
    return read_request(envelope(f"{THING}/{suffix}", path))


def reason(request: Request, topic: str, path: str = "/", correlation_id: str | None = "c") -> str | None:
    headers = {} if correlation_id is None else {"correlation-id": correlation_id}
    return response_matches(request, envelope(topic, path, status=200, headers=headers))


@pytest.mark.parametrize(
    ("suffix", "path"),
    [
        ("commands/modify", "/"),
        ("commands/retrieve", "/attributes/x"),
        ("commands/merge", "/features"),
        ("messages/ask", "/inbox/messages/ask"),
        ("messages/claim", "/inbox/messages/claim"),
    ],
)
@pytest.mark.parametrize("correlation_id", ["c", "c#0", "c#17", None])
def test_the_response_to_a_command_matches(suffix: str, path: str, correlation_id: str | None) -> None:
    assert reason(command(suffix, path), f"{THING}/{suffix}", path, correlation_id) is None


def test_another_correlation_id_does_not_match() -> None:
    assert reason(command("commands/modify"), f"{THING}/commands/modify", correlation_id="d") == (
        "Correlation ID of live response <d> differs from correlation ID of command <c>."
    )


def test_another_resource_path_does_not_match() -> None:
    request = command("commands/modify", "/attributes/manufacturer")
    assert reason(request, f"{THING}/commands/modify", "/attributes/serialNo") == (
        "Resource path of live response </attributes/serialNo> differs from resource path of command"
        " </attributes/manufacturer>."
    )


def test_a_response_about_a_policy_does_not_match() -> None:
    assert reason(command("commands/modify"), "org.example/lamp/policies/commands/modify") == (
        "Type of live response <policies.responses:modifyThing> is not related to type of command"
        " <things.commands:modifyThing>."
    )


def test_a_reason_repeats_only_the_beginning_of_a_long_name() -> None:
    found = reason(command("commands/modify"), f"org.example/{'x' * 5_000}/things/live/errors")
    assert found is not None
    assert len(found) < 1_200


def test_an_empty_path_is_the_root() -> None:
    assert reason(command("commands/modify", "/"), f"{THING}/commands/modify", "") is None


def test_the_path_of_a_message_is_not_compared() -> None:
    request = command("messages/ask", "/inbox/messages/ask")
    assert reason(request, f"{THING}/messages/ask", "/outbox/messages/ask") is None


def test_acknowledgements_and_errors_have_no_type_and_no_path() -> None:
    request = command("commands/modify", "/attributes/x")
    assert reason(request, f"{THING}/acks/foo-ack") is None
    assert reason(request, f"{THING}/errors") is None
    assert reason(request, "org.example/other/things/live/errors") == (
        "Entity ID of live response <org.example:other> differs from entity ID of command <org.example:lamp>."
    )


@pytest.mark.parametrize(
    ("suffix", "path", "other", "other_path", "found", "wanted"),
    [
        (
            "commands/modify", "/attributes/x", "commands/retrieve", "/",
            "things.responses:retrieveThing", "things.commands:modifyAttribute",
        ),
        (
            "commands/delete", "/features/f", "commands/delete", "/features",
            "things.responses:deleteFeatures", "things.commands:deleteFeature",
        ),
        (
            "commands/modify", "/features/f/properties", "commands/modify", "/features/f/properties/p/q",
            "things.responses:modifyFeatureProperty", "things.commands:modifyFeatureProperties",
        ),
        (
            "commands/modify", "/features/f/desiredProperties/p", "commands/modify", "/features/f/definition",
            "things.responses:modifyFeatureDefinition", "things.commands:modifyFeatureDesiredProperty",
        ),
        (
            "commands/modify", "/policyId", "commands/modify", "/definition",
            "things.responses:modifyThingDefinition", "things.commands:modifyPolicyId",
        ),
        (
            "commands/merge", "/attributes", "commands/modify", "/attributes",
            "things.responses:modifyAttributes", "things.commands:mergeThing",
        ),
        (
            "commands/migrate", "/", "commands/modify", "/",
            "things.responses:modifyThing", "things.commands:migrateThingDefinition",
        ),
        (
            "commands/modify", "/", "messages/ask", "/inbox/messages/ask",
            "messages.responses:thingResponseMessage", "things.commands:modifyThing",
        ),
        (
            "messages/ask", "/inbox/messages/ask", "messages/ask", "/features/f/inbox/messages/ask",
            "messages.responses:featureResponseMessage", "messages.commands:thingMessage",
        ),
        (
            "messages/claim", "/inbox/messages/claim", "commands/modify", "/",
            "things.responses:modifyThing", "messages.commands:claimMessage",
        ),
    ],
)  # fmt: skip
def test_another_type_does_not_match(
    suffix: str, path: str, other: str, other_path: str, found: str, wanted: str
) -> None:
    assert reason(command(suffix, path), f"{THING}/{other}", other_path) == (
        f"Type of live response <{found}> is not related to type of command <{wanted}>."
    )


@each("aggregation", "actor-onlyInvalidLiveResponse")
def test_prose_the_reason_for_another_thing(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert given_["requested"] == ["live-response"]
    expected = prose("aggregation")["actor-onlyInvalidLiveResponse"]["expect"]["error"]["description contains"]
    found = reason(command("commands/delete"), "org.example/other/things/live/commands/delete")
    assert found == expected.replace("<other>", "<org.example:other>").replace("<thingId>", "<org.example:lamp>")
    assert expect["error" if "error" in expect else "reply"]


@each("aggregation", "actor-ackMatchesCommand")
def test_prose_an_acknowledgement_matches_its_command(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert given_["command"] == "live ModifyFeatureProperty"
    request = command("commands/modify", "/features/f/properties/p")
    assert (reason(request, f"{THING}/acks/foo-ack") is None) is expect["valid"]


@each("aggregation", "actor-liveResponseWrongType")
def test_prose_a_response_of_another_type_does_not_match(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert (given_["received"], expect["httpStatus"]) == (["RetrieveThingResponse"], 408)
    assert reason(command("commands/modify", "/attributes/x"), f"{THING}/commands/retrieve") is not None


@pytest.mark.parametrize(
    ("path", "direction", "feature"),
    [
        ("/inbox/messages/ask", "TO", None),
        ("/outbox/messages/ask", "FROM", None),
        ("/features/lid/outbox/messages/ask", "FROM", "lid"),
        ("/features/outbox/inbox/messages/ask", "TO", "outbox"),
        ("/features", "TO", None),
        ("/features/lid", "TO", None),
        ("", "TO", None),
    ],
)
def test_a_message_has_headers_for_what_its_topic_and_path_say(path: str, direction: str, feature: str | None) -> None:
    headers = message_headers(envelope(f"{THING}/messages/ask/again", path))
    assert headers == {
        "ditto-message-direction": direction,
        "ditto-message-subject": "ask/again",
        "ditto-message-thing-id": "org.example:lamp",
    } | ({"ditto-message-feature-id": feature} if feature else {})


PATHS = st.lists(st.sampled_from(["features", "attributes", "outbox", "properties", "x", ""]), max_size=6).map("/".join)


@given(ENVELOPES, PATHS, st.sampled_from(["commands/modify", "commands/retrieve", "messages/ask"]))
def test_any_response_matches_or_not(message: dict[str, Any], path: str, suffix: str) -> None:
    response = outcome(decode, json.dumps(message | {"path": path}).encode())
    if isinstance(response, DittoError):
        return
    assert response_matches(command(suffix, path), response) is None or response.topic.thing_id
    if response.topic.criterion == "messages":
        assert message_headers(response).keys() >= {"ditto-message-direction", "ditto-message-subject"}
