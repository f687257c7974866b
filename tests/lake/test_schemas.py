from __future__ import annotations

from typing import Any, get_type_hints

import pytest
from msgspec import inspect

from ackstream.jobs.archive import records
from ackstream.lake import schemas
from ackstream.protocol import ledger

STRUCTS = {
    "signal": (ledger.SignalRow, records.PART_TYPES["signal"]),
    "acks": (ledger.AckRow, records.PART_TYPES["acks"]),
    "outcome": (ledger.OutcomeRow, records.PART_TYPES["outcome"]),
    "dead_letter": (ledger.DeadLetterRow, records.PART_TYPES["dead_letter"]),
    "audit": (ledger.AuditRow, records.PART_TYPES["audit"]),
    "record": (ledger.LedgerRecord, records.FORM),
}


KINDS = {
    "str": inspect.StrType,
    "int": inspect.IntType,
    "bool": inspect.BoolType,
    "bytes": inspect.BytesType,
    "tuple": inspect.ListType,
    "list": inspect.ListType,
}


def fields(form: Any) -> tuple[inspect.Field, ...]:
    found = inspect.type_info(form)
    assert isinstance(found, inspect.StructType)
    return found.fields


def kinds(found: inspect.Type) -> set[type]:
    """Return the types of a field, without null."""
    return {*map(type, found.types if isinstance(found, inspect.UnionType) else [found])} - {inspect.NoneType}


@pytest.mark.parametrize(("struct", "form"), STRUCTS.values(), ids=STRUCTS)
def test_the_ledger_is_read_with_the_fields_and_types_it_is_written_with(struct: Any, form: Any) -> None:
    read = {field.name: field.type for field in fields(form)}
    assert read.keys() == set(struct.__struct_fields__)
    for name, hint in get_type_hints(struct).items():
        written = str(hint).removeprefix("<class '").split("[")[0].split(" | ")[0].removesuffix("'>")
        # a part of the record is compared on its own; other JSON is kept as text
        if name not in records.PART_OF.values():
            assert kinds(read[name]) == {KINDS.get(written, inspect.RawType)}, name


@pytest.mark.parametrize(("struct", "form"), STRUCTS.values(), ids=STRUCTS)
def test_a_field_that_may_be_absent_from_the_ledger_is_not_required(struct: Any, form: Any) -> None:
    optional = {name for name, hint in get_type_hints(struct).items() if "None" in str(hint) or "Unset" in str(hint)}
    assert not {field.name for field in fields(form) if field.required} & optional


@pytest.mark.parametrize("table", schemas.TABLES.values(), ids=schemas.TABLES)
def test_every_column_says_what_it_holds(table: schemas.Table) -> None:
    assert all(field.metadata["comment"] for field in table.schema)


@pytest.mark.parametrize("table", schemas.TABLES.values(), ids=schemas.TABLES)
def test_statistics_cover_what_queries_and_the_archive_select_by(table: schemas.Table) -> None:
    indexed = table.names[: schemas.INDEXED_COLUMNS]
    time = "started_at" if table.name == "outcomes" else "received_at"
    assert indexed == ["correlation_id", table.time, "query_id", "batch_id"]
    assert table.time == time


def test_the_day_of_a_row_is_that_of_its_time() -> None:
    for table in schemas.ALL_TABLES.values():
        if schemas.PARTITION in table.names:
            assert table.columns[-1].comment == f"UTC day of {table.time}; partition column"


@pytest.mark.parametrize("table", schemas.TABLES.values(), ids=schemas.TABLES)
def test_every_table_has_the_key_and_the_partition(table: schemas.Table) -> None:
    assert {*schemas.KEY, schemas.PARTITION} <= set(table.names)
