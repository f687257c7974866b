"""How correlate reads signals and answers."""

from typing import Any, Literal, NamedTuple

import msgspec

from ackstream.jobs.correlate.state import ACKS, Pending, Received, Record
from ackstream.jobs.correlate.topics import CorrelateTopics
from ackstream.protocol import errors, ledger, record_headers
from ackstream.protocol.ditto.acknowledgements import PROCESSING, extension, read_issued
from ackstream.protocol.ditto.aggregates import answered, read_shaped, read_single, write_text
from ackstream.protocol.ditto.correlation_ids import MAX_BYTES, is_too_long
from ackstream.protocol.ditto.envelopes import Envelope, decode
from ackstream.protocol.ditto.headers import CONTENT_TYPE, LIVE_CHANNEL_CONDITION, ORIGINATOR, names_sender
from ackstream.protocol.ditto.labels import RESPONSE_LABELS
from ackstream.protocol.ditto.record_requests import Codec, read_record, read_record_ack, write_value
from ackstream.protocol.ditto.requests import Request, read_request
from ackstream.protocol.ditto.topics import UNKNOWN_THING, TopicPath
from ackstream.protocol.ditto.twin.access import believed
from ackstream.protocol.errors import DittoError, shown
from ackstream.settings import Correlate

SMALL_BYTES = 16_384
"""Headers of larger messages are not remembered."""
INTEGER_BYTES = 4
"""The length of an integer of Spring."""


class ReplyAddress(NamedTuple):
    """The choices of a request for its reply: topic, partition (``None``: any), and Spring's correlation-id."""

    topic: str
    partition: int | None
    spring_correlation: bytes | None


class InvalidRequestError(Exception):
    """A request that cannot be accepted: the error for its requester, and its topic path if that could be read."""

    def __init__(self, error: DittoError, topic: TopicPath | None) -> None:
        super().__init__(error.message)
        self.error, self.topic = error, topic


class AckReading(msgspec.Struct, frozen=True):
    """An answer of a subscriber or of the twin.

    ``received`` has the entries of an acknowledgement, or one for a response or an error, which has ``envelope``.
    """

    correlation_id: str
    kind: Literal["acks", "response", "error"]
    topic: TopicPath
    received: list[Received]
    envelope: Envelope | None = None


