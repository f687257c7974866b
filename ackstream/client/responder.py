"""Receiving signals and acknowledging them: what a device, a gateway to devices or a service does."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

from kafka import TopicPartition
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

from ackstream.client import connection
from ackstream.client.answers import Answer, failure, messages
from ackstream.client.errors import UnreachableError
from ackstream.client.outbox import Outbox, Outgoing
from ackstream.client.progress import Progress
from ackstream.client.reader import POLL_MS, Reader
from ackstream.client.signal import Signal, read_signal
from ackstream.client.statistics import ResponderStatistics
from ackstream.protocol.envelopes import encode
from ackstream.protocol.errors import DittoError
from ackstream.settings import Kafka

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from typing_extensions import Self

log = logging.getLogger(__name__)

JOIN_SECONDS = 60.0
COMMIT_SECONDS = 1.0
DELIVERY_SECONDS = 120.0
SESSION_MS = 10_000
"""After a crash the other members of the group take over so much later."""

MAX_SENDING = 20_000
"""With so many answers on their way, no further signals are read."""

_CLOSE_SECONDS = 5.0


class _Assignments(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python is not typed
    """Notes that the group has given this member its partitions; called in the library's thread."""

    def __init__(self) -> None:
        self.changed = threading.Event()

    def on_partitions_revoked(self, revoked: Any) -> None:
        """Do nothing: what was not committed is answered again by the next owner, which the requester never sees."""

    def on_partitions_assigned(self, assigned: Any) -> None:  # noqa: ARG002 - the consumer is asked, in our thread
        """Let the responder's thread look."""
        self.changed.set()


