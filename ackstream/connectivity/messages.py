"""Messages of other systems, as they come and as they go; headers are texts, names in lower case."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ackstream.protocol.envelopes import PROTOCOL_CONTENT_TYPE, Envelope, encode, json_text
from ackstream.protocol.headers import CONTENT_TYPE, CORRELATION_ID
from ackstream.protocol.placeholders import Context, Template

CONNECTION_ID = "ditto-connection-id"


class ExternalMessage(msgspec.Struct, frozen=True):
    """A message that came. ``identity`` tells it from all others: its correlation-id where it brings none."""

    identity: str
    headers: Mapping[str, str]
    payload: bytes


class Outgoing(msgspec.Struct, frozen=True):
    """A message to be published; ``address`` is that of its transport."""

    address: str
    headers: dict[str, str]
    payload: bytes


def text_headers(headers: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of a signal as texts, for placeholders and for transports."""
    return {
        name.lower(): value if isinstance(value, str) else json_text(value)
        for name, value in headers.items()
        if value is not None
    }


def resolved(mapping: Mapping[str, str], context: Context) -> dict[str, str]:
    """Return the headers of a header mapping; what comes to nothing is left out."""
    found = {name.lower(): Template.parse(text).resolve(context) for name, text in mapping.items()}
    return {name: value for name, value in found.items() if value is not None}


def outgoing(
    signal: Envelope,
    address: str,
    mapping: Mapping[str, str],
    connection_id: str,
    *,
    payload: bytes | None = None,
    content_type: str = PROTOCOL_CONTENT_TYPE,
    further: Mapping[str, str] | None = None,
) -> Outgoing | None:
    """Return a signal as a message: content-type, correlation-id, connection id and the mapped headers.

    :param address: a template
    :param payload: else the protocol JSON
    :param further: headers that placeholders find besides those of the signal, which win
    :return: ``None`` where the address comes to nothing
    """
    headers = text_headers(signal.headers)
    context = Context({**(further or {}), **headers}, connection_id, signal.topic)
    where = Template.parse(address).resolve(context)
    if not where:
        return None
    own = {CONTENT_TYPE: content_type, CONNECTION_ID: connection_id}
    if CORRELATION_ID in headers:
        own[CORRELATION_ID] = headers[CORRELATION_ID]
    return Outgoing(where, own | resolved(mapping, context), encode(signal) if payload is None else payload)
