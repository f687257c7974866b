"""Tables and ledger: every column's name, type and meaning, in one place.

A ledger record carries one or more parts (a signal, acknowledgements, an outcome, a dead letter); each part goes to
the table of its kind, whatever the record's kind is.

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
"""The first so many columns of each table carry statistics: correlation_id, the row's time, query_id, batch_id."""

KEY = ("query_id", "batch_id", "id")
"""What makes a row of any table unique."""

PARTITION = "day"
"""The column by which each table is partitioned."""


def _required(name: str, kind: Any, comment: str) -> Any:
    return StructField(name, kind, nullable=False, metadata={"comment": comment})


def _optional(name: str, kind: Any, comment: str) -> Any:
    return StructField(name, kind, nullable=True, metadata={"comment": comment})


def _written(field: Callable[[str, Any, str], Any] = _required) -> list[Any]:
    return [
        field("query_id", TEXT, "id of the correlate query that decided"),
        field("batch_id", LONG, "its batch; with query_id it finds the copies that a replayed batch writes"),
    ]


def _coordinates(what: str) -> list[Any]:
    return [
        _required("topic", TEXT, f"Kafka topic of the {what}"),
        _required("partition", INTEGER, f"Kafka partition of the {what}"),
        _required("offset", LONG, f"Kafka offset of the {what}"),
    ]


def _day(of: str) -> Any:
    return _required("day", DateType(), f"UTC day of {of}; the table is partitioned by it")


# -- tables -----------------------------------------------------------------------------------------------------------

SIGNALS = StructType(
    [
        _required("correlation_id", TEXT, "correlation-id of the request"),
        _required("received_at", TIME, "the broker's time of the request"),
        *_written(),
        _optional("thing_id", TEXT, "namespace:name of the thing addressed"),
        _optional("channel", TEXT, "twin or live"),
        _optional("criterion", TEXT, "commands, messages, ..."),
        _optional("action", TEXT, "modify, retrieve, ...; the subject of a message"),
        _optional("path", TEXT, "path of the signal within the thing"),
        _required("requested_acks", TEXTS, "labels asked for, in the order of the request"),
        _optional("response_required", BOOLEAN, "whether the requester waits for an answer"),
        _optional("timeout_ms", LONG, "how long the request may stay open, in milliseconds"),
        _optional("headers", TEXT, "JSON object: the signal's headers"),
        _optional("value", TEXT, "JSON: the signal's value; null where there is none"),
        *_coordinates("request"),
        _required("id", TEXT, "the request's reply-id; the outcome's id is the same"),
        _day("received_at"),
    ]
)

ACKNOWLEDGEMENTS = StructType(
    [
        _optional("correlation_id", TEXT, "correlation-id of the request it belongs to"),
        _required("received_at", TIME, "the broker's time of the acknowledgement"),
        *_written(),
        _optional("label", TEXT, "who acknowledged: a label, mostly party:step"),
        _optional("status", INTEGER, "HTTP status: below 400 is a success, 408 is none in time"),
        _required("disposition", TEXT, "what became of it: accepted, duplicate, unrequested, late, orphan, invalid"),
        _optional("latency_ms", LONG, "from the request to this acknowledgement, in milliseconds"),
        _optional("weak", BOOLEAN, "issued by the system for a subscriber that did not take the signal"),
        _optional("payload", TEXT, "JSON: what the acknowledgement brought; null where it brought nothing"),
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
        _required("status", INTEGER, "HTTP status of the answer"),
        _required("completed_by", TEXT, "what completed it: acknowledgements, response, timeout, error, invalid"),
        _required("requested", TEXTS, "labels waited for, in the order of the request"),
        _required("missing", TEXTS, "those of them that did not come in time"),
        _required("started_at", TIME, "the broker's time of the request"),
        _required("latency_ms", LONG, "from started_at to decided_at, in milliseconds"),
        _required("reply_id", TEXT, "id of the reply: a repeated reply has the same"),
        _optional("reply", TEXT, "JSON: the reply as it was sent; null where none was wanted"),
        _optional("reply_topic", TEXT, "Kafka topic of the reply; null where none was wanted"),
        _required("id", TEXT, "the same as reply_id"),
        _day("decided_at"),
    ]
)

DEAD_LETTERS = StructType(
    [
        _optional("correlation_id", TEXT, "correlation-id, where one could be read"),
        _required("received_at", TIME, "the broker's time of the record"),
        *_written(_optional),
        _required("reason", TEXT, "why the record could not be used"),
        _optional("key", BYTES, "the record's key"),
        _optional("value", BYTES, "the record's value"),
        _required("truncated", BOOLEAN, "whether only the beginning of the value is kept"),
        *_coordinates("record"),
        _required("id", TEXT, "topic-partition-offset"),
        _day("received_at"),
    ]
)

