"""Single acknowledgements as JSON texts: what an aggregate repeats of one is written when it is read, once.

Most acknowledgements of a subscriber differ in their correlation-id and payload alone. So headers of one shape, that is
all their text but the correlation-id, are understood once and remembered. What is unusual, or wrong, goes through the
door that understands everything: ``decode`` and ``read_ack``, which give the same for what is read here.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ackstream.protocol.ditto.acknowledgements import acknowledgement
from ackstream.protocol.ditto.aggregates import AckText, write_text
from ackstream.protocol.ditto.envelopes import STATUS_MAX, STATUS_MIN, check_depth, check_parts, check_storable
from ackstream.protocol.ditto.labels import BUILT_IN, parse_label
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.errors import DittoError
from ackstream.protocol.json import UNREADABLE


class _Wire(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    headers: Raw
    path: str
    status: int
    value: Raw | UnsetType = UNSET


_decode_wire = msgspec.json.Decoder(_Wire).decode
_decode = msgspec.json.Decoder().decode
_decode_headers = msgspec.json.Decoder(dict).decode
_encode = msgspec.json.Encoder().encode

_NAME = b'"correlation-id":'
_PLACEHOLDER = "\x00"
_WRITTEN_PLACEHOLDER = _encode(_PLACEHOLDER)

# longer headers are read, but not remembered
_REMEMBERED_BYTES = 1_024


def read_single(data: bytes, correlation_id: str) -> tuple[TopicPath, AckText] | None:
    """Read an acknowledgement ``…/acks/label`` with a status whose headers have the correlation-id of its record.

    :return: its topic path and itself; ``None`` for everything else, right or wrong
    """
    try:
        check_parts(data)
        wire = _decode_wire(data)
        if wire.value is not UNSET:
            # a raw value is copied unchecked
            _decode(wire.value)
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
        shape = _shape(before, after[len(own) :])
    except (DittoError, *UNREADABLE):
        return None
    if shape is None:
        return None
    before, after, weak = shape
    return topic, AckText(label, status, wire.value, Raw(b"".join((before, own, after))), weak)


@lru_cache(maxsize=4096)
def _shape(before: bytes, after: bytes) -> tuple[bytes, bytes, bool] | None:
    """Return what an answer repeats of headers, around the correlation-id, and whether they make it weak.

    :param before: the text of the headers up to their correlation-id; ``after``: the text behind it
    """
    headers = _decode_headers(b"".join((before, _NAME, _WRITTEN_PLACEHOLDER, after)))
    try:
        check_storable(headers)
    except OverflowError:
        return None
    written = write_text(acknowledgement("shape", STATUS_MIN, headers=headers))
    parts = bytes(written.headers).split(_WRITTEN_PLACEHOLDER)
    # the correlation-id may not be a header of its own, or occur in another one
    return (parts[0], parts[1], written.weak) if len(parts) == 2 else None  # noqa: PLR2004 - it occurs once
