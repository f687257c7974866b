"""Ledger records become rows: Python workers read them and write them in the tables' columns, in Arrow's format.

Each part of a record is for the table of its kind, whose columns are its fields. A record of another release may lack
fields that may be null, and have others. One that the decoder refuses becomes a dead letter with the reason. A worker
turns some thousand records into one row: a summary, and for each table its rows in Arrow's stream format, which the JVM
passes on as bytes. Parsing the JSON in the JVM costs three times as much.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from types import GenericAlias
from typing import Annotated, Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta, Raw
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from ackstream.lake.schemas import BOOLEAN, BYTES, INTEGER, KEY, LONG, PARTITION, TABLES, TEXT, TEXTS, TIME
from ackstream.protocol.json import UNREADABLE
from ackstream.spark.operator import spare_collections

LAST_MILLISECOND = 253_402_300_799_999
"""The end of the year 9999, the latest time that a table can hold."""

AUDIT = "audit"
"""The topic of audit records, which are in no other one, without the prefix."""

PART_OF = {
    "signals": "signal",
    "acknowledgements": "acks",
    "outcomes": "outcome",
    "dead_letters": "dead_letter",
    "audit": "audit",
}
"""The part of a ledger record that a table's rows come from; ``acks`` is an array."""

JSON_TEXTS = {"headers": False, "reply": False, "value": True, "payload": True}
"""The texts that hold JSON, and whether any JSON counts as one: a string with its quotes, and null, too."""

Record = Any
"""A ledger record: :data:`NAMES`, and a field for each part, ``None`` if it is absent. Parts have the columns of their
tables: times in epoch milliseconds, texts that hold JSON as ``Raw``."""

_int = Annotated[int, Meta(ge=-(2**31), lt=2**31)]
_long = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_time = Annotated[int, Meta(ge=0, le=LAST_MILLISECOND)]
_KINDS = {TEXT: str, TIME: _time, BYTES: bytes, TEXTS: list[str], INTEGER: _int, LONG: _long, BOOLEAN: bool}
NAMES = {"kind": str, "id": str, "query_id": str, "batch_id": _long}
"""The fields of a record that are not parts; it needs all of them."""


def _part_type(table: str) -> Any:
    """Return the type of the part that a table's rows come from."""
    fields: list[Any] = []
    for column in TABLES[table].columns:
        if column.name in (*KEY, PARTITION):
            continue
        kind: Any = Raw if column.name in JSON_TEXTS and column.kind == TEXT else _KINDS[column.kind]
        if not column.nullable:
            fields.append((column.name, kind))
        else:
            # in a union with null, Raw would lose the difference between null and nothing
            fields.append((column.name, kind if kind is Raw else kind | None, None))
    return msgspec.defstruct(PART_OF[table], fields, kw_only=True, gc=False)


PART_TYPES = {part: _part_type(table) for table, part in PART_OF.items()}
"""The types of the parts; of ``acks`` that of one acknowledgement."""

_all_parts = attrgetter(*PART_OF.values())
_fields: dict[str, Any] = PART_TYPES | {"acks": GenericAlias(list, PART_TYPES["acks"])}
FORM = msgspec.defstruct(
    "LedgerRecord",
    [*NAMES.items(), *[(name, kind | None, None) for name, kind in _fields.items()]],
    kw_only=True,
    gc=False,
)
_decode = msgspec.json.Decoder(FORM).decode
_decode_text = msgspec.json.Decoder(str).decode


def read(value: bytes | None, topic: str, *, valid: bool) -> Record | str:
    """Return the record, or why it is malformed; the ``topic``, which has its own writers, decides its parts."""
    # ``valid``: the value is known to be UTF-8
    if value is None:
        return "it has no value"
    try:
        # the decoder does not parse texts of JSON
        if not valid:
            str(value, "utf-8")
        record: Record = _decode(value)
    except UNREADABLE as error:
        return str(error)
    parts = _all_parts(record)
    present, of_audit = len(parts) - parts.count(None), record.audit is not None
    if not present:
        return f"it has none of the parts {', '.join(PART_OF.values())}"
    if of_audit != topic.endswith(AUDIT) or (of_audit and present > 1):
        return "its part is of another topic"
    return record


