"""The state of a shard, its encoding, and its division among other shards.

All structs are positional: the order of their fields is the format of the checkpoints (:data:`STATE_VERSION`). The hash
of its correlation-id gives each entry of a state its shard, so a division reads no record again, and an open request
stays encoded.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ackstream.protocol.ditto.acknowledgements import PROCESSING
from ackstream.protocol.ditto.aggregates import AckText
from ackstream.protocol.ditto.envelopes import Envelope
from ackstream.protocol.ditto.labels import DeclaredTimes
from ackstream.protocol.ditto.requests import AS_REMEMBERED, Request
from ackstream.spark.pieces import PieceEntry, PieceStore
from ackstream.spark.records import Shelf, Shelved, read_state

if TYPE_CHECKING:
    from ackstream.spark.operator import State

SIGNALS, ACKS, TWIN_ACKS, DECLARATIONS = range(4)
"""The topic that a record came from."""
OWN, LARGEST_NUMBER = 4, 0x0FFF_FFFF
"""The number of the service's topics, and the largest number of a topic of an application: a hash of its name. Its
records count as those of ``signals`` or ``acks``, with a source that is ``OWN * number`` higher."""

STATE_VERSION = 8
OLDEST_VERSION = 6
"""Version 7 has the topic of a record that is not in the service's own, version 8 the requests that may be amended;
structs only gain fields, pieces too."""
_SHELVES = ("open", "held", "undeclared", "timed_out")


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A Kafka record that correlate reads.

    ``timestamp``: the broker's, epoch ms; ``hash``: 64-bit, of the correlation-id, or else the coordinates; ``size``:
    bytes of the whole value, of which ``value`` may hold only the beginning; ``topic``: the real name of that of an
    application.
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
    topic: str | None = None

    @property
    def role(self) -> int:
        """The topic that it counts as a record of."""
        return self.source % OWN


class Received(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An accepted acknowledgement (JSON text) with the coordinates of its record; an error has no label.

    ``codec``: how the value of a record of any kind became the payload; ``None``: it is a Ditto Protocol message.
    """

    label: str | None
    status: int
    payload: bytes | None
    headers: bytes
    timestamp: int
    partition: int
    offset: int
    index: int
    weak: bool = False
    source: int = ACKS
    topic: str | None = None
    codec: str | None = None
    extend: int = 0

    @classmethod
    def of(cls, record: Record, ack: AckText, index: int = 0, codec: str | None = None, extend: int = 0) -> Received:
        """Combine an acknowledgement with the coordinates of its record."""
        data = None if ack.payload is msgspec.UNSET else bytes(ack.payload)
        # a starred call would double the cost
        at, partition, offset = record.timestamp, record.partition, record.offset
        own = (record.source, record.topic, codec, extend)
        return cls(ack.label, ack.status, data, ack.headers, at, partition, offset, index, ack.weak, *own)

    @classmethod
    def whole(cls, record: Record, answer: Envelope, label: str | None) -> Received:
        """Combine a response or an error, which no aggregate repeats, with the coordinates of its record."""
        payload = None if answer.value is msgspec.UNSET else bytes(answer.value)
        at, partition, offset = record.timestamp, record.partition, record.offset
        return cls(label, answer.status or 500, payload, b"{}", at, partition, offset, 0, source=record.source)


