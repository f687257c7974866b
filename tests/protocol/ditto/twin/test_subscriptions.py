from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import msgspec
import pytest

from ackstream.protocol.ditto.envelopes import Envelope, raw
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.ditto.twin.subscriptions import (
    DROPPED_BY_CONNECTION,
    FILTERED,
    NOT_SUBSCRIBED,
    Drop,
    Publication,
    SignalDelivery,
    SubscriberState,
    Subscription,
    decide,
    dropped_by_targets,
    forwards_acks,
    publication,
    stream_of,
    subscription,
    weak_acks,
)
from ackstream.protocol.errors import DittoError
from tests.prose import each

EVENT = "org.acme/lamp/things/twin/events/modified"
LIVE_EVENT = "org.acme/lamp/things/live/events/modified"
COMMAND = "org.acme/lamp/things/live/commands/modify"
MESSAGE = "org.acme/lamp/things/live/messages/ask"


def envelope(topic: str, path: str = "/attributes/x", value: Any = 1, **headers: Any) -> Envelope:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Envelope(TopicPath.parse(topic), named, path, raw(value), revision=3)


def published(topic: str = EVENT, path: str = "/attributes/x", value: Any = 1, **headers: Any) -> Publication:
    found = publication(envelope(topic, path, value, **headers), "c-1")
    assert found is not None
    return found


def subscriber(*labels: str, **wanted: Any) -> SubscriberState:
    stream = wanted.pop("stream", "events")
    return SubscriberState(frozenset(labels), {stream: subscription(stream, **wanted)})


# -- what is a signal for subscribers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "stream"),
    [
        (EVENT, "events"),
        (LIVE_EVENT, "live-events"),
        (COMMAND, "live-commands"),
        ("a/b/things/live/commands/retrieve", "live-commands"),
        (MESSAGE, "messages"),
        ("a/b/things/twin/commands/modify", None),
        ("a/b/things/twin/acks/my-ack", None),
        ("a/b/things/live/errors", None),
        ("a/b/policies/commands/modify", None),
    ],
)
def test_each_signal_belongs_to_one_stream_or_to_none(topic: str, stream: str | None):
    assert stream_of(envelope(topic)) == stream


@pytest.mark.parametrize("name", ["channel", "Channel"])
def test_a_command_that_a_header_makes_live_is_one_of_the_live_channel(name: str):
    topic = COMMAND.replace("/live/", "/twin/")
    assert publication(envelope(topic), "c-1") is None
    found = published(topic, **{name: "live"})
    assert (found.stream, str(found.envelope.topic)) == ("live-commands", COMMAND)
    assert publication(envelope(topic, **{name: "twin"}), "c-1") is None


def test_responses_are_no_signals_for_subscribers():
    assert publication(msgspec.structs.replace(envelope(COMMAND), status=204), "c") is None


def test_a_signal_carries_the_correlation_id_of_its_record():
    found = published(EVENT, Correlation_Id="other")
    assert found.correlation_id == "c-1"
    assert list(found.envelope.headers) == ["correlation-id"]


def test_invalid_headers_are_an_error_of_the_sender():
    with pytest.raises(DittoError):
        published(MESSAGE, timeout="never")
    with pytest.raises(DittoError):
        published(EVENT, requested_acks="my-ack,")


_TOPICS = {"twin event": EVENT, "live event": LIVE_EVENT, "live command": COMMAND, "message": MESSAGE}


@each("aggregation", "forwarder-effective", but=("forwarder-effective-policy",))
def test_acks_are_forwarded_where_somebody_can_wait_for_them(given_: dict[str, Any], expect: dict[str, Any]):
    stream = stream_of(envelope(_TOPICS[given_["signal"]]))
    assert stream is not None
    wanted = given_["response-required"]
    assert forwards_acks(stream, given_["requested"], response_required=wanted) is expect["forwarderStarted"]


@each("aggregation", "forwarder-none-requested", "forwarder-started")
def test_an_event_is_forwarded_for_if_it_requests_anything(given_: dict[str, Any], expect: dict[str, Any]):
    topic = EVENT.replace("modified", "deleted")
    found = publication(Envelope(TopicPath.parse(topic), {"requested-acks": given_["requested"]}), "c")
    assert found is not None
    assert found.labels == (("my-ack",) if expect["forwarderStarted"] else ())


def test_of_live_events_no_acknowledgement_is_wanted():
    assert published(LIVE_EVENT, requested_acks=["my-ack"]).labels == ()


def test_a_live_signal_knows_its_timeout_and_whether_a_response_is_wanted():
    found = published(MESSAGE, requested_acks=["my-ack", "my-ack"], timeout="3s", response_required=False)
    assert (found.labels, found.response_required, found.timeout_ms) == (("my-ack",), False, 3000)
    assert published(COMMAND).response_required


