"""The records that the twin sends: answers to commands, events of changes, acknowledgements of the index.

Source of the rules: Eclipse Ditto, ``ThingModifyCommandResponse`` and ``ThingEvent`` in its protocol adapters, ditto.md
8 and 9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from ackstream.jobs.twin.changes import instant
from ackstream.protocol.ditto.acknowledgements import Acknowledgement
from ackstream.protocol.ditto.aggregates import write_acks
from ackstream.protocol.ditto.envelopes import JSON_CONTENT_TYPE, Envelope, encode, raw
from ackstream.protocol.ditto.headers import (
    CONTENT_TYPE,
    CORRELATION_ID,
    REQUESTED_ACKS,
    RESPONSE_REQUIRED,
    WEAK_ACK,
)
from ackstream.protocol.ditto.labels import BUILT_IN, SEARCH_PERSISTED
from ackstream.protocol.ditto.topics import TopicPath

if TYPE_CHECKING:
    from ackstream.jobs.twin.changes import CommandResult
    from ackstream.protocol.ditto.requests import Request

EVENTS, ACKS = "events", "twin-acks"
ETAG, ENTITY_REVISION = "etag", "entity-revision"


class TwinMessage(msgspec.Struct, frozen=True, gc=False):
    """A record to send once the journal has the batch; ``topic`` is :data:`EVENTS` or :data:`ACKS`.

    ``reply_id`` is that of the reply to the command, for an answer that is awaited: other commands may have the same
    correlation-id.
    """

    topic: str
    key: str
    value: bytes
    correlation_id: str
    reply_id: str | None = None

    @classmethod
    def of(cls, topic: str, request: Request, envelope: Envelope, reply_id: str | None = None) -> TwinMessage:
        """Address an envelope to the thing and the requester of a request."""
        return cls(topic, request.thing_id or "", encode(envelope), request.headers[CORRELATION_ID], reply_id)


def response(
    command: Envelope, request: Request, status: int, value: Any, *, revision: int | None = None, tag: str | None = None
) -> Envelope:
    """Return the response to a successful command or query: its own topic and path, with a status.

    :param revision: of the thing; a query over many things has neither that nor a tag
    """
    headers = {
        ENTITY_REVISION: revision,
        ETAG: tag,
        RESPONSE_REQUIRED: False,
        CONTENT_TYPE: None if value is UNSET else JSON_CONTENT_TYPE,
    }
    return Envelope(
        command.topic,
        request.headers | {name: header for name, header in headers.items() if header is not None},
        command.path or "/",
        UNSET if value is UNSET else raw(value),
        status=status,
    )


def event(command: Envelope, request: Request, result: CommandResult) -> Envelope:
    """Return the event of a change; its requested acknowledgements are those that subscribers issue.

    If none of the requested ones is left, the header is omitted; an explicit ``[]`` stays.
    """
    topic = command.topic
    custom = [label for label in request.awaited if label not in BUILT_IN]
    acks = {REQUESTED_ACKS: custom} if custom or not request.awaited else {}
    return Envelope(
        TopicPath(topic.namespace, topic.entity, "things", "twin", "events", result.event),
        request.headers | {RESPONSE_REQUIRED: False} | acks,
        command.path or "/",
        UNSET if result.change is UNSET else raw(result.change),
        revision=result.thing.revision,
        timestamp=instant(result.thing.modified),
    )


def search_persisted(thing_id: str, correlation_id: str, reply_id: str, *, visible: bool | None) -> TwinMessage:
    """Return the acknowledgement that a change is in the search index.

    :param reply_id: of the reply to the command that made the change
    :param visible: whether the change is visible in the index; if not, the acknowledgement is a weak one; ``None``:
        indexing failed
    """
    status = {None: 500, True: 204, False: 200}[visible]
    ack = Acknowledgement(SEARCH_PERSISTED, status, headers={WEAK_ACK: True} if visible is False else {})
    envelope = write_acks([ack], thing_id=thing_id, channel="twin", headers={CORRELATION_ID: correlation_id})
    return TwinMessage(ACKS, thing_id, encode(envelope), correlation_id, reply_id)
