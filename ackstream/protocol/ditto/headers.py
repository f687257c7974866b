"""Headers: their types, and which of them clients may set and see.

In protocol JSON a known header keeps its type (boolean, number, array, object); the value of an unknown one becomes
text. Names are case-insensitive. Source of the rules: Eclipse Ditto, ``DittoHeaderDefinition`` and its
validators, ``ReadJsonArrayHeadersFilter``, ``DittoAckRequestsFilter``.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from ackstream.protocol import errors, record_headers
from ackstream.protocol.ditto.correlation_ids import MAX_BYTES, is_too_long
from ackstream.protocol.ditto.envelopes import check_storable
from ackstream.protocol.ditto.labels import parse_label
from ackstream.protocol.durations import Duration
from ackstream.protocol.errors import DittoError, shown
from ackstream.protocol.json import MAX_DEPTH

CORRELATION_ID = "correlation-id"
RESPONSE_REQUIRED = "response-required"
REQUESTED_ACKS = "requested-acks"
DECLARED_ACKS = "declared-acks"
TIMEOUT = "timeout"
CHANNEL = "channel"
CONTENT_TYPE = "content-type"
VERSION = "version"
WEAK_ACK = "ditto-weak-ack"
ACK_QUORUM, EXTEND = record_headers.ACK_QUORUM, record_headers.EXTEND
PROGRESS, AMEND = record_headers.PROGRESS, record_headers.AMEND
ORIGINATOR = "ditto-originator"
_SENDER_LENGTH = len(ORIGINATOR)
CONDITION = "condition"
LIVE_CHANNEL_CONDITION = "live-channel-condition"
LIVE_CHANNEL_TIMEOUT_STRATEGY = "live-channel-timeout-strategy"
USE_TWIN = "use-twin"
IF_EQUAL = "if-equal"
SKIP, SKIP_MINIMIZING_MERGE = "skip", "skip-minimizing-merge"

MAX_HEADERS = 1_000
"""Maximum number of headers of one message. Readers process each several times; usual messages have a few."""

MOST_LABELS = 10_000
"""Labels in one header; ``correlate.max_labels`` is far below it."""

_INTEGER = re.compile("[+-]?[0-9]{1,18}")
_LARGEST = 10**18
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))
_BLANKS = "".join(map(chr, range(0x21)))
"""The characters that Java's ``trim`` removes."""


def _text(value: Any) -> str:
    """Return a JSON value as the text of a header: strings unchanged, anything else as compact JSON."""
    return value if type(value) is str else msgspec.json.encode(value).decode()


def read_correlation_id(value: Any) -> str:
    """Return a correlation-id as text. Raises 400 if it is empty, too long, or neither text nor a whole number."""
    if value == "":
        message = "The value of the header 'correlation-id' must not be empty."
        raise errors.header_invalid(CORRELATION_ID, message, named=False)
    if type(value) not in (str, int):
        # Spark writes 1e7 as 1.0E7, Python as 10000000.0: the requester would wait for another id
        found = shown(_text(value))
        message = f"The value '{found}' of the header 'correlation-id' is neither text nor a whole number."
        raise errors.header_invalid(CORRELATION_ID, message, "Write it as text.")
    text = value if type(value) is str else _text(value)
    if is_too_long(text):
        raise errors.header_too_long(CORRELATION_ID, MAX_BYTES)
    return text


def _boolean(name: str, value: Any) -> bool:
    if value is True or value == "true":
        return True
    if value is False or value == "false":
        return False
    raise errors.header_type_invalid(name, _text(value), "boolean")


def _integer(name: str, value: Any) -> int:
    if type(value) is int and abs(value) < _LARGEST:
        return value
    text = _text(value)
    if _INTEGER.fullmatch(text) is None:
        raise errors.header_type_invalid(name, text, "int")
    return int(text)


