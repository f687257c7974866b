"""A publisher's connection: its logon, its records, and the answers to them, in one thread.

A logon ends the name's earlier sessions. Records name theirs: persist refuses those an earlier publisher still sends.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import msgspec
from kafka.errors import AuthorizationError, KafkaError, MessageSizeTooLargeError, RecordListTooLargeError

from ackstream.client.core.connection import Connection
from ackstream.client.core.lifetime import AGAIN_SECONDS, Lifetime, call_handler
from ackstream.client.core.storage import KeptMessage, PublishStore
from ackstream.client.errors import FlushTimeout, LogonTimeout, PublisherClosedError, RefusedError, TakenOverError
from ackstream.client.options import PublisherOptions
from ackstream.client.publishing._acks import Logon, Takeovers, WriterAcknowledgements
from ackstream.client.publishing._unacknowledged import UnacknowledgedMessages
from ackstream.client.publishing.publications import Headers, Publications
from ackstream.client.reading.samples import WriterQos
from ackstream.kafka.clients import may_pass, monotonic_ms
from ackstream.protocol import readers as reader_records
from ackstream.protocol.dispositions import NOT_ENTITLED, SESSION_OVER
from ackstream.protocol.messages import CommandAck, decode_ack

log = logging.getLogger(__name__)

HURRY_SECONDS = 2.0
"""The period at which a waiting publisher requests the acks of messages sent meanwhile."""


class PublisherLink:
    """Connects a publisher's messages with Kafka; numbers and sends under ``order``; may track ``readers``."""

    def __init__(
        self, connection: Connection, options: PublisherOptions, store: PublishStore, messages: UnacknowledgedMessages
    ) -> None:
        """Connect, and read the answers for the client from now on; parameters and errors as of a publisher."""
        self.order = threading.RLock()
        self.logon: CommandAck | None = None
        self.life = Lifetime(self._end, options.on_error, options.on_connection, f"The publisher {options.name}")
        self._logged_on = self._away = False
        self._topic, self._options, self._name = connection.kafka.topic("app-acks"), options, options.name
        self._store, self._messages = store, messages
        qos, on_reader_ack = options.writer_qos, options.on_application_acknowledgment
        self.readers: WriterAcknowledgements | None = None
        if qos is not None or on_reader_ack is not None:
            self.readers = WriterAcknowledgements(qos or WriterQos(), self._name, self._ask_settle, on_reader_ack)
        self._id = f"logon-{secrets.token_hex(8)}"
        self._records = Publications(self._name, self._id, acknowledged=self._options.stage == "persisted")
        self._flushes = count(1)
        # how often a message was handed to Kafka, and by the last hurry
        self._sent, self._hurried = 0, -1
        # the flushes whose answers are waited for
        self._flushing: set[str] = set()
        self._closing = threading.Event()
        self.closed = self._flushed = False
        self._thread = self.life.thread(self._run, "ackstream-publisher")
        writes = () if self.readers is None else ("app-acks",)
        self._connection = connection.link(
            self._name, self._closing, sends="messages", addressed="publisher-acks", writes=writes
        )
        self._thread.start()

    def log_on(self) -> Logon:
        """Begin the session, and withdraw the numbers that will not be used."""
        options, timeout = self._options, self._options.logon_timeout
        kept = self._store.numbers()
        first = kept[0] if kept else self._store.last + 1
        known = first if kept or first > 1 else None
        headers = self._records.logon(self._id, known, options.window, options.conflation_ms, self._store.store)
        stored = self._command(headers, timeout, LogonTimeout)
        if self._options.stage == "persisted":
            answer = self._answered_logon(headers, timeout)
            found = self._messages.logged_on(answer.seq or 0, answer.highest or 0, answer.takeovers)
        else:
            # no one waits for the last number: with the logon's time in nanoseconds, begin above any used one, even if
            # the file lost its end
            begin = stored.timestamp * 1_000_000
            found = self._messages.logged_on(self._store.discarded, begin, self._takeovers(headers, timeout))
        self.life.enter("connected")
        self._logged_on = True
        for hole in found.holes:
            self._command(self._records.withdrawal(*hole), timeout, LogonTimeout)
        return found

    def send(self, seq: int, message: KeptMessage) -> None:
        """Send a message; to be called under ``order``."""
        self._sent += 1
        try:
            sent = self._connection.send(message.value, self._records.message(seq, message))
        except Exception as error:  # noqa: BLE001 - after any error the number must not stay a hole
            self._on_rejected(seq, error)
        else:
            sent.add_callback(partial(self._on_stored, seq))
            sent.add_errback(partial(self._on_rejected, seq))

    def send_again(self, numbers: list[int]) -> None:
        if not numbers:
            return
        with self.order:
            for seq in numbers:
                if (message := self._messages.resend(seq)) is not None:
                    self.send(seq, message)

    def flush(self, timeout: float | None) -> None:
        cid = f"flush-{next(self._flushes)}-{self._id}"
        self._flushing.add(cid)
        try:
            self._command(self._records.flush(cid), timeout, FlushTimeout)
            if not self._messages.wait_for(lambda: cid not in self._flushing, timeout, self._messages.describe):
                raise FlushTimeout(f"The service did not store all messages within {timeout:g} s; Kafka has them.")
        finally:
            self._flushing.discard(cid)

    def wait_for_acks(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Wait for acks of messages; return whether the condition holds. The service sends them as soon as it may."""
        self._hurried = -1
        return self._messages.wait_for(
            condition, timeout, self._messages.describe, ask=self._hurry, again=HURRY_SECONDS
        )

    def _hurry(self) -> None:
        """Request merged acks of all stored messages, unless none was sent since; nothing waits for the answer."""
        if self._hurried == self._sent:
            return
        self._hurried = self._sent
        try:
            self._connection.send(b"", self._records.flush(f"flush-{next(self._flushes)}-{self._id}"))
        except (KafkaError, ValueError) as error:
            log.warning("Kafka did not store a flush of %s; its acks come with their interval: %s", self._name, error)

    def _ask_settle(self, question: reader_records.WriterStateRequest) -> None:
        try:
            self._connection.producer.send(self._topic, reader_records.write(question), self._connection.name)
        except (KafkaError, ValueError) as error:
            log.warning("Kafka did not store a query about %s, which is sent again: %s", question.writer, error)

    def close(self, timeout: float) -> list[int]:
        """Send records for at most ``timeout`` seconds, fail futures; return unstored messages. May be repeated."""
        with self.order:
            if self.closed:
                return []
            self.closed = True
        left: list[int] = []
        until = time.monotonic() + timeout
        if not self.life.inside:
            # our thread sends them again
            self._messages.wait_for_refused(timeout)
        self._flushed = True
        try:
            if self._connection.flush(max(0.0, until - time.monotonic())) and self.life.alive:
                left = self._messages.close(timeout)
        finally:
            self._closing.set()
            self._end(PublisherClosedError("The publisher was closed before the acknowledgement arrived."))
        self._thread.join()
        self._connection.close()
        self.life.close()
        return left

    def _command(self, headers: Headers, timeout: float | None, error: type[Exception]) -> Any:
        try:
            return self._connection.send(b"", headers).get(timeout)
        except AuthorizationError as cause:
            raise RefusedError.of(NOT_ENTITLED, f"A command of {self._name}") from cause
        except (KafkaError, ValueError) as cause:
            raise error(f"Kafka did not store a command of {self._name} within {timeout} s: {cause}.") from cause

    def _takeovers(self, headers: Headers, timeout: float) -> Takeovers | None:
        """Return the session of the kept messages' numbers, from which alone answers count; ``None``: not known."""
        if len(self._store):
            try:
                return self._answered_logon(headers, timeout).takeovers
            except LogonTimeout as error:
                log.warning("%s", error)
                return None
        # the first logon of a file takes over
        return () if self._store.session else ((self._id, 0),)

    def _answered_logon(self, headers: Headers, timeout: float) -> CommandAck:
        """Return the answer to the logon; it is repeated after a pause if the service could not process it."""
        deadline = time.monotonic() + timeout
        while True:
            began = monotonic_ms()
            self._messages.wait_for(lambda: self.logon is not None, deadline - time.monotonic())
            if self.logon is None:
                raise LogonTimeout(
                    f"The logon of {self._name} was not answered within {timeout:g} s: start the job that persists"
                    " messages (`ackstream submit persist`), or publish with stage accepted."
                )
            if self.logon.status != "retry":
                break
            self.logon = None
            self._closing.wait(max(0.0, min(AGAIN_SECONDS, deadline - time.monotonic())))
            self._command(headers, timeout, LogonTimeout)
        self._messages.timer.measure(monotonic_ms() - began)
        if self.logon.status != "success":
            raise RefusedError.of(self.logon.reason or NOT_ENTITLED, "The logon")
        return self.logon

    def _on_stored(self, seq: int, _metadata: Any) -> None:
        if self._closing.is_set():
            # it was closed in this thread, but buffered records are still sent
            return
        self._away = False
        self.life.guard(lambda: self.send_again(self._messages.accepted(seq)))

    def _on_rejected(self, seq: int, error: BaseException) -> None:
        if self._flushed:
            return
        refusal = None if may_pass(error) else _refusal(seq, error)
        self._away = refusal is None
        again = "is sent again" if refusal is None else "is withdrawn"
        log.warning("Kafka did not store message %s, which %s: %r", seq, again, error)
        self.life.guard(lambda: self._messages.rejected(seq, refusal))

    def _run(self) -> None:
        while self.life.alive and not self._closing.is_set():
            for record in self._connection.read():
                self._receive(record)
            self.send_again(self._messages.overdue())
            if self._logged_on:
                if self.readers is not None:
                    self.readers.keep_roles()
                self.life.look(time.monotonic(), away=self._away or bool(self._messages.timer.repeated))

    def _receive(self, record: Any) -> None:
        if (answer := reader_records.read_answer(record.value)) is not None:
            if self.readers is not None:
                self.readers.receive(answer)
            return
        try:
            ack = decode_ack(record.value)
        except (msgspec.DecodeError, TypeError) as error:
            log.warning("A record of %s is not an acknowledgement (offset %s): %s", record.topic, record.offset, error)
            return
        if not self.life.alive:
            # numbers of a later publisher are not those of this one
            return
        call_handler(self._options.on_ack, ack)
        cid = ack.cid or ""
        if ack.ack_type == "persisted" and cid.endswith(self._id):
            with self._messages.changed:
                self._flushing.discard(cid)
                self._messages.changed.notify_all()
        elif ack.ack_type == "persisted" and self._options.stage == "persisted" and ack.session in (None, self._id):
            self.send_again(self._messages.acknowledged(ack))
        elif ack.ack_type == "processed" and cid.startswith("logon-"):
            self._receive_logon(ack)

    def _receive_logon(self, ack: CommandAck) -> None:
        logon, own = self.logon, ack.cid == self._id
        if own and ack.reason != SESSION_OVER:
            with self._messages.changed:
                self.logon = ack
                self._messages.changed.notify_all()
        elif own or (logon is not None and _position(ack) > _position(logon)):
            self.life.fail(TakenOverError(f"Another publisher has logged on as {self._name}: names must be unique."))

    def _end(self, error: Exception) -> None:
        self._messages.end(error)
        if self.readers is not None:
            self.readers.end(error)


def _refusal(seq: int, error: BaseException) -> RefusedError:
    reason = NOT_ENTITLED if isinstance(error, AuthorizationError) else f"{type(error).__name__}: {error}"
    if isinstance(error, (MessageSizeTooLargeError, RecordListTooLargeError)):
        reason = "message too large"
    found = RefusedError.of(reason, f"Message {seq}")
    found.__cause__ = error
    return found


def _position(logon: CommandAck) -> int:
    return logon.bookmark if isinstance(logon.bookmark, int) else -1
