""""""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from ackstream.gateway.incoming import Control, Incoming, read_control, read_incoming
from ackstream.protocol.ditto.envelopes import decode
from ackstream.protocol.ditto.subscriptions import subscription
from ackstream.protocol.errors import DittoError
from tests.prose import each


@pytest.mark.parametrize(
    ("name", "stream"),
    [
        ("EVENTS", "events"),
        ("MESSAGES", "messages"),
        ("LIVE-COMMANDS", "live-commands"),
        ("LIVE-EVENTS", "live-events"),
    ],
)
def test_each_stream_is_started_and_stopped_with_a_confirmation(name: str, stream: str):
    assert read_control(f"START-SEND-{name}") == Control(stream, subscription(stream), f"START-SEND-{name}:ACK")
    assert read_control(f"STOP-SEND-{name}") == Control(stream, None, f"STOP-SEND-{name}:ACK")


def test_a_subscription_has_namespaces_a_filter_and_extra_fields():
    text = (
        "START-SEND-EVENTS?namespaces=org.acme,org.other&extraFields=attributes%2Fx,features"
        "&filter=and(gt(attributes/x,1),like(attributes/y,%22a+b%3D*%22))"
    )
    assert read_control(text) == Control(
        "events",
        subscription(
            "events",
            namespaces=["org.acme", "org.other"],
            filter='and(gt(attributes/x,1),like(attributes/y,"a b=*"))',
            extra_fields="attributes/x,features",
        ),
        "START-SEND-EVENTS:ACK",
    )


@pytest.mark.parametrize("text", ["", "{}", "START-SEND", "START-SEND-POLICY-ANNOUNCEMENTS", "start-send-events"])
def test_anything_else_is_none(text: str):
    assert read_control(text) is None


def test_a_filter_that_cannot_be_read_is_refused():
    with pytest.raises(DittoError):
        read_control("START-SEND-EVENTS?filter=eq(")


COMMAND = "org.acme/lamp/things/twin/commands/modify"
MESSAGE = "org.acme/lamp/things/live/messages/ask"
LIVE_EVENT = "org.acme/lamp/things/live/events/modified"
ACK = "org.acme/lamp/things/twin/acks/my-ack"


def read(
    topic: str = COMMAND, given: dict[str, Any] | None = None, declared: tuple[str, ...] = (), **fields: Any
) -> Incoming:
    message = {"topic": topic, "path": "/", "headers": {}, **fields}
    return read_incoming(decode(json.dumps(message).encode()), given or {}, frozenset(declared), "new")


def refused(*arguments: Any, **fields: Any) -> dict[str, Any]:
    with pytest.raises(DittoError) as caught:
        read(*arguments, **fields)
    return caught.value.to_dict()


# -- requests ----------------------------------------------------------------------------------------------------------

_SIGNALS = {"twin": COMMAND, "live": COMMAND.replace("twin", "live"), "message": MESSAGE}


@each("header_defaults", "interaction-WebSocket")
def test_headers_have_the_effect_they_have_in_ditto(given_: dict[str, Any], expect: dict[str, Any]):
    status = expect["publishedStatus"]
    topic = _SIGNALS[given_["signal"]]
    if status == 400:
        assert refused(topic, headers=given_["headers"])["error"] == "header.invalid"
    else:
        assert read(topic, headers=given_["headers"]).response is (status is not None)


def test_headers_of_the_connection_lie_under_those_of_the_message():
    given = {"timeout": "3s", "declared-acks": ["a-a"], "correlation-id": "connection", "x-own": "y"}
    assert read(given=given).envelope.headers == {"timeout": "3s", "correlation-id": "new"}
    found = read(given=given, headers={"timeout": "4s", "Correlation-Id": "mine"}).envelope
    assert found.headers == {"timeout": "4s", "correlation-id": "mine"}


def test_headers_that_only_the_system_sets_are_not_taken():
    given = {"ditto-originator": "user:ann"}
    forged = {"ditto-originator": "user:bob", "ditto-read-subjects": ["x"], "ETag": "1", "x-own": "y"}
    found = read(given=given, headers=forged).envelope
    assert found.headers == {"ditto-originator": "user:ann", "correlation-id": "new", "x-own": "y"}


@pytest.mark.parametrize(
    ("written", "sent"), [("65s", "65s"), ("2m", "65s"), ("66000ms", "65s"), ("64999ms", "64999ms"), ("1mo", "65s")]
)
def test_a_timeout_above_the_maximum_is_cut(written: str, sent: str):
    assert read(headers={"timeout": written}).envelope.headers["timeout"] == sent


