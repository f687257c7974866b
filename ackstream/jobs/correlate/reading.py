"""From a Kafka record to its meaning: a request to open, or acknowledgements to apply."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

import msgspec

from ackstream.jobs.correlate.state import Pending, Received, Record
from ackstream.protocol import ledger
from ackstream.protocol.ditto import errors
from ackstream.protocol.ditto.acknowledgements import Acknowledgement, read_ack, read_acks
from ackstream.protocol.ditto.envelopes import Envelope, decode
from ackstream.protocol.ditto.errors import DittoError
from ackstream.protocol.ditto.labels import LIVE_RESPONSE, TWIN_PERSISTED
from ackstream.protocol.ditto.requests import Request, read_request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackstream.protocol.ditto.topics import TopicPath
    from ackstream.settings import Settings


REPLY_TO = "reply-to"
SPRING_REPLY_TOPIC = "kafka_replytopic"
SPRING_CORRELATION = "kafka_correlationid"


class SignalReading(msgspec.Struct, frozen=True):
    """A command or message: its ledger row, and what to keep while it is open (``None``: nothing is awaited)."""

    signal_id: str
    row: ledger.SignalRow
    pending: Pending | None


class Refusal(Exception):  # noqa: N818 - a verdict on somebody's record, not a fault of ours
    """A request that cannot be taken: what the requester is told, and its topic where that could be read."""

    def __init__(self, error: DittoError, topic: TopicPath | None) -> None:
        """Pair the error with the request's topic."""
        super().__init__(error.message)
        self.error = error
        self.topic = topic


class AckReading(msgspec.Struct, frozen=True):
    """What subscribers and the twin answer.

    ``acks`` holds the entries of a single or aggregated acknowledgement; a command response or an error has none yet,
    its label depends on the request.
    """

    correlation_id: str
    kind: Literal["acks", "response", "error"]
    envelope: Envelope
    acks: list[Acknowledgement]

    def received(self, record: Record) -> list[Received]:
        """Return the entries of a record that no open request takes; a response's label follows from its channel."""
        if self.kind == "acks":
            return [Received.of(ack, record, index) for index, ack in enumerate(self.acks)]
        envelope = self.envelope
        label = None
        if self.kind == "response":
            label = LIVE_RESPONSE if envelope.topic.channel == "live" else TWIN_PERSISTED
        return [Received.of_envelope(label, envelope, record)]


def read_signal(record: Record, rules: Rules) -> SignalReading:
    """Read a record of the signals topic.

    :raises Refusal: with what the requester is told
    """
    topic = None
    try:
        envelope = decode(_value(record, rules))
        topic = envelope.topic
        request = _request(envelope, record, rules)
        to = reply_topic(record, rules)
    except DittoError as error:
        raise Refusal(error, topic) from None
    key = record.correlation_id or ""
    signal_id = ledger.reply_id(key, rules.signals, record.partition, record.offset)
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
        topic=rules.signals,
        partition=record.partition,
        offset=record.offset,
        value=envelope.value,
    )
    if not (request.response_required or request.waits_for_acks):
        return SignalReading(signal_id, row, None)
    pending = Pending(
        correlation_id=key,
        hash=record.hash,
        request=request,
        started_at=record.timestamp,
        deadline=record.timestamp + request.timeout_ms,
        reply_id=signal_id,
        reply_topic=to,
        spring_correlation=record.headers.get(SPRING_CORRELATION),
    )
    return SignalReading(signal_id, row, pending)


def _request(envelope: Envelope, record: Record, rules: Rules) -> Request:
    request = read_request(envelope, default_timeout_ms=rules.default_timeout_ms, max_timeout_ms=rules.max_timeout_ms)
    if len(request.awaited) > rules.max_labels:
        raise errors.header_invalid(
            "requested-acks",
            f"The header 'requested-acks' has {len(request.awaited)} labels.",
            f"Request at most {rules.max_labels} acknowledgements at once.",
        )
    request.headers["correlation-id"] = record.correlation_id
    return request


def read_acknowledgements(record: Record, rules: Rules) -> AckReading:
    """Read a record of the acks topic.

    :raises DittoError: with the reason for its dead letter
    """
    envelope = decode(_value(record, rules))
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


def _value(record: Record, rules: Rules) -> bytes:
    if record.value is None:
        raise errors.json_invalid("The record has no value (a tombstone).")
    if record.size > rules.max_value_bytes:
        raise DittoError(
            413,
            "things:thing.toolarge",
            f"The size of '{record.size}' bytes exceeds the maximum of '{rules.max_value_bytes}' bytes.",
            "Send less at once.",
        )
    return record.value


def reply_topic(record: Record, rules: Rules) -> str:
    """Return where the reply goes: the wish of the request, else the replies topic.

    :raises DittoError: 400 ``header.invalid``; the wish is not an allowed topic
    """
    for name in (REPLY_TO, SPRING_REPLY_TOPIC):
        wish = record.headers.get(name)
        if wish is None:
            continue
        topic = wish.decode("utf-8", "replace")
        if topic != rules.replies and topic not in rules.reply_topics:
            raise DittoError(
                400,
                "header.invalid",
                f"The value '{topic}' of the header '{name}' is not an allowed reply topic.",
                "Choose an existing topic that matches one of the configured reply topics, or leave the header out.",
                invalidHeaderKey=name,
            )
        return topic
    return rules.replies


# -- What the correlation is told by the settings.


class Rules(msgspec.Struct, frozen=True):
    """Limits, spans (milliseconds) and topic names of the correlation."""

    signals: str = "signals"
    acks: str = "acks"
    replies: str = "replies"
    ledger: str = "ledger"
    dead_letters: str = "dead-letters"
    # topics a request may choose with its reply-to header
    reply_topics: frozenset[str] = frozenset()
    default_timeout_ms: int = 65_000
    max_timeout_ms: int = 86_400_000
    orphan_hold_ms: int = 10_000
    recent_memory_ms: int = 60_000
    max_labels: int = 100
    max_value_bytes: int = 1_000_000

    def source(self, number: int) -> str:
        """Return the topic a record's ``source`` stands for."""
        return self.acks if number else self.signals


def rules(settings: Settings, topics: Iterable[str] = ()) -> Rules:
    """Read the rules from the settings.

    :param topics: the topics that exist; a reply topic is one of them that a pattern of the settings matches whole, so
        that no request can send the sink to a topic that does not exist
    """
    correlate, kafka = settings.correlate, settings.kafka
    patterns = [re.compile(pattern) for pattern in correlate.reply_topics]
    return Rules(
        signals=kafka.topic("signals"),
        acks=kafka.topic("acks"),
        replies=kafka.topic("replies"),
        ledger=kafka.topic("ledger"),
        dead_letters=kafka.topic("dead-letters"),
        reply_topics=frozenset(topic for topic in topics if any(pattern.fullmatch(topic) for pattern in patterns)),
        default_timeout_ms=correlate.default_timeout,
        max_timeout_ms=correlate.max_timeout,
        orphan_hold_ms=correlate.orphan_hold,
        recent_memory_ms=correlate.recent_memory,
        max_labels=correlate.max_labels,
        max_value_bytes=correlate.max_value_bytes,
    )
