"""The Delta tables: every column's name, type and meaning, in one place.

JSON inside a row (headers, values, payloads, replies) is text that holds JSON. Times are UTC.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, StructField, StructType

from ackstream.lake.catalog import CATALOG
from ackstream.lake.columns import (
    BOOLEAN,
    BYTES,
    DOUBLE,
    INTEGER,
    LONG,
    TEXT,
    TEXTS,
    TIME,
    Table,
    coordinates,
    day,
    optional,
    required,
    schema,
    written,
)
from ackstream.protocol import dispositions

if TYPE_CHECKING:
    import pyarrow as pa

# -- tables -----------------------------------------------------------------------------------------------------------

SIGNALS = schema(
    required("correlation_id", TEXT, "correlation-id of the request"),
    required("received_at", TIME, "broker time of the request"),
    *written(),
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
    *coordinates("request"),
    required("id", TEXT, "reply-id of the request; its outcome has the same id"),
    day("received_at"),
)

ACKNOWLEDGEMENTS = schema(
    optional("correlation_id", TEXT, "correlation-id of the request it belongs to"),
    required("received_at", TIME, "broker time of the acknowledgement"),
    *written(),
    optional("label", TEXT, "usually party:step; of a response twin-persisted or live-response; null of an error"),
    optional("status", INTEGER, "HTTP status: below 400 is a success, 408 a timeout"),
    required("disposition", TEXT, dispositions.explained(dispositions.ACKNOWLEDGEMENTS)),
    optional("latency_ms", LONG, "milliseconds from the request; null if no request was open for it, as of late ones"),
    optional("reason", TEXT, "why it is invalid, such as another thing than the request's"),
    optional("weak", BOOLEAN, "issued by the system for a subscriber that does not receive the signal"),
    optional("payload", TEXT, "JSON: payload of the acknowledgement, or a reference to it; null if it has none"),
    *coordinates("acknowledgement"),
    required("index", INTEGER, "position within an aggregated acknowledgement, else 0"),
    required("id", TEXT, "topic-partition-offset-index"),
    day("received_at"),
)

OUTCOMES = schema(
    required("correlation_id", TEXT, "correlation-id of the request"),
    required("decided_at", TIME, "when the request was decided"),
    *written(),
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
    day("decided_at"),
)

DEAD_LETTERS = schema(
    optional("correlation_id", TEXT, "correlation-id, if one could be read"),
    required("received_at", TIME, "broker time of the record"),
    *written(optional),
    required("reason", TEXT, "why the record is unusable"),
    optional("key", BYTES, "key of the record"),
    optional("value", BYTES, "value of the record"),
    required("truncated", BOOLEAN, "whether only the beginning of the value is stored"),
    *coordinates("record"),
    required("id", TEXT, "topic-partition-offset"),
    day("received_at"),
)

AUDIT = schema(
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
    day("received_at"),
)

# -- tables of the twin -----------------------------------------------------------------------------------------------

THING_EVENTS = schema(
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
    *coordinates("command"),
    day("modified_at"),
)

THINGS = schema(
    required("thing_id", TEXT, "namespace:name"),
    required("batch", LONG, "batch of the last change, as in thing_events"),
    required("revision", LONG, "number of changes so far"),
    required("modified_at", TIME, "broker time of the last change"),
    required("created_at", TIME, "when it was last created"),
    required("deleted", BOOLEAN, "whether it is deleted; if it is created again, revisions continue"),
    optional("thing", TEXT, "JSON: thingId, policyId, definition, attributes, features; null once deleted"),
)

THINGS_SEARCH = schema(
    required("thing_id", TEXT, "namespace:name"),
    required("path", TEXT, "path within the thing, as in RQL: attributes/location/city"),
    required("element", INTEGER, "index among the values of the path; an array has several"),
    optional("text", TEXT, "the value, if it is a text"),
    optional("number", DOUBLE, "the value, if it is a number"),
    optional("flag", BOOLEAN, "the value, if it is a boolean"),
    required("value", TEXT, "JSON: the value; {} or [] if empty"),
)

# -- tables of publishers ---------------------------------------------------------------------------------------------

_HEADERS = ArrayType(StructType([StructField("name", TEXT), StructField("value", BYTES)]))
MESSAGES = schema(
    optional("client", TEXT, "name of the publisher; null if it did not give one"),
    required("received_at", TIME, "broker time of the message"),
    required("batch", LONG, "number of the batch, which grows across checkpoints of the job"),
    optional("seq", LONG, "sequence number given by the publisher"),
    required("query_id", TEXT, "id of the persist query that wrote it"),
    optional("reason", TEXT, "why it was refused; null if it was accepted"),
    optional("subject", TEXT, "topic named by the publisher"),
    optional("ttl_ms", LONG, "time to live until it is consumed, in milliseconds; null: unlimited"),
    optional("key", BYTES, "key given by the publisher"),
    optional("value", BYTES, "value of the message"),
    optional("headers", _HEADERS, "record headers given by the publisher"),
    *coordinates("message"),
    day("received_at"),
)

PUBLISHERS = schema(
    required("client", TEXT, "name of the publisher"),
    required("batch", LONG, "batch after which this row holds; the newest row of a client counts"),
    required("last_seq", LONG, "sequence number up to which everything is stored or refused"),
    optional("told", LONG, "batch up to which all acks had been sent by then; null in rows of earlier releases"),
    required("query_id", TEXT, "id of the persist query that wrote it"),
    required("state", TEXT, "JSON: ledger of the publisher, from which the next batch continues"),
    optional("acks", TEXT, "JSON: acks of the batch about durability, which are sent once they are due; null: none"),
)

DESTINATIONS = schema(
    required("destination", TEXT, "name of the destination in the settings"),
    required("changed_at", TIME, "when the mode changed"),
    optional("batch", LONG, "batch up to which it had all messages; -1: none; null: unknown at a start"),
    required("mode", TEXT, "sync: persisted waits for it from then on; async: it does not"),
    required("cause", TEXT, "downgrade, upgrade, or start: each start begins as the settings say"),
    required("age_ms", LONG, "age of the oldest message it lacked, in milliseconds"),
)

# -- tables of commands over the messages -----------------------------------------------------------------------------

SUBSCRIPTIONS = schema(
    required("batch", LONG, "batch of the query job after which this row holds; the newest row counts"),
    required("position", LONG, "batch of messages up to which its results are complete"),
    required("query_id", TEXT, "id of the streaming query that wrote it"),
    required("state", TEXT, "JSON: sessions and subscriptions of the clients"),
)

SOW_DELETES = schema(
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

DELIVERIES = schema(
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
    day("acknowledged_at"),
)

IGNORED_REPORTS = schema(
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
    *coordinates("record"),
    required("id", TEXT, "topic-partition-offset-number, counting what was ignored of the record"),
    day("received_at"),
)

QUEUE_EVENTS = schema(
    required("message", TEXT, "id of the message in the queue: topic-partition-offset"),
    required("at", TIME, "broker time of the event"),
    required("query_id", TEXT, "id of the queues query that wrote it"),
    required("batch_id", LONG, "batch of that query"),
    required("queue", TEXT, "name of the queue"),
    required("event", TEXT, "delivered, returned, refused (a settlement without effect) or left"),
    optional("consumer", TEXT, "consumer that received, returned or settled it"),
    required("count", INTEGER, "number of deliveries so far"),
    optional("outcome", TEXT, "left: settled, dead-letter or discarded; refused: the requested outcome"),
    optional("reason", TEXT, "why it was returned or refused, or why it left"),
    optional("topic", TEXT, "Kafka topic of the message; null if the queue does not have it"),
    optional("partition", INTEGER, "Kafka partition of the message"),
    optional("offset", LONG, "Kafka offset of the message"),
    optional("batch", LONG, "batch of the message in the table messages"),
    optional("subject", TEXT, "topic named by the publisher"),
    optional("received_at", TIME, "broker time of the message"),
    day("at"),
)

# -- all tables --------------------------------------------------------------------------------------------------------

_SCHEMAS = {
    "signals": SIGNALS,
    "acknowledgements": ACKNOWLEDGEMENTS,
    "outcomes": OUTCOMES,
    "dead_letters": DEAD_LETTERS,
    "audit": AUDIT,
    "thing_events": THING_EVENTS,
    "things": THINGS,
    "things_search": THINGS_SEARCH,
    "messages": MESSAGES,
    "publishers": PUBLISHERS,
    "destinations": DESTINATIONS,
    "deliveries": DELIVERIES,
    "ignored_reports": IGNORED_REPORTS,
    "queue_events": QUEUE_EVENTS,
    "subscriptions": SUBSCRIPTIONS,
    "sow_deletes": SOW_DELETES,
}

ALL_TABLES = {
    name: Table(name, entry.comment, _SCHEMAS[name], entry.writer, derived=entry.derived)
    for name, entry in CATALOG.items()
}
TABLES = {name: table for name, table in ALL_TABLES.items() if table.writer == "archive"}
"""The tables of the ledger."""


@cache
def arrow_schema(name: str) -> pa.Schema:
    """Return the columns of a table as Arrow has them."""
    return to_arrow_schema(ALL_TABLES[name].schema, timezone="UTC")
