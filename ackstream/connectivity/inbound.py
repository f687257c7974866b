"""Map the messages of a source to requests, acknowledgements to forward, and errors to publish.

Source of the rules: Eclipse Ditto, ``InboundMappingProcessor``, ``InboundDispatchingSink``, ``RequestedAcksFilter``
(ditto.md 1.7, 6, 7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from ackstream.client.signals import check_answer
from ackstream.connectivity.transport import resolved
from ackstream.protocol.ditto.connections import resolve_label
from ackstream.protocol.ditto.envelopes import Envelope, decode, json_text, raw
from ackstream.protocol.ditto.errors import header_invalid
from ackstream.protocol.ditto.headers import CORRELATION_ID, REQUESTED_ACKS, TIMEOUT, read_headers
from ackstream.protocol.ditto.placeholders import Context, Pipeline, Template
from ackstream.protocol.ditto.requests import Request, read_request
from ackstream.protocol.ditto.signal_defaults import STREAM_TIMEOUT_MS, signal_kind, takes_acks
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.durations import Duration
from ackstream.protocol.errors import DittoError
from ackstream.protocol.json import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackstream.connectivity.transport import ExternalMessage
    from ackstream.settings.connections import PayloadTemplate, Source


class InboundRequest(msgspec.Struct, frozen=True):
    """A command or message to send, with what it requests."""

    envelope: Envelope
    request: Request


class RejectedSignal(msgspec.Struct, frozen=True):
    """A signal that is not sent, and why.

    ``rejects`` if the message is rejected because its headers contradict each other, or the labels of the connection
    are taken; after any other error it is settled, since redelivery would fail again.
    """

    error: DittoError
    topic: TopicPath | None
    headers: dict[str, Any]
    rejects: bool


Mapped: TypeAlias = InboundRequest | Envelope | RejectedSignal
"""What a message is mapped to; an envelope is an answer to forward."""


class Inbound:
    """Maps the messages of one source."""

    def __init__(self, connection_id: str, source: Source) -> None:
        """Map according to the settings of ``source``."""
        self._connection_id = connection_id
        self._source = source
        self._declared = frozenset(resolve_label(connection_id, label) for label in source.declared_acks)
        wishes = source.acknowledgement_requests
        self._includes = [resolve_label(connection_id, label) for label in wishes.includes]
        self._filter = None if wishes.filter is None else Pipeline.parse(wishes.filter)

    def read(self, message: ExternalMessage) -> list[Mapped]:
        """Map a message, once per payload mapping of the source."""
        return [self._read(message, mapping) for mapping in self._source.payload_mapping]

    def _read(self, message: ExternalMessage, mapping: str | PayloadTemplate) -> Mapped:
        envelope = None
        headers: dict[str, Any] = dict(message.headers)
        try:
            envelope = decode(message.payload) if isinstance(mapping, str) else self._made(message, mapping)
            envelope = self._with_headers(envelope, message)
            headers = envelope.headers
            if envelope.status is not None:
                check_answer(envelope, self._declared, _NOT_ACCEPTED)
                return envelope
            envelope = self._with_requested_acks(envelope, message)
        except DittoError as error:
            return RejectedSignal(error, None if envelope is None else envelope.topic, headers, rejects=False)
        try:
            return InboundRequest(envelope, read_request(envelope))
        except DittoError as error:
            return RejectedSignal(
                error, envelope.topic, headers, rejects=signal_kind(envelope.topic, headers) is not None
            )

    def _made(self, message: ExternalMessage, template: PayloadTemplate) -> Envelope:
        """Build a command or message with the payload as its value: JSON as is, anything else as a string."""
        context = Context(message.headers, self._connection_id)
        topic, path = (Template.parse(text).resolve(context) for text in (template.topic, template.path))
        if topic is None or path is None:
            raise header_invalid(
                "payload_mapping",
                "A placeholder of the payload mapping does not resolve for this message.",
                named=False,
            )
        try:
            msgspec.json.decode(message.payload)
            value = msgspec.Raw(message.payload)
        except UNREADABLE:
            value = raw(message.payload.decode("utf-8", "replace"))
        return Envelope(TopicPath.parse(topic), read_headers(resolved(template.headers, context)), path, value)

    def _with_headers(self, envelope: Envelope, message: ExternalMessage) -> Envelope:
        """Add mapped headers; headers in the JSON of the message take precedence.

        :raises DittoError: a value has the wrong type for its header, or the correlation-id is too long
        """
        context = Context(message.headers, self._connection_id, envelope.topic)
        own = read_headers(envelope.headers)
        mapped = resolved(self._source.header_mapping, context)
        if CORRELATION_ID not in own and CORRELATION_ID in message.headers:
            mapped.setdefault(CORRELATION_ID, message.headers[CORRELATION_ID])
        headers = read_headers(mapped) | own
        if CORRELATION_ID not in headers and envelope.status is None:
            headers[CORRELATION_ID] = message.identity
        if TIMEOUT in headers and Duration.parse(headers[TIMEOUT]).capped(STREAM_TIMEOUT_MS + 1) > STREAM_TIMEOUT_MS:
            headers[TIMEOUT] = f"{STREAM_TIMEOUT_MS // 1000}s"
        return msgspec.structs.replace(envelope, headers=headers)

    def _with_requested_acks(self, envelope: Envelope, message: ExternalMessage) -> Envelope:
        kind = signal_kind(envelope.topic, envelope.headers)
        if kind is None or not takes_acks(kind):
            return envelope
        context = Context(message.headers, self._connection_id, envelope.topic)
        labels = requested_acks(envelope.headers.get(REQUESTED_ACKS), self._includes, self._filter, context)
        if labels is None:
            return envelope
        return msgspec.structs.replace(envelope, headers=envelope.headers | {REQUESTED_ACKS: labels})


_NOT_ACCEPTED = "Besides commands and messages, a source accepts acknowledgements and live responses."
_NONE = "[]"


def requested_acks(
    own: list[str] | None, includes: Sequence[str], condition: Pipeline | None, context: Context
) -> list[str] | None:
    """Apply ``acknowledgementRequests`` of a source; ``None`` leaves the labels to the channel's default.

    :param own: labels the signal itself requests, or ``None`` without the header
    :param includes: added unless the signal requests ``[]``
    :param condition: the filter, evaluated on the headers of the external message: if it resolves to nothing, no label
        is requested; without any labels its own result is taken
    :raises DittoError: 400 ``header.invalid``: the result of the filter is not a JSON array of labels
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
    return None if result is None else list(read_headers({REQUESTED_ACKS: result})[REQUESTED_ACKS])
