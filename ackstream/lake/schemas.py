"""The Delta tables: every column's name, type and meaning, in one place.

JSON in a row (headers, values, payloads, replies) is text. Times are UTC. Only the types of Spark and Arrow need
PySpark: clients and consoles without it know the tables and their columns, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ackstream.errors import StartError
from ackstream.protocol import dispositions

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql.types import StructType

TEXT, INTEGER, LONG, BOOLEAN = "string", "integer", "long", "boolean"
TIME, BYTES, DOUBLE, DATE = "timestamp", "binary", "double", "date"
TEXTS, HEADERS = "texts", "headers"
"""The types of columns, by the names of Spark's JSON; ``headers`` is an array of names with binary values."""
INDEXED_COLUMNS = 4
"""The first columns of a table carry statistics: in the ledger correlation_id, the row's time, query_id, batch_id."""

KEY = ("query_id", "batch_id", "id")
"""The columns that make a row of a ledger table unique."""
PARTITION = "day"
"""The partition column of tables that have it."""


class Column(NamedTuple):
    """A column of a table."""

    name: str
    kind: str
    comment: str
    nullable: bool


@dataclass(frozen=True)
class Table:
    """A table and the job that writes it; a ``derived`` one is merged from another, and its rows change."""

    name: str
    comment: str
    writer: str
    columns: tuple[Column, ...]
    derived: bool = False

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.columns]

    @property
    def time(self) -> str:
        """The first column with a time: the time of the row, whose day is the partition."""
        return next(column.name for column in self.columns if column.kind == TIME)

    @cached_property
    def schema(self) -> StructType:
        """The columns as a schema of Spark."""
        from pyspark.sql import types  # noqa: PLC0415 - programs without Spark need the names alone

        header = types.StructType().add("name", TEXT).add("value", BYTES)
        arrays = {TEXTS: types.ArrayType(types.StringType()), HEADERS: types.ArrayType(header)}
        found = types.StructType()
        for column in self.columns:
            kind = arrays.get(column.kind, column.kind)
            found.add(column.name, kind, column.nullable, {"comment": column.comment})
        return found

    @cached_property
    def arrow(self) -> pa.Schema:
        """The columns as a schema of Arrow."""
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - see above

        return to_arrow_schema(self.schema, timezone="UTC")


def required(name: str, kind: str, comment: str) -> Column:
    """Return a column without nulls."""
    return Column(name, kind, comment, nullable=False)


def optional(name: str, kind: str, comment: str) -> Column:
    """Return a column that may be null."""
    return Column(name, kind, comment, nullable=True)


def _written(column: Callable[[str, str, str], Column] = required) -> list[Column]:
    """Return the columns that name the writer of a row of the ledger."""
    return [
        column("query_id", TEXT, "id of the correlate query that decided"),
        column("batch_id", LONG, "batch of that query; with query_id it finds the copies that a replayed batch writes"),
    ]


def _coordinates(record: str) -> list[Column]:
    """Return the columns of the Kafka coordinates of a record."""
    return [
        required("topic", TEXT, f"Kafka topic of the {record}"),
        required("partition", INTEGER, f"Kafka partition of the {record}"),
        required("offset", LONG, f"Kafka offset of the {record}"),
    ]


def _day(time: str) -> Column:
    """Return the partition column, the day of another column."""
    return required(PARTITION, DATE, f"UTC day of {time}; partition column")


# -- tables -----------------------------------------------------------------------------------------------------------

