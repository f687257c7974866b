"""The thread of a receiving client, and its membership of a group: it reads, calls the handler, answers and commits."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from kafka import TopicPartition
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

from ackstream.client.core.arguments import check_word
from ackstream.client.core.connection import connection_of
from ackstream.client.core.lifetime import Lifetime
from ackstream.client.core.messages import Answers, OffsetProgress
from ackstream.client.core.tracing import traced
from ackstream.errors import AckstreamError, UnreachableError
from ackstream.kafka.clients import Closing
from ackstream.kafka.reader import BACKOFF_SECONDS, POLL_MS, TopicReader
from ackstream.protocol.errors import DittoError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ackstream.client.core.connection import Brokers
    from ackstream.client.core.labels import Labels
    from ackstream.client.core.messages import Work

log = logging.getLogger(__name__)

JOIN_SECONDS = 60.0
COMMIT_SECONDS = 1.0
SESSION_MS = 10_000
"""How long after a crash the other members of the group take over."""

_TIMEOUT_MS = 5_000

Start = Literal["latest", "earliest"]


class GroupMember(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python is not typed
    """Follows a consumer's partitions and commits each second; all but the listener runs in the polling thread."""

    def __init__(
        self,
        consumer: Any,
        group: str,
        topics: Sequence[str],
        progress: OffsetProgress,
        start: Callable[[TopicPartition, int], None],
    ) -> None:
        """Subscribe; ``start`` is called with each new partition and its first offset, and may raise KafkaError."""
        self.partitions: set[TopicPartition] = set()
        self._consumer, self._group = consumer, group
        self._progress, self._start = progress, start
        self._committed: dict[TopicPartition, int] = {}
        self._commit_at = 0.0
        self._changed = threading.Event()
        self._joined = threading.Event()
        consumer.subscribe(list(topics), listener=self)

    def on_partitions_revoked(self, revoked: Any) -> None:
        """Do nothing: the next owner answers uncommitted records again, which requesters never notice."""

    def on_partitions_assigned(self, assigned: Any) -> None:  # noqa: ARG002 - the consumer is asked, in its thread
        """Have the next :meth:`follow` look at the assignment."""
        self._changed.set()

    def wait_until_joined(self) -> None:
        """Wait until the group has assigned partitions, perhaps none; raise an ``UnreachableError`` after 60 s."""
        if not self._joined.wait(JOIN_SECONDS):
            raise UnreachableError(
                f"The consumer group {self._group} assigned no partitions to this member within {JOIN_SECONDS:g} s: "
                "look into the log of its broker."
            )

    def follow(self, records: Sequence[Any]) -> None:
        """Follow a changed assignment; to be called after each poll, with its records."""
        if not self._changed.is_set():
            return
        self._changed.clear()
        partitions = set(self._consumer.assignment())
        self._progress.keep(partitions)
        first = {TopicPartition(record.topic, record.partition): record.offset for record in reversed(records)}
        try:
            for partition in partitions - self._progress.positions().keys():
                offset = first.get(partition)
                if offset is None:
                    offset = self._consumer.position(partition, timeout_ms=_TIMEOUT_MS)
                if offset is None:
                    raise KafkaError(f"the offset of {partition} is unknown")  # noqa: TRY301 - as position() might
                self._start(partition, offset)
            # a group that begins has no offsets: the member after a killed one must find where it began
            if positions := self._progress.positions():
                self._consumer.commit(_offsets(positions), timeout_ms=_TIMEOUT_MS)
        except (KafkaError, AssertionError) as error:
            log.warning("Reading the offsets of the group %s failed and is retried: %s", self._group, error)
            self._changed.set()
        else:
            self.partitions = partitions
            self._commit_at = 0.0
            self._joined.set()

    def commit(self, now: float) -> None:
        """Commit the progress of the last second, without waiting for the broker."""
        if now < self._commit_at:
            return
        self._commit_at = now + COMMIT_SECONDS
        positions = self._progress.positions()
        if positions != self._committed:
            self._consumer.commit_async(_offsets(positions), callback=self._note_commit)

    def leave(self, metadata: Callable[[TopicPartition], str] = lambda _partition: "") -> None:
        """Commit the progress with texts, wait for the broker for at most 5 s, and close the consumer."""
        try:
            self._consumer.commit(_offsets(self._progress.positions(), metadata), timeout_ms=_TIMEOUT_MS)
        except (KafkaError, AssertionError) as error:
            log.warning("The last offsets of the group %s were not committed: %s", self._group, error)
        self._consumer.close(autocommit=False, timeout_ms=_TIMEOUT_MS)

    def _note_commit(self, offsets: dict[TopicPartition, OffsetAndMetadata], result: Any) -> None:
        if isinstance(result, Exception):
            log.warning("Committing the offsets of the group %s failed and is retried: %s", self._group, result)
        else:
            self._committed = {partition: offset.offset for partition, offset in offsets.items()}


def _offsets(
    positions: dict[TopicPartition, int], metadata: Callable[[TopicPartition], str] = lambda _partition: ""
) -> dict[TopicPartition, OffsetAndMetadata]:
    return {partition: OffsetAndMetadata(offset, metadata(partition), -1) for partition, offset in positions.items()}


