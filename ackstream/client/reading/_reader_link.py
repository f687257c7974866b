"""A reader's connection with the settle job: it reads the topics, and reports which samples are acknowledged.

Each name of a durable reader is a subscription (Connext 31.13, R21), which begins with the first start of a reader. It
ends by ``SampleReader.unregister``, after ``settle.durable_lease``, or here.
"""

import logging
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from kafka.errors import KafkaError

from ackstream.client.core.arguments import check_length
from ackstream.client.core.connection import Brokers, Connection, Producer, ReliableSender, Sending, connection_of
from ackstream.client.core.lifetime import AGAIN_SECONDS, ALIVE_PER_LEASE, Lifetime, Parts, Session, answers
from ackstream.client.errors import SamplesGoneError, TakenOverError
from ackstream.client.reading import samples
from ackstream.client.reading._reader_history import ReaderHistory
from ackstream.client.reading._reader_offsets import ReaderPositions, merged
from ackstream.client.reading.samples import MAX_NAME_CHARACTERS, Acknowledger, settle_silent
from ackstream.errors import StartError
from ackstream.kafka.clients import CLOSE_SECONDS, failure
from ackstream.protocol import messages, readers
from ackstream.protocol.json import RecordError
from ackstream.protocol.readers import ConsumerRecord, KnownWriter
from ackstream.protocol.rql.patterns import matches_any
from ackstream.settings import Lake

log = logging.getLogger(__name__)

POLL_MS = 20
"""Maximum time that an acknowledgement waits to be sent."""

MAX_RECORDS = 500
RECOVER_SECONDS = 1.0
REPEAT_SECONDS = 5.0
COMMIT_SECONDS = 5.0

ASKING = "ackstream-readers"
"""The name that lists of readers are addressed to. Two clients with requests at once get each other's equal answers."""