_SIGNALS = (
    required("correlation_id", TEXT, "correlation-id of the request"),
    required("received_at", TIME, "broker time of the request"),
    *_written(),
    optional("thing_id", TEXT, "namespace:name of the thing addressed"),
    optional("channel", TEXT, "twin or live"),
    optional("criterion", TEXT, "commands, messages, ..."),
    optional("action", TEXT, "modify, retrieve, ...; the subject of a message"),
    optional("path", TEXT, "path of the signal within the thing"),
    required("requested_acks", TEXTS, "labels requested, in the order of the request"),
    optional("response_required", BOOLEAN, "whether the requester expects a response"),
    optional("timeout_ms", LONG, "how long the request may stay open, in milliseconds"),
    optional("headers", TEXT, "JSON object: headers of the signal"),
    optional("value", TEXT, "JSON: value of the signal; null if it has none"),
    *_coordinates("request"),
    required("id", TEXT, "reply-id of the request; its outcome has the same id"),
    _day("received_at"),
)

_ACKNOWLEDGEMENTS = (
    optional("correlation_id", TEXT, "correlation-id of the request it belongs to"),
    required("received_at", TIME, "broker time of the acknowledgement"),
    *_written(),
    optional("label", TEXT, "usually party:step; of a response twin-persisted or live-response; null of an error"),
    optional("status", INTEGER, "HTTP status: below 400 is a success, 408 a timeout"),
    required("disposition", TEXT, dispositions.explained(dispositions.ACKNOWLEDGEMENTS)),
    optional("latency_ms", LONG, "milliseconds from the request; null if no request was open for it, as of late ones"),
    optional("reason", TEXT, "why it is invalid, such as another thing than the request's"),
    optional("weak", BOOLEAN, "issued by the system for a subscriber that does not receive the signal"),
    optional("payload", TEXT, "JSON: payload of the acknowledgement, or a reference to it; null if it has none"),
    *_coordinates("acknowledgement"),
    required("index", INTEGER, "position within an aggregated acknowledgement, else 0"),
    required("id", TEXT, "topic-partition-offset-index"),
    _day("received_at"),
)

_OUTCOMES = (
    required("correlation_id", TEXT, "correlation-id of the request"),
    required("decided_at", TIME, "when the request was decided"),
    *_written(),
    optional("thing_id", TEXT, "namespace:name of the thing addressed"),
    required("status", INTEGER, "HTTP status of the reply"),
    required("completed_by", TEXT, f"what completed it: {', '.join(dispositions.COMPLETIONS)}"),
    required("requested", TEXTS, "labels awaited, in the order of the request"),
    required("missing", TEXTS, "awaited labels that were not acknowledged in time"),
    required("started_at", TIME, "broker time of the request"),
    required("latency_ms", LONG, "time from started_at to decided_at, in milliseconds"),
    required("reply_id", TEXT, "id of the reply; a repeated reply has the same id"),
    optional("reply", TEXT, "JSON: the reply as it was sent; null if none was requested, or too large to repeat"),
    optional("reply_topic", TEXT, "Kafka topic of the reply; null if none was requested"),
    required("id", TEXT, "the same as reply_id"),
    _day("decided_at"),
)

_DEAD_LETTERS = (
    optional("correlation_id", TEXT, "correlation-id, if one could be read"),
    required("received_at", TIME, "broker time of the record"),
    *_written(optional),
    required("reason", TEXT, "why the record is unusable"),
    optional("key", BYTES, "key of the record"),
    optional("value", BYTES, "value of the record"),
    required("truncated", BOOLEAN, "whether only the beginning of the value is stored"),
    *_coordinates("record"),
    required("id", TEXT, "topic-partition-offset"),
    _day("received_at"),
)

