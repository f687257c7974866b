from __future__ import annotations

import json
from typing import Any

import pytest

from ackstream.connectivity.outbound import Outbound, answers_of, issued
from ackstream.connectivity.transport import Published
from ackstream.protocol.ditto.access import OPEN, Access, Rule
from ackstream.protocol.ditto.acknowledgements import Acknowledgement, read_issued, response_to_ack
from ackstream.protocol.ditto.envelopes import decode
from ackstream.protocol.ditto.requests import read_request, response_matches
from ackstream.protocol.ditto.subscriptions import Publication, publication, weak_acks
from ackstream.protocol.errors import DittoError
from ackstream.settings.connections import KafkaConnection
from tests.prose import covers, each

EVENTS, MESSAGES = "_/_/things/twin/events", "_/_/things/live/messages"


def outbound(*targets: dict[str, Any], declared: tuple[str, ...] = ()) -> Outbound:
    sources = [{"addresses": ["in"], "declared_acks": declared}]
    return Outbound(KafkaConnection(id="c", type="kafka", sources=sources, targets=targets), OPEN)


def target(*topics: str, address: str = "out", **parts: Any) -> dict[str, Any]:
    return {"address": address, "topics": topics, **parts}


def signal(topic: str, value: Any = 1, **headers: Any) -> Publication:
    message = {"topic": topic, "headers": headers, "path": "/attributes/x", "value": value}
    if value is None:
        del message["value"]
    found = publication(decode(json.dumps(message).encode()), "mine")
    assert found is not None
    return found


def event(*labels: str, value: Any = 1) -> Publication:
    return signal("org.acme/lamp/things/twin/events/modified", value, **{"requested-acks": labels})


def message(*labels: str, **headers: Any) -> Publication:
    return signal("org.acme/lamp/things/live/messages/on", **{"requested-acks": labels}, **headers)


def test_each_target_gets_what_it_wants() -> None:
    plan = outbound(
        target(EVENTS, address="events"),
        target(f"{EVENTS}?namespaces=org.other,org.else", address="others"),
        target(f"{EVENTS}?filter=gt(attributes/x,5)", address="large"),
        target(MESSAGES, EVENTS, address="both/{{ thing:name }}"),
        target(MESSAGES, address="messages"),
    ).plan(event())
    assert [publishing.message.address for publishing in plan.publishings] == ["events", "both/lamp"]


@covers("header_defaults", "outgoing-conn-notdeclared-removed", "outgoing-event-target-issued-removed")
def test_only_labels_of_the_connection_are_shown_and_never_the_target_s_own() -> None:
    plan = outbound(target(EVENTS, issued_ack="c:one"), target(EVENTS, issued_ack="c:two"), declared=("c:three",)).plan(
        event("c:one", "c:two", "c:three", "other", "twin-persisted")
    )
    shown = [decode(publishing.message.payload).headers["requested-acks"] for publishing in plan.publishings]
    assert shown == [["c:two", "c:three"], ["c:one", "c:three"]]
    assert [publishing.label for publishing in plan.publishings] == ["c:one", "c:two"]


@pytest.mark.parametrize(
    ("given_", "label"),
    [
        (message("live-response"), "live-response"),
        (message("live-response", **{"response-required": False}), None),
        (message(), "live-response"),
        (event("live-response"), None),
    ],
)
def test_a_target_responds_to_live_messages_that_want_a_response(given_: Publication, label: str | None) -> None:
    plan = outbound(target(EVENTS, MESSAGES, issued_ack="live-response")).plan(given_)
    assert [publishing.label for publishing in plan.publishings] == [label]


def test_an_issued_label_that_is_not_asked_for_is_not_issued() -> None:
    plan = outbound(target(EVENTS, issued_ack="c:one")).plan(event("c:two"))
    assert [publishing.label for publishing in plan.publishings] == [None]


DROPS = f"{EVENTS}?filter=eq(attributes/x,0)"


@pytest.mark.parametrize(
    ("targets", "weak"),
    [
        # all drop it: all labels of the connection
        ([target(DROPS, issued_ack="c:one"), target(MESSAGES, issued_ack="c:two")], ("c:one", "c:two", "c:three")),
        ([target(MESSAGES, issued_ack="c:one")], ("c:one", "c:three")),
        # one publishes it: those of targets that dropped it
        ([target(EVENTS, issued_ack="c:one"), target(DROPS, issued_ack="c:two")], ("c:two",)),
        ([target(EVENTS), target(MESSAGES, issued_ack="c:two")], ()),
    ],
)
@covers("rql", "weak-connection-target", "weak-connection-all")
def test_labels_of_targets_that_drop_a_signal_are_acknowledged_weakly(
    targets: list[dict[str, Any]], weak: tuple[str, ...]
) -> None:
    plan = outbound(*targets, declared=("c:three",)).plan(event("c:one", "c:two", "c:three", "other"))
    assert plan.weak.labels == weak
    assert [ack.label for ack in weak_acks(event(), plan.weak)] == list(weak)


