"""Where a new checkpoint starts to read."""

from __future__ import annotations

import json
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest
from kafka import TopicPartition
from kafka.structs import OffsetAndTimestamp

from ackstream.settings import Kafka
from ackstream.spark import kafka as spark_kafka
from ackstream.spark.kafka import EARLIEST, LATEST

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PREFIXED = Kafka(topic_prefix="x-")


class Broker:
    """Partitions 0 and 1 of each topic, with ten records each, of the seconds 0 to 9; partition 1 ends at second 4."""

    def describe_topics(self, topics: list[str]) -> list[dict[str, Any]]:
        return [{"name": topic, "partitions": [{"partition_index": 0}, {"partition_index": 1}]} for topic in topics]

    def list_partition_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        found = {}
        for partition, time in wanted.items():
            end = 10 - 5 * partition.partition
            second = -(-time // 1000)
            offset = end if time == LATEST else second if second < end else -1
            found[partition] = OffsetAndTimestamp(offset, -1, None)
        return found


@pytest.fixture(autouse=True)
def _broker(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def connect(_: Kafka) -> Iterator[Broker]:
        yield Broker()

    monkeypatch.setattr(spark_kafka, "connect_admin", connect)


def _starts(**starts: Any) -> Any:
    found = spark_kafka._starting_offsets(PREFIXED, starts)
    return found if found == "earliest" else json.loads(found)


def test_all_topics_from_their_beginning_need_no_look_at_the_broker() -> None:
    assert _starts(signals=EARLIEST, acks=EARLIEST) == "earliest"


def test_the_latest_offsets_are_those_of_now_and_given_ones_stay() -> None:
    assert _starts(signals=LATEST, acks=EARLIEST, clock={0: 7}) == {
        "signals": {"0": 10, "1": 5},
        "acks": {"0": EARLIEST, "1": EARLIEST},
        "clock": {"0": 7, "1": EARLIEST},
    }


def test_a_time_is_the_first_record_of_then_or_later_and_the_end_where_there_is_none() -> None:
    time = datetime.fromtimestamp(6.001, tz=timezone.utc)
    assert _starts(signals=time) == {"signals": {"0": 7, "1": 5}}
