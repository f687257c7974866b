"""The hub that hands signals to sessions, without Kafka."""

from __future__ import annotations

import asyncio
from datetime import datetime, timezone
from typing import Any

from ackstream.gateway.streaming import Streaming, as_shown
from ackstream.protocol.correlation_ids import wire_id
from ackstream.protocol.ditto.envelopes import Envelope
from ackstream.protocol.ditto.subscriptions import Drop, publication, weak_acks
from ackstream.protocol.ditto.topics import TopicPath

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


class Listener:
    """Counts what it gets, or cannot handle it."""

    def __init__(self, *, broken: bool = False) -> None:
        self.received, self.failed, self._broken = 0, 0, broken

    def receive(self, _signal: Any, _moment: datetime) -> None:
        if self._broken:
            raise LookupError("oops")
        self.received += 1

    def fail(self) -> None:
        self.failed += 1


def hub() -> Streaming:
    """Return one that is connected to nothing."""
    found = Streaming.__new__(Streaming)
    found._loop, found._streams, found._labels = None, {}, {}
    return found


def signal(*labels: str) -> Any:
    topic = TopicPath.parse("org.acme/lamp/things/twin/events/modified")
    return publication(Envelope(topic, {"requested-acks": list(labels)}), "c-1")


async def _label_passes(streaming: Streaming, first: Listener, second: Listener) -> None:
    streaming.add_labels(first, {"my-ack"})
    # the lease of the first has lapsed while the broker was away
    streaming.add_labels(second, {"my-ack"})
    streaming.remove(first, {"my-ack"})
    streaming._distribute(signal("my-ack"), NOW)
    streaming.remove(second, {"my-ack"})
    streaming._distribute(signal("my-ack"), NOW)


def test_an_ending_session_leaves_a_label_to_the_one_that_has_it_now() -> None:
    first, second = Listener(), Listener()
    asyncio.run(_label_passes(hub(), first, second))
    assert (first.received, second.received) == (0, 1)


async def _published(streaming: Streaming, *listeners: Listener) -> None:
    for listener in listeners:
        streaming.subscribe(listener, "events")
    streaming._distribute(signal(), NOW)


def test_a_listener_that_cannot_handle_a_signal_ends_and_the_others_receive_it() -> None:
    broken, other = Listener(broken=True), Listener()
    asyncio.run(_published(hub(), broken, other))
    assert (broken.failed, other.failed, other.received) == (1, 0, 1)


def test_no_client_sees_the_random_part_of_an_id_and_weak_acknowledgements_have_it() -> None:
    topic, identity = TopicPath.parse("org.acme/lamp/things/twin/events/modified"), wire_id("c-1")
    whole = publication(Envelope(topic, {"requested-acks": ["my-ack"]}), identity)
    assert whole is not None
    shown = as_shown(whole)
    assert (shown.envelope.headers["correlation-id"], shown.correlation_id) == ("c-1", identity)
    (ack,) = weak_acks(shown, Drop(("my-ack",), "not seen"))
    assert ack.headers["correlation-id"] == identity
    assert as_shown(signal()) == signal()
