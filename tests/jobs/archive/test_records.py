from __future__ import annotations

import json
from copy import deepcopy
from datetime import date, datetime, timezone
from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from chispa import assert_df_equality
from chispa.schema_comparer import assert_schema_equality
from hypothesis import given
from hypothesis import strategies as st

from ackstream.jobs.archive import job
from ackstream.jobs.archive import records as parsed_records
from ackstream.lake import schemas
from tests.harness.envelopes import ODD
from tests.lake import records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


KAFKA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)

DAY_MS = 86_400_000


def project(*values: bytes | None, topic: str = "ledger") -> job.Summary:
    """Lay out records as a worker does, some hundred at once."""
    start = records.START * 1000
    found = [
        {"key": b"key", "value": value, "topic": topic, "partition": 0, "offset": offset, "timestamp": start}
        for offset, value in enumerate(values)
    ]
    batches = [pa.RecordBatch.from_pylist(found[at : at + 400], schema=KAFKA) for at in range(0, len(found), 400)]
    return job.Summary(pa.Table.from_batches(map(parsed_records.project, batches)), job.LARGEST)


def stored(summary: job.Summary, table: str) -> list[Any]:
    """Return the rows of a table that came along with a summary."""
    if not any(span.rows[table] for span in summary.spans):
        return []
    return [SimpleNamespace(**row) for row in summary.rows(table).to_pylist()]


def rows(table: str, *values: bytes | None) -> list[Any]:
    return stored(project(*values), table)


def changed(**changes: Any) -> bytes:
    """Return a sound record with some of its top fields changed; None takes a field away."""
    record = json.loads(records.outcome(1)) | changes
    return json.dumps({name: value for name, value in record.items() if value is not None}).encode()


def with_part(part: str, **changes: Any) -> bytes:
    record = json.loads(records.outcome(1))
    target = record[part][0] if part == "acks" else record[part]
    target.update(changes)
    return json.dumps(record).encode()


def test_an_outcome_record_becomes_a_row_of_each_of_its_parts(spark: SparkSession) -> None:
    parsed = parsed_records.parse(records.frame(spark, [records.outcome(1, batch=17)]))
    at = datetime(2026, 11, 18, 11, 6, 40, 31_000, tzinfo=timezone.utc)
    started = at.replace(microsecond=1000)
    day = date(2026, 11, 18)
    labels = ["twin-persisted", "billing:booked"]
    expected = [
        ("c-1", started, "correlate", 17, "org.example:pump-1", 200, "acknowledgements", labels, [], None, None, at, 30,
         records.reply_id(1), '{"status":200}', "replies", records.reply_id(1), day)
    ]  # fmt: skip
    wanted = spark.createDataFrame(expected, schemas.ALL_TABLES["outcomes"].schema)
    assert_df_equality(parsed_records.rows(parsed, "outcomes"), wanted, ignore_nullable=True, ignore_metadata=True)
    assert parsed_records.rows(parsed, "signals").count() == 1
    assert parsed_records.rows(parsed, "dead_letters").count() == 0


@pytest.mark.parametrize("table", schemas.TABLES)
def test_rows_have_the_columns_of_their_table(spark: SparkSession, table: str) -> None:
    found = parsed_records.rows(parsed_records.parse(records.frame(spark, [])), table).schema
    assert_schema_equality(found, schemas.TABLES[table].schema, ignore_nullable=True, ignore_metadata=True)


def test_acknowledgements_of_one_record_keep_their_positions() -> None:
    found = rows("acknowledgements", records.outcome(1))
    assert [(row.id, row.label) for row in found] == [
        ("acks-0-1-0", "twin-persisted"),
        ("acks-0-1-1", "billing:booked"),
    ]


def test_an_outcome_may_come_without_its_signal() -> None:
    record = records.outcome(1, signal=None, acks=None)
    assert rows("signals", record) == []
    assert rows("acknowledgements", record) == []
    assert [row.id for row in rows("outcomes", record)] == [records.reply_id(1)]


