from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from kafka import TopicPartition
from kafka.errors import CorruptRecordError, KafkaTimeoutError, LeaderNotAvailableError

from ackstream.client.queues.queued_messages import MessageFetcher, QueueMessage
from ackstream.kafka import reader
from ackstream.lake import reading
from ackstream.protocol.queues import MessageDelivered
from ackstream.settings import Lake
from tests.client.connections import FakeConnection

PARTITION = TopicPartition("m", 0)


class Consumer:
    """One partition with the readable and the unreadable of ``end`` offsets; the others were deleted."""

    def __init__(
        self, readable: Iterable[int], unreadable: Iterable[int] = (), beginning: int = 0, end: int = 31
    ) -> None:
        self.readable, self.unreadable = set(readable), set(unreadable)
        self.beginning, self.end = beginning, end
        self.at: int | None = None
        self.error: Exception = CorruptRecordError("a wrong checksum")
        self._coordinator = SimpleNamespace(rebalance_in_progress=lambda: False)
        self._fetcher = SimpleNamespace(_next_partition_records=None)

    def topics(self) -> set[str]:
        return {"messages"}

    def beginning_offsets(self, partitions: list[Any]) -> dict[Any, int]:
        return dict.fromkeys(partitions, self.beginning)

    def end_offsets(self, partitions: list[Any]) -> dict[Any, int]:
        return dict.fromkeys(partitions, self.end)

    def assign(self, _partitions: list[Any]) -> None:
        """Keep the only partition."""

    def seek(self, _partition: Any, offset: int) -> None:
        self.at = offset

    def position(self, _partition: Any, timeout_ms: int) -> int | None:
        assert timeout_ms
        return self.at

    def take(self) -> None:
        """Fail as the library's function of that name does."""
        raise self.error

    def poll(self, timeout_ms: int, max_records: int) -> dict[Any, list[Any]]:
        assert timeout_ms
        assert max_records
        if self.at is not None and self.at > self.end:
            # as the library does where a broker has no such offset
            self.at = self.beginning
            return {}
        found = []
        while self.at is not None and self.at < self.end and len(found) < 3:
            if self.at in self.unreadable:
                if found:
                    break
                part = SimpleNamespace(topic_partition=PARTITION, fetch_offset=self.at, next_fetch_offset=self.at)
                self._fetcher._next_partition_records = part
                self.take()
            if self.at in self.readable:
                found.append(_record(self.at))
            self.at += 1
        return {PARTITION: found} if found else {}


def _record(offset: int) -> Any:
    headers = [("client", b"p"), ("seq", b"%d" % offset), ("key", b"k"), ("colour", b"red"), ("colour", b"blue")]
    return SimpleNamespace(
        topic="m", partition=0, offset=offset, key=b"p", value=b"%d" % offset, headers=headers, timestamp=offset
    )


def _delivered(offset: int) -> MessageDelivered:
    return MessageDelivered("q", "A", 1, 1, f"m-0-{offset}", "m", 0, offset, 7, 1)


def _fetcher(consumer: Consumer, lake: Lake | None = None) -> MessageFetcher:
    return MessageFetcher(FakeConnection(consumer), lake)


