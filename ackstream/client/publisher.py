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
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from kafka.errors import KafkaError

from ackstream.client import connection
from ackstream.client.closing import Closing
from ackstream.client.errors import StoreError
from ackstream.client.reader import POLL_MS, Reader
from ackstream.client.receipts import (
    AcknowledgementTimeout,
    FailedMessage,
    FlushTimeout,
    LogonTimeout,
    PublisherClosedError,
    PublishStatistics,
    Receipt,
    Stage,
    TakenOverError,
    WouldBlockError,
)
from ackstream.client.store import MemoryMessages, SqliteMessages
from ackstream.protocol.intervals import Intervals
from ackstream.publishing.acks import Ack, decode_ack
from ackstream.publishing.conflation import DUPLICATE
from ackstream.publishing.reasons import MessageTooLargeError, refused
from ackstream.publishing.store import PublishStore, SequenceError
from ackstream.publishing.window import PublishWindow
from ackstream.settings import Kafka

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

log = logging.getLogger(__name__)

DEFAULT_WINDOW = 1000
DEFAULT_ACK_TIMEOUT = 60.0
LOGON_TIMEOUT = 60.0
DELIVERY_SECONDS = 120.0
_CLOSE_SECONDS = 5.0
_NEVER_MS = 2**62
_HEADROOM = 1024
"""Bytes of a record that are not the message."""


class _Kept(msgspec.Struct, array_like=True):
    """A message as the store has it."""

    value: bytes
    headers: list[tuple[str, bytes]]
    key: bytes | None = None


class _Open(NamedTuple):
    future: Future[Receipt]
    context: Any


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Kept).decode


