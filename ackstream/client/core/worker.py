"""The thread of a receiving client: it reads, calls the handler, answers and commits.

While a handler is slow, a second thread polls in its place: the group rebalances, and cancellations are noticed.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from functools import partial
from typing import Any, Literal

from kafka import TopicPartition
from kafka.errors import KafkaError

from ackstream.client.core.arguments import check_word
from ackstream.client.core.connection import Brokers, connection_of
from ackstream.client.core.group import HEARTBEAT_MS, SESSION_MS, Assignor, GroupMember
from ackstream.client.core.labels import Labels
from ackstream.client.core.lifetime import Ending, Lifetime
from ackstream.client.core.messages import Answers, OffsetProgress, Work
from ackstream.client.core.tracing import traced
from ackstream.errors import AckstreamError, UnreachableError
from ackstream.kafka.clients import Closing, Failures
from ackstream.kafka.reader import BACKOFF_SECONDS, MAX_RECORDS, POLL_MS, TopicReader
from ackstream.protocol.errors import DittoError

log = logging.getLogger(__name__)

AHEAD_SECONDS = 1.0
"""Approximate seconds for which records are handled between two polls."""
KEEP_SECONDS = 0.25
"""Seconds after which a handler is slow, and Kafka is polled beside it; and the duration of each of these polls."""
KEEP_MS = 50
AHEAD_BYTES = 32 * 1024 * 1024
"""Bytes of values after which no more is read ahead; the other limit is ``MAX_RECORDS`` records."""
SETTLE_SECONDS = 0.2
"""How long a rebalance waits for answers that are on their way."""

Start = Literal["latest", "earliest"]


class Worker(Closing):
    """Calls ``handle`` with each record and its work, in the order of each partition, all in one thread.

    With a group, an offset is committed when the work of all records up to it is done: after a crash or a restart some
    records are handled again, none is missed. Partitions that go to another member take their records along, except
    the one whose record is being handled. If ``handle`` raises, the record is skipped and the error logged. If the
    thread dies, its records go to the other members of the group. ``release`` is called after the last answer, or that
    death; ``begin`` before the first record, and with each change of the partitions; ``turn`` with the monotonic time
    after each poll, several times a second unless ``handle`` takes longer. ``notice``, if it is set before ``run``, is
    called with each record when it is read, also beside a slow ``handle``, and up to 2,000 records are read ahead.
    """

    def __init__(
        self,
        brokers: Brokers,
        topics: Sequence[str],
        handle: Callable[[Any, Work], None],
        group: str | None,
        start: Start,
        *,
        labels: Labels | None = None,
        life: Lifetime | None = None,
    ) -> None:
        """Connect; no record is handled before ``run``. Topics and ``group`` are names without the prefix.

        Without a group all records from now on are read. While the lease of ``labels`` has lapsed, they wait. Raises
        ``UnreachableError``.
        """
        check_word("start", start, Start)
        connection = connection_of(brokers)
        self.skipped, self.originator_key = 0, connection.kafka.originator_key
        # another member, or the next start, handles a record that is not done
        self.grouped = group is not None
        self.now, self._wait = connection.now, connection.wait
        self.life = life or Lifetime()
        self.life.end = self._leave
        self.begin: Callable[[], object] = lambda: None
        self.release: Callable[[], object] = lambda: None
        self.turn: Callable[[float], object] = lambda _now: None
        self.notice: Callable[[Any], object] | None = None
        self._ending = Ending(self.life, self._finish)
        self._handle = traced(handle)
        self._waits = False
        self._progress, self._failures = OffsetProgress(), Failures()
        self._member: GroupMember | None = None
        self._closing, self._over = self._ending.closing, threading.Event()
        # of the consumer, the progress and the records that are read ahead: not held while a record is handled
        self._lock = threading.RLock()
        self._ahead: deque[Any] = deque()
        self._busy: Work | None = None
        names = [connection.kafka.topic(name) for name in topics]
        answers = connection.kafka.topic("acks")
        if group is None:
            self.reader = connection.reader(*names, writes=(answers,), stop=self._closing)
        else:
            full, assignor = connection.kafka.group(group), Assignor()
            config: dict[str, Any] = {
                "auto_offset_reset": start,
                "session_timeout_ms": SESSION_MS,
                "heartbeat_interval_ms": HEARTBEAT_MS,
                "partition_assignment_strategy": (assignor,),
            }
            consumer = connection.consumer(*names, writes=(answers,), group=full, **config)
            self.reader = TopicReader(consumer, self._closing)
            progress = self._progress
            self._member = GroupMember(consumer, full, names, progress, progress.start, assignor, self._settle)
        try:
            self._producer = connection.producer(answers)
        except BaseException:
            self.reader.close()
            raise
        self.outbox = Answers(self._producer, connection, labels)
        guard = partial(self._ending.handle, over=self._closing.is_set)
        self._loop = connection.loop(self._step, "ackstream-worker", self._closing, guard, self._due)

    def run(self) -> None:
        """Start the thread; when this returns, every record written from now on will be handled (by the group)."""
        if self._member is None:
            self.begin()
        self._ending.start(self._loop)
        # in memory there is no consumer, and no thread
        if self._member is not None or (self.notice is not None and self.reader.consumer is not None):
            self.life.thread(self._keep, "ackstream-member").start()
        if self._member is None:
            return
        try:
            self._member.wait_until_joined()
        except UnreachableError:
            self.close()
            raise

    def close(self) -> None:
        """Stop after the current record, store the answers (for at most 5 s) and commit; may be called twice.

        The group reads records with delayed answers again. Called by a handler, this runs after that.
        """
        self._ending.close()

    def pause(self, seconds: float, over: Callable[[], bool] = lambda: False) -> bool:
        """Wait, in ``handle``, unless ``over``; return whether the worker continues. Closing it ends the wait."""
        while seconds > 0 and not over() and not self._closing.is_set():
            self._wait(min(seconds, KEEP_SECONDS), self._closing)
            seconds -= KEEP_SECONDS
        return not self._closing.is_set()

    def ask_time(self) -> None:
        """Read the broker's clock, if it answers."""
        try:
            self.outbox.ask_time()
        except (KafkaError, ValueError, UnreachableError, FutureTimeout) as error:
            log.warning("The broker's time is not known: commands are handled after their deadline, too: %s", error)

    def is_over(self, record: Any, timeout_ms: int | None, ahead: float = 0.0) -> bool:
        """Return whether the timeout of a command has passed by the broker's clock, which may be set back.

        With ``ahead``, whether it will have passed after these seconds.
        """
        broker = self.outbox.broker
        if timeout_ms is None or broker.milliseconds is None:
            return False
        deadline = record.timestamp + timeout_ms - ahead * 1000
        if deadline < broker.milliseconds and not broker.fresh:
            self.ask_time()
        return bool(broker.fresh and deadline < broker.milliseconds)

    def _finish(self) -> None:
        self._producer.close()
        with self._lock:
            self._over.set()
            self.outbox.settle(self.now())
            if self.life.error is not None:
                return
            (self.reader.close if self._member is None else self._member.leave)()
        self.release()
        self.life.close()

    def _leave(self, _error: Exception) -> None:
        """Leave the group without a commit: a dead member that stays connected would keep its partitions."""
        self._closing.set()
        with self._lock, suppress(KafkaError):
            self._over.set()
            (self.reader.close if self._member is None else self._member.abandon)()
        self.release()

    def _step(self) -> None:
        if self._busy is not None:
            # in memory, a handler lets time pass
            with self._lock:
                self._beside(0)
            return
        wait = self._due()
        with self._lock:
            self._poll(POLL_MS if wait is None else min(POLL_MS, round(wait * 1000)))
        until = self.now() + AHEAD_SECONDS
        while self.now() < until and (taken := self._take()) is not None:
            self._call(*taken)
        with self._lock:
            self._release()
            if self._over.is_set():
                # an error has closed the consumer
                return
            self._take_turn()
            away, waits = self.outbox.away, self.outbox.waits or not self.reader.reached
        self.life.look(self.now(), away=away, waits=waits)

    def _keep(self) -> None:
        """Poll while a handler is slow: a member that does not poll holds up its group, which then rules it out."""
        seen, member = None, self._member
        while not self._over.wait(0 if member is not None and member.rebalancing else KEEP_SECONDS):
            with self._lock:
                if self._busy is not None and self._busy is seen and not self._over.is_set():
                    self._beside(KEEP_MS)
                seen = self._busy

    def _beside(self, wait_ms: int) -> None:
        self._poll(wait_ms)
        self._take_turn(beside=True)

    def _poll(self, wait_ms: int) -> None:
        """Read records, unless enough wait; the group is polled all the same, or it would give them to others."""
        ready, member = self.outbox.ready, self._member
        if self._waits == ready and (self._ahead or ready):
            self._waits = not ready
            log.warning(_HELD if ready else _NOT_HELD)
        waits = self._enough or self.outbox.full
        if member is None:
            if not waits:
                self._ahead += self._read(0 if self._goes_on else wait_ms)
            elif not ready or self.outbox.full:
                self._closing.wait(wait_ms / 1000)
            return
        consumer = self.reader.consumer
        if waits:
            consumer.pause(*consumer.assignment())
        elif paused := consumer.paused():
            consumer.resume(*paused)
        records = self._read(0 if self._goes_on else wait_ms)
        if member.expelled:
            self._ahead.clear()
        self._ahead += records
        if member.follow(self._ahead):
            self.begin()
            owned = consumer.assignment()
            self._ahead = deque(each for each in self._ahead if _partition(each) in owned)

    @property
    def _enough(self) -> bool:
        """Whether enough records are read ahead, of which each is noticed."""
        size = sum(len(record.value or b"") for record in self._ahead)
        return len(self._ahead) >= MAX_RECORDS or size >= AHEAD_BYTES

    def _read(self, wait_ms: int) -> list[Any]:
        """Read records, and notice each."""
        records = self.reader.read(wait_ms, MAX_RECORDS)
        if self.notice is not None:
            for record in records:
                self.notice(record)
        return records

    def _settle(self) -> None:
        """Wait a moment for the answers that are on their way, whose records are done then."""
        until = time.monotonic() + SETTLE_SECONDS
        self.outbox.settle(self.now())
        while self.outbox.sending and time.monotonic() < until:
            time.sleep(0.005)
            self.outbox.settle(self.now())

    def _take_turn(self, *, beside: bool = False) -> None:
        """Let the client act, unless its handler works beside; send the answers that are due, and commit."""
        now = self.now()
        try:
            if not beside:
                self.turn(now)
            self.outbox.turn(now)
            if self._member is not None:
                self._member.commit(now)
        except (KafkaError, AckstreamError) as error:
            if self._failures.due(now):
                log.warning("A step of a worker failed and will be retried: %s", error)
            self._closing.wait(BACKOFF_SECONDS)

    def _due(self) -> float | None:
        return 0.0 if self._goes_on and self._busy is None else self.outbox.wait(self.now())

    @property
    def _goes_on(self) -> bool:
        """Whether there is a record to handle next."""
        stays = self._member is None or not self._member.rebalancing
        return bool(self._ahead) and stays and self.outbox.ready and not self._closing.is_set()

    def _take(self) -> tuple[Any, Work] | None:
        """Release the current record, and return the next one with its work, unless records have to wait."""
        with self._lock:
            self._release()
            member = self._member
            if self._closing.is_set() or not self.outbox.ready or (member is not None and member.rebalancing):
                return None
            while self._ahead:
                record = self._ahead.popleft()
                partition = _partition(record)
                if (work := self._progress.begin(partition, record.offset)) is None:
                    continue
                # not done before it is handled; a record that ends the thread never is
                work.remaining, self._busy = 1, work
                if member is not None:
                    member.handles(partition)
                return record, work
            return None

    def _release(self) -> None:
        """Note that the handler has ended; with the lock."""
        if self._busy is not None:
            self.outbox.release(self._busy)
            self._busy = None
            if self._member is not None:
                self._member.handles(None)

    def _call(self, record: Any, work: Work) -> None:
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


_HELD = "The labels are held again, or another client has them: records are handled."
_NOT_HELD = "The labels are not held: records and answers wait until they are, or are taken."


def _partition(record: Any) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)
