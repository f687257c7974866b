"""The connection of a client, injected in tests and ``ackstream.testing``: it carries all its records."""

import heapq
import inspect
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from math import inf
from typing import Any, TypeAlias, TypeVar
from weakref import WeakSet

from kafka.errors import KafkaError, KafkaTimeoutError

from ackstream.client.errors import ForkedError
from ackstream.errors import UnreachableError
from ackstream.kafka import clients
from ackstream.kafka.connection import ClientConnection
from ackstream.kafka.reader import TopicReader, check_topics
from ackstream.settings import Kafka

Guard: TypeAlias = Callable[[Callable[[], None]], None]
"""Runs the loop of a thread, and handles the error that ends it."""

T = TypeVar("T")


class RequestFuture(Future[T]):
    """The future of a request with ``correlation_id``; its ``cancel`` returns ``False``: use ``Requester.cancel``."""

    correlation_id = ""


class Producer:
    """Writes records with a producer of kafka-python. Safe to use from several threads."""

    def __init__(self, kafka: Kafka, producer: Any) -> None:
        self._kafka, self._producer = kafka, producer

    def put(
        self, stored: Callable[[Any], None], failed: Callable[[BaseException], None], topic: str, **record: Any
    ) -> None:
        """Send a record, and report it as ``kafka.clients.send`` does."""
        clients.send(self._producer, stored, failed, topic, **record)

    def prepare(self, topic: str) -> None:
        """Look up the partitions of a topic (its real name), so that its first record does not wait for them."""

        def lacks() -> bool:
            with clients.connect_admin(self._kafka) as admin:
                return topic not in admin.list_topics()

        try:
            clients.look_up(self._producer, topic, lacks)
        except KafkaTimeoutError as error:
            raise UnreachableError(
                f"The broker at {self._kafka.bootstrap} has not named the partitions of the topic {topic}: create it, "
                f"or correct its name, and check that the broker answers."
            ) from error
        except KafkaError as error:
            raise clients.failure(self._kafka, error) from error

    def close(self, timeout: float = clients.CLOSE_SECONDS) -> None:
        """Send buffered records for at most ``timeout`` seconds; the others fail."""
        clients.close_producer(self._producer, timeout)


class Loop:
    """The work of a client in a thread of its own."""

    def __init__(self, run: Callable[[], None], name: str) -> None:
        self._thread = threading.Thread(target=run, name=name, daemon=True)

    @property
    def inside(self) -> bool:
        """Whether the caller is the work itself."""
        return threading.current_thread() is self._thread

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the end; return at once if it never began, and inside of it."""
        if self._thread.ident is not None and not self.inside:
            self._thread.join()


class OfOneProcess:
    """Base of objects with threads, which do not exist in a child process: there each use is an error."""

    def __new__(cls, *_: Any, **__: Any) -> Any:
        """Note the object, for the time after a fork."""
        made = super().__new__(cls)
        _THREADED.add(made)
        return made


_THREADED: WeakSet[OfOneProcess] = WeakSet()


def _refuse(self: object, *_: Any, **__: Any) -> Any:
    raise ForkedError(
        f"This {type(self).__name__} belongs to the process that has forked this one: make one after the fork."
    )


def _after_fork() -> None:
    """Replace the methods of all objects in a child: they would wait for threads, or for locks, forever."""
    for each in list(_THREADED):
        kind = type(each)
        members: dict[str, Any] = {"alive": False, "close": lambda *_, **__: None}
        for name in dir(kind):
            value = inspect.getattr_static(kind, name)
            if name in members or (name.startswith("__") and name not in ("__iter__", "__next__")):
                continue
            if inspect.isfunction(value):
                members[name] = _refuse
            elif isinstance(value, property):
                members[name] = property(_refuse)
        each.__class__ = type(kind.__name__, (kind,), members)


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork)


class Connection:
    """Makes a client's readers and producers, and is its clock; ``kafka`` has topic names and the signing key."""

    claim: Callable[[frozenset[str]], Callable[[], object]] | None = None
    """Claims labels for a client and returns the function that releases them, or raises ``LabelsTakenError``; ``None``:
    labels are claimed by leases in the topic ``declarations``."""

    queue_link: Callable[..., Any] | None = None
    """Binds a consumer to a queue, with the parameters of ``QueueLink`` except the connection; ``None``: by records."""

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka

    def now(self) -> float:
        """Return the monotonic time in seconds."""
        return time.monotonic()

    def wait(self, seconds: float, over: threading.Event) -> None:
        """Let seconds pass, unless an event ends the wait."""
        over.wait(seconds)

    def future(self) -> RequestFuture[Any]:
        """Return a future for an outcome that the application may wait for."""
        return RequestFuture()

    def reader(self, *topics: str, writes: Iterable[str] = (), stop: threading.Event | None = None) -> TopicReader:
        """Return a reader of every record of topics from now on; parameters and errors are those of ``at_end``."""
        return TopicReader.at_end(self.kafka, *topics, writes=writes, stop=stop)

    def consumer(self, *topics: str, writes: Iterable[str] = (), group: str | None = None, **config: Any) -> Any:
        """Return an unassigned consumer of topics (real names); raise ``UnreachableError`` without broker or topic."""
        consumer = clients.connect_consumer(self.kafka, group, **{"auto_offset_reset": "earliest", **config})
        try:
            check_topics(consumer, self.kafka, reads=topics, writes=writes, group=group)
        except BaseException:
            with suppress(KafkaError):
                consumer.close(autocommit=False)
            raise
        return consumer

    def producer(self, topic: str, **options: Any) -> Producer:
        """Return a producer; options and errors are those of ``kafka.clients.connect_producer``."""
        return Producer(self.kafka, clients.connect_producer(self.kafka, topic, **options))

    def link(self, name: str, stop: threading.Event | None = None, **options: Any) -> ClientConnection:
        """Return the consumer and the producer of a named client; options and errors are those of that class."""
        return ClientConnection(self.kafka, name, stop, **options)

    def loop(
        self,
        step: Callable[[], None],
        name: str,
        stop: threading.Event,
        guard: Guard,
        due: Callable[[], float | None],  # noqa: ARG002 - a step waits for records itself
    ) -> Loop:
        """Return a loop that repeats ``step`` until ``stop`` is set; ``due`` is as :meth:`ReliableSender.wait`."""

        def repeat() -> None:
            while not stop.is_set():
                step()

        return Loop(lambda: guard(repeat), name)


