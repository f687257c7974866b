"""A publisher's connection: it logs on, sends messages, and receives the acknowledgements of Kafka and the service."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from kafka.errors import KafkaError

from ackstream.client.errors import LogonTimeout, PublisherClosedError, StoreError, TakenOverError, refused
from ackstream.kafka.clients import Closing
from ackstream.kafka.reader import ClientConnection
from ackstream.protocol import readers as reader_records
from ackstream.protocol.messages import NOT_ENTITLED, CommandAck, decode_ack
from ackstream.protocol.record_headers import ACK, ACK_CONFLATION, CID, CLIENT, COMMAND, FIRST, KEY, SEQ

if TYPE_CHECKING:
    from ackstream.client.reader_acks import WriterAcknowledgements
    from ackstream.client.receipts import Stage
    from ackstream.client.storage import KeptMessage
    from ackstream.client.unacknowledged import UnacknowledgedMessages
    from ackstream.protocol.readers import WriterStateRequest
    from ackstream.settings import Kafka

log = logging.getLogger(__name__)


class PublisherLink(Closing):
    """Carries messages to Kafka, and acknowledgements to :class:`UnacknowledgedMessages`.

    :ivar order: the lock under which a message is numbered and sent
    """

    def __init__(self, kafka: Kafka, client: str, stage: Stage, messages: UnacknowledgedMessages) -> None:
        """Set up without connecting; :meth:`connect` and :meth:`log_on` follow."""
        self.order = threading.RLock()
        self._kafka = kafka
        self._name = client
        self._stage: Stage = stage
        self._messages = messages
        self._readers: WriterAcknowledgements | None = None
        self._logon_id = f"logon-{secrets.token_hex(8)}"
        self._logon: CommandAck | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ackstream-publisher", daemon=True)

    def connect(self, readers: WriterAcknowledgements | None) -> None:
        """Connect and receive from now on.

        :param readers: receives the acknowledgements of readers
        :raises UnreachableError: no broker, or a topic is missing
        """
        self._readers = readers
        checked = () if readers is None else ("app-acks",)
        self._connection = ClientConnection(
            self._kafka, self._name, self._closing, sends="messages", addressed="publisher-acks", checked=checked
        )
        self._thread.start()

    @property
    def effective_conflation_ms(self) -> int | None:
        """The interval of merged acks that the answer to the logon granted instead of the requested one."""
        return None if self._logon is None else self._logon.effective_conflation_ms

    def log_on(self, timeout: float, conflation_ms: int | None) -> None:
        """Log on, and send the messages that the service lacks.

        :raises LogonTimeout: the logon was not answered
        :raises RefusedError: it was refused
        :raises GapError: the service lacks messages that were dropped, and gaps are errors
        """
        messages = self._messages
        kept = messages.numbers
        if self._stage == "accepted" and messages.next_seq == 1:
            # the service is not asked for its last number: begin above any that was ever used
            messages.begin_after(time.time_ns() // 1_000_000 * 1_000_000)
        headers = [
            (CLIENT, self._name.encode()),
            (COMMAND, b"logon"),
            (CID, self._logon_id.encode()),
            (ACK, b"processed"),
        ]
        first = kept[0] if kept else messages.next_seq
        if kept or first > 1:
            # refusals from this number on are reported again
            headers.append((FIRST, b"%d" % first))
        if conflation_ms is not None:
            headers.append((ACK_CONFLATION, f"{conflation_ms}ms".encode()))
        self._connection.send(b"", headers)
        last = messages.discarded if self._stage == "accepted" else self._wait_for_logon(timeout)
        self._send_again(messages.logged_on(last))

    def _wait_for_logon(self, timeout: float) -> int:
        """Return the last number that the service has."""
        messages = self._messages
        with messages.changed:
            messages.changed.wait_for(lambda: self._logon is not None or messages.ended is not None, timeout)
        if messages.ended is not None:
            raise messages.ended
        if self._logon is None:
            raise LogonTimeout(
                f"The logon of {self._name} was not answered within {timeout:g} s: start the job that persists"
                " messages (`ackstream submit persist`), or publish with stage accepted."
            )
        if self._logon.status != "success":
            raise refused(self._logon.reason or NOT_ENTITLED, "The logon")
        return self._logon.seq or 0

    def send(self, seq: int, message: KeptMessage) -> None:
        """Send a message; to be called under :attr:`order`."""
        ack = b"persisted" if self._stage == "persisted" else b"none"
        headers = [(CLIENT, self._connection.name), (SEQ, b"%d" % seq), (ACK, ack), *message.headers]
        if message.key is not None:
            headers.insert(3, (KEY, message.key))
        self._messages.sending(seq)
        try:
            sent = self._connection.send(message.value, headers)
        except (KafkaError, ValueError) as error:
            self._on_rejected(seq, error)
        else:
            sent.add_callback(partial(self._on_accepted, seq))
            sent.add_errback(partial(self._on_rejected, seq))

    def ask_settle(self, question: WriterStateRequest) -> None:
        """Send a query to the settle job."""
        try:
            topic, value = self._kafka.topic("app-acks"), reader_records.write(question)
            self._connection.producer.send(topic, value, self._connection.name)
        except (KafkaError, ValueError) as error:
            log.warning("Kafka did not store a query about %s, which is sent again: %s", question.writer, error)

    def close(self) -> None:
        """Fail the open futures, and send buffered messages (for at most 5 s); may be called twice."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._end(PublisherClosedError("The publisher was closed before the acknowledgement arrived."))
        self._thread.join()
        self._connection.close()

    def _send_again(self, numbers: list[int]) -> None:
        if not numbers:
            return
        with self.order:
            for seq in numbers:
                message = self._messages.resend(seq)
                if message is not None:
                    self.send(seq, message)

    # -- in the producer's thread --------------------------------------------------------------------------------------

    def _on_accepted(self, seq: int, _metadata: Any) -> None:
        self._send_again(self._messages.accepted(seq))

    def _on_rejected(self, seq: int, error: BaseException) -> None:
        log.warning("Kafka did not store message %s, which is sent again: %s", seq, error)
        self._messages.rejected(seq)

    # -- in the reading thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                for record in self._connection.poll():
                    self._receive(record)
                self._send_again(self._messages.overdue())
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
        self._messages.raw(ack)
        if ack.ack_type == "persisted" and self._stage == "persisted":
            self._send_again(self._messages.acknowledged(ack))
        elif ack.ack_type == "processed" and (ack.cid or "").startswith("logon-"):
            self._receive_logon(ack)

    def _receive_logon(self, ack: CommandAck) -> None:
        if ack.cid == self._logon_id:
            with self._messages.changed:
                self._logon = ack
                self._messages.changed.notify_all()
        elif self._logon is not None and _position(ack) > _position(self._logon):
            # an older position would be a replay of an earlier logon
            self._end(TakenOverError(f"Another publisher has logged on as {self._name}: names must be unique."))

    def _end(self, error: Exception) -> None:
        self._messages.end(error)
        if self._readers is not None:
            self._readers.end(error)


def _position(logon: CommandAck) -> int:
    """Return the position of a logon among those of its client."""
    return logon.bookmark if isinstance(logon.bookmark, int) else -1
