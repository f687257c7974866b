"""Kafka as a transport: offsets are committed in order, and a rejected record rewinds its partition.

Source of the rules: Eclipse Ditto, ``AtLeastOnceConsumerStream``, ``RestartableKafkaConsumerStream`` (ditto.md 7).
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from kafka import TopicPartition
from kafka.structs import OffsetAndMetadata

from ackstream.client.core.messages import OffsetProgress, Work
from ackstream.client.core.worker import SESSION_MS, GroupMember
from ackstream.connectivity.transports.kafka_publisher import KafkaPublisher, cluster
from ackstream.connectivity.transports.transport import ExternalMessage, MessageSource, Transport, backoff, redelivers
from ackstream.errors import StartError
from ackstream.kafka import clients
from ackstream.kafka.reader import POLL_MS, TopicReader
from ackstream.protocol.ditto.errors import kafka_message_rejected

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackstream.connectivity.transports.transport import Receiver
    from ackstream.protocol.ditto.connection_rules import Settlement
    from ackstream.settings import Kafka
    from ackstream.settings.connections import KafkaConnection, KafkaSourceSettings

log = logging.getLogger(__name__)

_CLOSE_MS = 5_000


class KafkaSource(MessageSource):
    """Consumes the topics of a source as a member of the connection's consumer group."""

    def __init__(
        self, connection: KafkaConnection, _index: int, source: KafkaSourceSettings, own: Kafka, intake: Receiver
    ) -> None:
        super().__init__(connection.id, intake)
        self._id = connection.id
        self._qos = source.qos
        self._limit = source.max_in_flight
        self._deliveries = Deliveries()
        self._paused: dict[TopicPartition, float] = {}
        kafka, group = cluster(connection, own), own.group(f"ackstream-source-{connection.id}")
        self._consumer = clients.connect_consumer(
            kafka, group, auto_offset_reset=source.start, session_timeout_ms=SESSION_MS
        )
        missing = sorted(set(source.addresses) - self._consumer.topics())
        if missing:
            self._consumer.close(autocommit=False)
            raise StartError(
                f"The connection {self._id} reads the topic {missing[0]}, which {kafka.bootstrap} does not have: "
                f"create it there, or correct connections.sources.addresses."
            )
        self._member = GroupMember(self._consumer, group, source.addresses, self._deliveries, self._follow)
        self._reader = TopicReader(self._consumer, self._closing)

    def start(self) -> None:
        """Start; once this returns, the group reads everything that arrives."""
        self._thread.start()
        self._member.wait_until_joined()

    def _disconnect(self) -> None:
        # partitions that were lost since the last turn have another owner, whose offsets count
        self._deliveries.keep(self._consumer.assignment())
        # the metadata is the end of reading: the next owner knows which records may have been delivered before
        self._member.leave(lambda partition: str(self._deliveries.seen(partition)))

    def _turn(self) -> None:
        records = self._read()
        self._member.follow(records)
        for record in records:
            self._take(record)
        self._intake.turn()
        now = time.monotonic()
        self._read_again(now)
        self._member.commit(now)

    def _read(self) -> list[Any]:
        room, reading = self._intake.room, self._member.partitions - self._paused.keys()
        # records that wait for an earlier one to be settled count, too: all of them may be read again
        full = {partition for partition in reading if self._deliveries.open(partition) >= self._limit}
        resting = full if room else reading
        # polled without fetching, to stay a member of the group; a poll may take partitions away
        self._consumer.pause(*resting & self._consumer.assignment())
        records = self._reader.read(POLL_MS, room or 1)
        self._consumer.resume(*resting & self._consumer.assignment())
        return records

    def _take(self, record: Any) -> None:
        partition = TopicPartition(record.topic, record.partition)
        redelivered = record.offset < self._deliveries.seen(partition)
        work = self._deliveries.begin(partition, record.offset)
        if work is None:
            return
        message = external_message(record, self._id)
        drops = expired(message.headers, time.time() * 1000)
        if drops or self._qos == 0:
            # at most once: the offset is committed regardless of the settlement
            work.remaining = 0
        if not drops:
            self._intake.take(message, partial(self._done, partition, work), redelivered=redelivered)

    def _done(self, partition: TopicPartition, work: Work, settlement: Settlement) -> None:
        if redelivers(settlement, self._qos):
            self._deliveries.reject(partition, work)
        else:
            work.remaining = 0

    def _read_again(self, now: float) -> None:
        """Rewind to rejected records after a delay; other partitions continue."""
        owned = self._consumer.assignment()
        for partition in [
            partition for partition, until in self._paused.items() if until <= now or partition not in owned
        ]:
            del self._paused[partition]
            if partition in owned:
                self._consumer.resume(partition)
        for partition, (offset, wait) in self._deliveries.again().items():
            if partition not in owned:
                continue
            rejected = kafka_message_rejected(f"{partition.topic}-{partition.partition}-{offset}")
            log.warning("%s %s It will be read again in %g s.", rejected.message, rejected.error, wait)
            self._consumer.seek(partition, offset)
            self._consumer.pause(partition)
            self._paused[partition] = now + wait

    def _follow(self, partition: TopicPartition, offset: int) -> None:
        """Track a partition; the metadata of its offset names the records that a previous owner may have delivered."""
        committed = self._consumer.committed(partition, metadata=True)
        if committed is None or committed.offset < 0:
            # commit a start position, in case this process is killed before anything is settled
            self._consumer.commit({partition: OffsetAndMetadata(offset, str(offset), -1)}, timeout_ms=_CLOSE_MS)
            seen = offset
        elif committed.metadata.isdigit():
            seen = int(committed.metadata)
        else:
            seen = self._consumer.end_offsets([partition])[partition]
        self._deliveries.start(partition, offset, seen)


