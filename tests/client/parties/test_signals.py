from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ackstream.client.core.messages import Work
from ackstream.client.parties.answers import Ack, After, OpenDelivery, Response
from ackstream.client.parties.signals import Delivered, Signal, failure, messages, read_publication, read_signal
from ackstream.protocol.ditto.acknowledgements import read_ack
from ackstream.protocol.ditto.envelopes import Envelope, decode, encode
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.ditto.twin.access import signature
from ackstream.protocol.errors import DittoError, thing_not_found
from ackstream.settings.security import Secret

COMMAND = "org.acme/lamp/things/twin/commands/modify"


def record(value: bytes | None, headers: list[tuple[str, bytes | None]] | None = None) -> Any:
    return SimpleNamespace(value=value, headers=headers or [], topic="signals", partition=2, offset=40, timestamp=1_700)


def command(topic: str = COMMAND, **headers: Any) -> bytes:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return msgspec.json.encode({"topic": topic, "headers": named, "path": "/attributes/x", "value": {"on": True}})


def read(topic: str = COMMAND, labels: set[str] | None = None, **headers: Any) -> Signal:
    own = {*headers.get("requested_acks", ()), "live-response"} if labels is None else labels
    return read_signal(record(command(topic, correlation_id="c-1", **headers)), own)


def test_a_signal_has_what_a_handler_needs():
    assert read(requested_acks=["meter"], timeout="1h").timeout_ms == 3_600_000
    signal = read(requested_acks=["meter", "twin-persisted"], timeout="3s")
    assert (signal.correlation_id, signal.thing_id, signal.path, signal.value) == (
        "c-1", "org.acme:lamp", "/attributes/x", {"on": True},
    )  # fmt: skip
    assert (signal.timestamp, signal.topic, signal.partition, signal.offset) == (1_700, "signals", 2, 40)
    assert (signal.channel, signal.timeout_ms) == ("twin", 3_000)


def test_a_signal_whose_correlation_id_the_service_refuses_is_no_request():
    for value, headers in ((command(correlation_id="x" * 1_025), []), (command(), [("correlation-id", b"x" * 1_025)])):
        for signal in (lambda record: read_signal(record, ()), read_publication):
            with pytest.raises(DittoError, match="1,024 bytes"):
                signal(record(value, headers))


def test_only_the_labels_that_the_responder_issues_are_shown_in_order_of_the_request():
    requested = ["b-b", "twin-persisted", "c-c", "a-a", "b-b"]
    assert read(requested_acks=requested).labels == ("b-b", "c-c", "a-a")
    assert read(requested_acks=requested, labels={"a-a", "b-b", "d-d"}).labels == ("b-b", "a-a")
    assert read(labels={"a-a"}).labels == ()


@pytest.mark.parametrize(
    ("topic", "labels", "headers", "wanted"),
    [
        (COMMAND, None, {}, False),
        ("org.acme/lamp/things/live/commands/modify", None, {}, True),
        ("org.acme/lamp/things/live/messages/dim", {"live-response"}, {}, True),
        ("org.acme/lamp/things/live/messages/dim", {"meter"}, {}, False),
        ("org.acme/lamp/things/live/messages/dim", None, {"response_required": False}, False),
    ],
)
def test_a_responder_to_live_commands_issues_live_response(topic, labels, headers, wanted):
    assert read(topic, labels, **headers).response_wanted is wanted


@pytest.mark.parametrize(
    ("record_headers", "json_headers", "identity"),
    [
        ([("correlation-id", b"of-record")], {"correlation_id": "of-json"}, "of-record"),
        ([], {"correlation_id": "of-json"}, "of-json"),
        ([], {}, "signals-2-40"),
    ],
)
def test_the_correlation_id_is_found_where_the_service_finds_it(record_headers, json_headers, identity):
    assert read_signal(record(command(**json_headers), record_headers), ()).correlation_id == identity


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"\xff",
        b"[]",
        b"[" * 5_000,
        command("org.acme/lamp/things/twin/events/modified"),
        command(timeout="soon"),
        command(requested_acks=["?"]),
    ],
)
def test_an_invalid_request_is_an_error(value):
    with pytest.raises(DittoError):
        read_signal(record(value), ())


def test_a_signal_without_value_has_none():
    value = msgspec.json.encode({"topic": "org.acme/lamp/things/twin/commands/delete", "headers": {}, "path": "/"})
    assert read_signal(record(value), ()).value is None


LIVE = "org.acme/lamp/things/live/messages/dim"
SIGNAL = read(requested_acks=["a-a", "b-b"])


EVENT = "org.acme/lamp/things/twin/events/modified"


def test_events_and_live_signals_are_read_for_subscribers_and_all_else_is_not():
    event = read_publication(record(command(EVENT, requested_acks=["meter"]), [("correlation-id", b"c-1")]))
    assert event is not None
    assert (event.stream, event.correlation_id, event.labels) == ("events", "c-1", ("meter",))
    assert read_publication(record(command())) is None
    assert read_publication(record(None)) is None