_AUDIT = (
    optional("correlation_id", TEXT, "of a command that was allowed that of its row in signals; else the client's own"),
    required("received_at", TIME, "when the gateway decided, by its clock"),
    required("query_id", TEXT, "run of the gateway that wrote it"),
    required("batch_id", LONG, "number within that run, from 1 without gaps: a missing one is a lost record"),
    required("event", TEXT, "sign-in, command, stream, answer, request: refused unread, or rules: the access file"),
    optional("subject", TEXT, "who did it; of a failed sign-in the user it was about, if there is one"),
    required("roles", TEXTS, "roles of the subject: PREFIX:NAME"),
    optional("address", TEXT, "address of the client; behind a proxy of gateway.proxy as that one names it"),
    optional("method", TEXT, "HTTP method, or WEBSOCKET"),
    optional("command", TEXT, "channel/criterion/action of a command; the path of the URL of a sign-in or request"),
    optional("thing_id", TEXT, "namespace:name of the thing addressed"),
    optional("path", TEXT, "path within the thing"),
    required("allowed", BOOLEAN, "whether it was allowed; how a command ended is in outcomes"),
    required("count", LONG, "attempts that the row stands for: more than 1 of failures in quick succession"),
    optional("status", INTEGER, "HTTP status of the refusal"),
    optional("reason", TEXT, "why it was refused"),
    required("id", TEXT, "run-number"),
    _day("received_at"),
)

# -- tables of the twin -----------------------------------------------------------------------------------------------

_THING_EVENTS = (
    required("thing_id", TEXT, "namespace:name"),
    required("batch", LONG, "number of the twin's batch, which grows across its checkpoints"),
    required("revision", LONG, "revision of the thing after the change: 1, 2, 3, … without gaps"),
    required("modified_at", TIME, "broker time of the command"),
    required("query_id", TEXT, "id of the twin query that wrote it"),
    required("action", TEXT, "created, modified, merged or deleted"),
    required("path", TEXT, "JSON pointer to what was changed"),
    optional("value", TEXT, "JSON: value of the event; null for a deletion"),
    required("created_at", TIME, "when the thing was last created"),
    required("last", BOOLEAN, "whether this is the last change of the thing in its batch"),
    optional("thing", TEXT, "JSON: the whole thing; only for its last change in the batch"),
    required("deleted", BOOLEAN, "whether this change deleted the thing"),
    required("visible", BOOLEAN, "whether the content of the thing changed"),
    required("search_persisted", BOOLEAN, "whether search-persisted was requested"),
    required("correlation_id", TEXT, "correlation-id of the command"),
    *_coordinates("command"),
    _day("modified_at"),
)

_THINGS = (
    required("thing_id", TEXT, "namespace:name"),
    required("batch", LONG, "batch of the last change, as in thing_events"),
    required("revision", LONG, "number of changes so far"),
    required("modified_at", TIME, "broker time of the last change"),
    required("created_at", TIME, "when it was last created"),
    required("deleted", BOOLEAN, "whether it is deleted; if it is created again, revisions continue"),
    optional("thing", TEXT, "JSON: thingId, policyId, definition, attributes, features; null once deleted"),
)

_THINGS_SEARCH = (
    required("thing_id", TEXT, "namespace:name"),
    required("path", TEXT, "path within the thing, as in RQL: attributes/location/city"),
    required("element", INTEGER, "index among the values of the path; an array has several"),
    optional("text", TEXT, "the value, if it is a text"),
    optional("number", DOUBLE, "the value, if it is a number"),
    optional("flag", BOOLEAN, "the value, if it is a boolean"),
    required("value", TEXT, "JSON: the value; {} or [] if empty"),
)

# -- tables of publishers ---------------------------------------------------------------------------------------------

_MESSAGES = (
    optional("client", TEXT, "name of the publisher; null if it did not give one"),
    required("received_at", TIME, "broker time of the message"),
    required("batch", LONG, "number of the batch, which grows across checkpoints of the job"),
    optional("seq", LONG, "sequence number given by the publisher"),
    required("query_id", TEXT, "id of the persist query that wrote it"),
    optional("reason", TEXT, f"why it was refused: {', '.join(dispositions.REFUSALS)}; null if it was accepted"),
    optional("subject", TEXT, "topic named by the publisher"),
    optional("ttl_ms", LONG, "time to live until it is consumed, in milliseconds; null: unlimited"),
    optional("key", BYTES, "key given by the publisher"),
    optional("value", BYTES, "value of the message"),
    optional("headers", HEADERS, "record headers given by the publisher"),
    *_coordinates("message"),
    _day("received_at"),
)

