"""Consuming from a work queue: messages that belong to one consumer until they are settled."""

import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from ackstream.client.core.arguments import check_length, check_word, handler_of, takes
from ackstream.client.core.connection import connection_of
from ackstream.client.core.lifetime import Client, Ending, Lifetime
from ackstream.client.options import QueueOptions
from ackstream.client.queues._queue_link import QueueLink
from ackstream.client.queues.queued_messages import AckMode, QueueMessage, after_handler, takes_call
from ackstream.client.reading.samples import check_lake
from ackstream.errors import InconsistentQosError, NotConnectedError
from ackstream.protocol.queues import MAX_BACKLOG, MessageDelivered, Settlement
from ackstream.protocol.readers import MAX_NAME, SampleOutcome

log = logging.getLogger(__name__)


class QueueStatistics(msgspec.Struct, frozen=True):
    """Counts since the consumer began.

    ``received`` deliveries arrived, ``copies`` of them again after a crash of the service (the application never saw
    those); ``accepted``, ``failed`` and ``rejected`` were settled, ``refused`` settlements had no effect; ``expired``
    leases ended before the application requested the message; ``unavailable`` messages could not be read; ``missing``
    answers of the service did not arrive, and were requested again; ``lost`` sessions expired because the service
    received no sign of life.
    """

    received: int
    copies: int
    accepted: int
    failed: int
    rejected: int
    refused: int
    expired: int
    unavailable: int
    missing: int
    lost: int


