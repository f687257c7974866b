"""Read ledger records: JSON becomes a record with its parts, or the sentence that says why it is malformed.

A record carries one or more parts (a signal, acknowledgements, an outcome, a dead letter). Their fields are the columns
of the tables, so a record of another release is read as well: it may lack fields that may be null, and have others.

There are two decoders. The first one knows the types that correlate and the gateway write, and reads nearly all records
in one pass. Only what it refuses is read by the second one, which takes any JSON for a text, and finds what is wrong.
"""

from __future__ import annotations

import base64
from operator import attrgetter
from types import GenericAlias
from typing import TYPE_CHECKING, Annotated, Any, get_args

import msgspec
from msgspec import Meta, Raw

from ackstream.lake.schemas import BOOLEAN, BYTES, INTEGER, KEY, LONG, PARTITION, TABLES, TEXT, TEXTS, TIME
from ackstream.protocol.json import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

LAST_MILLISECOND = 253_402_300_799_999
"""The end of the year 9999, the latest time that a table can hold."""

AUDIT = "audit"
"""The topic of audit records, which are in no other one, without the prefix."""

PART_OF = {
    "signals": "signal",
    "acknowledgements": "acks",
    "outcomes": "outcome",
    "dead_letters": "dead_letter",
    "audit": "audit",
}
"""The part of a ledger record that a table's rows come from; ``acks`` is an array."""

JSON_TEXTS = {"headers": False, "reply": False, "value": True, "payload": True}
"""The texts that hold JSON, and whether any JSON is one: a string with its quotes, and null, too."""

NAMES = ("kind", "id", "query_id", "batch_id")
"""The fields of a record that are not parts; it needs all of them."""

Record = Any
"""A ledger record: :data:`NAMES`, and a field for each part, ``None`` if it is absent. Parts have the columns of their
tables: times in epoch milliseconds, texts that hold JSON as ``Raw``."""

_int = Annotated[int, Meta(ge=-(2**31), lt=2**31)]
_long = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_time = Annotated[int, Meta(ge=0, le=LAST_MILLISECOND)]
_EXACT = {TEXT: str, TIME: _time, BYTES: bytes, TEXTS: list[str], INTEGER: _int, LONG: _long, BOOLEAN: bool}
_LOOSE = _EXACT | {TEXT: Raw, TIME: _long, BYTES: Raw, TEXTS: list[Raw]}


def _columns(table: str) -> Iterator[Any]:
    return (column for column in TABLES[table].columns if column.name not in (*KEY, PARTITION))


REQUIRED = {
    # nothing is truncated where nothing says so
    table: {column.name for column in _columns(table) if not column.nullable and column.name != "truncated"}
    for table in TABLES
}


def _form(kinds: dict[Any, Any], *, exact: bool) -> Any:
    """Return the type of ledger records; what is required may still be absent unless it is exact."""

    def field(name: str, kind: Any, *, required: bool) -> tuple[Any, ...]:
        # in a union with null, Raw would lose the difference between null and nothing
        return (name, kind) if required else (name, kind if kind is Raw else kind | None, None)

    def part(table: str) -> Any:
        fields = [
            field(
                column.name,
                Raw if column.name in JSON_TEXTS and column.kind == TEXT else kinds[column.kind],
                required=exact and column.name in REQUIRED[table],
            )
            for column in _columns(table)
        ]
        made = msgspec.defstruct(PART_OF[table], fields, kw_only=True, gc=False)
        return made if PART_OF[table] != "acks" else GenericAlias(list, made if exact else made | None)

    own = [(name, kinds[LONG if name == "batch_id" else TEXT]) for name in NAMES]
    fields = [field(name, kind, required=exact) for name, kind in own]
    parts = [field(name, part(table), required=False) for table, name in PART_OF.items()]
    return msgspec.defstruct("LedgerRecord", [*fields, *parts], kw_only=True, gc=False)


FORM, _LOOSE_FORM = _form(_EXACT, exact=True), _form(_LOOSE, exact=False)
_decode, _decode_loosely = msgspec.json.Decoder(FORM).decode, msgspec.json.Decoder(_LOOSE_FORM).decode
_decode_text = msgspec.json.Decoder(str).decode
_parts = attrgetter(*PART_OF.values())
_TYPES = {field.name: field.type for field in msgspec.structs.fields(FORM)}
PART_TYPES = {part: get_args(_TYPES[part])[0] for part in PART_OF.values()}
PART_TYPES["acks"] = get_args(PART_TYPES["acks"])[0]
"""The types of the parts; of ``acks`` that of one acknowledgement."""