_PUBLISHERS = (
    required("client", TEXT, "name of the publisher"),
    required("batch", LONG, "batch after which this row holds; the newest row of a client counts"),
    required("last_seq", LONG, "sequence number up to which everything is stored or refused"),
    optional("told", LONG, "batch up to which all acks had been sent by then; null in rows of earlier releases"),
    required("query_id", TEXT, "id of the persist query that wrote it"),
    required("state", TEXT, "JSON: ledger of the publisher, from which the next batch continues"),
    optional("acks", TEXT, "JSON: acks of the batch about durability, which are sent once they are due; null: none"),
)

_DESTINATIONS = (
    required("destination", TEXT, "name of the destination in the settings"),
    required("changed_at", TIME, "when the mode changed"),
    optional("batch", LONG, "batch up to which it had all messages; -1: none; null: unknown at a start"),
    required("mode", TEXT, "sync: persisted waits for it from then on; async: it does not"),
    required("cause", TEXT, "downgrade, upgrade, or start: each start begins as the settings say"),
    required("age_ms", LONG, "age of the oldest message it lacked, in milliseconds"),
)

# -- tables of commands over the messages -----------------------------------------------------------------------------

_SUBSCRIPTIONS = (
    required("batch", LONG, "batch of the query job after which this row holds; the newest row counts"),
    required("position", LONG, "batch of messages up to which its results are complete"),
    required("query_id", TEXT, "id of the streaming query that wrote it"),
    required("state", TEXT, "JSON: sessions and subscriptions of the clients"),
)

_SOW_DELETES = (
    required("batch", LONG, "batch of the query job that deleted it"),
    required("step", LONG, "step of that batch; later steps no longer see the record"),
    required("partition", INTEGER, "Kafka partition of the message"),
    required("offset", LONG, "Kafka offset of the message"),
    optional("received_at", TIME, "broker time of the message; null: not known"),
    required("subject", TEXT, "topic of the message"),
    optional("key", BYTES, "key of the record"),
    required("client", TEXT, "client that deleted it"),
    optional("cid", TEXT, "id of the command"),
    required("deleted_at", TIME, "broker time of the command"),
    required("query_id", TEXT, "id of the streaming query that wrote it"),
)

# -- settle and queues ------------------------------------------------------------------------------------------------

_DELIVERIES = (
    required("writer", TEXT, "writer of the samples: column client of messages"),
    required("acknowledged_at", TIME, "broker time of the acknowledgement"),
    required("reader", TEXT, "reader that acknowledged them"),
    required("first", LONG, "number of the first sample: column seq of messages"),
    required("last", LONG, "number of the last sample; no two rows of a reader and a writer overlap"),
    optional("role", TEXT, "role of the reader"),
    optional("response", BYTES, "response of the reader"),
    optional("auto", TEXT, "why they are acknowledged although no code saw them: filtered or replaced"),
    required("epoch", LONG, "grows with each start of the reader"),
    required("query_id", TEXT, "id of the settle query that wrote it"),
    required("batch_id", LONG, "batch of that query"),
    required("partition", INTEGER, "Kafka partition of the acknowledgement in the topic app-acks"),
    required("offset", LONG, "Kafka offset of the acknowledgement in the topic app-acks"),
    required("id", TEXT, "writer/reader/first"),
    _day("acknowledged_at"),
)

_IGNORED_REPORTS = (
    required("reason", TEXT, "why it was ignored: stale-count, unreadable, ...; reader-expired: it was removed"),
    required("received_at", TIME, "broker time of the record; of a removed reader the end of settle.durable_lease"),
    optional("writer", TEXT, "writer of the samples it refers to"),
    optional("reader", TEXT, "reader that sent it, or that was removed"),
    optional("first", LONG, "first number of the ignored interval; null: the whole record"),
    optional("last", LONG, "last number of the ignored interval"),
    optional("detail", TEXT, "what is wrong with an unreadable record"),
    optional("value", BYTES, "the beginning of an unreadable record"),
    required("query_id", TEXT, "id of the settle query that wrote it"),
    required("batch_id", LONG, "batch of that query"),
    *_coordinates("record"),
    required("id", TEXT, "topic-partition-offset-number, counting what was ignored of the record"),
    _day("received_at"),
)

