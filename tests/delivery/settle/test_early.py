from __future__ import annotations

from typing import Any

from ackstream.delivery.settle.early import Early, Report
from ackstream.protocol.app_acks import AppAck, read
from tests.delivery.logs import Log


def _early(*told: tuple[str, int, int], **others: Any) -> Early:
    """Return reports of a reader, with a count, at a time."""
    log = Log()
    return Early(log.ack(reader, count, (1, 1), at=at, **others) for reader, count, at in told)


def _counts(early: Early, before: int, *lacking: int) -> list[int]:
    def lacks(report: Report) -> bool:
        return isinstance(report, AppAck) and report.count in lacking

    return [report.count for _, report in early.ripe("w1", before, lacks) if isinstance(report, AppAck)]


def test_a_report_waits_until_what_it_lacks_is_there_or_cannot_come() -> None:
    early = _early(("A", 1, 10))
    assert (_counts(early, 10, 1), early.deadline, early.writers) == ([], 10, ["w1"])
    assert _counts(early, 11, 1) == [1]
    assert (early.deadline, early.writers, early.records) == (None, [], [])


def test_what_a_reader_says_later_waits_too_what_others_say_does_not() -> None:
    early = _early(("A", 1, 10), ("A", 2, 11), ("B", 3, 12))
    assert _counts(early, 0, 1) == [3]
    assert _counts(early, 0) == [1, 2]


def test_what_waits_can_be_kept_and_taken_up_again() -> None:
    early = _early(("A", 1, 10), ("B", 2, 11))
    again = Early(early.records)
    assert again.records == early.records
    assert [report for _, report in again.ripe("w1", 99, lambda _: True)] == [
        read(record.value or b"") for record in early.records
    ]
    assert again.ripe("another", 99, lambda _: True) == []