class ReaderLink:
    """Reads ``messages``, ``stored`` and the answers of the settle job; writes ``app-acks``; all in one thread."""

    def __init__(
        self,
        connection: Connection,
        history: ReaderHistory,
        reader: Acknowledger,
        *,
        life: Lifetime,
        lake: Lake | None,
        after_poll: Callable[[float], None],
    ) -> None:
        """Connect; ``after_poll`` is called several times a second with the monotonic time in seconds."""
        self._start, self._history, self._reader = history.start, history, reader
        self._life, self._after_poll = life, after_poll
        self._session: Session[int] = Session()
        self._started = threading.Event()
        self._closed = False
        self._answer: Parts[readers.ReaderState] = Parts()
        # while a record of `stored` is known to be missing
        self._again: Parts[readers.ReaderState] | None = None
        self._unreadable = 0
        self._failure: KafkaError | None = None
        self._due = dict.fromkeys(("gaps", "recover", "commit"), 0.0)
        kafka = self._kafka = connection.kafka
        self._messages, self._stored, self._acks = map(kafka.topic, ("messages", "stored", "app-acks"))
        self.link = connection.link(
            self._start.reader,
            sends="app-acks",
            addressed="publisher-acks",
            whole=("messages", "stored"),
            group=kafka.group(f"reader-{self._start.reader}"),
        )
        self.producer = Producer(kafka, self.link.producer)
        self._sender = ReliableSender(self.producer)
        self.link.consumer.pause(*self._partitions)
        self._positions = ReaderPositions(self.link.consumer, history, lake, reader)

    def begin(self, timeout: float) -> None:
        """Start reading; then settle knows the reader. Raises ``SettleTimeout``, or ``UnreachableError``."""
        name, limits = f"ackstream-reader-{self._start.reader}", {"timeout_ms": POLL_MS, "max_records": MAX_RECORDS}
        self.link.start(name, self._receive, self._step, guard=self._life.guard, **limits)
        if not self._started.wait(timeout):
            if self._life.error is not None:
                raise self._life.error
            if self._failure is not None:
                raise failure(self._kafka, self._failure) from self._failure
            raise settle_silent(f"The start of {self._start.reader} was not answered", timeout)

    def close(self, *, leave: bool = False) -> bool:
        """Report acknowledged samples (for at most 5 s), disconnect; ``False``: Kafka has not stored the ``leave``."""
        if self._closed:
            return True
        self._closed = True
        self.link.end()
        started, left = self._started.is_set(), threading.Event()
        if started:
            for report in self._history.due(closing=True):
                self._send(report)
            if leave:
                self._send(readers.ReaderStop(self._start.reader, self._start.epoch), lambda _: left.set())
        self.link.flush()
        self._sender.settle(time.monotonic())
        try:
            if started:
                offsets = self._positions.restart_offsets(self._partitions)
                self.link.consumer.commit(offsets, timeout_ms=CLOSE_SECONDS * 1000)
        except (KafkaError, AssertionError) as error:
            log.warning("The last offsets of reader %s were not committed: %s", self._start.reader, error)
        self.link.close()
        return not leave or left.is_set()

    @property
    def _partitions(self) -> list[Any]:
        return self.link.assignment.of(self._messages)

    def _receive(self, record: Any) -> None:
        if record.topic == self._messages:
            sample = samples.of_record(record, self._reader)
            if sample is not None and self._reads(sample.publisher):
                self._history.add(sample)
        elif record.topic == self._stored:
            if self._started.is_set():
                self._receive_stored(record)
        else:
            answer = readers.read_answer(record.value)
            if isinstance(answer, readers.AppAckConf):
                self._history.confirm(answer)
            elif isinstance(answer, readers.ReaderState):
                self._receive_state(answer)
            elif (
                isinstance(answer, readers.ReaderRemoved)
                and self._started.is_set()
                and answer.epoch >= self._start.epoch
            ):
                self._life.fail(TakenOverError(f"The reader {answer.reader} was removed (`ackstream readers forget`)."))

    def _receive_stored(self, record: Any) -> None:
        try:
            stored = messages.read_stored(record.value)
        except RecordError as error:
            log.warning("A record of %s was skipped (offset %s): %s", record.topic, record.offset, error)
            self._unreadable = -1
            return
        self._positions.persisting = True
        if self._reads(stored.client):
            self._history.mark_stored(stored)

    def _receive_state(self, state: readers.ReaderState) -> None:
        if self._session.is_over(state.epoch):
            self._life.fail(TakenOverError(f"Another reader has started as {state.reader}; names must be unique."))
        elif state.epoch > self._start.epoch:
            self._exceed(state.epoch)
        elif state.epoch < self._start.epoch:
            return
        elif not self._started.is_set():
            self._answer.add(state, state.as_of)
        elif self._again is not None and (whole := self._again.add(state, state.as_of).whole) is not None:
            self._again = None
            for known in self._known(merged(whole)):
                self._history.catch_up(known)

    def _exceed(self, epoch: int) -> None:
        """Start again with a later epoch than that of an earlier reader, whose clock may have been ahead."""
        # two readers that start at the same time may receive the same answer: one must be later
        later = epoch + 1 + time.time_ns() % 1_000
        if later >= 2**63:
            self._life.fail(TakenOverError("No epoch is greater: remove the reader (`ackstream readers forget`)."))
            return
        self._start = self._history.start = msgspec.structs.replace(self._start, epoch=later)
        self._answer = Parts()
        self._session.lapse()

    def _reads(self, writer: str) -> bool:
        return self._start.writers == ("*",) or matches_any(self._start.writers, writer)

    def _known(self, state: readers.ReaderState) -> list[KnownWriter]:
        return [writer for writer in state.writers if self._reads(writer.writer)]

    def _step(self, now: float) -> None:
        if self._closed:
            # by the application, in this thread
            return
        self._after_poll(now)
        self._sender.turn(now)
        if not self._started.is_set():
            if (whole := self._answer.whole) is not None:
                self._begin(merged(whole))
            elif self._session.due(now):
                self._send(self._start)
        else:
            for report in self._history.due():
                self._send(report)
            if self._session.due(now):
                self._send(readers.ReaderAlive(self._start.reader, self._start.epoch))
            self._keep_reading(now)
            self._life.look(now, away=self._sender.away or self._history.unanswered)

    def _keep_reading(self, now: float) -> None:
        self._positions.limit(self._partitions, now)
        if self._is_due("gaps", now, AGAIN_SECONDS):
            # request the state again if a record of stored was missed: unreadable, or stamped by a slow clock
            if self._again is None and (self._history.gaps or self._unreadable != self.link.unreadable):
                self._again, self._unreadable = Parts(), self.link.unreadable
            if self._again is not None:
                self._send(self._start)
        if self._is_due("recover", now, RECOVER_SECONDS):
            try:
                if self._positions.recover(self._partitions):
                    self._due["recover"] = now
            except (SamplesGoneError, StartError) as error:
                self._life.fail(error)
        if self._is_due("commit", now, COMMIT_SECONDS):
            self.link.consumer.commit_async(self._positions.restart_offsets(self._partitions))

    def _is_due(self, step: str, now: float, period: float) -> bool:
        due = now >= self._due[step]
        if due:
            self._due[step] = now + period
        return due

    def _begin(self, state: readers.ReaderState) -> None:
        stored, known = self.link.assignment.of(self._stored), self._known(state)
        try:
            self._positions.start(self._partitions, stored, state.as_of, known)
        except KafkaError as error:
            self._failure = error
            raise
        self._session.begin(self._start.epoch, state.lease_ms / 1000 / ALIVE_PER_LEASE)
        self._started.set()

    def _send(self, record: ConsumerRecord, stored: Callable[[Any], None] = lambda _: None) -> None:
        def finished(error: BaseException | None) -> None:
            if error is not None:
                log.warning("Kafka rejected a report of reader %s: %s", self._start.reader, error)
                # others are repeated when they are next due, or at the end of the period of an AppAck
                if isinstance(record, readers.ProtocolAck):
                    self._sender.submit(sending, time.monotonic() + REPEAT_SECONDS)

        named = {"topic": self._acks, "value": readers.write(record), "key": self._start.reader.encode()}
        sending = Sending(named, finished, stored, give_up_at=0)
        self._sender.submit(sending)


