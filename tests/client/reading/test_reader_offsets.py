from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from kafka import TopicPartition

from ackstream.client.errors import SamplesGoneError
from ackstream.client.reading import _reader_offsets as reader_offsets
from ackstream.client.reading._reader_history import ReaderHistory
from ackstream.client.reading._reader_offsets import ReaderPositions, read_stored
from ackstream.client.reading.samples import ReaderQos, Sample
from ackstream.protocol.messages import StoredRange
from ackstream.protocol.readers import ReaderStart
from ackstream.settings import Lake

PARTITION = TopicPartition("messages", 0)


class Consumer:
    """Has read ``position`` of 10 records, of which the first two are deleted."""

    def __init__(self, position: int = 10) -> None:
        self.at = position
        self.sought: list[int] = []

    def beginning_offsets(self, partitions: list[Any]) -> dict[Any, int]:
        return dict.fromkeys(partitions, 2)

    def seek(self, _partition: Any, offset: int) -> None:
        self.at = offset
        self.sought.append(offset)

    def end_offsets(self, partitions: list[Any]) -> dict[Any, int]:
        return dict.fromkeys(partitions, 10)

    def position(self, _partition: Any, timeout_ms: int) -> int:
        assert timeout_ms
        return self.at


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return a table with messages 1 to 6 of ``w1``, of which 3 was refused, and one of another client."""
    rows = [
        {
            "client": client,
            "seq": seq,
            "reason": "not entitled" if seq == 3 else None,
            "subject": "orders",
            "topic": "messages",
            "key": b"k",
            "value": b"%d" % seq,
            "headers": [{"name": "colour", "value": b"red"}],
            "received_at": datetime(2026, 1, 1, tzinfo=timezone.utc),
            "partition": 0,
            "offset": 10 + seq,
        }
        for client, seq in [("w2", 2), *(("w1", seq) for seq in (5, 1, 2, 3, 4, 6))]
    ]
    found = Lake(path=str(tmp_path))
    header = pa.struct([("name", pa.string()), ("value", pa.binary())])
    fields = {
        **dict.fromkeys(("client", "reason", "subject", "topic"), pa.string()),
        **dict.fromkeys(("key", "value"), pa.binary()),
        **dict.fromkeys(("seq", "offset"), pa.int64()),
        "headers": pa.list_(header),
        "received_at": pa.timestamp("us", "UTC"),
        "partition": pa.int32(),
    }
    write_deltalake(found.table("messages"), pa.Table.from_pylist(rows, pa.schema(list(fields.items()))))
    return found


def _history(stored: int, *arrived: int, **limits: int) -> ReaderHistory:
    history = ReaderHistory(
        ReaderQos(kind="application-explicit"),
        ReaderStart("r1", 1),
        wanted=lambda _: True,
        on_acknowledged=lambda *_: None,
        **limits,
    )
    history.mark_stored(StoredRange("w1", 1, stored, 0, ((3, 3),)))
    for seq in arrived:
        history.add(Sample("w1", None, None, b"%d" % seq, {}, 0, seq, 0, seq))
    return history


def _numbers(history: ReaderHistory) -> list[int]:
    return [sample.seq for sample in history.take(100, 0)]


def test_the_table_gives_the_stored_messages_of_a_writer_in_order_and_reports_which_it_lacks(lake: Lake) -> None:
    found, absent = read_stored(lake, "w1", [(2, 2), (4, 8)], 100)
    assert [(sample.seq, sample.value, sample.offset) for sample in found] == [
        (2, b"2", 12),
        (4, b"4", 14),
        (5, b"5", 15),
        (6, b"6", 16),
    ]
    assert (found[0].topic, found[0].key, found[0].headers) == ("orders", b"k", {"colour": b"red"})
    assert absent == [(7, 8)]


def test_no_more_than_the_limit_is_fetched_at_once(lake: Lake) -> None:
    found, absent = read_stored(lake, "w1", [(1, 2), (4, 6)], 3)
    assert ([sample.seq for sample in found], absent) == ([1, 2, 4], [])


def test_what_holds_up_others_is_fetched_once_it_is_certainly_missing(lake: Lake) -> None:
    consumer, history = Consumer(position=9), _history(6, 6)
    recovering = ReaderPositions(consumer, history, lake)
    assert [recovering.recover([PARTITION]) for _ in range(3)] == [False] * 3
    assert _numbers(history) == []
    consumer.at = 10
    assert recovering.recover([PARTITION])
    assert _numbers(history) == [1, 2, 4, 5, 6]
    assert (history.counts["fetched"], history.counts["lost"], history.missing()) == (4, 0, {})


def test_what_is_found_missing_later_waits_for_what_kafka_has_by_then(lake: Lake) -> None:
    history = _history(2, 2)
    recovering = ReaderPositions(Consumer(), history, lake)
    recovering.recover([PARTITION])
    history.mark_stored(StoredRange("w1", 3, 6, 1, ((3, 3),)))
    recovering.recover([PARTITION])
    assert _numbers(history) == [1, 2]
    assert recovering.recover([PARTITION])
    assert _numbers(history) == [4, 5, 6]


def test_a_paused_reader_does_not_wait_if_there_is_a_table(lake: Lake) -> None:
    history = _history(6, 6)
    recovering = ReaderPositions(Consumer(position=0), history, lake)
    recovering.paused = True
    recovering.recover([PARTITION])
    assert recovering.recover([PARTITION])
    assert _numbers(history) == [1, 2, 4, 5, 6]


def test_nothing_is_fetched_while_the_application_has_enough(lake: Lake) -> None:
    history = _history(6, 1, 2, max_samples=2)
    recovering = ReaderPositions(Consumer(), history, lake)
    assert [recovering.recover([PARTITION]) for _ in range(3)] == [False] * 3
    history.take(1, 0)
    history.acknowledge_all(None)
    assert recovering.recover([PARTITION])
    assert _numbers(history) == [2, 4, 5, 6]


def test_a_large_gap_is_fetched_piece_by_piece(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_offsets, "FIRST_ROWS", 2)
    monkeypatch.setattr(reader_offsets, "FETCH_ROWS", 2)
    history = _history(6)
    recovering = ReaderPositions(Consumer(), history, lake)
    seen: list[int] = []
    while len(seen) < 5:
        recovering.recover([PARTITION])
        seen += _numbers(history)
        history.acknowledge_all(None)
    assert seen == [1, 2, 4, 5, 6]


def test_so_many_rows_are_fetched_at_once_that_they_weigh_little(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_offsets, "FIRST_ROWS", 1)
    monkeypatch.setattr(reader_offsets, "FETCH_BYTES", 1_200)
    history = _history(6)
    recovering, fetched = ReaderPositions(Consumer(), history, lake), []
    while len(_numbers(history)) < 5 and len(fetched) < 20:
        recovering.recover([PARTITION])
        fetched.append(history.counts["fetched"])
    assert sorted({*fetched}) == [0, 1, 3, 5], "one row, then as many as weigh that much"


def test_without_a_table_a_paused_reader_loses_nothing() -> None:
    history = _history(6, 6)
    recovering = ReaderPositions(Consumer(position=4), history, None)
    recovering.paused = True
    for _ in range(5):
        assert not recovering.recover([PARTITION])
    assert (_numbers(history), history.counts["lost"]) == ([], 0)
    for seq in (1, 2, 4, 5):
        history.add(Sample("w1", None, None, b"", {}, 0, seq, 0, seq))
    assert _numbers(history) == [1, 2, 4, 5, 6]


def test_without_a_table_reading_goes_back_to_the_first_record_of_kafka_before_anything_is_given_up() -> None:
    history, consumer = _history(6, 6), Consumer(position=10)
    recovering = ReaderPositions(consumer, history, None)
    recovering._starts = {PARTITION: 5}
    for _ in range(2):
        recovering.recover([PARTITION])
    assert consumer.sought == [2]
    recovering.recover([PARTITION])
    consumer.at = 10
    with pytest.raises(
        SamplesGoneError, match=r"Messages 1 to 5 of w1 .* start r1 with `lake`.* `ackstream readers list`"
    ):
        recovering.recover([PARTITION])
    assert (consumer.sought, history.counts["lost"], _numbers(history)) == ([2], 0, [])


def test_reading_goes_back_twice_as_far_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_offsets, "LOOK_BACK", 1)
    history, consumer = _history(6, 6), Consumer(position=10)
    recovering = ReaderPositions(consumer, history, None)
    recovering._starts = {PARTITION: 9}
    while consumer.sought != [8, 6, 2]:
        consumer.at = 10
        recovering.recover([PARTITION])
        assert len(consumer.sought) <= 3
    consumer.at = 10
    with pytest.raises(SamplesGoneError):
        recovering.recover([PARTITION])


def test_what_is_nowhere_is_skipped_and_logged(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    history = _history(8, 1, 8)
    recovering = ReaderPositions(Consumer(), history, lake)
    for _ in range(3):
        recovering.recover([PARTITION])
    assert _numbers(history) == [1, 2, 4, 5, 6, 8]
    assert history.counts["lost"] == 1
    assert "neither in Kafka nor in the table: [(7, 7)]" in caplog.text