def malformed(reason: str, row: Mapping[str, Any], received_at: int) -> Record:
    """Return the record that stands for a malformed one: it has a dead letter, and neither query nor batch."""
    # ``row``: key, value and coordinates; ``received_at``: epoch milliseconds
    why = f"malformed ledger record: {reason}"
    letter = PART_TYPES["dead_letter"](reason=why, received_at=received_at, truncated=False, **row)
    identity = f"{row['topic']}-{row['partition']}-{row['offset']}"
    return FORM(kind="malformed", id=identity, query_id=None, batch_id=None, dead_letter=letter)


_MILLISECONDS = pa.timestamp("ms", "UTC")
_COPIED = ("key", "value", "topic", "partition", "offset")
_BATCHES = {"query_id": pa.string(), "first_batch": pa.int64(), "last_batch": pa.int64(), "identities": pa.binary()}
_SPAN = pa.struct(_BATCHES | dict.fromkeys(TABLES, pa.int64()))
_ARROW = pa.schema(
    {"spans": pa.list_(pa.field("element", _SPAN)), "bytes": pa.int64()} | dict.fromkeys(TABLES, pa.binary())
)
PROJECTED = from_arrow_schema(_ARROW)
"""Some thousand records: a summary by correlate's query, with an 8-byte hash of each record's identity; the rows of
each table (null: none); and the total bytes of the task's rows."""


def parse(frame: DataFrame) -> DataFrame:
    """Read records of Spark's Kafka source, in any order, and lay out their rows: :data:`PROJECTED`."""
    return frame.select(*_COPIED, "timestamp").mapInArrow(_project, PROJECTED)


def rows(records: DataFrame, table: str) -> DataFrame:
    """Return a table's rows from parsed records, in the columns of its schema; copies are still included."""
    return records.select(table).where(f"{table} IS NOT NULL").mapInArrow(_read, TABLES[table].schema)


def _project(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    spare_collections()
    size = 0
    for batch in batches:
        yield (found := project(batch, size))
        size = found["bytes"][0].as_py()


def project(batch: pa.RecordBatch, size: int = 0) -> pa.RecordBatch:
    """Make a row of :data:`PROJECTED` of records in the columns of Spark's Kafka source, after rows of a ``size``."""
    records, valid = [], False
    with suppress(pa.ArrowInvalid):
        # all values at once, in a sixth of the time
        valid = len(batch["value"].cast(pa.string())) > 0
    for at, (value, topic) in enumerate(zip(batch["value"].to_pylist(), batch["topic"].to_pylist(), strict=True)):
        record = read(value, topic, valid=valid)
        if isinstance(record, str):
            row = {name: batch[name][at].as_py() for name in _COPIED}
            record = malformed(record, row, batch["timestamp"][at].value // 1000)
        records.append(record)
    parts = {table: _parts(records, part) for table, part in PART_OF.items()}
    found = {name: _stream(_rows(name, *of)) for name, of in parts.items() if of[0]}
    size += sum(stream.nbytes for stream in found.values())
    streams = [found.get(table, pa.nulls(1, pa.binary())) for table in TABLES]
    spans = pa.array([_spans(records, parts)], _ARROW.field("spans").type)
    return pa.RecordBatch.from_arrays([spans, pa.array([size]), *streams], schema=_ARROW)


def _stream(batch: pa.RecordBatch) -> pa.Array:
    """Return rows in Arrow's stream format as a column of one value."""
    # of its full size, with a mark of 8 bytes at its end: a buffer of megabytes that grows is copied many times
    data = pa.allocate_buffer(batch.schema.serialize().size + pa.ipc.get_record_batch_size(batch) + 8)
    with pa.FixedSizeBufferWriter(data) as sink, pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(np.array([0, data.size], np.int32)), data])


