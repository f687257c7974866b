"""Records of any kind that ask, and that answer: the same decisions as of the Ditto Protocol."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ackstream.jobs.correlate.state import ACKS, SIGNALS, Record
from ackstream.protocol.ledger import reply_id
from ackstream.spark.records import in_order
from tests.jobs.correlate.cuts import HORIZON, SECOND, decided, fed_in_cuts
from tests.jobs.correlate.shards import Log, Run, entries


def test_an_order_is_confirmed_by_two_parties_in_different_encodings(run: Run, log: Log) -> None:
    order = log.order(1000, requested_acks="bank:booked,stock:packed")
    booked = log.confirmation(1200, "bank:booked", 201, payload=b'{"at": 5}', content_type="application/json")
    packed = log.ack(1300, "stock:packed", thing="unknown/unknown")
    run.feed(order, booked, packed)
    (reply,) = run.replies()
    assert (reply["topic"], reply["status"]) == ("unknown/unknown/things/live/acks", 200)
    assert entries(reply) == {"bank:booked": 201, "stock:packed": 200}
    assert reply["value"]["bank:booked"]["payload"] == {"at": 5}
    assert reply["reply-id"] == reply_id("c", "orders", 0, 0)
    (outcome,) = run.outcomes()
    assert (outcome["thing_id"], outcome["requested"]) == (None, ["bank:booked", "stock:packed"])
    rows = [(a["topic"], a["offset"], a.get("codec")) for r in run.ledger() for a in r.get("acks", ())]
    assert rows == [("bookings", 0, "json"), ("acks", 0, None)]
    (signal,) = [r["signal"] for r in run.ledger() if "signal" in r]
    assert (signal["topic"], signal["partition"], signal["offset"], signal["codec"]) == ("orders", 0, 0, "none")
    assert (signal["criterion"], "value" in signal) == ("records", False)


@pytest.mark.parametrize(
    ("value", "content_type", "stored", "codec"),
    [
        (b'{"a": 1}', "application/json", {"a": 1}, "json"),
        (b"an order", "text/plain", "an order", "text"),
        (b"\x00\x01", "application/avro", base64.b64encode(b"\x00\x01").decode(), "base64"),
        (None, "", None, "none"),
    ],
)
def test_values_are_stored_if_the_settings_say_so(
    log: Log, value: bytes | None, content_type: str, stored: Any, codec: str
) -> None:
    run = Run(store_values=True)
    run.feed(log.of_application(SIGNALS, 1, "c", value, "orders", requested_acks="a-ack", content_type=content_type))
    (signal,) = [r["signal"] for r in run.ledger()]
    assert (signal.get("value"), signal["codec"]) == (stored, codec)


def test_a_value_over_the_limit_is_not_stored_and_its_request_is_accepted(log: Log) -> None:
    run = Run(store_values=True, max_value_bytes=10)
    run.feed(log.of_application(SIGNALS, 1, "c", b"x" * 11, "orders", requested_acks="a-ack"))
    (signal,) = [r["signal"] for r in run.ledger()]
    assert ("value" in signal, signal["codec"]) == (False, "none")
    assert run.next_timeout == 60_001


def test_a_missing_label_times_out(run: Run, log: Log) -> None:
    run.feed(log.order(1000, requested_acks="bank:booked,stock:packed", timeout="10s"))
    run.feed(log.confirmation(2000, "bank:booked"), watermark=11_001)
    (reply,) = run.replies()
    assert (reply["status"], reply["completed-by"]) == (424, "timeout")
    assert entries(reply) == {"bank:booked": 200, "stock:packed": 408}


def test_a_request_without_an_id_has_that_of_its_coordinates(run: Run, log: Log) -> None:
    run.feed(log.order(1000, None, requested_acks="bank:booked"))
    run.feed(log.confirmation(1100, "bank:booked", correlation_id="orders-0-0"))
    assert [reply["headers"]["correlation-id"] for reply in run.replies()] == ["orders-0-0"]


@pytest.mark.parametrize(
    "headers",
    [{"requested_acks": "live-response"}, {"requested_acks": "[]"}, {"requested_acks": "a-ack", "timeout": "soon"}],
)
def test_an_invalid_request_is_answered_with_its_error_and_becomes_a_dead_letter_of_its_topic(
    run: Run, log: Log, headers: dict[str, str]
) -> None:
    run.feed(log.order(1000, **headers))
    (reply,) = run.replies()
    assert (reply["status"], reply["completed-by"]) == (400, "invalid")
    assert reply["reply-id"] == reply_id("c", "orders", 0, 0)
    (letter,) = [r["dead_letter"] for r in run.ledger() if "dead_letter" in r]
    assert (letter["topic"], base64.b64decode(letter["value"])) == ("orders", b"an order")


@pytest.mark.parametrize(
    ("status", "label", "correlation_id"), [(700, "a-ack", "c"), (200, "no label", "c"), (200, "a-ack", None)]
)
def test_an_invalid_confirmation_becomes_a_dead_letter_of_its_topic(
    run: Run, log: Log, status: int, label: str, correlation_id: str | None
) -> None:
    run.feed(log.order(1000, requested_acks="a-ack"), log.confirmation(1100, label, status, correlation_id))
    (letter,) = [r["dead_letter"] for r in run.ledger() if "dead_letter" in r]
    assert (letter["topic"], letter["offset"]) == ("bookings", 0)
    assert run.replies() == []


def test_an_id_in_use_is_refused_whichever_topic_uses_it(run: Run, log: Log) -> None:
    run.feed(log.order(1000, requested_acks="a-ack"), log.order(1001, topic="returns", requested_acks="a-ack"))
    assert len(run.reasons()) == 1
    (letter,) = [r["dead_letter"] for r in run.ledger() if "dead_letter" in r]
    assert letter["topic"] == "returns"


def test_only_acknowledgements_answer_a_record(run: Run, log: Log) -> None:
    run.feed(log.order(1000, requested_acks="a-ack"))
    run.feed(log.response(1100, topic="things/live/commands/modify"))
    assert run.reasons_of_acks() == ["Only acknowledgements answer a record."]
    run.feed(log.ack(1200, "a-ack", thing="org.acme/lamp"))
    assert run.replies() == []
    assert run.acks()[-1] == ("a-ack", "invalid")


def test_a_confirmation_by_headers_answers_a_command_too(run: Run, log: Log) -> None:
    run.feed(log.command(1000, requested_acks=["a-ack"]))
    run.feed(log.record(ACKS, 1100, "c", b"done", label="a-ack", content_type="text/plain"))
    (reply,) = run.replies()
    assert (reply["status"], reply["value"]["a-ack"]["payload"]) == (200, "done")


def test_a_duplicate_a_late_and_an_unrequested_confirmation_are_rows(run: Run, log: Log) -> None:
    run.feed(log.order(1000, requested_acks="a-ack,b-ack", timeout="10s"))
    run.feed(*(log.confirmation(1100 + n, label) for n, label in enumerate(["a-ack", "a-ack", "z-ack"])))
    run.feed(watermark=11_001)
    run.feed(log.confirmation(12_000, "b-ack"))
    assert sorted(run.acks()) == [
        ("a-ack", "accepted"),
        ("a-ack", "duplicate"),
        ("b-ack", "late"),
        ("z-ack", "unrequested"),
    ]


def test_who_has_not_declared_its_label_does_not_confirm_an_order(log: Log) -> None:
    run = Run(refuse_undeclared=True)
    run.feed(log.claim(0, "a-ack"), log.order(1000, requested_acks="a-ack,b-ack", timeout="1s"))
    run.feed(log.confirmation(1100, "a-ack"), log.confirmation(1200, "b-ack"))
    run.feed(watermark=20_000)
    (reply,) = run.replies()
    assert entries(reply) == {"a-ack": 200, "b-ack": 408}
    assert ("b-ack", "undeclared") in run.acks()


def test_an_early_confirmation_waits_for_its_order_with_its_topic(run: Run, log: Log) -> None:
    run.feed(log.confirmation(1000, "a-ack", payload=b"x", content_type="text/plain"))
    run.feed(log.order(1100, requested_acks="a-ack"))
    (reply,) = run.replies()
    assert reply["value"]["a-ack"]["payload"] == "x"
    assert [a["topic"] for r in run.ledger() for a in r.get("acks", ())] == ["bookings"]


def test_an_acknowledgement_that_a_reply_has_no_room_for_is_named_by_its_record(log: Log) -> None:
    run = Run(record_bytes=20_000)
    run.feed(log.order(1000, requested_acks="a-ack"))
    run.feed(log.confirmation(1100, "a-ack", payload=b"x" * 10_000, content_type="text/plain"))
    (reply,) = run.replies()
    entry = reply["value"]["a-ack"]
    assert entry["status"] == 413
    assert "bookings-0-0" in json.dumps(entry["payload"])


# -- laws --------------------------------------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(
        st.integers(0, 150).map(lambda seconds: seconds * SECOND),
        st.sampled_from([0, 0, 0, 1, 5, 30]).map(lambda seconds: seconds * SECOND),
        st.sampled_from(["request", "ack", "ack"]),
        st.sampled_from(["x", "y"]),
        st.lists(st.sampled_from(["a-ack", "b-ack", "c-ack"]), min_size=1, max_size=3, unique=True),
        st.integers(1, 70),
    ),
    max_size=14,
)


def _decided(run: Run) -> tuple[Any, ...]:
    """All that was decided, without what names the encoding: the topics, and the thing."""
    named = ("correlation_id", "status", "completed_by", "requested", "missing", "started_at", "decided_at")
    outcomes = [tuple(str(outcome[name]) for name in named) for outcome in run.outcomes()]
    rows = [ack for record in run.ledger() for ack in record.get("acks", ())]
    acks = [(ack["label"], ack["status"], ack["disposition"], ack["received_at"], ack["weak"]) for ack in rows]
    bodies = [[reply["status"], reply["value"]] for reply in run.replies() if reply["completed-by"] != "invalid"]
    return sorted(outcomes), sorted(map(repr, acks)), sorted(map(repr, bodies)), sorted(run.reasons())


@settings(max_examples=300)
@given(steps)
def test_both_encodings_have_the_same_decisions(actions: list[Any]) -> None:
    logs, batches = (Log(), Log()), ([], [])
    for real_time, back, what, key, labels, seconds in sorted(actions, key=lambda step: step[0]):
        time = max(0, real_time - back)
        if what == "request":
            batches[0].append(logs[0].command(time, key, requested_acks=labels, timeout=f"{seconds}s"))
            asked = {"requested_acks": json.dumps(labels), "timeout": f"{seconds}s"}
            batches[1].append(logs[1].order(time, key, "orders", **asked))
        else:
            batches[0].append(logs[0].ack(time, labels[0], 200 + seconds, key))
            batches[1].append(logs[1].confirmation(time, labels[0], 200 + seconds, key, "bookings"))
    runs = Run(), Run()
    for run, batch in zip(runs, batches, strict=True):
        run.feed(*batch)
        run.feed(watermark=HORIZON)
    assert _decided(runs[0]) == _decided(runs[1])


@settings(max_examples=300)
@given(steps, st.data())
def test_the_cut_of_batches_changes_no_decision_although_topics_share_partitions_and_offsets(
    actions: list[Any], data: st.DataObject
) -> None:
    log = Log()
    partitions: dict[str, list[Record]] = {name: [] for name in ("orders", "returns", "bookings")}
    for real_time, back, what, key, labels, seconds in sorted(actions, key=lambda step: step[0]):
        time = max(0, real_time - back)
        if what == "request":
            # an id belongs to one topic: between two, ties have no order
            topic = "orders" if key == "x" else "returns"
            asked = {"requested_acks": json.dumps(labels), "timeout": f"{seconds}s"}
            partitions[topic].append(log.order(time, key, topic, **asked))
        else:
            partitions["bookings"].append(log.confirmation(time, labels[0], 200 + seconds, key))
    whole = Run()
    whole.feed(*(record for records in partitions.values() for record in records))
    whole.feed(watermark=HORIZON)
    assert decided(fed_in_cuts(list(partitions.values()), data)) == decided(whole)


def test_the_partitions_of_two_topics_are_two_in_the_order_of_a_batch() -> None:
    log = Log()
    late, early = log.order(5_000, "x", "orders"), log.order(1_000, "y", "returns")
    log.order(0, "z", "orders")
    back = log.order(2_000, "w", "orders")
    # a clock that was set back moves the records of its own partition only
    assert [record.correlation_id for record in in_order([back, early, late])] == ["y", "x", "w"]
