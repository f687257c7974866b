"""The thread of a reader of publishers' messages: brings what the topics have, says what the application has done."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

from ackstream.client.errors import TakenOverError
from ackstream.client.readers import samples
from ackstream.client.readers.arrivals import Beginning
from ackstream.client.readers.recovery import Recovery
from ackstream.kafka import clients
from ackstream.kafka.partitions import PartitionAssignment, offsets_since
from ackstream.kafka.reader import BACKOFF_SECONDS, TopicReader
from ackstream.protocol import messages, readers
from ackstream.protocol.patterns import matches_any
from ackstream.protocol.readers import AppAckConf, ReaderAlive, ReaderState, ReaderStop

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackstream.client.readers.prefetch_buffer import PrefetchBuffer
    from ackstream.client.readers.sample_reader import SampleReader
    from ackstream.protocol.readers import ConsumerRecord, ReaderStart
    from ackstream.settings import Kafka, Lake

log = logging.getLogger(__name__)

POLL_MS = 20
"""So long an acknowledgement may wait to be sent."""

MAX_RECORDS = 500
START_SECONDS = 3.0
ALIVE_PART = 3
"""So often within its lease a reader is heard of."""

LOOK_SECONDS = 1.0
RELIEVE_SECONDS = 10.0
COMMIT_SECONDS = 5.0
DELIVERY_SECONDS = 120.0
LOOKBACK_MS = 10 * 60_000
"""How long messages may be in Kafka before they are stored, for a reader that is owed none of before."""

_CLOSE_SECONDS = 5.0


class SampleFeed:
    """Reads ``messages``, ``stored`` and what settle answers; writes ``app-acks``; all of it in one thread.

    From where a restart has to read is kept as the offsets of a consumer group of the reader's name: a hint, since what
    was acknowledged settle knows, and what is missed then is recovered.
    """

    def __init__(
        self,
        kafka: Kafka,
        reader: SampleReader,
        inbox: PrefetchBuffer,
        start: ReaderStart,
        *,
        max_samples: int,
        lake: Lake | None,
        turn: Callable[[float], None],
    ) -> None:
        """Connect.

        :param max_samples: so many may wait, or be with the application, before no more are read
        :param turn: called several times a second, with a time of a clock that only goes forward
        :raises UnreachableError: no broker, or a topic is missing
        """
        self.started = threading.Event()
        self.producer: Any = None
        self._reader = reader
        self._inbox = inbox
        self._start = start
        self._name = start.reader.encode()
        self._max_samples = max_samples
        self._turn_also = turn
        self._beginning = Beginning()
        self._closing = threading.Event()
        self._paused = False
        self._full_since: float | None = None
        self._due = dict.fromkeys(("start", "alive", "look", "commit"), 0.0)
        self._connect(kafka)
        self._recovery = Recovery(self._kafka_reader.consumer, inbox, reader, lake, max_samples)
        self._thread = threading.Thread(target=self._run, name="ackstream-reader", daemon=True)

    def run(self) -> None:
        """Begin; ``started`` is set when settle has answered."""
        self._thread.start()

    @property
    def unreadable(self) -> int:
        """The number of records that could not be unpacked."""
        return self._kafka_reader.unreadable

    def close(self, *, leave: bool) -> None:
        """Send what is acknowledged (for at most 5 s) and disconnect.

        :param leave: say that the reader will not come back
        """
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()
        consumer = self._kafka_reader.consumer
        if self.started.is_set():
            for report in self._inbox.flush():
                self._send(report)
            if leave:
                self._send(ReaderStop(self._start.reader, self._start.epoch))
        clients.close_producer(self.producer, _CLOSE_SECONDS)
        try:
            if self.started.is_set():
                consumer.commit(self._positions(), timeout_ms=_CLOSE_SECONDS * 1000)
        except (KafkaError, AssertionError) as error:
            log.warning("The last offsets of %s were not committed: %s", self._start.reader, error)
        consumer.close(autocommit=False, timeout_ms=_CLOSE_SECONDS * 1000)

    def _connect(self, kafka: Kafka) -> None:
        topics = [kafka.topic(name) for name in ("messages", "stored", "publisher-acks", "app-acks")]
        self._messages, self._stored, answers, self._reports = topics
        group = kafka.topic(f"reader-{self._start.reader}")
        consumer = clients.connect_consumer(kafka, group, auto_offset_reset="earliest")
        try:
            clients.check_topics(consumer, kafka, *topics)
            self._places = PartitionAssignment(
                consumer, self._name, whole=(self._messages, self._stored), addressed=(answers,)
            )
            consumer.pause(*self._places.of(self._messages))
            self.producer = clients.connect_producer(
                kafka, self._reports, delivery_timeout=DELIVERY_SECONDS, linger_ms=2
            )
        except BaseException as error:
            consumer.close(autocommit=False)
            if isinstance(error, KafkaError):
                raise clients.unreachable(kafka) from error
            raise
        self._kafka_reader = TopicReader(consumer, self._closing)

    def _run(self) -> None:
        while not self._closing.is_set():
            for record in self._kafka_reader.read(POLL_MS, MAX_RECORDS):
                try:
                    self._take(record)
                except Exception:
                    # whatever stands in a record, the next one is read
                    log.exception("A record of %s was skipped (offset %s).", record.topic, record.offset)
            try:
                self._turn(time.monotonic())
            except Exception:
                log.exception("Something failed for reader %s and is tried again.", self._start.reader)
                self._closing.wait(BACKOFF_SECONDS)

    # -- records -------------------------------------------------------------------------------------------------------

    def _take(self, record: Any) -> None:
        if record.topic == self._messages:
            sample = samples.of_record(record, self._reader)
            if sample is not None and self._reads(sample.writer):
                self._inbox.arrive(sample)
        elif record.topic == self._stored:
            if self.started.is_set():
                self._take_stored(record)
        elif record.key == self._name:
            answer = readers.read_answer(record.value)
            if isinstance(answer, AppAckConf):
                self._inbox.confirm(answer)
            elif isinstance(answer, ReaderState):
                self._take_state(answer)

    def _take_stored(self, record: Any) -> None:
        try:
            decided = messages.read_stored(record.value)
        except messages.StoredError as error:
            log.warning("A record of %s was skipped (offset %s): %s", record.topic, record.offset, error)
            return
        if self._reads(decided.client):
            self._inbox.decide(decided)

    def _take_state(self, state: ReaderState) -> None:
        if state.epoch > self._start.epoch:
            self._inbox.end(TakenOverError(f"Another reader has begun as {state.reader}: names are for one."))
        elif state.epoch == self._start.epoch and not self.started.is_set():
            self._beginning.add(state)

    def _reads(self, writer: str) -> bool:
        return self._start.writers == ("*",) or matches_any(self._start.writers, writer)

    # -- what is due ---------------------------------------------------------------------------------------------------

    def _turn(self, now: float) -> None:
        self._places.update()
        self._turn_also(now)
        if not self.started.is_set():
            if self._beginning.complete:
                self._begin()
            elif self._is_due("start", now, START_SECONDS):
                self._send(self._start)
            return
        for report in self._inbox.due():
            self._send(report)
        if self._is_due("alive", now, self._beginning.lease_ms / 1000 / ALIVE_PART):
            self._send(ReaderAlive(self._start.reader, self._start.epoch))
        self._control(now)
        if self._is_due("look", now, LOOK_SECONDS) and self._recovery.look(
            self._places.of(self._messages), stuck=self._paused
        ):
            self._due["look"] = now
        if self._is_due("commit", now, COMMIT_SECONDS):
            self._kafka_reader.consumer.commit_async(self._positions())

    def _is_due(self, what: str, now: float, period: float) -> bool:
        due = now >= self._due[what]
        if due:
            self._due[what] = now + period
        return due

    def _send(self, record: ConsumerRecord) -> None:
        try:
            self.producer.send(self._reports, readers.write(record), self._name)
        except (KafkaError, ValueError) as error:
            # it is said again: at the next turn, or when the period of an AppAck is over
            log.warning("Kafka did not take a report of %s: %s", self._start.reader, error)

    def _begin(self) -> None:
        """Go to where everything is that is not acknowledged, and to what is stored since settle answered."""
        consumer, beginning = self._kafka_reader.consumer, self._beginning
        places = self._places.of(self._messages)
        known = [writer for writer in beginning.writers if self._reads(writer.writer)]
        committed = {place: consumer.committed(place) for place in places}
        if any(writer.undelivered for writer in known):
            earliest = consumer.beginning_offsets(places)
            starts = {place: committed[place] or earliest[place] for place in places}
        else:
            recent = offsets_since(consumer, places, max(0, beginning.as_of - LOOKBACK_MS))
            starts = {place: max(committed[place] or 0, recent[place]) for place in places}
        starts |= offsets_since(consumer, self._places.of(self._stored), beginning.as_of)
        for place, offset in starts.items():
            consumer.seek(place, offset)
        for writer in known:
            self._inbox.begin(writer)
        consumer.resume(*places)
        self.started.set()

    def _control(self, now: float) -> None:
        """Read no more messages while too many are here."""
        held = self._inbox.held
        full = held >= self._max_samples or self._inbox.unacknowledged >= self._max_samples
        if full != self._paused:
            consumer = self._kafka_reader.consumer
            (consumer.pause if full else consumer.resume)(*self._places.of(self._messages))
            self._paused = full
        if held < self._max_samples:
            self._full_since = None
        elif self._full_since is None:
            self._full_since = now
        elif now - self._full_since > RELIEVE_SECONDS:
            # a writer with a hole in its numbers, which may never be filled, must not hold up the others
            log.warning("%s messages are let go of until they are stored.", self._inbox.relieve())

    def _positions(self) -> dict[Any, OffsetAndMetadata]:
        consumer = self._kafka_reader.consumer
        places = {place.partition: place for place in self._places.of(self._messages)}
        read = {number: consumer.position(place, timeout_ms=5_000) for number, place in places.items()}
        found = self._inbox.positions({number: offset for number, offset in read.items() if offset is not None})
        return {places[number]: OffsetAndMetadata(offset, "", -1) for number, offset in found.items()}
