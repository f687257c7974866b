"""Consuming from a work queue: messages that belong to one consumer until they are settled."""

from __future__ import annotations

import logging
import secrets
import threading
from collections import Counter, deque
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from kafka.errors import KafkaError

from ackstream.client.errors import BindTimeout, UnknownQueueError
from ackstream.client.queue_session import QueueMessage, QueueSession, after_handler, takes_call
from ackstream.client.stored_samples import MessageFetcher
from ackstream.errors import InconsistentQosError, NotConnectedError
from ackstream.kafka.clients import Closing, monotonic_ms
from ackstream.kafka.reader import POLL_MS, ClientConnection
from ackstream.protocol import queues
from ackstream.protocol.json import RecordError
from ackstream.protocol.queues import Bind, MessageDelivered
from ackstream.settings import Kafka

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ackstream.client.queue_session import AckMode
    from ackstream.protocol.queues import NotSettled, QueueRequest
    from ackstream.protocol.readers import SampleOutcome
    from ackstream.settings import Lake

log = logging.getLogger(__name__)

BIND_TIMEOUT = 60.0
MAX_READY = 1_000
"""The most messages that are fetched before the application asks for them."""


class QueueStatistics(msgspec.Struct, frozen=True):
    """Counts since the consumer began.

    ``received`` deliveries arrived, ``copies`` of them again after a crash of the service (the application never saw
    those); ``accepted``, ``failed`` and ``rejected`` were settled, ``refused`` settlements had no effect; ``lost``
    sessions expired because the service received no sign of life.
    """

    received: int
    copies: int
    accepted: int
    failed: int
    rejected: int
    refused: int
    lost: int


