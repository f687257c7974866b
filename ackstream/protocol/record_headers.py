"""Kafka record headers: the names of all, compared exactly, the headers of a reply, and the trace of a message.

The trace (W3C Trace Context) is a record header for agents and a JSON header for Ditto. A request's record header
becomes the header of the message unless the message has one. So it is stored with the request, and a reply has it in a
record header again.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

T = TypeVar("T")

CORRELATION_ID: Final = "correlation-id"
REPLY_ID: Final = "reply-id"
"""Id of a reply. In an answer of the twin: the id of the reply to the command that it answers."""
REPLY_TO: Final = "reply-to"
ORIGINATOR_SIGNATURE: Final = "originator-signature"
"""Proof that a gateway or connection has established the sender of a request."""
STATUS: Final = "status"
COMPLETED_BY: Final = "completed-by"
UPDATE: Final = "progress"
"""``completed-by`` of a record before the reply, with the acknowledgements that have come since the last one."""
CONTENT_TYPE: Final = "content-type"
SPRING_CORRELATION_ID: Final = "kafka_correlationId"
SPRING_REPLY_TOPIC: Final = "kafka_replyTopic"
SPRING_REPLY_PARTITION: Final = "kafka_replyPartition"
TRACEPARENT: Final = "traceparent"
LABEL: Final = "label"
"""The label of an acknowledgement that is a record of any kind."""
ACK_QUORUM: Final = "ack-quorum"
"""How many of the requested acknowledgements must be positive; also a header of messages, not one of Ditto's."""
EXTEND: Final = "extend"
"""How much longer a party that reports progress may take; also a header of messages."""
PROGRESS: Final = "progress"
"""``true``: the requester gets acknowledgements as they arrive; also a header of messages."""
AMEND: Final = "amend"
"""How long after a timeout a request may still succeed: ``true``, or a duration; also a header of messages."""
REPLY_VERSION: Final = "reply-version"
"""``2`` in the second reply to a request, which was amended; in an update the number of the batch that wrote it."""
CANCEL: Final = "cancel"
"""The reply-id of the request with the correlation-id of the record, which has no value, that is to be cancelled."""
CE_ID: Final = "ce_id"
CE_REQUESTED_ACKS: Final = "ce_requestedacks"
CE_TIMEOUT: Final = "ce_timeout"
"""The attributes of a CloudEvent that requests acknowledgements, as named in Kafka's binary mode."""

REASON: Final = "reason"
PARTITION: Final = "partition"
OFFSET: Final = "offset"
"""With ``topic`` and ``partition`` the coordinates of a record that is not repeated."""
QUEUE: Final = "queue"
MESSAGE: Final = "message"
"""Id of a message in its queue."""
DELIVERIES: Final = "deliveries"
REDRIVEN_FROM: Final = "redriven-from"
"""Id of the dead letter of which a record is the copy: ``topic-partition-offset``, after its queue and a slash."""
FOR_QUEUE: Final = "for-queue"
"""The one queue that takes a redriven message; no reader, query or other queue gets it."""

CLIENT: Final = "client"
SEQ: Final = "seq"
COMMAND: Final = "command"
CID: Final = "cid"
ACK: Final = "ack"
TOPIC: Final = "topic"
TTL: Final = "ttl"
FIRST: Final = "first"
ACK_CONFLATION: Final = "ack-conflation"
SESSION: Final = "publisher-session"
STORE: Final = "publisher-store"
"""In a logon: the store of the publisher's unacknowledged messages; without one the process loses them."""
WINDOW: Final = "publish-window"
ACK_IMMEDIATELY: Final = "ack-immediately"
KEY: Final = "key"

PUBLISHER: Final = frozenset(
    {CLIENT, SEQ, COMMAND, CID, ACK, TOPIC, TTL, FIRST, ACK_CONFLATION, SESSION, STORE, WINDOW, ACK_IMMEDIATELY, KEY}
)
"""Headers of the topic ``messages`` that belong to the service; all others are the application's."""

