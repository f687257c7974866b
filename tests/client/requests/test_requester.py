"""Streams of updates and second replies of a requester in memory; the test writes their records."""

from __future__ import annotations

import json
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from ackstream.client import (
    BadParameterError,
    ClosedError,
    Command,
    CorrelationIdInUseError,
    Requester,
    RequestTimeout,
)
from ackstream.protocol.ledger import reply_id
from ackstream.settings import Correlate, Settings
from ackstream.testing import RequestSystem

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackstream.client import Reply, Updates

THING, LABEL = "org.acme:lamp", "a-ack"
COMMAND = Command.modify_attribute(THING, "on", value=True)


@pytest.fixture
def system() -> RequestSystem:
    return RequestSystem(Settings(correlate=Correlate(request_topics=("orders",))))


def command(requester: Requester, **options: Any) -> Updates:
    return requester.stream(COMMAND, acks=[LABEL], timeout="5s", correlation_id="c", **options)


def order(requester: Requester, **options: Any) -> Updates:
    return requester.stream_record("orders", b"x", acks=[LABEL], timeout=5, correlation_id="c", **options)


STREAMS = pytest.mark.parametrize(("stream", "topic"), [(command, "signals"), (order, "orders")])


def write(system: RequestSystem, topic: str, completed_by: str, number: int = 0, offset: int = 0) -> None:
    """Write an update or a second reply to the request ``c`` at an offset of its topic."""
    thing = "org.acme/lamp" if topic == "signals" else "unknown/unknown"
    entries = {LABEL: {"status": 102 if completed_by == "progress" else 200, "payload": number, "headers": {}}}
    message = {"topic": f"{thing}/things/twin/acks", "headers": {}, "path": "/", "value": entries, "status": 102}
    headers = {
        "correlation-id": "c",
        "reply-id": reply_id("c", topic, 0, offset),
        "status": str(entries[LABEL]["status"]),
        "completed-by": completed_by,
        "reply-version": "2" if completed_by == "amended" else str(number),
    }
    system.feed(
        "replies", json.dumps(message).encode(), headers=[(name, text.encode()) for name, text in headers.items()]
    )


def shown(reply: Reply) -> tuple[str, Any]:
    return reply.completed_by, reply.acks[LABEL].payload if reply.is_update else reply.status


@STREAMS
def test_a_stream_has_the_updates_as_they_come_and_ends_with_the_reply(
    system: RequestSystem, stream: Callable[..., Updates], topic: str
) -> None:
    with system.requester() as requester:
        updates = stream(requester)
        write(system, topic, "progress", 1)
        assert shown(next(updates)) == ("progress", 1)
        write(system, topic, "progress", 1)
        write(system, topic, "progress", 2)
        assert [shown(reply) for reply in updates] == [("progress", 2), ("timeout", 408)]
        assert (updates.correlation_id, updates.reply.result(0).missing) == ("c", (LABEL,))
        assert requester.statistics.answered == 1


@STREAMS
def test_a_stream_sets_the_header_of_its_request(
    system: RequestSystem, stream: Callable[..., Updates], topic: str
) -> None:
    with system.requester() as requester:
        stream(requester)
    (record,) = system.records[topic]
    if topic == "orders":
        assert dict(record.headers)["progress"] == b"true"
    else:
        assert json.loads(record.value or b"")["headers"]["progress"] is True
        assert "progress" not in COMMAND.headers


