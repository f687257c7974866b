""""""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError, MessageSizeTooLargeError

from ackstream.client.errors import CorrelationIdInUseError
from ackstream.connectivity import intake
from ackstream.connectivity import intake as intake_module
from ackstream.connectivity.inbound import RejectedSignal
from ackstream.connectivity.system import STORED, SourceFailure, verdict
from ackstream.connectivity.transports.transport import MAX_BYTES, ExternalMessage, OutgoingMessage, not_published
from ackstream.errors import UnreachableError
from ackstream.protocol.ditto.acknowledgements import Acknowledgement, write_ack
from ackstream.protocol.ditto.aggregates import write_acks
from ackstream.protocol.ditto.connection_rules import SettlementAnswer
from ackstream.protocol.ditto.envelopes import Envelope, decode, error_envelope
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.ditto.twin.access import OPEN
from ackstream.protocol.errors import label_not_declared, thing_not_found
from ackstream.settings.connections import KafkaConnection, ReplyTarget, Source
from tests.prose import covers, each, prose


def collected(expected: int | None, *answers: SettlementAnswer | SourceFailure | None, after: float = 0.0) -> Any:
    # an unknown number is not known to have arrived
    collector = intake.Collector(1 if expected is None else expected, 0.0)
    for answer in answers:
        collector.receive(answer, 0.0)
    return collector.settlement(after)


