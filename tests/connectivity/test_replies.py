from __future__ import annotations

from typing import Any

import pytest

from ackstream.connections import ReplyTarget
from ackstream.connectivity.inbound import Refused
from ackstream.connectivity.replies import Failure, published_error, published_reply, response_kind, verdict
from ackstream.protocol.acknowledgements import Acknowledgement, write_ack, write_acks
from ackstream.protocol.envelopes import Envelope, decode, error_envelope
from ackstream.protocol.errors import label_not_declared, thing_not_found
from ackstream.protocol.settlement import Answer
from ackstream.protocol.topics import TopicPath

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
    assert response_kind(answer) == kind
    for expected in ("response", "error", "nack"):
        target = ReplyTarget(address="answers", expected=(expected,))
        assert (published_reply(answer, {}, target, "plant") is not None) is (expected == kind)
    assert published_reply(answer, {}, None, "plant") is None


def test_nacks_are_not_published_unless_they_are_listed() -> None:
    target = ReplyTarget(address="answers")
    assert published_reply(aggregate(200, 424), {}, target, "plant") is None
    assert published_reply(ERROR, {}, target, "plant") is not None


def test_the_reply_has_the_request_s_correlation_id_and_the_mapped_headers() -> None:
    target = ReplyTarget(
        address="answers/{{ header:reply-key }}",
        header_mapping={"device": "{{ header:device }}", "thing": "{{ thing:id }}", "none": "{{ header:none }}"},
    )
    found = published_reply(aggregate(200), {"correlation-id": "mine", "reply-key": "k"}, target, "plant")
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
    assert published_reply(response(), {}, target, "plant") is None


def test_an_error_names_what_it_concerns() -> None:
    refused = Refused(label_not_declared("x-ack"), response().topic, {"correlation-id": "mine"}, rejects=False)
    found = published_error(refused, ReplyTarget(address="answers"), "plant")
    assert found is not None
    envelope = decode(found.payload)
    assert (str(envelope.topic), envelope.status) == ("org.acme/lamp/things/twin/errors", 400)


@pytest.mark.parametrize(
    ("answer", "completed_by", "live", "expect"),
    [
        (response(), "response", False, Answer((204,))),
        (response(404, "live"), "response", True, Answer((404,), live=True)),
        (aggregate(200, 408), "timeout", False, Answer((200, 408))),
        (aggregate(200, 200), "acknowledgements", True, Answer((200, 200))),
        (ERROR, "error", False, Failure(404)),
        (ERROR, "invalid", False, Failure(404)),
        (ERROR, "timeout", True, Failure(404)),
        (ERROR, "response", True, Answer((404,), live=True)),
    ],
)
def test_what_an_answer_means_for_its_message(
    answer: Envelope,
    completed_by: str,
    live: bool,  # noqa: FBT001 - a table
    expect: Answer | Failure,
) -> None:
    assert verdict(answer, completed_by=completed_by, live=live) == expect
