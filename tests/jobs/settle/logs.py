"""Builders for tests of settle: records by hand, in the order of their times."""

from __future__ import annotations

from typing import Any

import msgspec

from ackstream.jobs.settle.completion import Ignored, Report, ReportReceipt, Retention
from ackstream.jobs.settle.records import REPORTS, STORED, TICK, ReportRecord, Settled
from ackstream.jobs.settle.shard import SettleShard
from ackstream.protocol import messages, readers
from ackstream.protocol.messages import StoredRange
from ackstream.protocol.readers import AckInterval, AppAck, ReaderStart
from ackstream.settings import RequiredRole, Settle
from ackstream.spark.records import LOOKS

ROLES = {"L1": "Logger", "L2": "Logger", "P1": "Processor"}
RULES = Settle(shards=1, required=(RequiredRole(role="Logger", quorum=2), RequiredRole(role="Processor", quorum=1)))
PLAIN = Settle(shards=1)


class Log:
    """Gives records their offsets and, where none is said, times: one after the other."""

    def __init__(self) -> None:
        self._offsets = [0, 0]
        self._now = 1_000

    def _record(self, source: int, value: bytes | None, at: int | None) -> ReportRecord:
        self._offsets[source] += 1
        self._now = self._now + 1 if at is None else at
        return ReportRecord(self._now, source, 0, self._offsets[source], value)

    def stored(
        self,
        first: int,
        last: int,
        *refused: tuple[int, int],
        writer: str = "w1",
        at: int | None = None,
        session: str | None = None,
    ) -> ReportRecord:
        return self._record(STORED, messages.write_stored(StoredRange(writer, first, last, 7, refused, session)), at)

    def ack(
        self, reader: str, count: int, *runs: tuple[int, int], at: int | None = None, **others: Any
    ) -> ReportRecord:
        report = {"writer": "w1", "epoch": 1, "role": ROLES.get(reader), **others}
        intervals = tuple(AckInterval(*run) for run in runs)
        return self.say(AppAck(reader=reader, count=count, intervals=intervals, **report), at)

    def start(self, reader: str, epoch: int = 1, at: int | None = None, **others: Any) -> ReportRecord:
        return self.say(ReaderStart(reader, epoch, **{"role": ROLES.get(reader), **others}), at)

    def say(self, record: Any, at: int | None = None) -> ReportRecord:
        return self._record(REPORTS, record if isinstance(record, bytes) else readers.write(record), at)

    def garbage(self, source: int, value: bytes | None) -> ReportRecord:
        return self._record(source, value, None)


class Run:
    """A shard that survives its batches as it does in Spark, and all that came out."""

    def __init__(self, rules: Settle = PLAIN, index: int = 0) -> None:
        self.rules, self.index = rules, index
        self.state: tuple[int, bytes] | None = None
        self.settled = Settled()
        self.next_timeout: int | None = None
        self._ticked = 0

    def feed(self, *records: ReportRecord, watermark: int = 0) -> Settled:
        """Process a batch after the ticks up to its watermark: those that silent readers need, and the last one."""
        found, look = Settled(), self.rules.reader_lease // LOOKS
        while self.next_timeout is not None and self.next_timeout <= self._ticked + look < watermark:
            at = max(self.next_timeout, self._ticked + 1)
            _extend(found, self.batch(tick(at), watermark=at))
        return _extend(found, self.batch(*([tick(watermark)] if watermark else []), *records, watermark=watermark))

    def batch(self, *records: ReportRecord, watermark: int = 0) -> Settled:
        """Process a batch with the ticks among its records."""
        shard = SettleShard(self.rules, self.index)
        if self.state is not None:
            shard.load(*self.state)
        found = shard.process(records, watermark)
        self.state = shard.dump()
        self.next_timeout = shard.next_timeout
        self._ticked = max([self._ticked, *(record.timestamp for record in records if record.source == TICK)])
        _extend(self.settled, found)
        return found

    def done(self, writer: str = "w1") -> set[int]:
        return {
            number
            for told in self.settled.done
            if told.writer == writer
            for first, last in told.intervals
            for number in range(first, last + 1)
        }


def _extend(settled: Settled, found: Settled) -> Settled:
    for name in Settled.__struct_fields__:
        getattr(settled, name).extend(getattr(found, name))
    return settled


def tick(at: int) -> ReportRecord:
    return ReportRecord(at, TICK, 0, 0, None)


def reasons(settled: Settled) -> list[tuple[str, int | None, int | None]]:
    return [(row["reason"], row.get("first"), row.get("last")) for row in settled.ignored]


def receive(retention: Retention, report: Report) -> ReportReceipt:
    """Admit and apply a report, as the shard does with one whose samples are stored."""
    reason, done = retention.admit(report)
    if reason is not None:
        return ReportReceipt(ignored=(Ignored(reason),))
    receipt = retention.take(report)
    return msgspec.structs.replace(receipt, done=(*done, *receipt.done))
