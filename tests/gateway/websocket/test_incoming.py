""""""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from ackstream.gateway.websocket.incoming import Answering, Control, Incoming, read_control, read_incoming, read_token
from ackstream.protocol.ditto.correlation_ids import wire_id
from ackstream.protocol.ditto.envelopes import Envelope, decode, raw
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.ditto.twin.access import OPEN, Access, Rule
from ackstream.protocol.ditto.twin.subscriptions import publication, subscription
from ackstream.protocol.errors import DittoError
from ackstream.settings import Settings
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
    start, stop = read_control(f"START-SEND-{name}"), read_control(f"STOP-SEND-{name}")
    assert start is not None
    assert stop is not None
    assert (start.change(), start.name) == ((stream, subscription(stream)), f"START-SEND-{name}")
    assert (stop.change(), stop.name) == ((stream, None), f"STOP-SEND-{name}")


def test_a_subscription_has_namespaces_a_filter_and_extra_fields():
    text = (
        "START-SEND-EVENTS?namespaces=org.acme,org.other&extraFields=attributes%2Fx,features"
        "&filter=and(gt(attributes/x,1),like(attributes/y,%22a+b%3D*%22))"
    )
    control = read_control(text)
    assert control is not None
    wanted = subscription(
        "events",
        namespaces=["org.acme", "org.other"],
        filter='and(gt(attributes/x,1),like(attributes/y,"a b=*"))',
        extra_fields="attributes/x,features",
    )
    assert control.change() == ("events", wanted)


def test_a_control_message_may_have_a_correlation_id():
    text = "START-SEND-EVENTS?namespaces=&correlation-id=c%201"
    assert read_control(text) == Control("START-SEND-EVENTS", {"namespaces": "", "correlation-id": "c 1"})


def test_announcements_of_policies_are_refused():
    for name in ("START-SEND-POLICY-ANNOUNCEMENTS", "STOP-SEND-POLICY-ANNOUNCEMENTS"):
        control = read_control(f"{name}?correlation-id=mine")
        assert control is not None
        with pytest.raises(DittoError) as caught:
            control.change()
        assert (caught.value.status, caught.value.error) == (501, "gateway:stream.unavailable")


@pytest.mark.parametrize("text", ["", "{}", "START-SEND", "START-SEND-THINGS", "start-send-events"])
def test_anything_else_is_none(text: str):
    assert read_control(text) is None


@pytest.mark.parametrize("name", ["filer", "extrafields"])
def test_a_parameter_that_a_control_message_does_not_have_is_refused(name: str):
    control = read_control(f"START-SEND-EVENTS?{name}=eq(attributes/x,1)")
    assert control is not None
    with pytest.raises(DittoError) as caught:
        control.change()
    assert (caught.value.status, caught.value.error) == (400, "gateway:parameter.invalid")


def test_a_filter_that_cannot_be_read_is_refused():
    control = read_control("START-SEND-EVENTS?filter=eq(")
    assert control is not None
    with pytest.raises(DittoError):
        control.change()


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ("JWT-TOKEN?jwtToken=a.b.c", "a.b.c"),
        ("JWT-TOKEN?x=1&jwtToken=a%2Eb", "a.b"),
        ("JWT-TOKEN", ""),
        ("jwt-token?jwtToken=a", None),
        ('{"topic":"JWT-TOKEN"}', None),
    ],
)
def test_a_token_may_be_renewed(text: str, token: str | None):
    assert read_token(text) == token


COMMAND = "org.acme/lamp/things/twin/commands/modify"
MESSAGE = "org.acme/lamp/things/live/messages/ask"
LIVE_EVENT = "org.acme/lamp/things/live/events/modified"
ACK = "org.acme/lamp/things/twin/acks/my-ack"
SEARCH = "_/_/things/twin/search"
STRATEGY = "live-channel-timeout-strategy"
SMART = {"live-channel-condition": "eq(attributes/online,true)", STRATEGY: "use-twin"}


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
        path = "/inbox/messages/ask" if topic == MESSAGE else "/"
        assert read(topic, path=path, headers=given_["headers"]).response is (status is not None)


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
        (MESSAGE, {"path": "/inbox/messages/ask"}, "message"),
        (f"{MESSAGE}/me", {"path": "/features/f/outbox/messages/ask/me"}, "message"),
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
        ("org.acme/lamp/things/twin/events/modified", "protocoladapter:unknown.topicpath"),
        ("org.acme/lamp/things/twin/messages/ask", "protocoladapter:unknown.topicpath"),
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


