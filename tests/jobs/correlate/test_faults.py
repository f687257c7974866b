"""Nothing that one record causes, of any shape, stops a shard or touches another request."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ackstream.jobs.correlate import decision
from ackstream.jobs.correlate.job import write_frame
from ackstream.jobs.correlate.readings import RecordReader
from ackstream.jobs.correlate.records import Writer
from ackstream.jobs.correlate.state import ACKS, SIGNALS, TWIN_ACKS, Record
from ackstream.protocol.ledger import reply_id
from tests.harness.envelopes import answers, record_headers, requests, spoiled, written
from tests.jobs.correlate.shards import THING, Log, Run

HORIZON = 200_000
IDS = ["open", "live", "other", ""]
MESSAGE = "things/live/messages/ask"


def _ask(log: Log, run: Run) -> None:
    """Open two requests, which the records after them are about."""
    run.feed(
        log.command(1000, "open", requested_acks=["a-ack", "twin-persisted"], timeout="60s"),
        log.message(1000, "live", requested_acks=["a-ack", "live-response"], timeout="60s"),
    )


@pytest.mark.parametrize(
    "headers",
    [
        {"response-required": "False"},
        {"timeout": ""},
        {"timeout": "soon"},
        {"version": "x"},
        {"channel": "both"},
        {"requested-acks": "a-ack"},
        {"ditto-weak-ack": "perhaps"},
        {"entity-revision": "first"},
        {"correlation-id": ""},
    ],
    ids="-".join,
)
def test_a_response_with_a_header_of_the_wrong_type_is_a_dead_letter_and_the_request_stays_open(headers: Any) -> None:
    log, run = Log(), Run()
    _ask(log, run)
    body = {"topic": f"{THING}/{MESSAGE}", "headers": {"correlation-id": "live", **headers},
            "path": "/inbox/messages/ask", "value": "ok", "status": 200}  # fmt: skip
    run.feed(log.record(ACKS, 1100, "live", body))
    assert [reason.partition(":")[0] in ("header.invalid", "timeout.invalid") for reason in run.reasons()] == [True]
    run.feed(
        log.response(1200, 200, "live", topic=MESSAGE, path="/inbox/messages/ask"),
        log.ack(1200, "a-ack", correlation_id="live"),
    )
    assert [reply["status"] for reply in run.replies()] == [200]
    assert run.acks() == [("live-response", "accepted"), ("a-ack", "accepted")]


def test_an_early_response_with_a_wrong_header_does_not_harm_the_request_it_waited_for() -> None:
    log, run = Log(), Run()
    body = {"topic": f"{THING}/things/twin/commands/modify", "headers": {"version": "x"}, "path": "/", "status": 204}
    run.feed(log.record(TWIN_ACKS, 1000, "c", body), log.ack(1001, "a-ack"))
    run.feed(log.command(1002, requested_acks=["a-ack", "twin-persisted"]), log.response(1003))
    assert [reply["status"] for reply in run.replies()] == [200]
    assert len(run.reasons()) == 1


@settings(max_examples=300)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just(SIGNALS), spoiled(requests(IDS)), record_headers),
            st.tuples(st.just(ACKS), spoiled(answers(IDS)), st.just({})),
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 6),
)
def test_each_record_is_answered_a_row_or_a_dead_letter_whatever_has_the_wrong_type(
    messages: list[Any], cut: int
) -> None:
    log, run = Log(), Run(reply_topics={"mine": 10**7})
    _ask(log, run)
    records = [_record(log, number, *message) for number, message in enumerate(messages)]
    run.feed(*records[:cut])
    run.feed(*records[cut:])
    run.feed(log.command(90_000, "good", requested_acks=["a-ack"]), log.ack(90_001, "a-ack", correlation_id="good"))
    run.feed(watermark=HORIZON)
    assert ("good", 200) in [(reply["headers"]["correlation-id"], reply["status"]) for reply in run.replies()]
    assert not [reason for reason in run.reasons() if "internalerror" in reason]
    assert ("error", 500) not in [(outcome["completed_by"], outcome["status"]) for outcome in run.outcomes()]
    _check_accounts(run, records)
    assert len(write_frame(run.emissions)) == len(run.emissions)


def _record(log: Log, number: int, source: int, message: Any, headers: dict[str, bytes]) -> Record:
    named = message.get("headers")
    found = named.get("correlation-id") if isinstance(named, dict) else None
    # as Spark takes it from the JSON; a signal without one has its coordinates
    key = found if isinstance(found, str) else None if source == ACKS else f"signals-0-{log.offsets[SIGNALS]}"
    record = log.record(source, 2000 + 1000 * number, key, written(message))
    return msgspec.structs.replace(record, headers=headers)


def _check_accounts(run: Run, records: list[Record]) -> None:
    ledger = run.ledger()
    dead = {(letter["topic"], letter["offset"]) for r in ledger if (letter := r.get("dead_letter"))}
    rows = {(ack["topic"], ack["offset"]) for record in ledger for ack in record.get("acks", ())}
    signals = {record["id"] for record in ledger if record["kind"] in ("signal", "outcome")}
    for record in records:
        if record.source == ACKS:
            assert ("acks", record.offset) in dead | rows
        else:
            named = reply_id(record.correlation_id or "", "signals", record.partition, record.offset)
            assert ("signals", record.offset) in dead or named in signals


# -- what nobody has thought of ----------------------------------------------------------------------------------------


def _breaks(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError


@pytest.mark.parametrize("where", [(decision, "apply"), (Writer, "unused")], ids=["apply", "unused"])
def test_an_unforeseen_error_of_an_acknowledgement_is_a_dead_letter_and_does_not_count(
    monkeypatch: pytest.MonkeyPatch, where: Any
) -> None:
    log, run = Log(), Run()
    run.feed(log.command(1, requested_acks=["a-ack"]))
    with monkeypatch.context() as context:
        context.setattr(*where, _breaks)
        run.feed(log.acks(2, "a-ack", status=503))
    assert run.reasons() == ["internalerror: There was an internal error (ZeroDivisionError). Its cause is in the log."]
    assert run.replies() == []
    run.feed(log.ack(3, "a-ack", 204))
    assert [reply["status"] for reply in run.replies()] == [204]
    assert run.acks() == [("a-ack", "accepted")]


def test_an_unforeseen_error_of_a_request_is_answered_with_500(monkeypatch: pytest.MonkeyPatch) -> None:
    log, run = Log(), Run()
    with monkeypatch.context() as context:
        context.setattr(RecordReader, "signal_of", _breaks)
        run.feed(log.command(1, requested_acks=["a-ack"]))
    (reply,) = run.replies()
    assert (reply["status"], reply["completed-by"], reply["value"]["error"]) == (500, "invalid", "internalerror")
    assert len(run.reasons()) == 1
    assert run.state is None


@pytest.mark.parametrize("by", ["acknowledgement", "deadline"])
def test_a_request_that_cannot_be_answered_as_it_should_is_answered_with_500(
    monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    log, run = Log(), Run()
    run.feed(log.command(1, requested_acks=["a-ack"], timeout="5s"), log.command(1, "other", requested_acks=["b-ack"]))
    with monkeypatch.context() as context:
        context.setattr(decision, "write_aggregate", _breaks)
        run.feed(*[log.ack(2, "a-ack")] * (by == "acknowledgement"), watermark=0 if by == "acknowledgement" else 6000)
    (reply,) = run.replies()
    assert (reply["status"], reply["completed-by"], reply["headers"]["correlation-id"]) == (500, "error", "c")
    assert run.reasons() == []
    run.feed(log.ack(3, "b-ack", correlation_id="other"))
    assert [reply["status"] for reply in run.replies()] == [500, 200]


def test_what_was_emitted_before_an_answer_failed_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    log, run, write = Log(), Run(), Writer._ledger
    monkeypatch.setattr(
        Writer, "_ledger", lambda own, key, record: _breaks() if record.acks else write(own, key, record)
    )
    run.feed(log.command(1, requested_acks=["a-ack"]), log.ack(2, "a-ack"))
    assert [reply["status"] for reply in run.replies()] == [500]


def test_what_was_emitted_before_an_acknowledgement_failed_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    log, run, write = Log(), Run(), Writer._ack
    value = {"topic": f"{THING}/things/twin/acks", "path": "/", "status": 200,
             "value": {"x-ack": {"status": 200}, "y-ack": {"status": 200}}}  # fmt: skip
    monkeypatch.setattr(
        Writer, "_ack", lambda own, key, found, *rest: _breaks() if found.index else write(own, key, found, *rest)
    )
    run.feed(log.command(1, requested_acks=["a-ack"]), log.record(ACKS, 2, "c", value))
    assert (run.acks(), len(run.reasons())) == ([], 1)


def test_an_invalid_response_that_became_a_dead_letter_is_not_given_as_the_reason_of_a_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, run = Log(), Run()
    run.feed(log.live(1, requested_acks=["live-response"], timeout="3s"))
    with monkeypatch.context() as context:
        context.setattr(Writer, "unused", _breaks)
        run.feed(log.response(2, topic="things/live/commands/modify", thing="org.acme/other"))
    run.feed(watermark=5000)
    assert "org.acme:other" not in run.replies()[0]["value"]["description"]


def test_an_unforeseen_error_of_a_held_acknowledgement_is_a_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    log, run = Log(), Run()
    run.feed(log.ack(1, "a-ack"))
    with monkeypatch.context() as context:
        context.setattr(Writer, "unmatched", _breaks)
        run.feed(watermark=10_002)
    assert len(run.reasons()) == 1
    assert run.state is None
