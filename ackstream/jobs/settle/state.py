"""What a shard of settle keeps between batches: writers, readers, and early reports; and its form as bytes.

A writer is encoded on its own, so that a batch pays for the writers it touches.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from ackstream.jobs.settle.output import ReportRecord
from ackstream.jobs.settle.retention import ReaderSubscription, Retention
from ackstream.protocol.intervals import Intervals
from ackstream.protocol.messages import MAX_NUMBER
from ackstream.protocol.patterns import matches_any
from ackstream.protocol.readers import AppAck, ProtocolAck, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ackstream.jobs.settle.retention import Report
    from ackstream.settings import Settle


STATE_VERSION = 2
NEVER = MAX_NUMBER
"""Later than every timestamp."""


class Presence(msgspec.Struct, array_like=True):
    """What is known of one reader, by its records and their timestamps alone.

    :ivar seen: the timestamp of its last record, epoch milliseconds
    :ivar writers: patterns of the writers it reads; empty if it never sent a start record
    """

    epoch: int
    role: str | None
    seen: int
    durable: bool = False
    writers: tuple[str, ...] = ()
    present: bool = True

    def reads(self, writer: str) -> bool:
        """Return whether it reads a writer's samples."""
        return matches_any(self.writers, writer)

    def end(self, rules: Settle) -> int:
        """Return the last time at which it is present without another record; of an absent one, is remembered."""
        if not self.present:
            return self.seen + rules.reader_memory
        return NEVER if self.durable else self.seen + rules.reader_lease


class SettleState(msgspec.Struct, array_like=True):
    """The shape of the blob; :data:`STATE_VERSION` is its version."""

    writers: dict[str, msgspec.Raw] = {}
    readers: dict[str, Presence] = {}
    early: list[ReportRecord] = []


class _SavedReader(msgspec.Struct, array_like=True):
    start: int
    steps: list[int]
    role: str | None
    present: bool
    epoch: int
    count: int


class _SavedWriter(msgspec.Struct, array_like=True):
    start: int
    written: int
    done: list[int]
    readers: dict[str, _SavedReader]
    refused: list[int] = []


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SettleState).decode
_decode_writer: msgspec.msgpack.Decoder[_SavedWriter] = msgspec.msgpack.Decoder(_SavedWriter)


def decode(version: int, blob: bytes) -> SettleState:
    """Read the state of a shard.

    :raises ValueError: if this release cannot read the version
    """
    if version != STATE_VERSION:
        raise ValueError(f"The state has version {version}; this release reads version {STATE_VERSION}.")
    return _decode(blob)


def encode(state: SettleState) -> tuple[int, bytes]:
    """Return version and blob of the state of a shard."""
    return STATE_VERSION, _encode(state)


class Writers:
    """The writers of a shard, decoded when they are first accessed."""

    def __init__(self, rules: Settle, encoded: Mapping[str, msgspec.Raw]) -> None:
        """Begin with the result of :meth:`dump`."""
        self._rules = rules
        self._known: dict[str, Retention | msgspec.Raw] = dict(encoded)

    def __contains__(self, writer: str) -> bool:
        return writer in self._known

    def __getitem__(self, writer: str) -> Retention:
        """Return a writer's retention; an unknown writer's is empty and not kept."""
        found = self._known.get(writer)
        if found is None:
            return self._new(writer)
        if not isinstance(found, Retention):
            found = self._known[writer] = self._decode(writer, found)
        return found

    def all(self) -> Iterator[tuple[str, Retention]]:
        """Decode and yield all writers, with their names."""
        for writer in self._known:
            yield writer, self[writer]

    def add(self, writer: str, start: int) -> Retention:
        """Add a writer whose first sample is ``start``."""
        found = self._known[writer] = self._new(writer, start)
        return found

    def dump(self) -> dict[str, msgspec.Raw]:
        """Encode the writers that were decoded; return all."""
        return {
            name: _encode_writer(known) if isinstance(known, Retention) else known
            for name, known in self._known.items()
        }

    def _new(self, writer: str, start: int = 1) -> Retention:
        return Retention(writer, self._rules.quorums(writer), start=start, max_holes=self._rules.max_holes)

    def _decode(self, name: str, blob: msgspec.Raw) -> Retention:
        state = _decode_writer.decode(blob)
        writer = self._new(name, state.start)
        writer.written = state.written
        writer.done = Intervals.load(state.done, start=state.start)
        writer.refused = Intervals.load(state.refused, start=state.start)
        for reader, known in state.readers.items():
            acknowledged = Intervals.load(known.steps, start=known.start, max_holes=self._rules.max_holes)
            subscription = ReaderSubscription(acknowledged, known.role, known.present, known.epoch, known.count)
            writer.readers[reader] = subscription
        return writer


def _encode_writer(writer: Retention) -> msgspec.Raw:
    readers = {
        name: _SavedReader(
            known.acknowledged.start, known.acknowledged.dump(), known.role, known.present, known.epoch, known.count
        )
        for name, known in writer.readers.items()
    }
    state = _SavedWriter(writer.done.start, writer.written, writer.done.dump(), readers, writer.refused.dump())
    return msgspec.Raw(_encode(state))


class EarlyReports:
    """Reports of samples that may still arrive, by writer and reader, each reader's in the order of arrival."""

    def __init__(self, records: Iterable[ReportRecord] = ()) -> None:
        """Begin empty, or with the result of :attr:`records`."""
        self._waiting: dict[str, dict[str, deque[tuple[ReportRecord, Report]]]] = {}
        for record in records:
            report = read(record.value or b"")
            if isinstance(report, (AppAck, ProtocolAck)):
                self.add(record, report)

    def add(self, record: ReportRecord, report: Report) -> None:
        """Add a report."""
        readers = self._waiting.setdefault(report.writer, {})
        readers.setdefault(report.reader, deque()).append((record, report))

    def take(self, writer: str, before: int, lacks: Callable[[Report], bool]) -> list[tuple[ReportRecord, Report]]:
        """Remove and return a writer's reports that need not wait: older than a time, or lacking no sample.

        A reader's later report never overtakes an earlier one, so a backlog costs one look at each reader's oldest.
        """
        taken = []
        readers = self._waiting.get(writer, {})
        for reader, waiting in list(readers.items()):
            while waiting and (waiting[0][0].timestamp < before or not lacks(waiting[0][1])):
                taken.append(waiting.popleft())
            if not waiting:
                del readers[reader]
        if not readers:
            self._waiting.pop(writer, None)
        return taken

    @property
    def writers(self) -> list[str]:
        """The writers with early reports."""
        return list(self._waiting)

    @property
    def records(self) -> list[ReportRecord]:
        """All early reports, as records."""
        return [record for waiting in self._queues() for record, _ in waiting]

    @property
    def deadline(self) -> int | None:
        """The timestamp of the oldest report: once the watermark is past it, its samples cannot arrive."""
        return min((waiting[0][0].timestamp for waiting in self._queues()), default=None)

    def _queues(self) -> Iterator[deque[tuple[ReportRecord, Report]]]:
        for readers in self._waiting.values():
            yield from readers.values()