# -- tables of the twin -----------------------------------------------------------------------------------------------

THING_EVENTS = StructType(
    [
        _required("thing_id", TEXT, "namespace:name"),
        _required("batch", LONG, "number of the twin's batch, growing over all its checkpoints"),
        _required("revision", LONG, "the thing's revision after the change: 1, 2, 3, … without a gap"),
        _required("modified_at", TIME, "the broker's time of the command"),
        _required("query_id", TEXT, "id of the twin query that wrote it"),
        _required("action", TEXT, "created, modified, merged or deleted"),
        _required("path", TEXT, "JSON pointer of what was changed"),
        _optional("value", TEXT, "JSON: the event's value; null where something was deleted"),
        _required("created_at", TIME, "when the thing was created (last)"),
        _required("last", BOOLEAN, "whether this is the thing's last change in its batch"),
        _optional("thing", TEXT, "JSON: the whole thing; only where this is its last change in the batch"),
        _required("deleted", BOOLEAN, "whether the thing is gone with this change"),
        _required("visible", BOOLEAN, "whether the thing's content is another than before"),
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
        _required("modified_at", TIME, "the broker's time of the last change"),
        _required("created_at", TIME, "when it was created (last)"),
        _required("deleted", BOOLEAN, "whether it was deleted; created again, it goes on with the next revision"),
        _optional("thing", TEXT, "JSON: thingId, policyId, definition, attributes, features; null once deleted"),
    ]
)

THINGS_SEARCH = StructType(
    [
        _required("thing_id", TEXT, "namespace:name"),
        _required("path", TEXT, "where in the thing, as RQL names it: attributes/location/city"),
        _required("element", INTEGER, "counts the values of a path, of which an array has several"),
        _optional("text", TEXT, "the value, where it is a text"),
        _optional("number", DOUBLE, "the value, where it is a number"),
        _optional("flag", BOOLEAN, "the value, where it is a boolean"),
        _required("value", TEXT, "JSON: the value; {} and [] where nothing is in them"),
    ]
)

# -- tables of publishers ---------------------------------------------------------------------------------------------

MESSAGES = StructType(
    [
        _optional("client", TEXT, "who published it; null where it does not say"),
        _required("received_at", TIME, "the broker's time of the message"),
        _required("batch", LONG, "number of the batch, growing over all checkpoints of the job"),
        _optional("seq", LONG, "the client's sequence number"),
        _required("query_id", TEXT, "id of the persist query that wrote it"),
        _optional("reason", TEXT, "why it was refused; null: it was taken"),
        _optional("subject", TEXT, "the topic that its publisher named"),
        _optional("ttl_ms", LONG, "how long it may wait to be consumed, in milliseconds; null: as long as it takes"),
        _optional("key", BYTES, "the application's key"),
        _optional("value", BYTES, "the message"),
        StructField(
            "headers",
            ArrayType(StructType([StructField("name", TEXT), StructField("value", BYTES)])),
            nullable=True,
            metadata={"comment": "the application's record headers"},
        ),
        *_coordinates("message"),
        _day("received_at"),
    ]
)

PUBLISHERS = StructType(
    [
        _required("client", TEXT, "name of the publisher"),
        _required("batch", LONG, "batch after which this holds; the newest row of a client counts"),
        _required("last_seq", LONG, "everything up to it is stored or refused"),
        _optional("told", LONG, "batch up to which all acks had been sent then; null: none ever waited"),
        _required("query_id", TEXT, "id of the persist query that wrote it"),
        _required("state", TEXT, "JSON: the client's ledger, of which the next batch starts"),
        _optional("acks", TEXT, "JSON: acks of the batch that wait for sync destinations; null: none do"),
    ]
)

DESTINATIONS = StructType(
    [
        _required("destination", TEXT, "its name in the settings"),
        _required("changed_at", TIME, "when"),
        _optional(
            "batch", LONG, "batch of messages up to which it had everything; -1: none; null: not known at a start"
        ),
        _required("mode", TEXT, "sync: persisted waits for it since then; async: it does not"),
        _required("cause", TEXT, "downgrade, upgrade, or start: each start begins as the settings say"),
        _required("age_ms", LONG, "age of the oldest message that it lacked, in milliseconds"),
    ]
)

# -- tables of commands over the messages -----------------------------------------------------------------------------

SUBSCRIPTIONS = StructType(
    [
        _required("batch", LONG, "batch of the query job after which this holds; the newest row counts"),
        _required("position", LONG, "the batch of messages up to which its answers know everything"),
        _required("query_id", TEXT, "id of the streaming query that wrote it"),
        _required("state", TEXT, "JSON: the clients' sessions and subscriptions"),
    ]
)

