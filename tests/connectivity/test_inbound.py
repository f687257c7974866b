""""""

from __future__ import annotations

import json
from typing import Any

import pytest

from ackstream.connectivity.inbound import Inbound, InboundRequest, RejectedSignal, requested_acks
from ackstream.connectivity.transport import ExternalMessage
from ackstream.protocol.ditto.access import OPEN
from ackstream.protocol.ditto.envelopes import Envelope
from ackstream.protocol.ditto.placeholders import Context, Pipeline, PlaceholderError
from ackstream.settings.connections import Source
from tests.outcomes import refusal
from tests.prose import each, prose

COMMAND = "org.acme/lamp/things/twin/commands/modify"
MESSAGE = "org.acme/lamp/things/live/messages/on"


def read(payload: Any, headers: dict[str, str] | None = None, **settings: Any) -> Any:
    source = Source(addresses=("in",), **settings)
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    (found,) = Inbound("plant", source, OPEN).read(ExternalMessage("in-0-7", headers or {}, data))
    return found


def command(topic: str = COMMAND, status: int | None = None, **headers: Any) -> dict[str, Any]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    found = {"topic": topic, "headers": named, "path": "/attributes/x", "value": 1}
    return found if status is None else found | {"status": status}


def test_a_protocol_message_is_asked_with_its_own_headers() -> None:
    found = read(command(timeout="7s", correlation_id="mine"))
    assert isinstance(found, InboundRequest)
    assert found.envelope.headers == {"timeout": "7s", "correlation-id": "mine"}
    assert found.request.awaited == ("twin-persisted",)


@pytest.mark.parametrize(
    ("own", "external", "mapping", "expect"),
    [
        ({}, {}, {}, "in-0-7"),
        ({}, {"correlation-id": "record"}, {}, "record"),
        ({}, {"correlation-id": "record", "id": "x"}, {"correlation-id": "{{ header:id }}"}, "x"),
        ({"Correlation-ID": "json"}, {"correlation-id": "record"}, {"correlation-id": "mapped"}, "json"),
    ],
)
def test_the_correlation_id_is_the_message_s_the_mapping_s_the_transport_s_or_the_record_s_place(
    own: dict[str, str], external: dict[str, str], mapping: dict[str, str], expect: str
) -> None:
    payload = command()
    payload["headers"] = own
    assert read(payload, external, header_mapping=mapping).envelope.headers["correlation-id"] == expect


@pytest.mark.parametrize("answer", [False, True])
def test_a_correlation_id_that_is_too_long_is_an_error_unless_the_message_has_its_own(
    answer: bool,  # noqa: FBT001 - a table
) -> None:
    long = "x" * 1_025
    made = {"topic": "org.acme/lamp/things/twin/acks/plant:done", "status": 204} if answer else {}
    for found in (
        read(command(**made), {"correlation-id": long}, declared_acks=("plant:done",)),
        read(command(correlation_id=long, **made), declared_acks=("plant:done",)),
    ):
        assert isinstance(found, RejectedSignal)
        assert (found.error.error, found.rejects) == ("header.invalid", False)
    assert read(command(correlation_id="mine"), {"correlation-id": long}).envelope.headers["correlation-id"] == "mine"


def test_external_headers_reach_the_signal_only_through_the_mapping() -> None:
    mapping = {"timeout": "{{ header:wait }}", "Device": "{{ thing:name }}", "none": "{{ header:none }}"}
    found = read(command(), {"wait": "5s", "timeout": "9s", "other": "x"}, header_mapping=mapping)
    assert found.envelope.headers == {"timeout": "5s", "device": "lamp", "correlation-id": "in-0-7"}


@pytest.mark.parametrize(("timeout", "expect"), [("70s", "65s"), ("2h", "65s"), ("65s", "65s"), ("64000ms", "64000ms")])
def test_a_connection_waits_65_seconds_at_most(timeout: str, expect: str) -> None:
    assert read(command(timeout=timeout)).envelope.headers["timeout"] == expect


def test_the_source_s_wishes_come_before_the_defaults() -> None:
    wishes = {"includes": ["{{connection:id}}:stored"], "filter": "fn:filter(header:qos,'ne','0')"}
    asked = read(command(), {"qos": "1"}, acknowledgement_requests=wishes)
    assert asked.request.awaited == ("plant:stored",)
    asked = read(command(), {"qos": "0"}, acknowledgement_requests=wishes)
    assert (asked.request.awaited, asked.request.response_required) == ((), True)


def test_what_takes_no_acknowledgements_is_left_alone() -> None:
    query = command("org.acme/lamp/things/twin/commands/retrieve")
    asked = read(query, acknowledgement_requests={"includes": ["plant:stored"]})
    assert "requested-acks" not in asked.envelope.headers


def test_a_message_that_is_no_protocol_message_is_refused_and_settled() -> None:
    found = read(b"\xff")
    assert isinstance(found, RejectedSignal)
    assert (found.error.status, found.topic, found.rejects) == (400, None, False)


