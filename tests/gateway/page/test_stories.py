"""The stories of requests: from memory, and from Delta tables with the columns of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from ackstream.gateway.page import stories as module
from ackstream.gateway.page.stories import Stories, Story, Trace, TracedRequest, in_order
from ackstream.lake.schemas import TABLES
from ackstream.observe.outcomes import read_entry
from ackstream.protocol import ledger
from ackstream.protocol.ditto.correlation_ids import wire_id
from ackstream.protocol.ditto.envelopes import raw
from ackstream.settings import Lake
from tests.lake import planes

LAMP = "org.acme:lamp"
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACE = f"00-{TRACE_ID}-00f067aa0ba902b7-01"
NOWHERE = Lake(path="nowhere")
ALL = ("*",)
"""The things that an administrator may see."""


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


def take(into: Stories, name: str, value: bytes | None, at: int) -> None:
    entry = read_entry(name, value, at)
    if entry is not None:
        into.take(entry)


def test_a_story_is_told_in_the_order_of_time() -> None:
    stories = Stories(NOWHERE)
    take(stories, "c-1", outcome(200, "acknowledgements", ack("fleet:got", 200, 10)), 200)
    take(stories, "c-1", signal(), 150)
    take(stories, "c-2", signal(), 150)
    story = stories.remembered("c-1")
    assert [(line.at, line.event, line.label, line.status, line.detail) for line in story] == [
        (100, "request", None, None, "twin commands modify /attributes/a"),
        (110, "acknowledgement", "fleet:got", 200, "accepted"),
        (180, "outcome", None, 200, "acknowledgements"),
    ]
    assert [line.content for line in story] == [raw(5), raw({"by": "fleet:got"}), raw({"topic": "t"})]
    assert stories.remembered("c-3") == []


def test_the_stories_of_all_requests_under_one_id_of_their_clients_are_told() -> None:
    stories = Stories(NOWHERE)
    names = ["c-1", wire_id("c-1"), wire_id("c-1")]
    for name in [*names, "c-10", wire_id("c-10"), "c-1x"]:
        record = msgspec.structs.replace(ledger.decode(signal()).signal, correlation_id=name)
        take(stories, name, ledger.encode(ledger.LedgerRecord("signal", name, "q", 1, signal=record)), 150)
    assert sorted(line.request for line in stories.remembered("c-1")) == sorted(names)
    assert [line.request for line in stories.remembered(names[1])] == [names[1]]


def test_an_answer_of_another_thing_is_told_with_its_reason() -> None:
    stories = Stories(NOWHERE)
    refused = msgspec.structs.replace(ack("a:b", 200, 10), disposition="invalid", reason="Another thing.")
    take(stories, "c-1", ledger.encode(ledger.LedgerRecord("ack", "a", "q", 1, acks=[refused])), 150)
    assert [line.detail for line in stories.remembered("c-1")] == ["invalid Another thing."]


def test_old_stories_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STORY_BYTES", 2 * len(signal()) + 1)
    stories = Stories(NOWHERE)
    for name in ("a", "b", "c"):
        take(stories, name, signal(), 0)
    assert [bool(stories.remembered(name)) for name in ("a", "b", "c")] == [False, True, True]


def test_a_correlation_id_that_is_repeated_without_end_costs_no_more_than_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "STORY_RECORDS", 2)
    stories = Stories(NOWHERE)
    for number in range(4):
        take(stories, "c-1", outcome(424, "timeout", identity=f"r-{number}"), 200)
    assert len(stories.remembered("c-1")) == 2


def test_what_memory_and_tables_both_tell_is_told_once() -> None:
    stories = Stories(NOWHERE)
    take(stories, "c-1", signal(), 0)
    story = stories.remembered("c-1")
    assert in_order([*story, *story]) == story


@given(st.binary() | st.just(b'{"kind":"outcome","id":"x","outcome":{}}') | st.just(b"[1]"))
def test_what_is_no_record_counts_for_nothing(value: bytes) -> None:
    stories = Stories(NOWHERE)
    take(stories, "c-1", value, 0)
    assert stories.remembered("c-1") == []


def test_a_dead_letter_is_part_of_a_story() -> None:
    letter = ledger.DeadLetterRow("json.invalid: no", "c-1", "signals", 0, 1, 50, None, b"x", truncated=False)
    stories = Stories(NOWHERE)
    take(
        stories, "c-1", ledger.encode(ledger.LedgerRecord("dead-letter", "signals-0-1", "q", 1, dead_letter=letter)), 60
    )
    (line,) = stories.remembered("c-1")
    assert (line.at, line.event, line.detail) == (50, "dead letter", "json.invalid: no")


TIMES = {"received_at", "decided_at"}
ROWS: dict[str, dict[str, Any]] = {
    "signals": {"thing_id": "a:b", "channel": "twin", "criterion": "commands", "action": "modify", "path": "/x",
                "value": "5", "headers": f'{{"traceparent":"{TRACE}"}}', "received_at": 100,
                "topic": "signals", "partition": 0, "offset": 3, "requested_acks": ["my-ack"], "timeout_ms": 1000},
    "acknowledgements": {"label": "my-ack", "status": 200, "disposition": "accepted", "reason": None, "payload": None,
                         "received_at": 110},
    "outcomes": {"thing_id": "a:b", "status": 200, "completed_by": "acknowledgements", "reply": '{"topic":"t"}',
                 "latency_ms": 20, "decided_at": 120},
    "dead_letters": {"reason": "a copy", "received_at": 130},
}  # fmt: skip

DAY = date(2026, 11, 18)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    for table, row in ROWS.items():
        assert row.keys() <= {field.name for field in TABLES[table].schema.fields}
        columns = {
            name: [datetime.fromtimestamp(value / 1000, timezone.utc)] * 2 if name in TIMES else [value] * 2
            for name, value in row.items()
        }
        batch = pa.table({"correlation_id": ["c-1", "other"], "id": ["i-1", "i-2"], "day": [DAY] * 2, **columns})
        for name in {"payload", "reason"} & row.keys() if table == "acknowledgements" else ():
            batch = batch.set_column(batch.schema.get_field_index(name), name, pa.array([None] * 2, pa.string()))
        write_deltalake(str(tmp_path / table), batch)
    return Lake(path=str(tmp_path))


def test_all_tables_tell_of_a_request(lake: Lake) -> None:
    story = Stories(lake).story("c-1", ALL).happenings
    assert [(line.at, line.event, line.id, line.label, line.status, line.detail) for line in story] == [
        (100, "request", "i-1", None, None, "twin commands modify /x"),
        (110, "acknowledgement", "i-1", "my-ack", 200, "accepted"),
        (120, "outcome", "i-1", None, 200, "acknowledgements"),
        (130, "dead letter", "i-1", None, None, "a copy"),
    ]
    assert (story[0].thing_id, story[0].traceparent) == ("a:b", TRACE)


def test_the_requests_of_a_trace_are_found_in_the_table(lake: Lake, tmp_path: Path) -> None:
    found = Stories(lake).trace(TRACE_ID, ALL)
    assert found.requests == [
        TracedRequest(100, name, "a:b", "twin commands modify /x", TRACE) for name in ("c-1", "other")
    ]
    assert Stories(lake).trace("1" * 32, ALL).requests == []
    assert Stories(Lake(path=str(tmp_path / "nothing"))).trace(TRACE_ID, ALL) == Trace(TRACE_ID, [], 0)


def test_the_requests_of_a_trace_are_remembered_under_the_ids_of_their_clients() -> None:
    stories = Stories(NOWHERE)
    on_wire = wire_id("c-1")
    headers: list[Mapping[str, object]] = [
        {"traceparent": TRACE},
        {"traceparent": TRACE.replace(TRACE_ID, TRACE_ID[::-1])},
        {"x": TRACE_ID},
        {"traceparent": f"{TRACE}-more"},
    ]
    for name, one in zip((on_wire, "c-2", "c-3", "c-4"), headers, strict=True):
        take(stories, name, signal(name, one), 200)
    assert stories.remembered_trace(TRACE_ID) == [
        TracedRequest(100, "c-1", LAMP, "twin commands modify /attributes/a", TRACE)
    ]
    assert [line.traceparent for line in stories.remembered("c-1")] == [TRACE]
    assert [line.traceparent for line in stories.remembered("c-3")] == [None]


def test_of_an_unknown_request_nothing_is_told(lake: Lake) -> None:
    assert Stories(lake).story("nobody's", ALL) == Story("nobody's", [])


def test_before_the_tables_are_made_nothing_is_told(tmp_path: Path) -> None:
    assert Stories(Lake(path=str(tmp_path / "nothing"))).story("c-1", ALL) == Story("c-1", [])


def test_a_copy_that_a_replayed_batch_writes_is_told_once() -> None:
    stories = Stories(NOWHERE)
    entry = read_entry("c-1", signal(), 200)
    assert entry is not None
    assert [stories.take(entry) for _ in range(2)] == [True, False]
    assert len(stories.remembered("c-1")) == 1


def test_a_story_has_a_note_if_the_tables_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "rows", lambda *_: 1 / 0)
    stories = Stories(NOWHERE)
    take(stories, "c-1", signal("c-1", {"traceparent": TRACE}), 0)
    note = "The tables cannot be read: division by zero"
    for found in (stories.story("c-1", ALL), stories.trace(TRACE_ID, ALL), stories.message("orders/7", ALL)):
        assert found.note == note
    assert [line.event for line in stories.story("c-1", ALL).happenings] == ["request"]
    assert stories.trace(TRACE_ID, ALL).in_all == 1


def requests(names: list[str], thing_id: str | None, at: int, content: str = "5") -> pa.Table:
    own = {
        "correlation_id": names,
        "id": [f"{thing_id}-{at + number}" for number in range(len(names))],
        "received_at": [datetime.fromtimestamp(at + number, timezone.utc) for number in range(len(names))],
        "day": [DAY] * len(names),
    }
    same = {**ROWS["signals"], "thing_id": thing_id, "value": content}
    del same["received_at"]
    kinds = {name: pa.string() for name in ("thing_id", "value")}
    return pa.table(own | {name: pa.array([value] * len(names), kinds.get(name)) for name, value in same.items()})


def filled(lake: Lake, name: str, number: int, content: str = "5") -> Lake:
    """Add requests of one id of a client."""
    names = [f"{name}#{one:016d}" for one in range(number)]
    write_deltalake(lake.table("signals"), requests(names, LAMP, 0, content), mode="append")
    return lake


def test_of_an_id_that_is_used_again_and_again_the_latest_rows_are_read_and_the_note_says_so(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TABLE_ROWS", 3)
    filled(lake, "ping", 5)
    story = Stories(lake).story("ping", ALL)
    assert [line.id for line in story.happenings] == [f"{LAMP}-{number}" for number in (2, 3, 4)]
    assert story.note == "The tables have more: only 3 rows are shown."
    # a trace is told from its beginning
    assert [request.at for request in Stories(lake).trace(TRACE_ID, ALL).requests] == [0, 100, 100]
    assert Stories(filled(lake, "pong", 3)).story("pong", ALL).note == ""


def test_contents_share_the_bytes_of_an_answer_and_those_left_out_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TABLE_BYTES", 100)
    lake = filled(filled(Lake(path=str(tmp_path)), "one", 1, content=raw_text(90)), "two", 2, content=raw_text(90))
    assert [line.content for line in Stories(lake).story("one", ALL).happenings] == [raw("x" * 88)]
    left_out = raw("Left out: 90 bytes; ackstream outcomes story has them.")
    assert [line.content for line in Stories(lake).story("two", ALL).happenings] == [left_out] * 2


def raw_text(length: int) -> str:
    return bytes(raw("x" * (length - 2))).decode()


@pytest.mark.parametrize(
    ("things", "seen"),
    [
        (ALL, {"org.b:lamp", "org.bxc:lamp", None}),
        (("org.a:*", "org.c*"), {"org.a:lamp"}),
        (("org.b:*",), {"org.b:lamp"}),
        (("org.b.c:*",), set()),
        ((), set()),
    ],
)
def test_the_requests_of_others_are_not_read_and_take_no_room(
    things: tuple[str, ...], seen: set[str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TABLE_ROWS", 2)
    lake = Lake(path=str(tmp_path))
    for at, thing_id in enumerate(("org.a:lamp", "org.b:lamp", "org.bxc:lamp", None)):
        write_deltalake(lake.table("signals"), requests([f"ping#{at}"], thing_id, at), mode="append")
    # one id on the wire for things of two tenants is shown to those alone who may see both
    for at, thing_id in enumerate(("org.a:lamp", "org.b:lamp")):
        write_deltalake(lake.table("signals"), requests(["ping"], thing_id, at), mode="append")
    found = {row["thing_id"] for row in module.rows(lake, "story", {"correlation_id": "ping"}, things)}
    assert found == seen


def test_reading_has_a_time(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TABLE_SECONDS", 0.5)
    answers = module.reading.QUESTIONS["story"]
    endless = replace(
        answers,
        text="-- x\n-- content: y\nSELECT i AS occurred_at, '' AS content FROM {signals}, range(1000000000000) t(i) "
        "WHERE {correlation_id} <> ''\nORDER BY 1",
    )
    monkeypatch.setitem(module.reading.QUESTIONS, "story", endless)
    assert "nterrupt" in Stories(lake).story("c-1", ALL).note


def test_reading_has_an_end(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TABLE_MEMORY", "1KB")
    note = Stories(lake).story("c-1", ALL).note
    assert note.startswith("The tables cannot be read: ")
    assert "1KB" in note or "emory" in note
    assert Stories(lake).story("c-1", ("a:*",)).note == "The tables cannot be read."


def test_of_a_message_each_row_is_told_to_those_alone_who_may_see_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(path=str(tmp_path))
    assert Stories(lake).message("orders/7", ALL) == Story("orders/7", [])
    planes.write(lake, "messages", [planes.message(7, 1)] * 3)
    assert [line.event for line in Stories(lake).message("orders/7", ALL).happenings] == ["stored"] * 3
    assert Stories(lake).message("orders/7", ("org.acme:*",)).happenings == []
    monkeypatch.setattr(module, "TABLE_ROWS", 1)
    assert len(Stories(lake).message("orders/7", ALL).happenings) == 1
