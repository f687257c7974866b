"""The ledger: one JSON record per decision, written by correlate, read by archive, the gateway and the client.

A record has a stable id derived from Kafka coordinates, the query and batch that wrote it, and one or more parts: the
request's signal row, rows of acknowledgements, an outcome, a dead letter. A request that stays open at the end of its
batch has its signal row written at once (kind ``signal``); its outcome follows without it. A record that would be too
large is written in parts (:func:`divide`). The gateway's audit has the same form, in a topic of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ackstream.protocol.json import optional_reader

DEAD_LETTER_BYTES = 65_536
"""Bytes of a dead letter's key and value that the ledger keeps; the topic of its origin has all."""


class SignalRow(msgspec.Struct, omit_defaults=True, frozen=True, gc=False):
    """A command, message or record of any kind as it was received; times in epoch milliseconds.

    ``codec``: of a record of any kind, how its value is written; so in :class:`AckRow`.
    """

    correlation_id: str
    thing_id: str | None
    channel: str | None
    criterion: str
    action: str | None
    path: str
    requested_acks: tuple[str, ...]
    response_required: bool
    timeout_ms: int
    headers: Mapping[str, object]
    received_at: int
    topic: str
    partition: int
    offset: int
    value: Raw | UnsetType = UNSET
    codec: str | None = None


class AckRow(msgspec.Struct, omit_defaults=True, frozen=True, gc=False):
    """One acknowledgement (or response, or error) and its disposition; times in epoch milliseconds.

    ``reason`` is why it is ``invalid``; the other dispositions are reasons themselves.
    """

    correlation_id: str
    label: str | None
    status: int | None
    weak: bool
    received_at: int
    latency_ms: int | None
    disposition: str
    topic: str
    partition: int
    offset: int
    index: int
    payload: Raw | UnsetType = UNSET
    reason: str | None = None
    codec: str | None = None

    @property
    def id(self) -> str:
        """The id of the acknowledgement: its Kafka coordinates, and its index in an aggregate."""
        return f"{self.topic}-{self.partition}-{self.offset}-{self.index}"


class OutcomeRow(msgspec.Struct, omit_defaults=True, frozen=True, gc=False):
    """How a request ended; times in epoch milliseconds of event time. ``version``: 2 if it was amended."""

    correlation_id: str
    thing_id: str | None
    status: int
    completed_by: str
    requested: tuple[str, ...]
    missing: list[str]
    started_at: int
    decided_at: int
    latency_ms: int
    reply_id: str
    reply_topic: str | None
    reply: Raw | UnsetType = UNSET
    unneeded: list[str] = []
    version: int | None = None

    @property
    def id(self) -> str:
        """The id of the outcome: the reply-id, and the version if it is not the first."""
        return self.reply_id if self.version is None else f"{self.reply_id}-{self.version}"


class DeadLetterRow(msgspec.Struct, omit_defaults=True, frozen=True):
    """An unusable record, with the reason; in JSON, key and value are base64."""

    reason: str
    correlation_id: str | None
    topic: str
    partition: int
    offset: int
    received_at: int
    key: bytes | None
    value: bytes | None
    truncated: bool

    def cut(self) -> DeadLetterRow:
        """Return the row with at most ``DEAD_LETTER_BYTES`` of its key and of its value."""
        key, value = (part and part[:DEAD_LETTER_BYTES] for part in (self.key, self.value))
        truncated = self.truncated or (key, value) != (self.key, self.value)
        return msgspec.structs.replace(self, key=key, value=value, truncated=truncated)


class AuditRow(msgspec.Struct, omit_defaults=True, frozen=True):
    """An action of a client at the gateway, or its refusal, or a redriven dead letter; times in epoch milliseconds.

    It is in the topic ``audit`` only, so that writers of the ledger cannot write it. The
    ``query_id`` of its record is the run of the gateway, ``batch_id`` the number within it, from 1 without gaps.
    """

    correlation_id: str | None
    received_at: int
    event: str
    subject: str | None
    roles: tuple[str, ...]
    address: str | None
    method: str | None
    command: str | None
    thing_id: str | None
    path: str | None
    allowed: bool
    count: int
    status: int | None = None
    reason: str | None = None


class LedgerRecord(msgspec.Struct, omit_defaults=True, frozen=True, gc=False):
    """The value of one Kafka record of the ledger topic."""

    kind: str
    id: str
    query_id: str
    batch_id: int
    signal: SignalRow | None = None
    acks: list[AckRow] | None = None
    outcome: OutcomeRow | None = None
    dead_letter: DeadLetterRow | None = None
    audit: AuditRow | None = None

    @property
    def accepted(self) -> list[AckRow]:
        """The acknowledgements that the outcome took into account, in the order they arrived."""
        return [ack for ack in self.acks or () if ack.disposition == "accepted"]


_encoder = msgspec.json.Encoder()
encode, encode_into = _encoder.encode, _encoder.encode_into

decode = msgspec.json.Decoder(LedgerRecord).decode
"""Read a record; values, payloads and replies stay JSON text. Raises ``json.UNREADABLE``."""

read: Callable[[bytes | None], LedgerRecord | None] = optional_reader(LedgerRecord)
"""Read a record, as :func:`decode` does; ``None`` for everything else."""


def divide(record: LedgerRecord, limit: int) -> Iterator[bytes]:
    """Write the outcome of a request in records of ``limit`` bytes, by the first of these steps, as far as needed."""
    # The signal gets a record of its own. The copy of the reply is left out: it repeats the payloads. Of the largest
    # payloads the acks keep a reference, ``{"reference": topic-partition-offset-index, "bytes": length}``.
    replace = msgspec.structs.replace
    if record.signal is not None and record.outcome is not None:
        yield encode(replace(record, kind="signal", acks=None, outcome=None))
        record = replace(record, signal=None)
    if record.outcome is not None and len(encode(record)) > limit:
        record = replace(record, outcome=replace(record.outcome, reply=UNSET))
    excess, references = len(encode(record)) - limit, {}
    for ack in sorted(record.acks or (), key=_payload_bytes, reverse=True):
        if excess <= 0:
            break
        size = _payload_bytes(ack)
        reference = Raw(msgspec.json.encode({"reference": ack.id, "bytes": size}))
        references[ack.id] = replace(ack, payload=reference)
        excess -= size - len(reference)
    yield encode(replace(record, acks=record.acks and [references.get(ack.id, ack) for ack in record.acks]))


def _payload_bytes(ack: AckRow) -> int:
    return 0 if ack.payload is UNSET else len(ack.payload)


def reply_id(correlation_id: str, topic: str, partition: int, offset: int) -> str:
    """Return the reply's id: a hash of the correlation-id and the request's coordinates, 32 hexadecimal digits."""
    return blake2b(f"{correlation_id}\n{topic}\n{partition}\n{offset}".encode(), digest_size=16).hexdigest()
