"""Reading topics during the life of a client, despite errors of the broker and unreadable records."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from kafka import TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError

from ackstream.errors import UnreachableError
from ackstream.kafka import clients
from ackstream.kafka.clients import Closing
from ackstream.kafka.login import check_access
from ackstream.settings import Kafka

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)

POLL_MS = 100
BACKOFF_SECONDS = 0.5
MAX_RECORDS = 2_000
FETCH_MS = 200
PATIENCE_SECONDS = 10.0
SILENCE_SECONDS = 30.0
"""Maximum silence of a broker while records are missing."""
NEAR = 1_000
"""Maximum number of records read to reach the next wanted one; a seek costs a request of its own."""

Place: TypeAlias = tuple[str, int, int]
"""Topic, partition and offset of a record."""


class TopicReader(Closing):
    """Polls a consumer; retries after errors of the broker, and skips records that cannot be unpacked.

    At such a record (a header name that is not UTF-8, a wrong checksum, a batch that decompresses to too much), the
    library raises once, and the next poll would never return.

    :ivar stop: ends the thread of :meth:`start` and a wait for the broker
    :ivar unreadable: the number of records that could not be unpacked
    :ivar on_unreadable: called in the reading thread with the partition and offset of such a record, and the error
    :ivar skipped: the number of records that could not be handled
    """

    def __init__(self, consumer: Any, stop: threading.Event | None = None) -> None:
        self.consumer = consumer
        self.stop = stop or threading.Event()
        self.unreadable = self.skipped = 0
        self.on_unreadable: Callable[[Any, int, Exception], object] = lambda _partition, _offset, _error: None
        self.failures = clients.Failures()
        self.thread: threading.Thread | None = None
        self._last_skipped: tuple[Any, int] | None = None

    @classmethod
    def at_end(
        cls, kafka: Kafka, *topics: str, writes: Iterable[str] = (), stop: threading.Event | None = None
    ) -> Self:
        """Read all records that come to topics (real names) from now on, without a group; ``writes``: checked, too."""
        # Partitions that are added later are read from their beginning. Raises UnreachableError.
        # earliest: a new partition has been empty
        consumer = clients.connect_consumer(kafka, None, auto_offset_reset="earliest")
        try:
            check_topics(consumer, kafka, reads=topics, writes=writes)
            consumer.subscribe(list(topics))
            # fetches metadata, which assigns the partitions
            consumer.topics()
            for partition, offset in consumer.end_offsets(sorted(consumer.assignment())).items():
                consumer.seek(partition, offset)
        except BaseException as error:
            consumer.close()
            if isinstance(error, KafkaError):
                raise clients.failure(kafka, error) from error
            raise
        return cls(consumer, stop)

    @property
    def reached(self) -> bool:
        """Whether a broker is connected."""
        return bool(self.consumer.reached)

    def start(
        self,
        name: str,
        handle: Callable[[Any], object],
        after_poll: Callable[[float], None] = lambda _now: None,
        *,
        guard: Callable[[Callable[[], None]], None] = lambda follow: follow(),
        **limits: int,
    ) -> None:
        """Start a thread that handles each record until the client stops, and logs exceptions."""

        # ``after_poll`` is called after the records of each poll with the monotonic time in seconds. ``guard`` runs the
        # thread, and handles its fatal error; ``limits`` are those of ``read``.
        def follow() -> None:
            while not self.stop.is_set():
                for record in self.read(**limits):
                    try:
                        handle(record)
                    except Exception:
                        # an unusable record or a failing callback must not stop the client
                        self.skipped += 1
                        log.exception("A record of %s was skipped (offset %s).", record.topic, record.offset)
                try:
                    after_poll(time.monotonic())
                except Exception:
                    log.exception("A step of the thread %s failed and will be retried.", name)
                    self.stop.wait(BACKOFF_SECONDS)

        self.thread = threading.Thread(target=guard, args=(follow,), name=name, daemon=True)
        self.thread.start()

    def end(self) -> None:
        """End the thread after the records it has read; in that thread, return at once."""
        self.stop.set()
        if self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join()

    def close(self) -> None:
        """End the thread and disconnect the consumer."""
        self.end()
        self.consumer.close(autocommit=False, timeout_ms=1_000)

    def read(self, timeout_ms: int = POLL_MS, max_records: int = MAX_RECORDS) -> list[Any]:
        """Return the records that arrive within the time, none after an error; raise no error of Kafka."""
        self._resume_rebalance()
        self._resume_paused()
        try:
            batches = self.consumer.poll(timeout_ms=timeout_ms, max_records=max_records)
        except Exception as error:  # noqa: BLE001 - unpacking a foreign record may raise anything
            if not self._skip_record(error):
                if self.failures.due(time.monotonic()):
                    log.warning("Reading from Kafka failed and will be retried: %s", error)
                self.stop.wait(BACKOFF_SECONDS)
            return []
        return [record for records in batches.values() for record in records]

    def between(self, partition: Any, start: int, end: int) -> Iterator[Any]:
        """Yield the records of a partition from one offset to another; raise ``UnreachableError`` after a silence."""
        # For a reader with no other use.
        consumer, until = self.consumer, time.monotonic() + SILENCE_SECONDS
        consumer.assign([partition])
        consumer.seek(partition, start)
        while (position := consumer.position(partition)) < end:
            records = self.read()
            yield from (record for record in records if record.offset < end)
            # the time that the caller took is not silence
            if records or consumer.position(partition) > position:
                until = time.monotonic() + SILENCE_SECONDS
            elif time.monotonic() > until:
                raise UnreachableError(
                    f"The records of {partition.topic}, partition {partition.partition}, up to {end} did not arrive "
                    f"within {SILENCE_SECONDS:g} s (read up to {position}): is its broker running?"
                )

    def fetch(self, places: Iterable[Place]) -> dict[Place, Any]:
        """Return the records at some places, without those that Kafka has deleted or that cannot be unpacked."""
        # For a reader with no other use; nearby records come in one request. Raises KafkaError: the broker does
        # not answer.
        wanted, consumer = set(places), self.consumer
        pending: dict[Any, list[int]] = {}
        for topic, partition, offset in sorted(wanted, reverse=True):
            pending.setdefault(TopicPartition(topic, partition), []).append(offset)
        found: dict[Place, Any] = {}
        for partition, beginning in consumer.beginning_offsets(list(pending)).items():
            pending[partition] = [offset for offset in pending[partition] if offset >= beginning]
        positions: dict[Any, int] = {}
        assigned: set[Any] = set()
        until = time.monotonic() + PATIENCE_SECONDS
        while pending := {partition: offsets for partition, offsets in pending.items() if offsets}:
            if changed := pending.keys() != assigned:
                assigned = set(pending)
                consumer.assign(sorted(assigned))
            for partition, offsets in pending.items():
                position = positions.get(partition)
                far = position is None or offsets[-1] > position + NEAR
                if far or changed:
                    consumer.seek(partition, offsets[-1] if far else position)
            records = self.read(FETCH_MS)
            there = {(record.topic, record.partition, record.offset): record for record in records}
            found |= {place: there[place] for place in there.keys() & wanted}
            if self._pass_over(pending, positions) or records:
                until = time.monotonic() + PATIENCE_SECONDS
            if time.monotonic() > until:
                self._give_up_missing(pending)
        return found

    def _pass_over(self, pending: Mapping[Any, list[int]], positions: dict[Any, int]) -> bool:
        """Drop the offsets that were read, were deleted meanwhile, or cannot be unpacked; return whether any was."""
        before = sum(map(len, pending.values()))
        for partition, offsets in pending.items():
            position = self.consumer.position(partition, timeout_ms=FETCH_MS)
            if position is not None:
                positions[partition] = position
                while offsets and offsets[-1] < position:
                    offsets.pop()
        return sum(map(len, pending.values())) < before

    def _give_up_missing(self, pending: dict[Any, list[int]]) -> None:
        """Drop offsets beyond the partitions' ends, as after a lost disk; raise ``KafkaError`` of the broker."""
        ends = self.consumer.end_offsets(list(pending))
        for partition, offsets in pending.items():
            offsets[:] = [offset for offset in offsets if offset < ends[partition]]
        if any(pending.values()):
            raise KafkaTimeoutError(f"no records of {', '.join(map(str, pending))}")

    def _resume_rebalance(self) -> None:
        """Make the next poll finish a rebalance in progress."""
        # If a poll ends between assignment and confirmation, the library forgets a rebalance that a leader began for
        # changed partitions: the member has no heartbeat and commits nothing. A poll without a timeout never sees the
        # confirmation.
        coordinator = self.consumer._coordinator  # noqa: SLF001 - there is no public way
        if coordinator.rebalance_in_progress():
            coordinator.request_rejoin()

    def _resume_paused(self) -> None:
        """Make records readable that were fetched before their partition was paused, once it is resumed."""
        # The library makes them the current records, but does not replace current records that are all read: of several
        # partitions, a resumed one might never be read again.
        fetcher = self.consumer._fetcher  # noqa: SLF001 - there is no public way
        if not fetcher._next_partition_records:  # noqa: SLF001
            fetcher._next_partition_records = None  # noqa: SLF001

    def _skip_record(self, error: Exception) -> bool:
        """Seek past the record that could not be unpacked; return ``False`` for another error."""
        # the library does not name the record, and keeps a failed partition in its queue
        part = self.consumer._fetcher._next_partition_records  # noqa: SLF001 - there is no public way
        # its function that unpacks records
        unpacking = any(frame.f_code.co_name == "take" for frame, _ in traceback.walk_tb(error.__traceback__))
        if not part or not unpacking:
            return False
        # unpacking begins with the batch, which may begin before the requested offset
        partition, offset = part.topic_partition, max(part.fetch_offset, part.next_fetch_offset)
        # the records of a batch that is too large have no offsets of their own
        following = getattr(error, "following", offset + 1)
        try:
            self.consumer.seek(partition, following)
        except (KafkaError, ValueError):
            # no longer assigned; the library drops its records itself
            return False
        # the rest of the same batch fails likewise: log it once
        if self._last_skipped != (partition, offset - 1):
            log.error("Skipped an unreadable record (%s, offset %s): %s", partition, offset, error)
        self._last_skipped = (partition, following - 1)
        self.unreadable += 1
        self.on_unreadable(partition, offset, error)
        return True