class Publisher(Closing):
    """Numbers messages, keeps them, sends them, and lets go of each when it is acknowledged.

    Each message gets a future that ends with its receipt, or with the reason it was refused for (a ``RefusedError``; a
    refused message is not sent again). What is not answered is sent again; the service recognises repeats by client
    and number. All messages of a client go to one partition, so that they keep their order.

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
        on_ack: Callable[[Ack], None] | None = None,
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
        :raises UnreachableError: no broker, or a topic is missing
        :raises StoreError: the file cannot be used
        :raises WindowError: a window or timeout in which nothing could be sent
        :raises LogonTimeout: nobody answers
        :raises GapError: the service lacks messages, and ``error_on_gap``
        """
        self._kafka = kafka or Kafka(bootstrap=bootstrap, topic_prefix=topic_prefix)
        self._name = client.encode()
        self._topic = self._kafka.topic("messages")
        self._stage: Stage = stage
        # Kafka's own deliveries need no timer of ours
        self._window = PublishWindow(window, round(ack_timeout * 1000) if stage == "persisted" else _NEVER_MS)
        self._block = block
        self._windowed = windowed
        self._conflation_ms = conflation_ms
        self._handlers = (on_receipt, on_failed_write, on_ack)
        self._order = threading.RLock()
        self._state = threading.Condition()
        self._open: dict[int, _Open] = {}
        self._accepted = Intervals()
        self._sending: set[int] = set()
        self._not_taken: set[int] = set()
        self._counts = {"published": 0, "accepted": 0, "acknowledged": 0, "failed": 0, "resent": 0, "closed": 0}
        self._ended: Exception | None = None
        self._logon_id = f"logon-{secrets.token_hex(8)}"
        self._logon: Ack | None = None
        self._closing = threading.Event()
        messages = MemoryMessages() if store is None else SqliteMessages(Path(store), client)
        self._messages = messages
        self._store = PublishStore(messages, error_on_gap=error_on_gap)
        try:
            self._connect()
        except BaseException:
            messages.close()
            raise
        self._thread = threading.Thread(target=self._run, name="ackstream-publisher", daemon=True)
        self._thread.start()
        try:
            self._log_on(logon_timeout)
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
        ack_immediately: bool = False,
        context: Any = None,
        seq: int | None = None,
    ) -> Future[Receipt]:
        """Keep a message and send it.

        :param topic: the subject the service decides by: who may publish, who subscribes
        :param ack_immediately: acknowledge this one without waiting for others
        :param context: anything; comes back with the receipt
        :param seq: the number, for who counts too: it has to be the next one
        :return: a future that ends with the receipt; fails with a ``RefusedError`` or ``PublisherClosedError``
        :raises WouldBlockError: the window is full, and ``block`` is off
        :raises SequenceError: ``seq`` is not the next number
        :raises MessageTooLargeError: Kafka would not take it
        :raises StoreError: it cannot be kept
        """
        if len(value) > connection.MAX_RECORD_BYTES - _HEADROOM:
            raise MessageTooLargeError("message too large", f"A message of {len(value)} bytes")
        extra = [("topic", topic.encode())] if topic is not None else []
        if ack_immediately:
            extra.append(("ack-immediately", b"true"))
        kept = _Kept(value, [*headers, *extra], key)
        opened = _Open(Future(), context)
        while True:
            with self._order:
                number = self._take_number(kept, opened, seq)
                if number is not None:
                    self._send(number, kept)
                    return opened.future
            self._wait_for_room()

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
        accepted = stage == "accepted"
        with self._state:
            last = self._store.next_seq - 1
            done = self._state.wait_for(lambda: self._flushed(last, accepted=accepted) or self._ended, timeout)
            if self._ended is not None:
                raise self._ended
            if not done:
                kept = self._store.unpersisted_count
                raise FlushTimeout(f"{kept} messages were not acknowledged within {timeout:g} s; they are kept.")

    @property
    def unpersisted_count(self) -> int:
        """How many messages are kept because they are not acknowledged."""
        return self._store.unpersisted_count

    @property
    def next_seq(self) -> int:
        """The number that the next message gets."""
        return self._store.next_seq

    @property
    def effective_conflation_ms(self) -> int | None:
        """How often merged acks come where the service cannot do it as often as asked; it said so at the logon."""
        return None if self._logon is None else self._logon.effective_conflation_ms

    @property
    def statistics(self) -> PublishStatistics:
        """What has happened so far."""
        counts = self._counts
        return PublishStatistics(
            published=counts["published"],
            accepted=counts["accepted"],
            acknowledged=counts["acknowledged"],
            failed=counts["failed"],
            unpersisted=self._store.unpersisted_count,
            resent=counts["resent"],
            window_closed=counts["closed"],
        )

    def close(self) -> None:
        """Send what was accepted (for at most 5 s), then fail the futures that are open; may be called twice."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._end(PublisherClosedError("The publisher was closed before the acknowledgement came."))
        connection.close_producer(self._producer, _CLOSE_SECONDS)
        self._thread.join()
        self._reader.consumer.close(timeout_ms=1_000)
        self._messages.close()

    # -- sending -----------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        acks = self._kafka.topic("publisher-acks")
        consumer = connection.connect_consumer(self._kafka, None, auto_offset_reset="earliest")
        try:
            connection.check_topics(consumer, self._kafka, self._topic, acks)
            connection.subscribe_at_end(consumer, self._kafka, acks)
            self._producer = connection.connect_producer(
                self._kafka, self._topic, delivery_timeout=DELIVERY_SECONDS, linger_ms=2
            )
        except BaseException:
            consumer.close(autocommit=False)
            raise
        self._reader = Reader(consumer, self._closing)

    def _log_on(self, timeout: float) -> None:
        kept = self._store.unpersisted
        if self._stage == "accepted" and self._store.next_seq == 1:
            # nobody is asked how far this name had got: begin above all that ever was
            self._messages.drop(time.time_ns() // 1_000_000 * 1_000_000)
        headers = [("command", b"logon"), ("cid", self._logon_id.encode()), ("ack", b"processed")]
        first = kept[0] if kept else self._store.next_seq
        if kept or first > 1:
            # what was refused from there on is told again
            headers.append(("first", b"%d" % first))
        if self._conflation_ms is not None:
            headers.append(("ack-conflation", f"{self._conflation_ms}ms".encode()))
        self._producer.send(self._topic, b"", self._name, [("client", self._name), *headers])
        last = self._messages.discarded
        if self._stage == "persisted":
            with self._state:
                if not self._state.wait_for(lambda: self._logon is not None or self._ended is not None, timeout):
                    raise LogonTimeout(
                        f"No answer to the logon of {self._name.decode()} within {timeout:g} s: start the job that "
                        f"persists messages (`ackstream submit persist`), or publish with stage accepted."
                    )
                if self._ended is not None:
                    raise self._ended
            last = self._answer_to_logon()
        with self._order:
            with self._state:
                again = [seq for seq, _ in self._store.logged_on(last) if self._window.offer(seq, _milliseconds())]
                self._accepted = Intervals(start=self._messages.discarded + 1)
            self._send_again(again)

    def _answer_to_logon(self) -> int:
        logon = self._logon
        if logon is None or logon.status != "success":
            raise refused("not entitled" if logon is None or logon.reason is None else logon.reason, "The logon")
        return logon.seq or 0

    def _take_number(self, kept: _Kept, opened: _Open, wanted: int | None) -> int | None:
        with self._state:
            if self._ended is not None:
                raise self._ended
            if self._window.full:
                return None
            number = self._store.next_seq
            if wanted is not None and wanted != number:
                raise SequenceError(
                    f"Sequence number {wanted} is not the next one of {self._name.decode()}, which is {number}: a gap "
                    f"would never be acknowledged, and an earlier number is taken."
                )
            self._store.add(number, _encode(kept))
            self._window.offer(number, _milliseconds())
            self._open[number] = opened
            self._counts["published"] += 1
            return number

    def _wait_for_room(self) -> None:
        with self._state:
            self._counts["closed"] += 1
            if not self._block:
                raise WouldBlockError("The publish window is full: wait for acknowledgements, or enlarge it.")
            self._state.wait_for(lambda: not self._window.full or self._ended is not None)

    def _send(self, seq: int, kept: _Kept) -> None:
        headers = [("client", self._name), ("seq", str(seq).encode()), ("ack", self._asked)]
        if kept.key is not None:
            headers.append(("key", kept.key))
        with self._state:
            self._sending.add(seq)
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
            with self._state:
                message = self._messages.get(seq)
            if message is not None:
                self._counts["resent"] += 1
                self._send(seq, _decode(message))

    # -- answers of Kafka: in the producer's thread --------------------------------------------------------------------

    def _on_accepted(self, seq: int, _metadata: Any) -> None:
        with self._state:
            self._sending.discard(seq)
            self._counts["accepted"] += 1
            if self._stage == "persisted":
                self._state.notify_all()
                return
            before = self._accepted.watermark
            self._accepted.add(seq)
            up_to = self._accepted.watermark
        if up_to > before:
            self._acknowledged(Ack(ack_type="persisted", first=before + 1, seq=up_to))

    def _not_accepted(self, seq: int, error: BaseException) -> None:
        log.warning("Kafka did not take message %s, which is sent again: %s", seq, error)
        with self._state:
            self._sending.discard(seq)
            self._not_taken.add(seq)

    # -- answers of the service: in our thread -------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                for record in self._reader.read(POLL_MS):
                    if record.key == self._name:
                        self._take(record)
                self._repeat()
            except StoreError as error:
                log.exception("The publisher cannot go on.")
                self._end(error)
                return

    def _take(self, record: Any) -> None:
        try:
            ack = decode_ack(record.value)
        except (msgspec.DecodeError, TypeError) as error:
            log.warning("A record of %s is no acknowledgement (offset %s): %s", record.topic, record.offset, error)
            return
        self._call(2, ack)
        if ack.ack_type == "persisted" and self._stage == "persisted":
            self._acknowledged(ack)
        elif ack.ack_type == "processed" and (ack.cid or "").startswith("logon-"):
            self._take_logon(ack)

    def _take_logon(self, ack: Ack) -> None:
        if ack.cid == self._logon_id:
            with self._state:
                self._logon = ack
                self._state.notify_all()
        elif self._logon is not None and _position(ack) > _position(self._logon):
            # not an older one that is told again
            self._end(TakenOverError(f"Another publisher has logged on as {self._name.decode()}: names are for one."))

    def _acknowledged(self, ack: Ack) -> None:
        if ack.seq is None:
            return
        with self._state:
            failed = self._store.acknowledged(ack)
            done = self._window.acknowledged(ack.seq)
            opened = {seq: self._open.pop(seq, None) for seq in done}
            refusal = ack.reason if ack.status == "failure" and ack.reason != DUPLICATE else None
            good = [seq for seq in done if refusal is None or seq != ack.seq]
            self._counts["acknowledged"] += len(good)
            self._counts["failed"] += len(done) - len(good)
            admitted = self._window.admit(_milliseconds())
            self._state.notify_all()
        self._give_receipts(good, opened, duplicate=ack.seq if ack.reason == DUPLICATE else None)
        if failed is not None:
            self._give_back(failed.seq, failed.reason, failed.message, opened.get(failed.seq), refusal)
        if admitted:
            with self._order:
                self._send_again(admitted)

    def _give_receipts(self, numbers: list[int], opened: dict[int, _Open | None], duplicate: int | None) -> None:
        now = time.time_ns() // 1_000_000
        for seq in numbers:
            entry = opened[seq]
            first = numbers[0] if self._windowed else seq
            receipt = Receipt(seq, self._stage, entry and entry.context, first, now, seq == duplicate)
            if entry is not None:
                entry.future.set_result(receipt)
            if not self._windowed or seq == numbers[-1]:
                self._call(0, receipt)

    def _give_back(
        self, seq: int, reason: str, message: bytes | None, opened: _Open | None, refusal: str | None
    ) -> None:
        if opened is not None and refusal is not None:
            opened.future.set_exception(refused(refusal, f"Message {seq}"))
        kept = None if message is None else _decode(message)
        self._call(
            1,
            FailedMessage(
                seq=seq,
                reason=reason,
                value=None if kept is None else kept.value,
                key=None if kept is None else kept.key,
                headers=[] if kept is None else kept.headers,
                context=opened and opened.context,
            ),
        )

    def _repeat(self) -> None:
        with self._state:
            if self._ended is not None:
                return
            late = set(self._window.overdue(_milliseconds())) - self._sending
            late |= self._not_taken
            self._not_taken.clear()
        if late:
            with self._order:
                self._send_again(sorted(late))

    def _call(self, handler: int, argument: Any) -> None:
        call: Any = self._handlers[handler]
        if call is None:
            return
        try:
            call(argument)
        except Exception:
            log.exception("A handler of the publisher failed.")

    def _flushed(self, last: int, *, accepted: bool) -> bool:
        if accepted:
            return not any(seq <= last for seq in self._sending | self._not_taken)
        return self._messages.discarded >= last or self._store.unpersisted_count == 0

    def _end(self, error: Exception) -> None:
        with self._state:
            self._ended = self._ended or error
            opened, self._open = self._open, {}
            self._state.notify_all()
        for entry in opened.values():
            entry.future.set_exception(self._ended)


def _position(logon: Ack) -> int:
    """Return the position of a logon among those of its client."""
    return logon.bookmark if isinstance(logon.bookmark, int) else -1


def _milliseconds() -> int:
    return time.monotonic_ns() // 1_000_000