def test_without_its_labels_a_connection_publishes_and_acknowledges_nothing_but_live_responses() -> None:
    targets = [target(EVENTS, issued_ack="c:one"), target(DROPS, issued_ack="c:two")]
    connection = outbound(*targets, target(MESSAGES, issued_ack="live-response"), declared=("c:three",))
    plan = connection.plan(event("c:one", "c:two", "c:three"), held=False)
    assert [publishing.label for publishing in plan.publishings] == [None]
    assert decode(plan.publishings[0].message.payload).headers.get("requested-acks", []) == []
    assert (plan.weak.labels, plan.failed) == ((), [])
    answered = connection.plan(message("live-response"), held=False)
    assert [publishing.label for publishing in answered.publishings] == ["live-response"]


def test_headers_of_the_transport_are_those_of_the_acknowledgement_unless_the_signal_has_them() -> None:
    result = Published(200, headers={"server": "x", "correlation-id": "theirs"})
    assert issued("c:one", result, {"correlation-id": "mine"}).headers == {
        "server": "x",
        "correlation-id": "mine",
        "response-required": False,
    }
    wrong = Published(200, headers={"timeout": "soon"})
    assert "timeout" not in issued("c:one", wrong, {"correlation-id": "mine"}).headers


def test_a_signal_without_value_is_dropped_where_only_values_go_out() -> None:
    plan = outbound(target(EVENTS), target(EVENTS, payload="value", issued_ack="c:one")).plan(
        event("c:one", value=None)
    )
    assert len(plan.publishings) == 1
    assert plan.weak.labels == ("c:one",)


def test_a_value_goes_out_as_json() -> None:
    (publishing,) = outbound(target(EVENTS, payload="value")).plan(event(value={"a": 1})).publishings
    assert publishing.message.payload == b'{"a": 1}'
    assert publishing.message.headers["content-type"] == "application/json"


def test_a_target_whose_address_comes_to_nothing_publishes_nothing_and_acknowledges_nothing() -> None:
    plan = outbound(target(EVENTS, address="out/{{ header:none }}", issued_ack="c:one")).plan(event("c:one"))
    assert (plan.publishings, plan.weak.labels) == ([], ())


ENRICHED = f"{EVENTS}?extraFields=attributes/y&filter=eq(attributes/y,5)"


@pytest.mark.parametrize(("y", "published"), [(5, 1), (6, 0)])
def test_extra_fields_are_put_under_a_signal_and_filtered(y: int, published: int) -> None:
    asked: list[Any] = []

    def extra(thing_id: str, fields: str) -> dict[str, Any]:
        asked.append((thing_id, fields))
        return {"attributes": {"y": y}}

    plan = outbound(target(ENRICHED), target(MESSAGES)).plan(event(), None, extra)
    assert asked == [("org.acme:lamp", "attributes/y")]
    assert len(plan.publishings) == published
    for publishing in plan.publishings:
        assert json.loads(publishing.message.payload)["extra"] == {"attributes": {"y": 5}}


