"""The topics of requests: commands, acknowledgements, replies, events, and what is recorded of them."""

from __future__ import annotations

from typing import Any

from ackstream.contract.envelopes import SCHEMAS
from ackstream.contract.formats import DITTO, Example, RecordFormat, TopicFormat
from ackstream.protocol.ditto.labels import Claim
from ackstream.protocol.ledger import AckRow, AuditRow, LedgerRecord, OutcomeRow, reply_id
from ackstream.protocol.record_headers import (
    COMPLETED_BY,
    CONTENT_TYPE,
    CORRELATION_ID,
    ORIGINATOR_SIGNATURE,
    REPLY_ID,
    REPLY_TO,
    SPRING_CORRELATION_ID,
    SPRING_REPLY_PARTITION,
    SPRING_REPLY_TOPIC,
    STATUS,
)
from ackstream.protocol.traces import TRACEPARENT

_THING, _ID = "org.acme/lamp-7/things", "c-1"
_NAMED = {CORRELATION_ID: _ID}
_REPLY_ID = reply_id(_ID, "signals", 3, 1042)
_KEY = "The id of the thing, `namespace:name`: what concerns a thing is in one partition."
_POWER = "/attributes/power"


def _ditto(name: str, schema: str, about: str, *examples: Example, headers: tuple[str, ...] = ()) -> RecordFormat:
    return RecordFormat(
        name=name, about=about, value=SCHEMAS[schema], schema=schema, content_type=DITTO,
        optional=(CORRELATION_ID, *headers), examples=examples,
    )  # fmt: skip


def _envelope(topic: str, path: str = "/", value: Any = None, **parts: Any) -> dict[str, Any]:
    found = {"topic": f"{_THING}/{topic}", "headers": parts.pop("headers", _NAMED), "path": path}
    return found | ({} if value is None else {"value": value}) | parts


_SPRING = (SPRING_REPLY_TOPIC, SPRING_REPLY_PARTITION, SPRING_CORRELATION_ID)
_ASKED = (REPLY_TO, *_SPRING, ORIGINATOR_SIGNATURE, TRACEPARENT)
_ASKING = {"correlation-id": _ID, "requested-acks": ["fleet:received", "fleet:done"], "timeout": "10s"}
_ENTRY = {"status": 200, "headers": {"correlation-id": _ID, "response-required": False}}
_LATE = {
    "status": 408,
    "error": "acknowledgement:request.timeout",
    "message": "The acknowledgement request reached the specified timeout of 10,000ms.",
    "description": "Try increasing the timeout and make sure that the requested acknowledgement is sent back in time.",
}
_AGGREGATE = _envelope(
    "twin/acks",
    value={"fleet:received": _ENTRY, "fleet:done": {**_ENTRY, "status": 408, "payload": _LATE}},
    status=424,
    headers={"correlation-id": _ID, "timeout": "10s", "response-required": False, "content-type": "application/json"},
)
_NOT_FOUND = {
    "status": 404,
    "error": "things:thing.notfound",
    "message": "The Thing with ID 'org.acme:lamp-7' could not be found or requester had insufficient permissions to "
    "access it.",
}

SIGNALS = TopicFormat(
    "Commands and messages, each of which may ask for a response and for acknowledgements.",
    _KEY,
    (
        _ditto(
            "command",
            "Command",
            "A command: the twin carries it out, or, live, the device. The reply is on `replies`.",
            Example("Waits for two parties.", _envelope("twin/commands/modify", _POWER, "on", headers=_ASKING), _NAMED),
            Example("Asks for the thing.", _envelope("twin/commands/retrieve"), _NAMED),
            headers=_ASKED,
        ),
        _ditto(
            "message",
            "ThingMessage",
            "A message, which the device answers.",
            Example("To the device.", _envelope("live/messages/dim", "/inbox/messages/dim", {"to": 30}), _NAMED),
            headers=_ASKED,
        ),
    ),
)

_RESPONSE = _envelope("live/commands/modify", _POWER, status=204)
_OF_DEVICE = (
    _ditto("response", "CommandResponse", "The response to a live command.", Example("Done.", _RESPONSE, _NAMED)),
    _ditto(
        "message-response",
        "MessageResponse",
        "The response to a message.",
        Example("Done.", _envelope("live/messages/dim", "/inbox/messages/dim", "dimmed", status=200), _NAMED),
    ),
    _ditto(
        "error",
        "ErrorResponse",
        "The error that ends a request.",
        Example("Not there.", _envelope("twin/errors", value=_NOT_FOUND, status=404), _NAMED),
    ),
)

ACKS = TopicFormat(
    "What parties answer: acknowledgements under their labels, responses and errors of devices.",
    _KEY,
    (
        _ditto(
            "acknowledgement",
            "Acknowledgement",
            "A party has acknowledged a request; statuses from 200 to 299 are successes.",
            Example("Done.", _envelope("twin/acks/fleet:done", status=200), _NAMED),
            Example("Failed.", _envelope("twin/acks/fleet:done", value="no power", status=503), _NAMED),
        ),
        _ditto("acknowledgements", "Aggregate", "Several of them at once.", Example("Two.", _AGGREGATE, _NAMED)),
        *_OF_DEVICE,
    ),
)

