"""Connections of named clients (a consumer with its partitions, and a producer), and the outbox of drivers."""

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from kafka import TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError

from ackstream.errors import AccessRefusedError, SettingsError, UnreachableError
from ackstream.kafka import clients
from ackstream.kafka.library import partition_of
from ackstream.kafka.reader import MAX_RECORDS, POLL_MS, TopicReader, check_topics
from ackstream.settings import Kafka

OutgoingRecord = tuple[str, str | bytes | None, bytes | None, Sequence[tuple[str, str | bytes]]]
"""The real name of its topic, key, value and headers."""

log = logging.getLogger(__name__)

SEND_SECONDS = 120.0
"""The timeout of a producer of Java: a broker that restarts, or a leader that moves, is not an error."""
SILENT_SECONDS = 12.0
"""Time after which Kafka is unavailable: more than the 10 s that a client waits for an answer."""


class ClientConnection(TopicReader):
    """A client's consumer and producer; its name is the key of its records. For one thread; ``send``: for any."""

    def __init__(
        self,
        kafka: Kafka,
        name: str,
        stop: threading.Event | None = None,
        *,
        sends: str,
        addressed: str,
        whole: Iterable[str] = (),
        writes: Iterable[str] = (),
        group: str | None = None,
    ) -> None:
        """Connect; every record written after this returns will be read. Topics are named without the prefix.

        :param sends: the topic that ``send`` writes to; ``writes`` are further ones, which are checked at once
        :param addressed: the topic with the records for this client; other records in its partition are ignored
        :param whole: topics of which all partitions are read
        :param group: of committed offsets; the client does not join it. UnreachableError: no broker, a topic is missing
        """
        self.name = name.encode()
        self._topic, self._addressed = kafka.topic(sends), kafka.topic(addressed)
        topics = [kafka.topic(topic) for topic in whole]
        super().__init__(clients.connect_consumer(kafka, group, auto_offset_reset="earliest"), stop)
        with ExitStack() as stack:
            stack.callback(super().close)
            reads, written = (self._addressed, *topics), (self._topic, *map(kafka.topic, writes))
            check_topics(self.consumer, kafka, reads=reads, writes=written, group=group)
            try:
                self.assignment = PartitionAssignment(self.consumer, self.name, whole=topics, addressed=self._addressed)
            except KafkaError as error:
                raise clients.failure(kafka, error) from error
            self.producer = clients.connect_producer(kafka, self._topic)
            stack.pop_all()

    def send(self, value: bytes, headers: list[tuple[str, bytes]] | None = None) -> Any:
        """Send a record, from any thread, and return the producer's future."""
        # Raises KafkaError: Kafka rejected it at once; ValueError: the partitions of the topic are unknown for a
        # moment.
        return self.producer.send(self._topic, value, self.name, headers)

    def read(self, timeout_ms: int = POLL_MS, max_records: int = MAX_RECORDS) -> list[Any]:
        """Return the records for this client that arrived within the time; raises no error of Kafka."""
        try:
            self.assignment.update()
        except KafkaError as error:
            if self.failures.due(time.monotonic()):
                log.warning("Looking up new partitions failed and will be retried: %s", error)
        records = super().read(timeout_ms, max_records)
        return [record for record in records if record.topic != self._addressed or record.key == self.name]

    def flush(self, timeout: float = clients.CLOSE_SECONDS) -> bool:
        """Send the buffered records for at most ``timeout`` seconds and close the producer; return as that does."""
        return clients.close_producer(self.producer, timeout)

    def close(self) -> None:
        """End the thread, disconnect the consumer and flush."""
        super().close()
        self.flush()


def offsets_since(consumer: Any, partitions: Iterable[Any], time_ms: int) -> dict[Any, int]:
    """Return each partition's first offset of a broker's time (epoch ms) or later, or its end; raises KafkaError."""
    wanted = list(partitions)
    if not wanted:
        return {}
    # the ends first: records that arrive in the meantime are read
    last = consumer.end_offsets(wanted)
    found = consumer.offsets_for_times(dict.fromkeys(wanted, time_ms))
    return {partition: last[partition] if found[partition] is None else found[partition].offset for partition in wanted}


