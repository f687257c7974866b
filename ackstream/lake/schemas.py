"""The Delta tables: every column's name, type and meaning, in one place.

JSON inside a row (headers, values, payloads, replies) is text that holds JSON. Times are UTC.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

if TYPE_CHECKING:
    from collections.abc import Callable

TEXT, INTEGER, LONG, BOOLEAN = StringType(), IntegerType(), LongType(), BooleanType()
TIME, BYTES, TEXTS, DOUBLE = TimestampType(), BinaryType(), ArrayType(TEXT), DoubleType()

INDEXED_COLUMNS = 4
"""The first columns of each table carry statistics: correlation_id, the row's time, query_id, batch_id."""

KEY = ("query_id", "batch_id", "id")
"""The columns that make a row of a ledger table unique."""

PARTITION = "day"
"""The column by which most tables are partitioned."""


@dataclass(frozen=True)
class Table:
    """A table, the job that writes it, and the column by which it is partitioned, if any."""

    name: str
    comment: str
    schema: Any
    writer: str
    partition: str | None = PARTITION


@dataclass(frozen=True)
class LedgerTable(Table):
    """A table of archive: the part of a ledger record its rows come from, and the column of a row's time."""

    part: str = ""
    time: str = ""


def _required(name: str, kind: Any, comment: str) -> Any:
    return StructField(name, kind, nullable=False, metadata={"comment": comment})


def _optional(name: str, kind: Any, comment: str) -> Any:
    return StructField(name, kind, nullable=True, metadata={"comment": comment})


def _written(field: Callable[[str, Any, str], Any] = _required) -> list[Any]:
    return [
        field("query_id", TEXT, "id of the correlate query that decided"),
        field("batch_id", LONG, "batch of that query; with query_id it finds the copies that a replayed batch writes"),
    ]


def _coordinates(what: str) -> list[Any]:
    return [
        _required("topic", TEXT, f"Kafka topic of the {what}"),
        _required("partition", INTEGER, f"Kafka partition of the {what}"),
        _required("offset", LONG, f"Kafka offset of the {what}"),
    ]


def _day(of: str) -> Any:
    return _required("day", DateType(), f"UTC day of {of}; partition column")


# -- tables -----------------------------------------------------------------------------------------------------------

SIGNALS = StructType(
    [
        _required("correlation_id", TEXT, "correlation-id of the request"),
        _required("received_at", TIME, "broker time of the request"),
        *_written(),
        _optional("thing_id", TEXT, "namespace:name of the thing addressed"),
        _optional("channel", TEXT, "twin or live"),
        _optional("criterion", TEXT, "commands, messages, ..."),
        _optional("action", TEXT, "modify, retrieve, ...; the subject of a message"),
        _optional("path", TEXT, "path of the signal within the thing"),
        _required("requested_acks", TEXTS, "labels requested, in the order of the request"),
        _optional("response_required", BOOLEAN, "whether the requester expects a response"),
        _optional("timeout_ms", LONG, "how long the request may stay open, in milliseconds"),
        _optional("headers", TEXT, "JSON object: headers of the signal"),
        _optional("value", TEXT, "JSON: value of the signal; null if it has none"),
        *_coordinates("request"),
        _required("id", TEXT, "reply-id of the request; its outcome has the same id"),
        _day("received_at"),
    ]
)

ACKNOWLEDGEMENTS = StructType(
    [
        _optional("correlation_id", TEXT, "correlation-id of the request it belongs to"),
        _required("received_at", TIME, "broker time of the acknowledgement"),
        *_written(),
        _optional("label", TEXT, "label of the acknowledgement, usually party:step"),
        _optional("status", INTEGER, "HTTP status: below 400 is a success, 408 a timeout"),
        _required("disposition", TEXT, "how it was treated: accepted, duplicate, unrequested, late, orphan, invalid"),
        _optional("latency_ms", LONG, "time from the request to this acknowledgement, in milliseconds"),
        _optional("weak", BOOLEAN, "issued by the system for a subscriber that does not receive the signal"),
        _optional("payload", TEXT, "JSON: payload of the acknowledgement; null if it has none"),
        *_coordinates("acknowledgement"),
        _required("index", INTEGER, "position within an aggregated acknowledgement, else 0"),
        _required("id", TEXT, "topic-partition-offset-index"),
        _day("received_at"),
    ]
)

