"""The effects of a request's headers on each API, in the terms of the protocol cases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ackstream.protocol.ditto.errors import request_parsing_failed
from ackstream.protocol.ditto.headers import REQUESTED_ACKS, RESPONSE_REQUIRED, TIMEOUT
from ackstream.protocol.ditto.labels import BUILT_IN, parse_label
from ackstream.protocol.ditto.signal_defaults import (
    HTTP_TIMEOUT_MS,
    SMART_MAXIMUM_MS,
    STREAM_TIMEOUT_MS,
    Api,
    SignalKind,
    check_combination,
    default_headers,
    timeout_milliseconds,
    waits_for_acks,
)
from ackstream.protocol.durations import Duration
from ackstream.protocol.errors import DittoError
from ackstream.protocol.json import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Mapping


def effect(api: Api, kind: SignalKind, headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the effects of a signal's headers on an API.

    ``effective`` are the three headers with defaults applied, the timeout with the API's default. With an ``error``,
    nothing is awaited: there is no ``waits-for-acks`` and no ``content``. ``settlement`` is that of a consumed message
    (Connectivity only).

    :param headers: as ``read_headers`` returns them
    """
    connectivity = api == "Connectivity"
    effective = dict(headers)
    try:
        effective = default_headers(kind, headers)
        check_combination(api, kind, effective)
        timeout = _effective_timeout(api, kind, effective)
    except DittoError as error:
        timeout = headers.get(TIMEOUT, _default_text(api))
        settlement = "reject-without-redelivery" if connectivity else None
        found = {"client-error": True, "reply": "error", "settlement": settlement, "error": error.to_dict()}
    else:
        waits = waits_for_acks(kind, effective.get(REQUESTED_ACKS) or [])
        settlement = ("after-acks" if waits else "immediately") if connectivity else None
        if effective.get(RESPONSE_REQUIRED, True):
            reply = "published-at-reply-target" if connectivity else "full"
            content = "aggregate-or-single-response" if waits else "plain-response"
        elif api == "HTTP":
            reply, content = "202-without-body", "none-on-success"
        else:
            reply = content = "none"
        found = {"client-error": False, "reply": reply, "settlement": settlement}
        found |= {"waits-for-acks": waits, "content": content}
    three = {name: effective.get(name) for name in (REQUESTED_ACKS, RESPONSE_REQUIRED)}
    return {"effective": three | {TIMEOUT: timeout}} | found


def _effective_timeout(api: Api, kind: SignalKind, headers: Mapping[str, Any]) -> str:
    timeout = headers.get(TIMEOUT)
    if timeout is None:
        return _default_text(api)
    milliseconds = timeout_milliseconds(api, kind, headers, _default_ms(api))
    if kind == "smartQuery" or Duration.parse(timeout).capped(SMART_MAXIMUM_MS) == milliseconds:
        return str(timeout)
    return f"{milliseconds // 1000}s"


def _default_text(api: Api) -> str:
    return f"{_default_ms(api) // 1000}s"


def _default_ms(api: Api) -> int:
    """Return the timeout of Ditto's code, which ackstream does not share (docs/ditto.md)."""
    return HTTP_TIMEOUT_MS if api == "HTTP" else STREAM_TIMEOUT_MS


def requested_acks_out(text: str) -> list[str] | None:
    """Return the labels of requested-acks that subscribers see, ``None`` if the header is omitted.

    Built-in and empty labels are removed. If nothing is left there is no header, but an explicit ``[]`` stays.

    :raises DittoError: 400 ``acknowledgement:label.invalid``
    """
    try:
        labels = msgspec.json.decode(text)
    except UNREADABLE:
        return None
    if not isinstance(labels, list):
        return None
    kept = [label for label in labels if label and isinstance(label, str) and parse_label(label) not in BUILT_IN]
    return None if labels and not kept else kept


def parse_request(text: str) -> str:
    """Return the label of an acknowledgement request.

    :raises DittoError: 422 ``acknowledgement:request.parsing.failed``
    """
    try:
        return parse_label(text)
    except DittoError as error:
        raise request_parsing_failed(text, error.message) from error