class PartitionAssignment:
    """The partitions that a consumer reads without a group, including those added later; for the consumer's own thread.

    Adding partitions may move the records for a name to another partition, which is read from its beginning. The old
    one stays assigned, since not every writer notices at once.
    """

    def __init__(self, consumer: Any, name: bytes, *, whole: Iterable[str], addressed: str) -> None:
        """Begin at the ends: every record written after this returns will be read. Topics have their real names.

        ``consumer``: with auto_offset_reset earliest; ``addressed``: the topic of which only the partition of the name
        is read. Raises KafkaError: the broker is unavailable.
        """
        self._consumer, self._name = consumer, name
        self._whole, self._addressed = tuple(whole), addressed
        self._counts = self._partition_counts()
        self._assigned = self._wanted(self._counts)
        consumer.assign(sorted(self._assigned))
        for partition, offset in consumer.end_offsets(sorted(self._assigned)).items():
            consumer.seek(partition, offset)

    def of(self, topic: str) -> list[Any]:
        """Return the assigned partitions of a topic."""
        return sorted(partition for partition in self._assigned if partition.topic == topic)

    def update(self) -> None:
        """Assign added partitions; after a KafkaError, the next call tries again."""
        counts = self._partition_counts()
        if counts == self._counts or not all(counts.values()):
            return
        new = sorted(self._wanted(counts) - self._assigned)
        self._consumer.assign(sorted(self._assigned.union(new)))
        for partition in new:
            # it was empty, or has records of others and earlier ones for the name, which are harmless
            self._consumer.seek(partition, 0)
        self._counts = counts
        self._assigned.update(new)

    def _partition_counts(self) -> dict[str, int]:
        topics = (*self._whole, self._addressed)
        return {topic: len(self._consumer.partitions_for_topic(topic)) for topic in topics}

    def _wanted(self, counts: dict[str, int]) -> set[Any]:
        whole = {TopicPartition(topic, number) for topic in self._whole for number in range(counts[topic])}
        return whole | {TopicPartition(self._addressed, partition_of(self._name, counts[self._addressed]))}


class Outbox:
    """Sends records, and returns when the broker has all of them; connects at the first record."""

    def __init__(self, kafka: Kafka, seconds: float = SEND_SECONDS) -> None:
        """Prepare; a record that the broker has not accepted after ``seconds`` is an error."""
        self._kafka, self._seconds = kafka, seconds
        self._producer: Any = None
        # the records of one call stay together
        self._lock = threading.Lock()

    def send(self, records: Iterable[OutgoingRecord]) -> None:
        """Send records, in order by key; after an error, some of them may have been sent, or may still be."""
        # Raises UnreachableError: no broker answers; KafkaError: the broker does not accept a record, or not in time.
        with self._lock:
            if self._producer is None:
                self._producer = clients.connect_producer(self._kafka, None, delivery_timeout=self._seconds)
            until = time.monotonic() + self._seconds
            try:
                sent = [self._queue(record, until) for record in records]
                for future in sent:
                    future.get(self._seconds)
            except BaseException:
                self._disconnect(0)
                raise

    def close(self) -> None:
        """Disconnect."""
        with self._lock:
            self._disconnect(1)

    def _queue(self, record: OutgoingRecord, until: float) -> Any:
        topic, key, value, headers = record
        key = key.encode() if isinstance(key, str) else key
        named = [(name, text.encode() if isinstance(text, str) else text) for name, text in headers]
        while True:
            try:
                return self._producer.send(topic, value=value, key=key, headers=named)
            except KafkaTimeoutError:
                # the partitions of the topic are not known yet
                if time.monotonic() > until:
                    raise

    def _disconnect(self, seconds: float) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            clients.close_producer(producer, seconds)


def wait_for_silence(kafka: Kafka) -> None:
    """Return once no broker has answered for 12 s."""
    heard = time.monotonic()

    def ask(address: str) -> None:
        nonlocal heard
        while True:
            with suppress(UnreachableError):
                # a broker that refuses has answered
                with suppress(AccessRefusedError, SettingsError):
                    clients.connect_admin(kafka.model_copy(update={"bootstrap": address})).close()
                heard = time.monotonic()
            time.sleep(1)

    # one at a time: a client with several brokers would spend all its time on one that hangs
    for each in kafka.bootstrap.split(","):
        threading.Thread(target=ask, args=(each,), name="ackstream-silence", daemon=True).start()
    while time.monotonic() < heard + SILENT_SECONDS:
        time.sleep(1)
