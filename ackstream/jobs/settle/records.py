"""The records of settle: those that come in; rows for the tables; then messages for readers and publishers."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, TypeAlias, TypeVar

import msgspec

from ackstream.jobs.settle.completion import Ignored, Report, ReportReceipt, Retention
from ackstream.protocol import readers
from ackstream.protocol.intervals import Interval, Intervals
from ackstream.protocol.json import optional_reader

ReaderRecord: TypeAlias = Report | readers.ReaderStart | readers.ReaderAlive | readers.ReaderStop

STORED, REPORTS, TICK = 0, 1, 2
"""The source of a record: the topic ``stored`` or ``app-acks``, or the clock, whose tick has only a time."""
TOPICS = ("stored", "app-acks", "settle-clock")
VALUE_BYTES = 4_096
"""Bytes kept of an unreadable record, as a batch may be full of them; its topic has all of it."""
RUNS = 5_000
"""The maximum number of runs in one message; more are split into several messages."""
PART_BYTES = 500_000
"""The maximum size of one part of a ReaderState, and of one writer's runs: a topic with Kafka's own limit takes it."""
_WRITER_BYTES, _RUN_BYTES, _SESSION_BYTES = 2_000, 50, 300

OF_READERS = ("reader_start", "reader_alive", "reader_stop", "readers_asked")
"""Types of records that all shards receive: a reader concerns all writers."""
_READERS_IN_PART = 100

E = TypeVar("E")


class _Typed(msgspec.Struct):
    type: str


_read_typed: Callable[[bytes | None], _Typed | None] = optional_reader(_Typed)


class ReportRecord(msgspec.Struct, frozen=True, array_like=True):
    """One record of the topic of its ``source``; ``timestamp`` is the broker's, in epoch milliseconds."""

    timestamp: int
    source: int
    partition: int
    offset: int
    value: bytes | None


Row: TypeAlias = dict[str, Any]
"""A row by its columns, without those of the batch; times are epoch milliseconds, and missing columns are null."""


class Settled(msgspec.Struct):
    """Rows of ``deliveries`` and ``ignored_reports``, then messages; ``states`` are as of the end of the batch."""

    deliveries: list[Row] = []
    ignored: list[Row] = []
    confs: list[readers.AppAckConf] = []
    events: list[readers.ApplicationAcknowledged] = []
    done: list[readers.SamplesDone] = []
    states: list[readers.ReaderState | readers.ReaderRemoved | readers.WriterState | readers.KnownReaders] = []

    def add(self, record: ReportRecord, report: Report, receipt: ReportReceipt) -> None:
        """Add the effects of a report, except the samples that became done."""
        for event in receipt.events:
            row = {
                "id": f"{event.writer}/{event.reader}/{event.first}",
                "epoch": report.epoch,
                "acknowledged_at": record.timestamp,
                "partition": record.partition,
                "offset": record.offset,
            }
            self.deliveries.append(msgspec.structs.asdict(event) | row)
        self.events += receipt.events
        self.confs += [receipt.conf] if receipt.conf else []
        self.ignore(record, report, receipt.ignored)

    def ignore(self, record: ReportRecord, report: ReaderRecord, ignored: Iterable[Ignored]) -> None:
        """Add the rows of a report, or of its intervals, that were not used."""
        known = {"writer": getattr(report, "writer", None), "reader": report.reader}
        for index, entry in enumerate(ignored):
            self._ignore(record, index, entry.reason, known | {"first": entry.first, "last": entry.last})

    def ignore_record(self, record: ReportRecord, reason: str, detail: str, index: int = 0) -> None:
        """Add a row of a record that is unreadable, or that failed: in each shard, of this ``index``, for itself."""
        value = None if record.value is None else record.value[:VALUE_BYTES]
        self._ignore(record, index, reason, {"detail": detail[:VALUE_BYTES], "value": value})

    def add_expired(self, reader: str, epoch: int, at: int) -> None:
        """Add the row of a durable reader that was removed because it was silent for ``settle.durable_lease``."""
        # no record caused it, so it has no coordinates
        row: Row = {"reason": "reader-expired", "reader": reader, "received_at": at, "topic": ""}
        self.ignored.append(row | {"id": f"reader-{reader}-{epoch}-{at}", "partition": -1, "offset": -1})

    def _ignore(self, record: ReportRecord, index: int, reason: str, known: Row) -> None:
        topic = TOPICS[record.source]
        row = {
            "id": f"{topic}-{record.partition}-{record.offset}-{index}",
            "reason": reason,
            "received_at": record.timestamp,
            "topic": topic,
            "partition": record.partition,
            "offset": record.offset,
        }
        self.ignored.append(known | row)

    def messages(self) -> Iterator[tuple[str, bytes]]:
        """Yield keys and values for ``publisher-acks``, in order for each receiver."""
        for answer in (*self.confs, *self.events, *self.done, *self.states):
            if isinstance(answer, (readers.AppAckConf, readers.ReaderState, readers.ReaderRemoved)):
                receiver = answer.reader
            else:
                receiver = answer.name if isinstance(answer, readers.KnownReaders) else answer.writer
            yield receiver, readers.write(answer)


