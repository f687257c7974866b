"""The connection of a client: all that it reads and writes goes through one object, which is injected.

Every client takes a :data:`Brokers` as its first argument. Brokers become a :class:`BrokerConnection`; a
:class:`Connection` is used as it is, so that ``ackstream.testing`` and tests put a system in memory in its place.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from kafka.errors import KafkaError

from ackstream.kafka import clients
from ackstream.kafka.access import check_topics
from ackstream.kafka.reader import ClientConnection, TopicReader
from ackstream.settings import Kafka

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


Guard: TypeAlias = "Callable[[Callable[[], None]], None]"
"""Runs the loop of a thread, and deals with an error that ends it."""


class Producer(Protocol):
    """Writes records. Safe to use from several threads."""

    def put(
        self, stored: Callable[[Any], None], failed: Callable[[BaseException], None], topic: str, **record: Any
    ) -> None:
        """Send a record (value, key, headers, partition); report it as stored, with its metadata, or as failed.

        The report may come at once, or in the thread of the producer.
        """

    def prepare(self, topic: str) -> None:
        """Look up the partitions of a topic (its real name), so that its first record does not wait for them.

        :raises UnreachableError: no broker answers
        """

    def close(self, timeout: float = clients.CLOSE_SECONDS) -> None:
        """Send buffered records for at most ``timeout`` seconds; the others fail."""


class Reader(Protocol):
    """Reads topics; the methods are those of :class:`TopicReader`."""

    stop: threading.Event
    thread: threading.Thread | None
    unreadable: int
    skipped: int
    consumer: Any

    def read(self, timeout_ms: int = ..., max_records: int = ...) -> list[Any]:
        """Return the records that arrived within the time."""

    def start(self, name: str, *handlers: Callable[[Any], None], guard: Guard | None = None) -> None:
        """Have a thread of this name call the first handler with each record, the second one after each poll."""

    def end(self) -> None:
        """End the thread after the records it has read."""

    def close(self) -> None:
        """End the thread and disconnect."""


class Loop(Protocol):
    """Repeats a step of a client in a thread of its own."""

    @property
    def inside(self) -> bool:
        """Whether the caller is the step itself."""

    def start(self) -> None:
        """Begin."""

    def join(self) -> None:
        """Wait for the end; return at once if it never began."""


@runtime_checkable
class Connection(Protocol):
    """Makes the readers and producers of a client, and is its source of time."""

    @property
    def kafka(self) -> Kafka:
        """The names of the topics, and the key with which senders are signed."""

    @property
    def claim(self) -> Callable[[frozenset[str]], Callable[[], object]] | None:
        """Claims labels for a client and returns the function that releases them, or raises ``LabelsTakenError``.

        ``None``: labels are claimed by leases in the topic ``declarations``.
        """

    def now(self) -> float:
        """Return the monotonic time in seconds."""

    def future(self) -> Future[Any]:
        """Return a future for an outcome that the application may wait for."""

    def reader(self, *topics: str, writes: Iterable[str] = (), stop: threading.Event | None = None) -> Reader:
        """Return a reader of every record that is written to topics (real names) from now on.

        :param writes: topics that the client writes to, which are checked at once
        :raises UnreachableError: no broker, or a topic is missing
        """

    def consumer(self, *topics: str, writes: Iterable[str] = (), group: str | None = None, **config: Any) -> Any:
        """Return a consumer of kafka-python that may read topics (real names), and is assigned none of them yet.

        :param group: the consumer group to join (its real name)
        :param config: of kafka-python
        :raises UnreachableError: no broker, or a topic is missing
        """

    def producer(
        self, topic: str, *, delivery_timeout: float = clients.DELIVERY_SECONDS, linger_ms: int = 0
    ) -> Producer:
        """Return a producer; parameters and errors are those of ``kafka.clients.connect_producer``."""

    def link(self, name: str, stop: threading.Event | None = None, **options: Any) -> ClientConnection:
        """Return the consumer and the producer of a named client; options and errors are those of that class."""

    def loop(
        self,
        step: Callable[[], None],
        name: str,
        stop: threading.Event,
        guard: Guard,
        due: Callable[[], float | None],
    ) -> Loop:
        """Return a loop that repeats ``step`` until ``stop`` is set.

        :param due: returns in how many seconds the step has work without a new record; ``None``: not at all
        """


Brokers: TypeAlias = str | Kafka | Connection
"""The brokers of a client: ``host:port`` with commas between, the Kafka of the settings, or a connection in memory."""


def connection_of(brokers: Brokers) -> Connection:
    """Return the connection that a client is given, or a new one to the brokers that it is given.

    :raises BadParameterError: it is no brokers
    """
    return brokers if isinstance(brokers, Connection) else BrokerConnection(Kafka.of(brokers))


class ClientProducer:
    """A producer of kafka-python."""

    def __init__(self, kafka: Kafka, producer: Any) -> None:
        """Write with ``producer``."""
        self._kafka, self._producer = kafka, producer

    def put(
        self, stored: Callable[[Any], None], failed: Callable[[BaseException], None], topic: str, **record: Any
    ) -> None:
        """Send a record, as :meth:`Producer.put`."""
        clients.send(self._producer, stored, failed, topic, **record)

    def prepare(self, topic: str) -> None:
        """Look up the partitions of a topic, as :meth:`Producer.prepare`."""
        try:
            self._producer.partitions_for(topic)
        except KafkaError as error:
            raise clients.failure(self._kafka, error) from error

    def close(self, timeout: float = clients.CLOSE_SECONDS) -> None:
        """Send buffered records, as :meth:`Producer.close`."""
        clients.close_producer(self._producer, timeout)


class ThreadLoop:
    """A thread that repeats a step."""

    def __init__(self, run: Callable[[], None], name: str) -> None:
        """Do ``run`` in a thread of this name, once it is started."""
        self._thread = threading.Thread(target=run, name=name, daemon=True)

    @property
    def inside(self) -> bool:
        """Whether this is the thread."""
        return threading.current_thread() is self._thread

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread, if it was started."""
        if self._thread.ident is not None:
            self._thread.join()


