"""One shard of the settle operator: the acknowledgements of its writers' samples.

Pure: records and a watermark in, rows and messages out. Each output has an id derived from its subject, so a replayed
batch gives the same. Messages are sent once the rows are stored: a false acknowledgement is worse than none.

Rows, confirmations and events do not depend on where batches are cut, nor on when the watermark moves, as long as it
never passes an unread record. So a report applies to the samples stored before it, and waits while those may still
arrive; a silent reader is waited for until the watermark or its own next record shows that its lease has ended, without
the time in which perhaps no reader could write (:func:`excused`). States are as of the end of a batch.
"""

import logging
from collections.abc import Iterable, Sequence

import msgspec

from ackstream.jobs.settle import records as wire
from ackstream.jobs.settle.completion import Ignored, Reason, Report
from ackstream.jobs.settle.records import ReaderRecord, ReportRecord
from ackstream.jobs.settle.state import NEVER, STATE_VERSION, EarlyReports, Presence, SettleState, Writers
from ackstream.observe.metrics import OPEN_WRITERS, READERS, Tally
from ackstream.protocol import messages, readers
from ackstream.protocol.intervals import Interval
from ackstream.protocol.json import RecordError
from ackstream.settings import Settle
from ackstream.spark.records import LOOKS, excused, guarded, in_order, read_state

log = logging.getLogger(__name__)


