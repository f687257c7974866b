"""The sample bodies of Ditto's document, from the parts that make them: twin, subscriber, correlate, gateway."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ackstream.client.parties.answers import Ack
from ackstream.client.parties.signals import Signal, messages, read_publication
from ackstream.client.requests.replies import read_reply
from ackstream.gateway.http.responses import of_reply
from ackstream.jobs.correlate.state import ACKS, TWIN_ACKS
from ackstream.jobs.twin.batch import fold
from ackstream.jobs.twin.records import SignalRecord
from ackstream.protocol.ditto.acknowledgements import write_ack
from ackstream.protocol.ditto.envelopes import decode, encode
from ackstream.protocol.ditto.twin.subscriptions import (
    Drop,
    SignalDelivery,
    SubscriberState,
    decide,
    subscription,
    weak_acks,
)
from ackstream.settings import Settings
from tests.jobs.correlate.shards import Log, Run

ID = "db878735-4957-4fd9-92dc-6f09bb12a093"
LABEL = "my-custom-ack"
PERSISTED = {
    "status": 201,
    "payload": {"thingId": "org.eclipse.ditto:thing-1", "policyId": "org.eclipse.ditto:thing-1"},
    "headers": {
        "correlation-id": ID,
        "version": 2,
        "etag": '"rev:1"',
        # http://127.0.0.1:8080 in the document: here a path, as the host of a request is what a client says it is
        "location": "/api/2/things/org.eclipse.ditto:thing-1",
    },
}
SUCCESS = {
    "twin-persisted": PERSISTED,
    LABEL: {"status": 200, "payload": {"outcome": "green"}, "headers": {"version": 2, "correlation-id": ID}},
}
TIMEOUT = {
    "twin-persisted": PERSISTED,
    LABEL: {
        "status": 408,
        "payload": {
            "status": 408,
            "error": "acknowledgement:request.timeout",
            "message": "The acknowledgement request reached the specified timeout of 42,000ms.",
            "description": "Try increasing the timeout and make sure that the requested acknowledgement is sent back "
            "in time.",
        },
        "headers": {"correlation-id": ID},
    },
}
WEAK = {"twin-persisted": PERSISTED, LABEL: {"status": 200, "headers": {"correlation-id": ID, "ditto-weak-ack": True}}}
COMMAND = {
    "topic": "org.eclipse.ditto/thing-1/things/twin/commands/modify",
    "headers": {
        "correlation-id": ID,
        "version": 2,
        "requested-acks": ["twin-persisted", LABEL],
        "timeout": "42s",
    },
    "path": "/",
    "value": {},
}


def body(subscriber: str) -> tuple[int, dict[str, Any]]:
    """Return status and body for a subscriber that acknowledges, is silent, or whose filter drops the event."""
    log, run = Log(), Run()
    command = json.dumps(COMMAND).encode()
    (result,) = fold([SignalRecord(1000, 0, 0, ID, command)], {}, Settings())
    event, answer = sorted(result.messages, key=lambda message: message.topic)
    records = [log.record(TWIN_ACKS, 1100, ID, answer.value)]
    if subscriber != "silent":
        records.append(log.record(ACKS, 1200, ID, acknowledged(event.value, subscriber)))
    run.feed(log.record(0, 1000, ID, command), *records)
    run.feed(watermark=50_000)
    (emission,) = (emission for emission in run.emissions if emission.reply_id)
    named = {
        "correlation-id": ID,
        "reply-id": emission.reply_id,
        "status": emission.status,
        "completed-by": emission.completed_by,
    }
    reply = read_reply([(name, str(text).encode()) for name, text in named.items()], emission.value, 0)
    assert reply is not None
    response = of_reply(reply, decode(command), ID)
    return response.status_code, msgspec.json.decode(bytes(response.body))


def acknowledged(event: bytes, subscriber: str) -> bytes:
    record = SimpleNamespace(value=event, headers=[], topic="events", partition=0, offset=0, timestamp=0)
    publication = read_publication(record)
    assert publication is not None
    wanted = subscription("events", filter="exists(attributes/x)" if subscriber == "filters" else None)
    decision = decide(SubscriberState(frozenset({LABEL}), {"events": wanted}), publication)
    if isinstance(decision, Drop):
        (ack,) = weak_acks(publication, decision)
        return encode(write_ack(ack, publication.thing_id))
    assert isinstance(decision, SignalDelivery)
    # as a subscriber's handler gets it
    signal = Signal(ID, decision.envelope, "twin", decision.labels, False, False, None, 0, "events", 0, 0)  # noqa: FBT003
    ((_, message),) = messages(signal, Ack(200, {"outcome": "green"}))
    return encode(message)


@pytest.mark.parametrize(
    ("subscriber", "status", "sample"),
    [("acknowledges", 200, SUCCESS), ("silent", 424, TIMEOUT), ("filters", 200, WEAK)],
)
def test_a_body_has_the_labels_statuses_payloads_and_headers_of_the_document(
    subscriber: str, status: int, sample: dict[str, Any]
) -> None:
    code, found = body(subscriber)
    assert (code, list(found)) == (status, list(sample))
    for label, entry in sample.items():
        assert found[label]["status"] == entry["status"]
        assert "payload" not in entry or found[label]["payload"] == entry["payload"]
        assert found[label]["headers"].items() >= entry["headers"].items()
