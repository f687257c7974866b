"""Gather what the demo produced, for comparison: topics from the broker, tables through Spark."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from ackstream.cli.demo.check import Answered, DeviceAnswer, Evidence
from ackstream.client.replies import Reply, read_reply
from ackstream.errors import AckstreamError
from ackstream.kafka import partitions
from ackstream.kafka.clients import connect_admin, connect_consumer
from ackstream.kafka.reader import TopicReader
from ackstream.lake import tables
from ackstream.protocol.ditto.envelopes import decode
from ackstream.protocol.ditto.labels import TWIN_PERSISTED
from ackstream.protocol.record_headers import CORRELATION_ID
from ackstream.spark.offsets import consumed_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.cli.demo.traffic import Tally
    from ackstream.settings import Settings

READ_SECONDS = 60.0
POLL_SECONDS = 0.2


def catch_up(
    settings: Settings, queries: Mapping[StreamingQuery, tuple[str, ...]], patience: float, healthy: Callable[[], None]
) -> bool:
    """Wait until each query has read its topics to the end, in order: each one writes what the next one reads.

    :param queries: each with its topics, without the prefix
    :param patience: seconds for all of them together
    :returns: whether all caught up
    """
    until = time.monotonic() + patience
    with connect_admin(settings.kafka) as client:
        for query, names in queries.items():
            wanted = partitions.ends(client, partitions.of_topics(client, map(settings.kafka.topic, names)))
            while not _has_read(query, wanted):
                if time.monotonic() > until:
                    return False
                healthy()
                time.sleep(POLL_SECONDS)
    return True


def gather(spark: SparkSession, settings: Settings, tally: Tally) -> Evidence:
    """Read topics and tables, ignoring requests of others, such as those sent over HTTP meanwhile.

    :raises AckstreamError: the broker does not respond
    """
    own = tally.sent
    topics = {
        name: [record for record in records if _key(record) in own]
        for name, records in read_topics(settings, ("signals", "acks", "replies")).items()
    }

    def rows(table: str, *columns: str) -> list[Any]:
        found = tables.read(spark, settings.lake, table).select("correlation_id", *columns).collect()
        # a row without an id may be ours
        return [tuple(row) for row in found if row[0] is None or row[0] in own]

    return Evidence(
        sent=list(own),
        received=[_answered(reply) for reply in tally.replies.values()],
        commands=[(_key(record), record.timestamp) for record in topics["signals"]],
        acks=[_acknowledgement(record) for record in topics["acks"]],
        replies=[_answered(reply) for record in topics["replies"] if (reply := _reply(record)) is not None],
        signal_rows=[key for (key,) in rows("signals")],
        outcome_rows=[
            _answered(Reply(key, reply_id, status, completed_by, (reply or "").encode()))
            for key, reply_id, status, completed_by, reply in rows(
                "outcomes", "reply_id", "status", "completed_by", "reply"
            )
        ],
        ack_rows=[
            (topic, partition, offset)
            for _, topic, partition, offset in rows("acknowledgements", "topic", "partition", "offset")
        ],
        dead_letters=len(rows("dead_letters")),
    )


def read_topics(settings: Settings, names: tuple[str, ...]) -> dict[str, list[Any]]:
    """Return all records of the topics, keyed by topic name without the prefix.

    :raises AckstreamError: the broker does not respond
    """
    kafka = settings.kafka
    real = {kafka.topic(name): name for name in names}
    found: dict[str, list[Any]] = {name: [] for name in names}
    with connect_admin(settings.kafka) as client, closing(connect_consumer(kafka, None)) as consumer:
        ends = partitions.ends(client, partitions.of_topics(client, real))
        consumer.assign(list(ends))
        consumer.seek_to_beginning()
        reader = TopicReader(consumer, threading.Event())
        until = time.monotonic() + READ_SECONDS
        while any(consumer.position(place) < end for place, end in ends.items()):
            if time.monotonic() > until:
                raise AckstreamError(f"Kafka at {kafka.bootstrap} timed out: no records within {READ_SECONDS:g} s.")
            for record in reader.read():
                found[real[record.topic]].append(record)
    return found


def _has_read(query: StreamingQuery, wanted: Mapping[Any, int]) -> bool:
    done = consumed_offsets(query)
    return all(done.get(place, 0) >= end for place, end in wanted.items())


def _key(record: Any) -> str:
    return (dict(record.headers).get(CORRELATION_ID) or b"").decode()


def _reply(record: Any) -> Reply | None:
    return read_reply(record.headers, record.value, record.timestamp)


def _answered(reply: Reply) -> Answered:
    statuses = {label: ack.status for label, ack in reply.acks.items()}
    return Answered(reply.correlation_id, reply.reply_id, reply.status, reply.completed_by, statuses, reply.data)


def _acknowledgement(record: Any) -> DeviceAnswer:
    envelope = decode(record.value)
    coordinates = record.topic, record.partition, record.offset
    # the twin acknowledges as well; no command of the demo requests that, so it does not count
    label = TWIN_PERSISTED if envelope.topic.criterion == "commands" else envelope.topic.subject
    return DeviceAnswer(_key(record), label, envelope.status or 0, record.timestamp, coordinates)
