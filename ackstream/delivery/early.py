"""Reports that wait because what they are about may still come: in a backlog, or never."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ackstream.protocol.app_acks import AppAck, ProtocolAck, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ackstream.delivery.settled import ReportRecord

Report: TypeAlias = AppAck | ProtocolAck


class Early:
    """Reports by writer, each in the order in which it came."""

    def __init__(self, records: Iterable[ReportRecord] = ()) -> None:
        """Begin, or go on with what :attr:`records` gave."""
        self._waiting: dict[str, list[tuple[ReportRecord, Report]]] = {}
        for record in records:
            report = read(record.value or b"")
            if isinstance(report, (AppAck, ProtocolAck)):
                self.add(record, report)

    def add(self, record: ReportRecord, report: Report) -> None:
        """Let a report wait."""
        self._waiting.setdefault(report.writer, []).append((record, report))

    def ripe(self, writer: str, before: int, lacks: Callable[[Report], bool]) -> list[tuple[ReportRecord, Report]]:
        """Take the reports about a writer that need not wait: older than a time, or about what is there.

        What a reader said later does not overtake what it said before.
        """
        ripe, left, blocked = [], [], set()
        for record, report in self._waiting.pop(writer, ()):
            if record.timestamp >= before and (report.reader in blocked or lacks(report)):
                blocked.add(report.reader)
                left.append((record, report))
            else:
                ripe.append((record, report))
        if left:
            self._waiting[writer] = left
        return ripe

    @property
    def writers(self) -> list[str]:
        """The writers that reports wait for."""
        return list(self._waiting)

    @property
    def records(self) -> list[ReportRecord]:
        """What waits."""
        return [record for waiting in self._waiting.values() for record, _ in waiting]

    @property
    def deadline(self) -> int | None:
        """The time behind which nothing that the oldest report is about can come."""
        return min((waiting[0][0].timestamp for waiting in self._waiting.values()), default=None)
