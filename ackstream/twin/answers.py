"""What the twin says: responses, errors, events, and the acknowledgement of the search index.

Source of the rules: Eclipse Ditto, ``ThingModifyCommandResponse`` and ``ThingEvent`` in its protocol adapters, ditto.md
8 and 9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from ackstream.protocol.acknowledgements import Acknowledgement, write_acks
from ackstream.protocol.envelopes import JSON_CONTENT_TYPE, Envelope, error_envelope, raw
from ackstream.protocol.headers import CONTENT_TYPE, CORRELATION_ID, REQUESTED_ACKS, RESPONSE_REQUIRED, WEAK_ACK
from ackstream.protocol.labels import SEARCH_PERSISTED, is_built_in
from ackstream.protocol.topics import TopicPath
from ackstream.twin.things import instant

if TYPE_CHECKING:
    from ackstream.protocol.errors import DittoError
    from ackstream.protocol.requests import Request
    from ackstream.twin.applying import Change, Outcome

ETAG, ENTITY_REVISION = "etag", "entity-revision"


def response(command: Envelope, request: Request, outcome: Outcome) -> Envelope:
    """Return the response to a command that was done: its own topic and path, with a status."""
    entity = {ENTITY_REVISION: outcome.thing.revision} | ({} if outcome.tag is None else {ETAG: outcome.tag})
    return _response(command, request.headers | entity, outcome.status, outcome.value)


def query_response(command: Envelope, request: Request, value: Any) -> Envelope:
    """Return the response to a query on many things."""
    return _response(command, request.headers, 200, value)


def _response(command: Envelope, headers: dict[str, Any], status: int, value: Any) -> Envelope:
    content = {} if value is UNSET else {CONTENT_TYPE: JSON_CONTENT_TYPE}
    return Envelope(
        command.topic,
        headers | {RESPONSE_REQUIRED: False} | content,
        command.path or "/",
        UNSET if value is UNSET else raw(value),
        status=status,
    )


def failure(request: Request, error: DittoError, tag: str | None) -> Envelope:
    """Return the error that a command ends with.

    :param tag: the entity tag of what the command is about; of a precondition that failed the requester learns it
    """
    entity = {} if tag is None else {ETAG: tag}
    return error_envelope(error, thing_id=request.thing_id, channel="twin", headers=request.headers | entity)


def event(command: Envelope, request: Request, outcome: Outcome, change: Change) -> Envelope:
    """Return the event of a change: of the requested acknowledgements it carries those that subscribers issue.

    Nothing left of some means no header; an explicit ``[]`` stays.
    """
    topic = command.topic
    custom = [label for label in request.awaited if not is_built_in(label)]
    acks = {REQUESTED_ACKS: custom} if custom or not request.awaited else {}
    return Envelope(
        TopicPath(topic.namespace, topic.entity, "things", "twin", "events", change.action),
        request.headers | {RESPONSE_REQUIRED: False} | acks,
        command.path or "/",
        UNSET if change.value is UNSET else raw(change.value),
        revision=outcome.thing.revision,
        timestamp=instant(outcome.thing.modified),
    )


def search_persisted(thing_id: str, correlation_id: str, *, visible: bool | None) -> Envelope:
    """Return the acknowledgement that a change is in the search index.

    :param visible: whether the change changed anything there; if not, it is a weak one; ``None``: it failed
    """
    if visible is None:
        ack = Acknowledgement(SEARCH_PERSISTED, 500)
    elif visible:
        ack = Acknowledgement(SEARCH_PERSISTED, 204)
    else:
        ack = Acknowledgement(SEARCH_PERSISTED, 200, headers={WEAK_ACK: True})
    return write_acks([ack], thing_id=thing_id, channel="twin", headers={CORRELATION_ID: correlation_id})
