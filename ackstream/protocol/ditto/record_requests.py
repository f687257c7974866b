"""Requests and acknowledgements in the record headers of records of any kind.

A request has the header ``requested-acks``, or ``ce_requestedacks`` as a CloudEvent in binary mode; an acknowledgement
has the header ``label``. The value of either is the application's own. This is the other encoding of requests and
acknowledgements: their rules are those of the Ditto Protocol (:mod:`ackstream.protocol.ditto.requests`).
"""

import re
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ackstream.protocol import errors, record_headers
from ackstream.protocol.ditto import headers as names
from ackstream.protocol.ditto.acknowledgements import OK, Acknowledgement, acknowledgement
from ackstream.protocol.ditto.correlation_ids import MAX_BYTES
from ackstream.protocol.ditto.envelopes import STATUS_MAX, STATUS_MIN, check_depth, check_parts, raw
from ackstream.protocol.ditto.labels import PATTERN, parse_declared
from ackstream.protocol.ditto.requests import Request, expectation, read_course
from ackstream.protocol.errors import DittoError, shown
from ackstream.protocol.json import UNREADABLE

Codec = Literal["json", "text", "base64", "none"]
"""How a value is written into JSON; ``none``: not at all."""

_OWN = (names.RESPONSE_REQUIRED, names.ACK_QUORUM, names.PROGRESS, names.AMEND, names.CONTENT_TYPE)
_REQUEST = dict.fromkeys(_OWN, "")
_REQUEST |= {names.REQUESTED_ACKS: record_headers.CE_REQUESTED_ACKS, names.TIMEOUT: record_headers.CE_TIMEOUT}
"""The record headers of a request, and their names in a CloudEvent, if they have one there."""
ASKING = (names.REQUESTED_ACKS, record_headers.CE_REQUESTED_ACKS)
"""The headers that make a record a request."""
REQUEST_HEADERS = frozenset([*_REQUEST, *filter(None, _REQUEST.values())])
ACK_HEADERS = frozenset([record_headers.LABEL, record_headers.STATUS, names.CONTENT_TYPE, names.WEAK_ACK, names.EXTEND])
"""The record headers of either that are read here."""
REPLY_ID = "^[0-9a-f]{32}$"
_REPLY_ID = re.compile(REPLY_ID[1:-1].encode())
_STATUS = re.compile("[0-9]{3}")


def read_record(
    given: Mapping[str, bytes], *, default_timeout_ms: int, max_timeout_ms: int
) -> tuple[Request, dict[str, Any]]:
    """Read a request from the headers of its record; return it, and those headers as they are stored.

    Raises DittoError 400: a header is invalid, no label is requested, or one that only the service issues.
    """
    texts = {name: given.get(name) or (event and given.get(event)) for name, event in _REQUEST.items()}
    found: dict[str, Any] = {name: str(value, "utf-8", "replace") for name, value in texts.items() if value}
    text = found.get(names.REQUESTED_ACKS, "")
    found[names.REQUESTED_ACKS] = asked = names.requested_acks_in(text)
    if not asked or not all(type(label) is str and re.fullmatch(PATTERN, label) for label in asked):
        message = f"The value '{shown(text)}' of the header 'requested-acks' has no label, or an invalid one."
        rule = "A label has 3 to 165 characters: the letters a to z and A to Z, digits, '_', ':' and '-'."
        raise errors.header_invalid(names.REQUESTED_ACKS, message, rule)
    _check_length(names.CONTENT_TYPE, found.get(names.CONTENT_TYPE, ""))
    headers = record_headers.with_trace(names.read_headers(found), given.get(record_headers.TRACEPARENT))
    labels = tuple(map(parse_declared, headers[names.REQUESTED_ACKS]))
    required, timeout = headers.get(names.RESPONSE_REQUIRED), headers.get(names.TIMEOUT)
    expected = expectation("record", labels, required, timeout, default_timeout_ms, max_timeout_ms)
    repeated = names.request_reply_headers(headers)
    course = read_course(headers, expected[0])
    return Request(None, "live", "record", *expected, repeated, "records", None, None, "/", *course), headers


def read_record_ack(
    given: Mapping[str, bytes], correlation_id: str, value: bytes | None
) -> tuple[Acknowledgement, Codec]:
    """Read an acknowledgement from the headers of its record and its value. Raises DittoError 400 as ``read_ack``."""
    label, status, kind = (
        str(given.get(name, b""), "utf-8", "replace")
        for name in (record_headers.LABEL, record_headers.STATUS, record_headers.CONTENT_TYPE)
    )
    if status and not (_STATUS.fullmatch(status) and STATUS_MIN <= int(status) <= STATUS_MAX):
        raise errors.header_invalid(
            record_headers.STATUS, f"The header 'status' is <{shown(status)}>, not a number from 100 to 599."
        )
    _check_length(names.CONTENT_TYPE, kind)
    payload, codec = write_value(value, kind)
    headers = {names.CORRELATION_ID: correlation_id} | ({names.CONTENT_TYPE: kind} if kind else {})
    for name in (names.WEAK_ACK, names.EXTEND):
        if value_of := given.get(name):
            headers[name] = str(value_of, "utf-8", "replace")
    if codec == "base64":
        # RFC 2045
        headers["content-transfer-encoding"] = codec
    return acknowledgement(parse_declared(label), int(status or OK), payload, headers), codec


def cancels(given: Mapping[str, bytes], value: bytes | None) -> bool:
    """Return whether a record cancels a request: it has no value, requests nothing, and names a reply-id."""
    if value is not None or not (identity := given.get(record_headers.CANCEL)):
        return False
    return _REPLY_ID.fullmatch(identity) is not None and not any(given.get(name) for name in ASKING)


def write_value(value: bytes | None, content_type: str) -> tuple[Raw | UnsetType, Codec]:
    """Write the value of a record as JSON: as it is, if its type is JSON; a text as a string; all else as base64."""
    if not value:
        return UNSET, "none"
    kind = content_type.partition(";")[0].strip().lower()
    is_json = kind == "application/json" or kind.endswith("+json")
    if is_json:
        with suppress(DittoError, *UNREADABLE):
            check_parts(value)
            msgspec.json.decode(value)
            check_depth(value)
            return Raw(value), "json"
    if is_json or not kind or kind.startswith("text/"):
        with suppress(UnicodeDecodeError):
            text = raw(value.decode())
            # six characters stand for a control character, of which a text has few
            if len(text) <= 2 * len(value) + len('""'):
                return text, "text"
    return raw(b64encode(value).decode()), "base64"


def _check_length(name: str, text: str) -> None:
    if len(text.encode()) > MAX_BYTES:
        raise errors.header_too_long(name, MAX_BYTES)
