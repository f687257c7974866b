"""Record headers: their values, UTF-8 text unless it says otherwise. Of a repeated name the last one counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from ackstream.protocol import record_headers as names
from ackstream.protocol.messages import MAX_CLIENT_CHARACTERS, AckType
from ackstream.protocol.traces import TRACEPARENT

if TYPE_CHECKING:
    from ackstream.contract.formats import Json, RecordFormat

_NUMBER = "^[0-9]{1,19}$"
_ACKS = "|".join(get_args(AckType))


def _text(about: str, **rules: object) -> Json:
    return {"type": "string", "description": about, **rules}


def _bytes(about: str) -> Json:
    return {"type": "string", "description": f"{about} Bytes, here as base64.", "contentEncoding": "base64"}


HEADERS: dict[str, Json] = {
    names.CORRELATION_ID: _text("The id of the request: at most 1,024 bytes.", minLength=1),
    names.REPLY_ID: _text(
        "The id of the reply: a hash of the correlation-id and of topic, partition and offset of the request. A reply "
        "that arrives twice has the same one.",
        pattern="^[0-9a-f]{32}$",
    ),
    names.REPLY_TO: _text("The topic for the reply: `replies`, or one that `correlate.reply_topics` allows."),
    names.ORIGINATOR_SIGNATURE: _bytes("HMAC-SHA256 by which correlate believes the header `ditto-originator`."),
    names.STATUS: _text("The HTTP status of the reply.", pattern="^[1-5][0-9]{2}$"),
    names.COMPLETED_BY: _text(
        "Why the request ended.", enum=["acknowledgements", "response", "timeout", "error", "invalid"]
    ),
    names.CONTENT_TYPE: _text("The media type of the value."),
    names.SPRING_CORRELATION_ID: _bytes("Spring's correlation-id, which the reply repeats."),
    names.SPRING_REPLY_TOPIC: _text("As `reply-to`, from Spring."),
    names.SPRING_REPLY_PARTITION: _bytes("The partition of that topic for the reply: four bytes, the highest first."),
    TRACEPARENT: _text(
        "The trace that the request belongs to (W3C Trace Context); its reply repeats it.",
        pattern="^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$",
    ),
    names.REASON: _text("Why the record was given up."),
    names.CLIENT: _text("The name of the publisher.", minLength=1, maxLength=MAX_CLIENT_CHARACTERS),
    names.SEQ: _text("The number of the message, or the last one that a command is about.", pattern=_NUMBER),
    names.COMMAND: _text("The command, or the kind of a result."),
    names.CID: _text("The id of the command, which its answers repeat.", maxLength=1024),
    names.ACK: _text(
        "The acknowledgements that are requested, separated by commas; `none` requests nothing.",
        pattern=rf"^ *(?:{_ACKS}|none|)(?: *, *(?:{_ACKS}|none|))* *$",
    ),
    names.TOPIC: _text("The topic of the message within the log; no topic of Kafka.", maxLength=1024),
    names.TTL: _text("How long the message is good for, in milliseconds.", pattern=_NUMBER),
    names.FIRST: _text("The first number that a command is about.", pattern=_NUMBER),
    names.ACK_CONFLATION: _text("How long merged acknowledgements may wait, such as `250ms` or `5s`."),
    names.SESSION: _text(
        "The session of the publisher, which its logon begins; any text that no other session has.", maxLength=64
    ),
    names.WINDOW: _text("How many messages may be unacknowledged: each third is acknowledged.", pattern=_NUMBER),
    names.ACK_IMMEDIATELY: _text("Acknowledge with the batch that stores the message.", enum=["true", "false"]),
    names.KEY: _bytes("The application's own key of the message."),
    names.ID: _text("The id of the result; one that arrives twice has the same."),
    names.SUB_ID: _text("The subscription."),
    names.BOOKMARK: _text("A position in the log: EPOCH, NOW, MOST_RECENT, that of a message, or a range of these."),
    names.TIMESTAMP: _text("When the broker stored the message, in epoch milliseconds.", pattern=_NUMBER),
    names.FILTER: _text("A condition over the message, such as `/price > 10 AND /state = 'open'`."),
    names.OPTIONS: _text("Words, separated by commas: `replace`, `ack_conflation=1s`, `heartbeat=10s`."),
    names.ORDER_BY: _text("Paths, separated by commas, such as `/price DESC,/name`."),
    names.SOW_KEYS: _text("Keys of records, separated by commas."),
    names.TOP_N: _text("The maximum number of records.", pattern="^[0-9]{1,18}$"),
    names.OMITTED: _text("The bytes that are left out, because the copy would be too large.", pattern=_NUMBER),
    "requested-acks": _text("Labels that a reader acknowledges on `acks`, as a JSON array.", pattern=r"^\["),
    "ditto-entity-id": _text("The thing of those acknowledgements, such as `thing:org.acme:lamp`."),
    "owner": _text("Host and process that wrote the record, for people."),
    "queue": _text("The queue that the message left."),
    "message": _text("The id of the message in the queue."),
    "deliveries": _text("How often the message was delivered.", pattern=_NUMBER),
    "partition": _text("The partition of the unusable record.", pattern=_NUMBER),
    "offset": _text("The offset of the unusable record.", pattern=_NUMBER),
}


def of_record(one: RecordFormat) -> Json:
    """Return the schema of the headers of a record; others than those it names are the application's own."""
    properties = {name: {**HEADERS[name], "const": text} for name, text in one.fixed.items()}
    properties |= {name: HEADERS[name] for name in (*one.required, *one.optional)}
    found = {"type": "object", "required": [*one.fixed, *one.required], "properties": properties}
    return found | {"not": {"required": [one.absent]}} if one.absent else found
