from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from ackstream.spark.pieces import PieceEntry
from ackstream.spark.records import Shelf, guarded, in_order, timed
from tests.harness.pieces import MemoryPieces


class Read(NamedTuple):
    """A record, as far as its order goes."""

    timestamp: int
    source: int
    partition: int
    offset: int


@st.composite
def logs(draw: st.DrawFn, *, set_back: bool) -> list[Read]:
    """Return the records of some partitions, shuffled."""
    found = []
    for partition in range(draw(st.integers(1, 3))):
        times = draw(st.lists(st.integers(0, 9), max_size=6))
        if not set_back:
            times.sort()
        found += [Read(time, partition % 2, partition, offset) for offset, time in enumerate(times)]
    return draw(st.permutations(found))


@given(logs(set_back=False))
def test_records_are_sorted_by_time_then_topic_partition_and_offset(records: list[Read]) -> None:
    assert list(in_order(records)) == sorted(records)


@given(logs(set_back=True))
def test_a_partition_keeps_its_order_although_the_clock_of_its_broker_was_set_back(records: list[Read]) -> None:
    for partition in {record.partition for record in records}:
        offsets = [record.offset for record in in_order(records) if record.partition == partition]
        assert offsets == sorted(offsets)


@given(logs(set_back=True))
def test_a_record_counts_with_the_latest_time_of_its_partition_up_to_it(records: list[Read]) -> None:
    found = timed(records)
    assert [record for _, record in found] == list(in_order(records))
    assert [time for time, _ in found] == sorted(time for time, _ in found)
    for time, record in found:
        same = [other for other in records if other[1:3] == record[1:3] and other.offset <= record.offset]
        assert time == max(other.timestamp for other in same)


@given(logs(set_back=True), st.data())
def test_a_cut_does_not_change_the_order_within_a_partition(records: list[Read], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, 6))
    parts: Any = [[r for r in records if r.offset < cut], [r for r in records if r.offset >= cut]]
    cut_in_two = [record for part in parts for record in in_order(part)]
    for partition in {record.partition for record in records}:
        both = [[r for r in order if r.partition == partition] for order in (cut_in_two, in_order(records))]
        assert both[0] == both[1]


def test_coordinates_may_have_other_names_and_no_records_are_in_order() -> None:
    assert in_order([(9, 0, 1), (3, 0, 2), (5, 1, 1)], lambda row: row) == [(5, 1, 1), (9, 0, 1), (3, 0, 2)]
    assert in_order([]) == timed([]) == []
    assert timed([Read(4, 0, 0, 0)]) == [(4, Read(4, 0, 0, 0))]


# -- entries that wait ----------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2), st.binary(max_size=2)), unique=True), st.data())
def test_what_is_due_comes_in_one_order_wherever_it_has_waited(
    rows: list[tuple[int, int, bytes]], data: st.DataObject
) -> None:
    shelf = Shelf(MemoryPieces())  # type: ignore[arg-type]
    for row in rows:
        shelf.add([PieceEntry(*row)])
        if data.draw(st.booleans()):
            shelf.trim(0)
    found = [(entry.time, entry.hash, bytes(entry.body)) for entry in shelf.due(3)]
    assert found == sorted((time, number, body) for number, time, body in rows)


# -- the net -----------------------------------------------------------------------------------------------------------


def test_a_record_that_fails_is_refused_without_what_it_has_put_out_before() -> None:
    rows, messages, refused = ["row"], ["message"], []

    def decide(record: int) -> None:
        rows.append(f"row {record}")
        messages.extend(f"{6 // record} of {record}" for _ in range(2))

    for record in (3, 0, 2):
        guarded(record, decide, lambda record, error: refused.append((record, type(error))), (rows, messages))
    assert rows == ["row", "row 3", "row 2"]
    assert messages == ["message", "2 of 3", "2 of 3", "3 of 2", "3 of 2"]
    assert refused == [(0, ZeroDivisionError)]
