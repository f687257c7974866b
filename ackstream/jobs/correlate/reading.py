"""From Kafka records to requests and acknowledgements, within the limits of the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from ackstream.jobs.correlate.state import ACKS, Pending, Received, Record
from ackstream.protocol import ledger
from ackstream.protocol.correlation_ids import MAX_BYTES, is_too_long
from ackstream.protocol.ditto import errors
from ackstream.protocol.ditto.acknowledgements import read_ack, read_acks, read_issued
from ackstream.protocol.ditto.aggregates import write_text
from ackstream.protocol.ditto.envelopes import Envelope, decode
from ackstream.protocol.ditto.headers import LIVE_CHANNEL_CONDITION
from ackstream.protocol.ditto.labels import RESPONSE_LABELS
from ackstream.protocol.ditto.originators import believed
from ackstream.protocol.ditto.requests import Request, read_request
from ackstream.protocol.ditto.shaped_requests import answered, read_shaped
from ackstream.protocol.ditto.single_acks import read_single
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.errors import DittoError
from ackstream.protocol.record_headers import (
    CORRELATION_ID,
    ORIGINATOR_SIGNATURE,
    SPRING_CORRELATION_ID,
    TRACEPARENT,
    with_trace,
)

if TYPE_CHECKING:
    from ackstream.jobs.correlate.topics import CorrelateTopics
    from ackstream.settings import Correlate


SMALL_BYTES = 16_384
"""Headers of larger messages are not remembered."""


class InvalidRequestError(Exception):
    """A request that cannot be accepted: the error for its requester, and its topic path if that could be read."""

    def __init__(self, error: DittoError, topic: TopicPath | None) -> None:
        """Combine the error with the request's topic path."""
        super().__init__(error.message)
        self.error = error
        self.topic = topic


class AckReading(msgspec.Struct, frozen=True):
    """An answer of a subscriber or of the twin.

    ``received`` has the entries of a single or aggregated acknowledgement. Of a command response or an error it has
    one, whose label depends on the request: here it follows from the channel. These have their ``envelope``.
    """

    correlation_id: str
    kind: Literal["acks", "response", "error"]
    topic: TopicPath
    received: list[Received]
    envelope: Envelope | None = None


class RecordReader:
    """Reads signals, and what answers them."""

    def __init__(self, limits: Correlate, topics: CorrelateTopics) -> None:
        """Read by the limits of the settings."""
        self._limits = limits
        self._topics = topics
        self._originator_key = None if topics.originator_key is None else topics.originator_key.reveal()

    def signal(self, record: Record) -> tuple[str, ledger.SignalRow, Pending | None]:
        """Read a command or message from a record of the signals topic.

        :return: its id, its ledger row, and the request to keep open (``None`` if it awaits nothing)
        :raises InvalidRequestError: with the error for the requester
        """
        topic = None
        try:
            envelope = decode(self._value(record))
            topic = envelope.topic
            envelope.headers = with_trace(envelope.headers, record.headers.get(TRACEPARENT))
            request, headers = self._request(envelope, record)
            reply_topic = self._topics.reply_topic(record)
            reply_partition = self._topics.reply_partition(record, reply_topic)
            spring_correlation = spring_id(record)
        except DittoError as error:
            raise InvalidRequestError(error, topic) from None
        key = record.correlation_id or ""
        signals = self._topics.signals
        signal_id = ledger.reply_id(key, signals, record.partition, record.offset)
        signed = record.headers.get(ORIGINATOR_SIGNATURE)
        row = ledger.SignalRow(
            correlation_id=key,
            thing_id=request.thing_id,
            channel=topic.channel,
            criterion=topic.criterion,
            action=topic.action or topic.subject,
            path=envelope.path,
            requested_acks=request.awaited,
            response_required=request.response_required,
            timeout_ms=request.timeout_ms,
            headers=believed(envelope.headers, self._originator_key, key, record.value, signed),
            received_at=record.timestamp,
            topic=signals,
            partition=record.partition,
            offset=record.offset,
            value=envelope.value,
        )
        if not request.awaits:
            return signal_id, row, None
        pending = Pending(
            correlation_id=key,
            hash=record.hash,
            request=request,
            started_at=record.timestamp,
            deadline=record.timestamp + request.timeout_ms,
            reply_id=signal_id,
            reply_topic=reply_topic,
            spring_correlation=spring_correlation,
            headers=headers,
            reply_partition=reply_partition,
        )
        return signal_id, row, pending

    def acknowledgements(self, record: Record) -> AckReading:
        """Read a record of the topics acks and twin-acks; of the latter, the twin's own, with built-in labels.

        :raises DittoError: with the reason for its dead letter
        """
        value, key = self._value(record), record.correlation_id
        single = read_single(value, key) if key else None
        if key and single is not None:
            topic, ack = single
            return AckReading(key, "acks", topic, [Received.of(record, ack)])
        envelope = decode(value)
        if not key:
            raise errors.correlation_id_missing()
        topic = envelope.topic
        if topic.criterion == "acks":
            if record.source == ACKS:
                acks = read_issued(envelope)
            else:
                acks = [read_ack(envelope)] if topic.subject else read_acks(envelope)
            received = [Received.of(record, write_text(ack), index) for index, ack in enumerate(acks)]
            return AckReading(key, "acks", topic, received)
        if topic.criterion == "errors":
            return AckReading(key, "error", topic, [Received.whole(record, envelope, None)], envelope)
        if topic.criterion in ("commands", "messages") and envelope.status is not None:
            label = RESPONSE_LABELS[topic.channel or "twin"]
            return AckReading(key, "response", topic, [Received.whole(record, envelope, label)], envelope)
        raise errors.unknown_topic_path(
            str(topic), "Only acknowledgements, responses (with a status) and errors answer a request."
        )

    def _request(self, envelope: Envelope, record: Record) -> tuple[Request, bytes]:
        """Read a request; return it, and what an aggregate repeats of its headers."""
        limits, key = self._limits, record.correlation_id or ""
        default, longest = limits.default_timeout, limits.max_timeout
        shaped = read_shaped(envelope, key, default, longest) if record.size <= SMALL_BYTES else None
        request, headers = shaped or answered(
            read_request(envelope, default_timeout_ms=default, max_timeout_ms=longest), key
        )
        if request.kind == "smartQuery":
            why = "The gateway decides which channel answers; elsewhere ask the twin with a condition first."
            raise errors.not_available(f"The header '{LIVE_CHANNEL_CONDITION}'", why)
        if len(request.awaited) > limits.max_labels:
            raise errors.header_invalid(
                "requested-acks",
                f"The header 'requested-acks' has {len(request.awaited)} labels.",
                f"Request at most {limits.max_labels} acknowledgements at once.",
            )
        return request, headers

    def _value(self, record: Record) -> bytes:
        if record.value is None:
            raise errors.json_invalid("The record has no value (a tombstone).")
        limit = self._limits.max_value_bytes
        if record.size > limit:
            raise errors.record_too_large(record.size, limit)
        if record.correlation_id is not None and is_too_long(record.correlation_id):
            raise errors.header_too_long(CORRELATION_ID, MAX_BYTES)
        return record.value


def spring_id(record: Record) -> bytes | None:
    """Return Spring's correlation-id, which the reply repeats.

    :raises DittoError: 400 ``header.invalid`` if it is too long for that
    """
    value = record.headers.get(SPRING_CORRELATION_ID)
    if value is not None and len(value) > MAX_BYTES:
        raise errors.header_too_long(SPRING_CORRELATION_ID, MAX_BYTES)
    return value