class Responder:
    """Calls a handler for each signal and sends what it answers; one thread for all of it.

    The handler is called for commands and messages in the order of each partition (signals of one thing keep theirs).
    It returns ``Ack``, ``Response``, a ``DittoError``, ``After`` one of these, several in a list, or ``None``; see
    ``answers``. It should be quick: what takes time is answered with ``After``, or by more responders in the group. An
    exception becomes a nack with status 500 (a ``DittoError``: its own) and the error's text.

    Signals that are no valid requests are skipped with a warning; the service answers them. With a group, offsets are
    committed when the answers are stored: after a crash or a restart some signals are handled again, none is left out.
    """

    def __init__(
        self,
        kafka: Kafka | None,
        handler: Callable[[Signal], Answer],
        *,
        labels: Iterable[str] | None = None,
        group: str | None = None,
        start: Literal["latest", "earliest"] = "latest",
        bootstrap: str = "localhost:9092",
        topic_prefix: str = "",
    ) -> None:
        """Connect and begin; when this returns, every signal sent from now on will be handled (by the group).

        :param kafka: the broker as in the settings; ``None`` for ``bootstrap`` and ``topic_prefix``
        :param labels: those this responder issues, with ``live-response`` where it responds to live commands and
            messages; a signal's other labels are not shown to the handler. ``None``: all
        :param group: the consumer group whose members share the work; ``None``: alone, with all signals from now on
        :param start: where a group begins that has no offsets
        :raises UnreachableError: no broker, or a topic is missing; with the remedy
        """
        self._kafka = kafka or Kafka(bootstrap=bootstrap, topic_prefix=topic_prefix)
        self._handler = handler
        self._labels = None if labels is None else frozenset(labels)
        self._group = group
        self._acks = self._kafka.topic("acks")
        self._counts: Counter[str] = Counter()
        self._progress: Progress[Any] = Progress()
        self._committed: dict[Any, int] = {}
        self._commit_at = 0.0
        self._assignments = _Assignments()
        self._joined = threading.Event()
        self._closing = threading.Event()
        self._connect(start)
        self._thread = threading.Thread(target=self._run, name="ackstream-responder", daemon=True)
        self._thread.start()
        if not self._joined.wait(JOIN_SECONDS):
            self.close()
            raise UnreachableError(
                f"The group {group} gave this member no partitions within {JOIN_SECONDS:g} s: look into the log of the "
                f"broker at {self._kafka.bootstrap}."
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def statistics(self) -> ResponderStatistics:
        """What has happened so far."""
        counts = self._counts
        return ResponderStatistics(
            received=counts["handled"] + counts["skipped"],
            handled=counts["handled"],
            skipped=counts["skipped"],
            failed=counts["failed"],
            answers=self._outbox.stored,
            delayed=self._outbox.delayed,
            sending=self._outbox.sending,
            lost=self._outbox.lost,
            unreadable=self._reader.unreadable,
        )

    def close(self) -> None:
        """Stop after the signals at hand, store their answers (for at most 5 s) and commit; may be called twice.

        Delayed answers whose time has not come are not sent; a member of a group gets their signals again.
        """
        if self._closing.is_set():
            return
        self._closing.set()
        self._thread.join()
        connection.close_producer(self._producer, _CLOSE_SECONDS)
        self._outbox.settle(time.monotonic())
        consumer = self._reader.consumer
        try:
            if self._group is not None:
                consumer.commit(_offsets(self._progress.positions()), timeout_ms=_CLOSE_SECONDS * 1000)
        except KafkaError as error:
            log.warning("The last offsets of %s were not committed: %s", self._group, error)
        consumer.close(autocommit=False, timeout_ms=_CLOSE_SECONDS * 1000)

    def _connect(self, start: str) -> None:
        signals = self._kafka.topic("signals")
        reset = start if self._group is not None else "earliest"
        consumer = connection.connect_consumer(
            self._kafka, self._group, auto_offset_reset=reset, session_timeout_ms=SESSION_MS
        )
        try:
            connection.check_topics(consumer, self._kafka, signals, self._acks)
            if self._group is None:
                connection.subscribe_at_end(consumer, self._kafka, signals)
                self._joined.set()
            else:
                consumer.subscribe([signals], listener=self._assignments)
            # acknowledgements of one poll go in few requests
            self._producer = connection.connect_producer(
                self._kafka, self._acks, delivery_timeout=DELIVERY_SECONDS, linger_ms=2
            )
        except BaseException:
            consumer.close(autocommit=False)
            raise
        self._reader = Reader(consumer, self._closing)
        self._outbox = Outbox(self._producer, self._acks)

    def _run(self) -> None:
        while not self._closing.is_set():
            records = self._read()
            if self._assignments.changed.is_set():
                self._take_partitions(records)
            now = time.monotonic()
            for record in records:
                try:
                    self._handle(record, now)
                except Exception:
                    # whatever stands in a record, the next one is handled
                    self._counts["skipped"] += 1
                    log.exception("A record of %s was skipped (offset %s).", record.topic, record.offset)
            self._outbox.turn(now)
            self._commit(now)

    def _read(self) -> list[Any]:
        if self._outbox.sending > MAX_SENDING:
            self._closing.wait(POLL_MS / 1000)
            return []
        wait = self._outbox.wait(time.monotonic())
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

    def _handle(self, record: Any, now: float) -> None:
        work = self._progress.begin(TopicPartition(record.topic, record.partition), record.offset)
        if work is None:
            return
        try:
            signal = read_signal(record, self._labels)
        except DittoError as error:
            self._counts["skipped"] += 1
            log.warning("A record of %s was skipped (offset %s): %s", record.topic, record.offset, error)
            return
        key = signal.thing_id.encode()
        for delay, message in self._ask(signal):
            self._outbox.put(Outgoing(signal.correlation_id, key, message, work), delay, now)

    def _ask(self, signal: Signal) -> list[tuple[float, bytes]]:
        self._counts["handled"] += 1
        try:
            return [(delay, encode(message)) for delay, message in messages(signal, self._handler(signal))]
        except Exception as error:
            self._counts["failed"] += 1
            log.exception("The handler failed for %s.", signal.correlation_id)
            return [(0.0, encode(message)) for message in failure(signal, error)]

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