def is_for_all_shards(record: ReportRecord) -> bool:
    """Return whether a record, even an unreadable one, is only about a reader."""
    typed = _read_typed(record.value)
    return typed is not None and typed.type in OF_READERS


def pieces(entries: Sequence[E], length: int = RUNS) -> list[tuple[E, ...]]:
    """Split runs, or other entries, into pieces that fit into a message; no entries give one empty piece."""
    return [tuple(entries[start : start + length]) for start in range(0, len(entries), length)] or [()]


def samples_done(writer: str, retention: Retention, runs: Iterable[Interval]) -> list[readers.SamplesDone]:
    """Return the messages about samples that became done, in any order."""
    # of the batch: the writer may have been forgotten in it, and have begun again
    found = list(Intervals(runs, start=0))
    return [readers.SamplesDone(writer, piece, retention.released) for piece in pieces(found)] if found else []


def reader_states(
    reader: str, epoch: int, shard: tuple[int, int], as_of: int, lease_ms: int, writers: Iterable[tuple[str, Retention]]
) -> list[readers.ReaderState]:
    """Return a reader's state for the writers of a shard, in parts; ``shard``: its index and the number of shards."""
    parts: list[list[readers.KnownWriter]] = [[]]
    size = 0
    for known in _known(reader, writers):
        size += _WRITER_BYTES + _RUN_BYTES * (len(known.acknowledged) + len(known.undelivered))
        size += _SESSION_BYTES * len(known.sessions)
        if size > PART_BYTES and parts[-1]:
            parts.append([])
            size = 0
        parts[-1].append(known)
    return [
        readers.ReaderState(reader, epoch, *shard, as_of, tuple(part), number, len(parts), lease_ms)
        for number, part in enumerate(parts)
    ]


def _known(reader: str, writers: Iterable[tuple[str, Retention]]) -> Iterator[readers.KnownWriter]:
    for writer, retention in writers:
        known = retention.readers.get(reader)
        if known is not None:
            undelivered = retention.undelivered(reader)
            sessions = retention.sessions.within(undelivered[0][0], undelivered[-1][1]) if undelivered else []
            parts = (pieces(list(known.acknowledged)), pieces(undelivered), pieces(sessions))
            for runs in zip_longest(*parts, fillvalue=()):
                yield readers.KnownWriter(writer, known.acknowledged.start, retention.written, *runs)


def undelivered(writers: Iterable[tuple[str, Retention]]) -> Counter[str]:
    """Return how many retained samples each reader has not acknowledged."""
    found = Counter[str]()
    for _, retention in writers:
        for reader in retention.readers:
            found[reader] += sum(last - first + 1 for first, last in retention.undelivered(reader))
    return found


def known_readers(
    asked: tuple[str, int], shard: tuple[int, int], found: Sequence[readers.KnownReader]
) -> list[readers.KnownReaders]:
    """Return the readers that a shard knows, in parts; ``asked``: the operator's name and the number of its request."""
    name, question = asked
    parts = pieces(found, _READERS_IN_PART)
    return [readers.KnownReaders(name, *shard, part, number, len(parts), question) for number, part in enumerate(parts)]


def writer_states(
    writer: str, retention: Retention, own_roles: dict[str, int], lease_ms: int | None
) -> list[readers.WriterState]:
    """Return how far a writer's samples are acknowledged."""
    # ``own_roles``: required by the writer itself; remembered for ``lease_ms`` (``None``: forever)
    released, written = retention.released, retention.written
    waiting_for = tuple(retention.waiting_for(released + 1)) if released < written else ()
    behind = [run for run in retention.done if run[0] > released]
    own = (own_roles, lease_ms if own_roles else None)
    return [readers.WriterState(writer, written, released, piece, waiting_for, *own) for piece in pieces(behind)]