_QUEUE_EVENTS = (
    required("message", TEXT, "id of the message in the queue: topic-partition-offset"),
    required("at", TIME, "broker time of the event"),
    required("query_id", TEXT, "id of the queues query that wrote it"),
    required("batch_id", LONG, "batch of that query"),
    required("queue", TEXT, "name of the queue"),
    required("event", TEXT, "delivered, returned, refused (a settlement without effect) or left"),
    optional("consumer", TEXT, "consumer that received, returned or settled it"),
    required("count", INTEGER, "number of deliveries so far"),
    optional("outcome", TEXT, "left: settled, dead-letter or discarded; refused: the requested outcome"),
    optional("reason", TEXT, f"why it was returned or refused, or why it left: {', '.join(dispositions.EXITS)}"),
    optional("topic", TEXT, "Kafka topic of the message; null if the queue does not have it"),
    optional("partition", INTEGER, "Kafka partition of the message"),
    optional("offset", LONG, "Kafka offset of the message"),
    optional("batch", LONG, "batch of the message in the table messages"),
    optional("subject", TEXT, "topic named by the publisher"),
    optional("received_at", TIME, "broker time of the message"),
    _day("at"),
)

# -- all tables -------------------------------------------------------------------------------------------------------

_TABLES = (
    Table("signals", "One row per request.", "archive", _SIGNALS),
    Table("acknowledgements", "One row per acknowledgement.", "archive", _ACKNOWLEDGEMENTS),
    Table("outcomes", "One row per decided request.", "archive", _OUTCOMES),
    Table("dead_letters", "One row per unusable record.", "archive", _DEAD_LETTERS),
    Table("audit", "One row per command or sign-in at the gateway, allowed or not.", "archive", _AUDIT),
    Table("thing_events", "One row per change of a thing: the twin's journal.", "twin", _THING_EVENTS),
    Table("things", "One row per thing, in its present state.", "twin", _THINGS, derived=True),
    Table("things_search", "One row per value within a thing.", "twin", _THINGS_SEARCH, derived=True),
    Table("messages", "One row per message of a publisher, accepted or refused.", "persist", _MESSAGES),
    Table("publishers", "The progress of each publisher, batch by batch.", "persist", _PUBLISHERS),
    # exists only if there are sync destinations
    Table("destinations", "One row per change of what acknowledgements wait for.", "persist", _DESTINATIONS),
    Table("deliveries", "One row per run of samples that a reader has acknowledged.", "settle", _DELIVERIES),
    Table("ignored_reports", "One row per unusable report of a reader, or part of one.", "settle", _IGNORED_REPORTS),
    Table("queue_events", "One row per event of a message in a work queue.", "queues", _QUEUE_EVENTS),
    Table("subscriptions", "The subscriptions to messages, batch by batch of the query job.", "query", _SUBSCRIPTIONS),
    Table(
        "sow_deletes", "One row per message that sow_delete removed from the state of the world.", "query", _SOW_DELETES
    ),
)
ALL_TABLES = {table.name: table for table in _TABLES}
TABLES = {name: table for name, table in ALL_TABLES.items() if table.writer == "archive"}
"""The tables of the ledger."""


def in_full(location: str) -> str:
    """Return a location that every program accepts: a URL, or an absolute path."""
    return location if ":" in location.partition("/")[0] else str(Path(location).absolute())


def absent(table: str, location: object) -> StartError:
    """Return the error for a table that does not exist yet."""
    return StartError(
        f"The table {table} does not exist at {location}; start the {ALL_TABLES[table].writer} job, or correct"
        " lake.path."
    )