class RecordReader:
    """Reads signals and their answers."""

    def __init__(self, limits: Correlate, topics: CorrelateTopics) -> None:
        self._limits = limits
        self._topics = topics
        self._usual: tuple[ReplyAddress, DittoError | None] = ReplyAddress(topics.replies, None, None), None
        self._originator_key = None if topics.originator_key is None else topics.originator_key.reveal()

    def signal_of(self, record: Record) -> tuple[str, ledger.SignalRow, Pending | None]:
        """Read a signal; return its id, row, and request (``None``: it awaits nothing). Raises InvalidRequestError."""
        # most records have no headers
        address, refused = self.address(record) if record.headers else self._usual
        key = record.correlation_id or ""
        coordinates = (record.topic or self._topics.signals, record.partition, record.offset)
        default, longest = self._limits.default_timeout, self._limits.max_timeout
        value, topic, codec, trace = b"", None, None, record.headers.get(record_headers.TRACEPARENT)
        try:
            if record.topic is not None:
                found, codec = self._record(record)
                refused = self._refusal(found[0]) or refused
            else:
                value = self._value(record)
                found = read_shaped(value, key, default, longest, trace) if record.size <= SMALL_BYTES else None
                if found is None or refused is not None or self._refusal(found[0]) is not None:
                    envelope = decode(value)
                    topic = envelope.topic
                    headers = envelope.headers = record_headers.with_trace(envelope.headers, trace)
                    request = read_request(envelope, default_timeout_ms=default, max_timeout_ms=longest)
                    found = *answered(request, key), topic.channel, headers, envelope.value, names_sender(headers)
                    refused = self._refusal(request) or refused
            if refused is not None:
                raise refused
        except DittoError as error:
            raise InvalidRequestError(error, topic) from None
        request, repeated, channel, named, content, sender = found
        signal_id = ledger.reply_id(key, *coordinates)
        if sender and topic is None and not record.headers:
            # in lower case and without a signature, as nearly always
            del named[ORIGINATOR]
        elif sender:
            named = believed(
                named, self._originator_key, key, value, record.headers.get(record_headers.ORIGINATOR_SIGNATURE)
            )
        time, own = record.timestamp, request
        row = ledger.SignalRow(
            key, own.thing_id, channel, own.criterion, own.action or own.subject, own.path, own.awaited,
            own.response_required, own.timeout_ms, named, time, *coordinates, content, codec,
        )  # fmt: skip
        if not request.awaits:
            return signal_id, row, None
        to, partition, spring = address
        pending = Pending(key, record.hash, request, time, time + request.timeout_ms, signal_id, to, spring)
        pending.headers, pending.reply_partition = repeated, partition
        pending.source = record.source
        return signal_id, row, pending

    def _record(self, record: Record) -> tuple[Any, Codec]:
        """Read a record of any kind as ``read_shaped`` does a message; return also how its value is written."""
        limits = self._limits
        check_id(record)
        if (size := sum(map(len, record.headers.values()))) > limits.max_value_bytes:
            raise errors.record_too_large(size, limits.max_value_bytes)
        request, headers = read_record(
            record.headers, default_timeout_ms=limits.default_timeout, max_timeout_ms=limits.max_timeout
        )
        kept = record.value if limits.store_values and record.size <= limits.max_value_bytes else None
        content, codec = write_value(kept, headers.get(CONTENT_TYPE, ""))
        return (*answered(request, record.correlation_id or ""), None, headers, content, False), codec

    def usual_ack(self, record: Record, pending: Pending) -> Received | None:
        """Read an acknowledgement if it counts for an open request as nearly all do; ``None`` for all others."""
        key, value, time, request = record.correlation_id, record.value, record.timestamp, pending.request
        if record.source != ACKS or not value or not key or record.size > self._limits.max_value_bytes:
            return None
        if record_headers.LABEL in record.headers:
            return None
        if not pending.started_at <= time <= pending.deadline or (single := read_single(value, key)) is None:
            return None
        thing_id, label, status, payload, headers, weak = single
        unusual = status == PROCESSING or request.quorum is not None or request.progress or pending.extended
        if unusual or thing_id != (request.thing_id or UNKNOWN_THING) or label not in request.awaited:
            return None
        for received in pending.received:
            if received.label == label:
                return None
        data = None if payload is msgspec.UNSET else bytes(payload)
        return Received(label, status, data, headers, time, record.partition, record.offset, 0, weak)

    def answer_of(self, record: Record) -> AckReading:
        """Read a record of acks, or of twin-acks, with built-in labels. Raises DittoError for its dead letter."""
        key, of_record = record.correlation_id, record.role == ACKS and record_headers.LABEL in record.headers
        value = self._value(record, empty=of_record)
        envelope = None if of_record else decode(value)
        if not key:
            raise errors.correlation_id_missing()
        if envelope is None:
            ack, codec = read_record_ack(record.headers, key, value)
            received = [Received.of(record, write_text(ack), 0, codec, extension(ack))]
            return AckReading(key, "acks", TopicPath.of(None, "live", "acks"), received)
        topic = envelope.topic
        if topic.criterion == "acks":
            acks = read_issued(envelope, built_in=record.source != ACKS)
            received = [
                Received.of(record, write_text(ack), index, None, extension(ack)) for index, ack in enumerate(acks)
            ]
            return AckReading(key, "acks", topic, received)
        if topic.criterion == "errors":
            return AckReading(key, "error", topic, [Received.whole(record, envelope, None)], envelope)
        if topic.criterion in ("commands", "messages") and envelope.status is not None:
            label = RESPONSE_LABELS[topic.channel or "twin"]
            return AckReading(key, "response", topic, [Received.whole(record, envelope, label)], envelope)
        raise errors.unknown_topic_path(
            str(topic), "Only acknowledgements, responses (with a status) and errors answer a request."
        )

    def address(self, record: Record) -> tuple[ReplyAddress, DittoError | None]:
        """Return the valid choices of a request for its reply, and the error in the first invalid one."""
        (topic, partition, _), refused = self._usual
        try:
            topic = self._reply_topic(record)
            partition = _reply_partition(record)
        except DittoError as error:
            refused = error
        spring_correlation = record.headers.get(record_headers.SPRING_CORRELATION_ID)
        if len(spring_correlation or b"") > MAX_BYTES:
            refused = refused or errors.header_too_long(record_headers.SPRING_CORRELATION_ID, MAX_BYTES)
            spring_correlation = None
        return ReplyAddress(topic, partition, spring_correlation), refused

    def _reply_topic(self, record: Record) -> str:
        """Return the chosen reply topic, else ``replies``; DittoError 400 ``header.invalid`` if it is not allowed."""
        names = (record_headers.REPLY_TO, record_headers.SPRING_REPLY_TOPIC)
        name = next((name for name in names if name in record.headers), None)
        if name is None:
            return self._topics.replies
        topic = str(record.headers[name], "utf-8", "replace")
        if not self._limits.accepts_reply_topic(topic, self._topics.replies):
            raise errors.header_invalid(
                name,
                f"The value '{shown(topic)}' of the header '{name}' is not an allowed reply topic.",
                "Choose a topic that matches one of the configured reply topics, or omit the header.",
            )
        return topic

    def _refusal(self, request: Request) -> DittoError | None:
        if request.kind == "smartQuery":
            why = "The gateway decides which channel answers; elsewhere query the twin with a condition first."
            return errors.not_available(f"The header '{LIVE_CHANNEL_CONDITION}'", why)
        if len(request.awaited) <= self._limits.max_labels:
            return None
        return errors.header_invalid(
            "requested-acks",
            f"The header 'requested-acks' has {len(request.awaited)} labels.",
            f"Request at most {self._limits.max_labels} acknowledgements at once.",
        )

    def _value(self, record: Record, *, empty: bool = False) -> bytes:
        if record.value is None and not empty:
            raise errors.json_invalid("The record has no value (a tombstone).")
        limit = self._limits.max_value_bytes
        if record.size > limit:
            raise errors.record_too_large(record.size, limit)
        check_id(record)
        return record.value or b""


def check_id(record: Record) -> None:
    """Raise 400 for a correlation-id that is too long."""
    if record.correlation_id and is_too_long(record.correlation_id):
        raise errors.header_too_long(record_headers.CORRELATION_ID, MAX_BYTES)


def _reply_partition(record: Record) -> int | None:
    """Return the partition chosen for the reply; ``None``: any; DittoError 400 ``header.invalid`` for no number."""
    chosen = record.headers.get(record_headers.SPRING_REPLY_PARTITION)
    if chosen is None:
        return None
    partition = int.from_bytes(chosen, "big", signed=True)
    if len(chosen) == INTEGER_BYTES and partition >= 0:
        return partition
    raise errors.header_invalid(
        record_headers.SPRING_REPLY_PARTITION,
        f"The value of the header '{record_headers.SPRING_REPLY_PARTITION}' is not the number of a partition.",
        f"Give the number as a big-endian integer of {INTEGER_BYTES} bytes, or omit the header.",
    )
