"""State of a shard of settle between batches: writers, each with bytes of its own, readers and early reports."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from ackstream.jobs.settle.completion import ReaderSubscription, Report, Retention
from ackstream.jobs.settle.records import ReportRecord
from ackstream.protocol.intervals import Interval, Intervals
from ackstream.protocol.messages import MAX_NUMBER, SessionRun, SessionRuns
from ackstream.protocol.readers import AppAck, ProtocolAck, read
from ackstream.protocol.rql.patterns import matches_any
from ackstream.settings import Settle

MAX_SESSION_RUNS = 1_000
"""Maximum number of runs of a writer's retained samples with a known session: the newest."""

STATE_VERSION = 6
NEVER = MAX_NUMBER
"""Later than every timestamp."""


class Presence(msgspec.Struct, array_like=True):
    """Presence of one reader, by its records only; ``seen`` is the timestamp of the last one, epoch milliseconds."""

    epoch: int
    role: str | None
    seen: int
    durable: bool = False
    writers: tuple[str, ...] = ()
    """Patterns of the writers it reads; empty if it never sent a start record."""
    present: bool = True
    excused: int = 0
    """Milliseconds since ``seen`` that do not count for the lease of a temporary reader: outages of Kafka."""

    def reads(self, writer: str) -> bool:
        """Return whether it reads a writer's samples."""
        return matches_any(self.writers, writer)

    def end(self, rules: Settle, excused: int = 0) -> int:
        """Return the last time at which it is present without another record; of an absent one, is remembered."""
        if not self.present:
            return self.seen + rules.reader_memory
        return self.seen + (rules.durable_lease if self.durable else rules.reader_lease + self.excused + excused)


class OwnRoles(msgspec.Struct, array_like=True):
    """The roles that a writer requires itself, with their quorums, and when it was seen last."""

    quorums: dict[str, int]
    seen: int


class SettleState(msgspec.Struct, array_like=True):
    """The shape of the blob; :data:`STATE_VERSION` is its version."""

    writers: dict[str, msgspec.Raw] = {}
    readers: dict[str, Presence] = {}
    early: list[ReportRecord] = []
    idle: dict[str, int] = {}
    """The writers whose samples are all done, with the time of the last record about each."""
    required: dict[str, OwnRoles] = {}
    """The roles that a writer requires itself; kept when the writer is forgotten."""
    tick: int = 0
    """The time of the last tick, epoch milliseconds."""


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
    refused: list[int]
    seen: int
    stored: list[int]
    sessions: list[SessionRun]


_encode = msgspec.msgpack.Encoder().encode
_decode_writer: msgspec.msgpack.Decoder[_SavedWriter] = msgspec.msgpack.Decoder(_SavedWriter)


