"""Divides the state of a shard among another number of shards, and puts the parts of a new shard together.

Everything in a state belongs to the shard that the hash of its correlation-id chooses, so no record has to be read
again; an open request stays encoded.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ackstream.jobs.correlate.state import STATE_VERSION, ShardState, decode_state, encode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackstream.spark.operator import State


class _Pending(msgspec.Struct, array_like=True):
    """The first fields of an open request, which is all that has to be decoded of it."""

    correlation_id: str
    hash: int


_decode_pending = msgspec.msgpack.Decoder(_Pending).decode


def divide(shards: int, version: int, blob: bytes) -> dict[int, State]:
    """Divide a state; return the parts by the shard they belong to, without the shards that get nothing.

    :param shards: their new number
    :raises ValueError: if this release cannot read the version
    """
    state = decode_state(version, blob)
    found: dict[int, ShardState] = {}

    def part(value: int) -> ShardState:
        # Spark's pmod, too, is never negative
        return found.setdefault(value % shards, ShardState({}, [], {}, [], []))

    for key, pending in state.open.items():
        part(_decode_pending(pending).hash).open[key] = pending
    for key, records in state.held.items():
        for record in records:
            part(record.hash).held.setdefault(key, []).append(record)
    for end, packed in state.recent:
        hashes = np.frombuffer(packed, dtype=np.int64)
        owners = hashes % shards
        for owner in np.unique(owners).tolist():
            part(owner).recent.append((end, hashes[owners == owner].tobytes()))
    for own in found.values():
        # entries of decided requests and released acknowledgements stay behind; a sorted list is a heap
        own.deadlines = sorted(entry for entry in state.deadlines if entry[1] in own.open)
        own.hold_ends = sorted(entry for entry in state.hold_ends if entry[1] in own.held)
    return {owner: (STATE_VERSION, encode(own)) for owner, own in found.items()}


def unite(parts: Iterable[State]) -> State:
    """Unite the parts of one shard, in any order."""
    whole = ShardState({}, [], {}, [], [])
    recent: dict[int, list[bytes]] = {}
    # in an order of their own, so that the result does not depend on Spark's
    for version, blob in sorted(parts):
        state = decode_state(version, blob)
        whole.open.update(state.open)
        for key, records in state.held.items():
            whole.held.setdefault(key, []).extend(records)
        whole.deadlines = list(heapq.merge(whole.deadlines, state.deadlines))
        whole.hold_ends = list(heapq.merge(whole.hold_ends, state.hold_ends))
        for end, packed in state.recent:
            recent.setdefault(end, []).append(packed)
    whole.recent = [
        (end, np.sort(np.frombuffer(b"".join(packed), dtype=np.int64)).tobytes())
        for end, packed in sorted(recent.items())
    ]
    return STATE_VERSION, encode(whole)
