from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.jobs.settle.completion import Ignored, ReaderSubscription, ReportReceipt, Retention
from ackstream.protocol.intervals import Interval, Intervals
from ackstream.protocol.readers import (
    MAX_RESPONSE_BYTES,
    AckInterval,
    AppAck,
    AppAckConf,
    ApplicationAcknowledged,
    ProtocolAck,
)
from tests.jobs.settle.logs import receive


class _Writer:
    """A retention to which readers say things; counts go up by themselves."""

    def __init__(self, required: dict[str, int] | None = None, *, written: int = 5, **options: Any) -> None:
        self.retention = Retention("w1", required, **options)
        self.counts: dict[str, int] = {}
        self._written = written

    def written(self) -> Retention:
        self.retention.write(self._written)
        return self.retention

    def ack(self, reader: str, *intervals: Interval, role: str | None = None, **report: Any) -> ReportReceipt:
        count = report.pop("count", self.counts.get(reader, 0) + 1)
        self.counts[reader] = max(count, self.counts.get(reader, 0))
        told = tuple(AckInterval(*interval) for interval in intervals)
        return receive(self.retention, AppAck(reader, "w1", report.pop("epoch", 1), count, told, role, **report))


def _two_readers() -> _Writer:
    writer = _Writer()
    writer.retention.join("A")
    writer.retention.join("B")
    writer.written()
    return writer


def test_a_sample_is_done_when_all_readers_that_are_there_have_acknowledged_it() -> None:
    writer = _two_readers()
    receipt = writer.ack("A", (1, 3))
    assert receipt.events == (ApplicationAcknowledged("w1", "A", 1, 3),)
    assert receipt.conf == AppAckConf("A", "w1", 1, 1)
    assert writer.retention.retained == [(1, 5)]
    assert writer.ack("B", (2, 2)).done == ((2, 2),)
    assert (writer.retention.released, 2 in writer.retention.done) == (0, True)
    writer.ack("B", (1, 1))
    assert (writer.retention.released, writer.retention.retained) == (2, [(3, 5)])


def test_a_sample_gives_one_event_per_reader_however_often_it_is_reported() -> None:
    writer = _two_readers()
    assert [(event.first, event.last) for event in writer.ack("A", (1, 2)).events] == [(1, 2)]
    again = writer.ack("A", (1, 3), (2, 4))
    assert [(event.first, event.last) for event in again.events] == [(3, 3), (4, 4)]
    assert writer.ack("A", (1, 4)).events == ()


def test_the_same_report_twice_is_confirmed_twice_and_counts_once() -> None:
    writer = _two_readers()
    writer.ack("A", (1, 1), count=4)
    again = writer.ack("A", (1, 1), count=4)
    assert (again.events, again.conf) == ((), AppAckConf("A", "w1", 1, 4))


@pytest.mark.parametrize(
    ("report", "reason"), [({"epoch": 2, "count": 4}, "stale-count"), ({"epoch": 1, "count": 9}, "stale-epoch")]
)
def test_a_stale_report_moves_nothing_up_or_down(report: dict[str, int], reason: Any) -> None:
    writer = _two_readers()
    writer.ack("B", (1, 5))
    writer.ack("A", (1, 2), epoch=2, count=5)
    assert writer.ack("A", (1, 5), **report) == ReportReceipt(ignored=(Ignored(reason),))
    assert writer.retention.released == 2


def test_a_new_epoch_counts_from_the_beginning_and_keeps_what_was_acknowledged() -> None:
    writer = _two_readers()
    writer.ack("A", (1, 2), epoch=1, count=9)
    assert writer.ack("A", (3, 3), epoch=2, count=1).conf == AppAckConf("A", "w1", 2, 1)
    assert writer.retention.undelivered("A") == [(4, 5)]


def test_of_two_readers_with_one_name_the_newer_counts() -> None:
    writer = _two_readers()
    writer.ack("A", (1, 1), epoch=1, count=1)
    writer.ack("A", (2, 2), epoch=2, count=1)
    assert writer.ack("A", (3, 3), epoch=1, count=2).ignored == (Ignored("stale-epoch"),)


def test_a_reader_cannot_serve_two_roles_at_once() -> None:
    writer = _Writer({"Logger": 1, "Processor": 1})
    writer.written()
    writer.ack("A", (1, 1), role="Logger")
    assert writer.ack("A", (1, 1), role="Processor").ignored == (Ignored("role-changed"),)
    assert writer.retention.quorum(1) == {"Logger": (1, 1), "Processor": (0, 1)}
    assert writer.ack("A", (1, 1), role="Processor", epoch=2, count=1).ignored == ()