class QueueConsumer(Client):
    """Receives messages of a queue, one by one, and settles them. Safe to use from several threads.

    With a ``handler`` each message is given to it in a thread of the consumer's own; without one the application
    iterates over the consumer, or calls ``receive``. The ``mode`` defines who settles:

    - ``client``: the application, with ``message.settle(…)``, in any order and from any thread
    - ``auto``: the library accepts a message when its handler has returned, or when the thread that received it
      requests the next one; one whose handler raised stays with the consumer until that is closed (as in Solace)
    - ``auto-cancel``: likewise, but a message whose handler raised is failed (as in AMPS)

    No delivery is handed out twice, and none whose lease has ended. When a session expires, others get its messages;
    settling them raises ``NotConnectedError``, and the consumer binds again. An unreadable message goes back.
    """

    @takes(QueueOptions)
    def __init__(self, options: QueueOptions) -> None:
        """Connect and bind.

        :param bootstrap_servers: ``host:port,…`` or the Kafka of the settings; without a broker ``BadParameterError``
        :param queue: the queue, one of ``[[queues]]`` of the service's settings
        :param name: unique at the queue; a second consumer of the same name takes the messages of the first
        :param handler: called with each message, in a thread of its own; ``None``: the application receives them
        :param batch_handler: instead of ``handler``: gets a list of those at hand, which are settled together
        :param max_batch: maximum length of that list
        :param mode: who settles a message, as above
        :param backlog: messages it wants to hold at once; ``None``: 255; the queue may allow fewer
        :param outcomes: how it may settle besides ``accepted``
        :param lake: where the tables are, for messages that Kafka has deleted; opened at once
        :param ack_batch: acceptances are sent together when this many are waiting
        :param ack_timeout: seconds after which they are sent in any case
        :param flow: when the library reports received deliveries (transport acks)
        :param bind_timeout: seconds to wait for the service
        :param on_refused: receives the settlements that had no effect, with the reason
        :param on_error: called with the error that ends the consumer, if one does
        :param on_connection: called when ``connected``, or ``disconnected``: the queue has not answered for 10 s
        :raises UnreachableError: no broker, or a topic is missing
        :raises BindTimeout: the service does not answer
        :raises UnknownQueueError: the settings of the service have no such queue
        :raises StartError: the table of ``lake`` cannot be read, ``MissingExtraError`` without the extra for it
        :raises BadParameterError: a name that is empty or too long
        :raises InconsistentQosError: a backlog below 1, batches of acceptances that might never be full, or a flow that
            reports nothing
        """
        connection = connection_of(options.bootstrap_servers)
        check_length("queue", options.queue, MAX_NAME)
        check_length("name", options.name, MAX_NAME)
        if options.backlog is not None and not 1 <= options.backlog <= MAX_BACKLOG:
            raise InconsistentQosError(
                f"The backlog is {options.backlog}; it must be at least 1, and at most {MAX_BACKLOG:,}, or be omitted."
            )
        check_word("mode", options.mode, AckMode)
        check_lake(options.lake)
        self._queue, self._mode = options.queue, options.mode
        handling = handler_of(options.handler, options.batch_handler, options.max_batch)
        self._previous = threading.local()
        name = f"The consumer {options.name} of the queue {options.queue}"
        self._life = Lifetime(lambda _: self._link.stop(), options.on_error, options.on_connection, name)
        self._ending = Ending(self._life, self._finish)
        link = connection.queue_link or partial(QueueLink, connection)
        self._link: QueueLink = link(
            options,
            self._life,
            lambda *call: self._settle_call(*call),  # noqa: PLW0108 - after a fork it is another method
        )
        try:
            self._link.start(options.bind_timeout)
        except BaseException:
            self.close()
            raise
        if handling is not None:
            step, name = partial(self._handle_all, *handling), "ackstream-queue-handler"
            guard = partial(self._ending.handle, over=self._link.stopped.is_set)
            self._ending.start(connection.loop(step, name, self._link.stopped, guard, lambda: None))

    def receive(self, timeout: float | None = None) -> QueueMessage | None:
        """Return the next message; where the library settles, the one that this thread received before is accepted.

        :param timeout: seconds; ``None``: forever
        :return: ``None`` after the timeout, and once the consumer is closed
        :raises NotConnectedError: another consumer of the same name has taken over
        """
        previous, self._previous.message = getattr(self._previous, "message", None), None
        if previous is not None:
            self._settle_or_warn(previous, "accepted")
        message = self._link.next(timeout)
        if message is None and self._life.error is not None and not self._ending.closing.is_set():
            raise self._life.error
        if self._mode != "client":
            self._previous.message = message
        return message

    def __iter__(self) -> Iterator[QueueMessage]:
        return iter(self.receive, None)

    def stop(self) -> None:
        """Hand out and accept no further messages until :meth:`start`; those it holds can be settled."""
        self._link.halt(halted=True)

    def start(self) -> None:
        """Resume after :meth:`stop`."""
        self._link.halt(halted=False)

    @property
    def backlog(self) -> int | None:
        """How many messages it may hold at once (0: any number); ``None`` while it is not bound."""
        bound = self._link.bound
        return None if bound is None else bound.backlog

    @property
    def lease(self) -> float | None:
        """How many seconds it may hold a message; ``None``: as long as its session lasts."""
        bound = self._link.bound
        return bound.lease_ms / 1000 if bound is not None and bound.lease_ms else None

    @property
    def statistics(self) -> QueueStatistics:
        """Counts since the consumer began."""
        return QueueStatistics(**{name: self._link.counts[name] for name in QueueStatistics.__struct_fields__})

    def close(self) -> None:
        """Let the handler finish, send the settlements, and release all other messages; may be called twice.

        Called by the handler, or meanwhile by ``on_error`` or ``on_refused``, it returns at once, and all this follows
        when the handler has returned.
        """
        self._link.stop()
        self._ending.close(inside=self._life.inside)

    def _finish(self) -> None:
        self._link.close()
        self._life.close()

    def _handle_all(self, handler: Callable[[list[QueueMessage]], object], most: int) -> None:
        while (first := self._link.next(None)) is not None:
            messages = [first]
            while len(messages) < most and (following := self._link.next(0)) is not None:
                messages.append(following)
            raised = False
            try:
                handler(messages)
            except Exception:
                raised = True
                names = ", ".join(message.id for message in messages)
                log.exception("The handler of queue %s failed for message %s.", self._queue, names)
            if (outcome := after_handler(self._mode, raised=raised)) is not None:
                for message in messages:
                    self._settle_or_warn(message, outcome)

    def _settle_call(self, delivery: MessageDelivered, outcome: Settlement) -> None:
        if outcome == "working":
            self._link.work_on(delivery)
        elif takes_call(self._mode, outcome):
            self._link.settle(delivery, outcome)

    def _settle_or_warn(self, message: QueueMessage, outcome: SampleOutcome) -> None:
        try:
            self._link.settle(message.delivery, outcome)
        except NotConnectedError as error:
            log.warning("%s", error)
