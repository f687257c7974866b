"""Publishing messages that are kept until they are acknowledged."""

from __future__ import annotations

from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ackstream.client.errors import AcknowledgementTimeout, MessageTooLargeError
from ackstream.client.publisher_link import PublisherLink
from ackstream.client.reader_acks import ReaderAcknowledgements, WriterAcknowledgements
from ackstream.client.samples import WriterQos
from ackstream.client.storage import KeptMessage, MemoryMessages, SqliteMessages
from ackstream.client.unacknowledged import Handlers, UnacknowledgedMessages
from ackstream.kafka.clients import MAX_RECORD_BYTES, Closing
from ackstream.protocol.record_headers import TOPIC
from ackstream.settings import Kafka

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ackstream.client.reader_acks import Callback
    from ackstream.client.receipts import FailedMessage, PublishStatistics, Receipt, Stage
    from ackstream.protocol.messages import CommandAck

DEFAULT_WINDOW = 1000
DEFAULT_ACK_TIMEOUT = 60.0
LOGON_TIMEOUT = 60.0
_HEADROOM = 1024
"""Bytes of a record besides the message."""


class Publisher(ReaderAcknowledgements, Closing):
    """Numbers messages, keeps them, sends them, and drops each when it is acknowledged.

    Each message gets a future that ends with its receipt, or with a ``RefusedError`` that has the reason; a refused
    message is not sent again. Unanswered messages are; the service recognizes duplicates by client and number. All
    messages of a client go to one partition, so that they keep their order.

    With ``writer_qos`` the publisher also tracks the acknowledgements of readers (see :class:`SampleReader`): it can
    wait for them, calls back for each, and blocks while readers are too far behind.

    Safe to use from several threads. Handlers and callbacks of futures run in the threads that read and send: they
    should be quick and must not publish.
    """

    def __init__(  # noqa: PLR0913 - a publisher has many options, each with a default
        self,
        kafka: Kafka | None = None,
        *,
        client: str,
        store: Path | str | None = None,
        stage: Stage = "persisted",
        window: int = DEFAULT_WINDOW,
        block: bool = True,
        windowed: bool = False,
        ack_timeout: float = DEFAULT_ACK_TIMEOUT,
        conflation_ms: int | None = None,
        error_on_gap: bool = False,
        logon_timeout: float = LOGON_TIMEOUT,
        on_receipt: Callable[[Receipt], None] | None = None,
        on_failed_write: Callable[[FailedMessage], None] | None = None,
        on_ack: Callable[[CommandAck], None] | None = None,
        writer_qos: WriterQos | None = None,
        on_application_acknowledgment: Callable[[Callback], None] | None = None,
        bootstrap: str = "localhost:9092",
        topic_prefix: str = "",
    ) -> None:
        """Connect, log on, and send the messages that are still in the store.

        :param kafka: the broker as in the settings; ``None`` for ``bootstrap`` and ``topic_prefix``
        :param client: the name that sequence numbers belong to; unique, and the same in every run
        :param store: a file that survives the process; ``None``: memory
        :param stage: when a message counts as acknowledged: ``accepted``, Kafka has stored it (milliseconds, and it has
            not been checked), or ``persisted``, it is in the tables (a batch later)
        :param window: the number of messages that may be sent and not acknowledged, 1 or more
        :param block: whether ``publish`` waits for room in the window, or raises ``WouldBlockError``
        :param windowed: ``on_receipt`` is called only for the last message of an ack, which covers all from ``first``
        :param ack_timeout: seconds after which an unanswered message is sent again; several times the usual time to an
            answer, or every message is sent twice
        :param conflation_ms: the requested interval of merged acks; ``None``: the service's own
        :param error_on_gap: refuse a service that lacks messages that were acknowledged to this store before
        :param logon_timeout: seconds to wait for the answer to the logon (stage ``persisted``)
        :param on_failed_write: called with refused messages and duplicates, with the stored copy
        :param on_ack: called with every acknowledgement as it arrives, also merged ones
        :param writer_qos: flow control by readers; ``None``: their acknowledgements are not tracked, unless there is a
            handler for them
        :param on_application_acknowledgment: called once in a run for each message and reader that acknowledged it
        :raises UnreachableError: no broker, or a topic is missing
        :raises StoreError: the file cannot be used
        :raises WindowError: the window or timeout is too small to send anything
        :raises LogonTimeout: the logon was not answered
        :raises GapError: the service lacks messages, and ``error_on_gap``
        :raises SettleTimeout: the settle job does not answer
        :raises InconsistentQosError: the qos names roles, which are a setting of settle
        """
        self._stage: Stage = stage
        self._block = block
        self._store = MemoryMessages() if store is None else SqliteMessages(Path(store), client)
        try:
            self._unacknowledged = UnacknowledgedMessages(
                self._store,
                Handlers(on_receipt, on_failed_write, on_ack),
                stage=stage,
                window=window,
                ack_timeout_ms=round(ack_timeout * 1000),
                windowed=windowed,
                error_on_gap=error_on_gap,
            )
            settings = kafka or Kafka(bootstrap=bootstrap, topic_prefix=topic_prefix)
            self._link = PublisherLink(settings, client, stage, self._unacknowledged)
            self._readers: WriterAcknowledgements | None = None
            if writer_qos is not None or on_application_acknowledgment is not None:
                self._readers = WriterAcknowledgements(
                    writer_qos or WriterQos(), client, self._link.ask_settle, on_application_acknowledgment
                )
            self._link.connect(self._readers)
        except BaseException:
            self._store.close()
            raise
        try:
            self._link.log_on(logon_timeout, conflation_ms)
            if self._readers is not None:
                self._readers.begin(self._unacknowledged.discarded + 1, self.next_seq, logon_timeout)
        except BaseException:
            self.close()
            raise

    def publish(
        self,
        value: bytes,
        *,
        topic: str | None = None,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
        context: Any = None,
        seq: int | None = None,
    ) -> Future[Receipt]:
        """Keep a message and send it.

        :param topic: the subject, by which the service decides who may publish and who subscribes
        :param context: any object; the receipt returns it
        :param seq: the number, for applications that number messages themselves: it has to be the next one
        :return: a future that ends with the receipt; fails with a ``RefusedError`` or ``PublisherClosedError``
        :raises WouldBlockError: the window is full, and ``block`` is off
        :raises ReaderTimeout: readers did not acknowledge enough within ``max_blocking_ms``
        :raises SequenceError: ``seq`` is not the next number
        :raises MessageTooLargeError: it is larger than Kafka accepts
        :raises StoreError: it cannot be kept
        """
        if len(value) > MAX_RECORD_BYTES - _HEADROOM:
            raise MessageTooLargeError("message too large", f"A message of {len(value)} bytes")
        subject = [(TOPIC, topic.encode())] if topic is not None else []
        message = KeptMessage(value, [*headers, *subject], key)
        future: Future[Receipt] = Future()
        readers = self._readers
        while True:
            with self._link.order:
                behind = readers is not None and readers.full
                number = None if behind else self._unacknowledged.add(message, future, context, seq)
                if number is not None:
                    if readers is not None:
                        readers.write()
                    self._link.send(number, message)
                    return future
            if readers is not None and behind:
                readers.wait_for_room()
            else:
                self._unacknowledged.wait_for_room(block=self._block)

    def publish_await_acknowledgement(self, value: bytes, timeout: float | None = None, **options: Any) -> Receipt:
        """Publish and wait for the receipt.

        :param timeout: seconds; ``None``: forever
        :raises AcknowledgementTimeout: the outcome is unknown; the message is kept and sent again
        :raises RefusedError: with the reason
        """
        try:
            return self.publish(value, **options).result(timeout)
        except FutureTimeout:
            raise AcknowledgementTimeout(
                f"No acknowledgement within {timeout:g} s; the message is kept, and may be stored already or later."
            ) from None

    def publish_flush(self, timeout: float | None = None, stage: Stage | None = None) -> None:
        """Wait until every message published so far is acknowledged or refused.

        :param timeout: seconds; ``None``: forever
        :param stage: ``accepted`` to wait only for Kafka
        :raises FlushTimeout: some are not; they are kept
        """
        self._unacknowledged.flush(stage or self._stage, timeout)

    @property
    def unpersisted_count(self) -> int:
        """The number of unacknowledged messages, all of which are kept."""
        return self._unacknowledged.count

    @property
    def next_seq(self) -> int:
        """The number of the next message."""
        return self._unacknowledged.next_seq

    @property
    def effective_conflation_ms(self) -> int | None:
        """The interval of merged acks, if the service could not grant the requested one at the logon."""
        return self._link.effective_conflation_ms

    @property
    def statistics(self) -> PublishStatistics:
        """The counts since the start."""
        return self._unacknowledged.statistics

    def close(self) -> None:
        """Fail the open futures, and send buffered messages (for at most 5 s); may be called twice."""
        self._link.close()
        self._store.close()