def read(value: bytes | None, topic: str) -> Record | str:
    """Return the record, or why it is malformed.

    :param topic: that it is in, with the prefix: who may write the one topic writes no rows of the other
    """
    try:
        # the decoder does not look into what stays JSON
        str(value, "utf-8")  # type: ignore[arg-type]
        record = _decode(value)  # type: ignore[arg-type]
    except (*UNREADABLE, TypeError):
        return read_loosely(value or b"", topic)
    return _misplaced(record, topic) or record


def malformed(
    reason: str, coordinates: tuple[str, int, int], received_at: int, key: bytes | None, value: bytes | None
) -> Record:
    """Return the record that stands for a malformed one: it has a dead letter, and neither query nor batch.

    :param coordinates: topic, partition, offset
    :param received_at: epoch milliseconds
    """
    topic, partition, offset = coordinates
    letter = PART_TYPES["dead_letter"](
        reason=f"malformed ledger record: {reason}",
        received_at=received_at,
        key=key,
        value=value,
        topic=topic,
        partition=partition,
        offset=offset,
    )
    identity = f"{topic}-{partition}-{offset}"
    return FORM(kind="malformed", id=identity, query_id=None, batch_id=None, dead_letter=letter)


def plain(text: bytes) -> bytes | None:
    """Return a text from the JSON that stands for it: a string without its quotes, null as ``None``, others as is."""
    if text == b"null":
        return None
    if not text.startswith(b'"'):
        return text
    return _decode_text(text).encode()


# -- the second look ---------------------------------------------------------------------------------------------------


def read_loosely(value: bytes, topic: str) -> Record | str:
    """Return the same as :func:`read`, by the second decoder alone."""
    try:
        loose = _decode_loosely(value.decode("utf-8", "replace"))
        found = {name: _text(getattr(loose, name)) for name in NAMES[:-1]} | {"batch_id": loose.batch_id}
        if None in found.values():
            return "it lacks kind, id, query_id or batch_id"
        if reason := _misplaced(loose, topic):
            return reason
        for table, name in PART_OF.items():
            part = getattr(loose, name)
            if part is not None:
                made = [_part(table, one) for one in (part if name == "acks" else [part])]
                if None in made:
                    return f"its {name} lacks a required field or has an impossible time"
                found[name] = made if name == "acks" else made[0]
    except (*UNREADABLE, ValueError):
        return "it is not JSON of the ledger's form"
    return FORM(**found)


def _misplaced(record: Record, topic: str) -> str | None:
    """Return what is wrong with the parts of a record as a whole."""
    parts = _parts(record)
    present = len(parts) - parts.count(None)
    if not present:
        return f"it has none of the parts {', '.join(PART_OF.values())}"
    of_audit = record.audit is not None
    if of_audit != topic.endswith(AUDIT) or (of_audit and present > 1):
        return "its part is of another topic"
    return None


def _part(table: str, loose: Any) -> Any:
    """Return a part with exact types; ``None`` if it lacks something or a time cannot be stored."""
    if loose is None:
        return None
    found = {}
    for column in _columns(table):
        value = getattr(loose, column.name)
        if column.kind == TEXT and column.name not in JSON_TEXTS:
            value = _text(value)
        elif column.kind == BYTES:
            value = _bytes(_text(value))
        elif column.kind == TEXTS:
            value = value and [_text(one) for one in value]
        elif column.kind == TIME and value is not None and not 0 <= value <= LAST_MILLISECOND:
            return None
        if value is None and column.name in REQUIRED[table]:
            return None
        found[column.name] = value
    return PART_TYPES[PART_OF[table]](**found)


def _text(raw: Raw | None) -> str | None:
    text = None if raw is None else plain(bytes(raw))
    return None if text is None else text.decode()


def _bytes(text: str | None) -> bytes | None:
    try:
        return None if text is None else base64.b64decode(text, validate=True)
    except ValueError:
        return None
