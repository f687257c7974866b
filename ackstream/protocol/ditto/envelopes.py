"""Envelopes: Ditto Protocol messages as JSON.

Keys in the order written: topic, headers, path, value, extra, status, revision, timestamp, metadata, fields; topic and
path are required. Source of the rules: Eclipse Ditto, ``Adaptable``, ``JsonifiableAdaptable``.
"""

import codecs
import json
from array import array
from itertools import accumulate
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.errors import DittoError, json_field_missing, json_invalid, json_type_invalid
from ackstream.protocol.json import BYTE_ORDER_MARK, MAX_DEPTH, UNREADABLE

JSON_CONTENT_TYPE = "application/json"
PROTOCOL_CONTENT_TYPE = "application/vnd.eclipse.ditto+json"
STATUS_MIN, STATUS_MAX = 100, 599
MAX_PARTS = 100_000
"""Arrays and objects in a message: a value of 1 MB may be an array of as many small objects."""


class Envelope(msgspec.Struct):
    """A protocol message. ``headers`` are as received; ``value``, ``extra`` and ``metadata`` are JSON text."""

    topic: TopicPath
    headers: dict[str, Any]
    path: str = "/"
    value: Raw | UnsetType = UNSET
    extra: Raw | UnsetType = UNSET
    status: int | None = None
    revision: int | None = None
    timestamp: str | None = None
    metadata: Raw | UnsetType = UNSET
    fields: str | None = None


class _Wire(msgspec.Struct, omit_defaults=True, kw_only=True):
    """An envelope with its topic as text; the order of the fields is the order on the wire."""

    topic: str
    headers: dict[str, Any] | None = None
    path: str
    value: Raw | UnsetType = UNSET
    extra: Raw | UnsetType = UNSET
    status: Any = None
    revision: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    timestamp: str | None = None
    metadata: Raw | UnsetType = UNSET
    fields: str | None = None


_decode_wire = msgspec.json.Decoder(_Wire).decode
_decode_any = msgspec.json.Decoder().decode
_encode_json = msgspec.json.Encoder().encode


def decode(data: bytes) -> Envelope:
    """Read an envelope, or raise a DittoError 400 for anything else."""
    # invalid UTF-8 or JSON, not an object, a field missing or of the wrong type, an unknown topic path, numbers out of
    # range, nested too deeply, of too many parts
    data = data.removeprefix(BYTE_ORDER_MARK)
    check_parts(data)
    try:
        wire = _decode_wire(data)
        # the typed decoder copies raw values unchecked; make sure that they can be read later
        for part in (wire.value, wire.extra, wire.metadata):
            if part is not UNSET:
                _decode_any(part)
    except UNREADABLE as error:
        raise _reason(data, error) from error
    check_depth(data)
    headers = wire.headers or {}
    try:
        check_storable(headers)
    except OverflowError as error:
        raise _unparsable(f"a number in a header is out of range: {error}!") from error
    topic = TopicPath.parse(wire.topic)
    status = None if wire.status is None else _read_status(wire.status)
    further = wire.revision, wire.timestamp, wire.metadata, wire.fields
    return Envelope(topic, headers, wire.path, wire.value, wire.extra, status, *further)


def encode(envelope: Envelope) -> bytes:
    """Write an envelope, keys in Ditto's order, absent ones omitted."""
    return _encode_json(_Wire(**msgspec.structs.asdict(envelope) | {"topic": str(envelope.topic)}))


def check_storable(value: object) -> None:
    """Raise ``OverflowError`` for a JSON value that no binary form can store: an integer beyond 64 bits."""
    msgspec.msgpack.encode(value)


def raw(value: object) -> Raw:
    """Return a JSON value as the text that envelopes hold."""
    return Raw(_encode_json(value))


def decoded(value: Raw | UnsetType) -> Any:
    """Return the JSON value of an envelope; ``None`` if it has none."""
    return None if value is UNSET else msgspec.json.decode(value)


def json_or_text(data: bytes) -> Raw:
    """Return a text as the value of an envelope: itself if it is JSON, else its text as a string."""
    text = data.removeprefix(BYTE_ORDER_MARK)
    try:
        msgspec.json.decode(text)
    except UNREADABLE:
        return raw(data.decode("utf-8", "replace"))
    return Raw(text)


