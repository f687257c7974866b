from __future__ import annotations

import gc
import weakref

import msgspec
import pytest

from ackstream.client.errors import ClosedError, CorrelationIdInUseError
from ackstream.client.requests import replies as open_requests
from ackstream.client.requests.replies import OpenRequest, OpenRequests, Reply, read_reply
from ackstream.protocol.ditto.topics import TopicPath
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


# -- open requests

FAR = 1_000.0
TOPIC = "org.acme/lamp/things/twin/commands/modify"


def opened(
    requests: OpenRequests, identity: str = "c-1", wait: float | None = 5.0, give_up_at: float = FAR
) -> OpenRequest:
    request = OpenRequest(identity, wait, give_up_at, TopicPath.parse(TOPIC))
    requests.add(request, 0.0)
    return request


def verdicts(requests: OpenRequests, now: float) -> list[tuple[str, str]]:
    return [(request.correlation_id, verdict) for request, verdict in requests.due(now)]


def test_a_reply_belongs_to_the_request_with_its_correlation_id():
    requests = OpenRequests()
    first, second = opened(requests, "c-1"), opened(requests, "c-2")
    assert requests.answer(b"c-2", b"r-2") is second
    assert requests.answer(b"c-1", b"r-1") is first
    assert len(requests) == 0
    assert verdicts(requests, FAR) == []


def test_other_peoples_replies_are_nobodys():
    requests = OpenRequests()
    opened(requests)
    assert requests.find(b"c-9") is None
    assert requests.answer(b"c-9", b"r-9") is None
    assert len(requests) == 1


def _reply(reply_id: str, topic: str) -> Reply:
    message = f'{{"topic":"{topic}","headers":{{}},"path":"/","status":200,"value":1}}'
    return Reply("c-1", reply_id, 200, "response", message.encode())


@pytest.mark.parametrize(
    ("topic", "accepted"),
    [
        (TOPIC, True),
        (TOPIC.replace("twin", "live"), True),
        ("org.acme/lamp/things/twin/acks", True),
        ("org.acme/lamp/things/live/errors", True),
        ("org.bank/safe/things/twin/commands/modify", False),
        ("org.bank/safe/things/twin/acks", False),
        ("org.bank/safe/things/twin/errors", False),
        ("unknown/unknown/things/twin/errors", False),
        ("org.acme/lamp/things/twin/commands/retrieve", False),
        ("org.acme/lamp/things/live/messages/ask", False),
        ("org.bank/safe/things/twin/acks/my-ack", False),
        ("org.acme/lamp/policies/errors", False),
    ],
)
def test_a_reply_to_another_request_of_the_same_id_is_not_accepted(topic: str, *, accepted: bool):
    requests = OpenRequests()
    request = opened(requests)
    requests.stored(request, 1.0, "r-own")
    assert requests.accepts(request, _reply("r-other", topic)) is accepted
    # whatever it says: it is that to the record which the broker has stored
    assert requests.accepts(request, _reply("r-own", topic))


def test_a_reply_that_is_known_by_its_id_alone_waits_until_its_request_is_stored():
    requests = OpenRequests()
    request = opened(requests)
    unknown, garbage = _reply("r-own", "unknown/unknown/things/twin/errors"), Reply("c-1", "r-own", 500, "error", b"{")
    assert not requests.accepts(request, unknown)
    assert not requests.accepts(request, garbage)
    for _ in range(20):
        requests.accepts(request, garbage)
    assert request.early == [unknown, *[garbage] * 7]
    requests.stored(request, 1.0, "r-own")
    assert requests.accepts(request, garbage)


def test_a_reply_to_a_live_command_is_on_the_live_channel():
    live = TopicPath.parse("org.acme/lamp/things/live/messages/ask")
    assert _reply("r", "org.acme/lamp/things/live/messages/ask").answers(live)
    assert not _reply("r", "org.acme/lamp/things/twin/errors").answers(live)