def _json(kind: type, title: str, name: str, value: Any) -> Any:
    parsed = _parsed(value) if type(value) is str else value
    if not isinstance(parsed, kind) or (parsed is not value and not _is_storable(value, parsed)):
        raise errors.header_type_invalid(name, _text(value), title)
    return parsed


_array, _object = partial(_json, list, "JSON array"), partial(_json, dict, "JSON object")


def _is_storable(text: str, parsed: Any) -> bool:
    """Return whether JSON that arrived as text is within the limits of an envelope."""
    if text.count("{") + text.count("[") > MAX_DEPTH:
        return False
    try:
        check_storable(parsed)
    except OverflowError:
        return False
    return True


def _channel(value: Any) -> str:
    text = _text(value)
    if text.strip(_BLANKS).lower() not in ("twin", "live"):
        message = f"The value '{shown(text)}' of the header 'channel' is not a valid channel."
        raise errors.header_invalid(CHANNEL, message, "The value must either be <twin> or <live>.")
    return text


def _timeout(value: Any) -> str:
    text = _text(value)
    Duration.parse(text)
    return text


def _choice(name: str, kind: str, choices: tuple[str, ...], value: Any) -> str:
    text = _text(value)
    chosen = text.strip(_BLANKS).lower()
    if chosen not in choices:
        message = f"The value '{shown(text)}' of the header '{name}' is not a valid enum value of type '{kind}'."
        raise errors.header_invalid(name, message, f"The value must be one of: <{'|'.join(choices)}>.")
    return chosen


def _no_labels(name: str) -> DittoError:
    return errors.header_invalid(name, f"JSON array for <{name}> contained invalid acknowledgement labels.")


def _requested_acks(value: Any) -> list[str]:
    labels: list[Any] = [] if value == "null" else _array(REQUESTED_ACKS, value)
    if len(labels) > MOST_LABELS:
        message = f"The header '{REQUESTED_ACKS}' has more than {MOST_LABELS} labels."
        raise errors.header_invalid(REQUESTED_ACKS, message)
    for label in labels:
        if type(label) is not str:
            raise _no_labels(REQUESTED_ACKS)
        try:
            parse_label(label)
        except DittoError as error:
            kind = "JSON array of acknowledgement labels"
            raise errors.header_type_invalid(REQUESTED_ACKS, _text(value), kind) from error
    return labels


def _declared_acks(value: Any) -> list[str]:
    labels: list[Any] = _array(DECLARED_ACKS, value)
    if any(type(label) is not str for label in labels):
        raise _no_labels(DECLARED_ACKS)
    return labels


class Definition(msgspec.Struct, frozen=True):
    """The parser of a header, and whether clients may set it (``read``) and see it (``written``)."""

    parse: Any
    read: bool
    written: bool


_DIRECTIONS = {"both": (True, True), "incoming": (True, False), "outgoing": (False, True), "internal": (False, False)}
_SPECIAL: dict[str, Callable[[Any], Any]] = {
    CORRELATION_ID: read_correlation_id,
    REQUESTED_ACKS: _requested_acks,
    DECLARED_ACKS: _declared_acks,
    TIMEOUT: _timeout,
    CHANNEL: _channel,
    IF_EQUAL: partial(_choice, IF_EQUAL, "IfEqual", ("update", SKIP, SKIP_MINIMIZING_MERGE)),
    LIVE_CHANNEL_TIMEOUT_STRATEGY: partial(
        _choice, LIVE_CHANNEL_TIMEOUT_STRATEGY, "LiveChannelTimeoutStrategy", ("fail", USE_TWIN)
    ),
}

_TABLES = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=dict[str, dict[str, Any]])
UNAVAILABLE_HEADERS: dict[str, str] = _TABLES.pop("unavailable")
"""Headers of Ditto with which no twin command is carried out, and the alternatives."""