@each("settlement", "collector-")
def test_prose_collected_answers(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    answers = [SettlementAnswer((each["status"],), live="live" in each["kind"]) for each in given_["responses"]]
    idle = intake.IDLE_SECONDS if given_.get("collector") == "timed out" else 0.0
    assert collected(given_["expectedCount"], *answers, after=idle) == expect["settlement"]
    assert (collected(given_["expectedCount"], *answers) is not None) is expect["allArrived"]
    assert [answer.statuses[0] for answer in answers if answer.failed] == expect["failed"]


@each("settlement", "consumer-")
def test_prose_consumed_messages(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    outcome = given_["outcome"]
    answer: SettlementAnswer | SourceFailure = SettlementAnswer((outcome["status"],))
    if outcome["kind"].startswith("error"):
        answer = SourceFailure(outcome["status"])
    assert collected(len(given_["requested"]), answer) == expect["settlement"]


@covers("aggregation", "weak-redelivery")
def test_prose_other_weak_ack_settles() -> None:
    assert "other-weak-ack" in prose("settlement")
    assert collected(1, SettlementAnswer((200,))) == "settle"


def test_nothing_awaited_settles_at_once() -> None:
    assert collected(0) == "settle"


@pytest.mark.parametrize("answers", [[], [SettlementAnswer((204,))]])
def test_as_long_as_something_may_come_nothing_is_decided(answers: list[SettlementAnswer]) -> None:
    assert collected(2, *answers, after=intake.IDLE_SECONDS - 1) is None
    assert collected(2, *answers, after=intake.IDLE_SECONDS) == "reject-with-redelivery"


def test_news_prolong_the_wait() -> None:
    collector = intake.Collector(2, 10.0)
    collector.receive(SettlementAnswer((204,)), 90.0)
    assert collector.settlement(intake.IDLE_SECONDS + 80) is None
    collector.receive(SettlementAnswer((204,)), 180.0)
    assert collector.settlement(180.0) == "settle"


def test_what_will_never_come_is_not_waited_for() -> None:
    assert collected(2, None) == "reject-with-redelivery"
    assert collected(2, SettlementAnswer((404,)), None) == "reject-without-redelivery"


@pytest.mark.parametrize(
    ("status", "settlement"),
    [(412, "settle"), (404, "reject-without-redelivery"), (503, "reject-with-redelivery")],
)
def test_an_error_decides_at_once(status: int, settlement: str) -> None:
    assert collected(3, SourceFailure(status), SettlementAnswer((204,))) == settlement


AGAIN = "reject-with-redelivery"
COMMAND = {"topic": "org.acme/lamp/things/twin/commands/modify", "headers": {}, "path": "/attributes/x", "value": 1}


class Other:
    """The system, the publisher and the labels: keeps what it gets."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.published: list[OutgoingMessage] = []
        self.given_up: list[tuple[str, str]] = []
        self.complete, self.taken = True, False

    def ask(self, asked: Any, *, redelivered: bool, replied: Any, received: Any) -> None:
        self.asked.append((asked, redelivered, replied, received))

    def relay(self, envelope: Any, received: Any) -> None:
        self.asked.append((envelope, False, None, received))

    def give_up(self, message: Any, reason: str, received: Any, answer: Any = STORED) -> None:
        self.given_up.append((message.identity, reason))
        received(answer)

    def publish(self, message: OutgoingMessage, done: Any) -> None:
        self.published.append(message)
        done(not_published(ConnectionError("as if")))


class Taken:
    """An intake, and what it said of each message."""

    def __init__(self, *, max_attempts: int = 20, **settings: Any) -> None:
        self.other = Other()
        self.settled: dict[str, str] = {}
        self.crowded = False
        source = Source(addresses=("in",), reply_target={"address": "answers"}, **settings)
        other: Any = self.other
        connection = KafkaConnection(id="plant", type="kafka", max_attempts=max_attempts)
        self.intake = intake.Intake(connection, source, other, other.publish, other, OPEN, lambda: self.crowded)

    def take(self, identity: str, payload: Any = COMMAND, *, able: bool = False, **options: Any) -> None:
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()

        def done(settlement: str) -> None:
            self.settled[identity] = settlement

        self.intake.take(ExternalMessage(identity, {}, data), done, able=able, **options)

    def answer(self, index: int, answer: SettlementAnswer | SourceFailure | None) -> None:
        self.other.asked[index][3](answer)
        self.intake.turn()


def test_a_message_is_settled_when_its_answer_is_there() -> None:
    taken = Taken()
    taken.take("one")
    taken.intake.turn()
    assert taken.settled == {}
    taken.answer(0, SettlementAnswer((204,)))
    assert taken.settled == {"one": "settle"}


@pytest.mark.parametrize(
    ("answers", "settlement"),
    [
        ([SettlementAnswer((204,)), SettlementAnswer((204,))], "settle"),
        ([SettlementAnswer((204,)), SettlementAnswer((404,))], "reject-without-redelivery"),
        ([SettlementAnswer((204,)), None], "reject-with-redelivery"),
        ([SourceFailure(503)], "reject-with-redelivery"),
    ],
)
def test_a_message_of_several_signals_waits_for_all_of_them(answers: list[Any], settlement: str) -> None:
    taken = Taken(payload_mapping=("ditto", {"topic": COMMAND["topic"], "path": "/attributes/raw"}))
    taken.take("one")
    assert len(taken.other.asked) == 2
    for index, answer in enumerate(answers):
        assert taken.settled == {}
        taken.answer(index, answer)
    assert taken.settled == {"one": settlement}


@each("settlement", "kafka-dre-qos1")
def test_prose_what_cannot_be_read_is_settled_and_its_error_published(
    given_: dict[str, Any], expect: dict[str, Any]
) -> None:
    assert given_["record"] == "transformation gives a Ditto error"
    assert expect == {"published": "error at reply-target", "offset": "committed"}
    taken = Taken()
    taken.take("one", b"?")
    taken.intake.turn()
    assert taken.settled == {"one": "settle"}
    ((identity, reason),) = taken.other.given_up
    assert identity == "one"
    assert "JSON" in reason
    assert json.loads(taken.other.published[0].payload)["value"]["error"] == "json.invalid"


CONTRADICTION = COMMAND | {"headers": {"timeout": "0", "requested-acks": ["my-ack"]}}


def test_headers_that_contradict_each_other_reject_a_message_for_good() -> None:
    taken = Taken()
    taken.take("one", CONTRADICTION)
    taken.intake.turn()
    assert taken.settled == {"one": "reject-without-redelivery"}
    assert (len(taken.other.published), len(taken.other.given_up)) == (1, 1)


@pytest.mark.parametrize(("stored", "settlement"), [(True, "reject-without-redelivery"), (False, AGAIN)])
def test_a_message_is_rejected_once_it_is_among_the_dead_letters(
    monkeypatch: pytest.MonkeyPatch, *, stored: bool, settlement: str
) -> None:
    taken = Taken()
    kept: list[Any] = []
    monkeypatch.setattr(taken.other, "give_up", lambda *arguments: kept.append(arguments))
    taken.take("one", CONTRADICTION)
    taken.intake.turn()
    ((_, _, received, answer),) = kept
    assert taken.settled == {}
    received(answer if stored else None)
    taken.intake.turn()
    assert taken.settled == {"one": settlement}


def test_what_fails_unexpectedly_is_settled_when_it_is_among_the_dead_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken()
    monkeypatch.setattr(taken.intake._inbound, "read", lambda _message: 1 / 0)
    taken.take("one")
    assert (taken.settled, len(taken.other.given_up)) == ({}, 1)
    taken.intake.turn()
    assert taken.settled == {"one": "settle"}


def test_what_the_transport_cannot_read_is_settled_when_it_is_among_the_dead_letters() -> None:
    taken = Taken()
    done: list[str] = []
    taken.intake.take(ExternalMessage("one", {}, b"\x00raw", "no AMQP message"), done.append)
    taken.intake.turn()
    assert (done, taken.other.given_up, taken.other.asked) == (["settle"], [("one", "no AMQP message")], [])


def test_what_cannot_be_given_up_is_delivered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken()
    monkeypatch.setattr(taken.other, "give_up", lambda _message, _reason, received: received(None))
    taken.take("one", b"?")
    taken.intake.turn()
    assert taken.settled == {"one": "reject-with-redelivery"}


ACK = {
    "topic": "org.acme/lamp/things/twin/acks/plant:done",
    "headers": {"correlation-id": "x"},
    "path": "/",
    "status": 204,
}


def test_while_the_lease_of_the_labels_is_late_acknowledgements_wait_and_are_not_delivered_again() -> None:
    taken = Taken(declared_acks=("plant:done",))
    taken.other.complete = False
    taken.take("one", ACK)
    taken.take("two", COMMAND)
    # however long it takes: a redelivery would repeat what came behind it
    for collector in taken.intake._open:
        collector.received_at -= 2 * intake.IDLE_SECONDS
    taken.intake.turn()
    assert (taken.settled, len(taken.other.asked), taken.other.given_up) == ({"two": AGAIN}, 1, [])
    taken.other.complete = True
    taken.intake.turn()
    taken.answer(1, SettlementAnswer(()))
    assert (taken.settled, len(taken.other.asked)) == ({"one": "settle", "two": AGAIN}, 2)


def test_an_acknowledgement_that_waited_for_the_lease_is_rejected_if_another_client_has_the_label() -> None:
    taken = Taken(declared_acks=("plant:done",))
    taken.other.complete = False
    taken.take("one", ACK)
    taken.other.taken = True
    taken.intake.turn()
    taken.intake.turn()
    assert (taken.settled, taken.other.asked) == ({"one": "reject-without-redelivery"}, [])
    assert json.loads(taken.other.published[0].payload)["value"]["error"] == "acknowledgement:label.not.unique"


def test_an_acknowledgement_that_waits_when_its_source_closes_is_forgotten() -> None:
    taken = Taken(declared_acks=("plant:done",))
    taken.other.complete = False
    taken.take("one", ACK)
    taken.intake.forget()
    taken.other.complete = True
    taken.intake.turn()
    assert (taken.settled, taken.other.asked) == ({}, [])


def test_while_the_labels_are_taken_acknowledgements_are_rejected_with_an_error() -> None:
    taken = Taken(declared_acks=("plant:done",))
    taken.take("one", ACK)
    taken.answer(0, SettlementAnswer(()))
    taken.other.complete, taken.other.taken = False, True
    taken.take("two", ACK)
    taken.take("three", COMMAND)
    taken.answer(1, SettlementAnswer((204,)))
    assert taken.settled == {"one": "settle", "two": "reject-without-redelivery", "three": "settle"}
    error = json.loads(taken.other.published[0].payload)["value"]
    assert (error["status"], error["error"]) == (409, "acknowledgement:label.not.unique")


@pytest.mark.parametrize(
    "error", [UnreachableError("no broker"), KafkaTimeoutError(), CorrelationIdInUseError("open", "mine")]
)
def test_a_signal_that_could_not_be_sent_for_a_reason_that_may_pass_is_delivered_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = Taken()

    def ask(*_arguments: Any, **_options: Any) -> None:
        raise error

    monkeypatch.setattr(taken.other, "ask", ask)
    taken.take("one")
    taken.intake.turn()
    assert (taken.settled, taken.other.given_up) == ({"one": AGAIN}, [])


@pytest.mark.parametrize(("error", "status"), [(ValueError("no"), 400), (MessageSizeTooLargeError("no"), 413)])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_signal_that_can_never_be_sent_is_a_dead_letter_and_its_error_is_published(
    error: Exception,
    status: int,
    at_once: bool,  # noqa: FBT001 - a table
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = Taken(declared_acks=("plant:done",))

    def refuse(*_arguments: Any, received: Any = None, **_options: Any) -> None:
        if at_once:
            raise error
        (received or _arguments[1])(error)

    for name in ("ask", "relay"):
        monkeypatch.setattr(taken.other, name, refuse)
    taken.take("one", COMMAND)
    taken.take("two", ACK)
    taken.intake.turn()
    taken.intake.turn()
    assert taken.settled == {"one": "settle", "two": "settle"}
    reason = f"The signal cannot be sent: {error}"
    assert taken.other.given_up == [("one", reason), ("two", reason)]
    answers = [json.loads(message.payload)["value"] for message in taken.other.published]
    assert [(answer["status"], answer["message"]) for answer in answers] == [(status, reason)] * 2


@each("settlement", "kafka-backpressure")
def test_prose_beyond_the_limit_there_is_no_room(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert given_["qos"] in (0, 1)
    assert expect["furtherRecords"] == "not processed until an earlier one is settled"
    taken = Taken()
    for number in range(200):
        assert taken.intake.room == 200 - number
        taken.take(str(number))
    assert taken.intake.room == 0
    taken.answer(7, SettlementAnswer((204,)))
    assert (taken.intake.room, taken.settled) == (1, {"7": "settle"})
    # replies that wait for the other system hold it back, too
    taken.crowded = True
    assert taken.intake.room == 0


def test_it_is_passed_on_that_a_message_may_have_come_before() -> None:
    taken = Taken()
    taken.take("one", delivered=1)
    taken.take("two")
    assert [redelivered for _, redelivered, _, _ in taken.other.asked] == [True, False]


FAILED = SourceFailure(503)


class Tried(Taken):
    """An intake whose time is the test's; its messages may be tried again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        super().__init__(**settings)
        self.now = 0.0
        monkeypatch.setattr(intake_module, "time", SimpleNamespace(monotonic=lambda: self.now))

    def take(self, identity: str, payload: Any = COMMAND, *, able: bool = True, **options: Any) -> None:
        super().take(identity, payload, able=able, **options)

    def fail(self, answer: SettlementAnswer | SourceFailure | None = FAILED, attempt: int = -1) -> float:
        """Fail an attempt, the last one; return the seconds until the next one, infinity if there is none."""
        attempts, began = len(self.other.asked), self.now
        self.answer(attempt, answer)
        while len(self.other.asked) == attempts:
            if not self.intake._waiting:
                return float("inf")
            self.now = min(self.intake._waiting.values())
            self.intake.turn()
        return self.now - began


def test_a_message_that_fails_is_tried_again_alone_after_pauses_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = Tried(monkeypatch)
    tried.take("bad")
    pauses, attempt = [], 0
    for number in range(12):
        tried.take(f"good{number}")
        tried.answer(-1, SettlementAnswer((204,)))
        pauses.append(round(tried.fail(attempt=attempt), 3))
        attempt = len(tried.other.asked) - 1
    # a success of another message does not shorten them
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, *[intake.PAUSE_SECONDS] * 3]
    assert tried.settled == {f"good{number}": "settle" for number in range(12)}
    assert [redelivered for _, redelivered, _, _ in tried.other.asked] == [False, *[False, True] * 12]
    tried.answer(-1, SettlementAnswer((204,)))
    assert tried.settled["bad"] == "settle"


@pytest.mark.parametrize(("delivered", "attempts"), [(0, 3), (1, 2), (2, 1), (7, 1)])
def test_after_the_last_attempt_a_message_is_a_dead_letter_and_its_error_is_published(
    delivered: int, attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deliveries that the broker has counted are attempts."""
    tried = Tried(monkeypatch, max_attempts=3)
    tried.take("bad", delivered=delivered)
    pauses = [tried.fail() for _ in range(attempts)]
    assert pauses[-1] == float("inf")
    assert (tried.settled, len(tried.other.asked)) == ({"bad": "settle"}, attempts)
    ((identity, reason),) = tried.other.given_up
    assert identity == "bad"
    assert reason.endswith("as often as connections.max_attempts permits; last with 503.")
    value = json.loads(tried.other.published[-1].payload)["value"]
    assert (value["status"], value["error"], value["message"]) == (503, "connectivity:message.given.up", reason)


def test_attempts_that_the_system_does_not_answer_have_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """As while its Kafka, or the job that answers, is away."""
    tried = Tried(monkeypatch, max_attempts=2)
    tried.take("one")
    for _ in range(50):
        assert tried.fail(None) < float("inf")
    tried.fail(SettlementAnswer((200, 424)))
    tried.answer(-1, SettlementAnswer((204,)))
    assert (tried.settled, tried.other.given_up) == ({"one": "settle"}, [])


def test_a_message_whose_dead_letter_is_not_stored_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = Tried(monkeypatch, max_attempts=1)
    give_up = tried.other.give_up
    monkeypatch.setattr(tried.other, "give_up", lambda _message, _reason, received: received(None))
    tried.take("one")
    assert tried.fail() == 0.1
    monkeypatch.setattr(tried.other, "give_up", give_up)
    tried.fail()
    tried.intake.turn()
    assert tried.settled == {"one": "settle"}


def test_with_qos_0_no_message_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = Tried(monkeypatch, qos=0)
    tried.take("one")
    assert (tried.fail(), tried.settled) == (float("inf"), {"one": AGAIN})


def test_a_message_that_waits_for_its_next_attempt_takes_room_and_is_forgotten_with_its_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = Tried(monkeypatch)
    tried.take("one")
    tried.answer(0, SourceFailure(503))
    assert (tried.settled, tried.intake.room) == ({}, 199)
    tried.intake.forget()
    tried.now = 1.0
    tried.intake.turn()
    assert len(tried.other.asked) == 1


def test_messages_in_flight_are_weighed_too() -> None:
    taken = Taken()
    large = COMMAND | {"value": "x" * (MAX_BYTES // 4)}
    for number in range(4):
        assert taken.intake.room == 200 - number
        taken.take(str(number), large)
    assert taken.intake.room == 0
    taken.answer(0, SettlementAnswer((204,)))
    assert taken.intake.room == 197


def test_what_comes_after_the_end_counts_for_nothing() -> None:
    taken = Taken()
    taken.take("one")
    taken.intake.forget()
    taken.answer(0, SettlementAnswer((204,)))
    assert taken.settled == {}


THING = "org.acme:lamp"


def aggregate(*statuses: int) -> Envelope:
    acks = [Acknowledgement(f"ack-{number}", status) for number, status in enumerate(statuses)]
    return write_acks(acks, thing_id=THING, channel="twin", headers={"correlation-id": "mine#1", "device": "7"})


def response(status: int = 204, channel: str = "twin") -> Envelope:
    topic = TopicPath.parse(f"org.acme/lamp/things/{channel}/commands/modify")
    return Envelope(topic, {"correlation-id": "mine#1"}, "/attributes/x", status=status)


ERROR = error_envelope(thing_not_found(THING), thing_id=THING, channel="twin", headers={"correlation-id": "mine#1"})


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (response(), "response"),
        (response(404, "live"), "response"),
        (aggregate(200, 204), "response"),
        (aggregate(200), "response"),
        (aggregate(200, 404), "nack"),
        (aggregate(408), "nack"),
        (write_ack(Acknowledgement("my-ack", 200), THING), "response"),
        (write_ack(Acknowledgement("my-ack", 304), THING), "nack"),
        (ERROR, "error"),
    ],
)
def test_a_reply_target_gets_the_kinds_it_expects(answer: Envelope, kind: Any) -> None:
    assert intake.response_kind(answer) == kind
    for expected in ("response", "error", "nack"):
        target = ReplyTarget(address="answers", expected=(expected,))
        assert (intake.published_reply(answer, {}, target, "plant") is not None) is (expected == kind)
    assert intake.published_reply(answer, {}, None, "plant") is None


def test_by_default_a_reply_target_gets_all_kinds_and_otherwise_those_that_are_listed() -> None:
    for answer in (aggregate(200, 424), ERROR, response()):
        assert intake.published_reply(answer, {}, ReplyTarget(address="answers"), "plant") is not None
    target = ReplyTarget(address="answers", expected=("response", "error"))
    assert intake.published_reply(aggregate(200, 424), {}, target, "plant") is None


def test_the_reply_has_the_request_s_correlation_id_and_the_mapped_headers() -> None:
    target = ReplyTarget(
        address="answers/{{ header:reply-key }}",
        header_mapping={"device": "{{ header:device }}", "thing": "{{ thing:id }}", "none": "{{ header:none }}"},
    )
    found = intake.published_reply(aggregate(200), {"correlation-id": "mine", "reply-key": "k"}, target, "plant")
    assert found is not None
    assert found.address == "answers/k"
    assert found.headers == {
        "content-type": "application/vnd.eclipse.ditto+json",
        "correlation-id": "mine",
        "ditto-connection-id": "plant",
        "device": "7",
        "thing": THING,
    }
    assert decode(found.payload).headers["correlation-id"] == "mine"


def test_without_an_address_nothing_is_published() -> None:
    target = ReplyTarget(address="answers/{{ header:none }}")
    assert intake.published_reply(response(), {}, target, "plant") is None


def test_an_error_names_what_it_concerns() -> None:
    refused = RejectedSignal(label_not_declared("x-ack"), response().topic, {"correlation-id": "mine"}, rejects=False)
    found = intake.published_error(refused, ReplyTarget(address="answers"), "plant")
    assert found is not None
    envelope = decode(found.payload)
    assert (str(envelope.topic), envelope.status) == ("org.acme/lamp/things/twin/errors", 400)


@pytest.mark.parametrize(
    ("answer", "completed_by", "live", "expect"),
    [
        (response(), "response", False, SettlementAnswer((204,))),
        (response(404, "live"), "response", True, SettlementAnswer((404,), live=True)),
        (aggregate(200, 408), "timeout", False, SettlementAnswer((200, 408))),
        (aggregate(200, 200), "acknowledgements", True, SettlementAnswer((200, 200))),
        (ERROR, "error", False, SourceFailure(404)),
        (ERROR, "invalid", False, SourceFailure(404)),
        (ERROR, "timeout", True, SourceFailure(404)),
        (ERROR, "response", True, SettlementAnswer((404,), live=True)),
    ],
)
def test_what_an_answer_means_for_its_message(
    answer: Envelope,
    completed_by: str,
    live: bool,  # noqa: FBT001 - a table
    expect: SettlementAnswer | SourceFailure,
) -> None:
    assert verdict(answer, completed_by=completed_by, live=live) == expect
