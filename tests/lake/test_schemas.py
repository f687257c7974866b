from __future__ import annotations

from typing import Any, get_type_hints

import pytest

from ackstream.jobs.archive import projection
from ackstream.lake import columns, schemas
from ackstream.protocol import ledger

STRUCTS = {
    "signal": (ledger.SignalRow, projection.PARTS["signal"]),
    "acks": (ledger.AckRow, projection.PARTS["acks"]),
    "outcome": (ledger.OutcomeRow, projection.PARTS["outcome"]),
    "dead_letter": (ledger.DeadLetterRow, projection.PARTS["dead_letter"]),
    "audit": (ledger.AuditRow, projection.PARTS["audit"]),
    "record": (ledger.LedgerRecord, projection.LEDGER),
}


KINDS = {
    "str": "string",
    "int": ("int", "bigint"),
    "bool": "boolean",
    "tuple": "array<string>",
    "list": "array<string>",
}


@pytest.mark.parametrize(("struct", "schema"), STRUCTS.values(), ids=STRUCTS)
def test_the_ledger_is_read_with_the_fields_and_types_it_is_written_with(struct: Any, schema: Any) -> None:
    assert sorted(schema.fieldNames()) == sorted(struct.__struct_fields__)
    for name, hint in get_type_hints(struct).items():
        written = str(hint).removeprefix("<class '").split("[")[0].split(" | ")[0].removesuffix("'>")
        # a part of the record is compared on its own; other JSON is kept as text
        if name not in projection.PARTS:
            assert schema[name].dataType.simpleString() in KINDS.get(written, {"string"}), name


@pytest.mark.parametrize(("struct", "schema"), STRUCTS.values(), ids=STRUCTS)
def test_a_field_that_may_be_absent_from_the_ledger_is_not_required(struct: Any, schema: Any) -> None:
    optional = {name for name, hint in get_type_hints(struct).items() if "None" in str(hint) or "Unset" in str(hint)}
    assert not {field.name for field in schema if not field.nullable} & optional


@pytest.mark.parametrize("table", schemas.TABLES.values(), ids=schemas.TABLES)
def test_every_column_says_what_it_holds(table: columns.Table) -> None:
    assert all(field.metadata["comment"] for field in table.schema)


@pytest.mark.parametrize("table", schemas.TABLES.values(), ids=schemas.TABLES)
def test_statistics_cover_what_queries_and_the_archive_select_by(table: columns.Table) -> None:
    indexed = table.schema.fieldNames()[: columns.INDEXED_COLUMNS]
    time = "decided_at" if table.name == "outcomes" else "received_at"
    assert indexed == ["correlation_id", time, "query_id", "batch_id"]
    assert table.schema[columns.PARTITION].metadata["comment"] == f"UTC day of {time}; partition column"


@pytest.mark.parametrize("table", schemas.TABLES.values(), ids=schemas.TABLES)
def test_every_table_has_the_key_and_the_partition(table: columns.Table) -> None:
    assert {*columns.KEY, columns.PARTITION} <= set(table.schema.fieldNames())
