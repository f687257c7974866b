"""A queue consumer's connection: keeps its session, reads deliveries, and fetches their messages in advance."""

import logging
import secrets
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import msgspec
from kafka.errors import KafkaError

from ackstream.client.core.arguments import check_length
from ackstream.client.core.connection import Brokers, Connection, connection_of
from ackstream.client.core.lifetime import Lasting, Lifetime, answers, call_handler
from ackstream.client.errors import BindTimeout, UnknownQueueError
from ackstream.client.options import QueueOptions
from ackstream.client.queues._queue_session import AckBatches, QueueSession
from ackstream.client.queues.queued_messages import FlowQos, MessageFetcher, QueueMessage, Settle, outcomes_of
from ackstream.errors import NotConnectedError
from ackstream.kafka.clients import Failures, may_pass, monotonic_ms
from ackstream.kafka.login import operator
from ackstream.kafka.reader import BACKOFF_SECONDS, POLL_MS
from ackstream.protocol import queues
from ackstream.protocol.json import RecordError
from ackstream.protocol.readers import MAX_NAME, SampleOutcome

log = logging.getLogger(__name__)

MAX_READY, MAX_READY_BYTES = 1_000, 32_000_000
"""While this many messages or bytes are waiting for the application, no more are fetched."""

FETCHED_AT_ONCE = 100


