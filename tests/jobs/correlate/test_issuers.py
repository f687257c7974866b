"""Who may acknowledge what: built-in labels are their issuers', and undeclared labels can be refused."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ackstream.errors import StartError
from ackstream.jobs.correlate.job import JOB
from ackstream.jobs.correlate.state import ACKS, SIGNALS, TWIN_ACKS, Record
from ackstream.jobs.twin.batch import fold
from ackstream.jobs.twin.records import SignalRecord
from ackstream.protocol.ditto.twin.access import signature
from ackstream.protocol.record_headers import ORIGINATOR_SIGNATURE, REPLY_ID
from ackstream.settings import Correlate, Settings
from ackstream.settings.security import Secret
from ackstream.spark.checkpoint import compare_values, fixed_values
from tests.jobs.correlate.shards import THING, Log, Run, entries

BUILT_IN = ["twin-persisted", "live-response", "search-persisted"]
MESSAGE = "things/live/messages/ask"


# -- built-in labels ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", BUILT_IN)
@pytest.mark.parametrize("form", ["single", "aggregated", "aggregated with others"])
def test_nobody_acknowledges_a_built_in_label(label: str, form: str) -> None:
    log, run = Log(), Run()
    request = log.live if label == "live-response" else log.command
    run.feed(request(1, requested_acks=[label, "a-ack"], timeout="5s"))
    labels = ["a-ack", label] if form == "aggregated with others" else [label]
    run.feed(log.ack(2, label) if form == "single" else log.acks(2, *labels))
    assert [reason.partition(":")[0] for reason in run.reasons()] == ["acknowledgement"]
    assert f"<{label}> is not allowed to be issued externally" in run.reasons()[0]
    run.feed(watermark=6000)
    assert entries(run.replies()[0]) == {label: 408, "a-ack": 408}


@pytest.mark.parametrize(
    "answer",
    [
        lambda log: log.response(2, 201, source=ACKS),
        lambda log: log.response(2, 201, topic="things/live/commands/modify", source=ACKS),
        lambda log: log.error(2, 403, source=ACKS),
        lambda log: log.error(2, 403, channel="live", source=ACKS),
        lambda log: log.error(2, 408, "command.timeout", source=ACKS),
    ],
    ids=["response", "live-response", "error", "live-error", "timeout"],
)
def test_the_twin_alone_answers_its_commands(answer: Any) -> None:
    log, run = Log(), Run()
    run.feed(log.command(1, requested_acks=["twin-persisted"], timeout="5s"), answer(log))
    assert run.replies() == []
    assert [disposition for _, disposition in run.acks()] == ["invalid"]
    run.feed(log.response(3, 204))
    assert [(reply["status"], reply["completed-by"]) for reply in run.replies()] == [(204, "response")]


def test_the_requester_of_a_forged_response_learns_why_it_did_not_count() -> None:
    log, run = Log(), Run()
    run.feed(log.command(1, timeout="5s"), log.response(2, source=ACKS))
    run.feed(watermark=6000)
    (reply,) = run.replies()
    assert (reply["status"], reply["value"]["error"]) == (408, "command.timeout")
    assert "only the twin answers twin commands" in reply["value"]["description"]


def test_the_twin_does_not_respond_to_live_commands() -> None:
    log, run = Log(), Run()
    topic = "things/live/commands/modify"
    run.feed(log.live(1, requested_acks=["live-response"]), log.response(2, topic=topic, source=TWIN_ACKS))
    assert (run.replies(), run.acks()) == ([], [("live-response", "invalid")])
    run.feed(log.response(3, 200, topic=topic))
    assert [reply["status"] for reply in run.replies()] == [200]


def test_a_query_with_a_live_channel_condition_is_refused_at_once_and_the_twin_is_silent() -> None:
    log, run = Log(), Run()
    headers = {"live-channel-condition": "eq(attributes/x,1)"}
    query = log.signal(1, "c", f"{THING}/things/twin/commands/retrieve", **headers)
    (result,) = fold([SignalRecord(query.timestamp, 0, query.offset, "c", query.value)], {}, Settings())
    assert (result.rows, result.messages) == ([], [])
    run.feed(query)
    (reply,) = run.replies()
    assert (reply["status"], reply["value"]["error"], reply["completed-by"]) == (501, "command.notavailable", "invalid")
    assert len(run.reasons()) == 1


def test_rows_and_dead_letters_name_the_topic_of_the_twin() -> None:
    log, run = Log(), Run()
    run.feed(log.command(1, requested_acks=["twin-persisted", "a-ack"]), log.ack(2, "a-ack"), log.response(3))
    run.feed(log.record(TWIN_ACKS, 4, "c", b"garbage"))
    rows = {(ack["topic"], ack["offset"]): ack["label"] for record in run.ledger() for ack in record.get("acks", ())}
    assert rows == {("acks", 0): "a-ack", ("twin-acks", 0): "twin-persisted"}
    assert [r["dead_letter"]["topic"] for r in run.ledger() if "dead_letter" in r] == ["twin-acks"]


# -- answers that are another thing's or channel's ---------------------------------------------------------------------

OTHER = "org.acme/mine"
"""The thing of the attacker; the request is about another one."""


@pytest.mark.parametrize("first", [False, True], ids=["request-first", "planted-before"])
@pytest.mark.parametrize(
    ("forged", "reason"),
    [
        (lambda log: log.response(2, topic="things/live/commands/modify", thing=OTHER), "only the twin answers"),
        (lambda log: log.error(2, 403, channel="live", thing=OTHER), "only the twin answers"),
        (lambda log: log.ack(2, "a-ack", thing=OTHER), "<org.acme:mine> differs from entity ID of command"),
        (lambda log: log.acks(2, "a-ack", thing=OTHER), "<org.acme:mine> differs from entity ID of command"),
        (lambda log: log.acks(2, "twin-persisted", source=TWIN_ACKS, thing=OTHER), "<org.acme:mine> differs"),
        (lambda log: log.response(2, thing=OTHER), "<org.acme:mine> differs from entity ID of command"),
        (lambda log: log.error(2, thing=OTHER), "<org.acme:mine> differs from entity ID of command"),
        (lambda log: log.response(2, topic="things/live/commands/modify", source=TWIN_ACKS), "Channel of response"),
    ],
    ids=["live-response", "live-error", "ack", "aggregate", "aggregate-of-twin", "of-twin", "error-of-twin", "channel"],
)
def test_an_answer_of_another_thing_or_channel_does_not_count_and_its_row_says_why(
    forged: Any, reason: str, *, first: bool
) -> None:
    log, run = Log(), Run()
    request = log.command(3 if first else 1, requested_acks=["twin-persisted", "a-ack"])
    for record in [forged(log), request] if first else [request, forged(log)]:
        run.feed(record)
    assert (run.replies(), [disposition for _, disposition in run.acks()]) == ([], ["invalid"])
    assert reason in str(run.reasons_of_acks())
    run.feed(log.response(4), log.ack(5, "a-ack"))
    assert [(reply["status"], reply["completed-by"]) for reply in run.replies()] == [(200, "acknowledgements")]
    assert run.reasons_of_acks()[1:] == [None, None]


@pytest.mark.parametrize("thing", [OTHER, "unknown/unknown"])
@pytest.mark.parametrize("form", ["response", "error"])
def test_nobody_answers_a_live_command_for_another_thing(form: str, thing: str) -> None:
    log, run = Log(), Run()
    topic = "things/live/commands/modify"
    forged = {
        "response": lambda: log.response(2, topic=topic, thing=thing),
        "error": lambda: log.error(2, 403, channel="live", thing=thing),
    }
    run.feed(log.live(1), forged[form]())
    assert (run.replies(), [disposition for _, disposition in run.acks()]) == ([], ["invalid"])
    run.feed(log.response(3, topic=topic))
    assert [reply["status"] for reply in run.replies()] == [204]


def test_an_acknowledgement_of_a_document_names_no_thing_and_counts() -> None:
    log, run = Log(), Run()
    run.feed(log.command(1, requested_acks=["a-ack"]), log.ack(2, "a-ack", thing="unknown/unknown"))
    assert run.acks() == [("a-ack", "accepted")]


@pytest.mark.parametrize(("of_header", "counts"), [({}, False), ({"channel": "live"}, True)])
def test_a_command_that_its_header_makes_live_is_answered_on_the_live_channel(
    of_header: dict[str, str], *, counts: bool
) -> None:
    log, run = Log(), Run()
    topic = f"{THING}/things/twin/commands/modify"
    body = {"topic": topic, "headers": {"correlation-id": "c", **of_header}, "path": "/attributes/x", "status": 204}
    run.feed(log.signal(1, "c", topic, channel="live"), log.record(ACKS, 2, "c", body))
    assert run.acks() == [("live-response" if counts else "twin-persisted", "accepted" if counts else "invalid")]


# -- who sent a signal -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, "k" * 32], ids=["without-key", "with-key"])
@pytest.mark.parametrize("name", ["ditto-originator", "Ditto-Originator"])
def test_a_forged_sender_is_in_no_table(key: str | None, name: str) -> None:
    log, run = Log(), Run()
    run.topics = replace(run.topics, originator_key=None if key is None else Secret(key))
    signed = log.signal(1, "c", f"{THING}/things/twin/commands/modify", **{name: "user:ann"})
    value = signed.value or b""
    run.feed(
        replace(signed, headers={ORIGINATOR_SIGNATURE: signature("k" * 32, "c", value)}),
        log.signal(2, "d", f"{THING}/things/twin/commands/modify", **{name: "user:root"}),
        # the signature of another command
        replace(
            log.signal(3, "e", f"{THING}/things/twin/commands/modify", **{name: "user:ann"}),
            headers={ORIGINATOR_SIGNATURE: signature("k" * 32, "c", value)},
        ),
    )
    rows = {record["signal"]["correlation_id"]: record["signal"] for record in run.ledger() if "signal" in record}
    senders = {identity: row["headers"].get(name) for identity, row in rows.items()}
    assert senders == {"c": None if key is None else "user:ann", "d": None, "e": None}


# -- several commands of one correlation-id ----------------------------------------------------------------------------


def of_twin(log: Log, *commands: Record, time: int = 5000) -> list[Record]:
    """Return what the twin answers to commands, as records of twin-acks."""
    batch = [SignalRecord(c.timestamp, c.partition, c.offset, c.correlation_id, c.value) for c in commands]
    (result,) = fold(batch, {}, Settings())
    answers = [message for message in result.messages if message.topic == "twin-acks"]
    records = [log.record(TWIN_ACKS, time, message.correlation_id, message.value) for message in answers]
    named = [{} if message.reply_id is None else {REPLY_ID: message.reply_id.encode()} for message in answers]
    return [replace(record, headers=headers) for record, headers in zip(records, named, strict=True)]


def create(log: Log, time: int) -> Record:
    topic = f"{THING}/things/twin/commands/create"
    value = {"topic": topic, "headers": {"correlation-id": "c"}, "path": "/", "value": {}}
    return log.record(SIGNALS, time, "c", value)


@pytest.mark.parametrize("together", [True, False], ids=["one-batch", "batch-by-batch"])
def test_an_error_for_a_command_that_awaits_nothing_does_not_end_a_request_of_the_same_id(*, together: bool) -> None:
    log, run = Log(), Run()
    commands = [log.command(1000, requested_acks=[], response_required=False), create(log, 2000)]
    failed, created = of_twin(log, *commands)
    if together:
        run.feed(failed, *commands, created)
    else:
        for record in (commands[0], failed, commands[1], created):
            run.feed(record)
    assert [(reply["status"], reply["completed-by"]) for reply in run.replies()] == [(201, "response")]
    assert run.acks() == [(None, "unrequested"), ("twin-persisted", "accepted")]


def test_a_refused_copy_of_a_command_does_not_end_the_request_that_waits_for_another_label() -> None:
    log, run = Log(), Run()
    topic = f"{THING}/things/twin/commands/create"
    value = {"topic": topic, "headers": {"requested-acks": ["twin-persisted", "a-ack"]}, "path": "/", "value": {}}
    first, copy = log.record(SIGNALS, 1000, "c", value), log.record(SIGNALS, 1100, "c", value)
    created, conflict = of_twin(log, first, copy)
    run.feed(first, copy, created, conflict)
    assert (run.replies(), run.acks()) == ([], [(None, "unrequested")])
    run.feed(log.ack(6000, "a-ack"))
    assert entries(run.replies()[0]) == {"twin-persisted": 201, "a-ack": 200}


def test_an_error_of_the_twin_that_nobody_awaits_is_recorded_at_once_as_unrequested() -> None:
    log, run = Log(), Run()
    command = log.command(1000, requested_acks=[], response_required=False)
    run.feed(*of_twin(log, command), command)
    assert run.acks() == [(None, "unrequested")]
    assert [ack["status"] for record in run.ledger() for ack in record.get("acks", ())] == [404]
    assert (run.replies(), run.state) == ([], None)


# -- undeclared labels -------------------------------------------------------------------------------------------------


@pytest.fixture
def strict() -> Run:
    return Run(refuse_undeclared=True)


def test_an_undeclared_label_counts_unless_the_settings_refuse_it() -> None:
    log, run = Log(), Run()
    run.feed(log.command(1, requested_acks=["a-ack"]), log.ack(2, "a-ack"))
    assert [reply["status"] for reply in run.replies()] == [200]


def test_an_undeclared_label_is_refused_once_everything_before_it_has_been_read(strict: Run) -> None:
    log = Log()
    strict.feed(log.command(1000, requested_acks=["a-ack"], timeout="5s"), log.ack(2000, "a-ack"), watermark=2000)
    assert (strict.acks(), strict.next_timeout) == ([], 2000)
    strict.feed(watermark=2001)
    assert strict.acks() == [("a-ack", "undeclared")]
    strict.feed(watermark=6001)
    assert [(reply["completed-by"], entries(reply)) for reply in strict.replies()] == [("timeout", {"a-ack": 408})]


@pytest.mark.parametrize("claim_first", [True, False], ids=["claim-first", "ack-first"])
def test_a_declared_label_counts_whichever_is_read_first(strict: Run, *, claim_first: bool) -> None:
    log = Log()
    strict.feed(log.command(1000, requested_acks=["a-ack"]))
    claim, ack = log.claim(1500, "a-ack", "b-ack"), log.ack(2000, "a-ack")
    for record in [claim, ack] if claim_first else [ack, claim]:
        strict.feed(record, watermark=1400)
    assert strict.acks() == [("a-ack", "accepted")]
    assert [outcome["decided_at"] for outcome in strict.outcomes()] == [2000]


@pytest.mark.parametrize(("time", "counts"), [(1499, False), (1500, True), (181_499, True), (181_500, False)])
def test_a_label_is_declared_from_the_claim_until_what_waited_for_a_broker_is_stored(
    strict: Run, time: int, *, counts: bool
) -> None:
    log = Log()
    strict.feed(log.command(1000, requested_acks=["a-ack"], timeout="240s"), log.claim(1500, "a-ack"))
    strict.feed(log.ack(time, "a-ack"))
    strict.feed(watermark=200_000)
    assert strict.acks() == [("a-ack", "accepted" if counts else "undeclared")]


def test_an_aggregate_with_an_undeclared_label_is_refused_as_a_whole(strict: Run) -> None:
    log = Log()
    strict.feed(log.command(1000, requested_acks=["a-ack", "b-ack"]), log.claim(1000, "a-ack"))
    strict.feed(log.acks(2000, "a-ack", "b-ack"))
    strict.feed(watermark=3000)
    assert strict.acks() == [("a-ack", "undeclared"), ("b-ack", "undeclared")]


def test_responses_and_the_twin_need_no_declaration(strict: Run) -> None:
    log = Log()
    strict.feed(log.command(1, "c", requested_acks=["twin-persisted", "search-persisted"]), log.response(2))
    strict.feed(log.acks(3, "search-persisted", source=TWIN_ACKS, status=204))
    strict.feed(log.message(4, "m"), log.response(5, 200, "m", topic=MESSAGE, path="/inbox/messages/ask"))
    assert [reply["status"] for reply in strict.replies()] == [200, 200]


def test_an_early_acknowledgement_stays_declared_while_it_is_held(strict: Run) -> None:
    log = Log()
    strict.feed(log.claim(1000, "a-ack", lease_ms=1000), log.ack(1900, "a-ack"))
    strict.feed(watermark=11_000)
    strict.feed(log.command(11_500, requested_acks=["a-ack"]), watermark=11_500)
    assert strict.acks() == [("a-ack", "accepted")]


def test_a_late_retry_finds_that_its_request_was_decided(strict: Run) -> None:
    log = Log()
    strict.feed(log.claim(900, "a-ack", lease_ms=200), log.command(1000, requested_acks=["a-ack"]))
    strict.feed(log.ack(1050, "a-ack"), log.ack(2000, "a-ack"))
    strict.feed(log.claim(1900, "a-ack"))
    assert strict.acks() == [("a-ack", "accepted"), ("a-ack", "late")]


@pytest.mark.parametrize("value", [b"", None, b"garbage", b"[]", b'{"labels":["twin-persisted","a-ack"]}'])
def test_what_is_no_declaration_declares_nothing(strict: Run, value: bytes | None) -> None:
    log = Log()
    claim = replace(log.claim(1000), value=value)
    strict.feed(log.command(1000, requested_acks=["a-ack"]), claim, log.ack(2000, "a-ack"))
    strict.feed(watermark=2001)
    assert (strict.acks(), strict.reasons()) == ([("a-ack", "undeclared")], [])


def test_declarations_are_forgotten_once_no_acknowledgement_can_need_them(strict: Run) -> None:
    log = Log()
    strict.feed(log.claim(1000, "a-ack", lease_ms=1000))
    strict.feed(watermark=151_999)
    assert strict.state is not None
    strict.feed(watermark=152_000)
    assert strict.state is None


def test_an_acknowledgement_counts_that_seems_older_than_its_claim_by_less_than_the_slack() -> None:
    log, run = Log(), Run(refuse_undeclared=True, slack=2000)
    run.feed(log.command(1000, requested_acks=["a-ack", "b-ack"], timeout="60s"))
    run.feed(log.ack(3000, "a-ack"), log.ack(3000, "b-ack"), watermark=5000)
    assert (run.acks(), run.next_timeout) == ([], 5000)
    run.feed(log.claim(5000, "a-ack"), log.claim(5001, "b-ack"), watermark=5001)
    assert run.acks() == [("b-ack", "undeclared")]
    assert run.next_timeout == 63_000
    run.feed(watermark=63_001)
    assert entries(run.replies()[0]) == {"a-ack": 200, "b-ack": 408}


def test_acknowledgements_that_waited_for_a_broker_count_although_the_lease_could_not_be_renewed() -> None:
    log, run = Log(), Run(refuse_undeclared=True, slack=2000)
    run.feed(log.claim(1100, "a-ack"), log.command(1000, requested_acks=["a-ack"], timeout="1h"))
    # sent at the end of the lease, stored after 120 s by a broker whose clock is ahead
    run.feed(log.ack(153_000, "a-ack"), log.claim(153_200, "a-ack"), watermark=153_000)
    assert run.acks() == [("a-ack", "accepted")]


@pytest.mark.parametrize("cut", [True, False], ids=["read-later", "one-batch"])
@pytest.mark.parametrize("source", [ACKS, TWIN_ACKS], ids=["other-partition", "twin"])
def test_an_answer_in_time_does_not_wait_behind_one_without_declaration_that_is_later(
    source: int, *, cut: bool
) -> None:
    run, log, other = Run(refuse_undeclared=True, slack=2000), Log(), Log(1)
    request = log.command(100_000, requested_acks=["twin-persisted", "a-ack"], timeout="10s")
    undeclared = log.ack(112_500, "z-ack")
    run.feed(log.claim(99_000, "a-ack"), request)
    answers = [log.response(109_900), other.ack(109_900, "a-ack")]
    late = answers.pop(source == ACKS)
    run.feed(*answers, undeclared, *([] if cut else [late]))
    run.feed(*([late] if cut else []), watermark=114_400)
    run.feed(watermark=200_000)
    assert [(reply["status"], reply["completed-by"]) for reply in run.replies()] == [(200, "acknowledgements")]
    assert run.acks()[-1] == ("z-ack", "undeclared")


@pytest.mark.parametrize("cut", [True, False], ids=["claim-read-later", "one-batch"])
def test_later_answers_wait_behind_one_whose_declaration_was_not_read_yet(strict: Run, *, cut: bool) -> None:
    log = Log()
    request = log.command(1000, requested_acks=["a-ack", "b-ack"])
    first, second = log.acks(2000, "a-ack", "b-ack", status=400), log.ack(2100, "a-ack")
    claims = [log.claim(1100, "a-ack"), log.claim(1200, "b-ack")]
    for batch in [[request, claims[0]], [first, second], [claims[1]]] if cut else [[request, *claims, first, second]]:
        strict.feed(*batch)
    assert [reply["status"] for reply in strict.replies()] == [424]
    assert strict.acks() == [("a-ack", "accepted"), ("b-ack", "accepted"), ("a-ack", "late")]


def test_an_error_of_the_twin_waits_behind_an_acknowledgement_whose_declaration_was_not_read_yet(strict: Run) -> None:
    log = Log()
    strict.feed(log.command(1000, requested_acks=["a-ack"]))
    strict.feed(log.ack(2000, "a-ack"), log.error(2500, 412))
    strict.feed(log.claim(1500, "a-ack"))
    assert [(reply["status"], reply["completed-by"]) for reply in strict.replies()] == [(200, "acknowledgements")]


def test_what_was_held_before_an_answer_without_declaration_stays_before_it(strict: Run) -> None:
    log = Log()
    strict.feed(log.claim(500, "a-ack"), log.ack(900, "a-ack", 201), log.acks(950, "a-ack", "b-ack", status=400))
    strict.feed(log.command(1000, requested_acks=["a-ack", "b-ack"]))
    strict.feed(log.claim(600, "b-ack"))
    assert entries(strict.replies()[0]) == {"a-ack": 201, "b-ack": 400}


def test_an_acknowledgement_is_judged_by_the_claims_of_its_time_however_late_it_is_read(strict: Run) -> None:
    log = Log()
    claim, request = log.claim(900, "a-ack"), log.command(1000, requested_acks=["a-ack"])
    strict.feed(claim, request, log.ack(2000, "a-ack"), watermark=500_000)
    assert strict.acks() == [("a-ack", "accepted")]


def test_a_declaration_that_is_nested_too_deeply_declares_nothing(strict: Run) -> None:
    log = Log()
    nested = b'{"labels":["a-ack"],"x":' + b"[" * 2_000 + b"]" * 2_000 + b"}"
    strict.feed(replace(log.claim(1000), value=nested))
    assert (strict.state, strict.emissions) == (None, [])


def test_the_setting_belongs_to_the_checkpoint_because_a_query_without_it_passes_the_declarations_by() -> None:
    former = fixed_values(Settings(), JOB.keeps.fixed)
    now = fixed_values(Settings(correlate=Correlate(refuse_undeclared=True)), JOB.keeps.fixed)
    with pytest.raises(StartError, match=r"correlate.refuse_undeclared = False, the settings say True.*open requests"):
        compare_values(now, former, "checkpoints/correlate", JOB.remedy)
