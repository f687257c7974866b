"""Map the messages of a source to requests, acknowledgements to forward, and errors to publish.

Source: Ditto, ``InboundMappingProcessor``, ``InboundDispatchingSink``, ``RequestedAcksFilter`` (ditto.md 1.7, 6, 7).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec

from ackstream.connectivity.transports.transport import ExternalMessage, resolved
from ackstream.protocol import errors
from ackstream.protocol.ditto import headers as names
from ackstream.protocol.ditto.acknowledgements import check_answer, taken_entries
from ackstream.protocol.ditto.connection_rules import resolve_label
from ackstream.protocol.ditto.envelopes import Envelope, decode, error_envelope, json_or_text, json_text
from ackstream.protocol.ditto.placeholders import Context, Pipeline, Template
from ackstream.protocol.ditto.requests import Request, read_request
from ackstream.protocol.ditto.signal_defaults import STREAM_TIMEOUT_MS, signal_kind, takes_acks
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.ditto.twin.access import OPEN, Access
from ackstream.protocol.ditto.twin.permissions import addresses_subject, check_address, conceal, kind_of, restrict
from ackstream.protocol.durations import Duration
from ackstream.protocol.json import escape
from ackstream.settings.connections import PayloadTemplate, Source


class InboundRequest(msgspec.Struct, frozen=True):
    """A command or message to send, and the responses and acknowledgements that it requests."""

    envelope: Envelope
    request: Request


class RejectedSignal(msgspec.Struct, frozen=True):
    """A signal that is not sent, and the reason; ``rejects`` if its message is rejected, too."""

    error: errors.DittoError
    topic: TopicPath | None
    headers: dict[str, Any]
    # its headers contradict each other, or labels are taken; after other errors redelivery would fail again
    rejects: bool


Mapped: TypeAlias = InboundRequest | Envelope | RejectedSignal
"""A part of a message; an envelope is an answer to forward."""


class Inbound:
    """Maps the messages of one source, as far as the rights of its sender and its subjects permit."""

    def __init__(self, connection_id: str, source: Source, access: Access) -> None:
        self._connection_id, self._source, self._access = connection_id, source, access
        self._declared = frozenset(resolve_label(connection_id, label) for label in source.declared_acks)
        wishes = source.acknowledgement_requests
        self._includes = [resolve_label(connection_id, label) for label in wishes.includes]
        self._filter = None if wishes.filter is None else Pipeline.parse(wishes.filter)

    def read(self, message: ExternalMessage) -> list[Mapped]:
        """Map a message, once per payload mapping of the source."""
        return [self._read(message, mapping) for mapping in self._source.payload_mapping]

    def readable(self, asked: InboundRequest, reply: Envelope) -> Envelope:
        """Return the part of a reply that the subjects of the source may read."""
        command, topic = asked.envelope, asked.envelope.topic
        try:
            if self._access is not OPEN:
                conceal(self._access, self._source.subjects, kind_of(command), command, reply)
        except errors.DittoError as error:
            return error_envelope(error, thing_id=topic.thing_id, channel=topic.channel, headers=reply.headers)
        return reply

    def _read(self, message: ExternalMessage, mapping: str | PayloadTemplate) -> Mapped:
        envelope, rejects = None, False
        headers: dict[str, Any] = dict(message.headers)
        try:
            envelope = decode(message.payload) if isinstance(mapping, str) else self._made(message, mapping)
            envelope.headers = names.taken_headers(envelope.headers)
            self._enforce(envelope.topic, message)
            envelope = self._with_headers(envelope, message)
            headers = envelope.headers
            if envelope.status is not None:
                return self._answer(envelope)
            envelope = self._with_requested_acks(envelope, message)
            # headers that contradict each other
            rejects = signal_kind(envelope.topic, headers) is not None
            request = read_request(envelope)
            rejects = False
            self._restrict(envelope, request)
        except errors.DittoError as error:
            return RejectedSignal(error, None if envelope is None else envelope.topic, headers, rejects=rejects)
        return InboundRequest(envelope, request)

    def _made(self, message: ExternalMessage, template: PayloadTemplate) -> Envelope:
        """Build a command or message with the payload as its value: JSON as is, anything else as a string."""
        context = self._context(message)
        # a placeholder becomes one part of topic or path: the message never decides which command it is
        topic = _resolved(template.topic, context, _segment)
        found = TopicPath.parse_whole(topic)
        wanted = TopicPath.parse(Template.parse(template.topic).filled("x"))
        if found.thing_id == _MANY and wanted.thing_id != _MANY:
            raise errors.unknown_topic_path(topic, "The payload mapping is for commands about one thing.")
        path = _resolved(template.path, context, _segment if found.criterion == "messages" else _key)
        headers = names.read_headers(resolved(template.headers, context))
        return Envelope(found, headers, path, json_or_text(message.payload))

    def _context(self, message: ExternalMessage, topic: TopicPath | None = None) -> Context:
        return Context(message.headers, self._connection_id, topic, message.address)

    def _enforce(self, topic: TopicPath, message: ExternalMessage) -> None:
        """Reject a message whose sender may not send about its entity (Eclipse Ditto, ``EnforcementFilter``)."""
        wanted = self._source.enforcement
        if wanted is None:
            return
        context = self._context(message, topic)
        sender = Template.parse(wanted.input).resolve(context)
        # a placeholder that does not resolve is not equal to anything
        if sender is None or all(Template.parse(text).resolve(context) != sender for text in wanted.filters):
            raise errors.id_enforcement_failed(topic.thing_id)

    def _restrict(self, command: Envelope, request: Request) -> None:
        """Reject a command that the subjects of the source may not send; narrow a query for several things."""
        if self._access is OPEN:
            return
        kind = kind_of(command)
        if request.kind in ("other", "otherQuery"):
            raise errors.unknown_topic_path(str(command.topic), "Access rules apply to things only.")
        check_address(kind, command)
        restrict(self._access, self._source.subjects, kind, command)

    def _answer(self, answer: Envelope) -> Envelope:
        """Return an acknowledgement or live response to forward; only one that may have received the signal may answer.

        For an acknowledgement some part of the thing must be readable, for a live response its path, for the response
        to a message the box of its subject.
        """
        check_answer(answer, self._declared, _NOT_ACCEPTED)
        thing_id, subjects = answer.topic.thing_id, self._source.subjects
        if answer.topic.criterion == "acks":
            received = self._access.knows(subjects, thing_id)
        else:
            if answer.topic.criterion == "messages" and self._access is not OPEN and not addresses_subject(answer):
                raise errors.unknown_path(answer.path)
            received = self._access.may("READ", subjects, thing_id, answer.path)
        if not (self._access is OPEN or received):
            raise errors.thing_not_found(thing_id)
        return msgspec.structs.replace(answer, value=taken_entries(answer))

    def _with_headers(self, envelope: Envelope, message: ExternalMessage) -> Envelope:
        """Add mapped headers; headers in the JSON of the message take precedence."""
        context = self._context(message, envelope.topic)
        own = names.read_headers(envelope.headers)
        mapped = resolved(self._source.header_mapping, context)
        if names.CORRELATION_ID not in own and names.CORRELATION_ID in message.headers:
            mapped.setdefault(names.CORRELATION_ID, message.headers[names.CORRELATION_ID])
        headers = names.read_headers(mapped) | own
        if envelope.status is None:
            headers.setdefault(names.CORRELATION_ID, message.identity)
            if self._source.subjects:
                headers[names.ORIGINATOR] = self._source.subjects[0]
        timeout = headers.get(names.TIMEOUT)
        if timeout is not None and Duration.parse(timeout).capped(STREAM_TIMEOUT_MS + 1) > STREAM_TIMEOUT_MS:
            headers[names.TIMEOUT] = f"{STREAM_TIMEOUT_MS // 1000}s"
        return msgspec.structs.replace(envelope, headers=headers)

    def _with_requested_acks(self, envelope: Envelope, message: ExternalMessage) -> Envelope:
        kind = signal_kind(envelope.topic, envelope.headers)
        if kind is None or not takes_acks(kind):
            return envelope
        context = self._context(message, envelope.topic)
        labels = requested_acks(envelope.headers.get(names.REQUESTED_ACKS), self._includes, self._filter, context)
        if labels is None:
            return envelope
        return msgspec.structs.replace(envelope, headers=envelope.headers | {names.REQUESTED_ACKS: labels})


_unfit = partial(errors.header_invalid, "payload_mapping", named=False)


def _resolved(template: str, context: Context, quote: Callable[[str], str]) -> str:
    found = Template.parse(template).resolve(context, quote)
    if found is None:
        raise _unfit("A placeholder of the payload mapping does not resolve for this message.")
    return found


def _segment(text: str) -> str:
    """Return the text of a placeholder as one part of a topic, between two slashes."""
    if "/" in text or not text:
        raise _unfit(
            f"A placeholder of the payload mapping has the text '{errors.shown(text)}', not a part of a topic."
        )
    return text


def _key(text: str) -> str:
    """Return the text of a placeholder as one key of a path; with an empty one the path would be that of all keys."""
    if not text:
        raise _unfit("A placeholder of the payload mapping is empty, not a key of a path.")
    return escape(text)


_MANY = "_:_"
"""The thing id of queries for several things."""

_NOT_ACCEPTED = "Besides commands and messages, a source accepts acknowledgements and live responses."
_NONE = "[]"


def requested_acks(
    own: list[str] | None, includes: Sequence[str], condition: Pipeline | None, context: Context
) -> list[str] | None:
    """Apply ``acknowledgementRequests`` of a source; ``None`` leaves the labels to the channel's default.

    ``own`` is ``None`` without the header. A filter that resolves to nothing requests no label. Raises 400
    ``header.invalid``: its result is not a JSON array of labels.
    """
    labels = own
    if includes and own != []:
        labels = list(dict.fromkeys([*(own or ()), *includes]))
    if condition is None:
        return labels
    text = _NONE if labels is None else json_text(labels)
    result = condition.resolve(context, _NONE if "'" in text else text)
    if result is None:
        return []
    if labels is None:
        result = condition.resolve(context)
    return None if result is None else list(names.read_headers({names.REQUESTED_ACKS: result})[names.REQUESTED_ACKS])
