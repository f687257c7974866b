"""What a queue has put aside: it behaves as if it were there, and costs little."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ackstream.jobs.queues.endpoint import STATE_VERSION, Endpoint
from ackstream.jobs.queues.records import Arrival, ConsumerReport
from ackstream.jobs.queues.state import MessageLocation, QueuedMessage, Segments
from ackstream.observe.metrics import QUEUE_DEPTH, QUEUE_OLDEST, Tally
from ackstream.protocol import queues
from ackstream.protocol.queues import Bind, MessageDelivered, SettleMessages
from tests.jobs.queues.rules import amps, solace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackstream.settings.jobs import QueueSettings

SESSION = 30_000
SIZE = 10


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackstream.jobs.queues.queue.SEGMENT", SIZE)


def _arrivals(offsets: Iterable[int], **more: Any) -> list[Arrival]:
    return [Arrival(1_000 + offset, "m-x", 0, offset, 0, f"orders/{offset}", **more) for offset in offsets]


def _said(*records: Any, at: int = 5_000) -> list[ConsumerReport]:
    return [ConsumerReport(at, 0, offset, b"A", queues.write(record)) for offset, record in enumerate(records)]


def _again(endpoint: Endpoint, rules: QueueSettings) -> Endpoint:
    """Return the endpoint as the next batch finds it."""
    state = endpoint.dump()
    assert state is not None
    found = Endpoint(rules, SESSION)
    found.load(*state)
    return found


def _full(rules: QueueSettings, count: int = 100, **more: Any) -> Endpoint:
    endpoint = Endpoint(rules, SESSION)
    list(endpoint.process(_arrivals(range(count), **more), [], 0))
    return _again(endpoint, rules)


def _opened(endpoint: Endpoint) -> int:
    """Return how many messages are not in segments."""
    return len(endpoint._locations)


def _delivered(endpoint: Endpoint) -> list[int]:
    return [answer.offset for answer in endpoint.answers if isinstance(answer, MessageDelivered)]


def _left(endpoint: Endpoint) -> list[tuple[int | None, str | None, str | None]]:
    return [(event.offset, event.reason, event.subject) for event in endpoint.events if event.event == "left"]


def _gauges(endpoint: Endpoint) -> dict[Any, float]:
    tally = Tally()
    endpoint.measure(tally)
    return tally.gauges


def test_a_queue_keeps_its_first_messages_and_puts_the_others_aside() -> None:
    endpoint = _full(solace())
    assert _opened(endpoint) == SIZE
    gauges = _gauges(endpoint)
    assert (gauges[QUEUE_DEPTH.name, "q"], gauges[QUEUE_OLDEST.name, "q"]) == (100, 1.0)


def test_the_latest_messages_wait_for_a_segment_of_their_own() -> None:
    endpoint, rules = _full(solace()), solace()
    for offset in range(100, 109):
        list(endpoint.process(_arrivals([offset]), [], 0))
        endpoint = _again(endpoint, rules)
        assert _opened(endpoint) == SIZE + offset - 99
    list(endpoint.process(_arrivals([109]), [], 0))
    assert _opened(_again(endpoint, rules)) == SIZE


def test_messages_that_are_put_aside_are_delivered_in_their_order() -> None:
    rules = solace(max_backlog=25)
    endpoint = _full(rules)
    list(endpoint.process([], _said(Bind("q", "A", 1)), 0))
    assert _delivered(endpoint) == list(range(25))
    endpoint = _again(endpoint, rules)
    assert _opened(endpoint) == 30, "those that are held, and what is left of the segment"
    list(endpoint.process([], _said(SettleMessages("q", "A", 1, tuple(f"m-x-0-{number}" for number in range(25)))), 0))
    assert _delivered(endpoint) == list(range(25, 50))
    assert _left(endpoint)[0] == (0, "accepted", "orders/0")


def test_the_latest_messages_are_delivered_after_those_that_are_put_aside() -> None:
    rules = solace(max_backlog=0)
    endpoint = _full(rules, 105)
    assert _opened(endpoint) == 15
    list(endpoint.process([], _said(Bind("q", "A", 1)), 0))
    assert _delivered(endpoint) == list(range(105))


def test_the_oldest_message_may_be_aside() -> None:
    rules = amps(settler="sublet")
    endpoint = _full(rules)
    # without a consumer nothing asks for the next ones
    list(endpoint.process([], _said(SettleMessages("q", "A", 1, tuple(f"m-x-0-{number}" for number in range(10)))), 0))
    assert _gauges(_again(endpoint, rules))[QUEUE_OLDEST.name, "q"] == 1.01


@pytest.mark.parametrize(
    "message", ["m-x-0-57", "m-x-0-057", "m-x-0-+57", "m-x-0-a", "m-x-0-\u0665\u0667", "x-0-57", "57", "m-x-1-57"]
)
def test_a_message_that_is_put_aside_is_settled_by_its_id_alone(message: str) -> None:
    rules = amps()
    endpoint = _full(rules)
    list(endpoint.process([], _said(SettleMessages("q", "B", 1, (message,))), 0))
    there = message == "m-x-0-57"
    assert _left(endpoint) == ([(57, "accepted", "orders/57")] if there else [])
    assert _opened(endpoint) == SIZE
    assert _gauges(_again(endpoint, rules))[QUEUE_DEPTH.name, "q"] == 100 - there


def test_an_id_that_is_too_long_for_a_number_is_unknown() -> None:
    endpoint = _full(amps())
    list(endpoint.process([], _said(SettleMessages("q", "B", 1, ("m-x-0-" + "9" * 40,))), 0))
    assert [event.reason for event in endpoint.events] == ["not-in-queue"]


def test_a_message_that_is_put_aside_is_not_added_again() -> None:
    endpoint = _full(solace())
    list(endpoint.process(_arrivals([57]), [], 0))
    assert not endpoint.events
    assert _gauges(_again(endpoint, solace()))[QUEUE_DEPTH.name, "q"] == 100


def test_messages_that_are_put_aside_count_towards_the_depth() -> None:
    rules = solace(max_depth=100)
    endpoint = _full(rules)
    list(endpoint.process(_arrivals([100]), [], 0))
    assert _left(endpoint) == [(100, "queue-full", "orders/100")]


def test_their_topics_count_towards_what_a_queue_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = _full(solace())
    monkeypatch.setattr("ackstream.jobs.queues.endpoint.MAX_SUBJECT_BYTES", 899)
    list(endpoint.process(_arrivals([100]), [], 0))
    assert _left(endpoint) == [(100, "queue-full", "orders/100")]


def test_messages_that_are_put_aside_expire_one_by_one() -> None:
    rules = amps()
    endpoint = _full(rules, ttl_ms=10_000)
    assert endpoint.next_timeout == 11_000
    list(endpoint.process([], [], 11_056))
    assert [offset for offset, _, _ in _left(endpoint)] == list(range(57))
    endpoint = _again(endpoint, rules)
    assert (endpoint.next_timeout, _gauges(endpoint)[QUEUE_DEPTH.name, "q"]) == (11_057, 43)
    list(endpoint.process([], [], 11_099))
    assert endpoint.dump() is None


def test_what_a_message_was_comes_back_with_it() -> None:
    locations = {
        "t-1-7": MessageLocation("t", 1, 7, 3, None, 9, 2, "A"),
        "t-2-6": MessageLocation("t", 2, 6, 4, "orders/é", 8),
    }
    kept = dict(locations)
    messages = [
        QueuedMessage("t-1-7", 5, 70, eligible=True, barrier=False, deliveries=2, failures=1),
        QueuedMessage("t-2-6", 6, None, eligible=False, barrier=True),
    ]
    segments = Segments(locations)
    segments.add(messages)
    assert (len(segments), segments.first, segments.next_time, locations) == (2, 5, 70, {})
    again = Segments(locations)
    again.load(segments.dump())
    assert again.take("t-2-6") == messages[1:]
    assert again.take("t-2-6") == []
    last = Segments(locations)
    last.load(again.dump())
    assert (len(last), last.subject_bytes, last.oldest) == (1, 0, (5, 9))
    assert last.take_due(69) == []
    assert last.take_due(70) == messages[:1]
    assert (locations, last.dump(), last.first, last.next_time) == (kept, [], None, None)


def _locations(*offsets: int, topic: str = "t") -> tuple[dict[str, MessageLocation], list[QueuedMessage]]:
    """Return messages that expire at their offset, whose order it is, too; and their locations."""
    known = {
        f"{topic}-0-{offset}": MessageLocation(topic, 0, offset, 0, "orders", 1_000 + offset) for offset in offsets
    }
    return known, [
        QueuedMessage(name, at.offset, at.offset, eligible=True, barrier=False) for name, at in known.items()
    ]


def test_what_is_known_of_several_segments_is_that_of_the_first_message() -> None:
    locations, messages = _locations(5, 6, 7, 8)
    segments = Segments(locations)
    segments.add(messages[2:])
    segments.add(messages[:2])
    assert (segments.first, segments.next_time, segments.oldest, segments.subject_bytes) == (5, 5, (5, 1_005), 24)
    assert segments.take("t-0-5") == messages[:1]
    assert (segments.first, segments.next_time, segments.oldest, segments.subject_bytes) == (6, 6, (6, 1_006), 18)
    assert segments.take_first() == messages[1:2]
    assert segments.take_first() == messages[2:]
    assert not segments


def test_messages_of_two_topics_at_the_same_offset_are_two() -> None:
    locations, messages = _locations(5)
    others, more = _locations(5, topic="u")
    locations |= others
    segments = Segments(locations)
    segments.add([*messages, *more])
    assert segments.take("u-0-5") == more
    assert len(segments) == 1


STATE = (
    b"\x95\xcd\x03\xfc\x80\x8b\xa7m-x-0-0\x98\xa3m-x\x00\x00\x00\xa8orders/"
    b"0\xcd\x03\xe8\x00\xc0\xa7m-x-0-1\x98\xa3m-x\x00\x01\x00\xa8orders/"
    b"1\xcd\x03\xe9\x00\xc0\xa7m-x-0-2\x98\xa3m-x\x00\x02\x00\xa8orders/"
    b"2\xcd\x03\xea\x00\xc0\xa7m-x-0-3\x98\xa3m-x\x00\x03\x00\xa8orders/"
    b"3\xcd\x03\xeb\x00\xc0\xa7m-x-0-4\x98\xa3m-x\x00\x04\x00\xa8orders/"
    b"4\xcd\x03\xec\x00\xc0\xa7m-x-0-5\x98\xa3m-x\x00\x05\x00\xa8orders/"
    b"5\xcd\x03\xed\x00\xc0\xa7m-x-0-6\x98\xa3m-x\x00\x06\x00\xa8orders/"
    b"6\xcd\x03\xee\x00\xc0\xa7m-x-0-7\x98\xa3m-x\x00\x07\x00\xa8orders/"
    b"7\xcd\x03\xef\x00\xc0\xa7m-x-0-8\x98\xa3m-x\x00\x08\x00\xa8orders/"
    b"8\xcd\x03\xf0\x00\xc0\xa7m-x-0-9\x98\xa3m-x\x00\t\x00\xa8orders/"
    b"9\xcd\x03\xf1\x00\xc0\xa8m-x-0-20\x98\xa3m-x\x00\x14\x00\xa9orders"
    b"/20\xcd\x03\xfc\x00\xc0\x95\x9b\x99\xa7m-x-0-0\x01\xc0\xc3\xc2\x00\x00\x00\x80\x99\xa7m"
    b"-x-0-1\x02\xc0\xc3\xc2\x00\x00\x00\x80\x99\xa7m-x-0-2\x03\xc0\xc3\xc2\x00\x00\x00"
    b"\x80\x99\xa7m-x-0-3\x04\xc0\xc3\xc2\x00\x00\x00\x80\x99\xa7m-x-0-4\x05\xc0\xc3"
    b"\xc2\x00\x00\x00\x80\x99\xa7m-x-0-5\x06\xc0\xc3\xc2\x00\x00\x00\x80\x99\xa7m-x-0-"
    b"6\x07\xc0\xc3\xc2\x00\x00\x00\x80\x99\xa7m-x-0-7\x08\xc0\xc3\xc2\x00\x00\x00\x80\x99\xa7m-"
    b"x-0-8\t\xc0\xc3\xc2\x00\x00\x00\x80\x99\xa7m-x-0-9\n\xc0\xc3\xc2\x00\x00\x00\x80"
    b"\x99\xa8m-x-0-20\x15\xc0\xc3\xc2\x00\x00\x00\x80\x90\x80\x15\xc0\x91\x97\n\x0b\x00\xcd\x03\xf2"
    b"Z\x91\x94\xa3m-x\x00\n\x13\xc4^x\x01\xe3f\x80\x00F*\xd1Pc\xa8FqQ\xc9]0"
    b"\xff}b\x86\x18\x08\xe3SJS\xcd\xa342\x08\xe6?\x1a\x19?\xec\x8d\x9d<kq\xaen\x051"
    b"x\xd6\xca\xfc\xa2\x94\xd4\xa2b}C\x038\xcb\x10\xce2\x82\xb3\x8c\xe1,\x138\xcb\x14\xce2\x83\xb3"
    b"\xcc\xe1,\x0b8\xcbr\xd6\x018\x00\x00\x8d=B\x17"
)
"""A queue of messages 0 to 20 of the topic ``m-x``, of which those from 10 to 19 are in a segment."""


def test_a_segment_is_read_as_it_always_was() -> None:
    endpoint = Endpoint(solace(max_backlog=0), SESSION)
    endpoint.load(STATE_VERSION, STATE)
    list(endpoint.process([], _said(Bind("q", "A", 1)), 0))
    assert _delivered(endpoint) == list(range(21))


def test_a_refused_settlement_says_where_its_message_is_from_wherever_that_is() -> None:
    rejected = _said(Bind("q", "A", 1, backlog=1), SettleMessages("q", "A", 1, ("m-x-0-50",), "rejected"), at=6_000)
    whole = Endpoint(solace(), SESSION)
    list(whole.process(_arrivals(range(100)), rejected, 0))
    cut = _full(solace())
    list(cut.process([], rejected, 5_500))
    (of_whole,), (of_cut,) = ([event for event in one.events if event.event == "refused"] for one in (whole, cut))
    assert of_cut == of_whole
    assert (of_cut.reason, of_cut.partition, of_cut.offset) == ("outcome-not-enabled", 0, 50)