@pytest.mark.parametrize(
    ("interval", "reason"),
    [((3, 2), "reversed"), ((6, 6), "never-delivered"), ((4, 1_000_000_000_000), "never-delivered")],
)
def test_an_impossible_interval_is_left_out_the_others_count_and_nothing_is_confirmed(
    interval: Interval, reason: Any
) -> None:
    writer = _two_readers()
    receipt = writer.ack("A", (1, 1), interval)
    assert receipt.ignored == (Ignored(reason, *interval),)
    assert receipt.conf is None
    assert [(event.first, event.last) for event in receipt.events] == [(1, 1)]


def test_a_reader_with_too_many_holes_is_not_confirmed_until_some_are_filled() -> None:
    writer = _Writer(written=30_000, max_holes=10_000)
    writer.retention.join("A")
    writer.written()
    odd = [(number, number) for number in range(1, 20_006, 2)]
    receipt = writer.ack("A", *odd)
    assert [entry.reason for entry in receipt.ignored] == ["too-many-holes", "too-many-holes"]
    assert receipt.conf is None
    assert writer.ack("A", (2, 20), *odd).conf is not None
    assert writer.retention.released == 21


def test_a_response_over_the_limit_is_dropped_and_the_acknowledgement_stands() -> None:
    writer = _two_readers()
    long = AckInterval(1, 1, b"x" * (MAX_RESPONSE_BYTES + 1))
    receipt = receive(writer.retention, AppAck("A", "w1", 1, 1, (long,)))
    assert receipt.ignored == (Ignored("response-too-long", 1, 1),)
    assert receipt.conf is not None
    assert [event.response for event in receipt.events] == [None]


def test_the_reason_and_the_response_come_with_the_event() -> None:
    writer = _two_readers()
    told = (AckInterval(1, 1, b"ok"), AckInterval(2, 2, auto="replaced"))
    events = receive(writer.retention, AppAck("A", "w1", 1, 1, told)).events
    assert [(event.response, event.auto) for event in events] == [(b"ok", None), (None, "replaced")]


@pytest.mark.parametrize("names", [("A", "B"), ("B", "A")])
def test_plain_readers_are_waited_for_by_name_in_whichever_order_they_came(names: tuple[str, str]) -> None:
    writer = _Writer({"Logger": 1})
    for name in names:
        writer.retention.join(name)
    assert writer.written().waiting_for(1) == ["A", "B", "Logger"]


# -- required subscriptions


def test_a_required_role_needs_its_quorum_of_different_readers() -> None:
    writer = _Writer({"Logger": 2, "Processor": 1}, written=1)
    retention = writer.written()
    writer.ack("L1", (1, 1), role="Logger")
    writer.ack("P1", (1, 1), role="Processor")
    writer.ack("L1", (1, 1), role="Logger")
    assert retention.quorum(1) == {"Logger": (1, 2), "Processor": (1, 1)}
    assert retention.waiting_for(1) == ["Logger"]
    assert retention.released == 0
    writer.ack("L2", (1, 1), role="Logger")
    assert (retention.released, retention.waiting_for(1)) == (1, [])


def test_a_required_role_without_readers_retains_everything() -> None:
    writer = _Writer({"Logger": 1})
    retention = writer.written()
    retention.join("A")
    writer.ack("A", (1, 5))
    retention.leave("A")
    assert retention.retained == [(1, 5)]
    assert retention.waiting_for(1) == ["Logger"]


def test_a_required_reader_that_vanished_still_counts() -> None:
    writer = _Writer({"Logger": 2}, written=1)
    retention = writer.written()
    writer.ack("L1", (1, 1), role="Logger")
    retention.leave("L1")
    writer.ack("L2", (1, 1), role="Logger")
    assert retention.released == 1


def test_more_readers_of_a_role_than_needed_hold_nothing_back() -> None:
    writer = _Writer({"Logger": 1}, written=1)
    retention = writer.written()
    retention.join("L1", "Logger")
    retention.join("L2", "Logger")
    writer.ack("L2", (1, 1), role="Logger")
    assert retention.released == 1
    assert retention.undelivered("L1") == []


def test_a_plain_reader_that_leaves_is_waited_for_no_longer() -> None:
    writer = _two_readers()
    writer.ack("A", (1, 4))
    assert writer.retention.waiting_for(1) == ["B"]
    assert writer.retention.leave("B") == [(1, 4)]
    assert writer.retention.retained == [(5, 5)]
    assert writer.retention.leave("nobody") == []


