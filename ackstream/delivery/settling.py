"""One shard of the settle operator: who has acknowledged what of the writers in it.

Pure: records in, rows and messages out, state to bytes and back. Everything that goes out has an id derived from what
it is about, so that a batch that runs again says the same. A message may only go out when the rows are stored: a false
acknowledgement is worse than none (brokers.md 0.1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ackstream.delivery.retention import MAX_HOLES, Retention, Subscription
from ackstream.protocol.app_acks import (
    AppAck,
    AppAckConf,
    ApplicationAcknowledged,
    AutoReason,
    ConsumerRecordError,
    ProtocolAck,
    SamplesDone,
    read,
)
from ackstream.protocol.intervals import Intervals

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ackstream.protocol.intervals import Interval

STATE_VERSION = 1


class ReportRecord(msgspec.Struct, frozen=True, array_like=True):
    """One record of the topic ``app-acks``; ``timestamp`` is the broker's, in epoch milliseconds."""

    timestamp: int
    partition: int
    offset: int
    value: bytes


class DeliveryRow(msgspec.Struct, frozen=True):
    """A reader has acknowledged samples: one row of the table ``deliveries``; no two rows of a reader overlap."""

    id: str
    writer: str
    reader: str
    role: str | None
    first: int
    last: int
    response: bytes | None
    auto: AutoReason | None
    epoch: int
    acknowledged_at: int
    partition: int
    offset: int


class IgnoredRow(msgspec.Struct, frozen=True):
    """A report, or one interval of it, that was not used, and why."""

    id: str
    reason: str
    writer: str | None
    reader: str | None
    first: int | None
    last: int | None
    received_at: int
    partition: int
    offset: int


class Settled(msgspec.Struct):
    """What a batch came to: rows for the tables, then messages for the readers and the publishers."""

    deliveries: list[DeliveryRow] = []
    ignored: list[IgnoredRow] = []
    confs: list[AppAckConf] = []
    events: list[ApplicationAcknowledged] = []
    done: list[SamplesDone] = []


class _Reader(msgspec.Struct, array_like=True):
    start: int
    steps: list[int]
    role: str | None
    present: bool
    epoch: int
    count: int


class _Writer(msgspec.Struct, array_like=True):
    """What is kept of a writer; :data:`STATE_VERSION` names this shape."""

    start: int
    written: int
    done: list[int]
    readers: dict[str, _Reader]


_encode = msgspec.msgpack.Encoder().encode
_decode_shard: msgspec.msgpack.Decoder[dict[str, msgspec.Raw]] = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_decode_writer: msgspec.msgpack.Decoder[_Writer] = msgspec.msgpack.Decoder(_Writer)


class Shard:
    """The writers of one shard. Use: :meth:`load`, one :meth:`process` a batch, then :meth:`dump`."""

    def __init__(self, required: Mapping[str, int], *, max_holes: int = MAX_HOLES) -> None:
        """Begin empty.

        :param required: the quorum of each role that must acknowledge
        """
        self._required = dict(required)
        self._max_holes = max_holes
        # an untouched writer stays encoded: a batch pays for what it touches
        self._writers: dict[str, Retention | msgspec.Raw] = {}

    def load(self, version: int, blob: bytes) -> None:
        """Take over the state that :meth:`dump` gave.

        :raises ValueError: for a version this release does not know
        """
        if version != STATE_VERSION:
            raise ValueError(f"The state has version {version}; this release reads version {STATE_VERSION}.")
        self._writers = dict(_decode_shard.decode(blob))

    def dump(self) -> tuple[int, bytes]:
        """Return version and blob."""
        writers = {
            name: _dump(writer) if isinstance(writer, Retention) else writer for name, writer in self._writers.items()
        }
        return STATE_VERSION, _encode(writers)

    def retention(self, writer: str) -> Retention:
        """Return what is known of a writer; nothing yet of a new one."""
        found = self._writers.get(writer)
        if not isinstance(found, Retention):
            if found is None:
                found = Retention(writer, self._required, max_holes=self._max_holes)
            else:
                found = _load(writer, found, self._required, self._max_holes)
            self._writers[writer] = found
        return found

    def process(self, written: Mapping[str, int], records: Iterable[ReportRecord]) -> Settled:
        """Take the records of a batch in the order of (timestamp, partition, offset).

        :param written: for writers of which there is news, the last sample that is stored
        """
        settled = Settled()
        done: dict[str, list[Interval]] = {}
        for writer, last in sorted(written.items()):
            done.setdefault(writer, []).extend(self.retention(writer).write(last))
        for record in sorted(records, key=lambda record: (record.timestamp, record.partition, record.offset)):
            self._take(record, settled, done)
        settled.done = [self._done(writer, runs) for writer, runs in done.items() if runs]
        return settled

    def _done(self, writer: str, runs: Sequence[Interval]) -> SamplesDone:
        known = self.retention(writer).done
        return SamplesDone(writer, tuple(Intervals(runs, start=known.start)), known.watermark)

    def _take(self, record: ReportRecord, settled: Settled, done: dict[str, list[Interval]]) -> None:
        try:
            report = read(record.value)
        except ConsumerRecordError:
            settled.ignored.append(_ignored(record, 0, "unreadable"))
            return
        if not isinstance(report, (AppAck, ProtocolAck)):
            # settlements of queues are another operator's
            return
        receipt = self.retention(report.writer).receive(report)
        settled.deliveries += [_row(event, report.epoch, record) for event in receipt.events]
        settled.events += receipt.events
        settled.confs += [receipt.conf] if receipt.conf else []
        settled.ignored += [
            _ignored(record, index, entry.reason, report, entry.first, entry.last)
            for index, entry in enumerate(receipt.ignored)
        ]
        done.setdefault(report.writer, []).extend(receipt.done)


def _row(event: ApplicationAcknowledged, epoch: int, record: ReportRecord) -> DeliveryRow:
    return DeliveryRow(
        f"{event.writer}/{event.reader}/{event.first}",
        event.writer,
        event.reader,
        event.role,
        event.first,
        event.last,
        event.response,
        event.auto,
        epoch,
        record.timestamp,
        record.partition,
        record.offset,
    )


def _ignored(
    record: ReportRecord,
    index: int,
    reason: str,
    report: AppAck | ProtocolAck | None = None,
    first: int | None = None,
    last: int | None = None,
) -> IgnoredRow:
    writer, reader = (report.writer, report.reader) if report else (None, None)
    identity = f"{record.partition}-{record.offset}-{index}"
    return IgnoredRow(identity, reason, writer, reader, first, last, record.timestamp, record.partition, record.offset)


def _dump(writer: Retention) -> msgspec.Raw:
    readers = {
        name: _Reader(
            known.acknowledged.start, known.acknowledged.dump(), known.role, known.present, known.epoch, known.count
        )
        for name, known in writer.readers.items()
    }
    return msgspec.Raw(_encode(_Writer(writer.done.start, writer.written, writer.done.dump(), readers)))


def _load(name: str, blob: msgspec.Raw, required: Mapping[str, int], max_holes: int) -> Retention:
    state = _decode_writer.decode(blob)
    writer = Retention(name, required, start=state.start, max_holes=max_holes)
    writer.written = state.written
    writer.done = Intervals.load(state.done, start=state.start)
    for reader, known in state.readers.items():
        acknowledged = Intervals.load(known.steps, start=known.start, max_holes=max_holes)
        writer.readers[reader] = Subscription(acknowledged, known.role, known.present, known.epoch, known.count)
    return writer