def test_a_row_of_a_signal_that_shares_its_record_with_another_kind_has_the_reply_id() -> None:
    record = changed(kind="dead-letter", id="signals-0-1")
    assert [row.id for row in rows("signals", record)] == [records.reply_id(1)]


@pytest.mark.parametrize(
    "json_text",
    [
        '"a text"',
        '"5"',
        '"say \\"no\\""',
        "null",
        "5",
        "true",
        "-1.5",
        '"true"',
        '{"value":"x","a":[1,2]}',
        "[]",
        '""',
        "1.10",
        "12345678901234567890.123",
        '"caf\\u00e9 \\n"',
        '{ "a" : 1e400 }',
    ],
)
def test_any_json_value_is_kept_as_it_was_written(json_text: str) -> None:
    raw = msgspec.Raw(json_text.encode())
    acks = [records.ack_row(1), records.ack_row(1, "billing:booked", index=1, payload=raw)]
    record = records.outcome(1, signal=records.signal_row(1, value=raw), acks=acks)
    assert [row.value for row in rows("signals", record)] == [json_text]
    assert [row.payload for row in rows("acknowledgements", record)] == [None, json_text]


def test_an_absent_value_is_null() -> None:
    record = records.outcome(1, signal=records.signal_row(1, value=msgspec.UNSET))
    assert [row.value for row in rows("signals", record)] == [None]


def test_an_object_with_a_field_twice_is_kept() -> None:
    twice = msgspec.Raw(b'{"value":"a","value":"b"}')
    record = records.outcome(1, signal=records.signal_row(1, value=twice))
    assert [row.value for row in rows("signals", record)] == ['{"value":"a","value":"b"}']


def test_a_dead_letter_keeps_the_bytes_of_its_record() -> None:
    (row,) = rows("dead_letters", records.dead_letter(7))
    assert (row.id, row.key, row.value, row.reason) == ("signals-1-7", b"key", b"\x00\xff", "not JSON")


def test_the_day_does_not_depend_on_the_time_zone_of_the_session(spark: SparkSession) -> None:
    last_moment = records.START // DAY_MS * DAY_MS + DAY_MS - 1
    record = records.outcome(1, signal=records.signal_row(1, received_at=last_moment))
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        parsed = parsed_records.parse(records.frame(spark, [record]))
        assert [row.day for row in parsed_records.rows(parsed, "signals").collect()] == [date(2026, 11, 18)]
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


MALFORMED = {
    "no JSON": (b"garbage", "JSON is malformed"),
    "empty": (b"", "Input data was truncated"),
    "a tombstone": (None, "it has no value"),
    "no object": (b"[1]", "Expected `object`, got `array`"),
    "null": (b"null", "Expected `object`, got `null`"),
    "bad UTF-8": (b'\xff\xfe{"kind"', "'utf-8' codec can't decode byte 0xff"),
    "cut off": (records.outcome(1)[:-20], "Input data was truncated"),
    "nested a thousand times": (b'{"kind":' + b"[" * 2000 + b"]" * 2000 + b"}", "Expected `str`, got `array`"),
    "a part of the wrong type": (changed(acks="none"), "Expected `array | null`, got `str` - at `$.acks`"),
    "a field of the wrong type": (with_part("outcome", status="fine"), "Expected `int`, got `str` - at `$.outcome.st"),
    "a text that is a number": (with_part("outcome", reply_id=5), "Expected `str`, got `int` - at `$.outcome.reply_id"),
    "a number too large": (with_part("outcome", status=10**12), "Expected `int` <= 2147483647 - at `$.outcome.status"),
    "empty object": (b"{}", "Object missing required field `kind`"),
    "no query": (changed(query_id=None), "Object missing required field `query_id`"),
    "no part": (changed(signal=None, acks=None, outcome=None), "it has none of the parts"),
    "an outcome without a reply-id": (
        with_part("outcome", reply_id=None),
        "Expected `str`, got `null` - at `$.outcome.reply_id`",
    ),
    "a signal without coordinates": (
        with_part("signal", offset=None),
        "Expected `int`, got `null` - at `$.signal.offset`",
    ),
    "an acknowledgement of null": (changed(acks=[None]), "Expected `object`, got `null` - at `$.acks[0]`"),
    "an acknowledgement without position": (
        with_part("acks", index=None),
        "Expected `int`, got `null` - at `$.acks[0].index`",
    ),
    "a time after the year 9999": (
        with_part("outcome", decided_at=10**18),
        "Expected `int` <= 253402300799999 - at `$.outcome.decided_at`",
    ),
    "a time before 1970": (with_part("acks", received_at=-1), "Expected `int` >= 0 - at `$.acks[0].received_at`"),
}