_OF_REQUEST = {REPLY_ID: _REPLY_ID}
TWIN_ACKS = TopicFormat(
    "What the twin answers; an ACL lets it alone write here.",
    _KEY,
    (
        _ditto(
            "response",
            "CommandResponse",
            "The response to a command, which counts as `twin-persisted`; `reply-id` names the request.",
            Example("Done.", _envelope("twin/commands/modify", _POWER, status=204), _NAMED | _OF_REQUEST),
            headers=(REPLY_ID,),
        ),
        _ditto(
            "error",
            "ErrorResponse",
            "The error that ends a request.",
            Example("Not there.", _envelope("twin/errors", value=_NOT_FOUND, status=404), _NAMED | _OF_REQUEST),
            headers=(REPLY_ID,),
        ),
        _ditto(
            "acknowledgements",
            "Aggregate",
            "`search-persisted`: the change is in the search index.",
            Example(
                "Indexed.", _envelope("twin/acks", value={"search-persisted": {"status": 204}}, status=204), _NAMED
            ),
            headers=(REPLY_ID,),
        ),
    ),
)

_REPLIED = (CORRELATION_ID, REPLY_ID, STATUS, COMPLETED_BY, CONTENT_TYPE)


def _reply(name: str, schema: str, about: str, envelope: dict[str, Any], completed_by: str) -> RecordFormat:
    headers = {**_NAMED, REPLY_ID: _REPLY_ID, STATUS: str(envelope["status"]), COMPLETED_BY: completed_by}
    return RecordFormat(
        name=name, about=about, value=SCHEMAS[schema], schema=schema, content_type=DITTO,
        required=_REPLIED, optional=(SPRING_CORRELATION_ID, TRACEPARENT),
        examples=(Example(about, envelope, headers | {CONTENT_TYPE: DITTO}),),
    )  # fmt: skip


REPLIES = TopicFormat(
    "The answer to each request that requires a response; it may come twice, with one `reply-id` and the same bytes.",
    "The correlation-id.",
    (
        _reply("acknowledgements", "Aggregate", "What was acknowledged; 408 for missing labels.", _AGGREGATE,
               "timeout"),
        _reply("response", "CommandResponse", "The response to a command.",
               _envelope("twin/commands/modify", _POWER, status=204), "response"),
        _reply("message-response", "MessageResponse", "The response to a message.",
               _envelope("live/messages/dim", "/inbox/messages/dim", "dimmed", status=200), "response"),
        _reply("error", "ErrorResponse", "An error: of the twin or a device, of an invalid request, a timeout.",
               _envelope("twin/errors", value=_NOT_FOUND, status=404), "error"),
    ),
)  # fmt: skip

EVENTS = TopicFormat(
    "What has changed: events of the twin, and those that devices send themselves.",
    _KEY,
    (
        _ditto(
            "event",
            "ThingEvent",
            "A part of a thing has been created, modified, merged or deleted.",
            Example(
                "Modified.",
                _envelope("twin/events/modified", _POWER, "on", revision=42, timestamp="2026-01-01T12:00:00Z"),
                _NAMED,
            ),
        ),
    ),
)

_ROW = AckRow(
    correlation_id=_ID, label="fleet:received", status=200, weak=False, received_at=1_767_268_800_120, latency_ms=120,
    disposition="accepted", topic="acks", partition=3, offset=977, index=0,
)  # fmt: skip
_OUTCOME = OutcomeRow(
    _ID, "org.acme:lamp-7", 424, "timeout", ("fleet:received", "fleet:done"), ["fleet:done"], 1_767_268_800_000,
    1_767_268_810_001, 10_001, _REPLY_ID, "replies",
)  # fmt: skip
_DECIDED = LedgerRecord("outcome", _REPLY_ID, "8c1f0e4a-6d0e-4c33-9d6d-0d1a5b1c9a55", 17, acks=[_ROW], outcome=_OUTCOME)

_REFUSED = AuditRow(
    correlation_id=_ID, received_at=1_767_268_800_000, event="command", subject="user:ada", roles=("operators",),
    address="192.0.2.7", method="PUT", command="modify", thing_id="org.acme:lamp-7", path=_POWER, allowed=False,
    count=1, status=403, reason="WRITE",
)  # fmt: skip

LEDGER = TopicFormat(
    "One record per decision, from which the tables are made.",
    "The correlation-id; of a dead letter without one, topic, partition and offset.",
    (
        RecordFormat(
            name="decision",
            about="The request, its acknowledgements, its outcome, a dead letter: one or more of them.",
            value=LedgerRecord,
            examples=(Example("An outcome.", _DECIDED),),
        ),
    ),
)

AUDIT = TopicFormat(
    "Who did or was refused what at a gateway, in the form of the ledger.",
    "The run of the gateway.",
    (
        RecordFormat(
            name="entry",
            about="What someone did, or was refused.",
            value=LedgerRecord,
            examples=(Example("A refused command.", LedgerRecord("audit", "5f0c-1", "5f0c", 1, audit=_REFUSED)),),
        ),
    ),
)

DECLARATIONS = TopicFormat(
    "Who may issue a label, and until when: the earliest live claim wins.",
    "The claim: any text of its own, the same in each renewal.",
    (
        RecordFormat(
            name="claim",
            about="Claims labels, or renews the claim.",
            value=Claim,
            examples=(Example("Shared by a group, for 30 s.", Claim(frozenset({"fleet:done"}), "lamps")),),
        ),
        RecordFormat(name="release", about="Ends the claim at once: no value.", examples=(Example(""),)),
    ),
)
