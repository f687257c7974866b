"""Publishing messages that are kept until they are acknowledged."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from kafka.errors import KafkaError

from ackstream.client.errors import (
    AcknowledgementTimeout,
    LogonTimeout,
    MessageTooLargeError,
    PublisherClosedError,
    StoreError,
    TakenOverError,
    refused,
)
from ackstream.client.lifetime import call_handler
from ackstream.client.reader_acks import ReaderAcknowledgements, WriterAcknowledgements
from ackstream.client.samples import WriterQos
from ackstream.client.storage import KeptMessage, MemoryMessages, SqliteMessages
from ackstream.client.unacknowledged import UnacknowledgedMessages
from ackstream.kafka.clients import MAX_RECORD_BYTES, Closing
from ackstream.kafka.reader import ClientConnection
from ackstream.protocol import readers as reader_records
from ackstream.protocol.messages import NOT_ENTITLED, CommandAck, decode_ack
from ackstream.protocol.record_headers import ACK, ACK_CONFLATION, CID, CLIENT, COMMAND, FIRST, KEY, SEQ, TOPIC
from ackstream.settings import Kafka

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ackstream.client.reader_acks import Callback
    from ackstream.client.unacknowledged import FailedMessage, PublishStatistics, Receipt, Stage
    from ackstream.protocol.readers import WriterStateRequest

log = logging.getLogger(__name__)

_HEADROOM = 1024  # bytes of a record besides the message


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
        window: int = 1000,
        block: bool = True,
        windowed: bool = False,
        ack_timeout: float = 60.0,
        conflation_ms: int | None = None,
        error_on_gap: bool = False,
        logon_timeout: float = 60.0,
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
        :param ack_timeout: seconds until an unanswered message is sent again; several times the usual time to an answer
        :param conflation_ms: the requested interval of merged acks; ``None``: the service's own
        :param error_on_gap: refuse a service that lacks messages that were acknowledged to this store before
        :param logon_timeout: seconds to wait for the answer to the logon (stage ``persisted``)
        :param on_failed_write: called with refused messages and duplicates, with the stored copy
        :param on_ack: called with every acknowledgement as it arrives, also merged ones
        :param writer_qos: flow control by readers, whose acknowledgements are tracked with it or with a handler alone
        :param on_application_acknowledgment: called once in a run for each message and reader that acknowledged it
        :raises UnreachableError: no broker, or a topic is missing
        :raises StoreError: the file cannot be used
        :raises WindowError: the window or timeout is too small to send anything
        :raises LogonTimeout: the logon was not answered
        :raises GapError: the service lacks messages, and ``error_on_gap``
        :raises SettleTimeout: the settle job does not answer
        :raises InconsistentQosError: the qos names roles, which are a setting of settle
        """
        self._kafka = kafka or Kafka(bootstrap=bootstrap, topic_prefix=topic_prefix)
        self._name = client
        self._stage: Stage = stage
        self._block = block
        self._on_ack = on_ack
        self._order = threading.RLock()  # a message is numbered and sent under it
        self._logon_id = f"logon-{secrets.token_hex(8)}"
        self._logon: CommandAck | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ackstream-publisher", daemon=True)
        self._store = MemoryMessages() if store is None else SqliteMessages(Path(store), client)
        with ExitStack() as stack:
            stack.callback(self._store.close)
            self._unacknowledged = UnacknowledgedMessages(
                self._store,
                on_receipt=on_receipt,
                on_failed_write=on_failed_write,
                stage=stage,
                window=window,
                ack_timeout_ms=round(ack_timeout * 1000),
                windowed=windowed,
                error_on_gap=error_on_gap,
            )
            self._readers: WriterAcknowledgements | None = None
            if writer_qos is not None or on_application_acknowledgment is not None:
                qos = writer_qos or WriterQos()
                self._readers = WriterAcknowledgements(qos, client, self._ask_settle, on_application_acknowledgment)
            checked = () if self._readers is None else ("app-acks",)
            self._connection = ClientConnection(
                self._kafka, client, self._closing, sends="messages", addressed="publisher-acks", checked=checked
            )
            self._thread.start()
            stack.callback(self.close)
            self._log_on(logon_timeout, conflation_ms)
            if self._readers is not None:
                self._readers.begin(self._store.discarded + 1, self.next_seq, logon_timeout)
            stack.pop_all()

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
            with self._order:
                behind = readers is not None and readers.full
                number = None if behind else self._unacknowledged.add(message, future, context, seq)
                if number is not None:
                    if readers is not None:
                        readers.write()
                    self._send(number, message)
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
        return len(self._store)

    @property
    def next_seq(self) -> int:
        """The number of the next message."""
        return self._store.last + 1

    @property
    def effective_conflation_ms(self) -> int | None:
        """The interval of merged acks, if the service could not grant the requested one at the logon."""
        return None if self._logon is None else self._logon.effective_conflation_ms

    @property
    def statistics(self) -> PublishStatistics:
        """The counts since the start."""
        return self._unacknowledged.statistics

    def close(self) -> None:
        """Fail the open futures, and send buffered messages (for at most 5 s); may be called twice."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._end(PublisherClosedError("The publisher was closed before the acknowledgement arrived."))
        self._thread.join()
        self._connection.close()
        self._store.close()

    def _log_on(self, timeout: float, conflation_ms: int | None) -> None:
        if self._stage == "accepted" and self.next_seq == 1:
            # the service is not asked for its last number: begin above any that was ever used
            self._store.drop(time.time_ns() // 1_000_000 * 1_000_000)
        kept = self._store.numbers()
        name, identity = self._connection.name, self._logon_id.encode()
        headers = [(CLIENT, name), (COMMAND, b"logon"), (CID, identity), (ACK, b"processed")]
        first = kept[0] if kept else self.next_seq
        if kept or first > 1:  # refusals from this number on are reported again
            headers.append((FIRST, b"%d" % first))
        if conflation_ms is not None:
            headers.append((ACK_CONFLATION, f"{conflation_ms}ms".encode()))
        self._connection.send(b"", headers)
        last = self._store.discarded if self._stage == "accepted" else self._wait_for_logon(timeout)
        self._send_again(self._unacknowledged.logged_on(last))

    def _wait_for_logon(self, timeout: float) -> int:
        self._unacknowledged.wait_for(lambda: self._logon is not None, timeout)
        if self._logon is None:
            raise LogonTimeout(
                f"The logon of {self._name} was not answered within {timeout:g} s: start the job that persists"
                " messages (`ackstream submit persist`), or publish with stage accepted."
            )
        if self._logon.status != "success":
            raise refused(self._logon.reason or NOT_ENTITLED, "The logon")
        return self._logon.seq or 0

    def _send(self, seq: int, message: KeptMessage) -> None:
        """Send a message; to be called under ``_order``."""
        ack = b"persisted" if self._stage == "persisted" else b"none"
        key = [] if message.key is None else [(KEY, message.key)]
        headers = [(CLIENT, self._connection.name), (SEQ, b"%d" % seq), (ACK, ack), *key, *message.headers]
        self._unacknowledged.sending(seq)
        try:
            sent = self._connection.send(message.value, headers)
        except (KafkaError, ValueError) as error:
            self._on_rejected(seq, error)
        else:
            sent.add_callback(lambda _metadata: self._send_again(self._unacknowledged.accepted(seq)))
            sent.add_errback(partial(self._on_rejected, seq))

    def _ask_settle(self, question: WriterStateRequest) -> None:
        topic, value = self._kafka.topic("app-acks"), reader_records.write(question)
        try:
            self._connection.producer.send(topic, value, self._connection.name)
        except (KafkaError, ValueError) as error:
            log.warning("Kafka did not store a query about %s, which is sent again: %s", question.writer, error)

    def _send_again(self, numbers: list[int]) -> None:
        if not numbers:
            return
        with self._order:
            for seq in numbers:
                message = self._unacknowledged.resend(seq)
                if message is not None:
                    self._send(seq, message)

    def _on_rejected(self, seq: int, error: BaseException) -> None:
        log.warning("Kafka did not store message %s, which is sent again: %s", seq, error)
        self._unacknowledged.rejected(seq)

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                for record in self._connection.read():
                    self._receive(record)
                self._send_again(self._unacknowledged.overdue())
        except StoreError as error:
            log.exception("The publisher stops.")
            self._end(error)

    def _receive(self, record: Any) -> None:
        answer = reader_records.read_answer(record.value)
        if answer is not None:
            if self._readers is not None:
                self._readers.receive(answer)
            return
        try:
            ack = decode_ack(record.value)
        except (msgspec.DecodeError, TypeError) as error:
            log.warning("A record of %s is not an acknowledgement (offset %s): %s", record.topic, record.offset, error)
            return
        call_handler(self._on_ack, ack)
        if ack.ack_type == "persisted" and self._stage == "persisted":
            self._send_again(self._unacknowledged.acknowledged(ack))
        elif ack.ack_type == "processed" and (ack.cid or "").startswith("logon-"):
            self._receive_logon(ack)

    def _receive_logon(self, ack: CommandAck) -> None:
        if ack.cid == self._logon_id:
            with self._unacknowledged.changed:
                self._logon = ack
                self._unacknowledged.changed.notify_all()
        elif self._logon is not None and _position(ack) > _position(self._logon):
            # an older position would be a replay of an earlier logon
            self._end(TakenOverError(f"Another publisher has logged on as {self._name}: names must be unique."))

    def _end(self, error: Exception) -> None:
        self._unacknowledged.end(error)
        if self._readers is not None:
            self._readers.end(error)


def _position(logon: CommandAck) -> int:
    return logon.bookmark if isinstance(logon.bookmark, int) else -1
