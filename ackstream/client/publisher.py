"""Publishing messages that are kept until they are acknowledged."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from kafka.errors import KafkaError

from ackstream.client.errors import MessageTooLargeError, StoreError, TakenOverError, refused
from ackstream.client.publish_window import PublishWindow
from ackstream.client.reader_acks import Acknowledged, ReaderAcknowledgements
from ackstream.client.readers.qos import WriterQos
from ackstream.client.receipts import (
    AcknowledgementTimeout,
    FailedMessage,
    LogonTimeout,
    PublisherClosedError,
    PublishStatistics,
    Receipt,
    Stage,
)
from ackstream.client.storage import MemoryMessages, SqliteMessages
from ackstream.client.unacknowledged import Handlers, Kept, Outstanding
from ackstream.kafka import clients
from ackstream.kafka.clients import Closing
from ackstream.kafka.partitions import PartitionAssignment
from ackstream.kafka.reader import POLL_MS, TopicReader
from ackstream.protocol import readers as protocol_readers
from ackstream.protocol.messages import CommandAck, decode_ack
from ackstream.settings import Kafka

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ackstream.client.reader_acks import Callback
    from ackstream.protocol.readers import WriterAsks

log = logging.getLogger(__name__)

DEFAULT_WINDOW = 1000
DEFAULT_ACK_TIMEOUT = 60.0
LOGON_TIMEOUT = 60.0
DELIVERY_SECONDS = 120.0
_CLOSE_SECONDS = 5.0
_NEVER_MS = 2**62
_HEADROOM = 1024
"""Bytes of a record that are not the message."""


class Publisher(ReaderAcknowledgements, Closing):
    """Numbers messages, keeps them, sends them, and lets go of each when it is acknowledged.

    Each message gets a future that ends with its receipt, or with the reason it was refused for (a ``RefusedError``; a
    refused message is not sent again). What is not answered is sent again; the service recognises repeats by client
    and number. All messages of a client go to one partition, so that they keep their order.

    With ``writer_qos`` it also knows what readers have acknowledged (see :class:`SampleReader`): it can wait for them,
    is told of each, and writes no more than they keep up with.

    Safe to use from several threads. Handlers and callbacks of futures run in the threads that read and send: they
    should be quick and must not publish.
    """

    def __init__(  # noqa: PLR0913 - what a publisher can be told is many things, each with a default
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
        """Connect, log on, and send again what the store still has.

        :param kafka: the broker as in the settings; else ``bootstrap`` and ``topic_prefix``
        :param client: the name that sequence numbers belong to; unique, and the same in every run
        :param store: a file that survives the process; ``None``: memory
        :param stage: what counts as acknowledged: ``accepted``, Kafka has it (milliseconds, and nobody has checked
            it), or ``persisted``, it is in the tables (a batch later)
        :param window: messages that may be on their way, 1 or more
        :param block: whether ``publish`` waits for room in the window, or raises ``WouldBlockError``
        :param windowed: ``on_receipt`` is called for the last message of an ack alone, meaning all from ``first`` on
        :param ack_timeout: seconds after which a message without an answer is sent again; several times what an
            answer takes, or every message is sent twice
        :param conflation_ms: how often merged acks shall come; ``None``: as the service does
        :param error_on_gap: refuse a service that lacks what was acknowledged to this store before
        :param logon_timeout: seconds the service may take to answer the logon (stage ``persisted``)
        :param on_failed_write: gets refused messages with their stored copy, and duplicates
        :param on_ack: gets every acknowledgement as it came, also merged ones
        :param writer_qos: how it keeps step with readers; ``None``: it does not ask about them, unless there is a
            handler
        :param on_application_acknowledgment: gets each reader's acknowledgement of each message, once in a run
        :raises UnreachableError: no broker, or a topic is missing
        :raises StoreError: the file cannot be used
        :raises WindowError: a window or timeout in which nothing could be sent
        :raises LogonTimeout: nobody answers
        :raises GapError: the service lacks messages, and ``error_on_gap``
        :raises SettleTimeout: nobody answers about readers
        :raises InconsistentQosError: the qos names roles, which are a setting of settle
        """
        self._kafka = kafka or Kafka(bootstrap=bootstrap, topic_prefix=topic_prefix)
        self._name = client.encode()
        self._topic = self._kafka.topic("messages")
        self._stage: Stage = stage
        self._block = block
        self._conflation_ms = conflation_ms
        self._order = threading.RLock()
        self._logon_id = f"logon-{secrets.token_hex(8)}"
        self._logon: CommandAck | None = None
        self._closing = threading.Event()
        # Kafka's own deliveries need no timer of ours
        limits = PublishWindow(window, round(ack_timeout * 1000) if stage == "persisted" else _NEVER_MS)
        self._messages = MemoryMessages() if store is None else SqliteMessages(Path(store), client)
        handlers = Handlers(on_receipt, on_failed_write, on_ack)
        self._outstanding = Outstanding(
            self._messages, limits, stage, handlers, windowed=windowed, error_on_gap=error_on_gap
        )
        self._readers: Acknowledged | None = None
        if writer_qos is not None or on_application_acknowledgment is not None:
            self._readers = Acknowledged(
                writer_qos or WriterQos(), client, self._ask_settle, on_application_acknowledgment
            )
        try:
            self._connect()
        except BaseException:
            self._messages.close()
            raise
        self._thread = threading.Thread(target=self._run, name="ackstream-publisher", daemon=True)
        self._thread.start()
        try:
            self._log_on(logon_timeout)
            if self._readers is not None:
                self._readers.begin(self._outstanding.discarded + 1, self.next_seq, logon_timeout)
        except BaseException:
            self.close()
            raise

    # -- for the application -----------------------------------------------------------------------------------------

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

        :param topic: the subject the service decides by: who may publish, who subscribes
        :param context: anything; comes back with the receipt
        :param seq: the number, for who counts too: it has to be the next one
        :return: a future that ends with the receipt; fails with a ``RefusedError`` or ``PublisherClosedError``
        :raises WouldBlockError: the window is full, and ``block`` is off
        :raises ReaderTimeout: readers have not acknowledged enough, and did not within ``max_blocking_ms``
        :raises SequenceError: ``seq`` is not the next number
        :raises MessageTooLargeError: Kafka would not take it
        :raises StoreError: it cannot be kept
        """
        if len(value) > clients.MAX_RECORD_BYTES - _HEADROOM:
            raise MessageTooLargeError("message too large", f"A message of {len(value)} bytes")
        extra = [("topic", topic.encode())] if topic is not None else []
        kept = Kept(value, [*headers, *extra], key)
        future: Future[Receipt] = Future()
        readers = self._readers
        while True:
            with self._order:
                behind = readers is not None and readers.full
                number = None if behind else self._outstanding.add(kept, future, context, seq)
                if number is not None:
                    if readers is not None:
                        readers.write()
                    self._send(number, kept)
                    return future
            if readers is not None and behind:
                readers.wait_for_room()
            else:
                self._outstanding.wait_for_room(block=self._block)

    def publish_await_acknowledgement(self, value: bytes, timeout: float | None = None, **options: Any) -> Receipt:
        """Publish and wait for the receipt.

        :param timeout: seconds; ``None``: for ever
        :raises AcknowledgementTimeout: the outcome is unknown; the message is kept and goes on being sent
        :raises RefusedError: the reason it was refused for
        """
        try:
            return self.publish(value, **options).result(timeout)
        except FutureTimeout:
            raise AcknowledgementTimeout(
                f"No acknowledgement within {timeout:g} s; the message is kept, and may be stored already or later."
            ) from None

    def publish_flush(self, timeout: float | None = None, stage: Stage | None = None) -> None:
        """Wait until everything published so far is acknowledged (or refused), or has only been taken by Kafka.

        :param timeout: seconds; ``None``: for ever
        :param stage: ``accepted`` to wait for Kafka alone
        :raises FlushTimeout: not everything was; it is kept
        """
        self._outstanding.flush(stage or self._stage, timeout)

    @property
    def unpersisted_count(self) -> int:
        """How many messages are kept because they are not acknowledged."""
        return self._outstanding.unpersisted_count

    @property
    def next_seq(self) -> int:
        """The number that the next message gets."""
        return self._outstanding.next_seq

    @property
    def effective_conflation_ms(self) -> int | None:
        """How often merged acks come where the service cannot do it as often as asked; it said so at the logon."""
        return None if self._logon is None else self._logon.effective_conflation_ms

    @property
    def statistics(self) -> PublishStatistics:
        """What has happened so far."""
        return self._outstanding.statistics

    def close(self) -> None:
        """Send what was accepted (for at most 5 s), then fail the futures that are open; may be called twice."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._end(PublisherClosedError("The publisher was closed before the acknowledgement came."))
        clients.close_producer(self._producer, _CLOSE_SECONDS)
        self._thread.join()
        self._reader.consumer.close(timeout_ms=1_000)
        self._messages.close()

    # -- sending -----------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        acks = self._kafka.topic("publisher-acks")
        topics = [self._topic, acks, *([] if self._readers is None else [self._kafka.topic("app-acks")])]
        consumer = clients.connect_consumer(self._kafka, None, auto_offset_reset="earliest")
        try:
            clients.check_topics(consumer, self._kafka, *topics)
            self._places = PartitionAssignment(consumer, self._name, addressed=(acks,))
            self._producer = clients.connect_producer(
                self._kafka, self._topic, delivery_timeout=DELIVERY_SECONDS, linger_ms=2
            )
        except BaseException as error:
            consumer.close(autocommit=False)
            if isinstance(error, KafkaError):
                raise clients.unreachable(self._kafka) from error
            raise
        self._reader = TopicReader(consumer, self._closing)

    def _log_on(self, timeout: float) -> None:
        outstanding = self._outstanding
        kept = outstanding.unpersisted
        if self._stage == "accepted" and outstanding.next_seq == 1:
            # nobody is asked how far this name had got: begin above all that ever was
            outstanding.begin_after(time.time_ns() // 1_000_000 * 1_000_000)
        headers = [("command", b"logon"), ("cid", self._logon_id.encode()), ("ack", b"processed")]
        first = kept[0] if kept else outstanding.next_seq
        if kept or first > 1:
            # what was refused from there on is told again
            headers.append(("first", b"%d" % first))
        if self._conflation_ms is not None:
            headers.append(("ack-conflation", f"{self._conflation_ms}ms".encode()))
        self._producer.send(self._topic, b"", self._name, [("client", self._name), *headers])
        last = outstanding.discarded
        if self._stage == "persisted":
            with outstanding.changed:
                answered = outstanding.changed.wait_for(
                    lambda: self._logon is not None or outstanding.ended is not None, timeout
                )
            if not answered:
                raise LogonTimeout(
                    f"No answer to the logon of {self._name.decode()} within {timeout:g} s: start the job that persists"
                    " messages (`ackstream submit persist`), or publish with stage accepted."
                )
            if outstanding.ended is not None:
                raise outstanding.ended
            last = self._answer_to_logon()
        with self._order:
            self._send_again(outstanding.logged_on(last))

    def _answer_to_logon(self) -> int:
        logon = self._logon
        if logon is None or logon.status != "success":
            raise refused("not entitled" if logon is None or logon.reason is None else logon.reason, "The logon")
        return logon.seq or 0

    def _send(self, seq: int, kept: Kept) -> None:
        headers = [("client", self._name), ("seq", str(seq).encode()), ("ack", self._asked)]
        if kept.key is not None:
            headers.append(("key", kept.key))
        self._outstanding.sending(seq)
        try:
            sent = self._producer.send(self._topic, kept.value, self._name, [*headers, *kept.headers])
        except (KafkaError, ValueError) as error:
            self._not_accepted(seq, error)
        else:
            sent.add_callback(partial(self._on_accepted, seq))
            sent.add_errback(partial(self._not_accepted, seq))

    @property
    def _asked(self) -> bytes:
        return b"persisted" if self._stage == "persisted" else b"none"

    def _send_again(self, numbers: Iterable[int]) -> None:
        for seq in numbers:
            kept = self._outstanding.get(seq)
            if kept is not None:
                self._outstanding.resent += 1
                self._send(seq, kept)

    # -- answers of Kafka: in the producer's thread --------------------------------------------------------------------

    def _on_accepted(self, seq: int, _metadata: Any) -> None:
        self._send_admitted(self._outstanding.accepted(seq))

    def _not_accepted(self, seq: int, error: BaseException) -> None:
        log.warning("Kafka did not take message %s, which is sent again: %s", seq, error)
        self._outstanding.not_accepted(seq)

    def _send_admitted(self, numbers: list[int]) -> None:
        if numbers:
            with self._order:
                self._send_again(numbers)

    # -- answers of the service: in our thread -------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                for record in self._reader.read(POLL_MS):
                    if record.key == self._name:
                        self._take(record)
                self._send_admitted(self._outstanding.late())
                self._places.update()
            except StoreError as error:
                log.exception("The publisher cannot go on.")
                self._end(error)
                return

    def _take(self, record: Any) -> None:
        answer = protocol_readers.read_answer(record.value)
        if answer is not None:
            if self._readers is not None:
                self._readers.take(answer)
            return
        try:
            ack = decode_ack(record.value)
        except (msgspec.DecodeError, TypeError) as error:
            log.warning("A record of %s is no acknowledgement (offset %s): %s", record.topic, record.offset, error)
            return
        self._outstanding.raw(ack)
        if ack.ack_type == "persisted" and self._stage == "persisted":
            self._send_admitted(self._outstanding.acknowledged(ack))
        elif ack.ack_type == "processed" and (ack.cid or "").startswith("logon-"):
            self._take_logon(ack)

    def _take_logon(self, ack: CommandAck) -> None:
        if ack.cid == self._logon_id:
            with self._outstanding.changed:
                self._logon = ack
                self._outstanding.changed.notify_all()
        elif self._logon is not None and _position(ack) > _position(self._logon):
            # not an older one that is told again
            name = self._name.decode()
            self._end(TakenOverError(f"Another publisher has logged on as {name}: names are for one."))

    def _ask_settle(self, question: WriterAsks) -> None:
        try:
            self._producer.send(self._kafka.topic("app-acks"), protocol_readers.write(question), self._name)
        except (KafkaError, ValueError) as error:
            log.warning("Kafka did not take a question of %s, which is asked again: %s", question.writer, error)

    def _end(self, error: Exception) -> None:
        self._outstanding.end(error)
        if self._readers is not None:
            self._readers.end(error)


def _position(logon: CommandAck) -> int:
    """Return the position of a logon among those of its client."""
    return logon.bookmark if isinstance(logon.bookmark, int) else -1