class Worker(Closing):
    """Calls ``handle`` with each record and its work, in the order of each partition, all in one thread.

    With a group, an offset is committed when the work of all records up to it is done: after a crash or a restart some
    records are handled again, none is missed. If ``handle`` raises, the record is skipped and the error logged. If the
    thread dies, its records go to the other members of the group. ``release`` is called after the last answer, or that
    death.
    """

    def __init__(
        self,
        brokers: Brokers,
        topics: Sequence[str],
        handle: Callable[[Any, Work], None],
        group: str | None,
        start: Start,
        *,
        turn: Callable[[float], None] | None = None,
        labels: Labels | None = None,
        on_error: Callable[[Exception], object] | None = None,
    ) -> None:
        """Connect; no record is handled before ``run``. Topics and ``group`` are names without the prefix.

        Without a group all records from now on are read. ``turn`` is called after each poll, several times a second,
        with the monotonic time. While the lease of ``labels`` has lapsed, records and answers wait. Raises
        ``UnreachableError`` without a broker or a topic.
        """
        check_word("start", start, Start)
        connection = connection_of(brokers)
        self.skipped, self.originator_key = 0, connection.kafka.originator_key
        self.now = connection.now
        self.life = Lifetime(self._leave, on_error)
        self.release: Callable[[], object] = lambda: None
        self._finishes = self._finished = False
        self._handle = traced(handle)
        self._turn = turn
        self._waits = False
        self._progress = OffsetProgress()
        self._member: GroupMember | None = None
        self._closing = threading.Event()
        names, answers = [connection.kafka.topic(name) for name in topics], connection.kafka.topic("acks")
        if group is None:
            self.reader = connection.reader(*names, writes=(answers,), stop=self._closing)
        else:
            full = connection.kafka.group(group)
            config = {"auto_offset_reset": start, "session_timeout_ms": SESSION_MS}
            consumer = connection.consumer(*names, writes=(answers,), group=full, **config)
            self.reader = TopicReader(consumer, self._closing)
            self._member = GroupMember(consumer, full, names, self._progress, self._progress.start)
        try:
            # with a linger the acknowledgements of one poll share a few produce requests
            self._producer = connection.producer(answers, linger_ms=2)
        except BaseException:
            self.reader.close()
            raise
        self.outbox = Answers(self._producer, connection, labels)
        self._loop = connection.loop(self._step, "ackstream-worker", self._closing, self._guard, self._due)

    def run(self) -> None:
        """Start the thread; when this returns, every record written from now on will be handled (by the group)."""
        self._loop.start()
        if self._member is None:
            return
        try:
            self._member.wait_until_joined()
        except UnreachableError:
            self.close()
            raise

    def close(self) -> None:
        """Stop after the records already read, store their answers (for at most 5 s) and commit; may be called twice.

        The group reads records with delayed answers again. Called by a handler, this runs after the batch in progress.
        """
        self._closing.set()
        if not self._loop.inside:
            self._loop.join()
        elif self.life.error is None:
            self._finishes = True
            return
        self._finish()

    def _finish(self) -> None:
        if self._finished:
            return
        self._finished = True
        self._producer.close()
        self.outbox.settle(self.now())
        if self._member is not None and self.life.error is None:
            self._member.leave()
        else:
            self.reader.close()
        self.release()
        self.life.close()

    def _leave(self, _error: Exception) -> None:
        """Leave the group without a commit: a dead member that stays connected would keep its partitions."""
        with suppress(KafkaError):
            self.reader.close()
        self.release()

    def _guard(self, repeat: Callable[[], None]) -> None:
        def run() -> None:
            repeat()
            if self._finishes:
                self._finish()

        self.life.guard(run)

    def _step(self) -> None:
        records = self._read()
        if self._member is not None:
            self._member.follow(records)
        for number, record in enumerate(records):
            if not self.outbox.ready:
                self._put_back(records[number:])
                break
            self._take(record)
        self._take_turn(self.now())
        if self._waits and self.outbox.ready:
            self._waits = False
            log.warning("The labels are held again, or another client has them: records are handled.")
            for partition in self.reader.consumer.paused():
                with suppress(KeyError):
                    self.reader.consumer.resume(partition)

    def _put_back(self, records: Sequence[Any]) -> None:
        """Read records again once the worker is ready; polling goes on, or the group would give them to others."""
        if not self._waits:
            self._waits = True
            log.warning("The labels are not held: records and answers wait until they are, or are taken.")
        first = {TopicPartition(record.topic, record.partition): record.offset for record in reversed(records)}
        for partition, offset in first.items():
            # unless another member has it by now
            with suppress(KeyError, ValueError):
                self.reader.consumer.seek(partition, offset)
                self.reader.consumer.pause(partition)

    def _take_turn(self, now: float) -> None:
        try:
            if self._turn is not None:
                self._turn(now)
            self.outbox.turn(now)
            if self._member is not None:
                self._member.commit(now)
        except (KafkaError, AckstreamError) as error:
            log.warning("A step of a worker failed and will be retried: %s", error)
            self._closing.wait(BACKOFF_SECONDS)

    def _read(self) -> list[Any]:
        if self.outbox.full:
            self._closing.wait(POLL_MS / 1000)
            return []
        wait = self._due()
        return self.reader.read(POLL_MS if wait is None else min(POLL_MS, round(wait * 1000)))

    def _due(self) -> float | None:
        return self.outbox.wait(self.now())

    def _take(self, record: Any) -> None:
        work = self._progress.begin(TopicPartition(record.topic, record.partition), record.offset)
        if work is None:
            return
        try:
            self._handle(record, work)
        except DittoError as error:
            # an invalid signal, which the service answers
            self.skipped += 1
            log.warning("A record of %s was skipped (offset %s): %s", record.topic, record.offset, error)
        except Exception:
            # one bad record must not stop the worker
            self.skipped += 1
            log.exception("A record of %s was skipped (offset %s).", record.topic, record.offset)