Brokers: TypeAlias = str | Kafka | Connection
"""The brokers of a client: ``host:port`` with commas between, the Kafka of the settings, or a connection in memory."""


def connection_of(brokers: Brokers) -> Connection:
    """Return the connection that a client is given, or a new one to the brokers that it is given."""
    return brokers if isinstance(brokers, Connection) else Connection(Kafka.of(brokers))


@dataclass(eq=False)
class Sending:
    """A record that Kafka has not stored yet.

    ``stored`` is called with the metadata, in the producer's thread; ``finished`` in :meth:`ReliableSender.turn`, with
    ``None`` once Kafka has the record, or with the final error. ``withdrawn`` is called before each sending, and
    returns the error that ends the record instead. After the monotonic time ``give_up_at`` a failure is final.
    """

    record: dict[str, Any]
    finished: Callable[[BaseException | None], object]
    stored: Callable[[Any], object] = lambda _metadata: None
    withdrawn: Callable[[], BaseException | None] = lambda: None
    give_up_at: float = inf


class ReliableSender:
    """Sends each record until Kafka has stored it, or has refused it for good; ``sending_bytes`` counts values.

    A record that failed for a temporary reason is sent again after 0.2 s, after those sent meanwhile. Times are
    seconds of a monotonic clock. ``submit`` may be called from any thread, the other methods from a single one.

    :ivar away: whether Kafka has failed to store the last record
    :ivar waits: whether records are on their way, and none was stored in the last :meth:`turn`
    """

    away = waits = False

    def __init__(self, producer: Producer) -> None:
        self.sending = self.sending_bytes = 0
        self._producer = producer
        self._lock = threading.Lock()
        self._waiting: list[tuple[float, int, Sending]] = []
        self._order = count()
        # filled by the producer's thread, emptied by that of turn()
        self._reports: deque[tuple[Sending, BaseException | None]] = deque()

    @property
    def ready(self) -> bool:
        """Whether records may be sent now; meanwhile they wait."""
        return True

    @property
    def waiting(self) -> int:
        """The number of records that wait for their time, or for ``ready``."""
        return len(self._waiting)

    def submit(self, sending: Sending, at: float = 0.0) -> None:
        """Send a record, at a later time if ``at`` is one."""
        if at > 0 or not self.ready:
            self._plan(sending, at)
        else:
            self._put(sending)

    def wait(self, now: float) -> float | None:
        """Return the seconds until ``turn`` is due; ``None`` if no record waits only for its time."""
        return max(0.0, self._waiting[0][0] - now) if self._waiting and self.ready else None

    def turn(self, now: float) -> None:
        """Send the records that are due, those that failed temporarily included, and finish others as ``settle``."""
        self.waits = self.sending > 0
        self.settle(now)
        while self._waiting and self._waiting[0][0] <= now and self.ready:
            with self._lock:
                sending = heapq.heappop(self._waiting)[2]
            self._put(sending)
        self.settle(now)

    def settle(self, now: float) -> None:
        """Finish the records that Kafka has stored or refused; send nothing."""
        while self._reports:
            sending, error = self._reports.popleft()
            self._count(-1, sending)
            self.away = clients.may_pass(error)
            self.waits &= error is not None
            if self.away and now < sending.give_up_at:
                self._plan(sending, now + clients.RESEND_SECONDS)
            else:
                sending.finished(error)

    def _plan(self, sending: Sending, at: float) -> None:
        with self._lock:
            heapq.heappush(self._waiting, (at, next(self._order), sending))

    def _put(self, sending: Sending) -> None:
        self._count(1, sending)
        if (reason := sending.withdrawn()) is not None:
            self._reports.append((sending, reason))
            return

        def stored(metadata: Any) -> None:
            self._reports.append((sending, None))
            sending.stored(metadata)

        self._producer.put(stored, lambda error: self._reports.append((sending, error)), **sending.record)

    def _count(self, change: int, sending: Sending) -> None:
        with self._lock:
            self.sending += change
            self.sending_bytes += change * len(sending.record["value"] or b"")