def check_topics(
    consumer: Any, kafka: Kafka, *, reads: Iterable[str] = (), writes: Iterable[str] = (), group: str | None = None
) -> None:
    """Check that topics (real names) exist, and may be read and written, before a program waits for them."""
    # Raises UnreachableError: a topic does not exist, or the broker is unavailable; AccessRefusedError: the broker does
    # not allow an operation, or the group.
    wanted = {"READ": tuple(reads), "WRITE": tuple(writes)}
    try:
        if kafka.security.protocol == "PLAINTEXT":
            known = consumer.topics()
        else:
            with clients.connect_admin(kafka) as admin:
                known = check_access(admin, kafka, wanted, [group] if group else ())
    except KafkaError as error:
        raise clients.failure(kafka, error) from error
    for topic in chain(*wanted.values()):
        if topic not in known:
            from ackstream.kafka.topics import system_topics  # noqa: PLC0415 - it needs the settings of services

            remedy = "create it, and name it in correlate.request_topics if it has requests; or correct the name"
            if topic in system_topics(kafka):
                remedy = "run `ackstream up`, or correct kafka.topic_prefix (ACKSTREAM_KAFKA_TOPIC_PREFIX)"
            raise UnreachableError(f"There is no topic {topic} at {kafka.bootstrap}: {remedy}.")