OUTCOMES = StructType(
    [
        _required("correlation_id", TEXT, "correlation-id of the request"),
        _required("decided_at", TIME, "when the request was decided"),
        *_written(),
        _optional("thing_id", TEXT, "namespace:name of the thing addressed"),
        _required("status", INTEGER, "HTTP status of the reply"),
        _required("completed_by", TEXT, "what completed it: acknowledgements, response, timeout, error, invalid"),
        _required("requested", TEXTS, "labels awaited, in the order of the request"),
        _required("missing", TEXTS, "awaited labels that were not acknowledged in time"),
        _required("started_at", TIME, "broker time of the request"),
        _required("latency_ms", LONG, "time from started_at to decided_at, in milliseconds"),
        _required("reply_id", TEXT, "id of the reply; a repeated reply has the same id"),
        _optional("reply", TEXT, "JSON: the reply as it was sent; null if none was requested"),
        _optional("reply_topic", TEXT, "Kafka topic of the reply; null if none was requested"),
        _required("id", TEXT, "the same as reply_id"),
        _day("decided_at"),
    ]
)

DEAD_LETTERS = StructType(
    [
        _optional("correlation_id", TEXT, "correlation-id, if one could be read"),
        _required("received_at", TIME, "broker time of the record"),
        *_written(_optional),
        _required("reason", TEXT, "why the record is unusable"),
        _optional("key", BYTES, "key of the record"),
        _optional("value", BYTES, "value of the record"),
        _required("truncated", BOOLEAN, "whether only the beginning of the value is stored"),
        *_coordinates("record"),
        _required("id", TEXT, "topic-partition-offset"),
        _day("received_at"),
    ]
)

# -- tables of the twin -----------------------------------------------------------------------------------------------

THING_EVENTS = StructType(
    [
        _required("thing_id", TEXT, "namespace:name"),
        _required("batch", LONG, "number of the twin's batch, which grows across its checkpoints"),
        _required("revision", LONG, "revision of the thing after the change: 1, 2, 3, … without gaps"),
        _required("modified_at", TIME, "broker time of the command"),
        _required("query_id", TEXT, "id of the twin query that wrote it"),
        _required("action", TEXT, "created, modified, merged or deleted"),
        _required("path", TEXT, "JSON pointer to what was changed"),
        _optional("value", TEXT, "JSON: value of the event; null for a deletion"),
        _required("created_at", TIME, "when the thing was last created"),
        _required("last", BOOLEAN, "whether this is the last change of the thing in its batch"),
        _optional("thing", TEXT, "JSON: the whole thing; only for its last change in the batch"),
        _required("deleted", BOOLEAN, "whether this change deleted the thing"),
        _required("visible", BOOLEAN, "whether the content of the thing changed"),
        _required("search_persisted", BOOLEAN, "whether search-persisted was requested"),
        _required("correlation_id", TEXT, "correlation-id of the command"),
        *_coordinates("command"),
        _day("modified_at"),
    ]
)

THINGS = StructType(
    [
        _required("thing_id", TEXT, "namespace:name"),
        _required("batch", LONG, "batch of the last change, as in thing_events"),
        _required("revision", LONG, "number of changes so far"),
        _required("modified_at", TIME, "broker time of the last change"),
        _required("created_at", TIME, "when it was last created"),
        _required("deleted", BOOLEAN, "whether it is deleted; if it is created again, revisions continue"),
        _optional("thing", TEXT, "JSON: thingId, policyId, definition, attributes, features; null once deleted"),
    ]
)

THINGS_SEARCH = StructType(
    [
        _required("thing_id", TEXT, "namespace:name"),
        _required("path", TEXT, "path within the thing, as in RQL: attributes/location/city"),
        _required("element", INTEGER, "index among the values of the path; an array has several"),
        _optional("text", TEXT, "the value, if it is a text"),
        _optional("number", DOUBLE, "the value, if it is a number"),
        _optional("flag", BOOLEAN, "the value, if it is a boolean"),
        _required("value", TEXT, "JSON: the value; {} or [] if empty"),
    ]
)

# -- tables of publishers ---------------------------------------------------------------------------------------------