@given(
    wanted=st.sets(st.integers(0, 30)),
    readable=st.sets(st.integers(0, 30)),
    unreadable=st.sets(st.integers(0, 30)),
    beginning=st.integers(0, 30),
)
def test_what_kafka_has_is_fetched_and_nothing_else_holds_it_up(
    wanted: set[int], readable: set[int], unreadable: set[int], beginning: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        consumer = Consumer(readable, unreadable - readable, beginning)
        patch.setattr(reader, "NEAR", 4)
        found = _fetcher(consumer).fetch([_delivered(offset) for offset in wanted])
    assert {int(sample.value or b"") for sample in found.values()} == {
        offset for offset in wanted & readable if offset >= beginning
    }


@pytest.mark.parametrize("lake", [None, Lake()])
def test_a_partition_without_a_leader_holds_up_no_message_of_the_others(
    monkeypatch: pytest.MonkeyPatch, lake: Lake | None
) -> None:
    monkeypatch.setattr(
        reading, "messages_at", lambda _lake, positions: [_row(1, 3)] if positions == [(7, 1, 3)] else []
    )
    consumer = Consumer([1, 2])
    beginnings = consumer.beginning_offsets

    def without_leader(partitions: list[Any]) -> dict[Any, int]:
        if any(one.partition == 1 for one in partitions):
            raise LeaderNotAvailableError("Partition 1 of messages has no leader")
        return beginnings(partitions)

    consumer.beginning_offsets = without_leader  # type: ignore[method-assign]
    fetcher = _fetcher(consumer, lake)
    offline = msgspec.structs.replace(_delivered(3), message="m-1-3", partition=1)
    found = fetcher.fetch([_delivered(1), offline, _delivered(2)])
    assert {name: sample.value for name, sample in found.items()} == {"m-0-1": b"1", "m-0-2": b"2"} | (
        {} if lake is None else {"m-1-3": b"row"}
    )
    assert fetcher.offline == {1}
    fetcher.fetch([_delivered(1)])
    assert fetcher.offline == set()


def test_what_cannot_be_read_from_kafka_is_read_from_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def stored(_lake: Lake, positions: Iterable[tuple[int, int, int]]) -> list[dict[str, Any]]:
        asked.extend(positions)
        return [_row(0, 1), _row(0, 3), _row(9, 1)]

    monkeypatch.setattr(reading, "messages_at", stored)
    consumer = Consumer([2], unreadable=[3])
    consumer.error = CorruptRecordError("a wrong checksum")
    found = _fetcher(consumer, Lake()).fetch([_delivered(offset) for offset in (1, 2, 3, 4)])
    assert {name: sample.value for name, sample in found.items()} == {"m-0-1": b"row", "m-0-2": b"2", "m-0-3": b"row"}
    assert asked == [(7, 0, 1), (7, 0, 3), (7, 0, 4)]


def _row(partition: int, offset: int, **more: Any) -> dict[str, Any]:
    return {
        "client": "p", "seq": 1, "subject": "s", "key": None, "value": b"row", "headers": None, "topic": "m",
        "received_at": datetime(2026, 1, 1, tzinfo=timezone.utc), "partition": partition, "offset": offset,
    } | more  # fmt: skip


def test_only_the_wanted_rows_of_a_batch_are_read(tmp_path: Path) -> None:
    lake = Lake(path=str(tmp_path))
    headers = [{"name": "colour", "value": b"red"}]
    rows = [
        _row(partition, offset, batch=batch, headers=headers, reason="refused" if offset == 5 else None)
        for batch, partition, offset in ((7, 0, 1), (7, 0, 2), (7, 1, 1), (7, 0, 5), (8, 0, 9), (9, 1, 2))
    ]
    write_deltalake(lake.table("messages"), pa.Table.from_pylist(rows).cast(_schema(rows)))
    found = reading.messages_at(lake, [(7, 0, 1), (7, 0, 5), (8, 0, 9)])
    assert sorted((row["partition"], row["offset"]) for row in found) == [(0, 1), (0, 9)]


def _schema(rows: list[dict[str, Any]]) -> pa.Schema:
    """Return the types of the rows, with keys of bytes."""
    schema = pa.Table.from_pylist(rows).schema
    return schema.set(schema.get_field_index("key"), pa.field("key", pa.binary()))


def test_the_application_does_not_get_the_headers_of_the_service() -> None:
    (sample,) = _fetcher(Consumer([3])).fetch([_delivered(3)]).values()
    assert (sample.key, sample.value, sample.headers, sample.timestamp_ms) == (b"k", b"3", {"colour": b"blue"}, 3)


def test_a_redriven_message_can_be_published_again_with_its_headers() -> None:
    (sample,) = _fetcher(Consumer([3])).fetch([_delivered(3)]).values()
    sample = replace(sample, headers={**sample.headers, "for-queue": b"q", "redriven-from": b"q/m-0-3"})
    message = QueueMessage.of(sample, _delivered(3), lambda *_: None, None)
    assert message.headers == {"colour": b"blue", "redriven-from": b"q/m-0-3"}


def test_a_message_beyond_the_end_of_its_partition_is_given_up_one_that_does_not_arrive_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader, "PATIENCE_SECONDS", 0.02)
    for offset in (5, 9, 99_999):
        assert _fetcher(Consumer([], end=5)).fetch([_delivered(offset)]) == {}
    silent = Consumer([3], end=5)
    silent.poll = lambda **_: {}  # type: ignore[method-assign]
    with pytest.raises(KafkaTimeoutError):
        _fetcher(silent).fetch([_delivered(3)])