REQUESTED_ACKS: Final = "requested-acks"
ENTITY_ID: Final = "ditto-entity-id"
DMQ_ELIGIBLE: Final = "dmq-eligible"
"""``false``: a queue that gives the message up discards it (Solace S23)."""
BARRIER: Final = "barrier"
"""``true``: the message waits for all earlier ones of its queue and goes to all consumers (AMPS A36)."""
ROUTED_BY: Final = "routed-by"
"""Names of the routes that passed the message on, comma-separated."""
ORIGINAL_WRITER: Final = "original-writer"
ORIGINAL_SEQ: Final = "original-seq"

ID: Final = "id"
SUB_ID: Final = "sub_id"
BOOKMARK: Final = "bookmark"
TIMESTAMP: Final = "timestamp"
FILTER: Final = "filter"
OPTIONS: Final = "options"
ORDER_BY: Final = "order_by"
SOW_KEYS: Final = "sow_keys"
TOP_N: Final = "top_n"
OMITTED: Final = "omitted"
"""In a copy of a message that would be too large for Kafka: the bytes left out, which the table has."""
APPLICATION: Final = "header-"
"""Prefix of the application's own headers in a query's results."""

OWNER: Final = "owner"
"""Process that claims the lease of a job."""


def reply_record_headers(field: Callable[[str], T], content_type: T) -> tuple[dict[str, T], dict[str, T]]:
    """Return the record headers of a reply, in order: those of every reply, then the optional ones."""
    # Optional ones without a value are left out: two repeat headers of the request. ``field``: returns a
    # field of the reply by its name: a column of Spark, or the value.
    own = {
        CORRELATION_ID: field("key"),
        REPLY_ID: field("reply_id"),
        STATUS: field("status"),
        COMPLETED_BY: field("completed_by"),
        CONTENT_TYPE: content_type,
    }
    repeated = {SPRING_CORRELATION_ID: field("spring_correlation"), TRACEPARENT: field("traceparent")}
    return own, repeated | {REPLY_VERSION: field("version")}


def of_dead_letter(reason: str, topic: str, partition: int, offset: int) -> list[tuple[str, str]]:
    """Return the record headers of a dead letter: the reason, and the coordinates of the unusable record."""
    return [(REASON, reason), (TOPIC, topic), (PARTITION, str(partition)), (OFFSET, str(offset))]


_COORDINATES = re.compile(r"\(([^() ]+-\d+-\d+)\)$")


def letter_id(headers: Mapping[str, str]) -> str:
    """Return the id under which the tables have a dead letter of a queue or of correlate; empty: they do not."""
    if QUEUE in headers:
        return f"{headers[QUEUE]}/{headers.get(MESSAGE)}"
    # correlate appends the coordinates of the unusable record
    found = _COORDINATES.search(headers.get(REASON, ""))
    return found[1] if found else ""


_VALUE = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")
_IN_JSON = re.compile(b'"traceparent":"(%b)"' % _VALUE.pattern)


def checked_trace(traceparent: bytes | None) -> bytes | None:
    """Return a trace as it was received; the standard ignores a malformed one."""
    return traceparent if traceparent is not None and _VALUE.fullmatch(traceparent) is not None else None


def trace_id(text: str) -> str | None:
    """Return the trace-id in a text that is one, or a whole ``traceparent``; else ``None``."""
    text = text.strip().lower()
    found = text.split("-")[1] if checked_trace(text.encode()) else text
    return found if _ID.fullmatch(found) else None


def with_trace(headers: dict[str, Any], traceparent: bytes | None) -> dict[str, Any]:
    """Return the headers of a message with the trace of its record header, unless they have one of their own."""
    trace = checked_trace(traceparent)
    if trace is None or any(name.lower() == TRACEPARENT for name in headers):
        return headers
    return {**headers, TRACEPARENT: trace.decode()}


def trace_of(headers: bytes) -> bytes | None:
    """Return the trace in headers in compact JSON; ``None`` if it is absent or malformed."""
    # nearly all have none
    found = _IN_JSON.search(headers) if b'"traceparent"' in headers else None
    return None if found is None else found[1]