# -- who gets it -------------------------------------------------------------------------------------------------------


def test_a_subscriber_sees_only_labels_it_declared():
    found = decide(subscriber("mine", "unused"), published(requested_acks=["twin-persisted", "mine", "other"]))
    assert isinstance(found, SignalDelivery)
    assert found.labels == ("mine",)
    assert found.envelope.headers == {"correlation-id": "c-1", "requested-acks": ["mine"]}


@each("header_defaults", "outgoing-ws-restricted")
def test_labels_of_others_are_taken_away(given_: dict[str, Any], expect: dict[str, Any]):
    found = decide(subscriber(*given_["declaredAcks"]), published(requested_acks=given_["signalRequestedAcks"]))
    assert isinstance(found, SignalDelivery)
    assert found.envelope.headers["requested-acks"] == expect["delivered requested-acks"]


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ({"requested_acks": ["twin-persisted", "other"]}, {}),
        ({"requested_acks": []}, {"requested-acks": []}),
        ({}, {}),
    ],
)
def test_nothing_left_to_acknowledge_means_no_header_but_an_explicit_empty_list_stays(
    asked: dict[str, Any], shown: dict[str, Any]
):
    found = decide(subscriber("mine"), published(**asked))
    assert isinstance(found, SignalDelivery)
    assert found.envelope.headers == {"correlation-id": "c-1"} | shown


def test_labels_of_others_are_taken_away_however_the_header_is_written():
    signal = published(MESSAGE, **{"Requested-Acks": ["a:x", "b:y", "live-response"]})
    found = decide(subscriber("a:x", stream="messages"), signal)
    assert isinstance(found, SignalDelivery)
    shown = {name: value for name, value in found.envelope.headers.items() if name.lower() == "requested-acks"}
    assert shown == {"requested-acks": ["a:x"]}


def test_internal_headers_are_not_shown():
    found = decide(subscriber(), published(**{"ditto-origin": "ws-1", "ditto-read-subjects": ["a"], "x-own": "y"}))
    assert isinstance(found, SignalDelivery)
    assert found.envelope.headers == {"correlation-id": "c-1", "x-own": "y"}


@pytest.mark.parametrize(
    ("who", "visible"),
    [
        (subscriber("mine", stream="messages"), True),
        (subscriber("mine", namespaces=["org.other"]), True),
        (subscriber("mine"), False),
        (SubscriberState(frozenset({"mine"})), True),
    ],
    ids=["another stream", "another namespace", "not authorized", "no subscription"],
)
def test_weak_acks_of_who_is_not_subscribed_or_not_authorized(who: SubscriberState, visible: bool):  # noqa: FBT001 - a column
    found = decide(who, published(requested_acks=["mine", "other"]), visible=visible)
    assert found == Drop(("mine",), NOT_SUBSCRIBED)


@each("aggregation", "weak-pubsub")
def test_weak_acks_are_for_declared_labels_only(given_: dict[str, Any], expect: dict[str, Any]):
    declarer = SubscriberState(frozenset(given_["declaredInCluster"]))
    found = decide(declarer, published(requested_acks=given_["requested"]))
    assert isinstance(found, Drop)
    assert list(found.labels) == expect["weakAcks"]
    assert [label for label in given_["requested"] if label not in found.labels] == expect["stillMissing"]


@pytest.mark.parametrize(
    ("wanted", "signal", "passes"),
    [
        ("eq(attributes/x,1)", published(), True),
        ("eq(attributes/x,2)", published(), False),
        ("exists(attributes/y)", published(), False),
        ("ge(_revision,3)", published(), True),
        ('eq(thingId,"org.acme:lamp")', published(), True),
        ('eq(topic:action,"modified")', published(), True),
        ('like(resource:path,"/features/*")', published(), False),
        ('eq(topic:subject,"ask")', published(MESSAGE), True),
        ('eq(thing:id,"org.acme:lamp")', published(COMMAND), True),
        ("exists(attributes/x)", published(COMMAND), False),
        ("exists(attributes/x)", published(LIVE_EVENT), True),
    ],
)
def test_filters_see_the_partial_thing_of_events_and_the_signal_itself(
    wanted: str,
    signal: Publication,
    passes: bool,  # noqa: FBT001 - a column
):
    found = decide(subscriber("mine", stream=signal.stream, filter=wanted), signal)
    assert isinstance(found, SignalDelivery) is passes