class Deliveries(OffsetProgress):
    """Tracks the records of partitions that are delivered until they are settled.

    An unsettled record (work that remains) holds back the commit of all later ones of its partition. A record rejected
    with redelivery rewinds its partition once all records before it are settled; later ones are delivered again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[TopicPartition, int] = {}
        self._rejected: set[Work] = set()
        self._attempts: dict[TopicPartition, tuple[int, int]] = {}

    def start(self, partition: TopicPartition, offset: int, seen: int = 0) -> None:
        """Track a partition from an offset unless tracked; a previous owner may have had records below ``seen``."""
        super().start(partition, offset)
        self._seen.setdefault(partition, seen)

    def begin(self, partition: TopicPartition, offset: int) -> Work | None:
        """Begin the delivery of a record; ``None`` if it was begun before."""
        work = super().begin(partition, offset)
        if work is not None:
            work.remaining = 1
            self._seen[partition] = max(self.seen(partition), offset + 1)
        return work

    def reject(self, partition: TopicPartition, work: Work) -> None:
        """Schedule redelivery of a record, unless its partition has been rewound or lost since."""
        if work in self._work.get(partition, ()):
            self._rejected.add(work)

    def keep(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget all other partitions; they were assigned to another consumer."""
        kept = set(partitions)
        for partition in self._work.keys() - kept:
            self._rejected.difference_update(self._work[partition])
            self._seen.pop(partition, None)
        super().keep(kept)

    def seen(self, partition: TopicPartition) -> int:
        """Return the offset after the highest one delivered so far."""
        return self._seen.get(partition, 0)

    def open(self, partition: TopicPartition) -> int:
        """Return the number of records of a partition, settled ones too, that cannot be committed yet."""
        return len(self._work.get(partition, ()))

    def again(self) -> dict[TopicPartition, tuple[int, float]]:
        """Rewind partitions due for redelivery; return the offset and the delay in seconds for each."""
        found = {}
        for partition, offset in self.positions().items():
            open_ = self._work[partition]
            if not open_ or open_[0] not in self._rejected:
                continue
            self._rejected.difference_update(open_)
            open_.clear()
            self._next[partition] = offset
            failed, attempts = self._attempts.get(partition, (offset, 0))
            attempts = attempts + 1 if failed == offset else 1
            self._attempts[partition] = (offset, attempts)
            found[partition] = (offset, backoff(attempts))
        return found


def external_message(record: Any, connection_id: str) -> ExternalMessage:
    """Convert a record, with headers ``kafka.topic``, ``kafka.key`` and ``kafka.timestamp``."""
    headers = {name.lower(): value.decode("utf-8", "replace") for name, value in record.headers if value is not None}
    # of the record alone: a header must not stand for a missing key
    headers.pop("kafka.key", None)
    headers |= {"kafka.topic": record.topic, "kafka.timestamp": str(record.timestamp)}
    if record.key is not None:
        headers["kafka.key"] = record.key.decode("utf-8", "replace")
    identity = f"{connection_id}-{record.topic}-{record.partition}-{record.offset}"
    return ExternalMessage(identity, headers, record.value or b"", address=record.topic)


def expired(headers: Any, now_ms: float) -> bool:
    """Return whether ``creation-time`` plus ``ttl`` (headers, in milliseconds) has passed."""
    try:
        return int(headers["creation-time"]) + int(headers["ttl"]) <= now_ms
    except (KeyError, ValueError):
        return False


TRANSPORT = Transport(KafkaPublisher, KafkaSource)
