"""The hub that hands signals to sessions, without Kafka."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ackstream.gateway import streaming
from ackstream.gateway.exchange import Dependencies, early
from ackstream.gateway.middleware.admission import ClientAdmission
from ackstream.gateway.streaming import (
    MAX_HANDED_OVER,
    Streaming,
    UnreadMessages,
    UnreadTotal,
    as_shown,
)
from ackstream.protocol.ditto.correlation_ids import wire_id
from ackstream.protocol.ditto.envelopes import Envelope, encode, raw
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.ditto.twin.access import OPEN
from ackstream.protocol.ditto.twin.subscriptions import Drop, publication, subscription, weak_acks
from ackstream.protocol.ditto.twin.things import select_of_thing
from ackstream.protocol.errors import DittoError
from ackstream.settings import Settings
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


WHOLE_LAMP = {"thingId": "org.acme:lamp", "attributes": {f"a{number}": number for number in range(100)}}


class Twin:
    """Takes the place of the exchange, and answers once it is let go."""

    def __init__(self, status: int = 200) -> None:
        self.asked: list[Envelope] = []
        self._status, self.go = status, asyncio.Event()

    async def ask(self, command: Envelope) -> Any:
        self.asked.append(command)
        await self.go.wait()
        return SimpleNamespace(ok=self._status == 200, status=self._status, value=WHOLE_LAMP)


def gateway(twin: Twin, **quota: Any) -> Any:
    streaming = hub()
    streaming._things, streaming._ask = {}, twin.ask
    quotas = [{"name": "small", "subjects": ["user:ada"], **quota}] if quota else []
    settings = Settings(gateway={"max_requests": 1}, quotas=quotas)
    admission = ClientAdmission(settings, None, None)  # type: ignore[arg-type]
    parts = SimpleNamespace(streaming=streaming, admission=admission, access=OPEN)
    parts.extra_fields = partial(Dependencies.extra_fields, parts)
    return parts


def event(revision: int = 1) -> Any:
    topic = TopicPath.parse("org.acme/lamp/things/twin/events/modified")
    return publication(Envelope(topic, {}, "/attributes/a0", raw(0), revision=revision), f"c-{revision}")


async def _fields(parts: Any, name: str, wanted: str, rql: str = "", signal_: Any = None) -> Any:
    chosen = subscription("events", filter=rql, extra_fields=wanted)
    try:
        return await parts.extra_fields((f"user:{name}",), chosen, signal_ or event(), NOW)
    except DittoError as error:
        return error.status


def together(parts: Any, twin: Twin, *calls: Any) -> list[Any]:
    async def run() -> list[Any]:
        tasks = [asyncio.create_task(_fields(parts, *call)) for call in calls]
        for _ in range(3):
            await asyncio.sleep(0)
        twin.go.set()
        return await asyncio.gather(*tasks)

    return asyncio.run(run())


def test_a_thing_is_asked_for_once_for_an_event_whatever_the_number_of_its_subscribers_and_their_fields() -> None:
    twin = Twin()
    found = together(gateway(twin), twin, *[("ada", f"attributes/a{number}") for number in range(100)])
    assert found == [{"attributes": {f"a{number}": number}} for number in range(100)]
    (asked,) = twin.asked
    assert asked.headers["ditto-originator"] == "user:ada"
    assert select_of_thing({"_revision": 1, "attributes": {}, "x": 1}, asked.fields or "") == {
        "_revision": 1,
        "attributes": {},
    }


def test_the_question_counts_as_a_request_of_the_subscriber_that_causes_it_and_fails_no_other() -> None:
    twin = Twin()
    # a rate of one a second, two at once
    calls = [("ada", "attributes/a1", "", event(number)) for number in range(4)]
    found = together(gateway(twin), twin, *calls, ("bob", "attributes/a2", "", event(3)))
    assert found == [{"attributes": {"a1": 1}}] * 2 + [429] * 2 + [{"attributes": {"a2": 2}}]
    assert len(twin.asked) == 3


def test_the_question_counts_among_the_open_requests_of_its_quota_until_it_is_answered() -> None:
    twin = Twin()
    parts = gateway(twin, max_open_requests=1)
    calls = [("ada", "attributes/a1", "", event(number)) for number in range(2)]
    assert together(parts, twin, *calls) == [{"attributes": {"a1": 1}}, 429]
    assert not parts.admission.open_requests._open
    assert not parts.streaming._things


@pytest.mark.parametrize("rql", ['eq(attributes/a0,"on")', 'and(eq(topic:action,"deleted"),exists(attributes/a1))'])
def test_a_signal_that_a_filter_drops_whatever_the_fields_are_asks_nothing(rql: str) -> None:
    twin = Twin()
    assert together(gateway(twin), twin, ("ada", "attributes/a1", rql)) == [{}]
    assert twin.asked == []


MESSAGE = publication(Envelope(TopicPath.parse("org.acme/lamp/things/live/messages/ask"), {}, "/x", raw(1)), "c-1")

_LEAVES = st.sampled_from(
    ["eq(attributes/a0,1)", "eq(attributes/room,1)", "exists(attributes/room)", 'eq(topic:action,"modified")',
     'eq(topic:action,"deleted")', 'eq(thingId,"org.acme:lamp")', 'eq(_namespace,"org.acme")', "empty(features/f)",
     "gt(features/f/properties/y,0)", "in(attributes/a0,0,2)"]
)  # fmt: skip
_FILTERS = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        inner.map("not({})".format),
        st.tuples(st.sampled_from(["and", "or"]), st.lists(inner, min_size=1, max_size=3).map(",".join)).map(
            lambda parts: f"{parts[0]}({parts[1]})"
        ),
    ),
    max_leaves=8,
)
_SELECTORS = st.sampled_from(
    ["attributes", "attributes/room", "attributes/room/deep", "thingId", "features/*/properties/y", "features/f"]
)
_THINGS = st.fixed_dictionaries(
    {
        "thingId": st.just("org.acme:lamp"),
        "attributes": st.fixed_dictionaries(
            {}, optional={"x": st.sampled_from([0, 1]), "room": st.sampled_from([1, {}])}
        ),
        "features": st.fixed_dictionaries({}, optional={"f": st.fixed_dictionaries({"properties": st.just({"y": 1})})}),
    }
)


@given(_FILTERS, _SELECTORS, _THINGS, st.sampled_from([event(3), MESSAGE]))
def test_a_signal_that_some_extra_fields_would_let_pass_is_not_dropped_without_them(
    rql: str, selector: str, thing: dict[str, Any], signal: Any
) -> None:
    wanted = replace(subscription("events", filter=rql, extra_fields=selector), stream=signal.stream)
    if wanted.matches(signal, select_of_thing(thing, selector), NOW):
        assert early(wanted).matches(signal, None, NOW)


@pytest.mark.parametrize(
    ("rql", "dropped"),
    [
        ('eq(topic:action,"deleted")', True),
        ('and(eq(attributes/room,1),eq(topic:action,"deleted"))', True),
        ('or(eq(attributes/room,1),eq(topic:action,"deleted"))', False),
        ('not(or(eq(attributes/a0,2),eq(topic:action,"modified")))', True),
        ('not(and(eq(attributes/room,1),eq(topic:action,"modified")))', False),
        ("eq(attributes/a0,2)", True),
        ("eq(attributes/room,1)", False),
        ("exists(attributes/rooms)", True),
        ("exists(features/room)", True),
    ],
)
def test_the_parts_of_a_filter_that_need_no_extra_fields_drop_a_signal_before_they_are_known(
    rql: str,
    dropped: bool,  # noqa: FBT001 - a column
) -> None:
    wanted = subscription("events", filter=rql, extra_fields="attributes/room,thingId")
    assert early(wanted).matches(event(3), None, NOW) is not dropped