def test_a_plain_reader_that_joins_late_must_acknowledge_later_samples_only() -> None:
    writer = _Writer()
    writer.retention.join("A")
    retention = writer.written()
    retention.join("B")
    writer.ack("A", (1, 5))
    assert retention.released == 5
    retention.write(6)
    writer.ack("A", (6, 6))
    assert retention.waiting_for(6) == ["B"]


def test_a_durable_reader_gets_exactly_what_it_had_not_acknowledged() -> None:
    writer = _Writer()
    retention = writer.written()
    retention.join("A", durable=True)
    writer.ack("A", (1, 1), (3, 3))
    assert retention.released == 5, "what was released before it joined stays released"
    retention.write(9)
    writer.ack("A", (7, 7))
    retention.join("A", durable=True)
    assert retention.undelivered("A") == [(6, 6), (8, 9)]
    assert retention.undelivered("unheard of") == [(6, 6), (8, 9)]


def test_a_volatile_reader_that_returns_starts_over() -> None:
    writer = _two_readers()
    writer.retention.leave("B")
    writer.retention.join("B")
    writer.ack("A", (1, 5))
    assert writer.retention.released == 5


def test_protocol_acknowledgements_count_without_events() -> None:
    retention = Retention("w1")
    retention.join("A")
    retention.write(3)
    receipt = receive(retention, ProtocolAck("A", "w1", 1, 2))
    assert (receipt.events, receipt.conf, retention.released) == ((), None, 2)
    receive(retention, ProtocolAck("A", "w1", 1, 0))
    assert retention.released == 2


def test_without_readers_and_roles_nothing_is_kept() -> None:
    retention = Retention("w1", start=100)
    retention.write(105)
    assert (retention.released, retention.retained, Retention("w1").retained) == (105, [], [])


# -- numbers that were refused


def test_a_rejected_number_needs_no_acknowledgement() -> None:
    retention = Retention("w1", {"Logger": 1})
    retention.join("A")
    assert retention.write(5, [(1, 2), (4, 4)]) == [(1, 2), (4, 4)]
    assert (retention.released, retention.retained) == (2, [(3, 3), (5, 5)])
    assert retention.undelivered("A") == [(3, 3), (5, 5)]


def test_a_reader_that_reports_over_refused_numbers_is_believed_for_the_samples_alone() -> None:
    writer = _Writer()
    writer.retention.join("A")
    writer.retention.write(5, [(2, 3)])
    events = writer.ack("A", (1, 5)).events + writer.ack("B", (1, 5)).events
    assert [(event.reader, event.first, event.last) for event in events] == [
        (reader, *run) for reader in "AB" for run in ((1, 1), (4, 5))
    ]


def test_refused_numbers_are_no_holes_of_a_reader() -> None:
    writer = _Writer(max_holes=2)
    writer.retention.join("A")
    writer.retention.write(99, [(number, number) for number in range(2, 90, 2)])
    assert writer.ack("A", (1, 99)).conf is not None
    assert writer.retention.released == 99


def test_rejected_runs_are_clipped_to_the_new_samples() -> None:
    retention = Retention("w1", {"Logger": 1})
    retention.write(5)
    assert retention.write(8, [(3, 6), (8, 20), (8, 7)]) == [(6, 6), (8, 8)]


def test_a_late_record_of_stored_still_rejects_numbers_in_the_gap_that_it_fills() -> None:
    retention = Retention("w1", {"Logger": 1})
    retention.write(5)
    assert retention.write(20, [(15, 15)], first=11) == [(15, 15)]
    assert retention.retained == [(1, 14), (16, 20)]
    assert retention.write(10, [(3, 3), (7, 8), (12, 12)], first=6) == [(7, 8)]
    assert retention.write(10, [(9, 9)], first=6) == [], "a second record changes nothing"
    assert retention.retained == [(1, 6), (9, 14), (16, 20)]


# -- readers that come and go


def test_a_reader_that_had_only_been_silent_is_waited_for_again() -> None:
    writer = _two_readers()
    writer.ack("A", (1, 1))
    writer.retention.leave("B")
    writer.retention.come_back("B")
    writer.retention.come_back("nobody")
    writer.ack("A", (1, 5))
    assert writer.retention.retained == [(2, 5)]


