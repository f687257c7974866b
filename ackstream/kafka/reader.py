"""Reading topics for as long as a client lives, whatever the broker does and whatever the records contain."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from kafka import TopicPartition
from kafka.errors import KafkaError

from ackstream.kafka import clients
from ackstream.kafka.access import check_topics
from ackstream.kafka.clients import Closing
from ackstream.kafka.producers import partition_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from typing_extensions import Self

    from ackstream.settings import Kafka

log = logging.getLogger(__name__)

POLL_MS = 100
BACKOFF_SECONDS = 0.5
MAX_RECORDS = 2_000
_UNPACKS = "take"
"""The function of the library that unpacks records."""


class TopicReader(Closing):
    """Polls a consumer; retries after errors of the broker, and skips records that cannot be unpacked.

    Such a record (a header name that is not UTF-8, a wrong checksum, a compression this Python lacks) makes the
    library raise once, and the next poll would then never return.

    :ivar stop: ends :meth:`follow` and a wait for the broker
    :ivar thread: the one that :meth:`start` began
    :ivar unreadable: the number of records that could not be unpacked
    :ivar skipped: the number of records that could not be handled
    """

    def __init__(self, consumer: Any, stop: threading.Event | None = None) -> None:
        self.consumer = consumer
        self.stop = stop or threading.Event()
        self.unreadable = self.skipped = 0
        self.thread: threading.Thread | None = None
        self._last_skipped: tuple[Any, int] | None = None

    @classmethod
    def at_end(cls, kafka: Kafka, *topics: str, writes: Iterable[str] = ()) -> Self:
        """Connect a consumer of its own; every record written to the topics (real names) from now on will be read.

        :param writes: topics that the client writes to, which are checked at once
        :raises UnreachableError: no broker, or a topic is missing
        """
        consumer = clients.connect_consumer(kafka, None, auto_offset_reset="earliest")
        try:
            check_topics(consumer, kafka, reads=topics, writes=writes)
            clients.subscribe_at_end(consumer, kafka, *topics)
        except BaseException:
            consumer.close()
            raise
        return cls(consumer)

    def start(
        self,
        name: str,
        *handlers: Callable[[Any], None],
        guard: Callable[[Callable[[], None]], None] | None = None,
        poll_ms: int = POLL_MS,
        max_records: int = MAX_RECORDS,
    ) -> None:
        """Have a thread of this name :meth:`follow`.

        :param guard: runs the thread's loop, and deals with an error that ends it (``Lifetime.guard`` of a client)
        """
        run = partial(self.follow, *handlers, poll_ms=poll_ms, max_records=max_records)
        target, arguments = (run, ()) if guard is None else (guard, (run,))
        self.thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
        self.thread.start()

    def end(self) -> None:
        """End the thread after the records it has read; called in that thread, it returns at once."""
        self.stop.set()
        if self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join()

    def close(self) -> None:
        """End the thread and disconnect the consumer."""
        self.end()
        self.consumer.close(autocommit=False, timeout_ms=1_000)

    def read(self, timeout_ms: int = POLL_MS, max_records: int = MAX_RECORDS) -> list[Any]:
        """Return the records that arrived within the time, none after an error; never raises for what Kafka does."""
        self._resume_rebalance()
        self._resume_paused()
        try:
            batches = self.consumer.poll(timeout_ms=timeout_ms, max_records=max_records)
        except Exception as error:  # noqa: BLE001 - unpacking a foreign record may raise anything
            if not self._skip_record(error):
                log.warning("Reading from Kafka failed and will be retried: %s", error)
                self.stop.wait(BACKOFF_SECONDS)
            return []
        return [record for records in batches.values() for record in records]

    def follow(
        self,
        handle: Callable[[Any], None],
        after_poll: Callable[[float], None] = lambda _now: None,
        *,
        poll_ms: int = POLL_MS,
        max_records: int = MAX_RECORDS,
    ) -> None:
        """Handle each record until the client stops; log exceptions and carry on.

        :param after_poll: called after the records of each poll with the monotonic time in seconds
        """
        while not self.stop.is_set():
            for record in self.read(poll_ms, max_records):
                try:
                    handle(record)
                except Exception:
                    # an unusable record or a failing callback must not stop the client
                    self.skipped += 1
                    log.exception("A record of %s was skipped (offset %s).", record.topic, record.offset)
            try:
                after_poll(time.monotonic())
            except Exception:
                log.exception("A step of the thread %s failed and will be retried.", threading.current_thread().name)
                self.stop.wait(BACKOFF_SECONDS)

    def _resume_rebalance(self) -> None:
        """Make the next poll finish a rebalance that is in progress.

        If a poll ends between the assignment and its confirmation, the library forgets a rebalance that the leader of a
        group began because the partitions had changed: the member then has no heartbeat and commits nothing any more. A
        poll without a timeout would never see the confirmation.
        """
        coordinator = self.consumer._coordinator  # noqa: SLF001 - there is no public way
        if coordinator.rebalance_in_progress():
            coordinator.request_rejoin()

    def _resume_paused(self) -> None:
        """Make records readable that were fetched before their partition was paused, once it is resumed.

        The library makes them the current records, but does not replace current records that are all read: with several
        partitions, a resumed one might then never be read again.
        """
        fetcher = self.consumer._fetcher  # noqa: SLF001 - there is no public way
        if not fetcher._next_partition_records:  # noqa: SLF001
            fetcher._next_partition_records = None  # noqa: SLF001

    def _skip_record(self, error: Exception) -> bool:
        """Seek past the record that could not be unpacked; return ``False`` if the error was another one."""
        # the library does not report which record it was, and keeps a failed partition in its queue
        part = self.consumer._fetcher._next_partition_records  # noqa: SLF001 - there is no public way
        unpacking = any(frame.f_code.co_name == _UNPACKS for frame, _ in traceback.walk_tb(error.__traceback__))
        if not part or not unpacking:
            return False
        # unpacking begins with the batch, which may begin before the requested offset
        partition, offset = part.topic_partition, max(part.fetch_offset, part.next_fetch_offset)
        try:
            self.consumer.seek(partition, offset + 1)
        except (KafkaError, ValueError):
            # no longer assigned; the library drops its records itself
            return False
        # the rest of the same batch fails likewise: log it once
        if self._last_skipped != (partition, offset - 1):
            log.error("Skipped an unreadable record (%s, offset %s): %s", partition, offset, error)
        self._last_skipped = (partition, offset)
        self.unreadable += 1
        return True


class ClientConnection(TopicReader):
    """The consumer and the producer of a client whose name is the key of the records from it and for it.

    Everything but ``send`` and ``producer`` is for one thread.
    """

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
        linger_ms: int = 2,
    ) -> None:
        """Connect; every record written after this returns will be read. Topics are named without the prefix.

        :param sends: the topic that ``send`` writes to
        :param addressed: the topic with the records for this client; others in its partition are ignored
        :param whole: topics of which all partitions are read
        :param writes: further topics that the client writes to, which are checked at once
        :param group: the consumer group under which offsets are committed; the client does not join it
        :raises UnreachableError: no broker, or a topic is missing
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
                self.assignment = PartitionAssignment(
                    self.consumer, self.name, whole=topics, addressed=(self._addressed,)
                )
            except KafkaError as error:
                raise clients.failure(kafka, error) from error
            self.producer = clients.connect_producer(kafka, self._topic, linger_ms=linger_ms)
            stack.pop_all()

    def send(self, value: bytes, headers: list[tuple[str, bytes]] | None = None) -> Any:
        """Send a record, and return the producer's future; safe to call from any thread.

        :raises KafkaError: Kafka rejected it at once
        :raises ValueError: the partitions of the topic are unknown for a moment
        """
        return self.producer.send(self._topic, value, self.name, headers)

    def read(self, timeout_ms: int = POLL_MS, max_records: int = MAX_RECORDS) -> list[Any]:
        """Return the records for this client that arrived within the time; never raises for what Kafka does."""
        try:
            self.assignment.update()
        except KafkaError as error:
            log.warning("Looking up new partitions failed and will be retried: %s", error)
        records = super().read(timeout_ms, max_records)
        return [record for record in records if record.topic != self._addressed or record.key == self.name]

    def flush(self) -> None:
        """Send what is buffered (for at most 5 s) and close the producer."""
        clients.close_producer(self.producer)

    def close(self) -> None:
        """End the thread, disconnect the consumer and flush."""
        super().close()
        self.flush()


