"""The thread of a receiving client: it reads topics, calls the handler, sends the answers and commits in order.

Answers are in the :class:`Outbox` until the broker has confirmed them; some wait for their time before, and all while
the lease of the client's labels has lapsed. None is lost, unless another client takes the labels meanwhile.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

from kafka import TopicPartition
from kafka.errors import KafkaError

from ackstream.client.core.group import SESSION_MS, GroupMember, OffsetProgress, Work
from ackstream.client.core.lifetime import Lifetime
from ackstream.client.core.tracing import traced
from ackstream.errors import AckstreamError, UnreachableError
from ackstream.kafka import clients
from ackstream.kafka.access import check_topics
from ackstream.kafka.clients import CLOSE_SECONDS, RESEND_SECONDS, Closing, may_pass
from ackstream.kafka.reader import BACKOFF_SECONDS, POLL_MS, TopicReader
from ackstream.protocol.ditto.envelopes import encode
from ackstream.protocol.errors import DittoError
from ackstream.protocol.record_headers import CORRELATION_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ackstream.client.core.labels import Labels
    from ackstream.protocol.ditto.envelopes import Envelope
    from ackstream.settings import Kafka

log = logging.getLogger(__name__)

MAX_SENDING = 20_000
MAX_SENDING_BYTES = 32 * 1024 * 1024
"""While more answers than this are on their way, or more bytes of them, no further records are read."""

Start = Literal["latest", "earliest"]


@dataclass(frozen=True, eq=False)
class Outgoing:
    """An answer as a record, and the work of the record that it belongs to."""

    correlation_id: str
    work: Work
    record: dict[str, Any]
    acknowledges: bool


class Outbox:
    """Sends answers with a producer. Times are seconds of a monotonic clock.

    ``send``, ``hold`` and ``release`` may be called from any thread, everything else from a single one.
    """

    def __init__(self, producer: Any, kafka: Kafka, labels: Labels | None = None) -> None:
        """Send with ``producer``.

        :param labels: those of the acknowledgements: while their lease has lapsed, answers wait until it is renewed;
            once another client has one of them, acknowledgements are dropped
        """
        self.stored = self.lost = self.sending = self._bytes = 0
        self._producer = producer
        self._kafka = kafka
        self._labels = labels
        self._lock = threading.Lock()
        self._delayed: list[tuple[float, int, Outgoing]] = []
        self._order = count()
        # with the error of those that were not stored; filled by the producer's thread, emptied by the owner's
        self._finished: deque[tuple[Outgoing, BaseException | None]] = deque()

    @property
    def delayed(self) -> int:
        """The number of answers that wait for their time, or for a lease."""
        return len(self._delayed)

    @property
    def full(self) -> bool:
        """Whether as much is on its way that nothing more should be read."""
        return self.sending > MAX_SENDING or self._bytes > MAX_SENDING_BYTES

    @property
    def ready(self) -> bool:
        """Whether answers may be sent: the labels are held, or another client has them."""
        return self._labels is None or self._labels.ready

    def prepare(self, topic: str) -> None:
        """Look up the partitions of a further topic (its name without the prefix): the first answer does not wait then.

        :raises UnreachableError: the broker went away
        """
        try:
            self._producer.partitions_for(self._kafka.topic(topic))
        except KafkaError as error:
            raise clients.failure(self._kafka, error) from error

    def send(self, correlation_id: str, message: Envelope, work: Work, delay: float = 0.0, topic: str = "acks") -> None:
        """Send an answer after ``delay`` seconds; its record's work is done when the broker has stored it.

        :param topic: its name without the prefix
        :raises Exception: the message cannot be written as JSON
        """
        record = {
            "topic": self._kafka.topic(topic),
            "key": message.topic.thing_id.encode(),
            "value": encode(message),
            "headers": [(CORRELATION_ID, correlation_id.encode())],
        }
        answer = Outgoing(correlation_id, work, record, message.topic.criterion == "acks")
        with self._lock:
            work.remaining += 1
            if delay > 0 or not self.ready:
                self._delay(answer, time.monotonic() + delay)
            else:
                self._send(answer)

    def hold(self, work: Work) -> None:
        """Keep the work of a record open until ``release``."""
        with self._lock:
            work.remaining += 1

    def release(self, work: Work) -> None:
        """Undo a ``hold``."""
        with self._lock:
            work.remaining -= 1

    def wait(self, now: float) -> float | None:
        """Return after how many seconds ``turn`` is due; ``None`` if no answer waits for its time alone."""
        return max(0.0, self._delayed[0][0] - now) if self._delayed and self.ready else None

    def turn(self, now: float) -> None:
        """Send the answers that are due, finish the work of stored ones, reschedule those that failed temporarily."""
        self.settle(now)
        with self._lock:
            while self._delayed and self._delayed[0][0] <= now and self.ready:
                self._send(heapq.heappop(self._delayed)[2])

    def settle(self, now: float) -> None:
        """Finish the work of the answers that the broker has stored; send nothing."""
        with self._lock:
            while self._finished:
                answer, error = self._finished.popleft()
                self.sending -= 1
                self._bytes -= len(answer.record["value"])
                if may_pass(error):
                    self._delay(answer, now + RESEND_SECONDS)
                    continue
                answer.work.remaining -= 1
                if error is None:
                    self.stored += 1
                else:
                    self.lost += 1
                    log.error("Kafka rejected an answer to %s: %s", answer.correlation_id, error)

    def _delay(self, answer: Outgoing, until: float) -> None:
        heapq.heappush(self._delayed, (until, next(self._order), answer))

    def _send(self, answer: Outgoing) -> None:
        if answer.acknowledges and self._labels is not None and self._labels.taken:
            answer.work.remaining -= 1
            self.lost += 1
            log.warning("Another client has the labels: %s gets no acknowledgement.", answer.correlation_id)
            return
        self.sending += 1
        self._bytes += len(answer.record["value"])
        clients.send(
            self._producer,
            lambda _metadata: self._finished.append((answer, None)),
            lambda error: self._finished.append((answer, error)),
            **answer.record,
        )


class Worker(Closing):
    """Calls ``handle`` with each record and its work, in the order of each partition, all in one thread.

    With a group, an offset is committed when the work of all records up to it is done: after a crash or a restart some
    records are handled again, none is missed. If ``handle`` raises, the record is skipped and the error logged. If the
    thread dies, its records go to the other members of the group.

    :ivar originator_key: with which who sent a signal is signed
    :ivar life: ends with the worker, or with the error that its thread died of
    :ivar release: called when its last answers are stored, or its thread has died
    """

    def __init__(
        self,
        kafka: Kafka,
        topics: Sequence[str],
        handle: Callable[[Any, Work], None],
        group: str | None,
        start: Start,
        *,
        turn: Callable[[float], None] | None = None,
        labels: Labels | None = None,
        on_error: Callable[[Exception], None] | None = None,
    ) -> None:
        """Connect; no record is handled before ``run``.

        :param topics: the topics to read, by names without the prefix; answers go to ``acks``
        :param group: the consumer group whose members share the work, without the prefix; ``None``: alone, with all
            records from now on
        :param start: where a group without offsets begins
        :param turn: called after each poll, several times a second, with the monotonic time
        :param labels: those of the answers: while their lease has lapsed, records and answers wait until it is renewed
        :param on_error: of the application: called with the error that the thread died of
        :raises UnreachableError: no broker, or a topic is missing
        """
        self.skipped, self.originator_key = 0, kafka.originator_key
        self.life = Lifetime(self._leave, on_error)
        self.release: Callable[[], object] = lambda: None
        self._finishes = self._finished = False
        self._handle = traced(handle)
        self._turn = turn
        self._waits = False
        self._progress = OffsetProgress()
        self._member: GroupMember | None = None
        self._closing = threading.Event()
        names, answers = [kafka.topic(name) for name in topics], kafka.topic("acks")
        reset = start if group is not None else "earliest"
        group = None if group is None else kafka.group(group)
        consumer = clients.connect_consumer(kafka, group, auto_offset_reset=reset, session_timeout_ms=SESSION_MS)
        try:
            check_topics(consumer, kafka, reads=names, writes=(answers,), group=group)
            if group is None:
                clients.subscribe_at_end(consumer, kafka, *names)
            else:
                self._member = GroupMember(consumer, group, names, self._progress, self._progress.start)
            # with a linger the acknowledgements of one poll share a few produce requests
            self._producer = clients.connect_producer(kafka, answers, linger_ms=2)
        except BaseException:
            consumer.close(autocommit=False)
            raise
        self._reader = TopicReader(consumer, self._closing)
        self.outbox = Outbox(self._producer, kafka, labels)
        self._thread = self.life.thread(self._run, "ackstream-worker")

    def run(self) -> None:
        """Start the thread; when this returns, every record written from now on will be handled (by the group).

        :raises UnreachableError: the group assigns no partitions to this member
        """
        self._thread.start()
        if self._member is None:
            return
        try:
            self._member.wait_until_joined()
        except UnreachableError:
            self.close()
            raise

    @property
    def unreadable(self) -> int:
        """The number of records that could not be unpacked."""
        return self._reader.unreadable

    def close(self) -> None:
        """Stop after the records already read, store their answers (for at most 5 s) and commit; may be called twice.

        Delayed answers that are not due are dropped; a member of the group reads their records again. Called by a
        handler, it returns at once, and all this comes after the records that were read with the present one.
        """
        self._closing.set()
        if threading.current_thread() is self._thread:
            if self.life.error is None:
                self._finishes = True
                return
        elif self._thread.ident is not None:
            self._thread.join()
        self._finish()

    def _finish(self) -> None:
        if self._finished:
            return
        self._finished = True
        clients.close_producer(self._producer)
        self.outbox.settle(time.monotonic())
        if self._member is not None and self.life.error is None:
            self._member.leave()
        else:
            self._reader.consumer.close(autocommit=False, timeout_ms=CLOSE_SECONDS * 1000)
        self.release()
        self.life.close()

    def _leave(self, _error: Exception) -> None:
        """Leave the group without a commit: a dead member that stays connected would keep its partitions."""
        with suppress(KafkaError):
            self._reader.consumer.close(autocommit=False, timeout_ms=CLOSE_SECONDS * 1000)
        self.release()

    def _run(self) -> None:
        while not self._closing.is_set():
            records = self._read()
            if self._member is not None:
                self._member.follow(records)
            for number, record in enumerate(records):
                if not self.outbox.ready:
                    self._put_back(records[number:])
                    break
                self._take(record)
            self._step(time.monotonic())
            if self._waits and self.outbox.ready:
                self._waits = False
                log.warning("The labels are held again, or another client has them: records are handled.")
                for partition in self._reader.consumer.paused():
                    with suppress(KeyError):
                        self._reader.consumer.resume(partition)
        if self._finishes:
            self._finish()

    def _put_back(self, records: Sequence[Any]) -> None:
        """Read records again once the worker is ready; polling goes on, or the group would give them to others."""
        if not self._waits:
            self._waits = True
            log.warning("The labels are not held: records and answers wait until they are, or are taken.")
        first = {TopicPartition(record.topic, record.partition): record.offset for record in reversed(records)}
        for partition, offset in first.items():
            # unless another member has it by now
            with suppress(KeyError, ValueError):
                self._reader.consumer.seek(partition, offset)
                self._reader.consumer.pause(partition)

    def _step(self, now: float) -> None:
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
        wait = self.outbox.wait(time.monotonic())
        return self._reader.read(POLL_MS if wait is None else min(POLL_MS, round(wait * 1000)))

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
