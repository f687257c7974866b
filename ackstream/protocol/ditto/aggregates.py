"""Aggregates: the replies to requesters, one entry per acknowledgement; written from JSON texts.

Headers become text when a message is read, once: an aggregate repeats them, and joins texts. Headers of a known shape
are understood once and remembered; everything unusual, or wrong, is read by ``decode`` and ``read_ack``, or
``read_request``, with the same result. Source of the rules: Eclipse Ditto, ``AcknowledgementsAdapter``,
``Acknowledgements``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ackstream.protocol.ditto.acknowledgements import OK, Acknowledgement, acknowledgement, is_success
from ackstream.protocol.ditto.envelopes import (
    JSON_CONTENT_TYPE,
    PROTOCOL_CONTENT_TYPE,
    STATUS_MAX,
    STATUS_MIN,
    Envelope,
    check_depth,
    check_parts,
    check_storable,
    decode,
    raw,
    write,
)
from ackstream.protocol.ditto.headers import CONTENT_TYPE, CORRELATION_ID, DEFINITIONS, TEXTS, reply_headers
from ackstream.protocol.ditto.labels import BUILT_IN, parse_label
from ackstream.protocol.ditto.requests import Request, read_request
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.errors import DittoError
from ackstream.protocol.json import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

FAILED_DEPENDENCY = 424
_NO_HEADERS = b"{}"
_OWN_CONTENT_TYPE = (CONTENT_TYPE, PROTOCOL_CONTENT_TYPE)
read_text = msgspec.json.Decoder(dict[str, Any]).decode
"""Return headers that were written as JSON text."""


class Entry(msgspec.Struct, omit_defaults=True):
    """An entry of an aggregate or HTTP body; the order of the fields is the order on the wire."""

    status: int
    payload: Raw | UnsetType = UNSET
    headers: dict[str, Any] | Raw | UnsetType = UNSET


class AckText(msgspec.Struct, frozen=True):
    """An acknowledgement as an aggregate repeats it: its headers are JSON text."""

    label: str
    status: int
    payload: Raw | UnsetType
    headers: Raw
    weak: bool = False


def write_text(ack: Acknowledgement) -> AckText:
    """Return an acknowledgement with its headers as JSON text."""
    return AckText(ack.label, ack.status, ack.payload, raw(ack.headers), ack.weak)


def headers_text(headers: Mapping[str, Any]) -> Raw:
    """Return the headers of an aggregate of several entries, given those of the answer to its request, as JSON text."""
    return raw({**reply_headers(headers), CONTENT_TYPE: JSON_CONTENT_TYPE})


def combined_status(statuses: Sequence[int]) -> int:
    """Return the status of an aggregate: that of its one entry; of several 200 if all are 2xx, else 424; else 200."""
    if len(statuses) == 1:
        return statuses[0]
    return OK if all(map(is_success, statuses)) else FAILED_DEPENDENCY


def write_aggregate(
    entries: Sequence[AckText], *, thing_id: str | None, channel: str | None, headers: Raw
) -> tuple[int, bytes]:
    """Write an aggregate; return its status and its text. If a label occurs twice, the last entry stays."""
    # ``thing_id``: None if unknown; ``channel``: live, or anything else for twin; ``headers``: headers_text() of the
    # request
    status = combined_status([ack.status for ack in entries])
    if len(entries) == 1:
        headers = raw(read_text(entries[0].headers) | read_text(headers))
    # headers without entries are left out
    empty = len(_NO_HEADERS)
    value = {
        ack.label: Entry(ack.status, ack.payload, ack.headers if len(ack.headers) > empty else UNSET) for ack in entries
    }
    return status, write(str(TopicPath.of(thing_id, channel, "acks")), headers, "/", raw(value), status)


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
    body: dict[str, list[Entry]] = {}
    for ack in entries:
        headers = {key: value for key, value in ack.headers.items() if (key, value) != _OWN_CONTENT_TYPE}
        body.setdefault(ack.label, []).append(Entry(ack.status, ack.payload, headers))
    return status, raw({label: same[0] if len(same) == 1 else same for label, same in body.items()})


# -- single acknowledgements -------------------------------------------------------------------------------------------


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


def read_single(data: bytes, correlation_id: str) -> tuple[TopicPath, AckText] | None:
    """Read an acknowledgement ``…/acks/label`` with a status whose headers have the correlation-id of its record."""
    # returns its topic path and itself; None for everything else, right or wrong
    try:
        check_parts(data)
        wire = _decode_wire(data)
        if wire.value is not UNSET:
            # a raw value is copied unchecked
            _decode_value(wire.value)
        check_depth(data)
        topic = TopicPath.parse(wire.topic)
        label, status = topic.subject, wire.status
        if topic.criterion != "acks" or label is None or topic.channel is None or label in BUILT_IN:
            return None
        if not STATUS_MIN <= status <= STATUS_MAX:
            return None
        parse_label(label)
        own = _encode(correlation_id)
        before, _, after = bytes(wire.headers).partition(_NAME)
        after = after.lstrip(b" ")
        if not after.startswith(own) or len(before) + len(after) > _REMEMBERED_BYTES:
            return None
        shape = _ack_shape(before, after[len(own) :])
    except (DittoError, *UNREADABLE):
        return None
    if shape is None:
        return None
    before, after, weak = shape
    return topic, AckText(label, status, wire.value, Raw(b"".join((before, own, after))), weak)


@lru_cache(maxsize=4096)
def _ack_shape(before: bytes, after: bytes) -> tuple[bytes, bytes, bool] | None:
    """Return the headers that an answer repeats, before and after the correlation-id, and whether they make it weak."""
    headers = read_text(b"".join((before, _NAME, _WRITTEN_PLACEHOLDER, after)))
    try:
        check_storable(headers)
    except OverflowError:
        return None
    written = write_text(acknowledgement("shape", STATUS_MIN, headers=headers))
    parts = bytes(written.headers).split(_WRITTEN_PLACEHOLDER)
    # the correlation-id may not be a header of its own, or occur in another one
    return (parts[0], parts[1], written.weak) if len(parts) == 2 else None  # noqa: PLR2004 - it occurs once


# -- requests of a known shape -----------------------------------------------------------------------------------------

_SOME_TEXT = "text"


def answered(request: Request, correlation_id: str) -> tuple[Request, bytes]:
    """Return a request whose only header is its correlation-id, and as text the headers that an aggregate repeats."""
    own = {CORRELATION_ID: correlation_id}
    return msgspec.structs.replace(request, headers=own), bytes(headers_text(request.headers | own))


def read_shaped(
    envelope: Envelope, correlation_id: str, default_timeout_ms: int, max_timeout_ms: int
) -> tuple[Request, bytes] | None:
    """Return what :func:`answered` does of a request as ``read_request`` reads it; ``None`` for everything unusual."""
    # ``envelope``: a small one; headers of its shape are remembered; ``correlation_id``: of the record, not too long
    headers, topic = envelope.headers, envelope.topic
    same = headers.get(CORRELATION_ID, correlation_id) == correlation_id
    if envelope.status is not None or not same or not correlation_id:
        return None
    names = tuple(headers)
    texts, typed, spelled = _names(names)
    if not spelled:
        return None
    for name in texts:
        if type(headers[name]) is not str:
            return None
    values = [headers[name] for name in typed]
    try:
        shape = _shape(
            (topic.group, topic.channel, topic.criterion, topic.action, topic.subject is None, topic.stream_action),
            names,
            default_timeout_ms,
            max_timeout_ms,
            *map(_comparable, values),
        )
    except (DittoError, TypeError):
        # wrong, or of a type that cannot be compared
        return None
    like, repeated, own = shape
    answer = repeated.copy()
    for name in own:
        answer[name] = headers[name]
    answer[CORRELATION_ID] = correlation_id
    thing_id, identity = None if like.thing_id is None else topic.thing_id, {CORRELATION_ID: correlation_id}
    request = msgspec.structs.replace(
        like, thing_id=thing_id, headers=identity, subject=topic.subject, path=envelope.path
    )
    return request, _encode(answer)


def _comparable(value: Any) -> Any:
    """Return a list of texts as a tuple; one of anything else stays as it is, because ``[1]`` equals ``[True]``."""
    return tuple(value) if type(value) is list and all(type(item) is str for item in value) else value


@lru_cache(maxsize=4096)
def _names(names: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Return the names with any text, those whose values matter, and whether all known ones are in lower case."""
    texts = tuple(name for name in names if name in TEXTS or name not in DEFINITIONS)
    typed = tuple(name for name in names if name not in texts and name != CORRELATION_ID)
    return texts, typed, all(name in DEFINITIONS or name.lower() not in DEFINITIONS for name in names)


@lru_cache(maxsize=4096, typed=True)
def _shape(
    topic: tuple[Any, ...], names: tuple[str, ...], default_timeout_ms: int, max_timeout_ms: int, *values: Any
) -> tuple[Request, dict[str, Any], tuple[str, ...]]:
    """Read a request like those of a shape, with the values of the headers that are no texts."""
    # returns it, the headers that an aggregate repeats, and the names of those with the values of each request
    group, channel, criterion, action, whole, stream_action = topic
    texts, typed, _ = _names(names)
    known = {name: list(value) if type(value) is tuple else value for name, value in zip(typed, values, strict=True)}
    headers = {name: known.get(name, _SOME_TEXT) for name in names}
    path = TopicPath("ns", "name", group, channel, criterion, action, None if whole else _SOME_TEXT, stream_action)
    request = read_request(
        Envelope(path, headers), default_timeout_ms=default_timeout_ms, max_timeout_ms=max_timeout_ms
    )
    repeated = read_text(answered(request, _SOME_TEXT)[1])
    return request, repeated, tuple(name for name in texts if name in repeated and name != CONTENT_TYPE)
