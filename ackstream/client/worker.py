"""The thread of a client that receives: reads topics, hands every record over, sends the answers, commits in order."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Literal

from kafka import TopicPartition
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

from ackstream.client.errors import UnreachableError
from ackstream.client.outbox import OffsetProgress, Outbox, Outgoing, Work
from ackstream.kafka import clients
from ackstream.kafka.clients import Closing
from ackstream.kafka.reader import POLL_MS, TopicReader
from ackstream.protocol.ditto.envelopes import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ackstream.protocol.ditto.envelopes import Envelope
    from ackstream.settings import Kafka

log = logging.getLogger(__name__)

JOIN_SECONDS = 60.0
COMMIT_SECONDS = 1.0
DELIVERY_SECONDS = 120.0
SESSION_MS = 10_000
"""After a crash the other members of the group take over so much later."""

MAX_SENDING = 20_000
"""With so many answers on their way, no further signals are read."""

_CLOSE_SECONDS = 5.0

Start = Literal["latest", "earliest"]


class Assignments(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python is not typed
    """Notes that the group has given this member its partitions; called in the library's thread."""

    def __init__(self) -> None:
        self.changed = threading.Event()

    def on_partitions_revoked(self, revoked: Any) -> None:
        """Do nothing: what was not committed is answered again by the next owner, which the requester never sees."""

    def on_partitions_assigned(self, assigned: Any) -> None:  # noqa: ARG002 - the consumer is asked, in our thread
        """Let the worker's thread look."""
        self.changed.set()