_CHARSETS = frozenset(
    ["ascii", "utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-16-le", "utf-32", "utf-32-be", "utf-32-le"]
    + [f"iso8859-{number}" for number in range(1, 17)]
    + [f"cp{number}" for number in (437, 850, 852, 855, 866, 874, 932, 936, 949, 950, *range(1250, 1259))]
    + ["koi8-r", "koi8-u", "mac-roman"]
    + ["shift_jis", "euc_jp", "iso2022_jp", "gb2312", "gbk", "gb18030", "big5", "euc_kr"]
)
"""Python's codecs that are character sets, and decode text in linear time."""


def decode_text(data: bytes, charset: str, errors: str = "strict") -> str:
    """Return a text in a character set. Raises ``LookupError`` for another charset, ``ValueError`` for another text."""
    if codecs.lookup(charset).name not in _CHARSETS:
        raise LookupError(charset)
    return data.decode(charset, errors)


def json_text(value: object) -> str:
    """Return a JSON value as compact text."""
    try:
        return _encode_json(value).decode()
    except OverflowError:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def error_envelope(
    error: DittoError, *, thing_id: str | None, channel: str | None, headers: dict[str, Any]
) -> Envelope:
    """Return the message that carries an error: ``namespace/name/things/(twin|live)/errors``."""
    # ``headers``: of the failed message; requested-acks are omitted
    kept = {key: value for key, value in headers.items() if key not in _REPLACED}
    kept |= {"response-required": False, "content-type": JSON_CONTENT_TYPE}
    return Envelope(TopicPath.of(thing_id, channel, "errors"), kept, "/", raw(error.to_dict()), status=error.status)


_REPLACED = frozenset({"requested-acks", "response-required", "content-type"})


def _read_status(status: object) -> int | None:
    if type(status) is not int or not -(2**31) <= status < 2**31:
        raise json_type_invalid(json_text(status), "/status", "Integer")
    return status if STATUS_MIN <= status <= STATUS_MAX else None


_FIELD_TYPES = (
    ("topic", str, "String"),
    ("headers", dict, "JsonObject"),
    ("path", str, "String"),
    ("revision", int, "Long"),
    ("timestamp", str, "String"),
    ("fields", str, "String"),
)


def _reason(data: bytes, error: Exception) -> DittoError:
    """Return Ditto's error for bytes that are not an envelope."""
    try:
        message = _decode_any(data)
    except RecursionError:
        return _too_deep()
    except UnicodeDecodeError:
        return _unparsable("it is not valid UTF-8!")
    except msgspec.MsgspecError as reason:
        return _unparsable(f"{reason}!")
    if not isinstance(message, dict):
        return _unparsable("it is not a JSON object!")
    return _wrong_field(message) or json_invalid(str(error))


def _wrong_field(message: dict[str, Any]) -> DittoError | None:
    for name, kind, title in _FIELD_TYPES:
        value = message.get(name)
        if value is None:
            if name in {"topic", "path"}:
                return json_field_missing(f"/{name}")
        elif not isinstance(value, kind) or isinstance(value, bool):
            return json_type_invalid(json_text(value), f"/{name}", title)
    return None


def _unparsable(why: str) -> DittoError:
    return json_invalid(f"Failed to parse JSON string: {why}")


_STEPS = bytes.maketrans(b"{[}]", b"\x01\x01\xff\xff")
_NO_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))


def check_parts(data: bytes) -> None:
    """Reject JSON with more arrays and objects than can be read in a short time. Raises 400 ``json.invalid``."""
    if len(data) > MAX_PARTS and data.count(b"{") + data.count(b"[") > MAX_PARTS:
        outside = _outside_texts(data)
        if outside.count(b"{") + outside.count(b"[") > MAX_PARTS:
            raise _unparsable(f"it has more than {MAX_PARTS} arrays and objects!")


def check_depth(data: bytes) -> None:
    """Reject valid JSON that is nested more deeply than readers can follow. Raises 400 ``json.invalid``."""
    # a level of arrays takes two bytes at least, one of objects five; most messages have few
    if len(data) <= 2 * MAX_DEPTH:
        return
    arrays = data.count(b"[")
    if arrays + len(data) // 5 <= MAX_DEPTH or arrays + data.count(b"{") <= MAX_DEPTH:
        return
    steps = array("b", _outside_texts(data).translate(_STEPS, _NO_BRACKETS))
    if max(accumulate(steps), default=0) > MAX_DEPTH:
        raise _too_deep()


def _outside_texts(data: bytes) -> bytes:
    return b"".join(data.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])


def _too_deep() -> DittoError:
    return _unparsable(f"it is nested more than {MAX_DEPTH} levels deep!")