class QueueLink:
    """One consumer at one queue; binds again after the loss of a session.

    Two threads: one reads and fetches; the other sends binds and signs of life, until the application has finished with
    its last message. ``changed``: the session or the ready messages; after ``stopped`` no message is handed out.
    """

    def __init__(self, connection: Connection, options: QueueOptions, life: Lifetime, settle: Settle) -> None:
        """Connect; nothing is sent before :meth:`start`."""
        self.counts: Counter[str] = Counter()
        self.changed = threading.Condition()
        self._options, self._life, self._settle = options, life, settle
        session, outcomes = secrets.randbits(53), outcomes_of(options.mode, options.outcomes)
        self._bind = queues.Bind(options.queue, options.name, session, options.backlog, outcomes)
        self._asking = 0
        self._session = self._new_session(stopped=False)
        self.stopped, self._closing = threading.Event(), threading.Event()
        self._unsent: deque[queues.QueueRequest] = deque()
        self._send_failures, self._fetch_failures, self._stuck = Failures(), Failures(), Lasting()
        self._delivered: list[queues.MessageDelivered] = []
        self._ready: deque[QueueMessage] = deque()
        self._ready_bytes = 0
        with ExitStack() as stack:
            self._connection = connection.link(
                options.name, self._closing, sends="app-acks", addressed="queue-deliveries"
            )
            stack.callback(self._connection.close)
            self._fetcher = MessageFetcher(connection, options.lake)
            stack.callback(self._fetcher.close)
            self._connections = stack.pop_all()
        works = {"ackstream-queue": self._receive_all, "ackstream-queue-alive": self._keep_session}
        self._threads = [life.thread(run, name) for name, run in works.items()]

    def start(self, timeout: float) -> None:
        for thread in self._threads:
            thread.start()
        with self.changed:
            answered = self.changed.wait_for(lambda: self._session.bound or self._life.error, timeout)
        if self._life.error is not None:
            raise self._life.error
        if not answered:
            raise _silent(f"the bind of {self._bind.consumer} to the queue {self._bind.queue}", timeout)

    @property
    def bound(self) -> queues.Bound | None:
        """The grant of the service; ``None`` while the consumer is not bound."""
        return self._session.bound

    @property
    def working(self) -> bool:
        return not self.stopped.is_set() and self._life.error is None

    def next(self, timeout: float | None) -> QueueMessage | None:
        """Wait for the next message, and return it; ``None`` after the timeout, and once the link has ended."""
        with self.changed:
            self._asking += 1
            self.changed.wait_for(lambda: (self._has_next() and not self._session.stopped) or not self.working, timeout)
            self._asking -= 1
            if not self._ready or not self.working or self._session.stopped:
                return None
            message = self._pop_ready()
            records = self._session.hand_out(message.delivery, monotonic_ms())
            sent = self._send(records) if records else None
        if sent is not None:
            with suppress(KafkaError):
                sent.get(timeout=1.0)
        return message

    def halt(self, *, halted: bool) -> None:
        """Stop handing out and requesting messages, or resume."""
        with self.changed:
            self._session.stopped = halted
            # before any settlement that makes room
            self._send(self._session.due(monotonic_ms()))
            self.changed.notify_all()

    def settle(self, delivery: queues.MessageDelivered, outcome: SampleOutcome) -> None:
        with self.changed:
            self._send(self._session.settle(delivery, outcome, monotonic_ms()))

    def lease_left(self, delivery: queues.MessageDelivered) -> int | None:
        return self._session.lease_left(delivery, monotonic_ms())

    def work_on(self, delivery: queues.MessageDelivered) -> None:
        with self.changed:
            self._send(self._session.working(delivery, monotonic_ms()))

    def stop(self) -> None:
        """Hand out nothing more; the session is kept until :meth:`close`."""
        self.stopped.set()
        self._drop_ready()

    def close(self) -> None:
        """Send the settlements, release all other messages, and disconnect; after :meth:`stop`."""
        self._closing.set()
        for thread in self._threads:
            thread.join()
        with self.changed:
            self._send(self._session.end())
        self._connections.close()
        if self._unsent:
            log.warning("Kafka did not take the last %s records of %s.", len(self._unsent), self._bind.consumer)

    def _drop_ready(self) -> None:
        with self.changed:
            self._ready.clear()
            self._ready_bytes = 0
            self.changed.notify_all()

    def _has_next(self) -> bool:
        """Drop messages that wait at the front although their leases have ended; return whether any is left."""
        while self._ready and self._has_expired(self._ready[0].delivery):
            self._pop_ready()
        return bool(self._ready)

    def _has_expired(self, delivery: queues.MessageDelivered) -> bool:
        if expired := self._session.expire(delivery, monotonic_ms()):
            remedy = "give the queue a longer lease, or the consumer a smaller backlog"
            log.warning("The lease of %s ended before the application requested it: %s.", delivery.message, remedy)
        return expired

    def _pop_ready(self) -> QueueMessage:
        message = self._ready.popleft()
        self._ready_bytes -= message.size
        return message

    def _keep_session(self) -> None:
        while not self._closing.is_set() and self._life.error is None:
            with self.changed:
                self._send(self._session.due(monotonic_ms()))
                held, waits = len(self._session.held), self._asking and not (self._ready or self._delivered)
                full = self.bound is not None and 0 < self.bound.backlog <= held
                if self._stuck.due(monotonic_ms() / 1000, lasts=bool(full and waits)):
                    log.warning(
                        "The consumer %s gets nothing: the application has %s messages that it has not settled, as many"
                        " as it may have. Settle them, repair its handler, or raise the backlog.",
                        *(self._bind.consumer, held),
                    )
            self._closing.wait(POLL_MS / 1000)

    def _send(self, records: Iterable[queues.QueueRequest]) -> Any:
        """Send records after those that Kafka did not take before; return the future of the last; with the lock."""
        self._unsent.extend(records)
        sent = None
        for _ in range(len(self._unsent)):
            record = self._unsent.popleft()
            try:
                sent = self._connection.send(queues.write(record))
            except (KafkaError, ValueError) as error:
                if self._send_failures.due(monotonic_ms() / 1000):
                    name = record.consumer
                    log.warning("A record of %s will be sent again, as Kafka did not take it: %s", name, error)
                self._unsent.appendleft(record)
                return None
            # others are repeated anyway; the application repeats reports of work, which are refused after a settlement
            if isinstance(record, queues.SettleMessages) and record.outcome != "working":
                sent.add_errback(partial(self._not_stored, partial(self._unsent.append, record)))
            elif isinstance(record, queues.Alive) and record.missing:
                sent.add_errback(partial(self._not_stored, partial(self._session.not_stored, record)))
                sent.add_callback(partial(self._session.stored, record))
        return sent

    def _not_stored(self, again: Callable[[], None], error: Exception) -> None:
        """Keep a record that is sent once until Kafka has it; called by the producer's thread, so without the lock."""
        if may_pass(error) or self._closing.is_set():
            again()
        else:
            self._life.fail(error)

    def _receive_all(self) -> None:
        while self.working:
            for record in self._connection.read(0 if self._fetchable else POLL_MS):
                self._receive(record)
            # not in the thread that keeps the session: it calls the application
            self._life.look(monotonic_ms() / 1000, waits=self._session.unanswered)
            self._fetch()

    def _receive(self, record: Any) -> None:
        try:
            answer = queues.read_answer(record.value)
        except RecordError as error:
            log.warning("%s", error)
            return
        with self.changed:
            news = self._session.receive(answer, monotonic_ms())
            over = self._session.over
            self.changed.notify_all()
        if over is not None:
            self._start_again(over.reason)
        elif isinstance(news, queues.MessageDelivered):
            self._delivered.append(news)
        elif news is not None:
            log.info("Settling %s as %s had no effect: %s.", news.message, news.outcome, news.reason)
            call_handler(self._options.on_refused, news)

    def _start_again(self, reason: str) -> None:
        """Begin a new session after the end of one, unless the consumer cannot continue."""
        queue, consumer = self._bind.queue, self._bind.consumer
        self._delivered.clear()
        if reason == "replaced":
            self._life.fail(NotConnectedError(f"Another consumer named {consumer} has bound to the queue {queue}."))
        elif reason == "unknown-queue":
            self._life.fail(_unknown(queue))
        else:
            log.warning("The session of %s at the queue %s was lost; it binds again.", consumer, queue)
            with self.changed:
                self.counts["lost"] += 1
                self._drop_ready()
                self._bind = msgspec.structs.replace(self._bind, session=secrets.randbits(53))
                self._session = self._new_session(stopped=self._session.stopped)

    def _new_session(self, *, stopped: bool) -> QueueSession:
        options = self._options
        batches = AckBatches(self._bind, options.ack_batch, round(options.ack_timeout * 1000))
        return QueueSession(self._bind, batches, self.counts, options.flow or FlowQos(), stopped=stopped)

    @property
    def _fetchable(self) -> int:
        room = MAX_READY - len(self._ready) if self._ready_bytes < MAX_READY_BYTES else 0
        return min(len(self._delivered), room, FETCHED_AT_ONCE)

    def _fetch(self) -> None:
        taken = self._delivered[: self._fetchable]
        with self.changed:
            deliveries = [one for one in taken if not self._has_expired(one)]
        self._delivered[: len(taken)] = deliveries
        try:
            contents = self._fetcher.fetch(deliveries) if deliveries else {}
        except Exception as error:  # noqa: BLE001 - errors of a lake depend on where it is
            if self._fetch_failures.due(monotonic_ms() / 1000):
                log.warning("Fetching messages failed and will be retried: %s", error)
            self._closing.wait(BACKOFF_SECONDS)
            return
        del self._delivered[: len(deliveries)]
        if self._fetcher.offline and self._fetch_failures.due(monotonic_ms() / 1000):
            log.warning("Partitions of the topic messages have no leader: %s.", sorted(self._fetcher.offline))
        if self._fetcher.offline and not contents:
            self._closing.wait(BACKOFF_SECONDS)
        with self.changed:
            for one in deliveries:
                if (content := contents.get(one.message)) is not None:
                    message = QueueMessage.of(content, one, self._settle, self)
                    self._ready.append(message)
                    self._ready_bytes += message.size
                elif one.partition in self._fetcher.offline:
                    # behind the others
                    self._delivered.append(one)
                else:
                    log.error("Gave back message %s, which %s.", one.message, self._fetcher.absence)
                    self._send(self._session.refuse(one))
            self.changed.notify_all()


