"""Signals as receivers get them, and a handler's answers (Eclipse Ditto, specification of the protocol)."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from ackstream.client.core.messages import text, without_client
from ackstream.client.parties.answers import Ack, After, Answer, Delayed, OpenDelivery, Response
from ackstream.client.requests.commands import duration_text, json_value
from ackstream.protocol import record_headers
from ackstream.protocol.ditto import headers as names
from ackstream.protocol.ditto.acknowledgements import INTERNAL_ERROR, PROCESSING, Acknowledgement, write_ack
from ackstream.protocol.ditto.correlation_ids import correlation_id
from ackstream.protocol.ditto.envelopes import JSON_CONTENT_TYPE, Envelope, decode, decoded, error_envelope
from ackstream.protocol.ditto.labels import BUILT_IN, LIVE_RESPONSE
from ackstream.protocol.ditto.record_requests import ASKING, read_record, write_value
from ackstream.protocol.ditto.requests import read_request
from ackstream.protocol.ditto.signal_defaults import DEFAULT_TIMEOUT_MS, SMART_MAXIMUM_MS
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.ditto.twin.access import believed
from ackstream.protocol.ditto.twin.subscriptions import Publication, publication
from ackstream.protocol.durations import Duration
from ackstream.protocol.errors import DittoError, json_invalid, unknown_topic_path
from ackstream.protocol.ledger import reply_id
from ackstream.settings.security import Secret

Expired = Literal["skip", "handle"]
"""Whether a command whose deadline has passed is handled."""


class ResponderStatistics(msgspec.Struct, frozen=True):
    """Signals and answers by outcome.

    ``received`` is the sum of ``handled``, ``skipped`` (invalid requests), ``expired`` (their deadline had passed),
    ``cancelled`` (by its requester, before) and ``repeated`` (answered as before: ``once``); of the handled ones
    ``failed`` ended in an exception. ``answers`` were stored by the broker, ``delayed`` ones wait for their time or for
    the lease of the labels, ``sending`` ones for the broker; ``lost`` ones were rejected by it, or are under labels
    that another client has. ``unreadable`` records could not be unpacked.
    """

    received: int
    handled: int
    skipped: int
    expired: int
    cancelled: int
    repeated: int
    failed: int
    answers: int
    delayed: int
    sending: int
    lost: int
    unreadable: int


class SubscriberStatistics(ResponderStatistics, frozen=True):
    """Signals and answers by outcome, as in ``ResponderStatistics``.

    ``received`` includes the ``dropped`` signals (not subscribed, filtered or hidden), whose weak acknowledgements
    ``weak`` counts; ``unanswered`` signals were not acknowledged in time.
    """

    dropped: int
    unanswered: int
    weak: int


@dataclass(frozen=True)
class Signal:
    """A signal.

    :ivar labels: the requested acknowledgements that its receiver issues, in order of the request
    :ivar response_required: whether the sender requires a response
    :ivar response_wanted: whether this receiver has to respond to a live command or message
    :ivar timeout_ms: how long answers count; ``None`` if that is unknown (an event)
    :ivar timestamp: the broker's time in epoch milliseconds, from which the timeout of a command or message runs
    :ivar expired: whether it was awaited, and its timeout had passed, when the handler was called: its sender has been
        answered, mostly with 408
    """

    correlation_id: str
    envelope: Envelope
    channel: str
    labels: tuple[str, ...]
    response_required: bool
    response_wanted: bool
    timeout_ms: int | None
    timestamp: int
    topic: str
    partition: int
    offset: int
    expired: bool = field(default=False, kw_only=True)
    _open: OpenDelivery | None = field(default=None, repr=False, compare=False, kw_only=True)

    __getstate__ = without_client

    def working(self, extend: float | str | None = None) -> None:
        """Acknowledge that the work continues (status 102) under all labels, and as a response if one is wanted.

        From any thread. Other members of a group that get the signal after its first timeout see it as expired.

        :param extend: seconds, or a duration such as ``"30s"``, that it may still take from now on: answers count until
            then, at most ``correlate.max_timeout`` after the request. ``None``: no longer than before
        :raises DittoError: the duration is invalid
        """
        headers = {} if extend is None else {names.EXTEND: str(Duration.parse(duration_text(extend)))}
        answers: list[Answer] = [Ack(PROCESSING, headers=headers)]
        if self.response_wanted:
            answers.append(Response(PROCESSING, headers=headers))
        if self._open is not None:
            if extend is not None:
                self._open.extension = Duration.parse(headers[names.EXTEND]).capped(SMART_MAXIMUM_MS) / 1000
            self._open.send(messages(self, answers))

    @cached_property
    def reply_id(self) -> str:
        """The id of the request in the service's records about it; a copy that is read again has the same."""
        return reply_id(self.correlation_id, self.topic, self.partition, self.offset)

    @property
    def identity(self) -> str:
        """The key of the request in a file: its reply-id, which a re-created topic may repeat, and its time."""
        return f"{self.reply_id}-{self.timestamp}"

    @property
    def cancelled(self) -> bool:
        """Whether its requester has cancelled it, as far as is known; from any thread. Answers are late then."""
        # a copy in another process does not know
        return self._open is not None and self._open.is_cancelled()

    @property
    def thing_id(self) -> str:
        """The id of the entity the signal is for."""
        return self.envelope.topic.thing_id

    @property
    def path(self) -> str:
        """The JSON pointer to the part of the entity that the signal concerns."""
        return self.envelope.path

    @cached_property
    def value(self) -> Any:
        """The JSON value; ``None`` if it is absent."""
        return decoded(self.envelope.value)


