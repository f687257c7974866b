"""One shard of the settle operator: who has acknowledged what of the writers in it.

Pure: records and a watermark in, rows and messages out, state to bytes and back. Everything that goes out has an id
derived from what it is about, so that a batch that runs again says the same. A message may only go out when the rows
are stored: a false acknowledgement is worse than none (brokers.md 0.1).

The law it keeps: for records in the order of their times, rows, confirmations and events do not depend on where batches
are cut, nor on when the watermark moves, as long as it never passes a record that was not read. So a report counts
against what was stored before it, and waits while that may still come, as in a backlog. A reader that was silent for
too long is waited for until that is noticed, by the watermark or by the next thing it says: never for a shorter time.
States are as of the end of a batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackstream.jobs.settle.output import (
    STORED,
    ReportRecord,
    Settled,
    is_for_all_shards,
    reader_states,
    samples_done,
    unreadable,
    unused,
    writer_states,
)
from ackstream.jobs.settle.presence import Early, Presence, Presences
from ackstream.jobs.settle.retention import Ignored
from ackstream.jobs.settle.state import STATE_VERSION, Held, Writers, decode, encode
from ackstream.protocol import messages
from ackstream.protocol.readers import (
    AppAck,
    ConsumerRecordError,
    ProtocolAck,
    ReaderAlive,
    ReaderStart,
    ReaderStop,
    WriterAsks,
    read,
)
from ackstream.spark.order import in_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ackstream.jobs.settle.output import Reported
    from ackstream.jobs.settle.presence import Report
    from ackstream.jobs.settle.retention import Reason
    from ackstream.jobs.settle.state import SettleRules
    from ackstream.protocol.intervals import Interval

SKEW_MS = 1_000
"""So much may the clocks of two brokers differ: what is later by no more may have come before."""
_MAX_NUMBER = _NEVER = 2**63 - 1


class SettleShard:
    """The writers of one shard. Use: :meth:`load`, one :meth:`process` a batch, then :meth:`dump`."""

    def __init__(self, rules: SettleRules, index: int = 0) -> None:
        """Begin empty.

        :param index: which of the ``rules.shards`` it is
        """
        self._rules = rules
        self._index = index
        self._writers = Writers(rules, {})
        self._readers = Presences(rules.lease_ms, rules.memory_ms)
        self._early = Early()
        self._begin()

    def _begin(self) -> None:
        self._settled = Settled()
        self._done: dict[str, list[Interval]] = {}
        self._starting: dict[str, int] = {}
        self._asking: dict[str, None] = {}

    # -- state ---------------------------------------------------------------------------------------------------------

    def load(self, version: int, blob: bytes, now: int = 0) -> None:
        """Take over the state that :meth:`dump` gave, of this release or an earlier one.

        :param now: the watermark
        :raises ValueError: for a version this release does not know
        """
        held = decode(version, blob, now)
        self._writers = Writers(self._rules, held.writers)
        self._readers = Presences(self._rules.lease_ms, self._rules.memory_ms, held.readers)
        self._early = Early(held.early)

    def dump(self) -> tuple[int, bytes]:
        """Return version and blob."""
        return STATE_VERSION, encode(Held(self._writers.dump(), self._readers.known, self._early.records))

    @property
    def next_timeout(self) -> int | None:
        """The time behind which there is something to do without a record; ``None`` where there is none."""
        early, lease = self._early.deadline, self._readers.deadline
        if early is None:
            return lease
        return early + SKEW_MS if lease is None else min(early + SKEW_MS, lease)

    # -- a batch -------------------------------------------------------------------------------------------------------

    def process(self, records: Sequence[ReportRecord], watermark: int = 0) -> Settled:
        """Take the records of a batch in the order of their times.

        :param watermark: every record before this time was read in an earlier batch
        """
        self._begin()
        for writer in self._early.writers:
            self._review(writer, watermark - SKEW_MS)
        for reader in self._readers.lapsed(watermark):
            self._leave(reader)
        for reader in self._readers.forgotten(watermark):
            self._forget(reader)
        for record in in_order(records):
            self._take(record)
        for writer, runs in self._done.items():
            self._settled.done += samples_done(writer, self._writers[writer], runs)
        place, lease_ms = (self._index, self._rules.shards), self._rules.lease_ms
        for reader, epoch in self._starting.items():
            self._settled.states += reader_states(reader, epoch, place, watermark, lease_ms, self._writers.all())
        for writer in self._asking:
            self._settled.states += writer_states(writer, self._writers[writer])
        return self._settled

    def _take(self, record: ReportRecord) -> None:
        try:
            if record.source == STORED:
                self._store(record)
                return
            said = read(record.value or b"")
        except (ConsumerRecordError, messages.StoredError) as error:
            if self._index == 0 or not is_for_all_shards(record):
                self._settled.ignored.append(unreadable(record, str(error)))
            return
        if isinstance(said, (AppAck, ProtocolAck)):
            self._report(record, said)
        elif isinstance(said, ReaderStart):
            self._start(record, said)
        elif isinstance(said, (ReaderAlive, ReaderStop)):
            self._continue(record, said)
        elif isinstance(said, WriterAsks):
            self._asking[said.writer] = None
            # what is required may be less than it was
            self._note(said.writer, self._writers[said.writer].settle())

    def _note(self, writer: str, runs: Iterable[Interval]) -> None:
        self._done.setdefault(writer, []).extend(runs)

    # -- samples -------------------------------------------------------------------------------------------------------

    def _store(self, record: ReportRecord) -> None:
        said = messages.read_stored(record.value or b"")
        if not 0 <= said.first <= said.last <= _MAX_NUMBER:
            raise messages.StoredError(f"There is no run of messages from {said.first} to {said.last}.")
        # those from before it are not about these samples
        self._review(said.client, record.timestamp - SKEW_MS)
        if said.client not in self._writers:
            self._meet(said.client, said.first)
        self._note(said.client, self._writers[said.client].write(said.last, said.refused))
        self._review(said.client)

    def _meet(self, writer: str, start: int) -> None:
        """Begin with a writer, and with the reports that were there before it."""
        early = self._early.ripe(writer, _NEVER, lambda _: False)
        found = self._writers.add(writer, start)
        for name, reader in self._readers.of(writer):
            found.join(name, reader.role, durable=reader.durable, epoch=reader.epoch)
        for record, report in early:
            self._admit(record, report)

    def _report(self, record: ReportRecord, report: Report) -> None:
        if self._stale(record, report):
            return
        self._see(record, report.reader, report.epoch, report.role)
        if report.writer in self._writers:
            self._admit(record, report)
        else:
            self._early.add(record, report)
        self._review(report.writer)

    def _admit(self, record: ReportRecord, report: Report) -> None:
        refusal, done = self._writers[report.writer].admit(report)
        self._note(report.writer, done)
        if refusal is None:
            self._early.add(record, report)
        else:
            self._refuse(record, report, refusal)

    def _review(self, writer: str, before: int = 0) -> None:
        """Take the reports about a writer that wait no longer, such as all from before a time."""
        retention = self._writers[writer]
        known = writer in self._writers
        for record, report in self._early.ripe(writer, before, lambda report: not known or retention.lacks(report)):
            if report.reader not in retention.readers:
                retention.admit(report)
            receipt = retention.take(report)
            self._settled.take(record, report, receipt)
            self._note(writer, receipt.done)

    # -- readers -------------------------------------------------------------------------------------------------------

    def _start(self, record: ReportRecord, said: ReaderStart) -> None:
        if self._stale(record, said):
            return
        known = self._readers.known.get(said.reader)
        if known is not None and (known.epoch, known.there) == (said.epoch, True) and known.role != said.role:
            self._refuse(record, said, "role-changed")
            return
        self._lapse(said.reader, record.timestamp)
        presence = Presence(said.epoch, said.role, record.timestamp, said.durable, said.writers)
        self._readers.known[said.reader] = presence
        for writer, retention in self._writers.all():
            if presence.reads(writer):
                done = retention.join(said.reader, said.role, durable=said.durable, epoch=said.epoch)
            else:
                done = retention.leave(said.reader)
            self._note(writer, done)
        self._starting[said.reader] = said.epoch

    def _continue(self, record: ReportRecord, said: ReaderAlive | ReaderStop) -> None:
        known = self._readers.known.get(said.reader)
        if known is None or self._stale(record, said):
            return
        if isinstance(said, ReaderAlive):
            self._see(record, said.reader, said.epoch, known.role)
        else:
            known.epoch, known.durable, known.seen = said.epoch, False, record.timestamp
            self._leave(said.reader)

    def _see(self, record: ReportRecord, reader: str, epoch: int, role: str | None) -> None:
        """Note that a reader has said something."""
        self._lapse(reader, record.timestamp)
        known = self._readers.known.setdefault(reader, Presence(epoch, role, record.timestamp))
        if epoch > known.epoch:
            known.epoch, known.role = epoch, role
        known.seen = record.timestamp
        if not known.there:
            known.there = True
            for writer, retention in self._writers.all():
                # who never said that it begins reads what it has acknowledged before
                if not known.writers or known.reads(writer):
                    retention.come_back(reader)

    def _lapse(self, reader: str, now: int) -> None:
        for name in self._readers.lapsed(now, reader):
            self._leave(name)
        for name in self._readers.forgotten(now, reader):
            self._forget(name)

    def _leave(self, reader: str) -> None:
        self._readers.known[reader].there = False
        for writer, retention in self._writers.all():
            self._note(writer, retention.leave(reader))

    def _forget(self, reader: str) -> None:
        del self._readers.known[reader]
        for _, retention in self._writers.all():
            retention.forget(reader)

    def _stale(self, record: ReportRecord, said: Reported) -> bool:
        """Tell whether a newer reader of the same name has spoken, and note it."""
        stale = self._readers.stale(said.reader, said.epoch)
        if stale:
            self._refuse(record, said, "stale-epoch")
        return stale

    def _refuse(self, record: ReportRecord, said: Reported, reason: Reason) -> None:
        # what all shards get has its row in one
        if self._index == 0 or isinstance(said, (AppAck, ProtocolAck)):
            self._settled.ignored += unused(record, said, [Ignored(reason)])