def test_a_plain_reader_can_be_forgotten_one_of_a_required_role_once_its_acknowledgements_do_not_count() -> None:
    writer = _Writer({"Logger": 2}, written=1)
    retention = writer.written()
    retention.join("A")
    writer.ack("L1", (1, 1), role="Logger")
    for reader in ("A", "L1", "nobody"):
        retention.leave(reader)
    assert [retention.forget(reader) for reader in ("A", "L1", "nobody")] == [True, False, True]
    assert list(retention.readers) == ["L1"]
    writer.ack("L2", (1, 1), role="Logger")
    assert (retention.forget("L1"), list(retention.readers), retention.released) == (True, ["L2"], 1)


def test_a_new_epoch_makes_earlier_reports_stale_and_may_change_the_role() -> None:
    writer = _Writer({"Logger": 1}, written=1)
    retention = writer.written()
    retention.join("A", epoch=1)
    retention.join("A", "Logger", epoch=2)
    assert writer.ack("A", (1, 1), epoch=1).ignored == (Ignored("stale-epoch"),)
    assert writer.ack("A", (1, 1), role="Logger", epoch=2, count=1).conf is not None
    assert retention.released == 1


def test_a_plain_reader_that_takes_a_required_role_must_acknowledge_earlier_samples() -> None:
    writer = _Writer({"Logger": 1})
    retention = writer.written()
    writer.ack("A", (4, 5), start=4)
    assert writer.ack("A", (5, 5), role="Logger", epoch=2, count=1, start=4).done == ((4, 5),)
    assert retention.undelivered("A") == [(1, 3)]


def test_samples_of_a_role_that_is_no_longer_required_are_done_at_the_next_settle() -> None:
    retention = Retention("w1", {})
    retention.written = 5
    assert (retention.settle(), retention.settle()) == ([(1, 5)], [])


runs = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 5)).map(lambda pair: (pair[0], sum(pair))), max_size=6)


reports = st.tuples(
    st.sampled_from(["L1", "L2", "L3", "P1", "A"]), st.integers(1, 3), st.integers(1, 9), runs, st.integers(0, 3)
)
ROLES = {"L1": "Logger", "L2": "Logger", "L3": "Logger", "P1": "Processor"}


@given(st.lists(reports, max_size=25))
def test_the_watermark_never_falls_and_is_never_a_false_acknowledgement(told: list[Any]) -> None:
    retention = Retention("w1", {"Logger": 2, "Processor": 1})
    retention.join("A")
    believed: dict[str, set[int]] = {reader: set() for reader in [*ROLES, "A"]}
    events: list[tuple[str, int]] = []
    for reader, epoch, count, intervals, more in told:
        before = retention.released
        retention.write(min(retention.written + more, 40))
        receipt = receive(
            retention,
            AppAck(reader, "w1", epoch, count, tuple(AckInterval(*run) for run in intervals), ROLES.get(reader)),
        )
        assert retention.released >= before
        new = [(reader, seq) for event in receipt.events for seq in range(event.first, event.last + 1)]
        believed[reader] |= {seq for _, seq in new}
        events += new
    assert len(events) == len(set(events)), "never twice an event"
    for seq in range(1, retention.written + 1):
        loggers = sum(seq in believed[reader] for reader in ("L1", "L2", "L3"))
        assert (seq in retention.done) == (loggers >= 2 and seq in believed["P1"] and seq in believed["A"])


def _known(**others: Any) -> ReaderSubscription:
    return ReaderSubscription(Intervals(start=3), role="Logger", epoch=2, count=5, **others)


@pytest.mark.parametrize(
    ("epoch", "count", "role", "refusal"),
    [
        (1, 9, "Logger", "stale-epoch"),
        (2, 4, "Logger", "stale-count"),
        (2, 5, "Logger", None),
        (2, 6, None, "role-changed"),
        (3, 1, "Processor", None),
    ],
)
def test_the_newest_report_counts(epoch: int, count: int, role: str | None, refusal: str | None) -> None:
    assert _known().accept(AppAck("A", "w1", epoch, count, (), role)) == refusal


def test_a_protocol_acknowledgement_has_no_count_and_reaches_from_the_first_sample() -> None:
    known = _known(present=False)
    report = ProtocolAck("A", "w1", 2, 7, "Logger")
    assert known.accept(report) is None
    assert (known.count, known.present) == (5, True)
    assert known.intervals(report) == (AckInterval(3, 7),)
    assert known.intervals(ProtocolAck("A", "w1", 2, 2)) == ()
