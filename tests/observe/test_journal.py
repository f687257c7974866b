"""The story of a request, read from Delta tables with the columns of ours."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from ackstream.lake.schemas import TABLES
from ackstream.observe import journal as module
from ackstream.observe.journal import (
    FailureEntry,
    Journal,
    LabelTally,
    TracedRequest,
    in_order,
    stored,
    stored_trace,
)
from ackstream.observe.meter import read_entry
from ackstream.protocol import ledger
from ackstream.protocol.ditto.correlation_ids import wire_id
from ackstream.protocol.ditto.envelopes import raw
from ackstream.settings import Lake

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


LAMP = "org.acme:lamp"
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACE = f"00-{TRACE_ID}-00f067aa0ba902b7-01"


def ack(label: str, status: int, latency: int, disposition: str = "accepted") -> ledger.AckRow:
    return ledger.AckRow(
        correlation_id="c-1",
        label=label,
        status=status,
        weak=False,
        received_at=100 + latency,
        latency_ms=latency,
        disposition=disposition,
        topic="acks",
        partition=0,
        offset=latency,
        index=0,
        payload=raw({"by": label}),
    )


def outcome(
    status: int = 200, completed_by: str = "acknowledgements", *acks: ledger.AckRow, identity: str = "r-1"
) -> bytes:
    row = ledger.OutcomeRow(
        "c-1", LAMP, status, completed_by, ("fleet:got", "fleet:done", "audit:kept"), ["audit:kept"], 100, 180, 80,
        identity, "replies", raw({"topic": "t"}),
    )  # fmt: skip
    return ledger.encode(ledger.LedgerRecord("outcome", identity, "q", 1, acks=list(acks), outcome=row))


def signal(name: str = "c-1", headers: Mapping[str, object] | None = None) -> bytes:
    row = ledger.SignalRow(
        correlation_id=name,
        thing_id=LAMP,
        channel="twin",
        criterion="commands",
        action="modify",
        path="/attributes/a",
        requested_acks=("fleet:got",),
        response_required=True,
        timeout_ms=1000,
        headers=headers or {},
        received_at=100,
        topic="signals",
        partition=0,
        offset=3,
        value=raw(5),
    )
    return ledger.encode(ledger.LedgerRecord("signal", f"r-{name[2:]}", "q", 1, signal=row))


def take(into: Journal, name: str, value: bytes | None, at: int) -> None:
    entry = read_entry(name, value, at)
    if entry is not None:
        into.take(entry)


def test_labels_and_parties_are_counted_with_their_latencies() -> None:
    journal = Journal(1000)
    take(journal, "c-1", outcome(424, "timeout", ack("fleet:got", 200, 10), ack("fleet:done", 500, 30)), 200)
    assert journal.tallies(300) == [
        LabelTally("audit:kept", missing=1),
        LabelTally("fleet:done", refused=1, p50=30, p95=30),
        LabelTally("fleet:got", acknowledged=1, p50=10, p95=10),
    ]
    assert journal.tallies(300, parties=True) == [
        LabelTally("fleet", acknowledged=1, refused=1, p50=10, p95=30),
        LabelTally("audit", missing=1),
    ]


def test_what_is_older_than_the_window_counts_no_more() -> None:
    journal = Journal(1000)
    take(journal, "c-1", outcome(), 200)
    assert journal.tallies(1199) != []
    assert journal.tallies(1200) == []


def test_acknowledgements_that_were_not_used_do_not_count() -> None:
    journal = Journal(1000)
    take(journal, "c-1", outcome(424, "timeout", ack("fleet:got", 200, 10, "late")), 200)
    assert {tally.missing for tally in journal.tallies(300)} == {1}


def test_a_copy_that_a_replayed_batch_writes_counts_once() -> None:
    journal = Journal(1000)
    for _ in range(2):
        take(journal, "c-1", outcome(424, "timeout"), 200)
    assert [tally.missing for tally in journal.tallies(300)] == [1, 1, 1]
    assert len(journal.failures()) == 1


def test_what_is_older_than_the_window_is_forgotten_while_nobody_looks() -> None:
    journal = Journal(1000)
    for number in range(10):
        take(journal, f"c-{number}", outcome(identity=f"r-{number}"), 500 * number)
    assert {seen.at for seen in journal._seen} == {4000, 4500}


def test_the_latest_failure_comes_first() -> None:
    journal = Journal(1000)
    for number in range(module.FAILURES + 2):
        take(journal, f"c-{number}", outcome(424, "timeout", identity=f"r-{number}"), 200 + number)
    take(journal, "good", outcome(identity="good"), 300)
    failures = journal.failures()
    assert len(failures) == module.FAILURES
    assert failures[0] == FailureEntry("c-51", LAMP, 424, "timeout", ["audit:kept"], 251, 151)


def test_a_story_is_told_in_the_order_of_time() -> None:
    journal = Journal(1000)
    take(journal, "c-1", outcome(200, "acknowledgements", ack("fleet:got", 200, 10)), 200)
    take(journal, "c-1", signal(), 150)
    take(journal, "c-2", signal(), 150)
    story = journal.story("c-1")
    assert [(line.at, line.event, line.label, line.status, line.detail) for line in story] == [
        (100, "request", None, None, "twin commands modify /attributes/a"),
        (110, "acknowledgement", "fleet:got", 200, "accepted"),
        (180, "outcome", None, 200, "acknowledgements"),
    ]
    assert [line.content for line in story] == [raw(5), raw({"by": "fleet:got"}), raw({"topic": "t"})]
    assert journal.story("c-3") == []


def test_the_stories_of_all_requests_under_one_id_of_their_clients_are_told() -> None:
    journal = Journal(1000)
    names = ["c-1", wire_id("c-1"), wire_id("c-1")]
    for name in [*names, "c-10", wire_id("c-10"), "c-1x"]:
        record = msgspec.structs.replace(ledger.decode(signal()).signal, correlation_id=name)
        take(journal, name, ledger.encode(ledger.LedgerRecord("signal", name, "q", 1, signal=record)), 150)
    assert sorted(line.request for line in journal.story("c-1")) == sorted(names)
    assert [line.request for line in journal.story(names[1])] == [names[1]]


def test_an_answer_of_another_thing_is_told_with_its_reason() -> None:
    journal = Journal(1000)
    refused = msgspec.structs.replace(ack("a:b", 200, 10), disposition="invalid", reason="Another thing.")
    take(journal, "c-1", ledger.encode(ledger.LedgerRecord("ack", "a", "q", 1, acks=[refused])), 150)
    assert [line.detail for line in journal.story("c-1")] == ["invalid Another thing."]


def test_old_stories_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STORY_BYTES", 2 * len(signal()) + 1)
    journal = Journal(1000)
    for name in ("a", "b", "c"):
        take(journal, name, signal(), 0)
    assert [bool(journal.story(name)) for name in ("a", "b", "c")] == [False, True, True]


def test_a_correlation_id_that_is_repeated_without_end_costs_no_more_than_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "STORY_RECORDS", 2)
    journal = Journal(1000)
    for number in range(4):
        take(journal, "c-1", outcome(424, "timeout", identity=f"r-{number}"), 200)
    assert len(journal.story("c-1")) == 2
    assert len(journal.failures()) == 4


def test_what_memory_and_tables_both_tell_is_told_once() -> None:
    journal = Journal(1000)
    take(journal, "c-1", signal(), 0)
    story = journal.story("c-1")
    assert in_order([*story, *story]) == story


@given(st.binary() | st.just(b'{"kind":"outcome","id":"x","outcome":{}}') | st.just(b"[1]"))
def test_what_is_no_record_counts_for_nothing(value: bytes) -> None:
    journal = Journal(1000)
    take(journal, "c-1", value, 0)
    assert (journal.tallies(1), journal.failures(), journal.story("c-1")) == ([], [], [])


def test_a_dead_letter_is_part_of_a_story() -> None:
    letter: Any = ledger.dead_letter("json.invalid: no", "c-1", ("signals", 0, 1), 50, None, b"x", truncated=False)
    journal = Journal(1000)
    take(
        journal, "c-1", ledger.encode(ledger.LedgerRecord("dead-letter", "signals-0-1", "q", 1, dead_letter=letter)), 60
    )
    (line,) = journal.story("c-1")
    assert (line.at, line.event, line.detail) == (50, "dead letter", "json.invalid: no")


TIMES = {"received_at", "decided_at"}
ROWS: dict[str, dict[str, Any]] = {
    "signals": {"thing_id": "a:b", "channel": "twin", "criterion": "commands", "action": "modify", "path": "/x",
                "value": "5", "headers": f'{{"traceparent":"{TRACE}"}}', "received_at": 100},
    "acknowledgements": {"label": "my-ack", "status": 200, "disposition": "accepted", "reason": None, "payload": None,
                         "received_at": 110},
    "outcomes": {"thing_id": "a:b", "status": 200, "completed_by": "acknowledgements", "reply": '{"topic":"t"}',
                 "latency_ms": 20, "decided_at": 120},
    "dead_letters": {"reason": "a copy", "received_at": 130},
}  # fmt: skip


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    for table, row in ROWS.items():
        assert row.keys() <= {field.name for field in TABLES[table].schema.fields}
        columns = {
            name: [datetime.fromtimestamp(value / 1000, timezone.utc)] * 2 if name in TIMES else [value] * 2
            for name, value in row.items()
        }
        batch = pa.table({"correlation_id": ["c-1", "other"], "id": ["i-1", "i-2"], **columns})
        for name in {"payload", "reason"} & row.keys() if table == "acknowledgements" else ():
            batch = batch.set_column(batch.schema.get_field_index(name), name, pa.array([None] * 2, pa.string()))
        write_deltalake(str(tmp_path / table), batch)
    return Lake(path=str(tmp_path))


def test_all_tables_tell_of_a_request(lake: Lake) -> None:
    story = stored(lake, "c-1")
    assert [(line.at, line.event, line.id, line.label, line.status, line.detail) for line in story] == [
        (100, "request", "i-1", None, None, "twin commands modify /x"),
        (110, "acknowledgement", "i-1", "my-ack", 200, "accepted"),
        (120, "outcome", "i-1", None, 200, "acknowledgements"),
        (130, "dead letter", "i-1", None, None, "a copy"),
    ]
    assert (story[0].thing_id, story[0].traceparent) == ("a:b", TRACE)


def test_the_requests_of_a_trace_are_found_in_the_table(lake: Lake, tmp_path: Path) -> None:
    found = stored_trace(lake, TRACE_ID)
    assert found == [TracedRequest(100, name, "a:b", "twin commands modify /x", TRACE) for name in ("c-1", "other")]
    assert stored_trace(lake, "0" * 32) == []
    assert stored_trace(Lake(path=str(tmp_path / "nothing")), TRACE_ID) == []


def test_the_requests_of_a_trace_are_remembered_under_the_ids_of_their_clients() -> None:
    journal = Journal(1000)
    on_wire = wire_id("c-1")
    headers: list[Mapping[str, object]] = [
        {"traceparent": TRACE},
        {"traceparent": TRACE.replace(TRACE_ID, TRACE_ID[::-1])},
        {"x": TRACE_ID},
        {"traceparent": f"{TRACE}-more"},
    ]
    for name, one in zip((on_wire, "c-2", "c-3", "c-4"), headers, strict=True):
        take(journal, name, signal(name, one), 200)
    assert journal.trace(TRACE_ID) == [TracedRequest(100, "c-1", LAMP, "twin commands modify /attributes/a", TRACE)]
    assert [line.traceparent for line in journal.story("c-1")] == [TRACE]
    assert [line.traceparent for line in journal.story("c-3")] == [None]


def test_of_an_unknown_request_nothing_is_told(lake: Lake) -> None:
    assert stored(lake, "nobody's") == []


def test_before_the_tables_are_made_nothing_is_told(tmp_path: Path) -> None:
    assert stored(Lake(path=str(tmp_path / "nothing")), "c-1") == []
