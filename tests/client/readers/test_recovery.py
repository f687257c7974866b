from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from kafka import TopicPartition

from ackstream.client.readers import recovery, samples
from ackstream.client.readers.prefetch_buffer import PrefetchBuffer
from ackstream.client.readers.qos import ReaderQos
from ackstream.client.readers.recovery import Recovery
from ackstream.client.readers.samples import Sample
from ackstream.protocol.messages import StoredRange
from ackstream.settings import Lake

if TYPE_CHECKING:
    from pathlib import Path

PLACE = TopicPartition("messages", 0)
READER: Any = None


class Consumer:
    """Has read ``position`` of 10 records."""

    def __init__(self, position: int = 10) -> None:
        self.at = position

    def end_offsets(self, places: list[Any]) -> dict[Any, int]:
        return dict.fromkeys(places, 10)

    def position(self, _place: Any, timeout_ms: int) -> int:
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
        **dict.fromkeys(("client", "reason", "subject"), pa.string()),
        **dict.fromkeys(("key", "value"), pa.binary()),
        **dict.fromkeys(("seq", "offset"), pa.int64()),
        "headers": pa.list_(header),
        "received_at": pa.timestamp("us", "UTC"),
        "partition": pa.int32(),
    }
    write_deltalake(found.table("messages"), pa.Table.from_pylist(rows, pa.schema(list(fields.items()))))
    return found


def _inbox(stored: int, *arrived: int) -> PrefetchBuffer:
    inbox = PrefetchBuffer(
        ReaderQos(kind="application-explicit"),
        "r1",
        epoch=1,
        role=None,
        wanted=lambda _: True,
        told=lambda *_: None,
    )
    inbox.decide(StoredRange("w1", 1, stored, 0, ((3, 3),)))
    for seq in arrived:
        inbox.arrive(Sample("w1", seq, None, None, b"%d" % seq, {}, 0, 0, seq))
    return inbox


def _numbers(inbox: PrefetchBuffer) -> list[int]:
    return [sample.seq for sample in inbox.take(100, 0)]


def test_the_table_gives_the_stored_messages_of_a_writer_in_order_and_says_which_it_lacks(lake: Lake) -> None:
    found, absent = samples.read_stored_samples(lake, "w1", [(2, 2), (4, 8)], 100, READER)
    assert [(sample.seq, sample.value, sample.offset) for sample in found] == [
        (2, b"2", 12),
        (4, b"4", 14),
        (5, b"5", 15),
        (6, b"6", 16),
    ]
    assert (found[0].topic, found[0].key, found[0].headers) == ("orders", b"k", {"colour": b"red"})
    assert absent == [(7, 8)]


def test_no_more_than_so_many_are_fetched_at_once(lake: Lake) -> None:
    found, absent = samples.read_stored_samples(lake, "w1", [(1, 2), (4, 6)], 3, READER)
    assert ([sample.seq for sample in found], absent) == ([1, 2, 4], [])


def test_what_everything_behind_waits_for_is_fetched_once_it_is_certain_that_it_does_not_come(lake: Lake) -> None:
    consumer, inbox = Consumer(position=9), _inbox(6, 6)
    looking = Recovery(consumer, inbox, READER, lake, 100)
    assert [looking.look([PLACE], stuck=False) for _ in range(3)] == [False] * 3
    assert _numbers(inbox) == []
    consumer.at = 10
    assert looking.look([PLACE], stuck=False)
    assert _numbers(inbox) == [1, 2, 4, 5, 6]
    assert (inbox.counts["fetched"], inbox.counts["lost"], inbox.missing()) == (4, 0, {})


def test_what_was_noticed_only_now_waits_for_what_kafka_has_now(lake: Lake) -> None:
    inbox = _inbox(2, 2)
    looking = Recovery(Consumer(), inbox, READER, lake, 100)
    looking.look([PLACE], stuck=False)
    inbox.decide(StoredRange("w1", 3, 6, 1, ((3, 3),)))
    looking.look([PLACE], stuck=False)
    assert _numbers(inbox) == [1, 2]
    assert looking.look([PLACE], stuck=False)
    assert _numbers(inbox) == [4, 5, 6]


def test_a_reader_that_can_read_no_more_does_not_wait(lake: Lake) -> None:
    inbox = _inbox(6, 6)
    looking = Recovery(Consumer(position=0), inbox, READER, lake, 100)
    looking.look([PLACE], stuck=True)
    assert looking.look([PLACE], stuck=True)
    assert _numbers(inbox) == [1, 2, 4, 5, 6]


def test_nothing_is_fetched_while_the_application_has_enough(lake: Lake) -> None:
    inbox = _inbox(6, 1, 2)
    looking = Recovery(Consumer(), inbox, READER, lake, 2)
    assert [looking.look([PLACE], stuck=False) for _ in range(3)] == [False] * 3
    inbox.take(1, 0)
    inbox.acknowledge_all(None)
    assert looking.look([PLACE], stuck=False)
    assert _numbers(inbox) == [2, 4, 5, 6]


def test_a_large_gap_is_fetched_piece_by_piece(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "FETCH_ROWS", 2)
    inbox = _inbox(6)
    looking = Recovery(Consumer(), inbox, READER, lake, 100)
    seen: list[int] = []
    while len(seen) < 5:
        looking.look([PLACE], stuck=False)
        seen += _numbers(inbox)
        inbox.acknowledge_all(None)
    assert seen == [1, 2, 4, 5, 6]


@pytest.mark.parametrize(
    ("table", "got", "lost", "said"),
    [(True, [1, 2, 4, 5, 6, 8], 1, "in the table"), (False, [1, 8], 5, "give `lake`")],
    ids=["nowhere", "no table"],
)
def test_what_is_nowhere_is_left_out_and_said(
    lake: Lake, table: object, got: list[int], lost: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = _inbox(8, 1, 8)
    looking = Recovery(Consumer(), inbox, READER, lake if table else None, 100)
    for _ in range(3):
        looking.look([PLACE], stuck=False)
    assert _numbers(inbox) == got
    assert inbox.counts["lost"] == lost
    assert said in caplog.text