MESSAGES = StructType(
    [
        _optional("client", TEXT, "name of the publisher; null if it did not give one"),
        _required("received_at", TIME, "broker time of the message"),
        _required("batch", LONG, "number of the batch, which grows across checkpoints of the job"),
        _optional("seq", LONG, "sequence number given by the publisher"),
        _required("query_id", TEXT, "id of the persist query that wrote it"),
        _optional("reason", TEXT, "why it was refused; null if it was accepted"),
        _optional("subject", TEXT, "topic named by the publisher"),
        _optional("ttl_ms", LONG, "time to live until it is consumed, in milliseconds; null: unlimited"),
        _optional("key", BYTES, "key given by the publisher"),
        _optional("value", BYTES, "value of the message"),
        StructField(
            "headers",
            ArrayType(StructType([StructField("name", TEXT), StructField("value", BYTES)])),
            nullable=True,
            metadata={"comment": "record headers given by the publisher"},
        ),
        *_coordinates("message"),
        _day("received_at"),
    ]
)

PUBLISHERS = StructType(
    [
        _required("client", TEXT, "name of the publisher"),
        _required("batch", LONG, "batch after which this row holds; the newest row of a client counts"),
        _required("last_seq", LONG, "sequence number up to which everything is stored or refused"),
        _optional("told", LONG, "batch up to which all acks had been sent by then; null: none ever waited"),
        _required("query_id", TEXT, "id of the persist query that wrote it"),
        _required("state", TEXT, "JSON: ledger of the publisher, from which the next batch continues"),
        _optional("acks", TEXT, "JSON: acks of the batch that wait for sync destinations; null: none"),
    ]
)

DESTINATIONS = StructType(
    [
        _required("destination", TEXT, "name of the destination in the settings"),
        _required("changed_at", TIME, "when the mode changed"),
        _optional("batch", LONG, "batch up to which it had all messages; -1: none; null: unknown at a start"),
        _required("mode", TEXT, "sync: persisted waits for it from then on; async: it does not"),
        _required("cause", TEXT, "downgrade, upgrade, or start: each start begins as the settings say"),
        _required("age_ms", LONG, "age of the oldest message it lacked, in milliseconds"),
    ]
)

# -- tables of commands over the messages -----------------------------------------------------------------------------

SUBSCRIPTIONS = StructType(
    [
        _required("batch", LONG, "batch of the query job after which this row holds; the newest row counts"),
        _required("position", LONG, "batch of messages up to which its results are complete"),
        _required("query_id", TEXT, "id of the streaming query that wrote it"),
        _required("state", TEXT, "JSON: sessions and subscriptions of the clients"),
    ]
)

SOW_DELETES = StructType(
    [
        _required("batch", LONG, "batch of the query job that deleted it"),
        _required("step", LONG, "step of that batch; later steps no longer see the record"),
        _required("partition", INTEGER, "Kafka partition of the message"),
        _required("offset", LONG, "Kafka offset of the message"),
        _required("subject", TEXT, "topic of the message"),
        _optional("key", BYTES, "key of the record"),
        _required("client", TEXT, "client that deleted it"),
        _optional("cid", TEXT, "id of the command"),
        _required("deleted_at", TIME, "broker time of the command"),
        _required("query_id", TEXT, "id of the streaming query that wrote it"),
    ]
)

# -- settle and queues ------------------------------------------------------------------------------------------------

DELIVERIES = StructType(
    [
        _required("writer", TEXT, "writer of the samples: column client of messages"),
        _required("acknowledged_at", TIME, "broker time of the acknowledgement"),
        _required("reader", TEXT, "reader that acknowledged them"),
        _required("first", LONG, "number of the first sample: column seq of messages"),
        _required("last", LONG, "number of the last sample; no two rows of a reader and a writer overlap"),
        _optional("role", TEXT, "role of the reader"),
        _optional("response", BYTES, "response of the reader"),
        _optional("auto", TEXT, "why they are acknowledged although no code saw them: filtered or replaced"),
        _required("epoch", LONG, "grows with each start of the reader"),
        _required("query_id", TEXT, "id of the settle query that wrote it"),
        _required("batch_id", LONG, "batch of that query"),
        _required("partition", INTEGER, "Kafka partition of the acknowledgement in the topic app-acks"),
        _required("offset", LONG, "Kafka offset of the acknowledgement in the topic app-acks"),
        _required("id", TEXT, "writer/reader/first"),
        _day("acknowledged_at"),
    ]
)