@pytest.mark.parametrize(
    ("topic", "fields", "kind"),
    [
        (COMMAND, {}, "modify"),
        (COMMAND.replace("modify", "merge"), {}, "merge"),
        (COMMAND.replace("modify", "migrate"), {}, "modify"),
        (COMMAND.replace("modify", "retrieve"), {}, "retrieve"),
        (MESSAGE, {}, "message"),
        ("_/_/things/twin/commands/retrieve", {"value": {"thingIds": ["a:b"]}}, "many"),
    ],
)
def test_a_request_says_what_access_it_needs(topic: str, fields: dict[str, Any], kind: str):
    found = read(topic, **fields)
    assert (found.what, found.kind) == ("request", kind)


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        ("org.acme/lamp/policies/commands/modify", "protocoladapter:unknown.topicpath"),
        ("_/_/things/twin/search/subscribe", "protocoladapter:unknown.topicpath"),
        ("org.acme/lamp/things/twin/events/modified", "protocoladapter:unknown.topicpath"),
        ("_/_/things/twin/commands/retrieve", "json.field.missing"),
        ("nothing", "protocoladapter:unknown.topicpath"),
    ],
)
def test_what_is_no_request_of_a_thing_is_refused(topic: str, error: str):
    assert refused(topic)["error"] == error


@pytest.mark.parametrize(
    ("topic", "fields"), [(COMMAND, {}), (LIVE_EVENT, {}), (MESSAGE, {"status": 200}), (ACK, {"status": 200})]
)
def test_a_correlation_id_that_the_service_would_refuse_is_refused(topic: str, fields: dict[str, Any]):
    error = refused(topic, None, ("my-ack",), headers={"correlation-id": "x" * 1_025}, **fields)
    assert (error["status"], error["error"]) == (400, "header.invalid")
    assert "1,024 bytes" in error["message"]


def test_a_live_event_is_passed_on():
    found = read("org.acme/lamp/things/live/events/modified")
    assert (found.what, found.envelope.headers) == ("event", {"correlation-id": "new"})


# -- answers -----------------------------------------------------------------------------------------------------------


@each("labels", "ws-declared-ack", "ws-ack-")
def test_acknowledgements_of_declared_labels_are_forwarded(given_: dict[str, Any], expect: dict[str, Any]):
    ack = given_["ack"]
    topic = f"org.acme/lamp/things/twin/acks/{ack['label']}"
    fields = {"headers": ack["headers"], "status": ack["status"]}
    if expect.get("forwarded"):
        assert read(topic, declared=tuple(given_["declaredAcks"]), **fields).what == "answer"
    else:
        error = refused(topic, declared=tuple(given_["declaredAcks"]), **fields)
        assert expect["error"].items() <= error.items()


def test_the_labels_of_an_aggregate_have_to_be_declared_too():
    topic = "org.acme/lamp/things/twin/acks"
    value = {"a-a": {"status": 200}, "b-b": {"status": 200}}
    fields = {"value": value, "status": 200, "headers": {"correlation-id": "c"}}
    assert read(topic, declared=("a-a", "b-b"), **fields).what == "answer"
    assert refused(topic, declared=("a-a",), **fields)["error"] == "acknowledgement:label.not.declared"


@pytest.mark.parametrize(
    ("topic", "status", "accepted"),
    [
        (MESSAGE, 200, True),
        ("org.acme/lamp/things/live/commands/modify", 204, True),
        ("org.acme/lamp/things/live/errors", 404, True),
        ("org.acme/lamp/things/live/errors", None, False),
        (COMMAND, 204, False),
        ("org.acme/lamp/things/twin/errors", 404, False),
    ],
)
def test_devices_answer_on_the_live_channel_and_the_twin_alone_for_the_twin(
    topic: str,
    status: int | None,
    accepted: bool,  # noqa: FBT001 - a column
):
    fields = {"headers": {"correlation-id": "c"}} | ({} if status is None else {"status": status})
    if accepted:
        assert read(topic, **fields).what == "answer"
    else:
        assert refused(topic, **fields)["error"] == "protocoladapter:unknown.topicpath"


def test_an_answer_says_what_it_answers():
    assert refused(MESSAGE, status=200)["error"] == "acknowledgement:correlation-id.missing"
    assert msgspec.json.encode(read(MESSAGE, status=200, headers={"Correlation-ID": "c"}).envelope.headers)
