"""Which readers are there: by what they say and when, in the time of the records alone.

A reader that was silent for longer than its lease had left when the lease was over, whenever that is noticed: by the
clock, or by the next thing it says.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from ackstream.protocol.patterns import matches_any
from ackstream.protocol.readers import AppAck, ProtocolAck, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ackstream.jobs.settle.output import ReportRecord


class Presence(msgspec.Struct, array_like=True):
    """What is known of one reader; ``seen`` in epoch milliseconds, the time of its last record.

    :ivar writers: patterns of the writers whose samples it reads; none where it never said that it begins
    """

    epoch: int
    role: str | None
    seen: int
    durable: bool = False
    writers: tuple[str, ...] = ()
    there: bool = True

    def reads(self, writer: str) -> bool:
        """Tell whether it reads a writer's samples."""
        return matches_any(self.writers, writer)


class Presences:
    """The readers of a shard."""

    def __init__(self, lease_ms: int, memory_ms: int, known: dict[str, Presence] | None = None) -> None:
        """Begin, or go on with what was ``known``."""
        self._lease_ms = lease_ms
        self._memory_ms = memory_ms
        self.known = {} if known is None else known

    def stale(self, reader: str, epoch: int) -> bool:
        """Tell whether a newer reader of this name has spoken."""
        known = self.known.get(reader)
        return known is not None and epoch < known.epoch

    def of(self, writer: str) -> Iterator[tuple[str, Presence]]:
        """Return the readers that are there and read a writer's samples."""
        for name, reader in self.known.items():
            if reader.there and reader.reads(writer):
                yield name, reader

    def lapsed(self, now: int, *names: str) -> list[str]:
        """Return who has left without a word before a time: of some readers, or of all."""
        return [name for name, reader in self._some(names) if reader.there and self._end(reader) < now]

    def forgotten(self, now: int, *names: str) -> list[str]:
        """Return who has been away for so long that its name means nothing any more: of some readers, or of all."""
        return [name for name, reader in self._some(names) if not reader.there and self._end(reader) < now]

    @property
    def deadline(self) -> int | None:
        """The time behind which :meth:`lapsed` or :meth:`forgotten` finds somebody."""
        ends = [self._end(reader) for reader in self.known.values() if not (reader.there and reader.durable)]
        return min(ends, default=None)

    def _some(self, names: tuple[str, ...]) -> list[tuple[str, Presence]]:
        if not names:
            return list(self.known.items())
        return [(name, self.known[name]) for name in names if name in self.known]

    def _end(self, reader: Presence) -> int:
        if reader.there:
            return _NEVER if reader.durable else reader.seen + self._lease_ms
        return reader.seen + self._memory_ms


_NEVER = 2**63 - 1


# -- Reports that wait because what they are about may still come: in a backlog, or never.


Report: TypeAlias = AppAck | ProtocolAck


class Early:
    """Reports by writer and reader, each reader's in the order in which they came."""

    def __init__(self, records: Iterable[ReportRecord] = ()) -> None:
        """Begin, or go on with what :attr:`records` gave."""
        self._waiting: dict[str, dict[str, deque[tuple[ReportRecord, Report]]]] = {}
        for record in records:
            report = read(record.value or b"")
            if isinstance(report, (AppAck, ProtocolAck)):
                self.add(record, report)

    def add(self, record: ReportRecord, report: Report) -> None:
        """Let a report wait."""
        readers = self._waiting.setdefault(report.writer, {})
        readers.setdefault(report.reader, deque()).append((record, report))

    def ripe(self, writer: str, before: int, lacks: Callable[[Report], bool]) -> list[tuple[ReportRecord, Report]]:
        """Take the reports about a writer that need not wait: older than a time, or about what is there.

        What a reader said later does not overtake what it said before: a backlog costs a look at each reader's oldest.
        """
        ripe = []
        readers = self._waiting.get(writer, {})
        for reader, waiting in list(readers.items()):
            while waiting and (waiting[0][0].timestamp < before or not lacks(waiting[0][1])):
                ripe.append(waiting.popleft())
            if not waiting:
                del readers[reader]
        if not readers:
            self._waiting.pop(writer, None)
        return ripe

    @property
    def writers(self) -> list[str]:
        """The writers that reports wait for."""
        return list(self._waiting)

    @property
    def records(self) -> list[ReportRecord]:
        """What waits."""
        return [record for waiting in self._queues() for record, _ in waiting]

    @property
    def deadline(self) -> int | None:
        """The time behind which nothing that the oldest report is about can come."""
        return min((waiting[0][0].timestamp for waiting in self._queues()), default=None)

    def _queues(self) -> Iterator[deque[tuple[ReportRecord, Report]]]:
        for readers in self._waiting.values():
            yield from readers.values()
