"""Open requests: their replies, updates, second replies, and ends."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from ackstream.client.errors import ClosedError, CorrelationIdInUseError
from ackstream.client.requests import open_requests
from ackstream.client.requests.open_requests import OpenRequest, OpenRequests
from ackstream.client.requests.replies import Reply, Updates
from ackstream.protocol.ditto.topics import TopicPath

FAR = 1_000.0
TOPIC = "org.acme/lamp/things/twin/commands/modify"


def opened(
    requests: OpenRequests, identity: str = "c-1", wait: float | None = 5.0, give_up_at: float = FAR
) -> OpenRequest:
    request = OpenRequest(identity, wait, give_up_at, TopicPath.parse(TOPIC))
    requests.add(request, 0.0)
    return request


def answer(reply_id: str, completed_by: str = "response") -> Reply:
    return Reply("c-1", reply_id, 200, completed_by, b"{}")


def verdicts(requests: OpenRequests, now: float) -> list[tuple[str, str]]:
    return [(request.correlation_id, verdict) for request, verdict in requests.due(now)]


def test_a_reply_belongs_to_the_request_with_its_correlation_id():
    requests = OpenRequests()
    first, second = opened(requests, "c-1"), opened(requests, "c-2")
    assert requests.answer(b"c-2", answer("r-2")) is second
    assert requests.answer(b"c-1", answer("r-1")) is first
    assert len(requests) == 0
    assert verdicts(requests, FAR) == []


def test_other_peoples_replies_are_nobodys():
    requests = OpenRequests()
    opened(requests)
    assert requests.find(b"c-9") is None
    assert requests.answer(b"c-9", answer("r-9")) is None
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
    requests.answer(b"c-1", answer("r-1"))
    again = opened(requests)
    assert requests.answer(b"c-1", answer("r-1")) is None
    assert requests.counts["repeats"] == 1
    assert requests.answer(b"c-1", answer("r-2")) is again


def test_so_many_reply_ids_are_remembered_and_no_more(monkeypatch):
    monkeypatch.setattr(open_requests, "REMEMBERED", 3)
    requests = OpenRequests()
    for number in range(4):
        opened(requests, "c-1")
        assert requests.answer(b"c-1", answer(f"r-{number}"))
    opened(requests, "c-1")
    assert requests.answer(b"c-1", answer("r-1")) is None
    assert requests.answer(b"c-1", answer("r-0")) is not None


def test_a_correlation_id_is_open_once():
    requests = OpenRequests()
    first = opened(requests)
    with pytest.raises(CorrelationIdInUseError, match="c-1 is open") as caught:
        opened(requests)
    assert caught.value.correlation_id == "c-1"
    assert requests.answer(b"c-1", answer("r-1")) is first


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
    requests.answer(b"a", answer("r"))
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
    assert requests.answer(b"c-1", answer("r-1")) is request()
    gc.collect()
    assert request() is None


def test_a_correlation_id_that_is_used_again_has_a_deadline_of_its_own():
    requests = OpenRequests()
    opened(requests, wait=5.0)
    requests.answer(b"c-1", answer("r-1"))
    requests.stored(opened(requests, wait=50.0), 1.0)
    assert verdicts(requests, 20.0) == []
    assert verdicts(requests, 51.0) == [("c-1", "no_reply")]


# -- updates and second replies


def record(reply_id: str, completed_by: str, number: int = 0, identity: str = "c-1", status: int = 200) -> Any:
    topic = "org.acme/lamp/things/twin/acks"
    message = f'{{"topic":"{topic}","path":"/","value":{{"a:b":{{"status":200,"payload":{number}}}}},"status":200}}'
    headers = {"correlation-id": identity, "reply-id": reply_id, "status": str(status), "completed-by": completed_by}
    if completed_by in ("amended", "progress"):
        headers["reply-version"] = "2" if completed_by == "amended" else str(number)
    return SimpleNamespace(
        topic="replies", offset=number, timestamp=0, value=message.encode(),
        headers=[(name, text.encode()) for name, text in headers.items()],
    )  # fmt: skip


def streamed(requests: OpenRequests, identity: str = "c-1") -> tuple[OpenRequest, Updates]:
    updates = Updates(Future)
    request = OpenRequest(identity, 5.0, FAR, TopicPath.parse(TOPIC), future=updates.reply)
    request.updates = weakref.ref(updates)
    requests.add(request, 0.0)
    return request, updates


def payloads(updates: Updates) -> list[Any]:
    return [each.acks["a:b"].payload for each in updates if each.is_update]


def test_an_update_leaves_its_request_open_and_reaches_its_iteration() -> None:
    requests = OpenRequests()
    request, updates = streamed(requests)
    requests.stored(request, 1.0, "r-1")
    assert requests.receive(record("r-1", "progress", 1))
    assert requests.receive(record("r-1", "progress", 2))
    assert (len(requests), request.future.done()) == (1, False)
    assert requests.receive(record("r-1", "acknowledgements"))
    assert payloads(updates) == [1, 2]
    assert requests.counts == {"sent": 1, "answered": 1}


def test_an_update_that_is_repeated_after_others_is_given_once() -> None:
    requests = OpenRequests()
    _, updates = streamed(requests)
    for number in (1, 2, 1, 2, 3):
        requests.receive(record("r-1", "progress", number))
    requests.receive(record("r-1", "acknowledgements"))
    assert payloads(updates) == [1, 2, 3]
    assert requests.counts["repeats"] == 2


def test_equal_updates_of_different_batches_are_all_given() -> None:
    requests = OpenRequests()
    _, updates = streamed(requests)
    for batch in (1, 2, 2, 3):
        beat = record("r-1", "progress", batch)
        beat.value = record("r-1", "progress", 7).value
        requests.receive(beat)
    requests.receive(record("r-1", "acknowledgements"))
    assert payloads(updates) == [7, 7, 7]


def test_a_second_reply_is_given_although_the_first_one_came_too_late() -> None:
    amended: list[Reply] = []
    requests = OpenRequests(amended.append)
    request = opened(requests, wait=5.0)
    request.amendable = True
    requests.stored(request, 1.0, "r-1")
    assert verdicts(requests, 6.0) == [("c-1", "no_reply")]
    requests.receive(record("r-1", "timeout", status=408))
    requests.receive(record("r-1", "amended"))
    assert [reply.version for reply in amended] == [2]


def test_an_update_that_comes_behind_its_reply_is_not_one_of_a_later_request() -> None:
    requests = OpenRequests()
    streamed(requests)
    requests.receive(record("r-1", "acknowledgements"))
    _, updates = streamed(requests)
    assert not requests.receive(record("r-1", "progress", 1))
    requests.receive(record("r-2", "acknowledgements"))
    assert payloads(updates) == []


def test_an_update_of_a_request_that_is_not_streamed_is_ignored() -> None:
    requests = OpenRequests()
    request = opened(requests)
    requests.receive(record("r-1", "progress", 1))
    assert (len(requests), request.future.done()) == (1, False)
    requests.receive(record("r-1", "acknowledgements"))
    assert request.future.result(0).completed_by == "acknowledgements"
    assert requests.counts["malformed"] == 0


def test_an_update_before_the_report_of_storage_is_not_lost() -> None:
    requests = OpenRequests()
    request, updates = streamed(requests)
    requests.receive(record("r-1", "progress", 1))
    requests.stored(request, 1.0, "r-1")
    requests.receive(record("r-1", "progress", 2))
    requests.receive(record("r-1", "acknowledgements"))
    assert payloads(updates) == [1, 2]


def test_an_update_of_another_request_of_the_same_id_is_not_given() -> None:
    requests = OpenRequests()
    request, updates = streamed(requests)
    requests.stored(request, 1.0, "r-1")
    elsewhere = record("r-2", "progress", 1)
    elsewhere.value = elsewhere.value.replace(b"lamp", b"door")
    assert not requests.receive(elsewhere)
    requests.receive(record("r-1", "acknowledgements"))
    assert payloads(updates) == []


def test_an_update_that_is_repeated_does_not_reach_a_later_request_of_the_same_id() -> None:
    requests = OpenRequests()
    streamed(requests)
    requests.receive(record("r-1", "progress", 1))
    requests.receive(record("r-1", "acknowledgements"))
    _, updates = streamed(requests)
    assert not requests.receive(record("r-1", "progress", 1))
    requests.receive(record("r-2", "acknowledgements"))
    assert payloads(updates) == []


def test_an_update_whose_iteration_was_left_is_dropped() -> None:
    requests = OpenRequests()
    request, updates = streamed(requests)
    del updates
    gc.collect()
    assert requests.receive(record("r-1", "progress", 1))
    requests.receive(record("r-1", "acknowledgements"))
    assert request.future.result(0).ok


class Amendments:
    """Open requests of which the tests keep the second replies."""

    def __init__(self) -> None:
        self.found: list[Reply] = []
        self.requests = OpenRequests(self.found.append)

    def ended(self, reply_id: str, completed_by: str = "timeout", *, amendable: bool = True) -> None:
        """Let a request end."""
        request = opened(self.requests)
        request.amendable = amendable
        self.requests.receive(record(reply_id, completed_by, status=424))


def test_the_second_reply_to_a_request_that_timed_out_is_given_once() -> None:
    amendments = Amendments()
    amendments.ended("r-1")
    for _ in range(2):
        assert not amendments.requests.receive(record("r-1", "amended"))
    (second,) = amendments.found
    assert (second.reply_id, second.version, second.completed_by, second.ok) == ("r-1", 2, "amended", True)
    assert amendments.requests.counts == {"sent": 1, "answered": 1, "foreign": 1}


@pytest.mark.parametrize(
    ("completed_by", "amendable"), [("timeout", False), ("acknowledgements", True), ("cancelled", True)]
)
def test_other_second_replies_are_ignored(completed_by: str, *, amendable: bool) -> None:
    amendments = Amendments()
    amendments.ended("r-1", completed_by, amendable=amendable)
    for reply_id, identity in (("r-1", "c-1"), ("r-2", "c-1"), ("r-3", "c-3")):
        assert not amendments.requests.receive(record(reply_id, "amended", identity=identity))
    assert amendments.found == []
    assert amendments.requests.counts["malformed"] == 0


def test_a_first_reply_that_is_repeated_does_not_use_up_the_second() -> None:
    amendments = Amendments()
    amendments.ended("r-1")
    amendments.requests.receive(record("r-1", "timeout", status=424))
    amendments.requests.receive(record("r-1", "amended"))
    assert [reply.completed_by for reply in amendments.found] == ["amended"]


def test_a_second_reply_never_ends_a_later_request_of_the_same_id() -> None:
    amendments = Amendments()
    amendments.ended("r-1")
    later = opened(amendments.requests)
    amendments.requests.receive(record("r-1", "amended"))
    amendments.requests.receive(record("r-9", "amended"))
    assert (len(amendments.found), later.future.done()) == (1, False)


def test_an_error_of_the_handler_of_second_replies_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_reply: Reply) -> None:
        raise LookupError("no such order")

    requests = OpenRequests(fail)
    opened(requests).amendable = True
    requests.receive(record("r-1", "timeout", status=424))
    assert not requests.receive(record("r-1", "amended"))
    assert "no such order" in caplog.text


def test_the_second_replies_of_so_many_requests_are_expected_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_requests, "REMEMBERED", 2)
    amendments = Amendments()
    for number in range(3):
        amendments.ended(f"r-{number}")
    for number in range(3):
        amendments.requests.receive(record(f"r-{number}", "amended"))
    assert [reply.reply_id for reply in amendments.found] == ["r-1", "r-2"]