@pytest.mark.parametrize(
    "headers",
    [
        {"timeout": "0", "requested_acks": ["my-ack"]},
        {"timeout": "0", "response_required": True},
        {"timeout": "0", "response_required": False, "requested_acks": ["my-ack"]},
    ],
)
def test_headers_that_contradict_each_other_reject_the_message(headers: dict[str, Any]) -> None:
    found = read(command(**headers))
    assert isinstance(found, RejectedSignal)
    assert (found.error.error, found.rejects) == ("header.invalid", True)
    assert str(found.topic) == COMMAND


@pytest.mark.parametrize(
    ("payload", "settings"),
    [
        (command(correlation_id="x" * 1_025), {}),
        (command(MESSAGE, status=200, correlation_id="x" * 1_025), {}),
        (command(), {"header_mapping": {"correlation-id": "x" * 1_025}}),
        (command(timeout="soon"), {}),
        (command(requested_acks=["a"]), {}),
        (command(), {"header_mapping": {"timeout": "soon"}}),
        (command(requested_acks=["my-ack"]), {"acknowledgement_requests": {"filter": "fn:replace('[','')"}}),
        (command("org.acme/lamp/things/twin/events/modified"), {}),
        (command(status=204), {}),
        (command("org.acme/lamp/things/twin/errors", status=404), {}),
    ],
)
def test_any_other_error_is_published_and_the_message_settled(payload: Any, settings: dict[str, Any]) -> None:
    found = read(payload, **settings)
    assert isinstance(found, RejectedSignal)
    assert (found.error.status, found.rejects) == (400, False)


@pytest.mark.parametrize(
    "topic", [MESSAGE, "org.acme/lamp/things/live/commands/modify", "org.acme/lamp/things/live/errors"]
)
def test_live_responses_are_passed_on(topic: str) -> None:
    assert isinstance(read(command(topic, status=200, correlation_id="x")), Envelope)


ACK = "org.acme/lamp/things/twin/acks/"


def test_declared_acknowledgements_are_passed_on_single_and_aggregated() -> None:
    labels = ["{{connection:id}}:done", "plant:stored"]
    assert isinstance(read(command(f"{ACK}plant:done", 200, correlation_id="x"), declared_acks=labels), Envelope)
    several = command(ACK, 200, correlation_id="x") | {
        "value": {"plant:done": {"status": 200}, "plant:stored": {"status": 204}}
    }
    assert isinstance(read(several, declared_acks=labels), Envelope)
    refused = read(several, declared_acks=labels[:1])
    assert refused.error.error == "acknowledgement:label.not.declared"


def test_an_acknowledgement_without_correlation_id_is_refused() -> None:
    refused = read(command(f"{ACK}plant:done", 200), declared_acks=["plant:done"])
    assert refused.error.error == "acknowledgement:correlation-id.missing"


@each("labels", "conn-ack-")
def test_prose_acknowledgements_that_the_source_does_not_declare(
    given_: dict[str, Any], expect: dict[str, Any]
) -> None:
    label = given_["ack"]["label"] if "ack" in given_ else given_["ack via source"]
    declared = [text.replace("<cid>", "plant") for text in given_["sourceDeclaredAcks"]]
    refused = read(command(ACK + label.replace("<cid>", "plant"), 400, correlation_id="x"), declared_acks=declared)
    wanted = expect.get("error") or expect["publishedAtReplyTarget"]
    assert {name: getattr(refused.error, name) for name in wanted} == wanted
    assert refused.topic.thing_id == "org.acme:lamp"


TEMPLATE = {
    "topic": "org.acme/{{ header:mqtt.topic | fn:substring-after('/') }}/things/twin/commands/modify",
    "path": "/features/{{ header:sensor | fn:default('main') }}/properties/value",
}


@pytest.mark.parametrize(
    ("payload", "value"), [(b"21.5", b"21.5"), (b"warm", b'"warm"'), (b'{"a":1}', b'{"a":1}'), (b"", b'""')]
)
def test_a_template_makes_a_command_of_any_payload(payload: bytes, value: bytes) -> None:
    asked = read(payload, {"mqtt.topic": "devices/lamp-7"}, payload_mapping=[TEMPLATE])
    assert str(asked.envelope.topic) == "org.acme/lamp-7/things/twin/commands/modify"
    assert (asked.envelope.path, bytes(asked.envelope.value)) == ("/features/main/properties/value", value)


def test_a_template_that_cannot_be_filled_in_is_an_error_of_the_message() -> None:
    refused = read(b"1", {}, payload_mapping=[TEMPLATE])
    assert "placeholder" in refused.error.message


