"""The records of a batch: their metadata, one by one or in runs; then the result of the batch, with its rows.

Metadata (everything but the values) goes to the driver; the values stay in Spark frames.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.jobs.persist.decisions import MAX_TOPIC_BYTES
from ackstream.jobs.persist.state import PublisherState
from ackstream.lake.schemas import ALL_TABLES
from ackstream.protocol import record_headers
from ackstream.protocol.messages import MAX_CLIENT_CHARACTERS, CommandAck, StoredRange
from ackstream.spark import batches

Integers: TypeAlias = np.ndarray[tuple[int], np.dtype[np.integer]]
Booleans: TypeAlias = np.ndarray[tuple[int], np.dtype[np.bool_]]

DAY_MS = 86_400_000
NUMBER = r"^(\d{1,18}|[1-8]\d{18})$"
"""Matches only numbers that certainly fit 64 bits."""
SHORT_BYTES, LONG_BYTES = 64, MAX_TOPIC_BYTES
"""Maximum bytes of a header; one more is read, so that a longer header is not a valid number, name or topic. The driver
gets the headers of a whole batch, and answers repeat a command id."""
_SHORT = {"seq", "command", "ack", "ttl", "first", "conflation", "window", "immediately"}

_REJECTED = pa.schema(
    [("rejected_partition", pa.int32()), ("rejected_offset", pa.int64()), ("rejected_reason", pa.string())]
)


class MessageMetadata(msgspec.Struct, frozen=True, gc=False):
    """The coordinates, size and headers of a record; ``timestamp`` is the broker's, in epoch milliseconds."""

    partition: int
    offset: int
    timestamp: int
    size: int
    client: str | None
    seq: str | None = None
    command: str | None = None
    cid: str | None = None
    ack: str | None = None
    topic: str | None = None
    ttl: str | None = None
    first: str | None = None
    conflation: str | None = msgspec.field(default=None, name=record_headers.ACK_CONFLATION)
    session: str | None = msgspec.field(default=None, name=record_headers.SESSION)
    window: str | None = msgspec.field(default=None, name=record_headers.WINDOW)
    immediately: str | None = msgspec.field(default=None, name=record_headers.ACK_IMMEDIATELY)
    store: str | None = msgspec.field(default=None, name=record_headers.STORE)


HEADER_COLUMNS = {field.name: field.encode_name for field in msgspec.structs.fields(MessageMetadata)[4:]}
"""The record header of each field after the size."""


class MessageRun(NamedTuple):
    """Messages of one client with consecutive numbers and otherwise equal metadata; sizes are in bytes."""

    first: MessageMetadata
    numbers: range
    total: int
    largest: int
    newest: int
    """The latest of their timestamps."""
    last_offset: int
    members: Callable[[], list[MessageMetadata]]
    """Returns them one by one."""


def members(item: MessageMetadata | MessageRun) -> list[MessageMetadata]:
    """Return the messages of a run one by one; a single message is a list of one."""
    return item.members() if isinstance(item, MessageRun) else [item]


