from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ackstream.client import Ack, After, Response
from ackstream.client.signals import failure, messages
from ackstream.protocol.ditto.acknowledgements import read_ack
from ackstream.protocol.ditto.envelopes import decode, encode
from ackstream.protocol.ditto.errors import DittoError, thing_not_found
from tests.client.test_signal import read

LIVE = "org.acme/lamp/things/live/messages/dim"
SIGNAL = read(requested_acks=["a-a", "b-b"])


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


def test_what_is_written_is_what_the_service_reads():
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


def test_an_error_is_an_error_message():
    (error,) = wire(thing_not_found("org.acme:lamp"))
    assert (error["topic"], error["status"]) == ("org.acme/lamp/things/twin/errors", 404)
    assert error["headers"]["correlation-id"] == "c-1"
    assert error["value"]["error"] == "things:thing.notfound"


def test_delays_add_up_and_parts_may_have_different_ones():
    answer = [Ack(label="a-a"), After(2, [Ack(label="b-b"), After(0.5, Response())]), None]
    found = [(delay, str(message.topic)) for delay, message in messages(SIGNAL, answer)]
    assert found == [
        (0.0, "org.acme/lamp/things/twin/acks/a-a"),
        (2.0, "org.acme/lamp/things/twin/acks/b-b"),
        (2.5, "org.acme/lamp/things/twin/commands/modify"),
    ]


@pytest.mark.parametrize("answer", [None, [], (), After(1, None), [None, []]])
def test_silence_is_an_answer(answer):
    assert messages(SIGNAL, answer) == []


@pytest.mark.parametrize("answer", [200, "ok", {"status": 200}, b"", True, [Ack(), 1]])
def test_anything_else_is_refused(answer):
    with pytest.raises(TypeError, match="A handler returns Ack"):
        messages(SIGNAL, answer)


@pytest.mark.parametrize("label", ["twin-persisted", "no", "ä-ö-ü"])
def test_a_label_that_may_not_be_issued_is_refused(label):
    with pytest.raises(DittoError):
        messages(SIGNAL, Ack(label=label))


def failed(error: Exception, signal=SIGNAL) -> list[dict[str, Any]]:
    return [msgspec.json.decode(encode(message)) for message in failure(signal, error)]


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


def test_who_is_to_respond_responds_with_an_error():
    signal = read(LIVE, {"live-response"})
    (error,) = failed(ValueError("broken"), signal)
    assert (error["topic"], error["status"]) == ("org.acme/lamp/things/live/errors", 500)
    assert failed(ValueError("broken"), read(LIVE, {"meter"})) == []
