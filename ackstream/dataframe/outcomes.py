"""Outcomes of requests as rows, as correlate decides them: the format ``ackstream.outcomes``.

They are read from the ledger, from the option ``since`` on: ``earliest`` (the default), ``latest`` or a time with its
zone. After a crash correlate may write an outcome again, with the same ``id``.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from kafka import TopicPartition
from pydantic import TypeAdapter
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from ackstream.client.core.connection import Connection
from ackstream.dataframe.requests import _RequestSource, read_options
from ackstream.errors import StoppedError
from ackstream.kafka.connection import offsets_since
from ackstream.kafka.reader import TopicReader
from ackstream.protocol.ledger import read
from ackstream.settings import Kafka
from ackstream.settings.base import Start

SCHEMA = (
    "id string, correlation_id string, status int, completed_by string, requested array<string>, missing array<string>,"
    " started_at timestamp, decided_at timestamp, latency_ms bigint,"
    " acks array<struct<label: string, status: int, payload: string>>"
)
"""The columns: those of the table ``outcomes``, and the accepted acknowledgements, whose payloads are JSON."""
FILTERS = {"correlation_id": "correlation_id", "status": "status", "completed_by": "completed_by", "label": "requested"}
"""Options that choose outcomes by one value or several, separated by commas; and the fields that have one of these."""

TIMES = {"earliest": 0, "latest": 10**15}
"""Epoch milliseconds before and after all records."""


def outcome_row(value: bytes | None, wanted: Mapping[str, frozenset[str]]) -> tuple[Any, ...] | None:
    """Return the row of a record of the ledger; ``None``: it has no outcome, or one that is not wanted."""
    record = read(value)
    if record is None or (outcome := record.outcome) is None:
        return None
    for name, values in wanted.items():
        found = getattr(outcome, FILTERS[name])
        if values.isdisjoint(found if name == "label" else [str(found)]):
            return None
    times = [datetime.fromtimestamp(at / 1000, timezone.utc) for at in (outcome.started_at, outcome.decided_at)]
    acks = [(ack.label, ack.status, bytes(ack.payload).decode() if ack.payload else None) for ack in record.accepted]
    end, labels = (outcome.status, outcome.completed_by), (list(outcome.requested), outcome.missing)
    return outcome.id, outcome.correlation_id, *end, *labels, *times, outcome.latency_ms, acks


@dataclass
class _Ledger:
    kafka: Kafka
    wanted: dict[str, frozenset[str]]
    since: int

    def offsets(self, time_ms: int) -> dict[str, int]:
        topic = self.kafka.topic("ledger")
        with closing(Connection(self.kafka).consumer(topic)) as consumer:
            partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
            found = offsets_since(consumer, partitions, time_ms)
        return {str(partition.partition): offset for partition, offset in found.items()}

    def ranges(self, start: Mapping[str, int], end: Mapping[str, int]) -> list[InputPartition]:
        """Return a range for each partition with records; raise ``StoppedError`` if Kafka has deleted some of them."""
        first = self.offsets(TIMES["earliest"])
        for number, offset in start.items():
            if offset < min(first[number], end[number]) and self.kafka.on_data_loss == "stop":
                raise StoppedError(
                    f"The ledger's partition {number} begins at {first[number]}, but the query has read up to {offset}:"
                    f" read the table outcomes, and start a new checkpoint, or set kafka.on_data_loss = continue."
                )
        begin = {number: max(start.get(number, 0), offset) for number, offset in first.items()}
        return [InputPartition((int(each), begin[each], end[each])) for each in end if begin[each] < end[each]]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        topic = self.kafka.topic("ledger")
        with TopicReader(Connection(self.kafka).consumer(topic)) as reader:
            number, *span = getattr(partition, "value", None) or (0, 0, 0)  # without ranges Spark gives an empty one
            records = reader.between(TopicPartition(topic, number), *span)
            yield from filter(None, (outcome_row(record.value, self.wanted) for record in records))


class _BatchReader(_Ledger, DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return self.ranges(self.offsets(self.since), self.offsets(TIMES["latest"]))


class _StreamReader(_Ledger, DataSourceStreamReader):
    partitions = _Ledger.ranges

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return self.offsets(self.since)

    def latestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name; without parameters as before Spark 4.2
        return self.offsets(TIMES["latest"])


class _OutcomeSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "ackstream.outcomes"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: Any) -> _BatchReader:  # noqa: ARG002 - Spark's signature
        return _BatchReader(*self._plan())

    def streamReader(self, schema: Any) -> _StreamReader:  # noqa: ARG002, N802 - Spark's signature
        return _StreamReader(*self._plan())

    def _plan(self) -> tuple[Kafka, dict[str, frozenset[str]], int]:
        settings, options = read_options(self.options, (*FILTERS, "since"))
        wanted = {name: frozenset(map(str.strip, options[name].split(","))) for name in FILTERS if name in options}
        since = TypeAdapter[Any](Start).validate_python(options.get("since", "earliest"))
        return settings.kafka, wanted, TIMES[since] if isinstance(since, str) else int(since.timestamp() * 1000)


def register(spark: SparkSession) -> None:
    """Make the formats ``ackstream`` and ``ackstream.outcomes`` known to a session, of Spark 4.0 or newer."""
    for source in (_RequestSource, _OutcomeSource):
        spark.dataSource.register(source)