@pytest.mark.parametrize("value", [b"", b"[]", command(LIVE, timeout="soon")])
def test_an_unreadable_signal_is_an_error(value):
    with pytest.raises(DittoError):
        read_publication(record(value))


def wire(answer: Any, signal=SIGNAL) -> list[dict[str, Any]]:
    return [msgspec.json.decode(encode(message)) for _, message in messages(signal, answer)]


def test_an_acknowledgement_is_for_all_labels_that_were_asked_for():
    first, second = wire(Ack(payload={"x": 1}))
    assert first == {
        "topic": "org.acme/lamp/things/twin/acks/a-a",
        "headers": {"correlation-id": "c-1", "response-required": False},
        "path": "/",
        "value": {"x": 1},
        "status": 200,
    }
    assert second["topic"].endswith("/acks/b-b")


def test_an_acknowledgement_may_name_its_label_and_carry_headers():
    (ack,) = wire(Ack(503, label="b-b", headers={"retry": "later"}))
    assert (ack["topic"], ack["status"]) == ("org.acme/lamp/things/twin/acks/b-b", 503)
    assert ack["headers"]["retry"] == "later"
    assert "value" not in ack


def test_an_acknowledgement_of_a_live_signal_is_live():
    (ack,) = wire(Ack(), read(LIVE, requested_acks=["a-a"]))
    assert ack["topic"] == "org.acme/lamp/things/live/acks/a-a"


def test_the_service_reads_the_acknowledgement_that_was_written():
    for _, message in messages(SIGNAL, Ack(payload=[1])):
        ack = read_ack(decode(encode(message)))
        assert (ack.status, bytes(ack.payload)) == (200, b"[1]")


def test_a_response_has_the_commands_topic_and_path():
    signal = read(LIVE)
    (response,) = wire(Response(201, {"ok": True}), signal)
    assert response == {
        "topic": LIVE,
        "headers": {"correlation-id": "c-1", "response-required": False},
        "path": "/attributes/x",
        "value": {"ok": True},
        "status": 201,
    }


def test_an_error_is_the_response_to_a_live_signal():
    (error,) = wire(thing_not_found("org.acme:lamp"), read(LIVE))
    assert (error["topic"], error["status"]) == ("org.acme/lamp/things/live/errors", 404)
    assert error["headers"]["correlation-id"] == "c-1"
    assert error["value"]["error"] == "things:thing.notfound"


def test_an_error_about_what_the_twin_answers_is_a_nack_for_each_label():
    nacks = wire(After(2, thing_not_found("org.acme:lamp")))
    assert [(nack["topic"][-8:], nack["status"]) for nack in nacks] == [("acks/a-a", 404), ("acks/b-b", 404)]
    assert {nack["value"]["error"] for nack in nacks} == {"things:thing.notfound"}
    assert [delay for delay, _ in messages(SIGNAL, After(2, thing_not_found("org.acme:lamp")))] == [2, 2]


def test_the_twin_alone_responds_to_its_commands():
    for answer in (Response(204), [Ack(), Response(204)]):
        with pytest.raises(DittoError, match="is not supported") as refused:
            messages(SIGNAL, answer)
        assert refused.value.description == "A client responds to live signals only: acknowledge a label."


def test_an_acknowledgement_has_the_schema_version_of_the_signal():
    (ack,) = wire(Ack(), read(requested_acks=["a-a"], version=2))
    assert ack["headers"] == {"correlation-id": "c-1", "version": 2, "response-required": False}


def test_delays_add_up_and_parts_may_have_different_ones():
    answer = [Ack(label="a-a"), After(2, [Ack(label="b-b"), After(0.5, Response())]), None]
    found = [(delay, str(message.topic)) for delay, message in messages(read(LIVE), answer)]
    assert found == [
        (0.0, "org.acme/lamp/things/live/acks/a-a"),
        (2.0, "org.acme/lamp/things/live/acks/b-b"),
        (2.5, LIVE),
    ]


@pytest.mark.parametrize("answer", [None, [], (), After(1, None), [None, []]])
def test_an_answer_may_be_empty(answer):
    assert messages(SIGNAL, answer) == []


@pytest.mark.parametrize("answer", [200, "ok", {"status": 200}, b"", True, [Ack(), 1]])
def test_anything_else_is_a_type_error(answer):
    with pytest.raises(TypeError, match="A handler returns Ack"):
        messages(SIGNAL, answer)


@pytest.mark.parametrize("label", ["twin-persisted", "no", "ä-ö-ü"])
def test_an_invalid_or_built_in_label_is_refused(label):
    with pytest.raises(DittoError):
        messages(SIGNAL, Ack(label=label))


def failed(error: Exception, signal=SIGNAL) -> list[dict[str, Any]]:
    return [msgspec.json.decode(encode(message)) for _, message in failure(signal, error)]


def test_an_exception_is_a_nack_for_each_label_with_its_text():
    nacks = failed(ValueError("no such lamp"))
    assert [nack["topic"][-3:] for nack in nacks] == ["a-a", "b-b"]
    for nack in nacks:
        assert nack["status"] == 500
        assert nack["value"] == {
            "status": 500,
            "error": "responder:handler.failed",
            "message": "The handler of the signal failed: no such lamp",
        }