@pytest.mark.parametrize(
    "path",
    ["/", "/attributes/mine", "/inbox/messages", "/inbox/messages/other", "/inbox/messages/ask/me", "/x/messages/ask",
     "/features/f/g/inbox/messages/ask", "inbox/messages/ask"],
)  # fmt: skip
def test_a_message_whose_path_is_not_that_of_its_subject_is_refused(path: str):
    assert refused(MESSAGE, path=path)["error"] == "protocoladapter:unknown.path"


@pytest.mark.parametrize("path", ["/search/things", "/search/things/count", "/attributes"])
def test_a_query_of_several_things_has_no_path(path: str):
    error = refused("_/_/things/twin/commands/retrieve", path=path, value={"thingIds": [], "filter": "x"})
    assert (error["status"], error["error"]) == (400, "protocoladapter:unknown.path")


@pytest.mark.parametrize(
    ("topic", "headers", "status"),
    [
        (COMMAND, {"live-channel-condition": "eq(attributes/x,1)"}, 405),
        (COMMAND, {"live-channel-timeout-strategy": "use-twin"}, 400),
        (COMMAND, {"dry-run": True}, 501),
        (COMMAND.replace("modify", "create"), {"condition": "eq(attributes/x,1)"}, 400),
        ("org.acme/lamp/things/live/commands/retrieve", {"live-channel-condition": "eq(attributes/x,1)"}, 400),
        ("org.acme/lamp/things/live/commands/modify", {"if-match": '"rev:3"'}, 400),
        ("org.acme/lamp/things/live/commands/modify", {"if-none-match": "*"}, 400),
        ("org.acme/lamp/things/live/commands/modify", {"if-equal": "skip"}, 400),
        ("org.acme/lamp/things/live/commands/retrieve", {"at-historical-revision": "2"}, 501),
        (COMMAND, {"channel": "live", "put-metadata": []}, 501),
        (MESSAGE, {"get-metadata": "*"}, 501),
        (LIVE_EVENT, {"condition": "eq(attributes/x,1)"}, 400),
        (LIVE_EVENT, {"If-Match": '"rev:3"'}, 400),
        (f"{SEARCH}/subscribe", {"condition": "eq(attributes/x,1)"}, 400),
        (f"{SEARCH}/subscribe", {"declared-acks": ["a-a"]}, 400),
        (f"{SEARCH}/request", {"dry-run": True}, 501),
    ],
)
def test_a_header_that_would_have_no_effect_is_refused(topic: str, headers: dict[str, Any], status: int):
    path = "/inbox/messages/ask" if topic == MESSAGE else "/"
    assert refused(topic, headers=headers, path=path)["status"] == status


@pytest.mark.parametrize(
    ("topic", "fields", "kept"),
    [
        (COMMAND, {}, {"condition", "if-equal"}),
        (COMMAND.replace("modify", "retrieve"), {}, {"condition", "live-channel-condition", STRATEGY}),
        (COMMAND.replace("modify", "create"), {}, set()),
        (COMMAND.replace("modify", "delete"), {}, {"condition"}),
        ("_/_/things/twin/commands/retrieve", {"value": {"thingIds": ["a:b"]}}, set()),
        ("org.acme/lamp/things/live/commands/retrieve", {}, {"condition"}),
        (MESSAGE, {"path": "/inbox/messages/ask"}, {"condition"}),
        (LIVE_EVENT, {}, set()),
    ],
)
def test_a_header_of_the_connection_is_for_those_messages_on_which_it_has_an_effect(
    topic: str, fields: dict[str, Any], kept: set[str]
):
    given = {"condition": "eq(attributes/x,1)", "if-equal": "skip", "timeout": "3s"} | SMART
    found = read(topic, given=given, **fields).envelope.headers
    assert found.keys() == {"correlation-id", "timeout"} | kept


def test_the_channel_of_the_connection_is_for_single_things():
    assert read(given={"channel": "live"}).envelope.headers["channel"] == "live"
    topic, query = "_/_/things/twin/commands/retrieve", {"value": {"thingIds": ["a:b"]}}
    assert "channel" not in read(topic, given={"channel": "live"}, **query).envelope.headers
    assert refused(topic, headers={"channel": "live"}, **query)["status"] == 400


