""""""

from __future__ import annotations

import json
from typing import Any

import pytest

from ackstream.connectivity.inbound import Inbound, InboundRequest, RejectedSignal, requested_acks
from ackstream.connectivity.transports.transport import ExternalMessage
from ackstream.protocol.ditto.envelopes import Envelope, decode
from ackstream.protocol.ditto.placeholders import Context, Pipeline, PlaceholderError
from ackstream.protocol.ditto.twin.access import OPEN, Access, Rule
from ackstream.settings.connections import Source
from tests.outcomes import refusal
from tests.prose import each, prose

COMMAND = "org.acme/lamp/things/twin/commands/modify"
MESSAGE = "org.acme/lamp/things/live/messages/on"


def read(
    payload: Any, headers: dict[str, str] | None = None, *, access: Access = OPEN, address: str = "", **settings: Any
) -> Any:
    source = Source(addresses=("in",), **settings)
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    message = ExternalMessage("in-0-7", headers or {}, data, address=address)
    (found,) = Inbound("plant", source, access).read(message)
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


# -- what a message may do ---------------------------------------------------------------------------------------------

INTERNAL = {"ditto-originator": "user:root", "Ditto-Sudo": "true", "ditto-weak-ack": "true", "ditto-connection-id": "x"}


def test_headers_that_only_the_system_sets_are_not_taken_from_a_message() -> None:
    sent = command(device="d-7")
    sent["headers"] |= INTERNAL
    assert read(sent).envelope.headers == {"device": "d-7", "correlation-id": "in-0-7"}


@pytest.mark.parametrize("label", ["", "plant:done"])
def test_nor_are_they_taken_from_acknowledgements(label: str) -> None:
    headers = INTERNAL | {"correlation-id": "x"}
    value: Any = 1 if label else {"plant:done": {"status": 200, "headers": INTERNAL | {"device": "d-7"}}}
    topic = f"org.acme/lamp/things/twin/acks/{label}".rstrip("/")
    sent = {"topic": topic, "headers": headers, "path": "/", "value": value, "status": 200}
    found = read(sent, declared_acks=("plant:done",))
    assert isinstance(found, Envelope)
    assert found.headers == {"correlation-id": "x"}
    if not label:
        assert json.loads(bytes(found.value))["plant:done"]["headers"] == {"device": "d-7"}


def test_the_originator_of_a_signal_is_the_first_subject_of_its_source() -> None:
    rules = Access([Rule(("connection:plant",), grant=("READ", "WRITE"))])
    found = read(command(ditto_originator="user:root"), access=rules, subjects=("connection:plant", "site:a"))
    assert found.envelope.headers["ditto-originator"] == "connection:plant"


VICTIM = "org.bank/vault/things/twin/commands/delete"
OWN = Access(
    [
        Rule(("connection:plant",), ("org.acme:*",), "/attributes", ("READ", "WRITE")),
        Rule(("connection:plant",), ("org.acme:*",), "/inbox/messages/on", ("READ",)),
        Rule(("connection:plant",), ("org.acme:log",), "/", ("READ",)),
    ]
)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (command(), None),
        (command("org.acme/lamp/things/twin/commands/retrieve"), None),
        (command(VICTIM), 404),
        (command("org.bank/vault/things/twin/commands/retrieve"), 404),
        (command() | {"path": "/features"}, 403),
        (command() | {"path": "/"}, 403),
        (command("org.acme/lamp/things/live/commands/modify"), None),
        (command("org.bank/vault/things/live/commands/modify"), 404),
        # READ of the box is not enough to send; and a lying path is none of the subject
        (command(MESSAGE) | {"path": "/inbox/messages/on"}, 403),
        (command("org.acme/lamp/things/live/messages/reboot") | {"path": "/attributes/x"}, 400),
        (command("org.acme/lamp/policies/commands/modify"), 400),
        # the answers to what others were sent
        (
            command("org.acme/lamp/things/live/messages/on", 200, correlation_id="x") | {"path": "/inbox/messages/on"},
            None,
        ),
        # a path that may be read does not stand for a subject that may not
        (
            command("org.acme/lamp/things/live/messages/secret", 200, correlation_id="x")
            | {"path": "/inbox/messages/on"},
            400,
        ),
        (command("org.acme/lamp/things/live/errors", 403, correlation_id="x") | {"path": "/"}, 404),
        (
            command("org.bank/vault/things/live/messages/on", 200, correlation_id="x") | {"path": "/inbox/messages/on"},
            404,
        ),
        (command("org.acme/lamp/things/twin/acks/plant:done", 200, correlation_id="x"), None),
        (command("org.bank/vault/things/twin/acks/plant:done", 200, correlation_id="x"), 404),
    ],
)
def test_a_message_may_do_what_the_subjects_of_its_source_may(sent: dict[str, Any], status: int | None) -> None:
    found = read(sent, access=OWN, subjects=("connection:plant",), declared_acks=("plant:done",))
    if status is None:
        assert not isinstance(found, RejectedSignal)
        return
    assert isinstance(found, RejectedSignal)
    assert (found.error.status, found.rejects) == (status, False)


