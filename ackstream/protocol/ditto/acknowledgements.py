"""Acknowledgements on the wire: single, aggregated, and command responses that count as one.

Source of the rules: Eclipse Ditto, ``AcknowledgementAdapter``, ``AcknowledgementsAdapter``, ``Acknowledgements``,
``DefaultExceptionToAcknowledgementConverter``.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ackstream.protocol import errors
from ackstream.protocol.ditto import headers as names
from ackstream.protocol.ditto.envelopes import STATUS_MAX, STATUS_MIN, Envelope, json_text, raw
from ackstream.protocol.ditto.labels import RESPONSE_LABELS, check_declared, parse_declared, parse_label
from ackstream.protocol.ditto.requests import Request, message_headers
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.durations import Duration
from ackstream.protocol.errors import REQUEST_TIMEOUT, DittoError

PROCESSING = 102
"""The status of progress (RFC 2518): the party is at work, and its answer will follow."""
OK = 200
INTERNAL_ERROR = 500
ResponseType = Literal["response", "nack", "error"]


class Acknowledgement(msgspec.Struct):
    """One party's acknowledgement of a request: a label, an HTTP status, an optional payload, headers."""

    label: str
    status: int
    payload: Raw | UnsetType = UNSET
    headers: dict[str, Any] = {}

    @property
    def timed_out(self) -> bool:
        """Return whether the status is 408."""
        return self.status == REQUEST_TIMEOUT

    @property
    def weak(self) -> bool:
        """Return whether the system issued it, because the signal does not concern the party."""
        return self.headers.get(names.WEAK_ACK) is True


def extension(ack: Acknowledgement) -> int:
    """Return the further milliseconds that a party requests with its report of progress. Raises 400."""
    text = ack.headers.get(names.EXTEND) if ack.status == PROCESSING else None
    # longer ones leave the range of timestamps
    return 0 if text is None else Duration.parse(str(text)).capped(10**15)


SUCCESSES = frozenset(range(OK, 300))


def is_success(status: int) -> bool:
    """Return whether an HTTP status is 200 to 299; 1xx and 3xx are not successes."""
    return status in SUCCESSES


def acknowledgement(
    label: str, status: int, payload: Raw | UnsetType = UNSET, headers: Mapping[str, Any] | None = None
) -> Acknowledgement:
    """Return an acknowledgement as received: requested-acks and nulls dropped. Raises 400 for a header's wrong type."""
    return Acknowledgement(label, status, payload, names.answer_headers(headers or {}))


def read_ack(envelope: Envelope) -> Acknowledgement:
    """Read ``namespace/name/things/(twin|live)/acks/label`` with a status. Raises 400, for a built-in label too."""
    status, label = _status(envelope, single=True), parse_declared(envelope.topic.subject or "")
    return acknowledgement(label, status, envelope.value, envelope.headers)


def _status(envelope: Envelope, *, single: bool) -> int:
    """Return the status of an acknowledgement or aggregate. Raises 400 for another topic, or one without a status."""
    topic, status = envelope.topic, envelope.status
    other = topic.criterion != "acks" or (topic.subject is not None) is not single
    if other or topic.channel is None or status is None:
        raise errors.unknown_topic_path(str(topic))
    return status


_OPENING_BRACE = ord("{")
_NULL = Raw(b"null")
_NO_HEADERS = {"headers": Raw(b"{}")}
_decode = msgspec.json.Decoder().decode
_read_object = msgspec.json.Decoder(dict[str, Raw]).decode


def read_acks(envelope: Envelope) -> list[Acknowledgement]:
    """Read the entries of an aggregate: a topic without label, the value ``{label: {status, payload?, headers?}}``."""
    # The status of the whole is trusted; built-in labels are accepted (of subscribers: read_issued()). Raises 400.
    _status(envelope, single=False)
    if envelope.value is UNSET:
        raise errors.json_field_missing("/value")
    entries = [read_entry(label, _NO_HEADERS | _object(value)) for label, value in _object(envelope.value).items()]
    if not entries:
        raise errors.json_format_invalid("The argument 'acknowledgements' must not be empty!")
    return entries


def read_issued(envelope: Envelope, *, built_in: bool = False) -> list[Acknowledgement]:
    """Read an acknowledgement or an aggregate. Raises 400, for a built-in label too."""
    # ``built_in``: the system wrote it; its aggregates may have these.
    if envelope.topic.subject is not None:
        return [read_ack(envelope)]
    acks = read_acks(envelope)
    for ack in () if built_in else acks:
        parse_declared(ack.label)
    return acks


def with_headers(answer: Envelope, change: Callable[[dict[str, Any]], Mapping[str, Any]]) -> Raw | UnsetType:
    """Return the value of an answer; of an aggregate, with ``change`` applied to the headers of each entry."""
    if answer.topic.criterion != "acks" or answer.topic.subject is not None or answer.value is UNSET:
        return answer.value
    entries = {label: _object(entry) for label, entry in _object(answer.value).items()}
    for entry in entries.values():
        if "headers" in entry:
            entry["headers"] = raw(change(_decode(entry["headers"]) or {}))
    return raw(entries)


