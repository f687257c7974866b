"""What is kept of a request while it is open, and its compact form in the state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ackstream.protocol.acknowledgements import Acknowledgement
from ackstream.protocol.requests import Request

if TYPE_CHECKING:
    from ackstream.protocol.envelopes import Envelope

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