class QueueConsumer(Closing):
    """Receives messages of a queue, one by one, and settles them.

    With a ``handler`` each message is given to it in a thread of the consumer's own; without one the application
    iterates over the consumer, or calls ``receive``. The ``mode`` defines who settles:

    - ``client``: the application, with ``message.settle(…)``, in any order and from any thread
    - ``auto``: the library accepts a message when its handler has returned, or when the next one is requested; one
      whose handler raised stays with the consumer until that is closed (as in Solace)
    - ``auto-cancel``: likewise, but a message whose handler raised is failed (as in AMPS)

    No delivery is handed out twice. When a session expires, the messages it held are given to others; settling them
    raises ``NotConnectedError``, and the consumer binds again by itself.
    """

    def __init__(  # noqa: PLR0913 - a consumer has many independent settings, each with a default
        self,
        kafka: Kafka | None = None,
        *,
        queue: str,
        name: str,
        handler: Callable[[QueueMessage], object] | None = None,
        mode: AckMode = "client",
        backlog: int | None = None,
        outcomes: Iterable[SampleOutcome] = (),
        lake: Lake | None = None,
        ack_batch: int = 1,
        ack_timeout: float = 1.0,
        bind_timeout: float = BIND_TIMEOUT,
        on_refused: Callable[[NotSettled], None] | None = None,
        bootstrap: str = "localhost:9092",
        topic_prefix: str = "",
    ) -> None:
        """Connect and bind.

        :param kafka: the broker as in the settings; else ``bootstrap`` and ``topic_prefix``
        :param name: unique at the queue; a second consumer of the same name takes the messages of the first
        :param backlog: messages it wants to hold at once; ``None``: as many as the queue allows
        :param outcomes: how it may settle besides ``accepted``
        :param lake: where the tables are, for messages that Kafka has deleted
        :param ack_batch: acceptances are sent together when as many are waiting, or after ``ack_timeout`` seconds
        :param bind_timeout: seconds to wait for the service
        :param on_refused: receives the settlements that had no effect, with the reason
        :raises UnreachableError: no broker, or a topic is missing
        :raises BindTimeout: the service does not answer
        :raises UnknownQueueError: the settings of the service have no such queue
        :raises InconsistentQosError: a backlog below 1, or batches of acceptances that might never be full
        """
        if backlog is not None and backlog < 1:
            raise InconsistentQosError(f"The backlog is {backlog}; it must be at least 1, or be omitted.")
        self._queue, self._name, self._mode = queue, name, mode
        self._on_refused = on_refused
        declared = {*outcomes, "failed"} if mode == "auto-cancel" else set(outcomes)
        self._counts: Counter[str] = Counter()
        self._bind = Bind(queue, name, secrets.randbits(53), backlog, tuple(sorted(declared)))
        self._batches = (ack_batch, round(ack_timeout * 1000))
        self._session = QueueSession(self._bind, *self._batches, self._counts)
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._unsent: deque[QueueRequest] = deque()
        self._delivered: list[MessageDelivered] = []
        self._ready: deque[QueueMessage] = deque()
        self._previous: QueueMessage | None = None
        self.ended: Exception | None = None
        """What ended the consumer before it was closed."""
        kafka = kafka or Kafka(bootstrap=bootstrap, topic_prefix=topic_prefix)
        with ExitStack() as stack:
            self._link = ClientConnection(
                kafka, name, self._closing, sends="app-acks", addressed="queue-deliveries", checked=("messages",)
            )
            stack.callback(self._link.close)
            self._fetcher = MessageFetcher(kafka, lake)
            stack.callback(self._fetcher.close)
            self._connections = stack.pop_all()
        self._threads = [threading.Thread(target=self._run, name="ackstream-queue", daemon=True)]
        if handler is not None:
            work = partial(self._handle_all, handler)
            self._threads.append(threading.Thread(target=work, name="ackstream-queue-handler", daemon=True))
        self._threads[0].start()
        try:
            self._wait_until_bound(bind_timeout)
        except BaseException:
            self.close()
            raise
        for thread in self._threads[1:]:
            thread.start()

    # -- for the application ------------------------------------------------------------------------------------------

    def receive(self, timeout: float | None = None) -> QueueMessage | None:
        """Return the next message; where the library settles, the one before is accepted now.

        :param timeout: seconds; ``None``: for ever
        :return: ``None`` after the timeout, and once the consumer is closed
        :raises NotConnectedError: another consumer of the same name has taken over
        :raises MessageGoneError: the value of a message is neither in Kafka nor in the table
        """
        previous, self._previous = self._previous, None
        if previous is not None:
            self._settle_or_warn(previous, "accepted")
        message = self._next(timeout)
        if message is None and self.ended is not None and not self._closing.is_set():
            raise self.ended
        if self._mode != "client":
            self._previous = message
        return message

    def __iter__(self) -> Iterator[QueueMessage]:
        """Iterate over the messages until the consumer is closed."""
        while (message := self.receive()) is not None:
            yield message

    @property
    def backlog(self) -> int | None:
        """How many messages it may hold at once (0: any number); ``None`` while it is not bound."""
        bound = self._session.bound
        return None if bound is None else bound.backlog

    @property
    def lease(self) -> float | None:
        """How many seconds it may hold a message; ``None``: as long as its session lasts."""
        bound = self._session.bound
        return bound.lease_ms / 1000 if bound is not None and bound.lease_ms else None

    @property
    def statistics(self) -> QueueStatistics:
        """Counts since the consumer began."""
        return QueueStatistics(**{name: self._counts[name] for name in QueueStatistics.__struct_fields__})

    def close(self) -> None:
        """Let the handler finish, send the settlements, and release all other messages; may be called twice."""
        if self._closing.is_set():
            return
        with self._changed:
            self._closing.set()
            self._changed.notify_all()
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join()
        with self._changed:
            self._send(self._session.end())
        self._connections.close()

    # -- handing out and settling -------------------------------------------------------------------------------------

    def _next(self, timeout: float | None) -> QueueMessage | None:
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self.ended or self._closing.is_set(), timeout)
            return self._ready.popleft() if self._ready and not self._closing.is_set() else None

    def _handle_all(self, handler: Callable[[QueueMessage], object]) -> None:
        while (message := self._next(None)) is not None:
            raised = False
            try:
                handler(message)
            except Exception:
                raised = True
                log.exception("The handler of queue %s failed for message %s.", self._queue, message.id)
            outcome = after_handler(self._mode, raised=raised)
            if outcome is not None:
                self._settle_or_warn(message, outcome)

    def _settle(self, message: QueueMessage, outcome: SampleOutcome) -> None:
        with self._changed:
            self._send(self._session.settle(message.delivery, outcome, monotonic_ms()))

    def _settle_call(self, message: QueueMessage, outcome: SampleOutcome) -> None:
        if takes_call(self._mode, outcome):
            self._settle(message, outcome)

    def _settle_or_warn(self, message: QueueMessage, outcome: SampleOutcome) -> None:
        try:
            self._settle(message, outcome)
        except NotConnectedError as error:
            log.warning("%s", error)

    # -- the connection -----------------------------------------------------------------------------------------------

    def _wait_until_bound(self, timeout: float) -> None:
        with self._changed:
            answered = self._changed.wait_for(lambda: self._session.bound or self.ended, timeout)
        if self.ended is not None:
            raise self.ended
        if not answered:
            raise BindTimeout(
                f"No answer to the bind of {self._name} to the queue {self._queue} within {timeout:g} s: start the job"
                " that serves the queues (`ackstream submit queues`)."
            )

    def _run(self) -> None:
        try:
            while not self._closing.is_set() and self.ended is None:
                with self._changed:
                    self._send(self._session.due(monotonic_ms()))
                for record in self._link.read(0 if self._fetchable else POLL_MS):
                    self._receive(record)
                self._fetch()
        except Exception as error:  # noqa: BLE001 - such as what a lake may raise; it is raised to the application
            self._end(error)

    def _send(self, records: Iterable[QueueRequest]) -> None:
        """Send records after those that Kafka rejected before; to be called with the lock."""
        self._unsent.extend(records)
        while self._unsent:
            try:
                self._link.send(queues.write(self._unsent[0]))
            except (KafkaError, ValueError) as error:
                log.warning("Kafka rejected a record of consumer %s, which will be sent again: %s", self._name, error)
                return
            self._unsent.popleft()

    def _receive(self, record: Any) -> None:
        try:
            answer = queues.read_answer(record.value)
        except RecordError as error:
            log.warning("%s", error)
            return
        with self._changed:
            news = self._session.receive(answer)
            if self._session.over is not None:
                self._start_again(self._session.over.reason)
            self._changed.notify_all()
        if isinstance(news, MessageDelivered):
            self._delivered.append(news)
        elif news is not None:
            log.info("Settling %s as %s had no effect: %s.", news.message, news.outcome, news.reason)
            if self._on_refused is not None:
                self._on_refused(news)

    def _start_again(self, reason: str) -> None:
        """Begin a new session after the end of one, unless the consumer cannot continue."""
        self._ready.clear()
        self._delivered.clear()
        if reason == "replaced":
            self._end(NotConnectedError(f"Another consumer named {self._name} has bound to the queue {self._queue}."))
        elif reason == "unknown-queue":
            remedy = "add it to [[queues]] of the service's settings, or correct the name"
            self._end(UnknownQueueError(f"There is no queue {self._queue}: {remedy}."))
        else:
            log.warning("The session of %s at the queue %s was lost; it binds again.", self._name, self._queue)
            self._counts["lost"] += 1
            bind = msgspec.structs.replace(self._bind, session=secrets.randbits(53))
            self._session = QueueSession(bind, *self._batches, self._counts)

    def _end(self, error: Exception) -> None:
        log.error("%s", error)
        with self._changed:
            self.ended = error
            self._changed.notify_all()

    @property
    def _fetchable(self) -> int:
        """How many of the delivered messages to fetch now."""
        return min(len(self._delivered), MAX_READY - len(self._ready))

    def _fetch(self) -> None:
        """Fetch delivered messages, and make them ready in the order of their deliveries."""
        deliveries = self._delivered[: self._fetchable]
        if not deliveries:
            return
        try:
            contents = self._fetcher.fetch(deliveries)
        except KafkaError as error:
            log.warning("Fetching messages failed and will be retried: %s", error)
            return
        del self._delivered[: len(deliveries)]
        with self._changed:
            self._ready.extend(QueueMessage(one, contents[one.message], self._settle_call) for one in deliveries)
            self._changed.notify_all()