def test_weak_acks_of_who_filters_the_signal_out():
    signal = published(requested_acks=["mine", "other"])
    found = decide(subscriber("mine", filter="eq(attributes/x,2)"), signal)
    assert found == Drop(("mine",), FILTERED)
    (ack,) = weak_acks(signal, found)
    assert (ack.label, ack.status, ack.weak) == ("mine", 200, True)
    assert ack.headers["correlation-id"] == "c-1"
    assert "requested-acks" not in ack.headers


@each("rql", "weak-websocket")
def test_who_gets_nothing_of_a_signal_answers_weakly_for_all_its_labels(given_: dict[str, Any], expect: dict[str, Any]):
    labels = given_.get("declaredAcks", ["my-ack", "our-ack"])
    who = subscriber(*labels, filter="eq(attributes/x,2)" if "filter" in given_ else None)
    found = decide(who, published(requested_acks=labels), visible="filter" in given_)
    assert isinstance(found, Drop)
    assert expect["delivered"] is None
    assert list(found.labels) == (labels if isinstance(expect["weakAcks"], str) else expect["weakAcks"])


def test_a_drop_without_labels_makes_no_weak_acks():
    assert weak_acks(published(), Drop((), FILTERED)) == []


def test_extra_fields_count_for_the_filter_under_what_the_event_tells_and_are_delivered():
    wanted = subscriber(filter='and(eq(attributes/x,1),eq(attributes/room,"hall"))', extra_fields="attributes")
    found = decide(wanted, published(), extra={"attributes": {"x": 0, "room": "hall"}})
    assert isinstance(found, SignalDelivery)
    assert msgspec.json.decode(found.envelope.extra) == {"attributes": {"x": 0, "room": "hall"}}
    assert isinstance(decide(wanted, published()), Drop)


def test_extra_fields_are_all_that_a_filter_knows_of_the_thing_of_a_message():
    wanted = subscriber(stream="messages", filter="gt(attributes/x,1)", extra_fields="attributes/x")
    assert isinstance(decide(wanted, published(MESSAGE), extra={"attributes": {"x": 2}}), SignalDelivery)
    assert isinstance(decide(wanted, published(MESSAGE), extra={"attributes": {"x": 1}}), Drop)


def test_filters_may_compare_with_the_time():
    wanted = subscriber(filter="lt(_modified,time:now)")
    signal = publication(msgspec.structs.replace(envelope(EVENT), timestamp="2026-01-01T00:00:00Z"), "c")
    assert signal is not None
    assert isinstance(decide(wanted, signal, time=datetime(2026, 1, 2, tzinfo=timezone.utc)), SignalDelivery)
    assert isinstance(decide(wanted, signal, time=datetime(2025, 1, 2, tzinfo=timezone.utc)), Drop)


@pytest.mark.parametrize("wrong", ["eq(attributes/x", "eq(nothing,1)", "like(attributes/x,1)"])
def test_a_filter_that_cannot_be_evaluated_is_refused_at_once(wrong: str):
    with pytest.raises(DittoError, match=r"\w"):
        subscription("events", filter=wrong)


def test_an_empty_filter_is_none():
    assert subscription("events", filter="", extra_fields="") == Subscription("events")


def test_extra_fields_that_cannot_be_read_are_refused():
    with pytest.raises(DittoError) as caught:
        subscription("events", extra_fields="attributes(")
    assert caught.value.error == "json.fieldselector.invalid"


# -- weak acknowledgements ---------------------------------------------------------------------------------------------

_TEXTS = {"pubsub": NOT_SUBSCRIBED, "connectivity": DROPPED_BY_CONNECTION, "websocket": FILTERED}


@each("aggregation", "weak-payload")
def test_weak_acks_have_the_text_of_their_issuer(given_: dict[str, Any], expect: dict[str, Any]):
    (ack,) = weak_acks(published(), Drop(("my-ack",), _TEXTS[given_["issuer"]]))
    assert ack.status == expect["ack"]["status"]
    assert msgspec.json.decode(ack.payload) == expect["ack"]["payload"]
    assert ack.headers == expect["ack"]["headers"] | {"correlation-id": "c-1", "response-required": False}


@each("aggregation", "weak-all-targets", "weak-some-target", "weak-dropped-by-mapper", "weak-never-live", "weak-enrich")
def test_a_connection_answers_weakly_for_targets_that_dropped_the_signal(
    given_: dict[str, Any], expect: dict[str, Any]
):
    issued = {label.removesuffix(" (target4)") for label in given_["connection"]["targetIssued"]}
    # a target whose enrichment failed answers itself, with a failed acknowledgement
    targets = [
        ("live-response" if "live-response" in text else text.split()[0], "drop" not in text and "filter" not in text)
        for text in given_["authorizedTargets"]
    ]
    found = dropped_by_targets(given_["requested"], given_["connection"]["sourceDeclared"], issued, targets)
    assert list(found) == expect["weakAcks"]