def test_a_strategy_of_the_connection_is_for_queries_with_a_condition_of_their_own():
    given = {STRATEGY: "use-twin"}
    query = COMMAND.replace("modify", "retrieve")
    assert STRATEGY not in read(query, given=given).envelope.headers
    own = {"live-channel-condition": "eq(attributes/x,1)"}
    assert read(query, given=given, headers=own).envelope.headers[STRATEGY] == "use-twin"


def test_a_null_is_the_absence_of_a_header():
    given = {"condition": "eq(attributes/x,1)"}
    assert read(given=given, headers={"Condition": None}).envelope.headers == {"correlation-id": "new"}
    for topic in (COMMAND, LIVE_EVENT, f"{SEARCH}/subscribe"):
        assert read(topic, headers={"correlation-id": None}).envelope.headers["correlation-id"] == "new"


def test_a_device_decides_on_a_trial_itself():
    found = read("org.acme/lamp/things/live/commands/modify", headers={"dry-run": True})
    assert found.envelope.headers["dry-run"] is True


def test_a_live_event_is_passed_on():
    found = read("org.acme/lamp/things/live/events/modified")
    assert (found.what, found.envelope.headers) == ("event", {"correlation-id": "new"})


def test_the_events_of_a_search_have_the_headers_of_the_command_alone():
    topic = "_/_/things/twin/search/subscribe"
    given = {"ditto-originator": "user:ann", "timeout": "3s"}
    headers = {"Correlation-Id": "mine", "requested-acks": ["a-a"], "etag": "1", "x-own": 5}
    found = read(topic, given=given, headers=headers)
    assert found.what == "search"
    assert found.envelope.headers == {"correlation-id": "mine", "x-own": "5", "response-required": False}
    assert read(topic).envelope.headers["correlation-id"] == "new"
    assert refused(topic, headers={"correlation-id": ""})["error"] == "header.invalid"


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


FORGED = {
    "ditto-originator": "user:admin", "WWW-Authenticate": "Basic realm=x", "etag": "x", "entity-revision": 5,
    "ditto-weak-ack": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("topic", "fields"),
    [(ACK, {}), (MESSAGE, {"path": "/inbox/messages/ask"}), ("org.acme/lamp/things/live/errors", {})],
)
def test_an_answer_has_no_headers_that_only_the_system_sets(topic: str, fields: dict[str, Any]):
    sent = {"Correlation-Id": "c", "x-own": "y"}
    found = read(topic, declared=("my-ack",), status=401, headers=sent | FORGED, **fields).envelope
    assert found.headers == {"correlation-id": "c", "x-own": "y"}


def test_no_acknowledgement_of_an_aggregate_has_headers_that_only_the_system_sets():
    value = {"my-ack": {"status": 401, "payload": 1.50, "headers": FORGED | {"x-own": "y"}}, "b-b": {"status": 200}}
    fields: dict[str, Any] = {"status": 424, "headers": {"correlation-id": "c"}, "value": value}
    found = read(ACK.rpartition("/")[0], declared=("my-ack", "b-b"), **fields).envelope
    assert msgspec.json.decode(found.value) == {
        "my-ack": {"status": 401, "payload": 1.5, "headers": {"x-own": "y"}},
        "b-b": {"status": 200},
    }


@pytest.mark.parametrize("label", ["twin-persisted", "live-response", "search-persisted"])
def test_built_in_labels_are_refused_alone_and_in_aggregates(label: str):
    fields = {"status": 200, "headers": {"correlation-id": "c"}}
    topic = "org.acme/lamp/things/twin/acks"
    aggregate = {"value": {"a-a": {"status": 200}, label: {"status": 200}}, **fields}
    for error in (
        refused(f"{topic}/{label}", declared=(label,), **fields),
        refused(topic, declared=("a-a", label), **aggregate),
    ):
        assert (error["status"], error["error"]) == (400, "acknowledgement:ditto.acklabel.forbidden")


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
        assert read(topic, path="/inbox/messages/ask", **fields).what == "answer"
    else:
        assert refused(topic, **fields)["error"] == "protocoladapter:unknown.topicpath"


def test_an_answer_says_what_it_answers():
    path = {"path": "/inbox/messages/ask"}
    assert refused(MESSAGE, status=200, **path)["error"] == "acknowledgement:correlation-id.missing"
    assert msgspec.json.encode(read(MESSAGE, status=200, headers={"Correlation-ID": "c"}, **path).envelope.headers)