@each("aggregation", "weak-enrichment-failure")
def test_prose_a_failed_enrichment_is_a_failed_acknowledgement(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert given_["authorizedTargets"] == ["target1", "target2 (enrichment times out)"]

    def extra(_thing_id: str, _fields: str) -> dict[str, Any]:
        raise DittoError(503, "connectivity:signal.enrichment.failed", "Signal enrichment failed.")

    targets = [target(EVENTS, issued_ack="c:target1"), target(ENRICHED, issued_ack="c:target2")]
    requested = [f"c:{label}" for label in given_["requested"]]
    plan = outbound(*targets, declared=("c:source1",)).plan(event(*requested), None, extra)
    assert [ack.label.removeprefix("c:") for ack in plan.failed] == expect["failedAcks"]
    assert [ack.status for ack in plan.failed] == [503]
    assert list(plan.weak.labels) == expect["weakAcks"]
    assert [publishing.label for publishing in plan.publishings] == ["c:target1"]


@pytest.mark.parametrize(
    ("connection", "streams"),
    [
        (outbound(target(EVENTS)), {"events"}),
        (outbound(target(MESSAGES, EVENTS)), {"events", "messages"}),
        (outbound(target(EVENTS, issued_ack="live-response")), {"events"}),
        (outbound(declared=("c:one",)), {"events", "live-commands", "messages"}),
        (outbound(target(EVENTS, issued_ack="c:one")), {"events", "live-commands", "messages"}),
    ],
)
def test_whoever_holds_labels_looks_at_everything_that_may_ask_for_them(
    connection: Outbound, streams: set[str]
) -> None:
    assert connection.streams == streams


@pytest.mark.parametrize(("given_", "channel"), [(event("c:one"), "twin"), (message("c:one"), "live")])
def test_acknowledgements_are_written_as_an_aggregate_that_correlate_reads(given_: Publication, channel: str) -> None:
    (answer,) = answers_of(given_, [Acknowledgement("c:one", 204), Acknowledgement("c:two", 200)])
    assert [ack.label for ack in read_issued(answer)] == ["c:one", "c:two"]
    assert answer.topic.channel == channel
    assert answer.headers["correlation-id"] == "mine"


def test_a_live_response_of_a_target_is_a_response_that_correlate_reads() -> None:
    given_ = message("c:one")
    headers = {"correlation-id": "mine", "response-required": False}
    issued = [Acknowledgement("live-response", 204, headers=headers), Acknowledgement("c:one", 200, headers=headers)]
    response, aggregate = answers_of(given_, issued)
    assert [ack.label for ack in read_issued(aggregate)] == ["c:one"]
    request = read_request(given_.envelope)
    assert response_matches(request, response) is None
    ack = response_to_ack(request, response)
    assert (ack.label, ack.status, ack.headers["correlation-id"]) == ("live-response", 204, "mine")


def test_texts_of_placeholders_are_quoted_in_addresses_as_the_transport_does() -> None:
    connection = KafkaConnection(
        id="c",
        type="kafka",
        targets=[target(EVENTS, address="a/{{ thing:id }}", header_mapping={"x": "{{ thing:id }}"})],
    )
    (publishing,) = Outbound(connection, OPEN, lambda text: text.replace(":", "%3A")).plan(event()).publishings
    assert (publishing.message.address, publishing.message.headers["x"]) == ("a/org.acme%3Alamp", "org.acme:lamp")


# -- what a target may receive -----------------------------------------------------------------------------------------

RULES = Access(
    [
        Rule(("target:some",), ("org.acme:*",), "/attributes/x/seen"),
        Rule(("target:box",), ("org.acme:*",), "/inbox/messages/on"),
        Rule(("target:all",)),
    ]
)


def seen(subject: str, given_: Publication, extra: Any = None, **parts: Any) -> list[Any]:
    subjects = (subject,) if subject else ()
    made = KafkaConnection(id="c", type="kafka", targets=[target(EVENTS, MESSAGES, subjects=subjects, **parts)])
    plan = Outbound(made, RULES).plan(given_, extra=extra)
    return [decode(publishing.message.payload) for publishing in plan.publishings]


@pytest.mark.parametrize(
    ("subject", "value"),
    [("target:all", {"seen": 1, "hidden": 2}), ("target:some", {"seen": 1}), ("target:box", None), ("", None)],
)
def test_a_target_receives_what_its_subjects_may_read(subject: str, value: Any) -> None:
    found = seen(subject, event(value={"seen": 1, "hidden": 2}))
    assert [json.loads(bytes(each.value)) for each in found] == ([] if value is None else [value])


def test_a_message_is_received_by_those_who_may_read_its_box_whatever_path_it_gives() -> None:
    headers: dict[str, Any] = {"topic": "org.acme/lamp/things/live/messages/on", "headers": {}, "value": 1}
    honest, lying = (
        publication(decode(json.dumps(headers | {"topic": topic, "path": "/inbox/messages/on"}).encode()), "c")
        for topic in (headers["topic"], "org.acme/lamp/things/live/messages/secret")
    )
    assert honest is not None
    assert lying is not None
    assert len(seen("target:box", honest)) == 1
    assert seen("target:box", lying) == []
    assert len(seen("target:all", lying)) == 1


def test_a_filter_and_extra_fields_of_a_target_see_no_more_than_it_may_read() -> None:
    def thing(_thing_id: str, _selector: str) -> dict[str, Any]:
        return {"attributes": {"x": {"seen": 3, "hidden": 4}}, "features": {"vault": {}}}

    given_ = event(value={"seen": 1, "hidden": 2})
    filtered = f"{EVENTS}?filter=eq(attributes/x/hidden,2)"
    connection = KafkaConnection(id="c", type="kafka", targets=[target(filtered, subjects=("target:some",))])
    assert Outbound(connection, RULES).plan(given_).publishings == []
    topic = f"{EVENTS}?extraFields=attributes,features"
    connection = KafkaConnection(id="c", type="kafka", targets=[target(topic, subjects=("target:some",))])
    (publishing,) = Outbound(connection, RULES).plan(given_, extra=thing).publishings
    assert json.loads(bytes(decode(publishing.message.payload).extra)) == {"attributes": {"x": {"seen": 3}}}  # type: ignore[arg-type]


def test_a_signal_that_a_target_may_not_read_is_acknowledged_weakly() -> None:
    connection = KafkaConnection(id="c", type="kafka", targets=[target(EVENTS, issued_ack="c:one", subjects=("x",))])
    plan = Outbound(connection, RULES).plan(event("c:one"))
    assert (plan.publishings, plan.weak.labels) == ([], ("c:one",))