@STREAMS
def test_the_errors_of_a_streamed_request_are_raised_by_its_iteration(
    system: RequestSystem, stream: Callable[..., Updates], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with system.requester() as requester:
        closed = stream(requester)
        with pytest.raises(CorrelationIdInUseError):
            stream(requester)
    with pytest.raises(ClosedError):
        next(closed)
    # no job answers
    monkeypatch.setattr(system, "_write", lambda _: None)
    with system.requester() as requester:
        unanswered = stream(requester)
        write(system, topic, "progress", 1, offset=1)
        assert shown(next(unanswered)) == ("progress", 1)
        system.advance(20)
        with pytest.raises(RequestTimeout):
            next(unanswered)


def test_a_request_that_is_sent_with_the_header_by_hand_ends_with_its_reply(system: RequestSystem) -> None:
    asked = Command.modify_attribute(THING, "on", value=True)
    asked.headers["progress"] = True
    with system.requester() as requester:
        future = requester.send(asked, acks=[LABEL], timeout="5s", correlation_id="c")
        write(system, "signals", "progress")
        assert not future.done()
        assert future.result().completed_by == "timeout"
        assert requester.statistics.malformed == 0


@STREAMS
def test_a_request_whose_stream_is_left_early_goes_on_and_can_be_cancelled(
    system: RequestSystem, stream: Callable[..., Updates], topic: str
) -> None:
    with system.requester() as requester:
        updates = stream(requester)
        write(system, topic, "progress", 1)
        for _ in updates:
            break
        assert requester.statistics.open == 1
        assert requester.cancel(updates.correlation_id)
        assert updates.reply.result().completed_by == "cancelled"
        assert requester.statistics.open == 0


def test_a_stream_in_a_callback_would_wait_for_itself(system: RequestSystem) -> None:
    errors: list[str] = []
    with system.requester() as requester:
        future = requester.send(COMMAND, acks=[LABEL], timeout="1s")
        requester._reader.thread = threading.current_thread()

        def ask(_future: Any) -> None:
            with pytest.raises(RuntimeError) as caught:
                command(requester)
            errors.append(str(caught.value))

        future.add_done_callback(ask)
        future.result()
    assert errors == ["A request in a done callback would wait for itself: use send() or send_record() there."]


def _amendable(requester: Requester, topic: str, amend: Any) -> Any:
    if topic == "orders":
        headers = {} if amend is None else {"amend": str(amend).lower()}
        return requester.send_record("orders", b"x", headers=headers, acks=[LABEL], timeout=5, correlation_id="c")
    asked = Command.modify_attribute(THING, "on", value=True)
    if amend is not None:
        asked.headers["Amend"] = amend
    return requester.send(asked, acks=[LABEL], timeout=5, correlation_id="c")


@pytest.mark.parametrize("topic", ["signals", "orders"])
@pytest.mark.parametrize(("amend", "expected"), [(True, 1), ("10m", 1), (None, 0)])
def test_the_second_reply_is_given_to_the_requester_that_asked_for_it(
    system: RequestSystem, topic: str, amend: Any, expected: int
) -> None:
    found: list[Reply] = []
    with Requester(system.connection, on_amended=found.append) as requester, system.requester() as other:
        assert _amendable(requester, topic, amend).result().completed_by == "timeout"
        for _ in range(2):
            write(system, topic, "amended", 7)
        assert requester.statistics.malformed == other.statistics.malformed == 0
    assert [(reply.completed_by, reply.version) for reply in found] == [("amended", 2)] * expected


def test_without_a_handler_a_second_reply_is_ignored(system: RequestSystem) -> None:
    with system.requester() as requester:
        _amendable(requester, "signals", amend=True).result()
        write(system, "signals", "amended")
        assert (requester.statistics.malformed, requester.statistics.foreign) == (0, 1)


def test_a_publication_that_requires_a_response_is_refused(system: RequestSystem) -> None:
    with system.requester() as requester, pytest.raises(BadParameterError, match="use send"):
        requester.publish(COMMAND, response_required=True)


# -- no reply


@pytest.mark.parametrize("topic", ["signals", "orders"])
def test_a_request_without_a_reply_names_the_causes_and_the_requester_stays_connected(
    system: RequestSystem, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    states: list[str] = []
    # no job answers
    monkeypatch.setattr(system, "_write", lambda _: None)
    with Requester(system.connection, on_connection=states.append) as requester:
        future = _amendable(requester, topic, None)
        system.advance(20)
        with pytest.raises(RequestTimeout) as caught:
            future.result(0)
    hint = " and that correlate.request_topics allows orders" if topic == "orders" else ""
    assert str(caught.value) == (
        f"No reply to c arrived in replies within 15 s (timeout and grace): check that the correlate job runs{hint}. "
        "A party may have extended it: Requester(grace=…) waits longer. Or the correlation-id was used a moment ago: "
        "ackstream outcomes story c"
    )
    assert states == ["connected"]
    assert "disconnected" not in caplog.text


# -- cancellations


@pytest.mark.parametrize("topic", ["signals", "orders"])
def test_a_cancellation_follows_its_request_once_that_is_stored(
    system: RequestSystem, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[Callable[[], None]] = []
    with system.requester() as requester:
        put = requester._producer.put
        monkeypatch.setattr(
            requester._producer, "put", lambda *given, **record: held.append(partial(put, *given, **record))
        )
        future = _amendable(requester, topic, None)
        assert requester.cancel("c")
        monkeypatch.undo()
        # the request alone was sent, and is stored now
        (store,) = held
        store()
        assert future.result().completed_by == "cancelled"
    assert ["cancel" in dict(record.headers) for record in system.records[topic]] == [False, True]


@pytest.mark.parametrize("topic", ["signals", "orders"])
def test_the_future_of_a_request_names_it_and_only_the_requester_cancels(system: RequestSystem, topic: str) -> None:
    with system.requester() as requester:
        future = _amendable(requester, topic, None)
        assert not future.cancel()
        assert requester.cancel(future.correlation_id)
        assert future.result().status == 499
        assert order(requester).reply.correlation_id == "c"


def test_a_publication_cannot_be_cancelled(system: RequestSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    with system.requester() as requester:
        monkeypatch.setattr(requester._producer, "put", lambda *_, **__: None)
        requester.publish(COMMAND, correlation_id="p")
        assert not requester.cancel("p")