class Pending(msgspec.Struct, array_like=True, gc=False):
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
    # why live responses were rejected, for the text of a later timeout
    note: str | None = None
    # records that are read again when this one is decided: of a later request with the same correlation-id, and late
    # responses to one that may be amended
    successors: list[Record] = []
    # the request's headers that an aggregate repeats, as JSON text; the request keeps only its correlation-id
    headers: bytes = b"{}"
    # of the reply topic; None: any
    reply_partition: int | None = None
    # deadlines of labels whose parties requested more time; ``deadline`` is the latest of those that are missing
    extended: dict[str, int] = {}
    # the topic of its record
    source: int = SIGNALS
    # the first late acknowledgement of each missing label, if it may be amended
    late: list[Received] = []

    def keep_late(self, received: Iterable[Received]) -> None:
        """Keep late acknowledgements that may amend the request once it has timed out."""
        if not self.request.amend_ms:
            return
        for one in received:
            known = {other.label for other in (*self.received, *self.late)}
            if one.label in self.request.awaited and one.label not in known and one.status != PROCESSING:
                self.late.append(one)

    def extend(self, deadlines: dict[str, int]) -> None:
        """Give labels more time. If the deadline of those that are missing has passed, the watermark decides."""
        self.extended = deadlines
        self.deadline = max(map(self.deadline_of, self.missing), default=self.deadline)

    @property
    def missing(self) -> list[str]:
        """The awaited labels that have not answered, in their order."""
        arrived = {received.label for received in self.received}
        return [label for label in self.request.awaited if label not in arrived]

    def deadline_of(self, label: str) -> int:
        """Return the deadline of a label."""
        return self.extended.get(label, self.started_at + self.request.timeout_ms)


class PendingHead(msgspec.Struct, array_like=True):
    """The first fields of an open request: the only ones decoded unless a record concerns it."""

    correlation_id: str
    hash: int
    request: msgspec.Raw
    started_at: int
    deadline: int


class ShardState(msgspec.Struct, array_like=True):
    """The content of a shard's blob: open requests, early acknowledgements, and the memory of decided requests.

    Open requests are encoded by themselves (:func:`decode_pending`), each until its deadline; ``held`` are records that
    wait for their request, ``undeclared`` for a declaration of their label. ``declared``: when labels were declared.
    ``timed_out`` are requests that may be amended, until then.
    """

    open: Shelved = msgspec.field(default_factory=Shelved)
    held: Shelved = msgspec.field(default_factory=Shelved)
    undeclared: Shelved = msgspec.field(default_factory=Shelved)
    recent: list[tuple[int, bytes]] = []
    declared: dict[str, list[tuple[int, int]]] = {}
    timed_out: Shelved = msgspec.field(default_factory=Shelved)


encode = msgspec.msgpack.Encoder().encode
decode_pending = msgspec.msgpack.Decoder(Pending).decode
decode_head = msgspec.msgpack.Decoder(PendingHead).decode
decode_record = msgspec.msgpack.Decoder(Record).decode
decode_state = partial(read_state, ShardState, STATE_VERSION, oldest=OLDEST_VERSION)


def record_entry(record: Record, end: int) -> PieceEntry:
    """Return the entry of a record that waits until ``end``."""
    return PieceEntry(record.hash, end, encode(record))


BUCKETS = 8
MINIMUM_BUCKET_MS = 1000
BUCKETS_OF_A_TIMEOUT = 256
"""Every batch searches every bucket: those of a timeout of 24 h are wider."""