def delete_durable_subscription(bootstrap_servers: Brokers, *, name: str, timeout: float = 60.0) -> None:
    """Remove a reader for good; a running one ends. Its name starts afresh; its acknowledgements for a role count.

    :param bootstrap_servers: ``host:port,…`` or the Kafka of the settings
    :param timeout: seconds to wait for the settle job
    :raises BadParameterError: no reader can have the name
    :raises SettleTimeout: the settle job does not answer
    :raises UnreachableError: no broker, or a topic is missing
    """
    connection = connection_of(bootstrap_servers)
    check_length("name", name, MAX_NAME_CHARACTERS)
    removed: Parts[readers.ReaderRemoved] = Parts()
    stop = readers.write(readers.ReaderStop(name))
    for value in answers(connection, name, "publisher-acks", lambda: stop, timeout):
        answer = readers.read_answer(value)
        if isinstance(answer, readers.ReaderRemoved) and removed.add(answer).whole is not None:
            return
    raise settle_silent(f"The removal of reader {name} was not confirmed", timeout)


def known_readers(bootstrap_servers: Brokers, *, timeout: float = 60.0) -> list[readers.KnownReader]:
    """Return the readers that are known, temporary ones too, the one that was silent for longest first.

    Parameters and errors are those of :func:`delete_durable_subscription`, which takes a name besides.
    """
    connection = connection_of(bootstrap_servers)
    # by number of the question: it is repeated, and a reader may be in another part of the answer by then
    found: defaultdict[int, Parts[readers.KnownReaders]] = defaultdict(Parts)

    def question() -> bytes:
        return readers.write(readers.ReadersRequest(ASKING, 1 + secrets.randbits(62)))

    for value in answers(connection, ASKING, "publisher-acks", question, timeout):
        answer = readers.read_answer(value)
        if isinstance(answer, readers.KnownReaders) and (whole := found[answer.number].add(answer).whole) is not None:
            return _merged_readers(reader for part in whole for reader in part.readers)
    raise settle_silent("The readers were not reported", timeout)


def _merged_readers(known: Iterator[readers.KnownReader]) -> list[readers.KnownReader]:
    found: dict[str, readers.KnownReader] = {}
    for reader in known:
        before = found.setdefault(reader.reader, reader)
        if before is not reader:
            found[reader.reader] = msgspec.structs.replace(
                before,
                present=before.present or reader.present,
                seen=max(before.seen, reader.seen),
                unacknowledged=before.unacknowledged + reader.unacknowledged,
            )
    return sorted(found.values(), key=lambda reader: (reader.seen, reader.reader))
