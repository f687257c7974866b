"""Ledger records become rows: parsed, validated and projected inside the JVM; no Python code sees a record.

A record carries one or more parts (a signal, acknowledgements, an outcome, a dead letter). Each part goes to the table
of its kind, whatever the kind of the record.

The expressions are SQL text, composed once: as trees of columns, built anew for each batch through the gateway to the
JVM, they cost up to half a second per batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.types import ArrayType, StructField, StructType

from ackstream.lake.columns import BYTES, KEY, LONG, PARTITION, TEXT, TIME
from ackstream.lake.schemas import TABLES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

LAST_MILLISECOND = 253_402_300_799_999
"""The end of the year 9999, the latest time that a table can hold."""

MILLISECONDS_A_DAY = 86_400_000
AUDIT = "audit"
"""The topic of audit records, which are in no other one, without the prefix."""


def _part(table: str) -> Any:
    """Return the form of a part of a ledger record: the columns of its table, times as numbers, bytes as base64."""
    own = StructType()
    for column in TABLES[table].schema:
        if column.name not in (*KEY, PARTITION):
            kind = {TIME: LONG, BYTES: TEXT}.get(column.dataType, column.dataType)
            # nothing is truncated where nothing says so
            own.add(column.name, kind, nullable=column.nullable or column.name == "truncated")
    return own


PART_OF = {
    "signals": "signal",
    "acknowledgements": "acks",
    "outcomes": "outcome",
    "dead_letters": "dead_letter",
    "audit": "audit",
}
"""The part of a ledger record that a table's rows come from; ``acks`` is an array."""

PARTS: dict[str, Any] = {part: _part(table) for table, part in PART_OF.items()}
LEDGER = StructType(
    [
        *[StructField(name, TEXT, nullable=False) for name in ("kind", "id", "query_id")],
        StructField("batch_id", LONG, nullable=False),
        *[StructField(name, ArrayType(part) if name == "acks" else part) for name, part in PARTS.items()],
    ]
)
"""The JSON of a ledger record. A record that lacks a field that is not nullable is malformed."""


def parse(frame: DataFrame) -> DataFrame:
    """Parse ledger records.

    :param frame: as Spark's Kafka source gives it: key, value, topic, partition, offset, timestamp; any order
    :return: one row per record: kind, id, query_id, batch_id, the :data:`PARTS`, and the texts of JSON scalars
        (``exact_value``, ``exact_payloads``). A malformed record has only a dead_letter, made from the record itself,
        and neither query_id nor batch_id
    """
    return frame.selectExpr(*_READ).selectExpr(*_JUDGED).selectExpr(*_PARSED)


def rows(records: DataFrame, table: str) -> DataFrame:
    """Return a table's rows from parsed records, in the columns of its schema; copies are still included."""
    if table == "acknowledgements":
        records = records.selectExpr("query_id", "batch_id", "exact_payloads", "posexplode(acks) AS (position, part)")
    else:
        # the id of the whole record, and the texts, stay available under their names
        records = records.selectExpr("*", f"{PART_OF[table]} AS part").where("part IS NOT NULL")
    return records.selectExpr(*_ROWS[table])


@dataclass(frozen=True)
class BatchSpan:
    """What one correlate query contributed to a batch; malformed records form a span of their own, without an id.

    ``copies`` counts the records that are in the batch again; ``rows`` is by table, copies included.
    """

    query_id: str | None
    first_batch: int
    last_batch: int
    copies: int
    rows: dict[str, int]

    def covers(self) -> Column:
        """Return the condition for rows that may be copies of these; statistics answer it for whole files."""
        if self.query_id is None:
            return F.col("query_id").isNull()
        return (F.col("query_id") == self.query_id) & F.col("batch_id").between(self.first_batch, self.last_batch)


def summarise(records: DataFrame) -> list[BatchSpan]:
    """Summarise parsed records in one pass, which also fills their cache; without records there is no span."""
    distinct = records.groupBy(*KEY, "kind").agg(F.expr("count(*) AS times"), *map(F.expr, _COUNTS))
    totals = [F.expr(f"sum({name}) AS {name}") for name in TABLES]
    extent = [F.expr(text) for text in ("min(batch_id) AS first", "max(batch_id) AS last", "sum(times - 1) AS copies")]
    return [
        BatchSpan(
            row["query_id"], row["first"] or 0, row["last"] or 0, row["copies"], {name: row[name] for name in TABLES}
        )
        for row in distinct.groupBy("query_id").agg(*extent, *totals).collect()
    ]


# -- expressions ------------------------------------------------------------------------------------------------------


