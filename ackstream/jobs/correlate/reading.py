"""From Kafka records to requests and acknowledgements, within the limits of the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from ackstream.jobs.correlate.state import Pending, Received, Record
from ackstream.protocol import ledger
from ackstream.protocol.ditto import errors
from ackstream.protocol.ditto.acknowledgements import Acknowledgement, read_ack, read_acks
from ackstream.protocol.ditto.envelopes import Envelope, decode
from ackstream.protocol.ditto.labels import RESPONSE_LABELS
from ackstream.protocol.ditto.requests import Request, read_request
from ackstream.protocol.errors import DittoError
from ackstream.protocol.record_headers import REPLY_TO, SPRING_CORRELATION_ID, SPRING_REPLY_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackstream.protocol.ditto.topics import TopicPath
    from ackstream.settings import Correlate, Settings


class CorrelateTopics(msgspec.Struct, frozen=True):
    """The topics of the job with their prefix; ``reply_topics`` are those a request may choose for its reply."""

    signals: str = "signals"
    acks: str = "acks"
    replies: str = "replies"
    ledger: str = "ledger"
    dead_letters: str = "dead-letters"
    reply_topics: frozenset[str] = frozenset()

    @classmethod
    def of(cls, settings: Settings, existing: Iterable[str] = ()) -> CorrelateTopics:
        """Derive the topics from the settings and the topics on the broker."""
        topic, allowed = settings.kafka.topic, settings.correlate.allowed_reply_topics(existing)
        return cls(topic("signals"), topic("acks"), topic("replies"), topic("ledger"), topic("dead-letters"), allowed)

    def reply_topic(self, record: Record) -> str:
        """Return the topic for the reply: the one the request chose, else the replies topic.

        :raises DittoError: 400 ``header.invalid`` if the chosen topic is not allowed
        """
        for name in (REPLY_TO, SPRING_REPLY_TOPIC):
            chosen = record.headers.get(name)
            if chosen is None:
                continue
            topic = chosen.decode("utf-8", "replace")
            if topic != self.replies and topic not in self.reply_topics:
                raise DittoError(
                    400,
                    "header.invalid",
                    f"The value '{topic}' of the header '{name}' is not an allowed reply topic.",
                    "Choose an existing topic that matches one of the configured reply topics, or omit the header.",
                    invalidHeaderKey=name,
                )
            return topic
        return self.replies


class InvalidRequestError(Exception):
    """A request that cannot be accepted: the error for its requester, and its topic path if that could be read."""

    def __init__(self, error: DittoError, topic: TopicPath | None) -> None:
        """Combine the error with the request's topic path."""
        super().__init__(error.message)
        self.error = error
        self.topic = topic


class AckReading(msgspec.Struct, frozen=True):
    """An answer of a subscriber or of the twin.

    ``acks`` holds the entries of a single or aggregated acknowledgement. It is empty for a command response or an
    error, whose label depends on the request.
    """

    correlation_id: str
    kind: Literal["acks", "response", "error"]
    envelope: Envelope
    acks: list[Acknowledgement]

    def received(self, record: Record) -> list[Received]:
        """Return the entries; the label of a response without an open request follows from its channel."""
        if self.kind == "acks":
            return [
                Received.of(record, ack.label, ack.status, ack.payload, ack.headers, index, weak=ack.weak)
                for index, ack in enumerate(self.acks)
            ]
        answer = self.envelope
        label = RESPONSE_LABELS[answer.topic.channel or "twin"] if self.kind == "response" else None
        return [Received.of(record, label, answer.status or 500, answer.value, answer.headers)]


class RecordReader:
    """Reads the records of the signals and acks topics."""

    def __init__(self, limits: Correlate, topics: CorrelateTopics) -> None:
        """Read by the limits of the settings."""
        self._limits = limits
        self._topics = topics

    def signal(self, record: Record) -> tuple[str, ledger.SignalRow, Pending | None]:
        """Read a command or message from a record of the signals topic.

        :return: its id, its ledger row, and the request to keep open (``None`` if it awaits nothing)
        :raises InvalidRequestError: with the error for the requester
        """
        topic = None
        try:
            envelope = decode(self._value(record))
            topic = envelope.topic
            request = self._request(envelope, record)
            reply_topic = self._topics.reply_topic(record)
        except DittoError as error:
            raise InvalidRequestError(error, topic) from None
        key = record.correlation_id or ""
        signals = self._topics.signals
        signal_id = ledger.reply_id(key, signals, record.partition, record.offset)
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
            headers=envelope.headers,
            received_at=record.timestamp,
            topic=signals,
            partition=record.partition,
            offset=record.offset,
            value=envelope.value,
        )
        if not (request.response_required or request.waits_for_acks):
            return signal_id, row, None
        pending = Pending(
            correlation_id=key,
            hash=record.hash,
            request=request,
            started_at=record.timestamp,
            deadline=record.timestamp + request.timeout_ms,
            reply_id=signal_id,
            reply_topic=reply_topic,
            spring_correlation=record.headers.get(SPRING_CORRELATION_ID),
        )
        return signal_id, row, pending

    def acknowledgements(self, record: Record) -> AckReading:
        """Read a record of the acks topic.

        :raises DittoError: with the reason for its dead letter
        """
        envelope = decode(self._value(record))
        if not record.correlation_id:
            raise errors.correlation_id_missing()
        topic = envelope.topic
        if topic.criterion == "acks":
            acks = [read_ack(envelope)] if topic.subject else read_acks(envelope)
            return AckReading(record.correlation_id, "acks", envelope, acks)
        if topic.criterion == "errors":
            return AckReading(record.correlation_id, "error", envelope, [])
        if topic.criterion in ("commands", "messages") and envelope.status is not None:
            return AckReading(record.correlation_id, "response", envelope, [])
        raise errors.unknown_topic_path(
            str(topic), "Only acknowledgements, responses (with a status) and errors belong on the acks topic."
        )

    def _request(self, envelope: Envelope, record: Record) -> Request:
        limits = self._limits
        request = read_request(envelope, default_timeout_ms=limits.default_timeout, max_timeout_ms=limits.max_timeout)
        if len(request.awaited) > limits.max_labels:
            raise errors.header_invalid(
                "requested-acks",
                f"The header 'requested-acks' has {len(request.awaited)} labels.",
                f"Request at most {limits.max_labels} acknowledgements at once.",
            )
        request.headers["correlation-id"] = record.correlation_id
        return request

    def _value(self, record: Record) -> bytes:
        if record.value is None:
            raise errors.json_invalid("The record has no value (a tombstone).")
        limit = self._limits.max_value_bytes
        if record.size > limit:
            raise DittoError(
                413,
                "things:thing.toolarge",
                f"The size of '{record.size}' bytes exceeds the maximum of '{limit}' bytes.",
                "Send less at once.",
            )
        return record.value