_SLACK_MS = 60_000
"""Between our clock and the broker's; reading a record twice does no harm."""


def offsets_since(consumer: Any, partitions: Iterable[Any], time_ms: int) -> dict[Any, int]:
    """Return for each partition the offset of the first record of a time or later, or its end if there is none.

    :param time_ms: of the broker, in epoch milliseconds
    :raises KafkaError: the broker does not answer
    """
    wanted = list(partitions)
    if not wanted:
        return {}
    # the ends first: what arrives in the meantime is read
    last = consumer.end_offsets(wanted)
    found = consumer.offsets_for_times(dict.fromkeys(wanted, time_ms))
    return {partition: last[partition] if found[partition] is None else found[partition].offset for partition in wanted}


class PartitionAssignment:
    """The partitions that a consumer reads without a group, among them those that are added later.

    Adding partitions may move the records for a name to another one: of that, everything since the client began is
    read. The old one stays assigned, since not every writer notices at once. For the consumer's own thread.
    """

    def __init__(self, consumer: Any, name: bytes, *, whole: Iterable[str] = (), addressed: Iterable[str] = ()) -> None:
        """Begin at the ends: every record written after this returns will be read. Topics have their real names.

        :param consumer: with ``auto_offset_reset`` ``earliest``
        :param whole: topics of which all partitions are read
        :param addressed: topics of which only the partition with the records for the name is read
        :raises KafkaError: the broker went away
        """
        self._consumer = consumer
        self._name = name
        self._whole = tuple(whole)
        self._addressed = tuple(addressed)
        self._since = time.time_ns() // 1_000_000 - _SLACK_MS
        self._counts = self._partition_counts()
        self._assigned = self._wanted()
        consumer.assign(sorted(self._assigned))
        for partition, offset in consumer.end_offsets(sorted(self._assigned)).items():
            consumer.seek(partition, offset)

    def of(self, topic: str) -> list[Any]:
        """Return the partitions of a topic that are read."""
        return sorted(partition for partition in self._assigned if partition.topic == topic)

    def update(self) -> None:
        """Assign partitions that were added. If the broker does not answer, the next call tries again."""
        counts = self._partition_counts()
        if counts == self._counts or not all(counts.values()):
            return
        known, self._counts = self._counts, counts
        new = sorted(self._wanted() - self._assigned)
        try:
            self._consumer.assign(sorted(self._assigned.union(new)))
            moved = [partition for partition in new if partition.topic in self._addressed]
            # a new partition of a topic that is read whole has been empty: read it from its beginning
            starts = dict.fromkeys(new, 0) | offsets_since(self._consumer, moved, self._since)
            for partition, offset in starts.items():
                self._consumer.seek(partition, offset)
        except KafkaError as error:
            log.warning("New partitions are not read yet: %s", error)
            self._counts = known
        else:
            self._assigned.update(new)

    def _partition_counts(self) -> dict[str, int]:
        topics = (*self._whole, *self._addressed)
        return {topic: len(self._consumer.partitions_for_topic(topic)) for topic in topics}

    def _wanted(self) -> set[Any]:
        whole = {TopicPartition(topic, number) for topic in self._whole for number in range(self._counts[topic])}
        return whole | {
            TopicPartition(topic, partition_of(self._name, self._counts[topic])) for topic in self._addressed
        }