class Recent:
    """Remembers decided requests: 64-bit hashes of their correlation-ids, each until its end (ms of event time).

    The end is *deadline* plus ``recent_memory``, so the fate of a later record does not depend on where batches are
    cut. Ends are rounded up to buckets, wider ones for long timeouts. A bucket is a sorted array of hashes as bytes: a
    million requests cost 8 MB, and no work per entry.
    """

    def __init__(self, memory_ms: int, buckets: Iterable[tuple[int, bytes]] = ()) -> None:
        """Start with ``buckets`` as returned by :meth:`dump`."""
        self._memory_ms = memory_ms
        self._bucket_ms = max(MINIMUM_BUCKET_MS, memory_ms // BUCKETS)
        self._buckets: dict[int, bytes] = dict(buckets)
        self._fresh: dict[int, int] = {}

    def end(self, request: Pending) -> int:
        """Return the last time at which a request, open or decided, claims its correlation-id."""
        end, width = request.deadline + max(self._memory_ms, request.request.amend_ms), self._bucket_ms
        while width * BUCKETS_OF_A_TIMEOUT < end - self._memory_ms - request.started_at:
            width *= 2
        return (end // width + 1) * width

    def amend_end(self, request: Pending) -> int:
        """Return the last time at which a late acknowledgement may amend a request that has timed out."""
        wanted = request.request.amend_ms
        return request.deadline + (self._memory_ms if wanted == AS_REMEMBERED else wanted)

    def look_up(self, hashes: np.ndarray[tuple[int], np.dtype[np.int64]]) -> dict[int, int]:
        """Return ``{hash: end}`` for the remembered ones among the hashes of a batch."""
        found: dict[int, int] = {}
        for end, packed in self.dump():
            known = np.frombuffer(packed, dtype=np.int64)
            indices = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
            for value in hashes[known[indices] == hashes].tolist():
                found[value] = end
        return found

    def remember(self, request: Pending) -> int:
        """Remember a decided request; return its end."""
        end = self._fresh[request.hash] = self.end(request)
        return end

    def forget(self, watermark: int) -> None:
        """Drop entries that ended before the watermark: no record that old can arrive any more."""
        self._buckets = {end: packed for end, packed in self.dump() if end >= watermark}

    def dump(self) -> list[tuple[int, bytes]]:
        """Return the buckets with fresh entries merged in, in order of their ends."""
        by_end: dict[int, list[int]] = {}
        for value, end in self._fresh.items():
            by_end.setdefault(end, []).append(value)
        for end, values in by_end.items():
            known = np.frombuffer(self._buckets.get(end, b""), dtype=np.int64)
            self._buckets[end] = np.union1d(known, np.array(values, dtype=np.int64)).tobytes()
        self._fresh = {}
        return sorted(self._buckets.items())


def stores(store: PieceStore | None) -> tuple[PieceStore | None, ...]:
    """Return the stores for the pieces of open requests, and of each further shelf."""
    return (store, *(store and store.within(name) for name in _SHELVES[1:]))


def open_requests(state: ShardState, store: PieceStore | None) -> list[Pending]:
    """Return all open requests of a state."""
    return [decode_pending(entry.body) for entry in Shelf(store, state.open).entries()]


def divide(shards: int, version: int, blob: bytes, store: PieceStore | None = None) -> dict[int, State]:
    """Divide a state among the new number of ``shards``; return their parts, without the shards that get nothing.

    ``store``: of the old shard; the parts name no pieces. Raises ValueError if this release cannot read the version.
    """
    state = decode_state(version, blob)
    found: dict[int, ShardState] = {}

    def part(shard: int) -> ShardState:
        return found.setdefault(shard, ShardState())

    # Spark's pmod, too, is never negative
    for name, own in zip(_SHELVES, stores(store), strict=True):
        for entry in Shelf(own, getattr(state, name)).entries():
            getattr(part(entry.hash % shards), name).entries.append(entry)
    # every shard has to know them
    for shard in range(shards if state.declared else 0):
        part(shard).declared = state.declared
    for end, packed in state.recent:
        hashes = np.frombuffer(packed, dtype=np.int64)
        owners = hashes % shards
        for shard in np.unique(owners).tolist():
            part(shard).recent.append((end, hashes[owners == shard].tobytes()))
    return {shard: (STATE_VERSION, encode(own)) for shard, own in found.items()}


def unite(parts: Iterable[State]) -> State:
    """Unite the parts of one shard, in any order."""
    whole = ShardState()
    recent: dict[int, list[bytes]] = {}
    declared = DeclaredTimes(whole.declared)
    # in an order of their own, so that the result does not depend on Spark's
    for version, blob in sorted(parts):
        state = decode_state(version, blob)
        for name in _SHELVES:
            getattr(whole, name).entries.extend(getattr(state, name).entries)
        for label, spans in state.declared.items():
            for span in spans:
                declared.add(label, *span)
        for end, packed in state.recent:
            recent.setdefault(end, []).append(packed)
    whole.recent = [
        (end, np.sort(np.frombuffer(b"".join(packed), dtype=np.int64)).tobytes())
        for end, packed in sorted(recent.items())
    ]
    return STATE_VERSION, encode(whole)