def _malformed() -> str:
    """Return the SQL of what is wrong with a ledger record; null if nothing is."""
    nothing = " AND ".join(f"ledger.{part} IS NULL" for part in PARTS)
    faults = {
        "it is not JSON of the ledger's form": "ledger IS NULL OR ledger._damaged IS NOT NULL",
        "it lacks kind, id, query_id or batch_id": _faulty("ledger", LEDGER),
        f"it has none of the parts {', '.join(PARTS)}": nothing,
        # who may write the one topic writes no rows of the other
        "its part is of another topic": f"(ledger.audit IS NOT NULL) <> endswith(topic, '{AUDIT}')",
    }
    for part, schema in PARTS.items():
        if part == "acks":
            test = f"exists(ledger.acks, ack -> ack IS NULL OR {_faulty('ack', schema)})"
        else:
            test = f"ledger.{part} IS NOT NULL AND ({_faulty(f'ledger.{part}', schema)})"
        faults[f"its {part} lacks a required field or has an impossible time"] = test
    cases = " ".join(f'WHEN {test} THEN "malformed ledger record: {words}"' for words, test in faults.items())
    return f"CASE {cases} END"


def _faulty(part: str, schema: Any) -> str:
    """Return the SQL of whether a required field is missing or a time is out of range."""
    missing = [f"{part}.{field.name} IS NULL" for field in schema.fields if not field.nullable]
    times = [name for name in schema.fieldNames() if name.endswith("_at")]
    return " OR ".join([*missing, *[f"{part}.{name} NOT BETWEEN 0 AND {LAST_MILLISECOND}" for name in times]])


def _malformed_letter() -> str:
    """Return the SQL of the dead letter of a malformed record."""
    values = {
        "reason": "malformed",
        "received_at": "unix_millis(timestamp)",
        "correlation_id": "CAST(NULL AS STRING)",
        "key": "base64(key)",
        "value": "base64(value)",
        "truncated": "false",
    }
    fields = ", ".join(f"'{name}', {values.get(name, name)}" for name in PARTS["dead_letter"].fieldNames())
    return f"named_struct({fields})"


def _exact(variant: str) -> str:
    """Return the SQL of the JSON text of a string or of JSON's null; null for everything else."""
    return f"CASE WHEN schema_of_variant({variant}) IN ('STRING', 'VOID') THEN to_json({variant}) END"


def _joined(*columns: str) -> str:
    return f"concat_ws('-', {', '.join(columns)})"


_SHAPE = StructType([*LEDGER.fields, StructField("_damaged", TEXT)]).simpleString()
# from_json strips the quotes of a string and cannot distinguish JSON's null from a missing value; only records that may
# hold either pay for a second parse, which reads the same fields as variants
_SECOND_LOOK = r'"(value|payload)"\\s*:\\s*["n]'
_VARIANTS = "signal STRUCT<value: VARIANT>, acks ARRAY<STRUCT<payload: VARIANT>>"
_TEXT = "CAST(value AS STRING)"
_READ = (
    "*",
    f"from_json({_TEXT}, '{_SHAPE}', map('columnNameOfCorruptRecord', '_damaged')) AS ledger",
    f"CASE WHEN {_TEXT} RLIKE '{_SECOND_LOOK}' THEN from_json({_TEXT}, '{_VARIANTS}') END AS variants",
)
_JUDGED = ("*", f"{_malformed()} AS malformed")
_OTHERWISE = {
    "kind": "'malformed'",
    "id": _joined("topic", "partition", "offset"),
    "dead_letter": _malformed_letter(),
}
_PARSED = (
    *[
        f"if(malformed IS NULL, ledger.{name}, {_OTHERWISE.get(name, 'NULL')}) AS {name}"
        for name in LEDGER.fieldNames()
    ],
    f"{_exact('variants.signal.value')} AS exact_value",
    f"transform(variants.acks, ack -> {_exact('ack.payload')}) AS exact_payloads",
)

_COUNTS = tuple(
    f"sum({'coalesce(array_size(acks), 0)' if part == 'acks' else f'int({part} IS NOT NULL)'}) AS {table}"
    for table, part in PART_OF.items()
)

_SPECIAL = {
    "signals": {
        # the record of a refused request may have an id of another kind; the id of the request is its reply-id
        "id": "coalesce(outcome.reply_id, id)",
        "value": "coalesce(exact_value, part.value)",
    },
    "acknowledgements": {
        "id": _joined("part.topic", "part.partition", "part.offset", "part.index"),
        "payload": "coalesce(get(exact_payloads, position), part.payload)",
    },
    "outcomes": {"id": "part.reply_id"},
    "dead_letters": {
        "id": _joined("part.topic", "part.partition", "part.offset"),
        "key": "try_to_binary(part.key, 'base64')",
        "value": "try_to_binary(part.value, 'base64')",
        "truncated": "coalesce(part.truncated, false)",
    },
    "audit": {"id": "id"},
}


def _columns(table: str) -> tuple[str, ...]:
    """Return the SQL of a table's columns: special ones, and those of the part under their names."""
    names = TABLES[table].schema.fieldNames()
    columns = {name: f"timestamp_millis(part.{name})" for name in names if name.endswith("_at")}
    columns |= {name: name for name in ("query_id", "batch_id")} | _SPECIAL[table]
    # the second column is the row's time; not from the timestamp, whose day depends on the session's time zone
    columns[PARTITION] = f"date_from_unix_date(int(part.{names[1]} DIV {MILLISECONDS_A_DAY}))"
    return tuple(f"{columns.get(name, f'part.{name}')} AS {name}" for name in names)


_ROWS = {table: _columns(table) for table in TABLES}
