"""The state of a shard of settle as bytes: versions, and what becomes of older ones.

A writer is encoded on its own, so that a batch pays for the writers it touches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ackstream.jobs.settle.output import ReportRecord
from ackstream.jobs.settle.presence import Presence
from ackstream.jobs.settle.retention import MAX_HOLES, ReaderSubscription, Retention
from ackstream.protocol.intervals import Intervals
from ackstream.protocol.patterns import matches_any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ackstream.settings import Settings


STATE_VERSION = 2


class Held(msgspec.Struct, array_like=True):
    """All that a shard keeps; ``early`` are reports that wait for what they are about."""

    writers: dict[str, msgspec.Raw] = {}
    readers: dict[str, Presence] = {}
    early: list[ReportRecord] = []


class _Reader(msgspec.Struct, array_like=True):
    start: int
    steps: list[int]
    role: str | None
    present: bool
    epoch: int
    count: int


class _WriterState(msgspec.Struct, array_like=True):
    """What is kept of a writer; version 1 had no ``refused``."""

    start: int
    written: int
    done: list[int]
    readers: dict[str, _Reader]
    refused: list[int] = []


encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Held).decode
_decode_first = msgspec.msgpack.Decoder(dict[str, msgspec.Raw]).decode
_decode_writer: msgspec.msgpack.Decoder[_WriterState] = msgspec.msgpack.Decoder(_WriterState)


def decode(version: int, blob: bytes, now: int) -> Held:
    """Read a state of this version or of one before.

    :param now: the time from which readers count as silent that version 1 did not know the time of
    :raises ValueError: for a version this release does not know
    """
    if version == STATE_VERSION:
        return _decode(blob)
    if version != 1:
        raise ValueError(f"The state has version {version}; this release reads versions 1 and {STATE_VERSION}.")
    held = Held(writers=_decode_first(blob))
    for raw in held.writers.values():
        for name, reader in _decode_writer.decode(raw).readers.items():
            known = held.readers.setdefault(name, Presence(reader.epoch, reader.role, now))
            if reader.epoch > known.epoch:
                known.epoch, known.role = reader.epoch, reader.role
    return held


class Writers:
    """The writers of a shard; one that is not touched stays encoded."""

    def __init__(self, rules: SettleRules, encoded: Mapping[str, msgspec.Raw]) -> None:
        """Begin with what :meth:`dump` gave."""
        self._rules = rules
        self._known: dict[str, Retention | msgspec.Raw] = dict(encoded)

    def __contains__(self, writer: str) -> bool:
        return writer in self._known

    def __getitem__(self, writer: str) -> Retention:
        """Return what is known of a writer; of an unknown one nothing, which is not kept either."""
        found = self._known.get(writer)
        if found is None:
            return Retention(writer, self._rules.quorums(writer), max_holes=self._rules.max_holes)
        if not isinstance(found, Retention):
            found = self._known[writer] = _load(writer, found, self._rules)
        return found

    def all(self) -> Iterator[tuple[str, Retention]]:
        """Decode and yield all, with their names."""
        for writer in self._known:
            yield writer, self[writer]

    def add(self, writer: str, start: int) -> Retention:
        """Begin with a writer, whose first sample is ``start``."""
        found = Retention(writer, self._rules.quorums(writer), start=start, max_holes=self._rules.max_holes)
        self._known[writer] = found
        return found

    def dump(self) -> dict[str, msgspec.Raw]:
        """Encode those that are not."""
        return {name: _dump(known) if isinstance(known, Retention) else known for name, known in self._known.items()}


def _dump(writer: Retention) -> msgspec.Raw:
    readers = {
        name: _Reader(
            known.acknowledged.start, known.acknowledged.dump(), known.role, known.present, known.epoch, known.count
        )
        for name, known in writer.readers.items()
    }
    state = _WriterState(writer.done.start, writer.written, writer.done.dump(), readers, writer.refused.dump())
    return msgspec.Raw(encode(state))


def _load(name: str, blob: msgspec.Raw, rules: SettleRules) -> Retention:
    state = _decode_writer.decode(blob)
    writer = Retention(name, rules.quorums(name), start=state.start, max_holes=rules.max_holes)
    writer.written = state.written
    writer.done = Intervals.load(state.done, start=state.start)
    writer.refused = Intervals.load(state.refused, start=state.start)
    for reader, known in state.readers.items():
        acknowledged = Intervals.load(known.steps, start=known.start, max_holes=rules.max_holes)
        writer.readers[reader] = ReaderSubscription(acknowledged, known.role, known.present, known.epoch, known.count)
    return writer


# -- What settle is told by the settings: who must acknowledge whose samples, and how long a silent reader is there.


class RequiredRole(msgspec.Struct, frozen=True):
    """So many different readers of a role must acknowledge each sample of the writers that match (R19)."""

    role: str
    quorum: int
    writers: tuple[str, ...] = ("*",)


class SettleRules(msgspec.Struct, frozen=True):
    """Required roles, limits, spans (milliseconds).

    :ivar lease_ms: a plain reader that was silent for longer is gone
    :ivar memory_ms: a plain reader that was silent for longer is forgotten: what it says then counts anew
    """

    required: tuple[RequiredRole, ...] = ()
    max_holes: int = MAX_HOLES
    lease_ms: int = 30_000
    memory_ms: int = 86_400_000
    shards: int = 1

    def quorums(self, writer: str) -> dict[str, int]:
        """Return the quorum of each role that is required for a writer's samples; of several rules the first counts."""
        found: dict[str, int] = {}
        for rule in self.required:
            if matches_any(rule.writers, writer):
                found.setdefault(rule.role, rule.quorum)
        return found


def settle_rules(settings: Settings) -> SettleRules:
    """Read the rules from the settings."""
    settle = settings.settle
    return SettleRules(
        tuple(RequiredRole(rule.role, rule.quorum, rule.writers) for rule in settle.required),
        settle.max_holes,
        settle.reader_lease,
        settle.reader_memory,
        settle.shards,
    )
