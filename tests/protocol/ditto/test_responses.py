from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.protocol.ditto.envelopes import Envelope, decode
from ackstream.protocol.ditto.requests import Request, read_request
from ackstream.protocol.ditto.responses import message_headers, response_matches
from ackstream.protocol.errors import DittoError
from tests.outcomes import outcome
from tests.prose import each, prose
from tests.protocol.ditto.test_envelopes import ENVELOPES

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
