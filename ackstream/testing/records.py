"""Records of topics in memory, with the attributes of kafka-python's, and what the jobs read of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec

from ackstream.jobs.correlate.state import ACKS, SIGNALS, TWIN_ACKS, Record
from ackstream.jobs.twin.batch import SignalRecord
from ackstream.protocol import record_headers
from ackstream.protocol.correlation_ids import correlation_id
from ackstream.protocol.ditto.envelopes import PROTOCOL_CONTENT_TYPE
from ackstream.protocol.json import UNREADABLE
from ackstream.protocol.ledger import DEAD_LETTER_BYTES

if TYPE_CHECKING:
    from ackstream.jobs.correlate.emissions import Emission

SOURCES = {"signals": SIGNALS, "acks": ACKS, "twin-acks": TWIN_ACKS}
"""The topics that correlate reads here, and their numbers in its state."""


@dataclass(frozen=True)
class TopicRecord:
    """A record of a topic, which has one partition.

    :ivar topic: its name
    :ivar timestamp: the time of the system when it was stored, in epoch milliseconds
    :ivar headers: of the record
    """

    topic: str
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    partition: int = 0

    @property
    def coordinates(self) -> tuple[str, int, int]:
        """Topic, partition and offset."""
        return self.topic, self.partition, self.offset


def hash_of(text: str) -> int:
    """Return the 64-bit hash by which correlate remembers a decided request; Spark computes another one."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)


def for_correlate(record: TopicRecord, max_value_bytes: int) -> Record:
    """Return a record as correlate's source gives it to a shard."""
    value, source = record.value, SOURCES[record.topic]
    size = len(value or b"")
    identity = correlation_id(record.headers, _json_headers(value), record.coordinates)
    own = "-".join(map(str, record.coordinates))
    return Record(
        record.timestamp,
        source,
        record.partition,
        record.offset,
        hash_of(identity),
        None if identity == own and source != SIGNALS else identity,
        record.key,
        value if value is None or size <= max_value_bytes else value[:DEAD_LETTER_BYTES],
        size,
        {name: value for name, value in record.headers if value and name != record_headers.CORRELATION_ID},
    )


def for_twin(record: TopicRecord) -> SignalRecord:
    """Return a record as the twin's source gives it to its fold."""
    headers = {name: value for name, value in record.headers if value}
    own = headers.get(record_headers.CORRELATION_ID)
    text = None if own is None else own.decode("utf-8", "replace")
    chosen = headers.get(record_headers.REPLY_TO) or headers.get(record_headers.SPRING_REPLY_TOPIC)
    return SignalRecord(record.timestamp, record.partition, record.offset, text, record.value, chosen)


def headers_of(emission: Emission) -> list[tuple[str, bytes]]:
    """Return the record headers of what correlate writes, in the order of its sink."""
    if emission.reply_id is None:
        return [] if emission.reason is None else [(record_headers.REASON, emission.reason.encode())]
    own, repeated = record_headers.reply_headers(partial(getattr, emission), PROTOCOL_CONTENT_TYPE)
    return [
        (name, value.encode() if isinstance(value, str) else value)
        for name, value in (own | repeated).items()
        if value is not None
    ]


def _json_headers(value: bytes | None) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(value or b"")
    except UNREADABLE:
        return {}
    headers = found.get("headers") if isinstance(found, dict) else None
    return headers if isinstance(headers, dict) else {}