@pytest.fixture(scope="module")
def malformed() -> dict[str, Any]:
    """Return each malformed record's dead letter; they are in one batch with a sound one."""
    values = [value for value, _ in MALFORMED.values()]
    summary = project(*values, records.outcome(1))
    assert len(stored(summary, "signals")) == len(stored(summary, "outcomes")) == 1
    letters = {row.offset: row for row in stored(summary, "dead_letters")}
    assert len(letters) == len(MALFORMED)
    return {case: letters[offset] for offset, case in enumerate(MALFORMED)}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_record_is_a_dead_letter_with_its_reason(malformed: dict[str, Any], case: str) -> None:
    value, words = MALFORMED[case]
    row = malformed[case]
    assert row.reason.startswith("malformed ledger record: " + words)
    assert row.value == value
    assert (row.query_id, row.batch_id, row.topic, row.truncated) == (None, None, "ledger", False)
    assert row.id == f"ledger-0-{row.offset}"


def wrong() -> list[bytes]:
    """Return records of which one field has a value of another type."""
    whole = json.loads(records.outcome(1)) | {"dead_letter": json.loads(records.dead_letter(2))["dead_letter"]}
    values = [changed(**{field: odd}) for field in whole for odd in ODD]
    for part in whole.keys() & set(parsed_records.PART_OF.values()):
        fields = whole[part][0] if part == "acks" else whole[part]
        for field, odd in product([*fields, "more"], ODD):
            found = deepcopy(whole)
            (found[part][0] if part == "acks" else found[part])[field] = odd
            values.append(json.dumps(found).encode())
    return values


def test_every_record_is_rows_or_a_dead_letter_whatever_has_the_wrong_type() -> None:
    values = wrong()
    summary = project(*values)
    found = {table: stored(summary, table) for table in schemas.TABLES}
    malformed = [row for row in found["dead_letters"] if row.query_id is None]
    assert 0 < len(malformed) < len(found["dead_letters"]) < len(values)
    assert {row.topic for row in malformed} == {"ledger"}
    counts = {name: sum(span.rows[name] for span in summary.spans) for name in schemas.TABLES}
    assert {name: len(entries) for name, entries in found.items()} == counts


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()


@given(st.recursive(SCALARS, st.lists, max_leaves=5), st.sampled_from(["", " ", "\n"]), st.booleans())
def test_any_json_is_stored_as_the_text_that_the_ledger_has(value: Any, space: str, ascii_only: bool) -> None:  # noqa: FBT001
    text = json.dumps(value, ensure_ascii=ascii_only, separators=(f",{space}", ":"))
    raw = msgspec.Raw(text.encode())
    (row,) = rows("signals", records.outcome(1, signal=records.signal_row(1, value=raw)))
    assert row.value == text


AUDIT = json.loads(records.audit(1))["audit"]