class BrokerConnection:
    """The brokers of the settings: each reader and producer is a client of kafka-python."""

    claim = None

    def __init__(self, kafka: Kafka) -> None:
        """Connect to nothing yet."""
        self.kafka = kafka

    def now(self) -> float:
        """Return the monotonic time in seconds."""
        return time.monotonic()

    def future(self) -> Future[Any]:
        """Return a future."""
        return Future()

    def reader(self, *topics: str, writes: Iterable[str] = (), stop: threading.Event | None = None) -> TopicReader:
        """Connect a consumer that reads from now on, as :meth:`Connection.reader`."""
        consumer = self.consumer(*topics, writes=writes)
        try:
            clients.subscribe_at_end(consumer, self.kafka, *topics)
        except BaseException:
            consumer.close(autocommit=False)
            raise
        return TopicReader(consumer, stop)

    def consumer(self, *topics: str, writes: Iterable[str] = (), group: str | None = None, **config: Any) -> Any:
        """Connect a consumer, as :meth:`Connection.consumer`."""
        consumer = clients.connect_consumer(self.kafka, group, **{"auto_offset_reset": "earliest", **config})
        try:
            check_topics(consumer, self.kafka, reads=topics, writes=writes, group=group)
        except BaseException:
            with suppress(KafkaError):
                consumer.close(autocommit=False)
            raise
        return consumer

    def producer(
        self, topic: str, *, delivery_timeout: float = clients.DELIVERY_SECONDS, linger_ms: int = 0
    ) -> ClientProducer:
        """Connect a producer, as :meth:`Connection.producer`."""
        made = clients.connect_producer(self.kafka, topic, delivery_timeout=delivery_timeout, linger_ms=linger_ms)
        return ClientProducer(self.kafka, made)

    def link(self, name: str, stop: threading.Event | None = None, **options: Any) -> ClientConnection:
        """Connect a named client, as :meth:`Connection.link`."""
        return ClientConnection(self.kafka, name, stop, **options)

    def loop(
        self,
        step: Callable[[], None],
        name: str,
        stop: threading.Event,
        guard: Guard,
        due: Callable[[], float | None],  # noqa: ARG002 - a step waits for records itself
    ) -> ThreadLoop:
        """Return a thread that repeats a step, as :meth:`Connection.loop`."""

        def repeat() -> None:
            while not stop.is_set():
                step()

        return ThreadLoop(lambda: guard(repeat), name)
