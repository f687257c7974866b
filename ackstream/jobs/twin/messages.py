"""The messages that the twin sends: responses, errors, events, and acknowledgements of the search index.

Source of the rules: Eclipse Ditto, ``ThingModifyCommandResponse`` and ``ThingEvent`` in its protocol adapters,
ditto.md 8 and 9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from ackstream.jobs.twin.changes import instant
from ackstream.protocol.ditto.acknowledgements import Acknowledgement, write_acks
from ackstream.protocol.ditto.envelopes import JSON_CONTENT_TYPE, Envelope, encode, error_envelope, raw
from ackstream.protocol.ditto.headers import CONTENT_TYPE, CORRELATION_ID, REQUESTED_ACKS, RESPONSE_REQUIRED, WEAK_ACK
from ackstream.protocol.ditto.labels import SEARCH_PERSISTED, is_built_in
from ackstream.protocol.ditto.topics import TopicPath

if TYPE_CHECKING:
    from ackstream.jobs.twin.changes import CommandResult, ThingChange
    from ackstream.protocol.ditto.requests import Request
    from ackstream.protocol.errors import DittoError

EVENTS, ACKS = "events", "acks"
ETAG, ENTITY_REVISION = "etag", "entity-revision"


class TwinMessage(msgspec.Struct, frozen=True, gc=False):
    """A record to send once the journal has the batch; ``topic`` is :data:`EVENTS` or :data:`ACKS`."""

    topic: str
    key: str
    value: bytes
    correlation_id: str

    @classmethod
    def of(cls, topic: str, request: Request, envelope: Envelope) -> TwinMessage:
        """Address an envelope to the thing and the requester of a request."""
        return cls(topic, request.thing_id or "", encode(envelope), request.headers[CORRELATION_ID])


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


def failure(request: Request, error: DittoError, tag: str | None) -> Envelope:
    """Return the error for a failed command.

    :param tag: the current entity tag, which is reported with a failed precondition
    """
    headers = request.headers if tag is None else request.headers | {ETAG: tag}
    return error_envelope(error, thing_id=request.thing_id, channel="twin", headers=headers)


def event(command: Envelope, request: Request, result: CommandResult, change: ThingChange) -> Envelope:
    """Return the event of a change; its requested acknowledgements are those that subscribers issue.

    If none of the requested ones is left, the header is omitted; an explicit ``[]`` stays.
    """
    topic = command.topic
    custom = [label for label in request.awaited if not is_built_in(label)]
    acks = {REQUESTED_ACKS: custom} if custom or not request.awaited else {}
    return Envelope(
        TopicPath(topic.namespace, topic.entity, "things", "twin", "events", change.action),
        request.headers | {RESPONSE_REQUIRED: False} | acks,
        command.path or "/",
        UNSET if change.value is UNSET else raw(change.value),
        revision=result.thing.revision,
        timestamp=instant(result.thing.modified),
    )


def search_persisted(thing_id: str, correlation_id: str, *, visible: bool | None) -> TwinMessage:
    """Return the acknowledgement that a change is in the search index.

    :param visible: whether the change is visible in the index; if not, the acknowledgement is a weak one; ``None``:
        indexing failed
    """
    if visible is None:
        ack = Acknowledgement(SEARCH_PERSISTED, 500)
    elif visible:
        ack = Acknowledgement(SEARCH_PERSISTED, 204)
    else:
        ack = Acknowledgement(SEARCH_PERSISTED, 200, headers={WEAK_ACK: True})
    envelope = write_acks([ack], thing_id=thing_id, channel="twin", headers={CORRELATION_ID: correlation_id})
    return TwinMessage(ACKS, thing_id, encode(envelope), correlation_id)