def test_a_record_of_the_audit_becomes_a_row() -> None:
    (row,) = stored(project(records.audit(7), topic="prod-audit"), "audit")
    assert (row.id, row.query_id, row.batch_id, row.correlation_id) == ("gateway-1-7", "gateway-1", 7, "c-7")
    assert (row.subject, row.roles, row.address, row.allowed) == ("user:ada", ["user:operator"], "10.0.0.9", False)
    assert (row.event, row.method, row.command, row.path) == ("command", "PUT", "twin/commands/modify", "/attributes/x")
    assert (row.status, row.reason, row.count, row.day) == (403, "WRITE of /attributes/x", 1, date(2026, 11, 18))


@pytest.mark.parametrize(
    ("topic", "value", "wanted"),
    [
        ("ledger", records.audit(1), False),
        ("audit", records.outcome(1), False),
        ("audit", records.dead_letter(1), False),
        ("ledger", changed(audit=AUDIT), False),
        ("audit", changed(audit=AUDIT), False),
        ("audit", changed(audit=AUDIT, signal=None, acks=None, outcome=None), True),
    ],
    ids=["audit-in-ledger", "outcome-in-audit", "dead-letter-in-audit", "both-in-ledger", "both-in-audit", "audit"],
)
def test_who_may_write_one_topic_writes_no_rows_of_the_other(topic: str, value: bytes, *, wanted: bool) -> None:
    summary = project(value, topic=topic)
    found = {table for table in schemas.TABLES if stored(summary, table)}
    assert found == {"audit" if wanted else "dead_letters"}


def test_an_audit_record_with_a_wrong_type_is_a_row_or_a_dead_letter() -> None:
    values = []
    for field, odd in product([*json.loads(records.audit(1))["audit"], "more"], ODD):
        found = json.loads(records.audit(1))
        found["audit"][field] = odd
        values.append(json.dumps(found).encode())
    summary = project(*values, topic="audit")
    counts = {table: len(stored(summary, table)) for table in ("audit", "dead_letters")}
    assert 0 < counts["dead_letters"] < len(values) == sum(counts.values())


def test_rows_that_spark_takes_are_those_of_the_driver(spark: SparkSession) -> None:
    frame = records.frame(spark, [*wrong()[::10], b"garbage"]).repartition(3)
    parsed = parsed_records.parse(frame)
    summary = job.summarise(parsed, job.LARGEST)
    for table in ("signals", "acknowledgements", "outcomes", "dead_letters"):
        assert_df_equality(
            spark.createDataFrame(summary.rows(table)),
            parsed_records.rows(parsed, table),
            ignore_row_order=True,
            ignore_nullable=True,
            ignore_metadata=True,
        )


def test_rows_beyond_the_share_of_a_task_stay_where_they_are(spark: SparkSession) -> None:
    parsed = parsed_records.parse(records.frame(spark, [records.outcome(number) for number in range(100)]).coalesce(1))
    size = parsed.selectExpr("max(bytes)").collect()[0][0]
    found = {share: job.summarise(parsed, share) for share in (size, size - 1, 0)}
    assert {share: summary.whole for share, summary in found.items()} == {size: True, size - 1: False, 0: False}
    assert all(summary.spans == found[size].spans for summary in found.values())


def test_a_summary_counts_rows_and_copies_by_query() -> None:
    values = [
        records.outcome(1, batch=3),
        records.outcome(2, batch=5),
        records.outcome(1, batch=3),
        records.acknowledgement(9, batch=1, query="other"),
        b"garbage",
    ]
    found = {span.query_id: span for span in project(*values).spans}
    none = dict.fromkeys(schemas.TABLES, 0)
    counts = {"signals": 3, "acknowledgements": 6, "outcomes": 3, "dead_letters": 0, "audit": 0}
    assert found == {
        "correlate": job.BatchSpan("correlate", 3, 5, 1, counts),
        "other": job.BatchSpan("other", 1, 1, 0, none | {"acknowledgements": 1}),
        None: job.BatchSpan(None, 0, 0, 0, none | {"dead_letters": 1}),
    }


def test_no_record_gives_no_span(spark: SparkSession) -> None:
    assert job.summarise(parsed_records.parse(records.frame(spark, [])), 0).spans == []
