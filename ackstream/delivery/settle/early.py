"""Reports that wait because what they are about may still come: in a backlog, or never."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from ackstream.protocol.app_acks import AppAck, ProtocolAck, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ackstream.delivery.settle.settled import ReportRecord

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
