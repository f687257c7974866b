"""Aggregates: what a requester gets, one entry per acknowledgement; written from JSON texts.

Headers become text when a message is read, once: an aggregate repeats them, and joins texts. Source of the rules:
Eclipse Ditto, ``AcknowledgementsAdapter``, ``Acknowledgements``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ackstream.protocol.ditto.acknowledgements import Acknowledgement, Entry, combined_status
from ackstream.protocol.ditto.envelopes import JSON_CONTENT_TYPE, Envelope, raw, write
from ackstream.protocol.ditto.headers import CONTENT_TYPE, reply_headers
from ackstream.protocol.ditto.topics import TopicPath

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NO_HEADERS = b"{}"
_decode = msgspec.json.Decoder(dict[str, Any]).decode


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


def read_text(headers: bytes | Raw) -> dict[str, Any]:
    """Return headers that were written as JSON text."""
    return _decode(headers)


def write_aggregate(
    entries: Sequence[AckText], *, thing_id: str | None, channel: str | None, headers: Raw
) -> tuple[int, bytes]:
    """Write an aggregate; if a label occurs twice, the last entry stays.

    :param thing_id: ``None`` if the thing is unknown
    :param channel: ``live``, or anything else for twin
    :param headers: of the request (:func:`headers_text`)
    :return: its status and its text
    """
    namespace, name, channel = _topic(thing_id, channel)
    status = combined_status([ack.status for ack in entries])
    topic = f"{namespace}/{name}/things/{channel}/acks"
    return status, write(topic, _headers(entries, headers), "/", _value(entries), status)


def write_acks(
    entries: Sequence[Acknowledgement], *, thing_id: str | None, channel: str | None, headers: dict[str, Any]
) -> Envelope:
    """Return an aggregate as :func:`write_aggregate` writes it.

    :param headers: of the request
    """
    texts = list(map(write_text, entries))
    own = read_text(_headers(texts, headers_text(headers)))
    namespace, name, channel = _topic(thing_id, channel)
    topic = TopicPath(namespace, name, "things", channel, "acks")
    return Envelope(topic, own, "/", _value(texts), status=combined_status([ack.status for ack in entries]))


def aggregate_headers(entries: Sequence[AckText], headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers of an aggregate: the command's, over those of the entry if there is only one."""
    return (read_text(entries[0].headers) if len(entries) == 1 else {}) | reply_headers(headers)


def _headers(entries: Sequence[AckText], headers: Raw) -> Raw:
    return raw(read_text(entries[0].headers) | read_text(headers)) if len(entries) == 1 else headers


def _value(entries: Sequence[AckText]) -> Raw:
    # headers without entries are left out
    empty = len(_NO_HEADERS)
    return raw(
        {
            ack.label: Entry(ack.status, ack.payload, ack.headers if len(ack.headers) > empty else UNSET)
            for ack in entries
        }
    )


def _topic(thing_id: str | None, channel: str | None) -> tuple[str, str, str]:
    """Return what the topic path of an aggregate names: namespace, name and channel."""
    namespace, _, name = (thing_id or "unknown:unknown").partition(":")
    return namespace, name, "live" if channel == "live" else "twin"
