"""What is kept of a request while it is open, and its compact form in the state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ackstream.protocol.ditto.acknowledgements import Acknowledgement
from ackstream.protocol.ditto.requests import Request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackstream.protocol.ditto.envelopes import Envelope


SIGNALS, ACKS = 0, 1
"""Where a record came from."""


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One Kafka record of the signals or acks topic.

    ``timestamp`` is the broker's, in epoch milliseconds; ``hash`` is the 64-bit hash of the correlation-id (of the
    coordinates where there is none); ``size`` is the value's length in bytes, of which ``value`` may hold only the
    beginning; ``headers`` are the record headers the product knows, names in lower case.
    """

    timestamp: int
    source: int
    partition: int
    offset: int
    hash: int
    correlation_id: str | None
    key: bytes | None
    value: bytes | None
    size: int
    headers: dict[str, bytes] = {}


class Received(msgspec.Struct, frozen=True, array_like=True):
    """An acknowledgement that was taken, with the coordinates it came from; no label: an error."""

    label: str | None
    status: int
    payload: bytes | None
    headers: dict[str, object]
    timestamp: int
    partition: int
    offset: int
    index: int
    weak: bool = False

    @classmethod
    def of_envelope(cls, label: str | None, envelope: Envelope, record: Record) -> Received:
        """Describe a response or an error by its envelope."""
        payload = None if envelope.value is msgspec.UNSET else bytes(envelope.value)
        status = envelope.status or 500
        return cls(label, status, payload, envelope.headers, record.timestamp, record.partition, record.offset, 0)

    @classmethod
    def of(cls, ack: Acknowledgement, record: Record, index: int) -> Received:
        """Pair an acknowledgement with the record it came in."""
        payload = None if ack.payload is msgspec.UNSET else bytes(ack.payload)
        return cls(
            ack.label,
            ack.status,
            payload,
            ack.headers,
            record.timestamp,
            record.partition,
            record.offset,
            index,
            ack.weak,
        )

    def acknowledgement(self) -> Acknowledgement:
        """Return the acknowledgement alone."""
        payload = msgspec.UNSET if self.payload is None else msgspec.Raw(self.payload)
        return Acknowledgement(label=self.label or "", status=self.status, payload=payload, headers=self.headers)


class Pending(msgspec.Struct, array_like=True):
    """An open request; times in epoch milliseconds of event time."""

    correlation_id: str
    hash: int
    request: Request
    started_at: int
    deadline: int
    reply_id: str
    reply_topic: str
    spring_correlation: bytes | None = None
    received: list[Received] = []
    # why live responses were not taken: goes into the text of a later timeout
    note: str | None = None
    # records of a later request with the same correlation-id, which waits until this one is decided
    successors: list[Record] = []


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Pending)


def dump(pending: Pending) -> bytes:
    """Encode for the state."""
    return _encoder.encode(pending)


def load(data: bytes) -> Pending:
    """Decode from the state."""
    return _decoder.decode(data)


# -- The memory of decided requests: hashes of their correlation-ids, each with the end of its memory.
# A decided request is remembered until its *deadline* plus ``recent_memory``, not until its decision plus
# ``recent_memory``: the deadline is known from the request alone, so what a later record meets does not depend on
# where batches are cut. Ends are rounded up to buckets; a bucket is one sorted array of 64-bit hashes, kept as bytes,
# so that a million remembered requests cost 8 MB and no work an entry.


BUCKETS = 8
MINIMUM_BUCKET_MS = 1000


class Recent:
    """Remembers 64-bit hashes until an end each (epoch milliseconds, event time)."""

    def __init__(self, memory_ms: int, buckets: Iterable[tuple[int, bytes]] = ()) -> None:
        """Start with ``buckets`` as :meth:`dump` gave them."""
        self._memory_ms = memory_ms
        self._bucket_ms = max(MINIMUM_BUCKET_MS, memory_ms // BUCKETS)
        self._buckets: dict[int, bytes] = dict(buckets)
        self._fresh: dict[int, int] = {}

    def end(self, deadline: int) -> int:
        """Return until when a request with this deadline claims its correlation-id (inclusive)."""
        return ((deadline + self._memory_ms) // self._bucket_ms + 1) * self._bucket_ms

    def look_up(self, hashes: np.ndarray[tuple[int], np.dtype[np.int64]]) -> dict[int, int]:
        """Return ``{hash: end}`` for those of ``hashes`` that are remembered; all of a batch are asked at once."""
        found: dict[int, int] = {}
        for end, packed in sorted(self._buckets.items()):
            known = np.frombuffer(packed, dtype=np.int64)
            places = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
            for value in hashes[known[places] == hashes].tolist():
                found[value] = end
        return found

    def remember(self, value: int, deadline: int) -> int:
        """Remember a decided request; return its end."""
        end = self._fresh[value] = self.end(deadline)
        return end

    def forget(self, watermark: int) -> None:
        """Drop what ended before the watermark: no record that old can come any more."""
        self._buckets = {end: packed for end, packed in self._buckets.items() if end >= watermark}

    def dump(self) -> list[tuple[int, bytes]]:
        """Return the buckets, fresh entries merged in, in order of their ends."""
        by_end: dict[int, list[int]] = {}
        for value, end in self._fresh.items():
            by_end.setdefault(end, []).append(value)
        for end, values in by_end.items():
            known = np.frombuffer(self._buckets.get(end, b""), dtype=np.int64)
            self._buckets[end] = np.union1d(known, np.array(values, dtype=np.int64)).tobytes()
        self._fresh = {}
        return sorted(self._buckets.items())