@dataclass(frozen=True)
class RecordSignal(Signal):
    """A record of any kind that requests acknowledgements: a signal of the thing ``unknown:unknown``.

    :ivar key: its key
    :ivar content: its value, as it is
    :ivar headers: its headers, without empty ones; the last value of a name that occurs twice
    """

    key: bytes | None
    content: bytes | None
    headers: dict[str, bytes]

    @cached_property
    def value(self) -> Any:
        """The content as JSON or text, by the header ``content-type``; ``None`` if it is neither."""
        found, codec = write_value(self.content, text(self.headers.get(names.CONTENT_TYPE)))
        return None if codec == "base64" else decoded(found)


def read_signal(
    record: Any,
    labels: Collection[str],
    key: Secret | None = None,
    over: Callable[[Any, int | None], bool] = lambda *_: False,
) -> Signal:
    """Return a record as a command or message to a responder of ``labels``; the service answers a ``DittoError``.

    ``over`` returns whether the timeout of a record, in milliseconds, is known to be over.
    """
    if record.value is None:
        raise json_invalid("The record has no value (a tombstone).")
    envelope = _decode(record, key)
    # correlate accepts answers for the same time
    request = read_request(envelope, max_timeout_ms=SMART_MAXIMUM_MS)
    own = tuple([name for name in request.awaited if name not in BUILT_IN and name in labels])
    required, timeout_ms = request.response_required, request.timeout_ms
    wanted = request.channel == "live" and required and LIVE_RESPONSE in labels
    place = (record.timestamp, record.topic, record.partition, record.offset)
    identity = _correlation_id(record, envelope)
    expired = request.awaits and over(record, timeout_ms)
    return Signal(identity, envelope, request.channel, own, required, wanted, timeout_ms, *place, expired=expired)


def read_record_signal(
    record: Any, labels: Collection[str], over: Callable[[Any, int | None], bool]
) -> RecordSignal | None:
    """Return a record of any kind as :func:`read_signal` does a command; ``None`` if it requests none of the labels."""
    headers = {name: value for name, value in record.headers if value}
    if not headers.keys() & {*ASKING}:
        return None
    request, _ = read_record(headers, default_timeout_ms=DEFAULT_TIMEOUT_MS, max_timeout_ms=SMART_MAXIMUM_MS)
    place = (record.topic, record.partition, record.offset)
    identity = names.read_correlation_id(record_correlation_id(headers, place))
    envelope = Envelope(TopicPath.of(None, "live", "messages", "record"), {})
    own, wanted = tuple([name for name in request.awaited if name in labels]), False
    if not own:
        return None
    return RecordSignal(
        identity, envelope, request.channel, own, request.response_required, wanted, request.timeout_ms,
        record.timestamp, *place, record.key, record.value, headers,
        expired=request.awaits and over(record, request.timeout_ms),
    )  # fmt: skip


def read_publication(record: Any, key: Secret | None = None) -> Publication | None:
    """Return a record as a signal for subscribers, ``None`` if none gets it; the service answers a ``DittoError``."""
    if record.value is None:
        return None
    envelope = _decode(record, key)
    return publication(envelope, _correlation_id(record, envelope))


def _decode(record: Any, key: Secret | None) -> Envelope:
    envelope = decode(record.value)
    if names.names_sender(envelope.headers):
        named = dict(record.headers)
        identity = (named.get(record_headers.CORRELATION_ID) or b"").decode("utf-8", "replace")
        signed = named.get(record_headers.ORIGINATOR_SIGNATURE)
        secret = None if key is None else key.reveal()
        envelope.headers = believed(envelope.headers, secret, identity, record.value, signed)
    return envelope


