"""The hub that hands signals to sessions, without Kafka."""

from __future__ import annotations

import asyncio
import threading
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from ackstream.gateway import streaming
from ackstream.gateway.streaming import MAX_HANDED_OVER, Streaming, UnreadMessages, UnreadTotal, as_shown
from ackstream.protocol.ditto.correlation_ids import wire_id
from ackstream.protocol.ditto.envelopes import Envelope, encode, raw
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.ditto.twin.subscriptions import Drop, publication, weak_acks
from tests.harness.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable


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
    streaming._hand_over(signal("my-ack"), NOW)
    streaming.remove(second, {"my-ack"})
    streaming._hand_over(signal("my-ack"), NOW)


def test_an_ending_session_leaves_a_label_to_the_one_that_has_it_now() -> None:
    first, second = Listener(), Listener()
    asyncio.run(_label_passes(hub(), first, second))
    assert (first.received, second.received) == (0, 1)


async def _published(streaming: Streaming, *listeners: Listener) -> None:
    for listener in listeners:
        streaming.subscribe(listener, "events")
    streaming._hand_over(signal(), NOW)


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


@pytest.fixture(autouse=True)
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "MAX_WAITING_CHARACTERS", 100)
    monkeypatch.setattr(streaming, "ROOM_CHARACTERS", 50)


def run(story: Callable[[UnreadMessages, list[str]], Any]) -> list[str]:
    """Return how often the client was cut off."""

    async def go() -> list[str]:
        cut: list[str] = []
        await story(UnreadMessages(lambda: cut.append("cut"), UnreadTotal()), cut)
        return cut

    return asyncio.run(go())


def made(text: str | None, when: asyncio.Event | None = None) -> asyncio.Task[str | None]:
    async def make() -> str | None:
        if when is not None:
            await when.wait()
        return text

    return asyncio.get_running_loop().create_task(make())


def test_a_text_that_is_made_later_counts_once_it_is_there() -> None:
    async def story(messages: UnreadMessages, cut: list[str]) -> None:
        for _ in range(3):
            messages.put(made("x" * 40))
        assert cut == []
        await asyncio.sleep(0.01)

    assert run(story) == ["cut"]


def test_a_text_that_was_taken_before_it_was_made_does_not_count() -> None:
    async def story(messages: UnreadMessages, _cut: list[str]) -> None:
        when = asyncio.Event()
        for _ in range(9):
            messages.put(made("x" * 60, when))
            assert isinstance(await messages.take(), asyncio.Task)
        messages.put(made(None))
        when.set()
        await asyncio.sleep(0.01)
        await messages.room()

    assert run(story) == []


def test_there_is_room_once_texts_that_were_made_are_taken() -> None:
    async def story(messages: UnreadMessages, _cut: list[str]) -> None:
        messages.put(made("x" * 60))
        await asyncio.sleep(0.01)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(messages.room(), 0.01)
        await messages.take()
        await messages.room()

    assert run(story) == []


def test_one_that_fails_to_be_made_is_reported_as_it_is_sent() -> None:
    async def story(messages: UnreadMessages, _cut: list[str]) -> None:
        async def broken() -> str:
            raise LookupError("oops")

        messages.put(asyncio.get_running_loop().create_task(broken()))
        await asyncio.sleep(0.01)
        with pytest.raises(LookupError):
            await messages.send_all(lambda _: asyncio.sleep(0))

    assert run(story) == []


def test_of_many_clients_those_that_leave_much_unread_are_cut_off_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "MAX_OF_ALL", 200)

    async def go() -> None:
        cut: list[int] = []
        total = UnreadTotal()
        clients = [UnreadMessages(lambda number=number: cut.append(number), total) for number in range(4)]
        for client in clients[:3]:
            client.put("x" * 60)
        clients[3].put("x" * 40)
        assert cut == []
        # one that has little keeps what it gets; one that has much does not
        clients[3].put("x")
        assert cut == []
        clients[0].put("x")
        assert cut == [0]
        clients[0].drop()
        assert total.characters == 161
        clients[1].put("x")
        assert cut == [0]
        for client in clients:
            client.drop()
        assert total.characters == 0

    asyncio.run(go())


def test_what_is_taken_is_no_longer_unread() -> None:
    async def go() -> None:
        total = UnreadTotal()
        client = UnreadMessages(lambda: None, total)
        for message in ("x" * 10, made("x" * 20), made("x" * 30)):
            client.put(message)
        await asyncio.sleep(0.01)
        assert total.characters == 60
        for left in (50, 30, 0):
            await client.take()
            assert total.characters == left

    asyncio.run(go())