def taken_entries(answer: Envelope) -> Raw | UnsetType:
    """Return the value of an answer that was checked; of an aggregate, with the headers that are taken from clients."""
    return with_headers(answer, names.taken_headers)


def _object(value: Raw) -> dict[str, Raw]:
    if memoryview(value)[0] != _OPENING_BRACE:
        raise errors.json_format_invalid(f"This JSON value is not an object: {json_text(_decode(value))}")
    return _read_object(value)


def read_entry(label: str, fields: Mapping[str, Raw]) -> Acknowledgement:
    """Read an entry of an aggregate from its fields. Raises 400 ``json.field.missing`` or ``json.invalid``."""
    try:
        parse_label(label)
    except DittoError as error:
        raise DittoError(error.status, "json.invalid", error.message, error.description) from error
    status = _decode(fields.get("status", _NULL))
    if status is None:
        raise errors.json_field_missing("/status")
    if type(status) is not int:
        raise errors.json_type_invalid(json_text(status), "/status", "Integer")
    if not STATUS_MIN <= status <= STATUS_MAX:
        raise errors.json_invalid(f"Provided HTTP status code <{status}> is not within the range of 100 to 599.")
    headers = _decode(fields.get("headers", _NULL))
    if headers is None:
        raise errors.json_field_missing("/headers")
    if not isinstance(headers, dict):
        raise errors.json_type_invalid(json_text(headers), "/headers", "JsonObject")
    return acknowledgement(label, status, fields.get("payload", UNSET), headers)


def write_ack(ack: Acknowledgement, thing_id: str) -> Envelope:
    """Write an acknowledgement, of the twin unless the header ``channel`` is ``live``. Raises 400 for its label."""
    parse_declared(ack.label)
    topic = TopicPath.of(thing_id, ack.headers.get(names.CHANNEL), "acks", ack.label)
    return Envelope(topic, ack.headers | {names.RESPONSE_REQUIRED: False}, "/", ack.payload, status=ack.status)


def response_type(statuses: Iterable[int]) -> ResponseType:
    """Return ``response`` if all statuses of an acknowledgement or aggregate are successes, else ``nack``."""
    return "response" if all(map(is_success, statuses)) else "nack"


def response_to_ack(request: Request, response: Envelope) -> Acknowledgement:
    """Return the acknowledgement that a command response counts as."""
    # The label is live-response if the command is live or smart, else twin-persisted. The payload is the entity of a
    # modify response or the payload of a message; queries and errors lose theirs. Source:
    # ThingCommandResponseAcknowledgementProvider, MessageCommandResponseAcknowledgementProvider.
    topic = response.topic
    headers = names.answer_headers(response.headers)
    if topic.channel == "live":
        headers[names.CHANNEL] = "live"
    payload: Raw | UnsetType = UNSET
    if topic.criterion == "messages":
        headers |= message_headers(response)
        payload = response.value
    elif topic.criterion == "commands" and topic.action != "retrieve":
        payload = response.value
    label = RESPONSE_LABELS["live" if request.live else "twin"]
    return Acknowledgement(label, response.status or INTERNAL_ERROR, payload, headers)


def live_response(signal: Envelope, ack: Acknowledgement) -> Envelope:
    """Return the response to a live command or message that counts as an acknowledgement ``live-response``."""
    headers = ack.headers | {names.CHANNEL: "live", names.RESPONSE_REQUIRED: False}
    return Envelope(signal.topic, headers, signal.path, ack.payload, status=ack.status)


def issued_ack(label: str, error: BaseException, headers: Mapping[str, Any]) -> Acknowledgement:
    """Return the acknowledgement that a transport issues because it could not publish a signal with these headers."""
    # a Ditto error gives its own status and JSON; any other error gives 500, its name and its text
    if isinstance(error, DittoError):
        body = error.to_dict()
        return acknowledgement(label, body.pop("status"), raw(body), headers)
    return acknowledgement(label, INTERNAL_ERROR, raw(failure(error)), headers)


def failure(error: BaseException) -> dict[str, str]:
    """Return the payload that reports an error other than Ditto's: its name and its text."""
    description, cause = str(error) or "Unknown error.", error.__cause__
    if cause is not None:
        name = type(cause).__name__
        description = f"{str(error) or str(cause) or name} - Caused by <{name}>."
    return {"message": f"Encountered <{type(error).__name__}>.", "description": description}


_ANSWERS = frozenset({"commands", "messages", "errors"})


def check_answer(envelope: Envelope, declared: Collection[str], otherwise: str) -> None:
    """Check that a device or subscriber may send an answer: an acknowledgement, or a live response or error."""
    # ``otherwise``: the error's description for any other message. Raises DittoError 400, also for a label that is not
    # declared, and for a missing or too long correlation-id.
    topic = envelope.topic
    if topic.criterion == "acks":
        for ack in read_issued(envelope):
            check_declared(ack.label, declared)
    elif topic.channel != "live" or topic.criterion not in _ANSWERS or envelope.status is None:
        # only the twin answers on the twin channel
        raise errors.unknown_topic_path(str(topic), otherwise)
    identity = envelope.headers.get(names.CORRELATION_ID)
    if not identity:
        raise errors.correlation_id_missing()
    names.read_correlation_id(identity)