def test_a_template_sets_headers_of_its_message_alone() -> None:
    labels = '["plant:{{ header:step }}"]'
    quiet = {"topic": MESSAGE, "headers": {"requested-acks": "[]", "timeout": "5s"}}
    asking = {"topic": COMMAND, "headers": {"Requested-Acks": labels, "device": "{{ header:none }}"}}
    plain = {"topic": COMMAND}
    source = Source(
        addresses=("in",),
        payload_mapping=(quiet, asking, plain),
        header_mapping={"timeout": "7s"},
        acknowledgement_requests={"includes": ["plant:stored"]},
    )
    found = Inbound("plant", source, OPEN).read(ExternalMessage("in-0-7", {"step": "first"}, b"1"))
    headers = [each.envelope.headers for each in found if isinstance(each, InboundRequest)]
    assert [each.get("requested-acks") for each in headers] == [[], ["plant:first", "plant:stored"], ["plant:stored"]]
    assert [each["timeout"] for each in headers] == ["5s", "7s", "7s"]
    assert all("device" not in each for each in headers)


def test_a_header_of_a_template_with_a_wrong_value_is_an_error_of_the_message() -> None:
    found = read(b"1", payload_mapping=[{"topic": COMMAND, "headers": {"requested-acks": "x"}}])
    assert isinstance(found, RejectedSignal)
    assert found.error.error == "header.invalid"


def test_each_payload_mapping_makes_a_signal() -> None:
    source = Source(addresses=("in",), payload_mapping=("ditto", {"topic": MESSAGE, "path": "/inbox/messages/on"}))
    one, two = Inbound("plant", source, OPEN).read(ExternalMessage("in-0-7", {}, json.dumps(command()).encode()))
    assert [type(one), type(two)] == [InboundRequest, InboundRequest]
    assert two.request.awaited == ("live-response",)


@each("header_defaults", "source-acks-", but=("source-acks-test",))
def test_prose_source_settings(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    settings = given_["sourceAcknowledgementRequests"]
    condition = settings["filter"] and Pipeline.parse(settings["filter"])
    context = Context(given_["externalHeaders"])
    labels = requested_acks(given_["signalRequestedAcks"], settings["includes"], condition, context)
    assert labels == expect["requested-acks"]


def test_prose_source_acks_test_aggregation_of_acknowledgements() -> None:
    case = prose("header_defaults")["source-acks-testAggregationOfAcknowledgements"]["given"]
    labels = requested_acks(case["signalRequestedAcks"], ["c:one", "c:two"], None, Context({}))
    assert labels == ["my-custom-ack-3", "c:one", "c:two"]


@each("header_defaults", "source-acks-testFilteringOfAcknowledgements")
def test_prose_source_filter(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    condition = Pipeline.parse(given_["sourceAcknowledgementRequests"]["filter"])
    context = Context(given_["externalHeaders"])
    assert requested_acks(given_["signalRequestedAcks"], [], condition, context) == expect["requested-acks"]


@each("header_defaults", "acksfilter-", but=("acksfilter-invalid", "acksfilter-nonarray", "acksfilter-quote"))
def test_prose_acks_filter(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    condition = given_["filter"] and Pipeline.parse(given_["filter"])
    labels = requested_acks(given_["signalRequestedAcks"], [], condition, Context(given_["externalHeaders"]))
    assert labels == expect["requested-acks"]


@each("header_defaults", "acksfilter-nonarray-result")
def test_prose_acks_filter_whose_result_is_not_an_array(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    error = refusal(requested_acks, None, [], Pipeline.parse(given_["filter"]), Context({})).to_dict()
    assert error.items() >= {key: expect["error"][key] for key in ("status", "error")}.items()


@each("header_defaults", "acksfilter-invalid-signature")
def test_prose_acks_filter_with_a_wrong_signature(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert expect["error"]["error"] == "placeholder:function.signature.invalid"
    # the settings are refused here, before any message
    with pytest.raises(PlaceholderError, match="has 5 parameters"):
        Pipeline.parse(given_["filter"])


@each("labels", "connection-filtered-request-json")
def test_prose_filter_of_the_documentation(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert given_ == expect["json"]
    condition = Pipeline.parse(given_["filter"])
    assert requested_acks(None, given_["includes"], condition, Context({"qos": "0"})) == []
    assert requested_acks(None, given_["includes"], condition, Context({"qos": "1"})) == ["twin-persisted"]


@pytest.mark.parametrize("own", [None, [], ["my-ack"]])
@pytest.mark.parametrize("text", ["no array", '["a"]', "[1]", "{}"])
def test_a_filter_that_gives_no_labels_is_the_requester_s_error(own: list[str] | None, text: str) -> None:
    condition = Pipeline.parse(f"fn:replace('[','[')|fn:replace('[]','')|fn:replace('[\"my-ack\"]','{text}')")
    alone = Pipeline.parse(f"fn:delete()|fn:default('{text}')")
    assert requested_acks(own, [], alone, Context({})) == []
    error = refusal(requested_acks, ["my-ack"], [], condition, Context({}))
    assert (error.status, error.error) == (400, "header.invalid")
