"""The correlation's rules, record by record. Prose cases of the vectors carry their ids."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ackstream.jobs.correlate.state import ACKS, TWIN_ACKS
from tests.jobs.correlate.shards import THING, Log, Run, entries
from tests.prose import covers

LIVE = "things/live/commands/modify"
MESSAGE = "things/live/messages/ask"


@pytest.mark.parametrize("answer_first", [False, True], ids=["request-first", "acks-first"])
def test_two_acks_complete_the_aggregate_in_the_order_of_the_request(run: Run, log: Log, *, answer_first: bool) -> None:
    request = [log.command(1000, requested_acks=["b-ack", "a-ack"])]
    acks = [log.ack(1200, "a-ack", 200), log.ack(1300, "b-ack", 204)]
    for batch in [acks, request] if answer_first else [request, acks]:
        run.feed(*batch)
    (reply,) = run.replies()
    assert list(reply["value"]) == ["b-ack", "a-ack"]
    assert (reply["status"], reply["completed-by"]) == (200, "acknowledgements")
    assert reply["topic"] == f"{THING}/things/twin/acks"
    (outcome,) = run.outcomes()
    assert (outcome["status"], outcome["missing"], outcome["decided_at"], outcome["latency_ms"]) == (200, [], 1300, 300)
    assert run.acks() == [("a-ack", "accepted"), ("b-ack", "accepted")]


def test_the_reply_id_follows_from_the_correlation_id_and_the_coordinates(run: Run, log: Log) -> None:
    first, second = log.command(1, "x", requested_acks=["a-ack"]), log.command(1, "y", requested_acks=["a-ack"])
    run.feed(first, second, log.ack(2, "a-ack", correlation_id="x"), log.ack(2, "a-ack", correlation_id="y"))
    again = Run()
    again.feed(first)
    again.feed(second, log.ack(3, "a-ack", correlation_id="y"), log.ack(3, "a-ack", correlation_id="x"))
    ids = {reply["headers"]["correlation-id"]: reply["reply-id"] for reply in run.replies()}
    assert ids == {reply["headers"]["correlation-id"]: reply["reply-id"] for reply in again.replies()}
    assert len(set(ids.values())) == 2


def test_labels_missing_at_the_deadline_become_408_entries(run: Run, log: Log) -> None:
    run.feed(log.command(1000, requested_acks=["a-ack", "b-ack"], timeout="10s"), log.ack(2000, "a-ack"))
    run.feed(watermark=11_000)
    assert run.replies() == []
    run.feed(watermark=11_001)
    (reply,) = run.replies()
    assert (reply["status"], reply["completed-by"], entries(reply)) == (424, "timeout", {"a-ack": 200, "b-ack": 408})
    assert "10,000ms" in reply["value"]["b-ack"]["payload"]["message"]
    (outcome,) = run.outcomes()
    assert (outcome["missing"], outcome["decided_at"]) == (["b-ack"], 11_000)


def test_the_next_timeout_is_the_earliest_deadline(run: Run, log: Log) -> None:
    run.feed(log.command(1000, "a", requested_acks=["a-ack"], timeout="10s"))
    run.feed(log.command(2000, "b", requested_acks=["a-ack"], timeout="5s"))
    assert run.next_timeout == 7000


def test_an_ack_at_the_very_deadline_is_in_time_and_one_after_it_is_late(run: Run, log: Log) -> None:
    run.feed(log.command(1000, requested_acks=["a-ack", "b-ack"], timeout="1s"))
    run.feed(log.ack(2000, "a-ack"), log.ack(2001, "b-ack"), watermark=2001)
    assert entries(run.replies()[0]) == {"a-ack": 200, "b-ack": 408}
    assert sorted(run.acks()) == [("a-ack", "accepted"), ("b-ack", "late")]


def test_an_ack_after_the_answer_is_late(run: Run, log: Log) -> None:
    run.feed(log.command(1000, requested_acks=["a-ack"]), log.ack(1001, "a-ack"))
    run.feed(log.ack(1002, "a-ack"))
    assert run.acks() == [("a-ack", "accepted"), ("a-ack", "late")]
    assert len(run.replies()) == 1


def test_an_ack_without_a_request_becomes_an_orphan_after_its_hold(run: Run, log: Log) -> None:
    run.feed(log.ack(1000, "a-ack"), watermark=11_000)
    assert run.acks() == []
    run.feed(watermark=11_001)
    assert run.acks() == [("a-ack", "orphan")]
    assert run.state is None


def test_each_early_ack_of_an_id_has_a_hold_of_its_own(run: Run, log: Log) -> None:
    run.feed(log.ack(1000, "a-ack"), log.ack(5000, "b-ack"), watermark=11_001)
    assert run.acks() == [("a-ack", "orphan")]
    run.feed(log.command(12_000, requested_acks=["b-ack"]))
    assert [reply["status"] for reply in run.replies()] == [200]


def test_a_request_after_the_hold_of_an_ack_does_not_receive_it(run: Run, log: Log) -> None:
    run.feed(log.ack(1000, "a-ack"), log.command(11_001, requested_acks=["a-ack"]))
    assert run.acks() == [("a-ack", "orphan")]
    assert run.replies() == []


@pytest.mark.parametrize("answer_first", [False, True], ids=["request-first", "ack-first"])
def test_a_request_at_the_very_end_of_the_hold_gets_the_ack(run: Run, log: Log, *, answer_first: bool) -> None:
    ack, request = log.ack(1000, "a-ack"), log.command(11_000, requested_acks=["a-ack"])
    for record in [ack, request] if answer_first else [request, ack]:
        run.feed(record, watermark=11_000)
    assert run.acks() == [("a-ack", "accepted")]


def test_a_held_ack_that_lowered_limits_make_unreadable_becomes_a_dead_letter(run: Run, log: Log) -> None:
    run.feed(log.ack(1000, "a-ack"))
    restarted = Run(max_value_bytes=10)
    restarted.state = run.state
    restarted.feed(watermark=11_001)
    assert "things:thing.toolarge" in restarted.reasons()[0]


def test_a_held_ack_becomes_an_orphan_at_the_end_of_a_hold_that_was_made_longer(run: Run, log: Log) -> None:
    run.feed(log.ack(1000, "a-ack"))
    restarted = Run(orphan_hold="60s")
    restarted.state = run.state
    restarted.feed(watermark=11_001)
    assert restarted.acks() == []
    restarted.feed(watermark=61_001)
    assert restarted.acks() == [("a-ack", "orphan")]


def test_the_hold_and_the_memory_have_settings_of_their_own(log: Log) -> None:
    run = Run(orphan_hold="2s", recent_memory="16s")
    run.feed(log.ack(1000, "a-ack", correlation_id="early"), watermark=3001)
    assert run.acks() == [("a-ack", "orphan")]
    run.feed(log.command(4000, requested_acks=["a-ack"], timeout="1s"), log.ack(4000, "a-ack"))
    # deadline plus memory, rounded up to the next two seconds
    run.feed(log.command(22_000, requested_acks=["a-ack"]), log.command(22_001, requested_acks=["a-ack"]))
    assert (len(run.reasons()), len(run.ledger()) - len(run.reasons())) == (1, 3)


def test_a_request_without_a_timeout_gets_that_of_the_settings(log: Log) -> None:
    run = Run(default_timeout="7s")
    run.feed(log.command(1000, requested_acks=["a-ack"]))
    assert run.next_timeout == 8000


def test_a_request_for_more_labels_than_the_settings_allow_is_rejected(log: Log) -> None:
    run = Run(max_labels=2)
    run.feed(log.command(1, "two", requested_acks=["a-ack", "b-ack"]))
    run.feed(log.command(1, "three", requested_acks=["a-ack", "b-ack", "c-ack"]))
    (reply,) = run.replies()
    assert (reply["status"], reply["headers"]["correlation-id"]) == (400, "three")


def test_a_producers_retry_does_not_start_a_second_request(run: Run, log: Log) -> None:
    run.feed(log.command(1000, requested_acks=["a-ack"], timeout="5s"), log.command(1001, requested_acks=["a-ack"]))
    run.feed(log.ack(1100, "a-ack"))
    run.feed(log.command(1200, requested_acks=["a-ack"]), log.command(66_000, requested_acks=["a-ack"]))
    assert len(run.replies()) == len(run.outcomes()) == 1
    assert len(run.reasons()) == 3


@pytest.mark.parametrize("decided", [True, False])
def test_a_correlation_id_is_claimed_up_to_the_very_end_of_its_memory(run: Run, log: Log, *, decided: bool) -> None:
    run.feed(log.command(1000, requested_acks=["a-ack"], timeout="5s"), *[log.ack(1100, "a-ack")] * decided)
    # the deadline plus 60 s, rounded up to the next 7.5 s
    run.feed(log.command(67_500, requested_acks=["a-ack"]))
    assert len(run.reasons()) == 1
    run.feed(log.command(67_501, requested_acks=["a-ack"]), log.ack(67_600, "a-ack"))
    run.feed(watermark=67_500)
    assert len(run.reasons()) == 1
    assert [outcome["started_at"] for outcome in run.outcomes()] == [1000, 67_501]


def test_an_ack_is_late_up_to_the_very_end_of_the_memory(run: Run, log: Log) -> None:
    run.feed(log.command(1000, requested_acks=["a-ack"], timeout="5s"), log.ack(1100, "a-ack"))
    run.feed(watermark=67_500)
    run.feed(log.ack(67_500, "a-ack"), log.ack(67_501, "a-ack"), watermark=67_500)
    run.feed(watermark=77_502)
    assert run.acks() == [("a-ack", "accepted"), ("a-ack", "late"), ("a-ack", "orphan")]


def test_a_correlation_id_can_be_used_again_after_its_memory(run: Run, log: Log) -> None:
    run.feed(log.command(1000, requested_acks=["a-ack"], timeout="5s"), log.ack(1100, "a-ack"))
    run.feed(log.command(90_000, requested_acks=["a-ack"], timeout="5s"), log.ack(90_100, "a-ack"))
    assert [outcome["started_at"] for outcome in run.outcomes()] == [1000, 90_000]


@pytest.mark.parametrize("together", [True, False])
def test_an_ack_for_an_earlier_use_of_an_id_is_late_also_when_the_next_use_is_read_first(
    run: Run, log: Log, *, together: bool
) -> None:
    first = log.command(1000, requested_acks=["a-ack"], timeout="5s"), log.ack(1100, "a-ack")
    second, late = log.command(68_000, requested_acks=["a-ack"]), log.ack(67_500, "a-ack")
    for batch in [(*first, second, late)] if together else [(*first, second), (late,)]:
        run.feed(*batch)
    assert run.acks() == [("a-ack", "accepted"), ("a-ack", "late")]
    assert len(run.replies()) == 1


def test_a_new_use_of_an_open_id_read_too_early_waits_for_the_end_of_the_old_one(run: Run, log: Log) -> None:
    run.feed(log.command(1000, requested_acks=["a-ack"], timeout="5s"), log.command(90_000, requested_acks=["a-ack"]))
    run.feed(log.ack(2000, "a-ack"), log.ack(90_500, "a-ack"))
    assert [(o["started_at"], o["decided_at"]) for o in run.outcomes()] == [(1000, 2000), (90_000, 90_500)]


def test_a_request_without_response_gets_an_outcome_and_no_reply(run: Run, log: Log) -> None:
    run.feed(log.command(1, requested_acks=["a-ack"], response_required=False), log.ack(2, "a-ack", 503))
    assert run.replies() == []
    (outcome,) = run.outcomes()
    assert (outcome["status"], outcome["reply_topic"], "reply" in outcome) == (503, None, False)


def test_a_label_that_is_requested_twice_counts_once(run: Run, log: Log) -> None:
    run.feed(log.command(1, requested_acks=["a-ack", "a-ack"]), log.ack(2, "a-ack", 202))
    assert [(reply["status"], entries(reply)) for reply in run.replies()] == [(202, {"a-ack": 202})]
    run.feed(log.command(1, "twin", requested_acks=["twin-persisted"] * 2), log.response(2, correlation_id="twin"))
    assert run.replies()[1]["completed-by"] == "response"
    assert [outcome["requested"] for outcome in run.outcomes()] == [["a-ack"], ["twin-persisted"]]


def test_a_request_whose_correlation_id_is_a_number_with_a_fraction_is_refused(run: Run, log: Log) -> None:
    """Spark reads such a number by its own rules, Python by others: the requester would wait for another id."""
    request = log.command(1, "1.767225600123E9", requested_acks=["a-ack"])
    value = (request.value or b"").replace(b'"1.767225600123E9"', b"1767225600.123")
    run.feed(msgspec.structs.replace(request, value=value))
    (reply,) = run.replies()
    assert (reply["status"], reply["completed-by"], reply["value"]["error"]) == (400, "invalid", "header.invalid")
    assert run.state is None


def test_an_entry_of_an_aggregate_keeps_its_payload_or_its_lack_of_one(run: Run, log: Log) -> None:
    given = {
        "a-ack": {"status": 204},
        "b-ack": {"status": 200, "payload": None},
        "c-ack": {"status": 200, "payload": 1},
    }
    value = {"topic": f"{THING}/things/twin/acks", "headers": {"correlation-id": "c"}, "path": "/", "status": 200}
    run.feed(log.command(1, requested_acks=list(given)), log.record(ACKS, 2, "c", {**value, "value": given}))
    written = run.replies()[0]["value"]
    assert {label: {**entry, "headers": {}} for label, entry in written.items()} == {
        label: {**entry, "headers": {}} for label, entry in given.items()
    }
    (row,) = [record["acks"] for record in run.ledger() if record["kind"] == "outcome"]
    assert [("payload" in ack, ack.get("payload")) for ack in row] == [(False, None), (True, None), (True, 1)]


def test_a_signal_that_awaits_nothing_is_recorded_and_closed(run: Run, log: Log) -> None:
    run.feed(log.command(1, requested_acks=[], response_required=False))
    (record,) = run.ledger()
    assert (record["kind"], record["signal"]["correlation_id"]) == ("signal", "c")
    assert run.state is None


def test_an_open_request_is_recorded_before_it_is_decided(run: Run, log: Log) -> None:
    run.feed(log.command(1, requested_acks=["a-ack"]))
    run.feed(log.ack(2, "a-ack"))
    assert [(record["kind"], "signal" in record) for record in run.ledger()] == [("signal", True), ("outcome", False)]
    assert len({record["id"] for record in run.ledger()}) == 1


def test_the_channels_header_and_reply_to_choose_the_topic_of_the_reply(log: Log) -> None:
    run = Run(reply_topics={"mine": 10**7})
    command = log.command(1, requested_acks=["a-ack"])
    run.feed(_with(command, reply_to="mine", kafka_correlationId="\x01\x02"), log.ack(2, "a-ack"))
    (emission,) = (e for e in run.emissions if e.reply_id)
    assert (emission.topic, emission.spring_correlation) == ("mine", b"\x01\x02")


TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize("end", ["acknowledgements", "response", "timeout"])
def test_the_trace_of_a_request_is_stored_with_it_and_comes_back_with_its_reply(run: Run, log: Log, end: str) -> None:
    wanted = {"requested_acks": [] if end == "response" else ["a-ack"], "timeout": "5s"}
    command = (log.live if end == "response" else log.command)(1, **wanted)
    run.feed(_with(command, traceparent=TRACE))
    if end != "timeout":
        answer = log.response(2, topic="things/live/commands/modify")
        run.feed(log.ack(2, "a-ack") if end == "acknowledgements" else answer)
    run.feed(watermark=10_000)
    (signal,) = (record["signal"] for record in run.ledger() if "signal" in record)
    (emission,) = (e for e in run.emissions if e.reply_id)
    assert emission.completed_by == end
    assert signal["headers"]["traceparent"] == TRACE
    assert emission.traceparent == TRACE.encode()


def test_the_trace_of_an_invalid_request_comes_back_with_its_error_and_a_malformed_one_does_not(
    run: Run, log: Log
) -> None:
    for identity, trace in (("a", TRACE), ("b", "nonsense")):
        command = log.command(1, identity, requested_acks=["a-ack"], timeout="wrong")
        run.feed(_with(command, traceparent=trace))
    found = {e.key: e.traceparent for e in run.emissions if e.reply_id}
    assert found == {b"a": TRACE.encode(), b"b": None}


@pytest.mark.parametrize("name", ["reply-to", "kafka_replyTopic"])
def test_a_reply_topic_that_is_not_allowed_is_refused_on_the_replies_topic(run: Run, log: Log, name: str) -> None:
    run.feed(_with(log.command(1, requested_acks=["a-ack"]), **{name: "secret"}))
    (reply,) = run.replies()
    assert (reply["status"], reply["completed-by"], reply["sent-to"]) == (400, "invalid", "replies")
    assert reply["value"]["invalidHeaderKey"] == name


@pytest.mark.parametrize("name", ["reply-to", "kafka_replyTopic"])
def test_the_error_of_an_invalid_request_goes_to_the_chosen_reply_topic(log: Log, name: str) -> None:
    run = Run(reply_topics={"mine": 10**7})
    run.feed(_with(log.command(1, requested_acks=["a-ack"], timeout="0"), **{name: "mine"}))
    (reply,) = run.replies()
    assert (reply["status"], reply["sent-to"]) == (400, "mine")


@pytest.mark.parametrize(
    ("value", "status", "code"),
    [
        (b"no json", 400, "json.invalid"),
        (b"[1]", 400, "json.invalid"),
        (b'"text"', 400, "json.invalid"),
        (b"\xff\xfe{", 400, "json.invalid"),
        (b"[" * 100_000, 400, "json.invalid"),
        (None, 400, "json.invalid"),
        ({"path": "/"}, 400, "json.field.missing"),
        ({"topic": "a/b/things/twin/commands/explode", "path": "/"}, 400, "protocoladapter:unknown.topicpath"),
        ({"topic": "a/b/things/twin/events/modified", "path": "/"}, 400, "protocoladapter:unknown.topicpath"),
    ],
)
def test_a_signal_that_cannot_be_read_gets_the_error_and_becomes_a_dead_letter(
    run: Run, log: Log, value: Any, status: int, code: str
) -> None:
    run.feed(log.command(1, "other", requested_acks=["a-ack"]))
    run.feed(log.record(0, 2, "c", value), log.ack(3, "a-ack", correlation_id="other"))
    first, second = run.replies()
    assert (first["status"], first["value"]["error"], first["completed-by"]) == (status, code, "invalid")
    assert first["headers"]["correlation-id"] == "c"
    assert second["status"] == 200
    assert [code in reason for reason in run.reasons()] == [True]
    assert [outcome["completed_by"] for outcome in run.outcomes()] == ["invalid", "acknowledgements"]


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({"timeout": "soon"}, None),
        ({"timeout": "0", "requested_acks": ["a-ack"]}, "timeout"),
        ({"requested_acks": ["a"]}, "requested-acks"),
        ({"requested_acks": [f"label-{number}" for number in range(10_000)]}, "requested-acks"),
        ({"response_required": "maybe"}, "response-required"),
        ({"response_required": 7}, "response-required"),
    ],
)
def test_an_invalid_header_is_reported_to_the_requester(run: Run, log: Log, headers: Any, key: str | None) -> None:
    run.feed(log.command(1, **headers))
    (reply,) = run.replies()
    assert (reply["status"], reply["topic"]) == (400, f"{THING}/things/twin/errors")
    assert reply["value"].get("invalidHeaderKey") == key


def test_a_value_over_the_limit_is_refused_with_413(log: Log) -> None:
    run = Run(max_value_bytes=100)
    run.feed(log.command(1, requested_acks=["a-ack"], filler="x" * 100))
    assert run.replies()[0]["status"] == 413


def test_an_unreadable_ack_does_not_affect_other_requests(run: Run, log: Log) -> None:
    run.feed(log.command(1, requested_acks=["a-ack"]))
    run.feed(log.record(1, 2, "c", b"garbage"), log.record(1, 2, None, b"{}"), log.ack(2, "x"), log.ack(3, "a-ack"))
    assert len(run.reasons()) == 3
    assert run.replies()[0]["status"] == 200


def test_an_ack_without_a_correlation_id_is_a_dead_letter_that_says_so(run: Run, log: Log) -> None:
    run.feed(log.ack(1, "a-ack", correlation_id=None))  # type: ignore[arg-type]
    assert "acknowledgement:correlation-id.missing" in run.reasons()[0]


def test_a_command_on_the_acks_topic_is_a_dead_letter(run: Run, log: Log) -> None:
    command = {"topic": f"{THING}/things/twin/commands/modify", "headers": {"correlation-id": "c"}, "path": "/"}
    run.feed(log.record(1, 1, "c", command))
    assert "answer a request" in run.reasons()[0]


# -- the prose cases of the aggregator actor ---------------------------------------------------------------------------


def test_actor_returnSingleResponseForTwin(run: Run, log: Log) -> None:  # noqa: N802 - the case's id
    run.feed(log.command(1, requested_acks=["twin-persisted"]), log.response(2))
    (reply,) = run.replies()
    assert (reply["status"], reply["topic"]) == (204, f"{THING}/things/twin/commands/modify")
    assert reply["completed-by"] == "response"


def test_actor_returnSingleResponseForLive(run: Run, log: Log) -> None:  # noqa: N802
    run.feed(log.live(1, requested_acks=["live-response"]), log.response(2, topic=LIVE))
    assert run.replies()[0]["topic"] == f"{THING}/{LIVE}"


@pytest.mark.parametrize(
    ("case", "label", "code"),
    [
        ("actor-returnErrorResponseForTwin", "twin-persisted", "command.timeout"),
        ("actor-returnErrorResponseForLive", "live-response", "command.timeout"),
        ("actor-code-single-twin-persisted-timeout", "twin-persisted", "command.timeout"),
        ("actor-code-single-live-response-timeout", "live-response", "command.timeout"),
        ("actor-code-single-custom-timeout", "foo-ack", None),
        ("actor-code-single-search-persisted-timeout", "search-persisted", None),
    ],
)
def test_single_label_timeouts(run: Run, log: Log, case: str, label: str, code: str | None) -> None:
    request = log.live if label == "live-response" else log.command
    run.feed(request(1, requested_acks=[label], timeout="1ms"))
    run.feed(watermark=100)
    (reply,) = run.replies()
    assert reply["status"] == 408, case
    assert reply["value"].get("error") == code
    assert code or entries(reply) == {label: 408}
    assert run.outcomes()[0]["missing"] == [label]


def test_actor_keepCommandHeaders(run: Run, log: Log) -> None:  # noqa: N802
    run.feed(
        log.command(1, requested_acks=["ack1", "ack2"], tag="DeleteThing"),
        log.ack(2, "ack1", 401, tag="ack1"),
        log.ack(2, "ack2", 402, tag="ack2"),
    )
    (reply,) = run.replies()
    assert (reply["status"], reply["headers"]["tag"], "requested-acks" in reply["headers"]) == (
        424,
        "DeleteThing",
        False,
    )
    assert reply["headers"]["response-required"] is False
    assert entries(reply) == {"ack1": 401, "ack2": 402}


def test_actor_awaitsOnlyUntilTimeout(run: Run, log: Log) -> None:  # noqa: N802
    run.feed(log.command(0, requested_acks=["ack1", "ack2"], timeout="5s"), log.ack(3000, "ack1", 401))
    run.feed(log.ack(6000, "ack2", 402), watermark=6000)
    assert entries(run.replies()[0]) == {"ack1": 401, "ack2": 408}
    assert run.outcomes()[0]["decided_at"] == 5000


def test_actor_discardDuplicateAndUnsolicited(run: Run, log: Log) -> None:  # noqa: N802
    run.feed(
        log.command(1, requested_acks=["ack1", "ack2"]),
        log.ack(2, "ack1", 401, tag="ack1"),
        log.ack(3, "ack3", 200, tag="unsolicited"),
        log.ack(4, "ack1", 401, tag="duplicate"),
        log.ack(5, "ack2", 402),
    )
    (reply,) = run.replies()
    assert entries(reply) == {"ack1": 401, "ack2": 402}
    assert reply["value"]["ack1"]["headers"]["tag"] == "ack1"
    assert sorted(run.acks()) == [
        ("ack1", "accepted"),
        ("ack1", "duplicate"),
        ("ack2", "accepted"),
        ("ack3", "unrequested"),
    ]


@covers("aggregation", "actor-liveResponseEventuallyValid")
def test_actor_invalidThenValidLiveResponse(run: Run, log: Log) -> None:  # noqa: N802
    run.feed(
        log.live(1, requested_acks=["live-response"]),
        log.response(2, topic=LIVE, thing="org.acme/other"),
        log.response(3, 200, topic=LIVE),
    )
    (reply,) = run.replies()
    assert reply["status"] == 200
    assert run.acks() == [("live-response", "invalid"), ("live-response", "accepted")]


def test_actor_onlyInvalidLiveResponse(run: Run, log: Log) -> None:  # noqa: N802
    run.feed(
        log.live(1, requested_acks=["live-response"], timeout="3s"), log.response(2, topic=LIVE, thing="org.acme/other")
    )
    run.feed(watermark=5000)
    (reply,) = run.replies()
    assert (reply["status"], reply["value"]["error"]) == (408, "command.timeout")
    said = "Entity ID of live response <org.acme:other> differs from entity ID of command <org.acme:lamp>."
    assert said in reply["value"]["description"]


def test_actor_code_single_custom(run: Run, log: Log) -> None:
    run.feed(log.command(1, requested_acks=["foo-ack"]), log.ack(2, "foo-ack", 202, payload={"a": 1}))
    (reply,) = run.replies()
    assert (reply["status"], reply["value"]["foo-ack"]["payload"]) == (202, {"a": 1})


def test_actor_code_single_search_persisted(run: Run, log: Log) -> None:
    of_twin = log.acks(2, "search-persisted", source=TWIN_ACKS, status=204)
    run.feed(log.command(1, requested_acks=["search-persisted"]), of_twin)
    (reply,) = run.replies()
    assert (reply["topic"], entries(reply)) == (f"{THING}/things/twin/acks", {"search-persisted": 204})


def test_actor_code_live_response_as_acknowledgement(run: Run, log: Log) -> None:
    # differs: a live response is a response, also that of a connection's target
    run.feed(log.live(1, requested_acks=["live-response"]), log.acks(2, "live-response", channel="live"))
    assert run.replies() == []
    assert "acknowledgement:ditto.acklabel.forbidden" in run.reasons()[0]


def test_actor_code_twin_persisted_not_requested(run: Run, log: Log) -> None:
    run.feed(log.command(1, requested_acks=["foo-ack"]), log.response(2), log.ack(3, "foo-ack"))
    assert entries(run.replies()[0]) == {"foo-ack": 200}
    assert sorted(run.acks()) == [("foo-ack", "accepted"), ("twin-persisted", "unrequested")]


def test_actor_code_twin_persisted_and_custom(run: Run, log: Log) -> None:
    run.feed(log.command(1, requested_acks=["twin-persisted", "foo-ack"]), log.response(2), log.ack(3, "foo-ack"))
    (reply,) = run.replies()
    assert (reply["status"], entries(reply)) == (200, {"twin-persisted": 204, "foo-ack": 200})


def test_actor_code_twin_persisted_201_payload(run: Run, log: Log) -> None:
    thing = {"thingId": "org.acme:lamp"}
    run.feed(
        log.command(1, requested_acks=["twin-persisted", "foo-ack"]),
        log.ack(2, "foo-ack"),
        log.response(3, 201, value=thing),
    )
    assert run.replies()[0]["value"]["twin-persisted"]["payload"] == thing


def test_actor_code_error_aborts(run: Run, log: Log) -> None:
    run.feed(log.command(1, requested_acks=["twin-persisted", "foo-ack"]), log.error(2))
    (reply,) = run.replies()
    assert (reply["status"], reply["value"]["error"], reply["completed-by"]) == (404, "things:thing.notfound", "error")


def test_actor_code_precondition_aborts(run: Run, log: Log) -> None:
    run.feed(log.command(1, requested_acks=["foo-ack"]), log.error(2, 412, "things:precondition.failed"))
    assert run.replies()[0]["status"] == 412


def test_actor_code_command_timeout_exception(run: Run, log: Log) -> None:
    run.feed(
        log.command(1, requested_acks=["twin-persisted", "foo-ack"]),
        log.ack(2, "foo-ack"),
        log.error(3, 408, "command.timeout"),
    )
    (reply,) = run.replies()
    assert (reply["status"], entries(reply)) == (424, {"twin-persisted": 408, "foo-ack": 200})


def test_actor_code_live_response_error_status(run: Run, log: Log) -> None:
    run.feed(log.live(1, requested_acks=["live-response"]), log.response(2, 404, topic=LIVE))
    (reply,) = run.replies()
    assert (reply["status"], reply["topic"]) == (404, f"{THING}/{LIVE}")


def test_actor_code_live_response_and_custom(run: Run, log: Log) -> None:
    run.feed(
        log.message(1, requested_acks=["live-response", "foo-ack"]),
        log.response(2, 200, topic=MESSAGE, path="/inbox/messages/ask", value="hi"),
        log.ack(3, "foo-ack"),
    )
    (reply,) = run.replies()
    assert (reply["status"], entries(reply)) == (200, {"live-response": 200, "foo-ack": 200})
    assert reply["value"]["live-response"]["payload"] == "hi"


def test_actor_code_incoming_acknowledgements(run: Run, log: Log) -> None:
    run.feed(log.command(1, requested_acks=["foo-ack", "bar-ack"]), log.acks(2, "foo-ack", "bar-ack"))
    assert entries(run.replies()[0]) == {"foo-ack": 200, "bar-ack": 200}
    positions = [ack["index"] for record in run.ledger() for ack in record.get("acks", ())]
    assert positions == [0, 1]


def test_actor_code_timeout_equal_to_max(log: Log) -> None:
    run = Run(max_timeout="65s")
    run.feed(
        log.command(0, "a", requested_acks=["a-ack"], timeout="65s"),
        log.command(0, "b", requested_acks=["a-ack"], timeout="2m"),
    )
    assert [record["signal"]["timeout_ms"] for record in run.ledger()] == [65_000, 65_000]


def test_a_live_error_is_a_response_of_the_subscriber(run: Run, log: Log) -> None:
    run.feed(
        log.live(1, requested_acks=["live-response", "foo-ack"]), log.error(2, channel="live"), log.ack(3, "foo-ack")
    )
    assert entries(run.replies()[0]) == {"live-response": 404, "foo-ack": 200}


def test_a_response_alone_answers_a_request_without_acks(run: Run, log: Log) -> None:
    run.feed(log.command(1, requested_acks=[]), log.response(2))
    assert (run.replies()[0]["status"], run.outcomes()[0]["completed_by"]) == (204, "response")


def test_a_weak_ack_is_a_success_and_recorded_as_weak(run: Run, log: Log) -> None:
    run.feed(log.command(1, requested_acks=["a-ack"]), log.ack(2, "a-ack", **{"ditto-weak-ack": True}))
    assert run.replies()[0]["status"] == 200
    assert [ack["weak"] for record in run.ledger() for ack in record.get("acks", ())] == [True]


def _with(record: Any, **headers: str) -> Any:
    named = {name.replace("reply_to", "reply-to"): value.encode() for name, value in headers.items()}
    return msgspec.structs.replace(record, headers=named)