class Worker(Closing):
    """Calls ``handle`` with each record and its work, in the order of each partition; one thread for all of it.

    With a group, an offset is committed when the work of all records up to it is done: after a crash or a restart some
    are handled again, none is left out. An exception of ``handle`` leaves its record out with a message in the log.
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
    ) -> None:
        """Connect; nothing is handled before ``run``.

        :param topics: what is read, by names without the prefix; answers go to ``acks``
        :param group: the consumer group whose members share the work; ``None``: alone, with everything from now on
        :param start: where a group begins that has no offsets
        :param turn: called after each poll, several times a second, with a time of a clock that only goes forward
        :raises UnreachableError: no broker, or a topic is missing
        """
        self.skipped = 0
        self._kafka = kafka
        self._handle = handle
        self._group = group
        self._turn = turn
        self._progress: OffsetProgress[Any] = OffsetProgress()
        self._committed: dict[Any, int] = {}
        self._commit_at = 0.0
        self._assignments = Assignments()
        self._joined = threading.Event()
        self._closing = threading.Event()
        self._connect([kafka.topic(name) for name in topics], kafka.topic("acks"), start)
        self._thread = threading.Thread(target=self._run, name="ackstream-worker", daemon=True)

    def run(self) -> None:
        """Begin; when this returns, every record written from now on will be handled (by the group).

        :raises UnreachableError: the group gives this member no partitions
        """
        self._thread.start()
        if not self._joined.wait(JOIN_SECONDS):
            self.close()
            raise UnreachableError(
                f"The group {self._group} gave this member no partitions within {JOIN_SECONDS:g} s: look into the log "
                f"of the broker at {self._kafka.bootstrap}."
            )

    def send(
        self, correlation_id: str, message: Envelope, work: Work, delay: float = 0.0, topic: str | None = None
    ) -> None:
        """Send an answer, now or after so many seconds; its record's work is done when the broker has it.

        Safe to call from any thread. Nothing is sent any more after ``close``.

        :param topic: another one than ``acks``, by its name without the prefix
        :raises Exception: the message cannot be written as JSON
        """
        key = message.topic.thing_id.encode()
        place = None if topic is None else self._kafka.topic(topic)
        self.outbox.put(Outgoing(correlation_id, key, encode(message), work, place), delay, time.monotonic())

    @property
    def unreadable(self) -> int:
        """The number of records that could not be unpacked."""
        return self._reader.unreadable

    def close(self) -> None:
        """Stop after the records at hand, store their answers (for at most 5 s) and commit.

        Delayed answers whose time has not come are not sent; a member of a group gets their records again.
        """
        if self._closing.is_set():
            return
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()
        clients.close_producer(self._producer, _CLOSE_SECONDS)
        self.outbox.settle(time.monotonic())
        consumer = self._reader.consumer
        try:
            if self._group is not None:
                consumer.commit(_offsets(self._progress.positions()), timeout_ms=_CLOSE_SECONDS * 1000)
        except KafkaError as error:
            log.warning("The last offsets of %s were not committed: %s", self._group, error)
        consumer.close(autocommit=False, timeout_ms=_CLOSE_SECONDS * 1000)

    def _connect(self, topics: list[str], answers: str, start: Start) -> None:
        reset = start if self._group is not None else "earliest"
        consumer = clients.connect_consumer(
            self._kafka, self._group, auto_offset_reset=reset, session_timeout_ms=SESSION_MS
        )
        try:
            clients.check_topics(consumer, self._kafka, *topics, answers)
            if self._group is None:
                clients.subscribe_at_end(consumer, self._kafka, *topics)
                self._joined.set()
            else:
                consumer.subscribe(topics, listener=self._assignments)
            # acknowledgements of one poll go in few requests
            self._producer = clients.connect_producer(
                self._kafka, answers, delivery_timeout=DELIVERY_SECONDS, linger_ms=2
            )
        except BaseException:
            consumer.close(autocommit=False)
            raise
        self._reader = TopicReader(consumer, self._closing)
        self.outbox = Outbox(self._producer, answers)

    def _run(self) -> None:
        while not self._closing.is_set():
            records = self._read()
            if self._assignments.changed.is_set():
                self._take_partitions(records)
            for record in records:
                work = self._progress.begin(TopicPartition(record.topic, record.partition), record.offset)
                if work is None:
                    continue
                try:
                    self._handle(record, work)
                except Exception:
                    # whatever stands in a record, the next one is handled
                    self.skipped += 1
                    log.exception("A record of %s was skipped (offset %s).", record.topic, record.offset)
            now = time.monotonic()
            if self._turn is not None:
                self._turn(now)
            self.outbox.turn(now)
            self._commit(now)

    def _read(self) -> list[Any]:
        if self.outbox.sending > MAX_SENDING:
            self._closing.wait(POLL_MS / 1000)
            return []
        wait = self.outbox.wait(time.monotonic())
        return self._reader.read(POLL_MS if wait is None else min(POLL_MS, round(wait * 1000)))

    def _take_partitions(self, records: list[Any]) -> None:
        """Follow the partitions that the group has given this member, from where it is going to read them."""
        consumer = self._reader.consumer
        self._assignments.changed.clear()
        places = set(consumer.assignment())
        self._progress.keep(places)
        for record in records:
            self._progress.start(TopicPartition(record.topic, record.partition), record.offset)
        try:
            for place in places - self._progress.positions().keys():
                offset = consumer.position(place, timeout_ms=5_000)
                if offset is None:
                    raise KafkaError(f"the offset of {place} is not known")  # noqa: TRY301 - as if position() said so
                self._progress.start(place, offset)
        except (KafkaError, AssertionError) as error:
            log.warning("Asking for the group's offsets failed and is tried again: %s", error)
            self._assignments.changed.set()
        else:
            self._commit_at = 0.0
            self._joined.set()

    def _commit(self, now: float) -> None:
        if self._group is None or now < self._commit_at:
            return
        self._commit_at = now + COMMIT_SECONDS
        positions = self._progress.positions()
        if positions != self._committed:
            self._reader.consumer.commit_async(_offsets(positions), callback=self._note_commit)

    def _note_commit(self, offsets: dict[Any, OffsetAndMetadata], answer: Any) -> None:
        if isinstance(answer, Exception):
            log.warning("Committing the offsets of %s failed and is tried again: %s", self._group, answer)
        else:
            self._committed = {place: offset.offset for place, offset in offsets.items()}


def _offsets(positions: dict[Any, int]) -> dict[Any, OffsetAndMetadata]:
    return {place: OffsetAndMetadata(offset, "", -1) for place, offset in positions.items()}
