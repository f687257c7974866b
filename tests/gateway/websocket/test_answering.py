"""What the client of a WebSocket may answer; more of it in the tests of sessions."""

from __future__ import annotations

from typing import Any

import pytest

from ackstream.gateway.websocket.answering import Answering
from ackstream.gateway.websocket.incoming import Incoming
from ackstream.protocol.correlation_ids import wire_id
from ackstream.protocol.ditto.access import OPEN, Access, Rule
from ackstream.protocol.ditto.envelopes import Envelope, raw
from ackstream.protocol.ditto.subscriptions import publication
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.errors import DittoError
from ackstream.settings import Settings

EVENT = "org.acme/lamp/things/twin/events/modified"
ACK = "org.acme/lamp/things/twin/acks"
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
    monkeypatch.setattr("ackstream.gateway.websocket.answering.time.monotonic", lambda: clock[0])
    answering = Answering(OPEN, Settings().correlate)
    headers = {"requested-acks": ["my-ack"]} | ({} if timeout is None else {"timeout": timeout})
    signal = publication(Envelope(TopicPath.parse(topic), headers, "/attributes/x", raw(1)), "c")
    assert signal is not None
    answering.send(signal)
    ack = Envelope(TopicPath.parse(f"{ACK}/my-ack"), {"correlation-id": "c"}, "/", status=200)
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
        ("READ", f"{ACK}/my-ack", "acknowledgement:signal.notfound"),
        ("WRITE", f"{ACK}/my-ack", "things:thing.notfound"),
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