def test_a_patch_goes_on_as_it_was_compared_with_the_rules() -> None:
    sent = json.dumps(command("org.acme/lamp/things/live/commands/merge") | {"path": "/"})
    twice = sent.replace('"value": 1', '"value": {"features": {"f": 1}, "attributes": {"x": 1}, "features": {}}')
    assert read(twice.encode(), access=OWN, subjects=("connection:plant",)).error.status == 403
    twice = sent.replace('"value": 1', '"value": {"attributes": {"x": 1}, "attributes": {"x": 2}}')
    found = read(twice.encode(), access=OWN, subjects=("connection:plant",))
    assert bytes(found.envelope.value) == b'{"attributes":{"x":2}}'


def test_a_source_without_subjects_may_do_nothing() -> None:
    everyone = Access([Rule(("*",), grant=("READ", "WRITE"))])
    assert read(command(), access=everyone).error.status == 404
    assert isinstance(read(command(), access=everyone, subjects=("anything",)), InboundRequest)


def test_a_query_for_many_things_is_narrowed_to_those_that_may_be_read() -> None:
    many = command("_/_/things/twin/commands/retrieve") | {"path": "/", "value": {"thingIds": ["org.bank:vault"]}}
    found = read(many, access=OWN, subjects=("connection:plant",))
    assert json.loads(bytes(found.envelope.value)) == {"thingIds": []}
    search = many | {"path": "/search/things", "value": {"filter": "eq(attributes/x,1)", "only": "exists(thingId)"}}
    found = read(search, access=OWN, subjects=("connection:plant",))
    narrowed = str(json.loads(bytes(found.envelope.value))["only"])
    assert "org.acme:log" in narrowed
    assert "exists" not in narrowed
    assert read(search | {"value": [1]}, access=OWN, subjects=("connection:plant",)).error.status == 400


def test_a_source_receives_what_its_subjects_may_read_of_a_reply() -> None:
    source = Source(addresses=("in",), subjects=("connection:plant",))
    inbound = Inbound("plant", source, OWN)
    query = command("org.acme/lamp/things/twin/commands/retrieve") | {"path": "/"}
    (asked,) = inbound.read(ExternalMessage("in-0-7", {}, json.dumps(query).encode()))
    assert isinstance(asked, InboundRequest)

    def reply(value: Any) -> Envelope:
        return decode(json.dumps(query | {"status": 200, "value": value, "headers": {"etag": '"rev:1"'}}).encode())

    seen = inbound.readable(asked, reply({"attributes": {"x": 1}, "features": {"vault": {}}}))
    assert (json.loads(bytes(seen.value)), seen.headers) == ({"attributes": {"x": 1}}, {})
    hidden = inbound.readable(asked, reply({"features": {"vault": {}}}))
    assert (hidden.topic.criterion, hidden.status) == ("errors", 404)


# -- enforcement -------------------------------------------------------------------------------------------------------

HEADER = {"input": "{{ header:device_id }}", "filters": ["{{ entity:id }}"]}
TOPIC = {"input": "{{ source:address }}", "filters": ["devices/{{ thing:name }}", "{{ thing:namespace }}/devices"]}


