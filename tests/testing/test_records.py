"""Records of any kind ask for acknowledgements, and are acknowledged, in memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ackstream import client
from ackstream.client import (
    Ack,
    After,
    BadParameterError,
    Command,
    DittoError,
    RecordSignal,
    Reply,
    RequestTimeout,
    Response,
    responder,
)
from ackstream.settings import Correlate, Settings
from ackstream.testing import RequestSystem

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackstream.testing import TopicRecord

LABEL = "bank:booked"
BINARY = b"\x00\xff"


def _system(**correlate: Any) -> RequestSystem:
    patterns = {"request_topics": ("orders.*",), "ack_topics": ("bookings",)}
    return RequestSystem(Settings(correlate=Correlate(**patterns | correlate)))


class Bank:
    """Acknowledges all orders, and keeps them."""

    def __init__(self, system: RequestSystem, answer: Any = None, **options: Any) -> None:
        self.seen: list[RecordSignal] = []
        self.answer = Ack(201, {"booked": True}) if answer is None else answer
        options = {"labels": [LABEL], "topics": ["orders"]} | options
        self.responder = system.responder(handler=self._handle, **options)

    def _handle(self, signal: RecordSignal) -> Any:
        self.seen.append(signal)
        if isinstance(self.answer, Exception) and not isinstance(self.answer, DittoError):
            raise self.answer
        return self.answer


def _headers(record: TopicRecord) -> dict[str, str]:
    return {name: value.decode() for name, value in record.headers}


def test_a_record_is_acknowledged_by_a_responder_of_its_topic() -> None:
    system = _system()
    bank = Bank(system)
    stored: list[bool] = []
    future = system.requester().send_record(
        "orders", BINARY, key=b"7", headers={"tenant": "a", "raw": b"\xfe"}, acks=[LABEL], timeout="5s",
        correlation_id="order-7", on_stored=lambda: stored.append(True),
    )  # fmt: skip
    reply = future.result()
    assert (reply.status, reply.completed_by, reply.correlation_id) == (201, "acknowledgements", "order-7")
    assert reply.acks[LABEL].payload == {"booked": True}
    (signal,) = bank.seen
    assert isinstance(signal, RecordSignal)
    assert (signal.key, signal.content, signal.value, signal.labels) == (b"7", BINARY, None, (LABEL,))
    assert (signal.headers["tenant"], signal.headers["raw"]) == (b"a", b"\xfe")
    assert (signal.topic, signal.offset, signal.timeout_ms, signal.thing_id) == ("orders", 0, 5_000, "unknown:unknown")
    (record,) = system.records["orders"]
    assert (record.key, record.value, stored) == (b"7", BINARY, [True])
    assert bank.responder.statistics.answers == 1
    (ack,) = system.records["acks"]
    assert ack.key == b"order-7"
    assert json.loads(ack.value or b"")["topic"] == f"unknown/unknown/things/live/acks/{LABEL}"


def test_the_headers_of_a_record_have_the_request() -> None:
    system = _system()
    requester = system.requester()
    requester.send_record("orders", None, key=b"7", acks=[LABEL, "stock:packed"], timeout=0.5, correlation_id="a")
    requester.send_record("orders", b"x", acks=[LABEL])
    first, second = map(_headers, system.records["orders"])
    expected = {"correlation-id": "a", "requested-acks": f'["{LABEL}","stock:packed"]', "timeout": "500ms"}
    assert first.items() >= expected.items()
    assert second["correlation-id"]
    assert "timeout" not in second


def test_a_record_that_is_not_acknowledged_in_time_is_answered_with_the_labels_that_are_missing() -> None:
    system = _system()
    Bank(system)
    reply = system.requester().request_record("orders", b"x", acks=[LABEL, "stock:packed"], timeout=3)
    assert (reply.status, reply.completed_by, reply.missing, system.now) == (
        424,
        "timeout",
        ("stock:packed",),
        3_001,
    )


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (Ack(409), 409),
        (DittoError(404, "orders:unknown", "There is no such order."), 404),
        (LookupError("no such order"), 500),
        (After(2, Ack(204)), 204),
        ([Ack(200, label=LABEL)], 200),
        # a record has no response
        (Response(204), 400),
    ],
)
def test_a_handler_answers_a_record_as_a_command(answer: Any, status: int) -> None:
    system = _system()
    Bank(system, answer)
    reply = system.requester().request_record("orders", b"x", acks=[LABEL], timeout="5s")
    assert (reply.status, reply.completed_by) == (status, "acknowledgements")


@pytest.mark.parametrize("acks", [["no label!"], ["twin-persisted"], ["live-response"], []])
def test_a_record_whose_labels_are_invalid_is_answered_with_an_error_and_not_handled(acks: list[str]) -> None:
    system = _system()
    bank = Bank(system)
    reply = system.requester().request_record("orders", b"x", acks=acks)
    assert (reply.status, reply.completed_by, bank.seen) == (400, "invalid", [])
    assert bank.responder.statistics.skipped == 1


def test_records_that_request_nothing_are_ignored() -> None:
    system = _system()
    bank = Bank(system)
    system.feed("orders", b"x", headers=[("correlation-id", b"a"), ("requested-acks", b"")])
    system.feed("orders", None)
    assert (bank.seen, bank.responder.statistics.received, system.ledger, system.dead_letters) == ([], 0, [], [])


def test_commands_and_records_have_responders_of_their_own() -> None:
    system = _system()
    bank, commands = Bank(system), []
    system.responder(handler=commands.append, labels=["lamp:done"])
    requester = system.requester()
    assert requester.request(Command.delete("org.acme:lamp"), acks=[LABEL], timeout="1s").status == 408
    assert requester.request_record("orders", b"x", acks=["lamp:done"], timeout="1s").status == 408
    # a command without its label comes to a responder, a record does not
    assert (bank.seen, len(commands)) == ([], 1)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([("correlation-id", b"own"), ("ce_id", b"event"), ("kafka_correlationId", b"spring")], "own"),
        ([("ce_id", b"event"), ("kafka_correlationId", b"spring")], "event"),
        ([("ce_id", b"old"), ("ce_id", b"event"), ("ce_id", b"")], "event"),
        ([("kafka_correlationId", b"spring")], "spring"),
        ([], "orders-eu-0-0"),
    ],
)
def test_the_correlation_id_is_the_same_for_the_responder_and_the_service(
    headers: list[tuple[str, bytes]], expected: str
) -> None:
    system = _system()
    bank = Bank(system, topics=["orders-eu"])
    system.feed("orders-eu", b"x", headers=[*headers, ("ce_requestedacks", LABEL.encode()), ("ce_timeout", b"2s")])
    (reply,) = system.records["replies"]
    assert (bank.seen[0].correlation_id, bank.seen[0].timeout_ms) == (expected, 2_000)
    assert (_headers(reply)["correlation-id"], _headers(reply)["status"]) == (expected, "201")


@pytest.mark.parametrize("topic", ["bookings", "acks"])
def test_a_record_acknowledges_a_record(topic: str) -> None:
    system = _system()
    future = system.requester().send_record("orders", b"x", acks=[LABEL], correlation_id="a")
    for headers in ({"correlation-id": b"a"}, {"label": LABEL.encode()}):
        # neither is an acknowledgement of it
        system.feed("bookings", b"x", headers=headers.items())
    assert not future.done()
    headers = {"correlation-id": b"a", "label": LABEL.encode(), "status": b"202"}
    system.feed(topic, b"packed", headers=headers.items())
    assert (future.result(0).status, future.result(0).acks[LABEL].payload) == (202, "packed")


def test_any_program_acknowledges_a_record() -> None:
    system = _system()
    future = system.requester().send_record("orders", b"x", acks=[LABEL], correlation_id="a")
    system.acknowledge("a", LABEL, 204)
    assert future.result(0).status == 204


def test_records_of_topics_that_the_settings_do_not_name_are_not_requests() -> None:
    system = _system(request_topics=("orders",))
    bank = Bank(system, topics=["orders-eu"])
    future = system.requester().send_record("orders-eu", b"x", acks=[LABEL], timeout=1)
    # the timeout, the grace, and some
    system.advance(12)
    with pytest.raises(RequestTimeout, match=r"correlate\.request_topics allows orders-eu"):
        future.result()
    assert (len(bank.seen), system.ledger[0].acks[0].disposition) == (1, "orphan")  # type: ignore[index]


@pytest.mark.parametrize(
    ("content", "content_type", "value"),
    [
        (b'{"id":7}', "application/json", {"id": 7}),
        (b'{"id":7}', "application/json; charset=utf-8", {"id": 7}),
        (b"seven", "text/plain", "seven"),
        (b"seven", None, "seven"),
        (BINARY, None, None),
        (b"seven", "application/avro", None),
        (None, None, None),
    ],
)
def test_the_value_of_a_record_is_read_by_its_content_type(content: Any, content_type: str | None, value: Any) -> None:
    system = _system()
    bank = Bank(system)
    headers = {} if content_type is None else {"content-type": content_type}
    system.requester().send_record("orders", content, key=b"k", headers=headers, acks=[LABEL])
    assert (bank.seen[0].content, bank.seen[0].value) == (content, value)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"value": "text"}, "value is 'text': give bytes, not str"),
        ({"key": 7}, "key is 7: give bytes, not int"),
        ({"acks": LABEL}, r"acks is .* which is one text: give a list"),
        ({"headers": {"tenant": 7}}, r"headers\['tenant'\] is 7: give str, not int"),
        ({"headers": {b"tenant": "a"}}, "headers is b'tenant': give str, not bytes"),
        ({"headers": {"timeout": "1s"}}, "headers has timeout, which is the service's own"),
        ({"headers": {"reply-to": "elsewhere"}}, "headers has reply-to, which is the service's own"),
        ({"colour": "red"}, r"Requester\.send_record has no option 'colour'"),
    ],
)
def test_wrong_arguments_of_a_record_are_refused_before_it_is_sent(wrong: dict[str, Any], error: str) -> None:
    system = _system()
    requester = system.requester()
    with pytest.raises(BadParameterError, match=error):
        requester.send_record(**{"topic": "orders", "value": b"x", "acks": [LABEL]} | wrong)
    assert (len(system.records["orders"]), requester.statistics.open) == (0, 0)


@pytest.mark.parametrize("timeout", [-1, "-1s", "soon"])
def test_a_timeout_that_is_no_duration_is_refused(timeout: Any) -> None:
    with pytest.raises(DittoError) as refused:
        _system().requester().send_record("orders", b"x", acks=[LABEL], timeout=timeout)
    assert refused.value.status == 400


def test_records_have_no_live_response() -> None:
    for options in ({}, {"labels": [LABEL, "live-response"]}):
        with pytest.raises(BadParameterError, match="labels has live-response, which no record requests"):
            _system().responder(handler=print, topics=["orders"], **options)
    with pytest.raises(BadParameterError, match="topics is 'orders', which is one text"):
        _system().responder(handler=print, labels=[LABEL], topics="orders")


def test_a_decorated_handler_starts_its_responder() -> None:
    seen: list[bytes | None] = []

    @responder(LABEL, topics=["orders"])
    def book(signal: RecordSignal) -> Ack:
        seen.append(signal.content)
        return Ack(204)

    system = _system()
    requester = system.requester()
    with book(system.connection, expired="handle") as running:
        assert isinstance(running, client.Responder)
        assert running.labels == {LABEL}
        assert requester.request_record("orders", b"x", acks=[LABEL]).status == 204
    assert requester.request_record("orders", b"y", acks=[LABEL], timeout=1).status == 408
    assert seen == [b"x"]


def test_a_decorator_without_its_labels_says_so() -> None:
    def book(_signal: RecordSignal) -> Ack:
        return Ack()

    decorated: Callable[..., Any] = responder(book)  # type: ignore[arg-type]
    with pytest.raises(BadParameterError, match="labels has <function"):
        decorated("localhost:9092")


def test_updates_and_second_replies_come_in_memory_as_from_kafka() -> None:
    system, amended = _system(), list[Reply]()
    requester = system.requester(on_amended=amended.append)
    updates = requester.stream_record(
        "orders", b"x", acks=[LABEL, "stock:packed"], timeout="5s", correlation_id="o", headers={"amend": "1m"}
    )
    system.acknowledge("o", LABEL)
    update, reply = next(updates), next(updates)
    assert (update.is_update, [*update.acks]) == (True, [LABEL])
    assert (reply.completed_by, reply.missing, system.now) == ("timeout", ("stock:packed",), 5_001)
    system.acknowledge("o", "stock:packed")
    (second,) = amended
    assert (second.completed_by, second.ok, second.version, second.reply_id) == ("amended", True, 2, reply.reply_id)
    assert list(updates) == []
