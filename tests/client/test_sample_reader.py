from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from ackstream.client.sample_reader import LabelAcks
from ackstream.client.samples import Sample
from ackstream.protocol.ditto.envelopes import encode
from ackstream.protocol.ditto.thing_errors import thing_not_found

if TYPE_CHECKING:
    from ackstream.protocol.ditto.envelopes import Envelope


class World:
    def __init__(self, *held: str) -> None:
        self.sent: list[tuple[str, Envelope]] = []
        labels: Any = SimpleNamespace(held=frozenset(held))
        outbox: Any = SimpleNamespace(send=lambda identity, message, _work: self.sent.append((identity, message)))
        self.acks = LabelAcks(labels, outbox)

    def answers(self) -> list[tuple[str, int, Any]]:
        decoded = [json.loads(encode(message)) for _, message in self.sent]
        return [(answer["topic"], answer["status"], answer.get("value")) for answer in decoded]


def _sample(key: bytes | None = None, requested: bytes | None = b'["a-a"]', **headers: bytes) -> Sample:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    asked = {"correlation-id": b"c-1"} | ({} if requested is None else {"requested-acks": requested})
    return Sample("w1", 1, None, key, b"v", asked | named, 0, 0, 5)


@pytest.mark.parametrize(
    ("response", "payload"),
    [(None, None), (b'{"a": [1]}', {"a": [1]}), (b"7", 7), (b"done", "done"), (b"\xff\x00", "/wA=")],
)
def test_the_response_is_the_payload_of_a_declared_label(response: bytes | None, payload: Any) -> None:
    world = World("a-a", "b-b")
    world.acks.acknowledged(_sample(requested=b'["a-a","c-c","a-a"]', ditto_entity_id=b"thing:ns:n"), response, None)
    assert world.answers() == [("ns/n/things/twin/acks/a-a", 200, payload)]
    assert [(identity, message.topic.thing_id) for identity, message in world.sent] == [("c-1", "ns:n")]


@pytest.mark.parametrize(
    ("sample", "thing"),
    [
        (_sample(b"ns:key", ditto_entity_id=b"ns:header"), "ns/header"),
        (_sample(b"ns:key"), "ns/key"),
        (_sample(b"ns:key", ditto_entity_id=b"none"), "ns/key"),
        (_sample(b"no id"), "unknown/unknown"),
        (_sample(b"a:b/c"), "unknown/unknown"),
        (_sample(b"\xff:\xfe/"), "unknown/unknown"),
    ],
)
def test_the_thing_is_that_of_the_header_else_of_the_key(sample: Sample, thing: str) -> None:
    world = World("a-a")
    world.acks.acknowledged(sample, None, None)
    assert world.answers() == [(f"{thing}/things/twin/acks/a-a", 200, None)]


def test_a_live_message_is_acknowledged_on_the_live_channel() -> None:
    world = World("a-a")
    world.acks.acknowledged(_sample(b"ns:n", channel=b"live"), None, None)
    assert world.answers() == [("ns/n/things/live/acks/a-a", 200, None)]


@pytest.mark.parametrize("requested", [None, b"", b"[]", b'["b-b"]', b'[{"a":1},null,7]', b"\xff\xfe", b"{"], ids=repr)
def test_nothing_is_said_where_no_declared_label_is_requested(requested: bytes | None) -> None:
    world = World("a-a")
    world.acks.acknowledged(_sample(requested=requested), None, None)
    world.acks.rejected(_sample(requested=requested), "no", 400)
    world.acks.failed(_sample(requested=requested), ValueError())
    assert world.sent == []


def test_labels_that_were_lost_are_not_used() -> None:
    world = World()
    world.acks.acknowledged(_sample(), None, None)
    assert world.sent == []


def test_a_sample_that_no_code_saw_is_acknowledged_weakly() -> None:
    world = World("a-a")
    world.acks.acknowledged(_sample(b"ns:n"), None, "filtered")
    (sent,) = world.sent
    assert sent[1].headers["ditto-weak-ack"] is True
    assert world.answers()[0][1] == 200


def test_what_the_application_rejects_and_what_fails_are_nacks() -> None:
    world = World("a-a")
    world.acks.rejected(_sample(b"ns:n"), "sold out", 409)
    world.acks.failed(_sample(b"ns:n"), ValueError("broken"))
    world.acks.failed(_sample(b"ns:n"), thing_not_found("ns:n"))
    assert [(status, value if isinstance(value, str) else min(value)) for _, status, value in world.answers()] == [
        (409, "sold out"),
        (500, "description"),
        (404, "description"),
    ]