@pytest.mark.parametrize("fields", [{}, {"status": 200}], ids=["message", "response"])
@pytest.mark.parametrize("part", ["", "/features/f"])
def test_the_headers_of_a_message_are_those_of_its_topic_and_path(fields: dict[str, Any], part: str):
    forged = {
        "Ditto-Message-Subject": "reboot", "ditto-message-thing-id": "org.bank:safe", "ditto-message-direction": "FROM",
        "ditto-message-feature-id": "other", "ditto-message-else": "x", "correlation-id": "c", "x-own": "y",
    }  # fmt: skip
    found = read(MESSAGE, path=f"{part}/inbox/messages/ask", headers=forged, **fields).envelope.headers
    expected = {
        "Ditto-Message-Subject": "ask", "ditto-message-thing-id": "org.acme:lamp", "ditto-message-direction": "TO",
        "correlation-id": "c", "x-own": "y",
    }  # fmt: skip
    assert found == expected | ({"ditto-message-feature-id": "f"} if part else {})


EVENT = "org.acme/lamp/things/twin/events/modified"
ACKS = "org.acme/lamp/things/twin/acks"
LIVE = "org.acme/lamp/things/live/commands/modify"


@pytest.mark.parametrize(
    ("topic", "timeout", "until"),
    [
        *((topic, *row) for topic in (EVENT, LIVE) for row in (("5s", 65.0), ("1h", 3_660.0), ("48h", 86_460.0))),
        (EVENT, None, 125.0),
        (LIVE, None, 120.0),
    ],
)
def test_the_time_to_answer_is_that_of_the_signal_and_the_memory_of_correlate(
    monkeypatch: pytest.MonkeyPatch, topic: str, timeout: str | None, until: float
):
    clock = [0.0]
    monkeypatch.setattr("ackstream.gateway.websocket.incoming.time.monotonic", lambda: clock[0])
    answering = Answering(OPEN, Settings().correlate)
    headers = {"requested-acks": ["my-ack"]} | ({} if timeout is None else {"timeout": timeout})
    signal = publication(Envelope(TopicPath.parse(topic), headers, "/attributes/x", raw(1)), "c")
    assert signal is not None
    answering.send(signal)
    ack = Envelope(TopicPath.parse(f"{ACKS}/my-ack"), {"correlation-id": "c"}, "/", status=200)
    clock[0] = until - 0.1
    answering.admit(Incoming("answer", ack), ("user:ann",))
    clock[0] = until
    with pytest.raises(DittoError, match="no signal with the correlation-id 'c'"):
        answering.admit(Incoming("answer", ack), ("user:ann",))


def _answer(topic: str, identity: str, path: str = "/attributes/x") -> Incoming:
    envelope = Envelope(TopicPath.parse(topic), {"correlation-id": identity}, path, status=200)
    return Incoming("event" if "/events/" in topic else "answer", envelope)


@pytest.mark.parametrize(
    ("grant", "topic", "error"),
    [
        ("READ", LIVE, "things:thing.notfound"),
        ("WRITE", LIVE, None),
        ("READ", LIVE.replace("commands/modify", "events/modified"), "things:thing.notfound"),
        ("WRITE", LIVE.replace("commands/modify", "events/modified"), None),
        ("WRITE", LIVE.replace("commands/modify", "errors"), "things:thing.notfound"),
        ("READ", f"{ACKS}/my-ack", "acknowledgement:signal.notfound"),
        ("WRITE", f"{ACKS}/my-ack", "things:thing.notfound"),
    ],
)
def test_what_was_not_sent_is_answered_by_the_right_to_write_and_acknowledged_by_none(
    grant: Any, topic: str, error: str | None
):
    answering = Answering(Access([Rule(("user:ann",), path="/attributes", grant=(grant,))]), Settings().correlate)
    path = "/" if topic.endswith("errors") else "/attributes/x"
    for identity in ("c", wire_id("c")):
        incoming = _answer(topic, identity, path)
        if error is None:
            answering.admit(incoming, ("user:ann",))
            assert incoming.envelope.headers["correlation-id"] == identity
        else:
            with pytest.raises(DittoError) as refused:
                answering.admit(incoming, ("user:ann",))
            assert (refused.value.status, refused.value.error) == (404, error)
