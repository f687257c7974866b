"""Declaring labels: claims in a log, renewed until they are released; the labels of one client."""

import logging
import math
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from concurrent import futures
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
from kafka import TopicPartition
from kafka.errors import KafkaError

from ackstream.client.core.connection import Brokers, Producer, connection_of
from ackstream.client.core.lifetime import call_handler
from ackstream.errors import UnreachableError
from ackstream.kafka.clients import Closing, failure
from ackstream.kafka.reader import TopicReader
from ackstream.protocol.ditto import labels as rules
from ackstream.protocol.errors import CONFLICT, DittoError

log = logging.getLogger(__name__)

TOPIC = "declarations"
DELIVERY_SECONDS = 10.0
RETRY_SECONDS = 1.0
"""Time until a claim that the broker did not store is sent again."""

DECLARE_SECONDS = 15.0
REDECLARE_SECONDS = 5.0


@dataclass(eq=False)
class Declaration:
    """Declared labels. Times are seconds of the monotonic clock.

    ``until`` is the latest end of the lease of the last record that was read: the lease began after that was sent.
    ``sent`` has the times of records that were not read yet, by the end of the lease that each renews. ``lost`` is
    called when granted labels are lost. ``future`` ends when the first claim has been read back, or fails with a
    ``LabelsTakenError``, 409 ``acknowledgement:label.not.unique``.
    """

    labels: frozenset[str]
    group: str | None
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    granted: bool = False
    until: float = math.inf
    lost: Callable[[], None] | None = None
    send_at: float = 0.0
    sent: dict[int | None, float] = field(default_factory=dict)
    future: futures.Future[None] = field(default_factory=futures.Future)

    @property
    def held(self) -> bool:
        """Whether the labels are held now; other clients may take them once no renewal was read for a lease."""
        return self.granted and time.monotonic() < self.until


class Declarer(Closing):
    """Declares labels and renews the claims in one thread; the rules are in ``protocol.ditto.labels``. Thread-safe.

    Leases are measured by the broker's timestamps; the local clock decides when to send the next renewal, and when
    labels no longer count as held because none was read back.
    """

    def __init__(self, brokers: Brokers, *, lease_ms: int = rules.LEASE_MS) -> None:
        """Connect and read the current declarations; labels stay taken for ``lease_ms`` after a crash."""
        connection = connection_of(brokers)
        self._kafka = connection.kafka
        self._topic = self._kafka.topic(TOPIC)
        self._lease_ms = lease_ms
        # two renewals may be lost before the lease expires
        self._pause = lease_ms / 3_000
        self._declarations = rules.Declarations()
        self._lock = threading.Lock()
        self._own: dict[str, Declaration] = {}
        consumer = connection.consumer(self._topic, writes=(self._topic,))
        try:
            self._producer = connection.producer(self._topic, delivery_timeout=DELIVERY_SECONDS)
            self._start(consumer)
        except BaseException:
            consumer.close()
            raise
        self._reader = TopicReader(consumer)
        self._time, self._forget_at = 0, 0.0
        self._reader.start("ackstream-declarations", self._receive, self._renew)

    def declare(
        self, labels: Iterable[str], *, group: str | None = None, lost: Callable[[], None] | None = None
    ) -> Declaration:
        """Declare labels, which the members of ``group`` share; raise a ``DittoError`` if one is invalid or built in.

        ``lost`` is called, in the declarer's thread, once they were not renewed in time and another client has them.
        """
        # sent here only, and not by the thread as well: a second claim would have a later rank
        own = Declaration(
            frozenset(map(rules.parse_declared, labels)), group, lost=lost, send_at=time.monotonic() + self._pause
        )
        with self._lock:
            self._own[own.key] = own
        self._send(own)
        return own

    def release(self, declaration: Declaration) -> None:
        """Release labels; other clients may declare them at once."""
        with self._lock:
            own = self._own.pop(declaration.key, None)
        if own is not None:
            own.granted = False
            self._write(own, None)

    def close(self) -> None:
        """Release all labels."""
        if self._reader.stop.is_set():
            return
        self._reader.close()
        for own in list(self._own.values()):
            self.release(own)
            own.future.cancel()
        self._producer.close()

    def _start(self, consumer: Any) -> None:
        """Seek back to before the last record of every live claim; a harmless record yields the broker's time."""
        partition = TopicPartition(self._topic, 0)
        consumer.assign([partition])
        try:
            now = ask_time(self._producer, self._topic)
            found = consumer.offsets_for_times({partition: now.timestamp - rules.MAX_LEASE_MS})[partition]
        except (KafkaError, ValueError, futures.TimeoutError) as error:
            self._producer.close(0)
            raise failure(self._kafka, error) from error
        consumer.seek(partition, now.offset if found is None else found.offset)

    def _renew(self, now: float) -> None:
        if now >= self._forget_at:
            self._forget_at = now + self._pause
            self._declarations.forget(self._time)
        with self._lock:
            due = [own for own in self._own.values() if own.send_at <= now]
        for own in due:
            self._send(own)

    def _receive(self, record: Any) -> None:
        key = (record.key or b"").decode("utf-8", "replace")
        entry = self._declarations.apply(key, record.value, record.offset, record.timestamp)
        self._time = record.timestamp
        if (own := self._own.get(key)) is None:
            return
        if entry is not None and (sent := own.sent.pop(entry.claim.until, None)) is not None:
            own.until = sent + self._lease_ms / 1000
        was_granted, own.granted = own.granted, self._declarations.holds(key, record.timestamp)
        # the caller may have cancelled the future
        answers = not was_granted and own.future.set_running_or_notify_cancel()
        if own.granted and answers:
            own.future.set_result(None)
        elif not own.granted or not (was_granted or answers):
            holders = self._declarations.holders(key, record.timestamp)
            self.release(own)
            if answers:
                own.future.set_exception(rules.LabelsTakenError(own.labels, holders))
            elif was_granted:
                call_handler(own.lost)

    def _send(self, own: Declaration) -> None:
        own.send_at = time.monotonic() + self._pause
        entry = self._declarations.get(own.key)
        claim = rules.Claim(own.labels, own.group, self._lease_ms) if entry is None else entry.renewal()
        # the first of several that renew the same lease: any of them may have been stored
        own.sent.setdefault(claim.until, time.monotonic())
        self._write(own, msgspec.json.encode(claim, order="deterministic"))

    def _write(self, own: Declaration, value: bytes | None) -> None:
        record = {"key": own.key.encode(), "value": value, "partition": 0}
        self._producer.put(lambda _metadata: None, partial(self._failed, own), self._topic, **record)

    def _failed(self, own: Declaration, error: BaseException) -> None:
        log.warning("Kafka did not store a declaration of %s: %s", ", ".join(sorted(own.labels)), error)
        own.send_at = time.monotonic() + RETRY_SECONDS


