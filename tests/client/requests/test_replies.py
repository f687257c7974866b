from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import Future
from typing import Any

import msgspec
import pytest

from ackstream.client.errors import RequestTimeout
from ackstream.client.requests import replies
from ackstream.client.requests.replies import Reply, Updates, read_reply
from ackstream.protocol.errors import DittoError
from tests.harness.waiting import PATIENCE_SECONDS

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
    assert answer.acks["meter"].payload == {"x": 1}
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


@pytest.mark.parametrize(
    ("entries", "status", "quorum", "explanation"),
    [
        ({"bank:paid": 409}, 409, None, "Refused: bank:paid (409)."),
        ({"bank:paid": 302}, 302, None, "Refused: bank:paid (302)."),
        ({"bank:paid": 409, "warehouse:packed": 200}, 424, None, "Refused: bank:paid (409)."),
        ({"bank:paid": 409, "a:b": 204, "c:d": 500}, 424, None, "Refused: bank:paid (409), c:d (500)."),
        ({"bank:paid": 200, "a:b": 204}, 200, None, "Every requested acknowledgement arrived."),
        ({"bank:paid": 200, "a:b": 204}, 200, 2, "The quorum was reached."),
        ({"bank:paid": 409, "a:b": 204}, 200, {"a": 1}, "The quorum was reached. Refused: bank:paid (409)."),
        ({"bank:paid": 409, "a:b": 500}, 424, 2, "The quorum was not reached. Refused: bank:paid (409), a:b (500)."),
    ],
)
@pytest.mark.parametrize("thing", ["org.acme/lamp", "unknown/unknown"])
def test_the_labels_that_refuse_are_named(
    thing: str, entries: dict[str, int], status: int, quorum: Any, explanation: str
) -> None:
    message = {
        "topic": f"{thing}/things/twin/acks",
        "headers": {} if quorum is None else {"ack-quorum": quorum},
        "path": "/",
        "value": {label: {"status": own} for label, own in entries.items()},
        "status": status,
    }
    answer = read_reply(headers(str(status)), msgspec.json.encode(message), 0)
    assert answer.explanation == explanation


@pytest.mark.parametrize(
    ("entry", "payload"),
    [
        ({}, None),
        ({"payload": None}, None),
        ({"payload": "no money"}, "no money"),
        ({"payload": [1, {"invoice": 17}]}, [1, {"invoice": 17}]),
    ],
)
def test_the_payload_of_an_acknowledgement_is_a_python_value(entry: dict[str, Any], payload: Any) -> None:
    answer = reply("acks", {"bank:paid": {"status": 409, "headers": {"x": "y"}} | entry}, 409, "acknowledgements")
    assert answer.acks["bank:paid"].payload == payload
    assert (answer.acks["bank:paid"].label, answer.acks["bank:paid"].headers) == (
        "bank:paid",
        {"x": "y", "response-required": False},
    )
    assert answer.value["bank:paid"].get("payload") == payload


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
        {"reply-version": b"two"},
        {"correlation-id": b"\xff"},
    ],
)
def test_a_record_without_the_headers_of_a_reply_is_none(changed):
    named = {**dict(headers()), **changed}
    assert read_reply([(name, value) for name, value in named.items() if value is not None], b"{}", 0) is None


def test_null_values_of_headers_are_no_reply():
    assert read_reply([*headers(), ("status", None)], b"{}", 0) is None


def test_an_update_is_no_reply_yet_and_has_its_acknowledgements():
    update = reply("acks", {"meter": {"status": 102}, "audit": ENTRY}, 102, "progress")
    assert {label: ack.status for label, ack in update.acks.items()} == {"meter": 102, "audit": 200}
    assert (update.is_update, update.ok, update.complete, update.missing) == (True, False, False, ())
    assert update.explanation == "Acknowledgements arrived; the request is still open."


def test_an_amended_reply_is_complete_and_the_second_of_its_request():
    message = msgspec.json.encode(
        {"topic": "org.acme/lamp/things/twin/acks", "path": "/", "value": {"a:b": ENTRY}, "status": 200}
    )
    first = read_reply(headers("424", "timeout"), message, 0)
    second = read_reply([*headers(completed_by="amended"), ("reply-version", b"2")], message, 0)
    assert (first.version, second.version, second.ok, second.complete) == (1, 2, True, True)
    assert second.explanation == "Late acknowledgements made the request succeed after its deadline."