IGNORED_REPORTS = StructType(
    [
        _required("reason", TEXT, "why it was ignored: stale-count, never-delivered, unreadable, ..."),
        _required("received_at", TIME, "broker time of the record"),
        _optional("writer", TEXT, "writer of the samples it refers to"),
        _optional("reader", TEXT, "reader that sent it"),
        _optional("first", LONG, "first number of the ignored interval; null: the whole record"),
        _optional("last", LONG, "last number of the ignored interval"),
        _optional("detail", TEXT, "what is wrong with an unreadable record"),
        _optional("value", BYTES, "the beginning of an unreadable record"),
        _required("query_id", TEXT, "id of the settle query that wrote it"),
        _required("batch_id", LONG, "batch of that query"),
        *_coordinates("record"),
        _required("id", TEXT, "topic-partition-offset-number, counting what was ignored of the record"),
        _day("received_at"),
    ]
)

QUEUE_EVENTS = StructType(
    [
        _required("message", TEXT, "id of the message in the queue: topic-partition-offset"),
        _required("at", TIME, "broker time of the event"),
        _required("query_id", TEXT, "id of the queues query that wrote it"),
        _required("batch_id", LONG, "batch of that query"),
        _required("queue", TEXT, "name of the queue"),
        _required("event", TEXT, "delivered, returned, refused (a settlement without effect) or left"),
        _optional("consumer", TEXT, "consumer that received, returned or settled it"),
        _required("count", INTEGER, "number of deliveries so far"),
        _optional("outcome", TEXT, "left: settled, dead-letter or discarded; refused: the requested outcome"),
        _optional("reason", TEXT, "why it was returned or refused, or why it left"),
        _optional("topic", TEXT, "Kafka topic of the message; null if the queue does not have it"),
        _optional("partition", INTEGER, "Kafka partition of the message"),
        _optional("offset", LONG, "Kafka offset of the message"),
        _optional("batch", LONG, "batch of the message in the table messages"),
        _optional("subject", TEXT, "topic named by the publisher"),
        _optional("received_at", TIME, "broker time of the message"),
        _day("at"),
    ]
)

# -- all tables --------------------------------------------------------------------------------------------------------


def _named(*tables: Any) -> dict[str, Any]:
    return {table.name: table for table in tables}


TABLES: dict[str, LedgerTable] = _named(
    LedgerTable("signals", "One row per request.", SIGNALS, "archive", part="signal", time="received_at"),
    LedgerTable(
        "acknowledgements", "One row per acknowledgement.", ACKNOWLEDGEMENTS, "archive", part="acks", time="received_at"
    ),
    LedgerTable("outcomes", "One row per decided request.", OUTCOMES, "archive", part="outcome", time="decided_at"),
    LedgerTable(
        "dead_letters", "One row per unusable record.", DEAD_LETTERS, "archive", part="dead_letter", time="received_at"
    ),
)
"""The tables of the ledger."""

TWIN_TABLES: dict[str, Table] = _named(
    Table("thing_events", "One row per change of a thing: the twin's journal.", THING_EVENTS, "twin"),
    Table("things", "One row per thing, in its present state.", THINGS, "twin", None),
    Table("things_search", "One row per value within a thing.", THINGS_SEARCH, "twin", None),
)
PUBLISHER_TABLES: dict[str, Table] = _named(
    Table("messages", "One row per message of a publisher, accepted or refused.", MESSAGES, "persist"),
    Table("publishers", "The progress of each publisher, batch by batch.", PUBLISHERS, "persist", None),
)
REPLICATION_TABLES: dict[str, Table] = _named(
    Table("destinations", "One row per change of what acknowledgements wait for.", DESTINATIONS, "persist", None),
)
"""The table of sync destinations; it exists only if there are any."""

SETTLE_TABLES: dict[str, Table] = _named(
    Table("deliveries", "One row per run of samples that a reader has acknowledged.", DELIVERIES, "settle"),
    Table("ignored_reports", "One row per unusable report of a reader, or part of one.", IGNORED_REPORTS, "settle"),
)
QUERY_TABLES: dict[str, Table] = _named(
    Table(
        "subscriptions", "The subscriptions to messages, batch by batch of the query job.", SUBSCRIPTIONS, "query", None
    ),
    Table(
        "sow_deletes",
        "One row per message that sow_delete removed from the state of the world.",
        SOW_DELETES,
        "query",
        None,
    ),
)
QUEUE_TABLES: dict[str, Table] = _named(
    Table("queue_events", "One row per event of a message in a work queue.", QUEUE_EVENTS, "queues"),
)
ALL_TABLES: dict[str, Table] = {
    **TABLES,
    **TWIN_TABLES,
    **PUBLISHER_TABLES,
    **REPLICATION_TABLES,
    **SETTLE_TABLES,
    **QUEUE_TABLES,
    **QUERY_TABLES,
}