def record_correlation_id(headers: Mapping[str, bytes], coordinates: tuple[str, int, int]) -> str:
    """Return the correlation-id of a request that is a record of any kind; ``ce_id`` counts before Spring's."""
    event = {names.CORRELATION_ID: text(headers.get(record_headers.CE_ID))}
    return correlation_id(headers.items(), event, coordinates)


def _correlation_id(record: Any, envelope: Envelope) -> str:
    coordinates = (record.topic, record.partition, record.offset)
    return names.read_correlation_id(correlation_id(record.headers, envelope.headers, coordinates))


def messages(signal: Signal, answer: Answer, delay: float = 0.0) -> list[Delayed]:
    """Return the messages of an answer; raise ``TypeError`` for another object.

    :raises DittoError: a label is invalid or built in, or it is a response to a command that the twin answers
    """
    match answer:
        case None:
            return []
        case Ack():
            labels = signal.labels if answer.label is None else (answer.label,)
            return [(delay, _ack(signal, answer, label)) for label in labels]
        case Response():
            return [(delay, _response(signal, answer))]
        case DittoError():
            is_live = signal.channel == "live" and not isinstance(signal, RecordSignal)
            return [(delay, _error(signal, answer))] if is_live else _nacks(signal, answer, delay)
        case After():
            return messages(signal, answer.answer, delay + answer.seconds)
        case Iterable() if not isinstance(answer, (str, bytes, dict)):
            return [message for part in answer for message in messages(signal, part, delay)]
    raise TypeError(f"A handler returns Ack, Response, DittoError, After, several of these or None, not {answer!r}.")


def failure(signal: Signal, error: Exception) -> list[Delayed]:
    """Return a failed handler's answers: a nack for each label, and the response if one is wanted, with the error.

    A ``DittoError`` gives its own status and texts, anything else 500.
    """
    if not isinstance(error, DittoError):
        text = str(error) or type(error).__name__
        error = DittoError(INTERNAL_ERROR, "responder:handler.failed", f"The handler of the signal failed: {text}")
    nacks = _nacks(signal, error)
    return [*nacks, (0.0, _error(signal, error))] if signal.response_wanted else nacks


def _nacks(signal: Signal, error: DittoError, delay: float = 0.0) -> list[Delayed]:
    nack = Ack(error.status, error.to_dict(), headers={names.CONTENT_TYPE: JSON_CONTENT_TYPE})
    return messages(signal, nack, delay)


def _ack(signal: Signal, ack: Ack, label: str) -> Envelope:
    headers = {**ack.headers, names.CORRELATION_ID: signal.correlation_id}
    version = signal.envelope.headers.get(names.VERSION)
    if version is not None:
        headers.setdefault(names.VERSION, version)
    if signal.channel == "live":
        headers[names.CHANNEL] = "live"
    return write_ack(Acknowledgement(label, ack.status, json_value(ack.payload), headers), signal.thing_id)


def _response(signal: Signal, response: Response) -> Envelope:
    command = signal.envelope
    if signal.channel != "live" or isinstance(signal, RecordSignal):
        raise unknown_topic_path(str(command.topic), "A client responds to live signals only: acknowledge a label.")
    headers = {**response.headers, names.CORRELATION_ID: signal.correlation_id, names.RESPONSE_REQUIRED: False}
    # a header may have made the command live
    topic = msgspec.structs.replace(command.topic, channel="live")
    return Envelope(topic, headers, command.path, json_value(response.value), status=response.status)


def _error(signal: Signal, error: DittoError) -> Envelope:
    return error_envelope(
        error, thing_id=signal.thing_id, channel=signal.channel, headers={names.CORRELATION_ID: signal.correlation_id}
    )


@dataclass(frozen=True, eq=False)
class Delivered(Signal):
    """A signal that a subscriber received; it may be answered while its handler runs, and later from any thread."""

    def answer(self, answer: Answer) -> None:
        """Send an answer.

        :raises DittoError: a label is invalid, built in, or was not requested of this subscriber
        :raises TypeError: it is not an answer
        """
        if self._open is not None:
            self._open.send(messages(self, answer))

    def ack(self, status: int = 200, payload: Any = UNSET, label: str | None = None) -> None:
        """Acknowledge under one label, or under all of ``labels``; a status other than 2xx is a nack."""
        self.answer(Ack(status, payload, label))
