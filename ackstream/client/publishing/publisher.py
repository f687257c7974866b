"""Publishing messages that are kept until they are acknowledged."""

import time
from collections.abc import Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path

from ackstream.client.core.arguments import check_length, check_word, takes
from ackstream.client.core.connection import connection_of
from ackstream.client.core.lifetime import Client
from ackstream.client.core.storage import KeptMessage, PublishStore, Synchronous
from ackstream.client.core.tracing import trace_sending
from ackstream.client.errors import AcknowledgementTimeout, FlushTimeout, PublisherClosedError
from ackstream.client.options import PublisherOptions
from ackstream.client.publishing import publications
from ackstream.client.publishing._acks import SETTLE_TIMEOUT, WriterAcknowledgements
from ackstream.client.publishing._publisher_link import PublisherLink
from ackstream.client.publishing._unacknowledged import UnacknowledgedMessages
from ackstream.client.publishing.publications import AwaitedMessage, NewMessage, Open, PublishStatistics, Receipt, Stage
from ackstream.errors import ClientError, InconsistentQosError
from ackstream.kafka.clients import CLOSE_SECONDS
from ackstream.protocol.messages import MAX_CLIENT_CHARACTERS


class Publisher(Client):
    """Numbers messages, keeps them, sends them, and drops each when it is acknowledged.

    Each message gets a future that ends with its receipt, or with a ``RefusedError`` that has the reason; a refused
    message is not sent again. Unanswered messages are; the service recognizes duplicates by client and number. All
    messages of a client go to one partition, which keeps their order. One that Kafka refuses for good fails, and its
    number is withdrawn. A later publisher of the same name ends this one, and the service accepts no more of its
    messages.

    With ``writer_qos`` the publisher also tracks the acknowledgements of readers (see :class:`SampleReader`): it can
    wait for them, calls a handler for each, and blocks while readers lag too far. Safe to use from several threads.
    Handlers and callbacks of futures run in the threads that read and send: they should be quick and must not publish.
    """

    @takes(PublisherOptions)
    def __init__(self, options: PublisherOptions) -> None:
        """Connect, log on, and send the messages that are still in the store.

        :param bootstrap_servers: ``host:port,…`` or the Kafka of the settings
        :param name: the one that sequence numbers belong to; unique, and the same in every run
        :param store: a file that survives the process; ``None``: memory. A name has one: see ``on_failed_write``
        :param stage: a message counts as acknowledged when Kafka has stored it, unchecked (``accepted``, milliseconds),
            or when it is in the tables (``persisted``, a batch later)
        :param synchronous: ``full``: each message is on the disk before it is sent; a failure of the machine loses none
        :param window: the number of messages that may be sent and not acknowledged, 1 or more
        :param window_bytes: the bytes that they may have together; a larger message is sent alone
        :param block: whether ``publish`` waits for room in the window, or raises ``WouldBlockError``
        :param windowed: ``on_receipt`` is called only for the last message of an ack, which covers all from ``first``
        :param ack_timeout: seconds without an answer until the oldest message is sent again; more if answers are slow
        :param conflation_ms: the interval of merged acks (``None``: a second); granted: ``effective_conflation_ms``
        :param error_on_gap: refuse a service that lacks messages that were acknowledged to this store before
        :param logon_timeout: seconds to wait for the answer to the logon (stage ``persisted``; or where messages are
            kept, which get new numbers without it)
        :param on_receipt: called with each receipt
        :param on_failed_write: called with refused messages and duplicates, with the stored copy; and with those that
            get new numbers, as another store has used theirs
        :param on_ack: called with every acknowledgement as it arrives: merged ones, and those of single messages
        :param writer_qos: flow control by readers, whose acknowledgements are tracked with it or with a handler alone
        :param on_application_acknowledgment: called once in a run for each message and reader that acknowledged it
        :param on_error: called with the error that ends the publisher, if one does; open futures have failed with it
        :param on_connection: called when ``connected``, or ``disconnected``: a message was not stored or answered in
            time, and is retried
        :raises BadParameterError: the name is empty or too long, or ``bootstrap_servers`` names no brokers
        :raises UnreachableError: no broker, or a topic is missing
        :raises StoreError: the file cannot be used
        :raises WindowError: the window or timeout is too small to send anything
        :raises LogonTimeout: the logon was not answered
        :raises GapError: the service lacks messages, and ``error_on_gap``
        :raises SettleTimeout: the settle job does not answer
        """
        connection = connection_of(options.bootstrap_servers)
        check_length("name", name := options.name, MAX_CLIENT_CHARACTERS)
        check_word("stage", options.stage, Stage)
        check_word("synchronous", options.synchronous, Synchronous)
        self._options = options
        self._topic, self._name = connection.kafka.topic("messages"), name
        self._store = PublishStore(None if options.store is None else Path(options.store), name, options.synchronous)
        with ExitStack() as stack:
            stack.callback(self._store.close)
            self._unacknowledged = UnacknowledgedMessages(self._store, options)
            self._link = PublisherLink(connection, options, self._store, self._unacknowledged)
            self._life, self._readers = self._link.life, self._link.readers
            stack.callback(self.close)
            logon = self._link.log_on()
            if self._readers is not None:
                self._readers.begin(self._store.discarded + 1, self.next_seq, logon.holes, options.logon_timeout)
            self._link.send_again(logon.resent)
            stack.pop_all()

    @takes(NewMessage)
    def publish(self, message: NewMessage) -> Future[Receipt]:
        """Keep a message and send it.

        :param topic: the subject, by which the service decides who may publish and who subscribes
        :param headers: the application's own; names of the service (``protocol.record_headers``) are refused
        :param ttl_ms: the message is refused if it is older when the service reads it
        :param context: any object; the receipt returns it
        :param acks: acknowledgements of this message, which ``on_ack`` is called with, one by one: ``received``,
            ``processed``, ``completed`` with the command id; ``persisted``, which is merged if the topic has a log
        :param cid: the command id; ``None``: the number
        :param ack_immediately: its acknowledgement does not wait for others
        :param timeout: seconds to wait for room in the window; ``None``: forever. A wait of ten seconds is logged
        :return: a future that ends with the receipt; fails with a ``RefusedError``, with ``PublisherClosedError`` or
            with the error that ended the publisher. It cannot be cancelled: the message is sent
        :raises BadParameterError: an argument has a wrong type or a reserved name; nothing was numbered or kept
        :raises PublisherClosedError: the publisher is closed
        :raises WouldBlockError: the window is full, and ``block`` is off, or for ``timeout`` seconds
        :raises ReaderTimeout: readers did not acknowledge enough within ``max_blocking_ms``
        :raises MessageTooLargeError: it is larger than Kafka accepts
        :raises StoreError: it cannot be kept
        """
        future, headers = self._traced(message.headers)
        try:
            self._publish([(publications.message_of(message, headers), Open(future, message.context))], message.timeout)
        except ClientError:
            future.cancel()
            raise
        return future

    def publish_many(
        self,
        values: Iterable[bytes],
        *,
        topic: str | None = None,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
        ttl_ms: int | None = None,
        timeout: float | None = None,
    ) -> list[Future[Receipt]]:
        """Keep messages and send them, in order; with a ``store`` as many as fit are one change of the file.

        The parameters are those of :meth:`publish`. Its ``BadParameterError`` or ``MessageTooLargeError`` of any
        message is raised before one is numbered or kept. A later error, of keeping a message or waiting for room, ends
        the futures of that message and of all after it; those before it are published. Returns a future for each
        message.
        """
        own = [*headers]
        traced = [(NewMessage(value, topic=topic, key=key, ttl_ms=ttl_ms), *self._traced(own)) for value in values]
        try:
            new = [(publications.message_of(one, named), Open(future, None)) for one, future, named in traced]
        except ClientError:
            for _, future, _ in traced:
                future.cancel()
            raise
        try:
            self._publish(new, timeout)
        except ClientError as error:
            for _, opened in new:
                if not (opened.future.running() or opened.future.done()):
                    opened.future.set_exception(error)
        return [opened.future for _, opened in new]

    def _traced(self, headers: Iterable[tuple[str, bytes]]) -> tuple[Future[Receipt], list[tuple[str, bytes]]]:
        future: Future[Receipt] = Future()
        own = {"messaging.client.id": self._name}
        return future, [*headers, *trace_sending("PRODUCER", self._topic, own, future, publications.described)]

    def _publish(self, new: list[tuple[KeptMessage, Open]], timeout: float | None) -> None:
        readers, until = self._readers, None if timeout is None else time.monotonic() + timeout
        done = 0
        while done < len(new):
            with self._link.order:
                if self._link.closed:
                    raise PublisherClosedError("The publisher is closed.")
                behind = readers is not None and readers.full
                # where readers are tracked, each message may have to wait for them
                some = [] if behind else new[done:] if readers is None else new[done : done + 1]
                sent = self.next_seq
                try:
                    numbers = self._unacknowledged.add(some)
                    for number, (message, _) in zip(numbers, some, strict=False):
                        if readers is not None:
                            readers.write()
                        self._link.send(number, message)
                        sent = number + 1
                finally:
                    # of an interrupt: they have their numbers, and the thread of the link sends them
                    for number in range(sent, self.next_seq):
                        self._unacknowledged.rejected(number)
                        if readers is not None:
                            readers.written = number
            done += len(numbers)
            if readers is not None and behind:
                readers.wait_for_room()
            elif not numbers:
                left = None if until is None else max(0.0, until - time.monotonic())
                self._unacknowledged.wait_for_room(new[done][0].size, left if self._options.block else 0.0)

    @takes(AwaitedMessage)
    def publish_await_acknowledgement(self, message: AwaitedMessage) -> Receipt:
        """Publish and wait for the receipt; the parameters are those of :meth:`publish`, ``timeout`` the second one.

        :param timeout: seconds, for room in the window and for the receipt; ``None``: forever
        :param ack_immediately: on by default: the acknowledgement does not wait for other messages
        :raises AcknowledgementTimeout: the outcome is unknown; the message is kept and sent again
        :raises WouldBlockError: there was no room; the message is not published
        :raises RefusedError: with the reason
        """
        begun = time.monotonic()
        future = self.publish(**vars(message))
        try:
            left = None if message.timeout is None else max(0.0, message.timeout + begun - time.monotonic())
            return future.result(left)
        except FutureTimeout:
            raise AcknowledgementTimeout(
                f"No acknowledgement within {message.timeout:g} s; the message is kept, and may be stored already or"
                " later."
            ) from None

    def publish_flush(self, timeout: float | None = None, stage: Stage | None = None) -> None:
        """Wait until every published message is acknowledged or refused.

        :param timeout: seconds; ``None``: forever
        :param stage: ``accepted`` to wait only for Kafka, ``persisted`` for the tables; ``None``: the publisher's own
        :raises FlushTimeout: some are not; they are kept
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        wanted = self._options.stage if stage is None else stage
        hurried = wanted == self._options.stage == "persisted"
        self._unacknowledged.flush(wanted, timeout, self._link.wait_for_acks if hurried else None)
        if wanted == "persisted" and self._options.stage == "accepted":
            # these are not acknowledged one by one: the service reports when it has decided about all of them
            self._link.flush(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def wait_for_acknowledgments(self, max_wait: float | None = None) -> None:
        """Wait until every message is complete, including those published meanwhile.

        A message is complete when the required roles, of settle and of ``writer_qos``, each with its quorum, and all
        other readers that are known have acknowledged it.

        :param max_wait: seconds; ``None``: forever
        :raises ReaderTimeout: some messages are not complete; names the parties that the oldest message waits for
        """
        self._tracked.wait(max_wait)

    def is_sample_app_acknowledged(self, seq: int) -> bool:
        """Return whether a message is complete; one that `keep-last` has replaced before is not."""
        return self._tracked.is_complete(seq)

    @property
    def first_unacknowledged(self) -> int | None:
        """The number of the oldest incomplete message; ``None`` if all are complete."""
        return self._tracked.first_unacknowledged

    def waiting_for(self, timeout: float = SETTLE_TIMEOUT) -> tuple[str, ...]:
        """Return the parties that the oldest incomplete message waits for: readers by name, then roles below quorum.

        :raises SettleTimeout: the settle job does not answer
        """
        return self._tracked.fresh_state(timeout).waiting_for

    @property
    def unpersisted_count(self) -> int:
        """The number of unacknowledged messages, all of which are kept."""
        return len(self._store)

    @property
    def next_seq(self) -> int:
        """The number of the next message."""
        return self._store.last + 1

    @property
    def effective_conflation_ms(self) -> int | None:
        """The interval of merged acks, if the service did not grant the requested one at the logon."""
        logon = self._link.logon
        return None if logon is None else logon.effective_conflation_ms

    @property
    def statistics(self) -> PublishStatistics:
        """The counts since the start."""
        return self._unacknowledged.statistics

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Wait at most ``timeout`` seconds until Kafka has all messages, then fail open futures; may be called twice.

        Stage ``persisted``: call :meth:`publish_flush` before, to wait for the tables. Within a callback it waits for
        nothing. If an exception leaves the ``with`` block, ``FlushTimeout`` is only logged.

        :raises FlushTimeout: unsent messages are lost without a ``store``; ``on_failed_write`` got each (``closed``)
        """
        left = self._link.close(timeout)
        self._store.close()
        if left and self._options.store is None:
            raise FlushTimeout(
                f"Kafka did not store {len(left)} messages within {timeout:g} s, from number {left[0]} on; they are "
                "lost: close the publisher with a longer timeout, or give it a store."
            )

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        with nullcontext() if error is None else suppress(FlushTimeout):
            self.close()

    @property
    def _tracked(self) -> WriterAcknowledgements:
        if self._readers is None:
            raise InconsistentQosError(
                "This publisher does not track its readers: give it `writer_qos`, such as WriterQos()."
            )
        return self._readers