class SettleShard:
    """The writers of one shard. Use: :meth:`load`, one :meth:`process` per batch, then :meth:`dump`."""

    def __init__(self, rules: Settle, index: int = 0) -> None:
        """Begin empty. ``index``: which of the ``rules.shards`` it is."""
        self._rules = rules
        self._index = index
        self._restore(SettleState())
        self._begin()

    def _restore(self, state: SettleState) -> None:
        self._writers = Writers(self._rules, state)
        self._readers = dict(state.readers)
        self._early = EarlyReports(state.early)
        self._ticked = state.tick

    def _begin(self) -> None:
        self._settled = wire.Settled()
        self._done: dict[str, list[Interval]] = {}
        self._starting: dict[str, int] = {}
        self._asking: dict[str, None] = {}
        self._listing: dict[str, int] = {}
        self._removed: dict[str, int] = {}
        self._expired: dict[str, int] = {}

    def load(self, version: int, blob: bytes) -> None:
        """Restore what :meth:`dump` returned; raise ``ValueError`` if this release cannot read the version."""
        self._restore(read_state(SettleState, STATE_VERSION, version, blob))

    def dump(self) -> tuple[int, bytes]:
        """Return version and blob."""
        known = {"readers": self._readers, "early": self._early.records, "tick": self._ticked}
        return STATE_VERSION, msgspec.msgpack.encode(msgspec.structs.replace(self._writers.dump(), **known))

    @property
    def next_timeout(self) -> int | None:
        """The time after which something happens without a record; ``None`` if nothing will."""
        times = [reader.end(self._rules) for reader in self._readers.values()]
        if self._early.deadline is not None:
            times.append(self._early.deadline + readers.SKEW_MS)
        if any(reader.present and not reader.durable for reader in self._readers.values()):
            times.append(self._ticked + self._rules.reader_lease // LOOKS)
        return min((time for time in times if time < NEVER), default=None)

    def measure(self, tally: Tally) -> None:
        """Set the gauges of writers and readers; the shards share the writers, and each knows all readers."""
        tally.set(OPEN_WRITERS, value=self._writers.open)
        if self._index == 0:
            tally.set(READERS, value=sum(reader.present for reader in self._readers.values()))

    def process(self, records: Sequence[ReportRecord], watermark: int = 0) -> wire.Settled:
        """Process records in the order of their times; those before ``watermark`` were read in an earlier batch."""
        self._begin()
        for writer in self._early.writers:
            self._review(writer, watermark - readers.SKEW_MS)
        self._writers.expire(watermark, self._early)
        self._expire(watermark)
        for record in in_order(records):
            guarded(record, self._decide, self._refuse)
        for writer, runs in self._done.items():
            self._settled.done += wire.samples_done(writer, self._writers[writer], runs)
        shard, lease_ms = (self._index, self._rules.shards), self._rules.reader_lease
        # before the state of a reader that has started again since
        removed = self._removed | {name: at for name, at in self._expired.items() if name not in self._starting}
        self._settled.states += [readers.ReaderRemoved(reader, *shard, epoch) for reader, epoch in removed.items()]
        for reader, epoch in self._starting.items():
            self._settled.states += wire.reader_states(reader, epoch, shard, watermark, lease_ms, self._writers.all())
        remembered = self._rules.durable_lease if self._rules.durable_lease < NEVER else None
        for writer in self._asking:
            own_roles = self._writers.own_roles(writer)
            self._settled.states += wire.writer_states(writer, self._writers[writer], own_roles, remembered)
        if self._listing:
            waiting = wire.undelivered(self._writers.all())
            known = [
                readers.KnownReader(name, reader.role, reader.durable, reader.present, reader.seen, waiting[name])
                for name, reader in sorted(self._readers.items())
            ]
            for question in self._listing.items():
                self._settled.states += wire.known_readers(question, shard, known)
        return self._settled

    def _decide(self, record: ReportRecord) -> None:
        if record.source == wire.STORED:
            self._store(record)
            return
        if record.source == wire.TICK:
            self._tick(record.timestamp)
            return
        report = readers.read(record.value or b"")
        if isinstance(report, readers.ReadersRequest):
            self._listing[report.name] = report.number
            return
        if not isinstance(report, readers.WriterStateRequest):
            self._expire(record.timestamp, report.reader)
        if isinstance(report, (readers.AppAck, readers.ProtocolAck)):
            self._report(record, report)
        elif isinstance(report, readers.ReaderStart):
            self._start(record, report)
        elif isinstance(report, (readers.ReaderAlive, readers.ReaderStop)):
            self._continue(record, report)
        elif isinstance(report, readers.WriterStateRequest):
            self._writers.expire(record.timestamp, self._early, report.writer)
            self._asking[report.writer] = None
            # more or fewer roles may be required than before, by the writer or by the settings
            self._note(report.writer, self._writers.require(report.writer, report.required, record.timestamp))

    def _refuse(self, record: ReportRecord, error: Exception) -> None:
        """Make the row of an unreadable record, or of one that failed: its output matches the state, and stays."""
        if not isinstance(error, RecordError):
            log.error(
                "A record of %s was ignored (offset %s).", wire.TOPICS[record.source], record.offset, exc_info=error
            )
            self._settled.ignore_record(record, "failed", repr(error), self._index)
        elif self._index == 0 or not wire.is_for_all_shards(record):
            self._settled.ignore_record(record, "unreadable", str(error))

    def _note(self, writer: str, runs: Iterable[Interval]) -> None:
        self._done.setdefault(writer, []).extend(runs)

    def _store(self, record: ReportRecord) -> None:
        stored = messages.read_stored(record.value or b"")
        if not 0 <= stored.first <= stored.last <= messages.MAX_NUMBER:
            raise RecordError(f"There is no run of messages from {stored.first} to {stored.last}.")
        # earlier reports are not about these samples
        self._review(stored.client, record.timestamp - readers.SKEW_MS)
        self._writers.expire(record.timestamp, self._early, stored.client)
        if stored.client not in self._writers:
            self._add_writer(stored.client, stored.first)
        writer = self._writers[stored.client]
        writer.seen = max(writer.seen, record.timestamp)
        if stored.session is not None:
            writer.sessions.add(stored.first, stored.last, stored.session)
        self._note(stored.client, writer.write(stored.last, stored.refused, stored.first))
        self._review(stored.client)

    def _add_writer(self, writer: str, start: int) -> None:
        """Add a writer with its present readers and their early reports."""
        early = self._early.take(writer, NEVER, lambda _: False)
        found = self._writers.add(writer, start)
        for name, reader in self._readers.items():
            if reader.present and reader.reads(writer):
                found.join(name, reader.role, durable=reader.durable, epoch=reader.epoch)
        for record, report in early:
            self._admit(record, report)

    def _report(self, record: ReportRecord, report: Report) -> None:
        if self._is_stale(record, report):
            return
        self._see(record, report.reader, report.epoch, report.role)
        self._writers.expire(record.timestamp, self._early, report.writer)
        if report.writer in self._writers:
            self._admit(record, report)
        else:
            self._early.add(record, report)
        self._review(report.writer)

    def _admit(self, record: ReportRecord, report: Report) -> None:
        writer = self._writers[report.writer]
        writer.seen = max(writer.seen, record.timestamp)
        reason, done = writer.admit(report)
        self._note(report.writer, done)
        if reason is None:
            self._early.add(record, report)
        else:
            self._ignore(record, report, reason)

    def _review(self, writer: str, before: int = 0) -> None:
        """Apply a writer's early reports that need not wait any longer, and all from before a time."""
        retention = self._writers[writer]
        known = writer in self._writers
        for record, report in self._early.take(writer, before, lambda report: not known or retention.lacks(report)):
            self._apply(record, report)

    def _apply(self, record: ReportRecord, report: Report) -> None:
        retention = self._writers[report.writer]
        if report.reader not in retention.readers:
            retention.admit(report)
        receipt = retention.take(report)
        self._settled.add(record, report, receipt)
        self._note(report.writer, receipt.done)

    def _start(self, record: ReportRecord, start: readers.ReaderStart) -> None:
        known = self._readers.get(start.reader)
        if known is not None and self._is_stale(record, start):
            # a clock may have been set back, or be behind: the answer names the epoch to exceed
            self._starting[start.reader] = known.epoch
            return
        if known is not None and (known.epoch, known.present) == (start.epoch, True) and known.role != start.role:
            self._ignore(record, start, "role-changed")
            return
        presence = Presence(start.epoch, start.role, record.timestamp, start.durable, start.writers)
        self._readers[start.reader] = presence
        for writer, retention in self._writers.all():
            if presence.reads(writer):
                done = retention.join(start.reader, start.role, durable=start.durable, epoch=start.epoch)
            else:
                done = retention.leave(start.reader)
            self._note(writer, done)
        self._starting[start.reader] = start.epoch

    def _continue(self, record: ReportRecord, report: readers.ReaderAlive | readers.ReaderStop) -> None:
        known = self._readers.get(report.reader)
        if report.epoch is None:
            self._remove(report.reader, record.timestamp)
        elif known is None or self._is_stale(record, report):
            return
        elif isinstance(report, readers.ReaderAlive):
            self._see(record, report.reader, report.epoch, known.role)
        else:
            known.epoch, known.durable, known.seen = report.epoch, False, record.timestamp
            self._leave(report.reader)

    def _remove(self, reader: str, now: int) -> None:
        """Remove a reader of any epoch at once; so are its reports of samples that may still arrive."""
        self._starting.pop(reader, None)
        known = self._readers.get(reader)
        self._removed[reader] = 0 if known is None else known.epoch
        for record, report in self._early.withdraw(reader):
            if record.timestamp < now - readers.SKEW_MS:
                self._apply(record, report)
            else:
                self._ignore(record, report, "reader-removed")
        if known is not None:
            known.durable = False
            self._leave(reader)
            self._forget(reader)

    def _see(self, record: ReportRecord, reader: str, epoch: int, role: str | None) -> None:
        """Mark a reader as present at the time of a record."""
        known = self._readers.setdefault(reader, Presence(epoch, role, record.timestamp))
        if epoch > known.epoch:
            known.epoch, known.role = epoch, role
        if record.timestamp > known.seen:
            known.seen, known.excused = record.timestamp, 0
        if not known.present:
            known.present = True
            for writer, retention in self._writers.all():
                # without a start record, a reader reads the writers that it has acknowledged before
                if not known.writers or known.reads(writer):
                    retention.come_back(reader)

    def _expire(self, now: int, *names: str) -> None:
        """End the leases, then the memories, that had expired at a time: of the named readers, or of all."""
        for finish, present in ((self._lapse, True), (self._forget, False)):
            known = [(name, self._readers[name]) for name in names or self._readers if name in self._readers]
            for name, reader in known:
                more = excused(self._ticked, now, self._rules.reader_lease, reader.seen)
                if reader.present is present and reader.end(self._rules, more) < now:
                    finish(name)

    def _tick(self, now: int) -> None:
        self._expire(now)
        temporary = [reader for reader in self._readers.values() if reader.present and not reader.durable]
        for reader in temporary:
            reader.excused += excused(self._ticked, now, self._rules.reader_lease, reader.seen)
        self._ticked = max(self._ticked, now) if temporary else self._ticked

    def _lapse(self, reader: str) -> None:
        """End the lease of a silent reader; a durable one is removed, which has a row and is reported to it."""
        known = self._readers[reader]
        if known.durable:
            if self._index == 0:
                self._settled.add_expired(reader, known.epoch, known.end(self._rules))
            known.durable = False
            self._expired[reader] = known.epoch
        self._leave(reader)

    def _leave(self, reader: str) -> None:
        self._readers[reader].present = False
        for writer, retention in self._writers.all():
            self._note(writer, retention.leave(reader))

    def _forget(self, reader: str) -> None:
        """Drop a reader; where an acknowledgement of it still counts for a role, it is checked again later."""
        known = self._readers[reader]
        if [writer for writer, retention in self._writers.all() if not retention.forget(reader)]:
            known.epoch, known.seen = 0, known.seen + self._rules.reader_memory
        else:
            del self._readers[reader]

    def _is_stale(self, record: ReportRecord, report: ReaderRecord) -> bool:
        """Return whether a later epoch of the reader is known, and record that."""
        known = self._readers.get(report.reader)
        stale = known is not None and report.epoch is not None and report.epoch < known.epoch
        if stale:
            self._ignore(record, report, "stale-epoch")
        return stale

    def _ignore(self, record: ReportRecord, report: ReaderRecord, reason: Reason) -> None:
        # a record that all shards receive has its row in the first
        if self._index == 0 or isinstance(report, (readers.AppAck, readers.ProtocolAck)):
            self._settled.ignore(record, report, [Ignored(reason)])