def drain_queue(bootstrap_servers: Brokers, *, queue: str, timeout: float = 60.0) -> int:
    """Give up all messages of a queue that were published until now, as if rejected; return how many it had.

    Those that consumers hold are among them, and their settlements have no effect.

    :param bootstrap_servers: ``host:port,…`` or the Kafka of the settings
    :param timeout: seconds to wait for the job that serves the queues; later, it still carries the order out
    :raises BadParameterError: no queue can have the name
    :raises UnknownQueueError: the settings of the job do not have the queue
    :raises BindTimeout: the job does not answer
    :raises UnreachableError: no broker, or a topic is missing
    """
    connection = connection_of(bootstrap_servers)
    check_length("queue", queue, MAX_NAME)
    order = queues.Drain(queue, operator(connection.kafka), secrets.randbits(53))
    record = queues.write(order)
    for value in answers(connection, order.consumer, "queue-deliveries", lambda: record, timeout):
        with suppress(RecordError):
            answer = queues.read_answer(value)
            if isinstance(answer, queues.Drained) and answer.session == order.session:
                return answer.count
            if isinstance(answer, queues.Unbound) and answer.session == order.session:
                raise _unknown(queue)
    raise _silent(f"the order to drain the queue {queue}, which stays in force,", timeout)


def _unknown(queue: str) -> UnknownQueueError:
    remedy = "add it to [[queues]] of the service's settings, or correct the name"
    return UnknownQueueError(f"There is no queue {queue}: {remedy}.")


def _silent(event: str, timeout: float) -> BindTimeout:
    remedy = "start the job that serves the queues (`ackstream submit queues`)"
    return BindTimeout(f"No answer to {event} within {timeout:g} s: {remedy}.")
