"""Aggregates: the replies to requesters, one entry per acknowledgement; written from JSON texts.

Headers become text once, when a message is read: an aggregate repeats them by joining texts. Headers of a known shape
are parsed once and remembered; anything unusual or wrong is read by ``decode`` and ``read_ack``, or ``read_request``,
with the same result. Source of the rules: Eclipse Ditto, ``AcknowledgementsAdapter``, ``Acknowledgements``.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ackstream.protocol.ditto import envelopes
from ackstream.protocol.ditto import headers as definitions
from ackstream.protocol.ditto.acknowledgements import OK, SUCCESSES, Acknowledgement, acknowledgement
from ackstream.protocol.ditto.envelopes import Envelope, decode, raw
from ackstream.protocol.ditto.labels import BUILT_IN, parse_label
from ackstream.protocol.ditto.requests import Request, read_request
from ackstream.protocol.ditto.topics import UNKNOWN_THING, TopicPath
from ackstream.protocol.errors import DittoError
from ackstream.protocol.json import MAX_DEPTH, UNREADABLE
from ackstream.protocol.record_headers import with_trace

FAILED_DEPENDENCY = 424
_NO_HEADERS = b"{}"
_OWN_CONTENT_TYPE = (definitions.CONTENT_TYPE, envelopes.PROTOCOL_CONTENT_TYPE)
read_text = msgspec.json.Decoder(dict[str, Any]).decode
"""Return headers that were written as JSON text."""


class AckText(msgspec.Struct, frozen=True):
    """An acknowledgement as an aggregate repeats it: its headers are JSON text."""

    label: str
    status: int
    payload: Raw | UnsetType
    headers: bytes
    weak: bool = False


def write_text(ack: Acknowledgement) -> AckText:
    """Return an acknowledgement with its headers as JSON text."""
    return AckText(ack.label, ack.status, ack.payload, _encode(ack.headers), ack.weak)


def headers_text(headers: Mapping[str, Any]) -> Raw:
    """Return the headers of an aggregate of several entries, given those of the answer to its request, as JSON text."""
    return raw({**definitions.reply_headers(headers), definitions.CONTENT_TYPE: envelopes.JSON_CONTENT_TYPE})


def combined_status(statuses: Sequence[int]) -> int:
    """Return the status of an aggregate: that of a single entry; 200 without entries, or if all are 2xx; else 424."""
    if len(statuses) == 1:
        return statuses[0]
    return OK if SUCCESSES.issuperset(statuses) else FAILED_DEPENDENCY


def write_aggregate(
    entries: Sequence[Any],
    *,
    thing_id: str | None,
    channel: str | None,
    headers: Raw | bytes,
    status: int | None = None,
) -> tuple[int, bytes]:
    """Write an aggregate; return its status and its text. If a label occurs twice, the last entry stays."""
    # ``entries``: AckText, or others with its fields, whose payload may be None; ``thing_id``: None if unknown;
    # ``channel``: live, or anything else for twin; ``headers``: headers_text() of the request; ``status``: of a quorum
    status = status or combined_status([ack.status for ack in entries])
    if len(entries) == 1:
        headers = raw(read_text(entries[0].headers) | read_text(headers))
    namespace, _, name = (thing_id or UNKNOWN_THING).partition(":")
    topic = _encode(f"{namespace}/{name}/things/{'live' if channel == 'live' else 'twin'}/acks")
    parts, separator = [b'{"topic":', topic, b',"headers":', headers, b',"path":"/","value":{'], b""
    for ack in {ack.label: ack for ack in entries}.values():
        parts += (separator, _beginning(ack.label, ack.status))
        if ack.payload:
            parts += (b',"payload":', ack.payload)
        # headers without entries are left out
        if len(ack.headers) > len(_NO_HEADERS):
            parts += (b',"headers":', ack.headers)
        separator = b"},"
    parts.append(b'%b},"status":%d}' % (separator[:1], status))
    return status, b"".join(parts)


@lru_cache(maxsize=4096)
def _beginning(label: str, status: int) -> bytes:
    return b'%b:{"status":%d' % (_encode(label), status)


def write_acks(
    entries: Iterable[Acknowledgement], *, thing_id: str | None, channel: str | None, headers: Mapping[str, Any]
) -> Envelope:
    """Return an aggregate of :func:`write_aggregate` as a message. ``headers``: of the request."""
    texts = list(map(write_text, entries))
    return decode(write_aggregate(texts, thing_id=thing_id, channel=channel, headers=headers_text(headers))[1])


def http_body(entries: Sequence[Acknowledgement]) -> tuple[int, Raw | UnsetType]:
    """Return status and body of an HTTP answer; without entries there is no body."""
    # With one entry it is the payload, with several ``{label: {status, payload?, headers}}``, with an array for a label
    # that occurs twice; a content-type of Ditto's own type is omitted.
    status = combined_status([ack.status for ack in entries])
    if len(entries) <= 1:
        return status, entries[0].payload if entries else UNSET
    body: dict[str, list[dict[str, Any]]] = {}
    for ack in entries:
        headers = {key: value for key, value in ack.headers.items() if (key, value) != _OWN_CONTENT_TYPE}
        payload = {} if ack.payload is UNSET else {"payload": ack.payload}
        body.setdefault(ack.label, []).append({"status": ack.status, **payload, "headers": headers})
    return status, raw({label: same[0] if len(same) == 1 else same for label, same in body.items()})


class _Wire(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    headers: Raw
    path: str
    status: int
    value: Raw | UnsetType = UNSET


_decode_wire = msgspec.json.Decoder(_Wire).decode
_decode_value = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode

_NAME = b'"correlation-id":'
_PLACEHOLDER = "\x00"
_WRITTEN_PLACEHOLDER = _encode(_PLACEHOLDER)

# longer headers are read, but not remembered
_REMEMBERED_BYTES = 1_024
_REMEMBERED_TOPIC = 256


def read_single(data: bytes, correlation_id: str) -> tuple[str, str, int, Raw | UnsetType, bytes, bool] | None:
    """Read an acknowledgement ``…/acks/label`` with a status whose headers have the correlation-id of its record."""
    # returns the thing's id, and the fields of AckText; None for everything else, valid or not
    try:
        wire = _decode_wire(data)
        if wire.value is not UNSET:
            # a raw value is copied unchecked
            _decode_value(wire.value)
        if len(data) > 2 * MAX_DEPTH:
            envelopes.check_parts(data)
            envelopes.check_depth(data)
        namespace, entity, suffix = wire.topic.split("/", 2)
        label = _single_label(suffix) if len(suffix) <= _REMEMBERED_TOPIC else None
        possible = namespace and entity and envelopes.STATUS_MIN <= wire.status <= envelopes.STATUS_MAX
        if label is None or not possible:
            return None
        own = _encode(correlation_id)
        before, _, after = bytes(wire.headers).partition(_NAME)
        if after.startswith(b" "):
            after = after.lstrip(b" ")
        if not after.startswith(own) or len(before) + len(after) > _REMEMBERED_BYTES:
            return None
        shape = _ack_shape(before, after[len(own) :])
    except (DittoError, ValueError, *UNREADABLE):
        return None
    if shape is None:
        return None
    before, after, weak = shape
    return f"{namespace}:{entity}", label, wire.status, wire.value, b"".join((before, own, after)), weak


@lru_cache(maxsize=4096)
def _single_label(suffix: str) -> str | None:
    """Return the label that ends a topic path, if that is the one of a single acknowledgement of a subscriber."""
    topic = TopicPath.parse(f"ns/name/{suffix}")
    single = topic.criterion == "acks" and topic.subject not in (None, *BUILT_IN) and topic.channel is not None
    return parse_label(topic.subject or "") if single else None


@lru_cache(maxsize=4096)
def _ack_shape(before: bytes, after: bytes) -> tuple[bytes, bytes, bool] | None:
    """Return the headers that an answer repeats, before and after the correlation-id, and whether they make it weak."""
    headers = read_text(b"".join((before, _NAME, _WRITTEN_PLACEHOLDER, after)))
    try:
        envelopes.check_storable(headers)
    except OverflowError:
        return None
    written = write_text(acknowledgement("shape", envelopes.STATUS_MIN, headers=headers))
    parts = written.headers.split(_WRITTEN_PLACEHOLDER)
    # the correlation-id may not be a header of its own, or occur in another one
    return (parts[0], parts[1], written.weak) if len(parts) == 2 else None  # noqa: PLR2004 - it occurs once


_SOME_TEXT = "text"


def answered(request: Request, correlation_id: str) -> tuple[Request, bytes]:
    """Return a request whose only header is its correlation-id, and as text the headers that an aggregate repeats."""
    own = {definitions.CORRELATION_ID: correlation_id}
    return msgspec.structs.replace(request, headers=own), bytes(headers_text(request.headers | own))


class _Signal(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    headers: dict[str, Any]
    path: str
    value: Raw | UnsetType = UNSET


_decode_signal = msgspec.json.Decoder(_Signal).decode


def read_shaped(
    data: bytes, correlation_id: str, default_timeout_ms: int, max_timeout_ms: int, traceparent: bytes | None = None
) -> tuple[Request, bytes, str | None, dict[str, Any], Raw | UnsetType, bool] | None:
    """Read a request as ``decode``, ``read_request`` and :func:`answered` do; ``None`` for everything unusual."""
    # ``data``: small; headers of its shape are remembered; ``correlation_id``, ``traceparent``: of the record; returns
    # also the channel of its topic path, all its headers, its value, and whether one of the headers names the sender
    try:
        wire = _decode_signal(data)
        if wire.value is not UNSET:
            # a raw value is copied unchecked
            _decode_value(wire.value)
        envelopes.check_depth(data)
        headers = wire.headers if traceparent is None else with_trace(wire.headers, traceparent)
        namespace, entity, suffix = wire.topic.split("/", 2)
        names = tuple(headers)
        texts, typed, usual, sender = _names(names)
        if not (usual and namespace and entity and correlation_id) or len(suffix) > _REMEMBERED_TOPIC:
            return None
        if headers.get(definitions.CORRELATION_ID, correlation_id) != correlation_id:
            return None
        for name in texts:
            if type(headers[name]) is not str:
                return None
        # as JSON they can be compared: [1] equals [True]
        values = _encode([headers[name] for name in typed])
        shape = _shape(suffix, names, default_timeout_ms, max_timeout_ms, values)
    except (DittoError, TypeError, ValueError, OverflowError, *UNREADABLE):
        return None
    like, channel, repeated, own = shape
    identity = {definitions.CORRELATION_ID: correlation_id}
    answer = repeated | {name: headers[name] for name in own} | identity
    thing_id = f"{namespace}:{entity}" if like.thing_id else None
    request = msgspec.structs.replace(like, thing_id=thing_id, headers=identity, path=wire.path)
    return request, _encode(answer), channel, headers, wire.value, sender


@lru_cache(maxsize=4096)
def _names(names: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...], bool, bool]:
    """Return the names with any text, those whose values matter, and whether all known ones are in lower case."""
    # and whether one names the sender
    texts = tuple(name for name in names if name in definitions.TEXTS or name not in definitions.DEFINITIONS)
    typed = tuple(name for name in names if name not in texts and name != definitions.CORRELATION_ID)
    # the values of these texts matter
    spelled = not {definitions.ACK_QUORUM, definitions.PROGRESS, definitions.AMEND} & {*names} and all(
        name in definitions.DEFINITIONS or name.lower() not in definitions.DEFINITIONS for name in names
    )
    return texts, typed, spelled, definitions.ORIGINATOR in names


@lru_cache(maxsize=4096)
def _shape(
    suffix: str, names: tuple[str, ...], default_timeout_ms: int, max_timeout_ms: int, values: bytes
) -> tuple[Request, str | None, dict[str, Any], tuple[str, ...]]:
    """Read a request like those of a shape, with the values of the headers that are not texts."""
    # returns it, the channel of its topic path, the headers that an aggregate repeats, and the names of those with the
    # values of each request
    texts, typed, *_ = _names(names)
    known = dict(zip(typed, _decode_value(values), strict=True))
    envelopes.check_storable(known)
    envelope = Envelope(TopicPath.parse(f"ns/name/{suffix}"), {name: known.get(name, _SOME_TEXT) for name in names})
    request = read_request(envelope, default_timeout_ms=default_timeout_ms, max_timeout_ms=max_timeout_ms)
    repeated = read_text(answered(request, _SOME_TEXT)[1])
    own = tuple(name for name in texts if name in repeated and name != definitions.CONTENT_TYPE)
    return request, envelope.topic.channel, repeated, own
