"""Divides the state of a shard among another number of shards, and puts the parts of a new shard together.

Everything in a state belongs to the shard that the hash of its correlation-id chooses, so no record has to be read
again; an open request stays encoded.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from ackstream.jobs.correlate.pending import whole
from ackstream.jobs.correlate.state import STATE_VERSION, ShardState, decode_head, decode_state, encode
from ackstream.protocol.ditto.labels import DeclaredTimes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ackstream.spark.operator import State
    from ackstream.spark.pieces import PieceStore

    Entry = tuple[int, str]


def divide(shards: int, version: int, blob: bytes, store: PieceStore | None = None) -> dict[int, State]:
    """Divide a state; return the parts by the shard they belong to, without the shards that get nothing.

    :param shards: their new number
    :param store: of the old shard; in the parts are all open requests
    :raises ValueError: if this release cannot read the version
    """
    state = whole(decode_state(version, blob), store)
    found: dict[int, ShardState] = {}

    def part(shard: int) -> ShardState:
        return found.setdefault(shard, ShardState({}, [], {}, [], []))

    # Spark's pmod, too, is never negative
    opened = {key: {decode_head(pending).hash % shards} for key, pending in state.open.items()}
    held = {key: {record.hash % shards for record in records} for key, records in state.held.items()}
    for key, pending in state.open.items():
        part(*opened[key]).open[key] = pending
    for key, records in state.held.items():
        for record in records:
            part(record.hash % shards).held.setdefault(key, []).append(record)
    for shard, entry in _owned(state.deadlines, opened):
        part(shard).deadlines.append(entry)
    for shard, entry in _owned(state.hold_ends, held):
        part(shard).hold_ends.append(entry)
    for record in state.undeclared:
        part(record.hash % shards).undeclared.append(record)
    # every shard has to know them
    for shard in range(shards if state.declared else 0):
        part(shard).declared = state.declared
    for shard, bucket in _spread(state.recent, shards):
        part(shard).recent.append(bucket)
    return {shard: (STATE_VERSION, encode(own)) for shard, own in found.items()}


def _owned(heap: list[Entry], owners: Mapping[str, set[int]]) -> Iterator[tuple[int, Entry]]:
    """Yield the entries of a heap in order, which is a heap again, with their shards; without those nobody owns."""
    for entry in sorted(heap):
        for shard in owners.get(entry[1], ()):
            yield shard, entry


def _spread(buckets: Iterable[tuple[int, bytes]], shards: int) -> Iterator[tuple[int, tuple[int, bytes]]]:
    """Yield buckets of hashes with their shards, each with the hashes of that shard."""
    for end, packed in buckets:
        hashes = np.frombuffer(packed, dtype=np.int64)
        owners = hashes % shards
        for shard in np.unique(owners).tolist():
            yield shard, (end, hashes[owners == shard].tobytes())


def unite(parts: Iterable[State]) -> State:
    """Unite the parts of one shard, in any order."""
    whole = ShardState({}, [], {}, [], [])
    recent: dict[int, list[bytes]] = {}
    declared = DeclaredTimes(whole.declared)
    # in an order of their own, so that the result does not depend on Spark's
    for version, blob in sorted(parts):
        state = decode_state(version, blob)
        whole.open.update(state.open)
        for key, records in state.held.items():
            whole.held.setdefault(key, []).extend(records)
        whole.deadlines = list(heapq.merge(whole.deadlines, state.deadlines))
        whole.hold_ends = list(heapq.merge(whole.hold_ends, state.hold_ends))
        whole.undeclared.extend(state.undeclared)
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
