"""The hub that hands signals to sessions, without Kafka."""

from __future__ import annotations

import asyncio
import threading
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

from ackstream.gateway.streaming import MAX_HANDED_OVER, Streaming, as_shown
from ackstream.protocol.correlation_ids import wire_id
from ackstream.protocol.ditto.envelopes import Envelope, encode, raw
from ackstream.protocol.ditto.subscriptions import Drop, publication, weak_acks
from ackstream.protocol.ditto.topics import TopicPath
from tests.harness.waiting import eventually

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
    found._room, found._ended = threading.Semaphore(MAX_HANDED_OVER), threading.Event()
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


def test_while_the_loop_is_busy_signals_wait_in_kafka() -> None:
    """Read as fast as Kafka has them, they would keep the loop from everything else, and fill its memory."""
    streaming = hub()
    topic = TopicPath.parse("org.acme/lamp/things/twin/events/modified")
    value = encode(Envelope(topic, {"correlation-id": "c-1"}, "/", raw({})))
    record = SimpleNamespace(topic="events", partition=0, offset=0, timestamp=0, value=value, headers=[])
    streaming._worker = SimpleNamespace(originator_key=None)  # type: ignore[assignment]
    read = [0]

    async def run() -> None:
        listener = Listener()
        streaming.subscribe(listener, "events")

        def work() -> None:
            for _ in range(2 * MAX_HANDED_OVER):
                streaming._read(record, None)  # type: ignore[arg-type]
                read[0] += 1

        reader = threading.Thread(target=work)
        reader.start()
        # the loop is busy
        eventually(lambda: read[0] == MAX_HANDED_OVER and not streaming._room.acquire(blocking=False), "no more room")
        assert listener.received == 0
        await asyncio.to_thread(reader.join)
        assert listener.received == read[0] == 2 * MAX_HANDED_OVER
        streaming._room = threading.Semaphore(0)
        streaming._ended.set()
        # the end of the gateway waits for no room
        streaming._read(record, None)  # type: ignore[arg-type]

    asyncio.run(run())


def test_no_client_sees_the_random_part_of_an_id_and_weak_acknowledgements_have_it() -> None:
    topic, identity = TopicPath.parse("org.acme/lamp/things/twin/events/modified"), wire_id("c-1")
    whole = publication(Envelope(topic, {"requested-acks": ["my-ack"]}), identity)
    assert whole is not None
    shown = as_shown(whole)
    assert (shown.envelope.headers["correlation-id"], shown.correlation_id) == ("c-1", identity)
    (ack,) = weak_acks(shown, Drop(("my-ack",), "not seen"))
    assert ack.headers["correlation-id"] == identity
    assert as_shown(signal()) == signal()