@pytest.mark.parametrize(
    ("enforcement", "headers", "address", "passes"),
    [
        (HEADER, {"device_id": "org.acme:lamp"}, "", True),
        (HEADER, {"device_id": "org.acme:other"}, "", False),
        (HEADER, {}, "", False),
        (TOPIC, {}, "devices/lamp", True),
        (TOPIC, {}, "org.acme/devices", True),
        (TOPIC, {}, "devices/other", False),
        (TOPIC, {}, "", False),
        # what resolves to nothing is equal to nothing
        ({"input": "{{ header:none }}", "filters": ["{{ header:none }}"]}, {}, "", False),
    ],
)
@pytest.mark.parametrize(
    "sent",
    [
        command(),
        command(MESSAGE),
        command("org.acme/lamp/things/live/messages/on", 200, correlation_id="x"),
        command("org.acme/lamp/things/twin/acks/plant:done", 200, correlation_id="x"),
    ],
)
def test_a_message_is_about_the_thing_of_its_sender(
    enforcement: dict[str, Any],
    headers: dict[str, str],
    address: str,
    passes: bool,  # noqa: FBT001 - a table
    sent: dict[str, Any],
) -> None:
    found = read(sent, headers, address=address, enforcement=enforcement, declared_acks=("plant:done",))
    assert isinstance(found, RejectedSignal) is not passes
    if not passes:
        wanted = (400, "connectivity:connection.id.enforcement.failed", False)
        assert (found.error.status, found.error.error, found.rejects) == wanted
        assert "org.acme:lamp" in found.error.message


def test_enforcement_refuses_queries_for_many_things() -> None:
    many = command("_/_/things/twin/commands/retrieve") | {"path": "/", "value": {"thingIds": ["org.acme:lamp"]}}
    assert read(many, {"device_id": "org.acme:lamp"}, enforcement=HEADER).error.error.endswith("enforcement.failed")


# -- templates ---------------------------------------------------------------------------------------------------------

OF_DEVICE = {"topic": "org.acme/{{ header:device }}/things/twin/commands/modify", "path": "/attributes/{{ header:at }}"}
OF_SUBJECT = {
    "topic": "org.acme/lamp/things/live/messages/{{ header:device }}",
    "path": "/inbox/messages/{{ header:device }}",
}


@pytest.mark.parametrize("template", [OF_DEVICE, OF_SUBJECT])
@pytest.mark.parametrize(
    "device",
    [
        "victim/things/twin/commands/delete",
        "victim/things/live/messages/reboot",
        "victim/things/twin/commands/delete/",
        "/victim",
        "",
    ],
)
def test_a_header_cannot_make_another_command_of_a_template(device: str, template: dict[str, str]) -> None:
    found = read(b"1", {"device": device, "at": "x"}, payload_mapping=[template])
    assert isinstance(found, RejectedSignal)
    assert (found.error.status, found.error.error) == (400, "header.invalid")
    assert "not a part of a topic" in found.error.message


def test_a_header_cannot_make_a_query_for_many_things_of_a_template() -> None:
    template = {"topic": "{{ header:ns }}/{{ header:device }}/things/twin/commands/retrieve"}
    assert read(b"1", {"ns": "_", "device": "_"}, payload_mapping=[template]).error.error.endswith("unknown.topicpath")
    assert read(b"1", {"ns": "a", "device": "_"}, payload_mapping=[template]).envelope.topic.thing_id == "a:_"


def test_what_a_header_brings_into_a_path_is_one_key() -> None:
    found = read(b"1", {"device": "lamp", "at": "a/../b~c"}, payload_mapping=[OF_DEVICE])
    assert found.envelope.path == "/attributes/a~1..~1b~0c"


def test_an_empty_text_is_no_key_of_a_path_which_would_be_that_of_all_keys() -> None:
    found = read(b"1", {"device": "lamp", "at": ""}, payload_mapping=[OF_DEVICE])
    assert isinstance(found, RejectedSignal)
    assert "not a key of a path" in found.error.message