def _read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    spare_collections()
    for batch in batches:
        for part in batch.column(0):
            yield from pa.ipc.open_stream(part.as_buffer())


def _parts(records: Sequence[Record], name: str) -> tuple[list[Record], list[Any]]:
    """Return the parts of a name, and beside each the record that it comes from."""
    found = [(record, part) for record in records if (part := getattr(record, name)) is not None]
    if name == "acks":
        found = [(record, ack) for record, acks in found for ack in acks]
    return [record for record, _ in found], [part for _, part in found]


def _spans(records: Sequence[Record], parts: dict[str, tuple[list[Record], list[Any]]]) -> list[dict[str, Any]]:
    by_query: dict[str | None, list[Record]] = {}
    for record in records:
        by_query.setdefault(record.query_id, []).append(record)
    counts = {table: Counter(record.query_id for record in owners) for table, (owners, _) in parts.items()}
    found = []
    for query_id, own in by_query.items():
        batches = [record.batch_id or 0 for record in own]
        identities = np.array([f"{record.kind} {record.batch_id} {record.id}" for record in own], object)
        span = {
            "query_id": query_id,
            "first_batch": min(batches),
            "last_batch": max(batches),
            # the same in every process
            "identities": pd.util.hash_array(identities, categorize=False).tobytes(),
        }
        found.append(span | {table: counted[query_id] for table, counted in counts.items()})
    return found


def _rows(table: str, owners: list[Record], parts: list[Any]) -> pa.RecordBatch:
    columns = TABLES[table].arrow
    fields = dict(zip(parts[0].__struct_fields__, zip(*map(msgspec.structs.astuple, parts), strict=True), strict=True))
    arrays: list[Any] = []
    for field, column in zip(columns, TABLES[table].columns, strict=True):
        name = field.name
        if name == PARTITION:
            # the second column is the row's time
            arrays.append(arrays[1].cast(pa.date32()))
        elif column.kind == TIME:
            arrays.append(pa.array(fields[name], _MILLISECONDS).cast(field.type))
        elif name in JSON_TEXTS and column.kind == TEXT:
            arrays.append(_texts(name, fields[name]))
        elif name == "id":
            arrays.append(pa.array(_ids(table, owners, parts), field.type))
        else:
            values = fields[name] if name in fields else list(map(attrgetter(name), owners))
            arrays.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _texts(name: str, values: Sequence[Raw | None]) -> pa.Array:
    """Return texts of JSON as a column, which takes them all at once."""
    texts = [b"" if value is None else value for value in values]
    starts = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    present = pa.array([value is not None for value in values], pa.bool_()).buffers()[1]
    found = pa.StringArray.from_buffers(len(texts), pa.py_buffer(starts), pa.py_buffer(b"".join(texts)), present)
    if JSON_TEXTS[name] or pc.all(pc.starts_with(found, "{")).as_py() is not False:
        return found
    # in these a string is its content, as in other columns, and null is not a text
    plain = [_decode_text(text) if text[:1] == b'"' else text for text in (bytes(one or b"null") for one in values)]
    return pa.array([None if text == b"null" else text for text in plain], pa.string())


def _ids(table: str, owners: list[Record], parts: list[Any]) -> list[str]:
    if table == "acknowledgements":
        return [f"{part.topic}-{part.partition}-{part.offset}-{part.index}" for part in parts]
    if table == "dead_letters":
        return [f"{part.topic}-{part.partition}-{part.offset}" for part in parts]
    if table == "outcomes":
        return [part.reply_id if part.version is None else f"{part.reply_id}-{part.version}" for part in parts]
    # the record of a refused request may have an id of another kind; the id of the request is its reply-id
    return [owner.id if owner.outcome is None else owner.outcome.reply_id for owner in owners]