def test_a_repeated_reply_does_not_answer_a_later_request_with_the_same_correlation_id():
    requests = OpenRequests()
    opened(requests)
    requests.answer(b"c-1", b"r-1")
    again = opened(requests)
    assert requests.answer(b"c-1", b"r-1") is None
    assert requests.counts["repeats"] == 1
    assert requests.answer(b"c-1", b"r-2") is again


def test_so_many_reply_ids_are_remembered_and_no_more(monkeypatch):
    monkeypatch.setattr(open_requests, "REMEMBERED", 3)
    requests = OpenRequests()
    for number in range(4):
        opened(requests, "c-1")
        assert requests.answer(b"c-1", b"r-%d" % number)
    opened(requests, "c-1")
    assert requests.answer(b"c-1", b"r-1") is None
    assert requests.answer(b"c-1", b"r-0") is not None


def test_a_correlation_id_is_open_once():
    requests = OpenRequests()
    first = opened(requests)
    with pytest.raises(CorrelationIdInUseError, match="c-1 is open") as caught:
        opened(requests)
    assert caught.value.correlation_id == "c-1"
    assert requests.answer(b"c-1", b"r-1") is first


def test_the_wait_for_a_reply_begins_when_the_broker_has_the_request():
    requests = OpenRequests()
    request = opened(requests, wait=5.0)
    assert verdicts(requests, 20.0) == []
    assert not requests.stored(request, 20.0)
    assert verdicts(requests, 24.9) == []
    assert verdicts(requests, 25.0) == [("c-1", "no_reply")]
    assert len(requests) == 0
    assert verdicts(requests, FAR) == []


def test_a_request_that_kafka_refuses_ends_once():
    requests = OpenRequests()
    request = opened(requests)
    assert [requests.refused(request), requests.refused(request)] == [True, False]
    assert verdicts(requests, FAR) == []


def test_a_request_of_which_nothing_is_heard_at_all_ends_too():
    requests = OpenRequests()
    opened(requests, wait=1.0, give_up_at=3.0)
    assert verdicts(requests, 3.0) == []
    assert verdicts(requests, 4.5) == [("c-1", "not_sent")]


def test_a_request_without_reply_is_done_when_it_is_stored():
    requests = OpenRequests()
    request = opened(requests, wait=None)
    assert verdicts(requests, 5.0) == []
    assert requests.stored(request, 6.0)
    assert len(requests) == 0
    assert verdicts(requests, FAR * 2) == []


def test_after_the_close_nothing_is_open_and_nothing_can_be_added():
    requests = OpenRequests()
    request = opened(requests)
    assert requests.close_all() == [request]
    assert requests.close_all() == []
    with pytest.raises(ClosedError, match="c-2 was not sent") as caught:
        opened(requests, "c-2")
    assert caught.value.correlation_id == "c-2"


def test_every_sent_request_is_counted_once():
    requests = OpenRequests()
    opened(requests, "a")
    requests.answer(b"a", b"r")
    requests.stored(opened(requests, "b", wait=None), 0.0)
    requests.stored(opened(requests, "c", wait=1.0), 0.0)
    requests.refused(opened(requests, "d"))
    opened(requests, "e")
    requests.due(2.0)
    assert requests.counts == {"sent": 5, "answered": 1, "published": 1, "no_reply": 1, "not_sent": 1}
    assert len(requests) == 1


def test_an_answered_request_is_not_kept_until_its_deadline():
    requests = OpenRequests()
    request = weakref.ref(opened(requests, wait=3_600.0))
    assert requests.answer(b"c-1", b"r-1") is request()
    gc.collect()
    assert request() is None


def test_a_correlation_id_that_is_used_again_has_a_deadline_of_its_own():
    requests = OpenRequests()
    opened(requests, wait=5.0)
    requests.answer(b"c-1", b"r-1")
    requests.stored(opened(requests, wait=50.0), 1.0)
    assert verdicts(requests, 20.0) == []
    assert verdicts(requests, 51.0) == [("c-1", "no_reply")]