class Writers:
    """The writers of a shard, decoded when they are first accessed: a batch pays for the writers it touches."""

    def __init__(self, rules: Settle, state: SettleState) -> None:
        self._rules = rules
        self._known: dict[str, Retention | msgspec.Raw] = dict(state.writers)
        self._idle = dict(state.idle)
        self._required = dict(state.required)

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

    def expire(self, now: int, early: EarlyReports, *names: str) -> None:
        """Forget writers without open samples that were silent for ``reader_memory``: of the named ones, or of all."""
        # nothing is lost: a writer that returns begins with its next sample. One with early reports stays; the roles
        # that a writer requires itself stay for durable_lease
        before = now - self._rules.reader_memory
        for name in names or [name for name, seen in self._idle.items() if seen < before]:
            if name not in self._known or name in early:
                continue
            writer = self[name]
            if writer.complete and writer.seen < before:
                del self._known[name]
                self._idle.pop(name, None)
                if (own := self._required.get(name)) is not None:
                    own.seen = max(own.seen, writer.seen)
        for name in names or list(self._required):
            own = self._required.get(name)
            if own is not None and name not in self._known and own.seen + self._rules.durable_lease < now:
                del self._required[name]

    def require(self, writer: str, roles: Mapping[str, int] | None, now: int) -> list[Interval]:
        """Replace the roles that a writer itself requires (``None`` keeps them); return the samples now done."""
        if roles:
            self._required[writer] = OwnRoles(dict(roles), now)
        elif roles is not None:
            self._required.pop(writer, None)
        return self[writer].require(self._quorums(writer))

    def own_roles(self, writer: str) -> dict[str, int]:
        """Return the roles that a writer itself requires."""
        own = self._required.get(writer)
        return {} if own is None else own.quorums

    def dump(self) -> SettleState:
        """Return a state with the writers, of which those that were decoded are encoded."""
        encoded: dict[str, msgspec.Raw] = {}
        for name, known in self._known.items():
            if not isinstance(known, Retention):
                encoded[name] = known
                continue
            encoded[name] = _encode_writer(known)
            self._idle.pop(name, None)
            if known.complete:
                self._idle[name] = known.seen
        return SettleState(encoded, idle=self._idle, required=self._required)

    @property
    def open(self) -> int:
        """How many of them have samples that are not done, as of the last :meth:`dump`."""
        return len(self._known) - len(self._idle)

    def _quorums(self, writer: str) -> dict[str, int]:
        """Return the roles of the settings and of the writer; of two quorums of a role the greater one counts."""
        quorums = self._rules.quorums(writer)
        if (own := self._required.get(writer)) is not None:
            quorums |= {role: max(quorum, quorums.get(role, 0)) for role, quorum in own.quorums.items()}
        return quorums

    def _new(self, writer: str, start: int = 1) -> Retention:
        return Retention(writer, self._quorums(writer), start=start, max_holes=self._rules.max_holes)

    def _decode(self, name: str, blob: msgspec.Raw) -> Retention:
        state = _decode_writer.decode(blob)
        writer = self._new(name, state.start)
        writer.written, writer.seen = state.written, state.seen
        writer.done = Intervals.load(state.done, start=state.start)
        writer.refused = Intervals.load(state.refused, start=state.start)
        writer.stored = Intervals.load(state.stored, start=state.start)
        writer.sessions = SessionRuns(state.sessions)
        for reader, known in state.readers.items():
            acknowledged = Intervals.load(known.steps, start=known.start, max_holes=self._rules.max_holes)
            subscription = ReaderSubscription(acknowledged, known.role, known.present, known.epoch, known.count)
            writer.readers[reader] = subscription
        # the settings may require more roles than before
        writer.expect_roles()
        return writer


def _encode_writer(writer: Retention) -> msgspec.Raw:
    readers = {
        name: _SavedReader(
            known.acknowledged.start, known.acknowledged.dump(), known.role, known.present, known.epoch, known.count
        )
        for name, known in writer.readers.items()
    }
    done, refused, stored = writer.done.dump(), writer.refused.dump(), writer.stored.dump()
    writer.sessions.forget(writer.released)
    sessions = list(writer.sessions)[-MAX_SESSION_RUNS:]
    saved = _SavedWriter(writer.done.start, writer.written, done, readers, refused, writer.seen, stored, sessions)
    return msgspec.Raw(_encode(saved))


class EarlyReports:
    """Reports of samples that may still arrive, by writer and reader, each reader's in the order of arrival."""

    def __init__(self, records: Iterable[ReportRecord] = ()) -> None:
        """Begin empty, or with the result of :attr:`records`."""
        self._waiting: dict[str, dict[str, deque[tuple[ReportRecord, Report]]]] = {}
        for record in records:
            report = read(record.value or b"")
            if isinstance(report, (AppAck, ProtocolAck)):
                self.add(record, report)

    def __contains__(self, writer: str) -> bool:
        return writer in self._waiting

    def add(self, record: ReportRecord, report: Report) -> None:
        """Add a report."""
        readers = self._waiting.setdefault(report.writer, {})
        readers.setdefault(report.reader, deque()).append((record, report))

    def take(self, writer: str, before: int, lacks: Callable[[Report], bool]) -> list[tuple[ReportRecord, Report]]:
        """Remove and return a writer's reports that need not wait: older than a time, or lacking no sample."""
        # a reader's later report never overtakes an earlier one, so a backlog costs one check of each reader's oldest
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

    def withdraw(self, reader: str) -> list[tuple[ReportRecord, Report]]:
        """Remove and return the reports of a reader."""
        found = [entry for readers in self._waiting.values() for entry in readers.pop(reader, ())]
        self._waiting = {writer: readers for writer, readers in self._waiting.items() if readers}
        return found

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