def read_metadata(table: pa.Table) -> Iterator[MessageMetadata | MessageRun]:
    """Return single messages and runs; those of one client and partition in the order of their offsets."""
    # most messages equal the one before but for the next number
    if not table.num_rows:
        return
    order = [("client", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
    table = table.sort_by(order).combine_chunks()
    text = table.column("seq")
    valid = pc.fill_null(pc.match_substring_regex(text, NUMBER), False)  # noqa: FBT003 - Arrow's way
    numbers: Integers = pc.fill_null(pc.cast(pc.if_else(valid, text, None), pa.int64()), -1).to_numpy()
    starts = np.flatnonzero(~_continues(table, numbers))
    ends = np.append(starts[1:], table.num_rows)
    sizes, times, offsets = (table.column(name).to_numpy() for name in ("size", "timestamp", "offset"))
    totals, largest = np.add.reduceat(sizes, starts), np.maximum.reduceat(sizes, starts)
    columns = (starts, ends, totals, largest, np.maximum.reduceat(times, starts), offsets[ends - 1])
    for start, end, total, most, newest, last in zip(*(column.tolist() for column in columns), strict=True):
        (message,) = _messages(table, start, 1)
        if end - start == 1:
            yield message
            continue
        first, again = int(numbers[start]), partial(_messages, table, start, end - start)
        yield MessageRun(message, range(first, first + end - start), total, most, newest, last, again)


def _continues(table: pa.Table, numbers: Integers) -> Booleans:
    """Return for each row whether it continues the run of the row before it."""
    plain: Booleans = numbers >= 0
    for name in ("command", "cid", "ttl"):
        plain &= table.column(name).is_null().to_numpy(zero_copy_only=False)
    continues: Booleans = plain.copy()
    continues[0] = False
    continues[1:] &= plain[:-1] & (numbers[1:] == numbers[:-1] + 1)
    codes = [_codes(table, name) for name in ("client", "ack", "topic", "session", "immediately")]
    days = table.column("timestamp").to_numpy() // DAY_MS
    for same in (*codes, table.column("partition").to_numpy(), days):
        continues[1:] &= same[1:] == same[:-1]
    return continues


def _codes(table: pa.Table, name: str) -> Integers:
    (chunk,) = table.column(name).chunks
    found: Integers = pc.fill_null(chunk.dictionary_encode().indices, -1).to_numpy()
    return found


def _messages(table: pa.Table, start: int, count: int) -> list[MessageMetadata]:
    columns = [column.to_pylist() for column in table.slice(start, count).columns]
    return [MessageMetadata(*row) for row in zip(*columns, strict=True)]


def projected(records: DataFrame) -> DataFrame:
    """Lay out Kafka's records for both readings of a batch: columns of ``messages``; ``metadata`` for the driver."""
    # applied to the stream: in a batch each of these expressions would be a call to the JVM; columns that
    # message_rows() gives are null
    service = sorted(record_headers.PUBLISHER)
    count = sum((F.col("found")[name].isNotNull().cast("int") for name in service), F.lit(0))
    own = F.transform(
        F.filter("headers", lambda header: ~header["key"].isin(service)),
        lambda header: F.struct(header["key"].alias("name"), header["value"].alias("value")),
    )
    table = ALL_TABLES["messages"]
    texts = {name: F.expr(_text(name, header)) for name, header in HEADER_COLUMNS.items()}
    columns = {
        "client": texts["client"],
        "received_at": F.col("timestamp"),
        "seq": texts["seq"].try_cast("long"),
        "subject": texts["topic"],
        "ttl_ms": texts["ttl"].try_cast("long"),
        "key": F.col("found")[record_headers.KEY],
        # functions over arrays are slow: only records with headers of their own pay for them
        "headers": F.when(F.size("headers") > count, own),
        # independent of the session's time zone
        "day": F.expr(f"date_from_unix_date(CAST(floor(unix_millis(timestamp) / {DAY_MS}) AS INT))"),
        **{name: F.lit(None).cast(table.schema[name].dataType) for name in ("batch", "query_id", "reason")},
    }
    metadata = {"timestamp": F.unix_millis("timestamp"), "size": F.coalesce(F.length("value"), F.lit(0)), **texts}
    fields = [metadata.get(name, F.col(name)).alias(name) for name in MessageMetadata.__struct_fields__]
    return records.withColumn("found", F.map_from_entries("headers")).select(
        *[columns.get(name, F.col(name)).alias(name) for name in table.names], F.struct(*fields).alias("metadata")
    )


def _text(name: str, header: str) -> str:
    """Return the SQL of a column of text: the beginning of a header."""
    length = SHORT_BYTES if name in _SHORT else LONG_BYTES
    return f"make_valid_utf8(CAST(substring(found['{header}'], 1, {length + 1}) AS STRING))"


class RejectedRecord(NamedTuple):
    """A record that is not stored as a message, with the reason; ``None``: it is a command or a duplicate."""

    partition: int
    offset: int
    reason: str | None


STORED, NO_ROW = "stored", "no row"
"""Ends of a record: a message in the table; or no row, as for commands and repeated messages."""


class PersistResult(NamedTuple):
    """The result of a batch; records not rejected are stored. The acks of ``urgent`` clients are not held back."""

    rejected: list[RejectedRecord]
    acks: list[tuple[str, CommandAck]]
    stored: list[StoredRange]
    changed: dict[str, PublisherState]
    urgent: set[str]

    def stores(self, records: int) -> bool:
        """Return whether the batch, which has this many records, adds rows to the table."""
        return records > sum(rejected.reason is None for rejected in self.rejected)

    def ends(self, records: int) -> dict[str, int]:
        """Count the records of the batch, which has this many, by their end: stored, or the reason."""
        found = Counter(rejected.reason or NO_ROW for rejected in self.rejected)
        return {STORED: records - len(self.rejected), **found}


def is_durability_ack(ack: CommandAck) -> bool:
    """Return whether an ack is about durable messages, as a logon's is: it waits for the sync destinations."""
    return ack.ack_type == "persisted" or ack.bookmark is not None


def state_name(client: str | None) -> str:
    """Return the name of the state that notes a record: records without a client, or with an invalid one, share one."""
    return client if client and len(client) <= MAX_CLIENT_CHARACTERS else ""


def message_rows(records: DataFrame, rejected: Sequence[RejectedRecord], query_id: str, batch: int) -> DataFrame:
    """Return the rows of :func:`projected` records: rejected ones with their reason, no commands or duplicates."""
    own = {"query_id": F.lit(query_id), "batch": F.lit(batch).cast("long")}
    if rejected:
        known = F.broadcast(records.sparkSession.createDataFrame(batches.arrow(rejected, _REJECTED)))
        same = (F.col("partition") == F.col("rejected_partition")) & (F.col("offset") == F.col("rejected_offset"))
        joined = records.join(known, same, "left").withColumn("reason", F.col("rejected_reason"))
        records = joined.where(F.col("rejected_offset").isNull() | F.col("reason").isNotNull())
    return records.withColumns(own).drop("metadata", *_REJECTED.names)