def test_an_exception_without_text_is_named():
    assert failed(KeyError())[0]["value"]["message"].endswith("failed: KeyError")


def test_a_raised_protocol_error_keeps_its_status_and_texts():
    nack = failed(thing_not_found("org.acme:lamp"))[0]
    assert nack["status"] == 404
    assert nack["value"]["error"] == "things:thing.notfound"


def test_a_failing_handler_that_is_to_respond_responds_with_an_error():
    signal = read(LIVE, {"live-response"})
    (error,) = failed(ValueError("broken"), signal)
    assert (error["topic"], error["status"]) == ("org.acme/lamp/things/live/errors", 500)
    assert failed(ValueError("broken"), read(LIVE, {"meter"})) == []


class Worker:
    """Records what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int | None, float]] = []
        self.outbox = SimpleNamespace(send=self._send, hold=self._hold, release=self._release)

    def _send(self, correlation_id: str, message: Envelope, work: Work, delay: float = 0.0) -> None:
        assert (correlation_id, work.offset) == ("c", 7)
        self.sent.append((str(message.topic).rpartition("/")[2], message.status, delay))

    @staticmethod
    def _hold(work: Work) -> None:
        work.remaining += 1

    @staticmethod
    def _release(work: Work) -> None:
        work.remaining -= 1


def delivered(*labels: str, held: bool = False) -> tuple[Delivered, OpenDelivery, Worker, Work]:
    worker, work = Worker(), Work(7)
    opened = OpenDelivery(lambda: worker.outbox, work, "c", labels, held=held)  # type: ignore[arg-type, return-value]
    topic = TopicPath.parse("org.acme/lamp/things/twin/events/modified")
    signal = Delivered("c", Envelope(topic, {}), "twin", labels, False, False, None, 0, "events", 0, 7, _open=opened)  # noqa: FBT003
    return signal, opened, worker, work


def test_unanswered_labels_are_acknowledged_at_the_end():
    signal, opened, worker, _ = delivered("a-a", "b-b")
    signal.ack(202, label="b-b")
    opened.send(messages(signal, Ack()), missing=True)
    assert worker.sent == [("b-b", 202, 0.0), ("a-a", 200, 0.0)]


def test_unanswered_labels_get_the_nack():
    signal, opened, worker, _ = delivered("a-a", "b-b")
    signal.ack(label="a-a")
    opened.send(failure(signal, ValueError("broken")), missing=True)
    assert worker.sent == [("a-a", 200, 0.0), ("b-b", 500, 0.0)]


def test_a_delayed_answer_counts_as_an_answer():
    signal, opened, worker, _ = delivered("a-a")
    signal.answer([After(2, Ack(204))])
    opened.send(messages(signal, Ack()), missing=True)
    assert worker.sent == [("a-a", 204, 2.0)]


@pytest.mark.parametrize("answer", [Ack(label="c-c"), Ack(label="live-response"), [Ack(), Ack(label="c-c")]])
def test_a_label_that_was_not_requested_is_refused_and_nothing_is_sent(answer: Any):
    signal, _, worker, _ = delivered("a-a")
    with pytest.raises(DittoError):
        signal.answer(answer)
    assert worker.sent == []


def test_a_held_offset_is_released_with_the_last_label():
    signal, opened, _, work = delivered("a-a", "b-b", held=True)
    assert opened.held
    signal.ack(label="a-a")
    assert work.remaining == 1
    signal.ack(label="b-b")
    assert work.remaining == 0
    assert not opened.give_up()


def test_a_held_offset_can_be_given_up_once():
    _, opened, _, work = delivered("a-a", held=True)
    assert (opened.give_up(), opened.give_up(), work.remaining) == (True, False, 0)


def test_a_signal_without_labels_holds_nothing():
    _, opened, _, work = delivered(held=True)
    assert (opened.held, work.remaining) == (False, 0)


def test_a_command_that_its_header_makes_live_is_answered_on_the_live_channel():
    ((_, answer),) = messages(read(COMMAND, channel="live"), Response(204))
    assert str(answer.topic) == "org.acme/lamp/things/live/commands/modify"


@pytest.mark.parametrize("live", [False, True], ids=["publication", "signal"])
def test_a_receiver_sees_who_sent_a_signal_if_a_gateway_has_signed_it(*, live: bool):
    topic, key = "org.acme/lamp/things/live/commands/modify", Secret("k" * 32)
    value = command(topic, ditto_originator="user:ann")
    identity, signed = ("correlation-id", b"c-1"), ("originator-signature", signature("k" * 32, "c-1", value))
    for headers, own, shown in (
        ([identity, signed], key, "user:ann"),
        ([identity, signed], None, None),
        ([identity], key, None),
        ([("correlation-id", b"c-2"), signed], key, None),
    ):
        if live:
            envelope = read_signal(record(value, headers), (), own).envelope
        else:
            found = read_publication(record(value, headers), own)
            assert found is not None
            envelope = found.envelope
        assert envelope.headers.get("ditto-originator") == shown
