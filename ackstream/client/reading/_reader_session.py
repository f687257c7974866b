"""A reader's session with the settle job: the thread that reads the topics, and reports what is acknowledged."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

from ackstream.client.errors import SamplesGoneError, SettleTimeout, TakenOverError
from ackstream.client.reading import samples
from ackstream.client.reading._stored_samples import Recovery
from ackstream.kafka.clients import CLOSE_SECONDS
from ackstream.kafka.reader import ClientConnection, offsets_since
from ackstream.protocol import messages, readers
from ackstream.protocol.json import RecordError
from ackstream.protocol.patterns import matches_any
from ackstream.protocol.readers import (
    SKEW_MS,
    AppAckConf,
    ProtocolAck,
    ReaderAlive,
    ReaderRemoved,
    ReaderState,
    ReaderStop,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackstream.client.core.lifetime import Lifetime
    from ackstream.client.reading._reader_history import ReaderHistory
    from ackstream.client.reading.sample_reader import SampleReader
    from ackstream.protocol.readers import ConsumerRecord, KnownWriter, ReaderStart
    from ackstream.settings import Kafka, Lake

log = logging.getLogger(__name__)

POLL_MS = 20
"""The longest time that an acknowledgement waits to be sent."""

MAX_RECORDS = 500
START_SECONDS = 3.0
ALIVE_PER_LEASE = 3
RECOVER_SECONDS = 1.0
REPEAT_SECONDS = 5.0
DROP_SECONDS = 10.0
COMMIT_SECONDS = 5.0
LOOKBACK_MS = 10 * 60_000
"""How long messages may be in Kafka before they are stored, for a reader that has no earlier samples to receive."""


class SessionState:
    """The :class:`ReaderState` records that answer one start. A later answer of a shard replaces the earlier one."""

    def __init__(self) -> None:
        # by shard and part
        self._parts: dict[tuple[int, int], ReaderState] = {}

    def add(self, state: ReaderState) -> None:
        """Add a record."""
        for key, part in list(self._parts.items()):
            if part.shard == state.shard and (part.as_of, part.parts) != (state.as_of, state.parts):
                del self._parts[key]
        self._parts[state.shard, state.part] = state

    @property
    def whole(self) -> ReaderState | None:
        """The answer of all shards as one record; ``None`` until every part of every shard has arrived."""
        states = list(self._parts.values())
        parts = {state.shard: state.parts for state in states}
        if not states or len(parts) != states[0].shards or sum(parts.values()) != len(states):
            return None
        writers: dict[str, KnownWriter] = {}
        for known in (writer for state in states for writer in state.writers):
            before = writers.setdefault(known.writer, known)
            if before is not known:
                # the runs of a writer may arrive in several records
                writers[known.writer] = msgspec.structs.replace(
                    before,
                    acknowledged=tuple(sorted(before.acknowledged + known.acknowledged)),
                    undelivered=tuple(sorted(before.undelivered + known.undelivered)),
                )
        return msgspec.structs.replace(
            states[0],
            as_of=min(state.as_of for state in states),
            lease_ms=min(state.lease_ms for state in states),
            writers=tuple(writers.values()),
        )


class ReaderSession:
    """Reads ``messages``, ``stored`` and the answers of the settle job; writes ``app-acks``; all in one thread.

    The restart offsets are committed to a consumer group named after the reader. They are only a hint: the settle job
    knows what was acknowledged, and gaps are recovered from the table.
    """

    def __init__(
        self,
        kafka: Kafka,
        start: ReaderStart,
        history: ReaderHistory,
        reader: SampleReader,
        *,
        life: Lifetime,
        lake: Lake | None,
        after_poll: Callable[[float], None],
    ) -> None:
        """Connect; other parameters and errors as of :class:`SampleReader`.

        :param life: of the reader
        :param after_poll: called several times a second with the monotonic time in seconds
        """
        self._start, self._history, self._reader = start, history, reader
        self._life, self._after_poll = life, after_poll
        self._answer = SessionState()
        # while a record of `stored` is known to be missing
        self._again: SessionState | None = None
        self._unreadable = 0
        self._closed = False
        self._alive_seconds = 0.0
        self._started = threading.Event()
        self._paused = False
        self._sessions = samples.PublisherSessions()
        # reports that Kafka did not store, and that nothing else repeats; filled by the producer's thread
        self._unsent: deque[ProtocolAck] = deque()
        self._crowded_since: float | None = None
        self._persisting = False
        self._due = dict.fromkeys(("start", "alive", "gaps", "repeat", "recover", "commit"), 0.0)
        self._messages, self._stored = kafka.topic("messages"), kafka.topic("stored")
        self.link = ClientConnection(
            kafka,
            start.reader,
            sends="app-acks",
            addressed="publisher-acks",
            whole=("messages", "stored"),
            group=kafka.group(f"reader-{start.reader}"),
        )
        self.link.consumer.pause(*self.link.assignment.of(self._messages))
        self._recovery = Recovery(self.link.consumer, history, lake, reader)
        self.counts = self._recovery.counts

    def begin(self, timeout: float) -> None:
        """Start reading; when this returns, the settle job knows the reader.

        :raises SettleTimeout: no answer within ``timeout`` seconds
        """
        name = f"ackstream-reader-{self._start.reader}"
        self.link.start(
            name, self._receive, self._step, guard=self._life.guard, poll_ms=POLL_MS, max_records=MAX_RECORDS
        )
        if not self._started.wait(timeout):
            raise SettleTimeout(
                f"No answer to the start of {self._start.reader} within {timeout:g} s: start the job that settles"
                " acknowledgements (`ackstream submit settle`)."
            )

    def close(self, *, leave: bool = False) -> bool:
        """Report what is acknowledged (for at most 5 s) and disconnect; a second time has no effect.

        :param leave: tell the settle job that the reader will not come back
        :return: ``False`` if ``leave`` was asked for and Kafka did not store the record
        """
        if self._closed:
            return True
        self._closed = True
        self.link.end()
        left = None
        if self._started.is_set():
            for report in self._history.due(closing=True):
                self._send(report)
            left = self._send(ReaderStop(self._start.reader, self._start.epoch)) if leave else None
        self.link.flush()
        try:
            if self._started.is_set():
                self.link.consumer.commit(self._restart_offsets(), timeout_ms=CLOSE_SECONDS * 1000)
        except (KafkaError, AssertionError) as error:
            log.warning("The last offsets of reader %s were not committed: %s", self._start.reader, error)
        self.link.close()
        return not leave or (left is not None and left.succeeded())

    # -- records -------------------------------------------------------------------------------------------------------

    def _receive(self, record: Any) -> None:
        if record.topic == self._messages:
            sample = samples.of_record(record, self._reader, self._sessions)
            if sample is not None and self._reads(sample.publisher):
                self._history.add(sample)
        elif record.topic == self._stored:
            if self._started.is_set():
                self._receive_stored(record)
        else:
            answer = readers.read_answer(record.value)
            if isinstance(answer, AppAckConf):
                self._history.confirm(answer)
            elif isinstance(answer, ReaderState):
                self._receive_state(answer)
            elif isinstance(answer, ReaderRemoved) and self._started.is_set() and answer.epoch >= self._start.epoch:
                self._life.fail(TakenOverError(f"The reader {answer.reader} was removed (`ackstream readers forget`)."))

    def _receive_stored(self, record: Any) -> None:
        try:
            stored = messages.read_stored(record.value)
        except RecordError as error:
            log.warning("A record of %s was skipped (offset %s): %s", record.topic, record.offset, error)
            self._unreadable = -1
            return
        self._persisting = True
        if self._reads(stored.client):
            self._history.mark_stored(stored)

    def _receive_state(self, state: ReaderState) -> None:
        if not self._started.is_set():
            if state.epoch > self._start.epoch:
                self._exceed(state.epoch)
            elif state.epoch == self._start.epoch:
                self._answer.add(state)
        elif state.epoch > self._start.epoch:
            self._life.fail(TakenOverError(f"Another reader has started as {state.reader}; names must be unique."))
        elif state.epoch == self._start.epoch and self._again is not None:
            self._again.add(state)
            if (whole := self._again.whole) is not None:
                self._again = None
                for known in filter(lambda known: self._reads(known.writer), whole.writers):
                    self._history.catch_up(known)

    def _exceed(self, epoch: int) -> None:
        """Start anew with a later epoch than that of an earlier reader, whose clock may have been ahead."""
        # two readers that start at the same time may get the same answer: one must be later
        later = epoch + 1 + time.time_ns() % 1_000
        self._start = self._history.start = msgspec.structs.replace(self._start, epoch=later)
        self._answer, self._due["start"] = SessionState(), 0.0

    def _reads(self, writer: str) -> bool:
        return self._start.writers == ("*",) or matches_any(self._start.writers, writer)

    # -- after each poll -----------------------------------------------------------------------------------------------

    def _step(self, now: float) -> None:
        if self._closed:
            # by the application, in this thread
            return
        self._after_poll(now)
        if not self._started.is_set():
            if (state := self._answer.whole) is not None:
                self._start_reading(state)
            elif self._is_due("start", now, START_SECONDS):
                self._send(self._start)
            return
        for report in self._history.due():
            self._send(report)
        if self._is_due("alive", now, self._alive_seconds):
            self._send(ReaderAlive(self._start.reader, self._start.epoch))
        self._limit(now)
        if self._is_due("gaps", now, START_SECONDS):
            self._close_gaps()
        self._repeat(now)
        if self._is_due("recover", now, RECOVER_SECONDS):
            self._recover(now)
        if self._is_due("commit", now, COMMIT_SECONDS):
            self.link.consumer.commit_async(self._restart_offsets())

    def _recover(self, now: float) -> None:
        try:
            more = self._recovery.recover(self.link.assignment.of(self._messages), paused=self._paused)
        except SamplesGoneError as error:
            self._life.fail(error)
            return
        if more:
            self._due["recover"] = now

    def _repeat(self, now: float) -> None:
        if self._unsent and self._is_due("repeat", now, REPEAT_SECONDS):
            while self._unsent:
                self._history.repeat(self._unsent.popleft())

    def _is_due(self, what: str, now: float, period: float) -> bool:
        due = now >= self._due[what]
        if due:
            self._due[what] = now + period
        return due

    def _send(self, record: ConsumerRecord) -> Any:
        """Send a record; return the producer's future, ``None`` if Kafka rejected it at once."""
        # others are repeated when they are next due, or at the end of the period of an AppAck
        unsent = partial(self._unsent.append, record) if isinstance(record, ProtocolAck) else None
        try:
            sent = self.link.send(readers.write(record))
        except (KafkaError, ValueError) as error:
            log.warning("Kafka rejected a report of reader %s: %s", self._start.reader, error)
            if unsent is not None:
                unsent()
            return None
        if unsent is not None:
            sent.add_errback(lambda _error: unsent())
        return sent

    def _close_gaps(self) -> None:
        """Ask for the state again if a record of ``stored`` was missed: unreadable, or stamped by a slow clock."""
        if self._again is None and (self._history.gaps or self._unreadable != self.link.unreadable):
            self._again, self._unreadable = SessionState(), self.link.unreadable
        if self._again is not None:
            self._send(self._start)

    def _start_reading(self, state: ReaderState) -> None:
        """Seek to the first message that may be unacknowledged, and to what was stored since the state was taken."""
        consumer = self.link.consumer
        partitions = self.link.assignment.of(self._messages)
        known = [writer for writer in state.writers if self._reads(writer.writer)]
        committed = {partition: consumer.committed(partition) for partition in partitions}
        undelivered = any(writer.undelivered for writer in known)
        if undelivered:
            first = consumer.beginning_offsets(partitions)
        else:
            first = offsets_since(consumer, partitions, max(0, state.as_of - LOOKBACK_MS))
        starts = {part: first[part] if committed[part] is None else committed[part] for part in partitions}
        if not undelivered and not self._start.durable:
            # the name may have been used long ago
            starts = {part: max(starts[part], first[part]) for part in partitions}
        self._recovery.begin(starts)
        starts |= offsets_since(consumer, self.link.assignment.of(self._stored), max(0, state.as_of - SKEW_MS))
        for partition, offset in starts.items():
            consumer.seek(partition, offset)
        for writer in known:
            self._history.begin(writer)
        consumer.resume(*partitions)
        self._alive_seconds = state.lease_ms / 1000 / ALIVE_PER_LEASE
        self._started.set()

    def _limit(self, now: float) -> None:
        """Pause reading while the application, or the buffer of what is not stored yet, is full."""
        crowded = self._history.crowded
        full = crowded or self._history.full
        if full != self._paused:
            consumer = self.link.consumer
            (consumer.pause if full else consumer.resume)(*self.link.assignment.of(self._messages))
            self._paused = full
        if not crowded:
            self._crowded_since = None
        elif self._crowded_since is None:
            self._crowded_since, self._persisting = now, False
        elif self._persisting and now - self._crowded_since > DROP_SECONDS:
            # a writer with a gap in its numbers, which may never be filled, must not hold up the others
            log.warning("Dropped %s messages until they are stored; then they are read again.", self._history.drop())

    def _restart_offsets(self) -> dict[Any, OffsetAndMetadata]:
        found = {}
        for partition in self.link.assignment.of(self._messages):
            position = self.link.consumer.position(partition, timeout_ms=5_000)
            if position is not None:
                offset = self._history.restart_offset(partition.partition, position)
                found[partition] = OffsetAndMetadata(offset, "", -1)
        return found