# -- updates


def update(number: int, size: int = 0) -> Reply:
    return Reply("c-1", "r-1", 102, "progress", b"%d" % number + b"." * size)


FINAL = Reply("c-1", "r-1", 200, "acknowledgements", b"{}")


def test_updates_come_in_order_and_the_reply_is_the_last() -> None:
    updates = Updates(Future)
    updates.add(update(1))
    updates.add(update(2))
    assert next(updates) == update(1)
    updates.add(update(3))
    updates.reply.set_result(FINAL)
    assert list(updates) == [update(2), update(3), FINAL]
    assert list(updates) == []


def test_the_error_of_the_request_is_raised_once_behind_its_updates() -> None:
    updates = Updates(Future)
    updates.add(update(1))
    updates.reply.set_exception(RequestTimeout("No reply.", "c-1"))
    assert next(updates) == update(1)
    with pytest.raises(RequestTimeout, match="No reply"):
        next(updates)
    assert list(updates) == []


@pytest.mark.parametrize(("number", "size", "kept"), [(1_002, 0, 1_000), (5, 4_000_000, 3), (2, 17_000_000, 1)])
def test_unread_updates_are_limited_and_the_older_ones_are_dropped_with_one_warning(
    caplog: pytest.LogCaptureFixture, number: int, size: int, kept: int
) -> None:
    updates = Updates(Future)
    updates.correlation_id = "c-1"
    for each in range(number):
        updates.add(update(each, size))
    updates.reply.set_result(FINAL)
    found = list(updates)
    assert found == [*(update(each, size) for each in range(number - kept, number)), FINAL]
    assert [record.getMessage() for record in caplog.records] == [
        "Updates of the request c-1 are not read, and older ones dropped."
    ]


def test_updates_that_were_read_make_room(caplog: pytest.LogCaptureFixture) -> None:
    updates = Updates(Future)
    for each in range(replies.MAX_UNREAD * 2):
        updates.add(update(each))
        assert next(updates) == update(each)
    assert not caplog.records


def test_a_thread_that_waits_gets_the_next_update_and_then_the_reply() -> None:
    updates, found, waiting = Updates(Future), list[Reply](), threading.Semaphore(0)

    def read() -> None:
        make = updates._make
        updates._make = lambda: (waiting.release(), make())[1]
        found.extend(updates)

    reader = threading.Thread(target=read)
    reader.start()
    waiting.acquire(timeout=PATIENCE_SECONDS)
    updates.add(update(1))
    waiting.acquire(timeout=PATIENCE_SECONDS)
    updates.reply.set_result(FINAL)
    reader.join(PATIENCE_SECONDS)
    assert found == [update(1), FINAL]


def test_every_update_goes_to_one_of_several_threads() -> None:
    updates, found, total = Updates(Future), list[Reply](), 300
    readers = [threading.Thread(target=lambda: found.extend(updates)) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(total):
        updates.add(update(number))
    updates.reply.set_result(FINAL)
    for reader in readers:
        reader.join(PATIENCE_SECONDS)
    assert sorted(int(each.data) for each in found if each.is_update) == [*range(total)]
    assert found.count(FINAL) == 1


def test_a_wait_that_is_cancelled_or_interrupted_takes_no_update() -> None:
    class Interrupted(Future[Any]):
        def result(self, timeout: float | None = None) -> Any:
            if not self.done():
                raise KeyboardInterrupt
            return super().result(timeout)

    updates = Updates(Interrupted)
    assert updates.ask().cancel()
    with pytest.raises(KeyboardInterrupt):
        next(updates)
    updates.add(update(1))
    assert next(updates) == update(1)


def test_an_iteration_that_was_left_is_not_kept_by_its_open_request() -> None:
    updates = Updates(Future)
    reply, kept = updates.reply, weakref.ref(updates)
    del updates
    gc.collect()
    assert kept() is None
    reply.set_result(FINAL)