SOW_DELETES = StructType(
    [
        _required("batch", LONG, "batch of the query job that deleted it"),
        _required("step", LONG, "counts the steps of that batch: what comes later no longer sees the record"),
        _required("partition", INTEGER, "Kafka partition of the record's message"),
        _required("offset", LONG, "Kafka offset of the record's message"),
        _required("subject", TEXT, "the message's topic"),
        _optional("key", BYTES, "the record's key"),
        _required("client", TEXT, "who deleted it"),
        _optional("cid", TEXT, "id of its command"),
        _required("deleted_at", TIME, "the broker's time of the command"),
        _required("query_id", TEXT, "id of the streaming query that wrote it"),
    ]
)

# -- table of the queues ----------------------------------------------------------------------------------------------

DELIVERIES = StructType(
    [
        _required("writer", TEXT, "who wrote the samples: the column client of messages"),
        _required("acknowledged_at", TIME, "the broker's time of the acknowledgement"),
        _required("reader", TEXT, "who has acknowledged them"),
        _required("first", LONG, "number of the first sample: the column seq of messages"),
        _required("last", LONG, "number of the last sample; no two rows of a reader and a writer overlap"),
        _optional("role", TEXT, "the role in which the reader did it"),
        _optional("response", BYTES, "what the reader answered with it"),
        _optional("auto", TEXT, "why they are acknowledged though no code saw them: filtered or replaced"),
        _required("epoch", LONG, "grows with each start of the reader"),
        _required("query_id", TEXT, "id of the settle query that wrote it"),
        _required("batch_id", LONG, "its batch"),
        _required("partition", INTEGER, "Kafka partition of the acknowledgement in the topic app-acks"),
        _required("offset", LONG, "Kafka offset of the acknowledgement in the topic app-acks"),
        _required("id", TEXT, "writer/reader/first"),
        _day("acknowledged_at"),
    ]
)

IGNORED_REPORTS = StructType(
    [
        _required("reason", TEXT, "why it was not used: stale-count, never-delivered, unreadable, ..."),
        _required("received_at", TIME, "the broker's time of the record"),
        _optional("writer", TEXT, "whose samples it was about"),
        _optional("reader", TEXT, "who said it"),
        _optional("first", LONG, "the interval that was not used; null: all that the record said"),
        _optional("last", LONG, "its last number"),
        _optional("detail", TEXT, "what is wrong with a record that cannot be read"),
        _optional("value", BYTES, "the beginning of a record that cannot be read"),
        _required("query_id", TEXT, "id of the settle query that wrote it"),
        _required("batch_id", LONG, "its batch"),
        *_coordinates("record"),
        _required("id", TEXT, "topic-partition-offset-number of what was ignored of the record"),
        _day("received_at"),
    ]
)

QUEUE_EVENTS = StructType(
    [
        _required("message", TEXT, "the message's id in the queue: topic-partition-offset"),
        _required("at", TIME, "when it happened, by the broker's clock"),
        _required("query_id", TEXT, "id of the queue query that wrote it"),
        _required("batch_id", LONG, "its batch"),
        _required("queue", TEXT, "name of the queue"),
        _required("event", TEXT, "delivered, returned, refused (a settlement without effect) or left"),
        _optional("consumer", TEXT, "who got it, gave it back or settled it"),
        _required("count", INTEGER, "how often the message has been delivered"),
        _optional("outcome", TEXT, "left: settled, dead-letter or discarded; refused: the outcome that was wanted"),
        _optional("reason", TEXT, "why it was given back, refused, or left"),
        _optional("topic", TEXT, "Kafka topic of the message; null where the queue does not have it"),
        _optional("partition", INTEGER, "Kafka partition of the message"),
        _optional("offset", LONG, "Kafka offset of the message"),
        _optional("batch", LONG, "its batch in the table messages"),
        _optional("subject", TEXT, "the topic that its publisher named"),
        _optional("received_at", TIME, "the broker's time of the message"),
        _day("at"),
    ]
)

# -- ledger -----------------------------------------------------------------------------------------------------------


def _ledger(required: dict[str, Any], optional: dict[str, Any]) -> Any:
    fields = [StructField(name, kind, nullable=False) for name, kind in required.items()]
    return StructType(fields + [StructField(name, kind, nullable=True) for name, kind in optional.items()])


_COORDINATES = {"topic": TEXT, "partition": INTEGER, "offset": LONG}

