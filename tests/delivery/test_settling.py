from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.delivery.settling import ReportRecord, Settled, Shard
from ackstream.protocol.app_acks import (
    AckInterval,
    AppAck,
    AppAckConf,
    ApplicationAcknowledged,
    ProtocolAck,
    SamplesDone,
    Settlement,
    write,
)

ROLES = {"L1": "Logger", "L2": "Logger", "P1": "Processor"}
REQUIRED = {"Logger": 2, "Processor": 1}


def _report(reader: str, count: int, *runs: tuple[int, int], writer: str = "w1", epoch: int = 1) -> AppAck:
    return AppAck(reader, writer, epoch, count, tuple(AckInterval(*run) for run in runs), ROLES.get(reader))


def _records(*reports: Any, at: int = 1_000) -> list[ReportRecord]:
    return [
        ReportRecord(at + index, 0, at + index, report if isinstance(report, bytes) else write(report))
        for index, report in enumerate(reports)
    ]


def test_a_report_becomes_rows_then_events_and_a_confirmation() -> None:
    settled = Shard(REQUIRED).process({"w1": 9}, _records(_report("L1", 4, (1, 3), (5, 5))))
    rows = [(row.id, row.first, row.last, row.role, row.acknowledged_at, row.offset) for row in settled.deliveries]
    assert rows == [("w1/L1/1", 1, 3, "Logger", 1_000, 1_000), ("w1/L1/5", 5, 5, "Logger", 1_000, 1_000)]
    assert settled.confs == [AppAckConf("L1", "w1", 1, 4)]
    assert settled.events[0] == ApplicationAcknowledged("w1", "L1", 1, 3, "Logger")
    assert (settled.done, settled.ignored) == ([], [])


def test_publishers_are_told_what_is_done_and_up_to_where() -> None:
    shard = Shard(REQUIRED)
    shard.process({"w1": 5}, _records(_report("L1", 1, (1, 5)), _report("P1", 1, (2, 5))))
    settled = shard.process({}, _records(_report("L2", 1, (1, 3), (5, 5))))
    assert settled.done == [SamplesDone("w1", ((2, 3), (5, 5)), 0)]
    assert shard.process({}, _records(_report("P1", 2, (1, 1)))).done == [SamplesDone("w1", ((1, 1),), 3)]


def test_records_count_in_the_order_of_their_times() -> None:
    late, early = ReportRecord(20, 0, 7, write(_report("L1", 2, (1, 2)))), ReportRecord(10, 1, 3, b"{}")
    settled = Shard({}).process({"w1": 2}, [late, early])
    assert [(row.id, row.reason, row.received_at) for row in settled.ignored] == [("1-3-0", "unreadable", 10)]
    assert [row.last for row in settled.deliveries] == [2]


def test_what_is_not_used_has_a_row_that_says_why() -> None:
    shard = Shard({})
    shard.process({"w1": 5}, _records(_report("A", 3, (1, 1))))
    stale, impossible = _report("A", 2, (1, 5)), _report("A", 4, (2, 2), (9, 8), (6, 7))
    settled = shard.process({}, _records(stale, impossible, at=2_000))
    rows = [(row.id, row.reason, row.writer, row.reader, row.first, row.last) for row in settled.ignored]
    assert rows == [
        ("0-2000-0", "stale-count", "w1", "A", None, None),
        ("0-2001-0", "reversed", "w1", "A", 9, 8),
        ("0-2001-1", "never-delivered", "w1", "A", 6, 7),
    ]
    assert settled.confs == []


def test_protocol_acknowledgements_release_without_rows() -> None:
    shard = Shard({})
    settled = shard.process({"w1": 3}, _records(ProtocolAck("A", "w1", 1, 2)))
    assert (settled.deliveries, settled.confs) == ([], [])


def test_settlements_of_queues_are_left_to_their_operator() -> None:
    assert Shard({}).process({}, _records(Settlement("c", "m", "accepted"))) == Settled()


def test_a_state_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="The state has version 2; this release reads version 1"):
        Shard({}).load(2, b"")


def test_an_untouched_writer_is_carried_along_as_it_is() -> None:
    first = Shard(REQUIRED)
    first.process({"w1": 5, "w2": 5}, _records(_report("L1", 1, (2, 4)), _report("L1", 1, (1, 1), writer="w2")))
    second = Shard(REQUIRED)
    second.load(*first.dump())
    second.process({}, _records(_report("L2", 1, (1, 2))))
    third = Shard(REQUIRED)
    third.load(*second.dump())
    assert third.retention("w1").undelivered("L1") == [(1, 1), (5, 5)]
    assert third.retention("w2").undelivered("L1") == [(2, 5)]
    assert third.retention("w1").readers["L2"].count == 1


def test_many_holes_are_small() -> None:
    shard = Shard({"Logger": 1}, max_holes=100_000)
    odd = [(number, number) for number in range(10**15 + 1, 10**15 + 100_001, 2)]
    shard.process({"w1": 10**15 + 100_000}, _records(_report("L1", 1, *odd)))
    _, blob = shard.dump()
    assert len(blob) < 2 * 2 * len(odd) + 200, "the runs of the reader, and of what is done: two bytes each"


runs = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 4)).map(lambda pair: (pair[0], sum(pair))), max_size=4)
told = st.lists(st.tuples(st.sampled_from([*ROLES, "A"]), st.integers(1, 8), runs, st.booleans()), max_size=25)


@given(told)
def test_what_comes_out_does_not_depend_on_where_batches_are_cut(reports: list[Any]) -> None:
    records = _records(*[_report(reader, count, *intervals) for reader, count, intervals, _ in reports])
    whole = Shard(REQUIRED)
    expected = whole.process({"w1": 15}, records)
    cut, parts = Shard(REQUIRED), Settled()
    cut.process({"w1": 15}, [])
    for record, (_, _, _, restart) in zip(records, reports, strict=True):
        if restart:
            version, blob = cut.dump()
            cut = Shard(REQUIRED)
            cut.load(version, blob)
        part = cut.process({}, [record])
        parts.deliveries += part.deliveries
        parts.ignored += part.ignored
        parts.confs += part.confs
        parts.events += part.events
    assert (parts.deliveries, parts.ignored) == (expected.deliveries, expected.ignored)
    assert (parts.confs, parts.events) == (expected.confs, expected.events)
    assert cut.retention("w1").done == whole.retention("w1").done
    assert len({row.id for row in expected.deliveries}) == len(expected.deliveries)