def _definitions() -> Iterator[tuple[str, Definition]]:
    typed: dict[str, Callable[[str, Any], Any]]
    typed = {"boolean": _boolean, "integer": _integer, "array": _array, "object": _object}
    for kind, known in _TABLES.items():
        for direction, names in known.items():
            for name in names:
                parse = _SPECIAL[name] if kind == "special" else _text
                parse = partial(typed[kind], name) if kind in typed else parse
                yield name, Definition(parse, *_DIRECTIONS[direction])


DEFINITIONS = dict(_definitions())
_PARSERS = {name: definition.parse for name, definition in DEFINITIONS.items()}
TEXTS = frozenset(name for name, parse in _PARSERS.items() if parse is _text)
_NEVER_READ = frozenset(name for name, definition in DEFINITIONS.items() if not definition.read)
NEVER_WRITTEN = frozenset(name for name, definition in DEFINITIONS.items() if not definition.written)
_NOT_ANSWERED = NEVER_WRITTEN | {REQUESTED_ACKS, RESPONSE_REQUIRED}


def read_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return headers with known names in lower case and typed values."""
    # A null is an error for a header with a type (boolean, number, duration, channel, array, object); text and
    # requested-acks that are null are absent. DittoError 400: a wrong type, or too many headers.
    if len(headers) > MAX_HEADERS:
        raise errors.json_format_invalid(f"The message has more than {MAX_HEADERS} headers.")
    result = {}
    for key, value in headers.items():
        name = key
        parse = _PARSERS.get(name)
        if parse is _text and type(value) is str:
            # most are
            result[name] = value
            continue
        if parse is None and not key.islower():
            name = key.lower()
            parse = _PARSERS.get(name)
        if value is None:
            if parse is not None:
                parse("null")
            continue
        if parse is None:
            result[key] = value if type(value) is str else _text(value)
        else:
            result[name] = parse(value)
    return result


def reply_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the (read) headers an answer repeats: none internal, no requested-acks; response-required is false."""
    reply = {name: value for name, value in headers.items() if name not in _NOT_ANSWERED}
    reply[RESPONSE_REQUIRED] = False
    return reply


def answer_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers of an answer as received, read: those it repeats; a null counts as absent, as in Ditto."""
    if None in headers.values():
        headers = {name: value for name, value in headers.items() if value is not None}
    return reply_headers(read_headers(headers))


def request_reply_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers of the answer to a request: ``reply_headers`` without those that clients may not set."""
    return reply_headers(taken_headers(headers))


def taken_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers of a message that are accepted from clients, without those that only the system sets."""
    return {name: value for name, value in headers.items() if name.lower() not in _NEVER_READ}


def sendable(text: str) -> str:
    """Return text from outside for an HTTP header, with characters that are not allowed there percent-encoded."""
    found = text if text.isascii() and text.isprintable() else quote(text, safe=_PRINTABLE, errors="replace")
    return found.strip(" ")


def names_sender(headers: Iterable[str]) -> bool:
    """Return whether a header names the sender."""
    # in most messages no header name has this length
    return _SENDER_LENGTH in map(len, headers) and any(name.lower() == ORIGINATOR for name in headers)


def external_in(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the text headers that clients may set, acks as JSON arrays. Source: ``ReadJsonArrayHeadersFilter``."""
    kept = {}
    for key, value in headers.items():
        name = key.lower()
        if name in _NEVER_READ:
            continue
        if name in (REQUESTED_ACKS, DECLARED_ACKS):
            kept[name] = _text(requested_acks_in(value))
        else:
            kept[name if name in DEFINITIONS else key] = value
    return kept


def requested_acks_in(text: str) -> list[Any]:
    """Read requested-acks of an HTTP header or query parameter: a JSON array, or labels separated by commas."""
    # empty pieces are dropped before blanks are trimmed: ``foo, ,bar`` has three labels, one of them empty
    array = _parsed(text)
    if array is None or isinstance(array, list):
        return array or []
    return [piece.strip(_BLANKS) for piece in text.split(",") if piece]


def _parsed(text: str) -> Any:
    """Return the JSON value in a text, the text itself if it is not JSON."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return text
