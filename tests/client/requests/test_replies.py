""""""

from __future__ import annotations

import msgspec
import pytest

from ackstream.client.requests.replies import read_reply
from ackstream.protocol.errors import DittoError

ENTRY = {"status": 200, "payload": {"x": 1}}
LATE = {"status": 408, "payload": {"status": 408, "error": "acknowledgement:request.timeout", "message": "…"}}


def headers(status: str = "200", completed_by: str = "acknowledgements") -> list[tuple[str, bytes]]:
    return [
        ("correlation-id", b"c-1"),
        ("reply-id", b"r-1"),
        ("status", status.encode()),
        ("completed-by", completed_by.encode()),
        ("content-type", b"application/vnd.eclipse.ditto+json"),
    ]


def reply(topic: str, value: object, status: int, completed_by: str):
    message = {
        "topic": f"org.acme/lamp/things/twin/{topic}",
        "headers": {},
        "path": "/",
        "value": value,
        "status": status,
    }
    return read_reply(headers(str(status), completed_by), msgspec.json.encode(message), 17)


def test_an_aggregate_has_its_acknowledgements_by_label_in_order():
    answer = reply("acks", {"meter": ENTRY, "gateway": LATE, "audit": ENTRY}, 424, "timeout")
    assert list(answer.acks) == ["meter", "gateway", "audit"]
    assert answer.acks["meter"].status == 200
    assert bytes(answer.acks["meter"].payload) == b'{"x":1}'
    assert answer.missing == ("gateway",)
    assert (answer.correlation_id, answer.reply_id, answer.status, answer.timestamp) == ("c-1", "r-1", 424, 17)
    assert not answer.ok
    assert not answer.complete
    assert answer.explanation == "The deadline passed before this arrived: gateway."


def test_all_acknowledgements_are_a_complete_answer():
    answer = reply("acks", {"meter": ENTRY}, 200, "acknowledgements")
    assert answer.ok
    assert answer.complete
    assert answer.missing == ()
    assert answer.explanation == "Every requested acknowledgement arrived."


def test_a_nack_is_complete_but_not_ok():
    answer = reply("acks", {"meter": {"status": 500}, "audit": ENTRY}, 424, "acknowledgements")
    assert answer.complete
    assert not answer.ok


def test_a_plain_response_has_a_value_and_no_acknowledgements():
    answer = reply("commands/modify", {"a": 1}, 201, "response")
    assert answer.ok
    assert answer.complete
    assert answer.value == {"a": 1}
    assert answer.acks == {}
    assert answer.explanation == "The response arrived."


@pytest.mark.parametrize(
    ("completed_by", "status", "explanation"),
    [
        ("timeout", 408, "The deadline passed before this arrived: the response."),
        ("error", 404, "An error ended the wait: No such thing."),
        ("invalid", 400, "The request was refused: No such thing."),
        ("something-new", 299, "It was completed by 'something-new'."),
    ],
)
def test_an_error_is_partial_and_says_why(completed_by, status, explanation):
    answer = reply("errors", {"status": status, "error": "e", "message": "No such thing."}, status, completed_by)
    assert not answer.complete
    assert answer.acks == {}
    assert answer.explanation == explanation


def test_a_message_without_value_and_an_error_without_text_are_answers_too():
    message = b'{"topic":"org.acme/lamp/things/twin/commands/delete","headers":{},"path":"/","status":204}'
    answer = read_reply(headers("204", "error"), message, 0)
    assert answer.value is None
    assert answer.explanation == "An error ended the wait: no reason."


def test_the_message_is_decoded_only_when_it_is_looked_at():
    answer = read_reply(headers(), b"{not JSON", 0)
    assert answer.ok
    with pytest.raises(DittoError):
        _ = answer.envelope


@pytest.mark.parametrize(
    "changed",
    [
        {"correlation-id": None},
        {"reply-id": None},
        {"status": None},
        {"status": b"fine"},
        {"status": b""},
        {"completed-by": None},
        {"correlation-id": b"\xff"},
    ],
)
def test_a_record_without_the_headers_of_a_reply_is_none(changed):
    named = {**dict(headers()), **changed}
    assert read_reply([(name, value) for name, value in named.items() if value is not None], b"{}", 0) is None


def test_null_values_of_headers_are_no_reply():
    assert read_reply([*headers(), ("status", None)], b"{}", 0) is None