LEDGER_SIGNAL = _ledger(
    {"correlation_id": TEXT, "received_at": LONG, "requested_acks": TEXTS, **_COORDINATES},
    {"thing_id": TEXT, "channel": TEXT, "criterion": TEXT, "action": TEXT, "path": TEXT,
     "response_required": BOOLEAN, "timeout_ms": LONG, "headers": TEXT, "value": TEXT},
)  # fmt: skip
LEDGER_ACK = _ledger(
    {"received_at": LONG, "disposition": TEXT, **_COORDINATES, "index": INTEGER},
    {"correlation_id": TEXT, "label": TEXT, "status": INTEGER, "weak": BOOLEAN, "latency_ms": LONG, "payload": TEXT},
)
LEDGER_OUTCOME = _ledger(
    {"correlation_id": TEXT, "status": INTEGER, "completed_by": TEXT, "requested": TEXTS, "missing": TEXTS,
     "started_at": LONG, "decided_at": LONG, "latency_ms": LONG, "reply_id": TEXT},
    {"thing_id": TEXT, "reply": TEXT, "reply_topic": TEXT},
)  # fmt: skip
LEDGER_DEAD_LETTER = _ledger(
    {"reason": TEXT, **_COORDINATES, "received_at": LONG},
    {"correlation_id": TEXT, "key": TEXT, "value": TEXT, "truncated": BOOLEAN},
)
PARTS: dict[str, Any] = {
    "signal": LEDGER_SIGNAL,
    "acks": LEDGER_ACK,
    "outcome": LEDGER_OUTCOME,
    "dead_letter": LEDGER_DEAD_LETTER,
}
"""The parts a ledger record may have; acks is an array of its kind."""

LEDGER = _ledger(
    {"kind": TEXT, "id": TEXT, "query_id": TEXT, "batch_id": LONG},
    {name: ArrayType(part) if name == "acks" else part for name, part in PARTS.items()},
)
"""The JSON of a ledger record. What is not nullable must be there, else the record is malformed."""


@dataclass(frozen=True)
class Table:
    """A table, and the column by which it is partitioned, if any."""

    name: str
    comment: str
    schema: Any
    partition: str | None = PARTITION


@dataclass(frozen=True)
class LedgerTable(Table):
    """A table that archive writes: the part of a ledger record its rows come from, and the column of a row's time."""

    part: str = ""
    time: str = ""


TABLES = {
    table.name: table
    for table in (
        LedgerTable("signals", "One row a request.", SIGNALS, part="signal", time="received_at"),
        LedgerTable(
            "acknowledgements", "One row an acknowledgement.", ACKNOWLEDGEMENTS, part="acks", time="received_at"
        ),
        LedgerTable("outcomes", "One row a decided request.", OUTCOMES, part="outcome", time="decided_at"),
        LedgerTable(
            "dead_letters", "One row a record of no use.", DEAD_LETTERS, part="dead_letter", time="received_at"
        ),
    )
}
"""The tables of the ledger."""

TWIN_TABLES = {
    table.name: table
    for table in (
        Table("thing_events", "One row a change of a thing: the twin's journal.", THING_EVENTS),
        Table("things", "One row a thing, as it is.", THINGS, None),
        Table("things_search", "One row a value within a thing.", THINGS_SEARCH, None),
    )
}
"""The tables of the twin."""

PUBLISHER_TABLES = {
    table.name: table
    for table in (
        Table("messages", "One row a message of a publisher, taken or refused.", MESSAGES),
        Table("publishers", "How far each publisher is, batch by batch.", PUBLISHERS, None),
    )
}
"""The tables of publishers."""

REPLICATION_TABLES = {
    table.name: table
    for table in (Table("destinations", "One row a change of what acknowledgements wait for.", DESTINATIONS, None),)
}
"""The table of sync destinations; there where there are any."""

SETTLE_TABLES = {
    table.name: table
    for table in (
        Table("deliveries", "One row a run of samples that a reader has acknowledged.", DELIVERIES),
        Table("ignored_reports", "One row a report of a reader, or a part of one, of no use.", IGNORED_REPORTS),
    )
}
"""The tables of what readers acknowledge."""

QUERY_TABLES = {
    table.name: table
    for table in (
        Table("subscriptions", "Who subscribes to messages, batch by batch of the query job.", SUBSCRIPTIONS, None),
        Table(
            "sow_deletes", "One row a message that sow_delete took out of the state of the world.", SOW_DELETES, None
        ),
    )
}
"""The tables of commands over the messages."""

QUEUE_TABLES = {
    table.name: table
    for table in (Table("queue_events", "One row an event of a message in a work queue.", QUEUE_EVENTS),)
}
"""The table of the work queues."""

ALL_TABLES: dict[str, Table] = {
    **TABLES,
    **TWIN_TABLES,
    **PUBLISHER_TABLES,
    **REPLICATION_TABLES,
    **SETTLE_TABLES,
    **QUEUE_TABLES,
    **QUERY_TABLES,
}
