"""What runs beside the correlate query in its driver: the clock, and the offsets for Kafka's own lag tools."""

from __future__ import annotations

import json
import logging
import threading
from typing import TYPE_CHECKING

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import OffsetSpec
from kafka.structs import OffsetAndMetadata

from ackstream.correlation.clock import next_tick

if TYPE_CHECKING:
    from types import TracebackType

    from pyspark.sql.streaming.query import StreamingQuery
    from typing_extensions import Self

    from ackstream.settings import Settings

log = logging.getLogger(__name__)
FETCH_MS = 2_000


class Driver:
    """A thread that follows a query: each interval it publishes a tick and commits the query's offsets.

    Use as a context manager around ``query.awaitTermination()``. A broker that is away is waited for: no tick, no
    harm, time stands still meanwhile.
    """

    def __init__(self, settings: Settings, query: StreamingQuery) -> None:
        """Follow ``query``."""
        self._settings = settings
        self._query = query
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ackstream-clock", daemon=True)
        self._last_tick = 0
        self._committed: dict[TopicPartition, int] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        interval = self._settings.clock.interval / 1000
        while not self._stop.is_set():
            try:
                with _Connection(self._settings) as connection:
                    while not self._stop.wait(interval):
                        self._step(connection)
            except Exception as error:  # noqa: BLE001 - without the clock no request would ever time out
                log.warning("The clock lost the broker and tries again: %r", error)
                self._stop.wait(interval)

    def _step(self, connection: _Connection) -> None:
        consumed = consumed_offsets(self._query)
        if self._settings.clock.enabled:
            broker_time = connection.publish(self._last_tick)
            tick = next_tick(consumed, connection.ends(), broker_time, connection.timestamp_at)
            if tick is not None and tick > self._last_tick:
                connection.publish(tick)
                self._last_tick = tick
        if consumed != self._committed:
            connection.commit(consumed)
            self._committed = consumed


def consumed_offsets(query: StreamingQuery) -> dict[TopicPartition, int]:
    """Return the next offsets the query will read, as of its last finished batch; empty before the first."""
    progress = query.lastProgress
    if progress is None:
        return {}
    sources = progress["sources"] if isinstance(progress, dict) else progress.sources
    found: dict[TopicPartition, int] = {}
    for source in sources:
        text = source["endOffset"] if isinstance(source, dict) else source.endOffset
        topics = json.loads(text) if isinstance(text, str) and text else text or {}
        for topic, partitions in topics.items():
            for partition, offset in partitions.items():
                found[TopicPartition(topic, int(partition))] = int(offset)
    return found


class _Connection:
    """The driver's Kafka clients."""

    def __init__(self, settings: Settings) -> None:
        kafka = settings.kafka
        self._clock = kafka.topic("clock")
        self._producer = KafkaProducer(bootstrap_servers=kafka.bootstrap, acks="all", linger_ms=0)
        # the consumer's own end_offsets() leaves out partitions whose leader it has to ask again
        self._admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
        self._consumer = KafkaConsumer(
            bootstrap_servers=kafka.bootstrap,
            group_id=settings.correlate.group,
            enable_auto_commit=False,
            fetch_max_wait_ms=50,
            max_partition_fetch_bytes=65_536,
        )
        topics = [kafka.topic(name) for name in ("signals", "acks")]
        self._partitions = [
            TopicPartition(topic, partition)
            for topic in topics
            for partition in sorted(self._consumer.partitions_for_topic(topic) or ())
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._producer.close(timeout=1)
        self._consumer.close(autocommit=False)
        self._admin.close()

    def publish(self, tick: int) -> int:
        """Publish a tick; return the broker's time of it."""
        metadata = self._producer.send(self._clock, key=b"clock", value=str(tick).encode()).get(timeout=30)
        return int(metadata.timestamp)

    def ends(self) -> dict[TopicPartition, int]:
        """Return the ends of all partitions of signals and acks."""
        return self._offsets(self._partitions, OffsetSpec.LATEST)

    def _offsets(self, partitions: list[TopicPartition], which: OffsetSpec) -> dict[TopicPartition, int]:
        found = self._admin.list_partition_offsets(dict.fromkeys(partitions, which))
        return {partition: entry.offset for partition, entry in found.items()}

    def timestamp_at(self, partition: TopicPartition, offset: int) -> int | None:
        """Return the timestamp of the record at an offset; of the first there is where that one has expired."""
        beginning = self._offsets([partition], OffsetSpec.EARLIEST)[partition]
        self._consumer.assign([partition])
        self._consumer.seek(partition, max(offset, beginning))
        for records in self._consumer.poll(timeout_ms=FETCH_MS, max_records=1).values():
            return int(records[0].timestamp)
        return None

    def commit(self, offsets: dict[TopicPartition, int]) -> None:
        """Commit offsets to the query's consumer group."""
        self._consumer.commit({place: OffsetAndMetadata(offset, "", -1) for place, offset in offsets.items()})