class BrokerTime:
    """A lower bound of the broker's time, from the records that it has stored for this client. Thread-safe."""

    def __init__(self, now: Callable[[], float]) -> None:
        """Begin without a time; ``now`` returns monotonic seconds."""
        self._now = now
        self._ahead: deque[float] = deque(maxlen=16)
        self._noted_at = -math.inf

    def note(self, metadata: Any) -> None:
        """Note a record that has just been stored."""
        now = self._now()
        ahead = metadata.timestamp / 1000 - now
        if ahead < max(self._ahead, default=ahead) - 1.0:
            # a correction of its clock, which is accepted
            self._ahead.clear()
        self._ahead.append(ahead)
        self._noted_at = now

    @property
    def fresh(self) -> bool:
        """Whether the last record is a second old at most: the clock may have been corrected after it."""
        return self._now() - self._noted_at <= 1.0

    @property
    def milliseconds(self) -> float | None:
        """The time of the epoch; ``None``: not known yet."""
        return (max(self._ahead) + self._now()) * 1000 if self._ahead else None


def ask_time(producer: Producer, topic: str) -> Any:
    """Store a harmless record in the topic of declarations; return its metadata, which have the broker's time.

    Raises KafkaError, ValueError or a TimeoutError of a future: it is not stored.
    """
    stored: futures.Future[Any] = futures.Future()
    record: dict[str, Any] = {"key": b"clock", "value": None, "headers": [], "partition": 0}
    producer.put(stored.set_result, stored.set_exception, topic, **record)
    return stored.result(DELIVERY_SECONDS)


class Labels:
    """The labels of one subscriber, which are declared again when they are lost."""

    def __init__(
        self, stack: ExitStack, brokers: Brokers, wanted: frozenset[str], group: str | None, *, required: bool = True
    ) -> None:
        """Declare the labels; ``stack`` closes the declarer. Unless ``required``, ``keep`` declares taken labels again.

        :raises DittoError: 409, another client has a label (if ``required``); 400, one is invalid or built in
        :raises UnreachableError: the broker did not store the declaration in time
        """
        self._again_at = 0.0
        connection = connection_of(brokers)
        self._declared = Declaration(frozenset(map(rules.parse_declared, wanted)), group, granted=True)
        if wanted and connection.claim is not None:
            stack.callback(connection.claim(self._declared.labels))
        elif wanted:
            self._declarer = stack.enter_context(Declarer(connection))
            self._declared = self._declarer.declare(wanted, group=group)
            try:
                self._declared.future.result(DECLARE_SECONDS)
            except futures.TimeoutError:
                raise UnreachableError(
                    f"The broker at {connection.kafka.bootstrap} did not store the declaration of labels within "
                    f"{DECLARE_SECONDS:g} s: check its log."
                ) from None
            except DittoError as error:
                if required or error.status != CONFLICT:
                    raise

    @property
    def held(self) -> frozenset[str]:
        """The labels held now: all or none."""
        return self._declared.labels if self._declared.held else frozenset()

    @property
    def complete(self) -> bool:
        """Whether all wanted labels are held."""
        return self._declared.held

    @property
    def taken(self) -> bool:
        """Whether another client has one of them; if not, labels that are not held were not renewed in time."""
        return self._declared.future.done() and not self._declared.granted

    @property
    def ready(self) -> bool:
        """Whether to acknowledge now: not while they are declared again, or their lapsed lease may be renewed."""
        return self.complete or self.taken

    @property
    def issued(self) -> frozenset[str]:
        """The labels to acknowledge under, perhaps later (:attr:`ready`): all of them, or none if they are taken."""
        return frozenset() if self.taken else self._declared.labels

    def keep(self, now: float) -> None:
        """Declare lost labels again; to be called several times a second."""
        if self._declared.granted or not self._declared.future.done() or now < self._again_at:
            return
        self._again_at = now + REDECLARE_SECONDS
        log.warning("The labels %s are not held; they are declared again.", ", ".join(sorted(self._declared.labels)))
        self._declared = self._declarer.declare(self._declared.labels, group=self._declared.group)
