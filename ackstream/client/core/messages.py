"""Messages as applications receive them, and the answers of a client to the records that it reads.

Answers wait for their time, a lapsed lease and the broker; none is lost unless another client takes the labels.
"""

import base64
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
from kafka import TopicPartition
from msgspec import UNSET, Raw, UnsetType

from ackstream.client.core import labels as declared
from ackstream.client.core.connection import Connection, Producer, ReliableSender, Sending
from ackstream.errors import ClientError, PreconditionNotMetError
from ackstream.protocol.ditto.acknowledgements import OK, Acknowledgement, issued_ack, write_ack
from ackstream.protocol.ditto.envelopes import Envelope, encode, raw
from ackstream.protocol.ditto.headers import CHANNEL, CORRELATION_ID, WEAK_ACK, requested_acks_in
from ackstream.protocol.ditto.topics import UNKNOWN_THING
from ackstream.protocol.ditto.twin.subscriptions import FILTERED
from ackstream.protocol.json import UNREADABLE
from ackstream.protocol.readers import AutoReason
from ackstream.protocol.record_headers import ENTITY_ID, REQUESTED_ACKS

log = logging.getLogger(__name__)


class _Elsewhere:
    """Stands for the client in a copy of a message."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise PreconditionNotMetError("This is a copy of a message: settle or answer the one that the client gave.")


def without_client(message: object) -> dict[str, Any]:
    """Return the attributes of a copy of a message, for another process: without its client, which is private."""
    return {name: _Elsewhere() if name.startswith("_") else value for name, value in vars(message).items()}


@dataclass(frozen=True, eq=False)
class Message:
    """Base of the messages that readers, consumers and streams receive.

    :ivar publisher: the name of the publisher
    :ivar topic: the subject that the publisher named; ``None``: none
    :ivar key: the application's key
    :ivar value: the message itself; ``None`` for a tombstone
    :ivar headers: the application's own record headers; the last value of a name that occurs twice
    :ivar timestamp_ms: the broker's time of it, in epoch milliseconds
    """

    publisher: str
    topic: str | None
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes | None]
    timestamp_ms: int

    __getstate__ = without_client

    @property
    def size(self) -> int:
        """Bytes that it takes in memory, about: 500 besides its key, its value and its headers."""
        headers = sum(len(name) + len(value or b"") for name, value in self.headers.items())
        return 500 + len(self.value or b"") + len(self.key or b"") + headers


def text(value: bytes | None) -> str:
    """Return the text of a header; bytes that are not UTF-8 are replaced."""
    return (value or b"").decode("utf-8", "replace")


@dataclass(eq=False, slots=True)
class Work:
    """A record being handled, and the number of its answers that are not stored yet."""

    offset: int
    remaining: int = 0


SWEEP = 1_000
"""Number of finished records that may wait for unfinished ones."""


@dataclass(eq=False, slots=True)
class _Tracked:
    """A partition: the offset after the last record that was begun, and the work that cannot be committed yet."""

    next: int
    work: deque[Work] = field(default_factory=deque)
    sweep_at: int = SWEEP


class OffsetProgress:
    """Tracks the records of partitions: an offset may be committed when no record before it has remaining work."""

    def __init__(self) -> None:
        self._tracked: dict[TopicPartition, _Tracked] = {}

    def start(self, partition: TopicPartition, offset: int) -> None:
        """Track a partition from an offset on, unless it is tracked already."""
        self._tracked.setdefault(partition, _Tracked(offset))

    def begin(self, partition: TopicPartition, offset: int) -> Work | None:
        """Begin a record; return ``None`` if it was begun before (it is read again after a rebalance)."""
        known = self._tracked.setdefault(partition, _Tracked(offset))
        if offset < known.next:
            return None
        known.next = offset + 1
        work = Work(offset)
        known.work.append(work)
        if len(known.work) > known.sweep_at:
            # finished work must not use memory after a record that stays unfinished
            known.work = deque(one for one in known.work if one.remaining or one is work)
            known.sweep_at = max(SWEEP, 2 * len(known.work))
        return work

    def pass_over(self, partition: TopicPartition, offset: int) -> None:
        """Treat all records before an offset as done, as the group does."""
        known = self._tracked[partition]
        known.next = max(known.next, offset)
        known.work = deque(work for work in known.work if work.offset >= offset)

    def keep(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget all partitions but these: the others have another owner now."""
        for partition in self._tracked.keys() - set(partitions):
            del self._tracked[partition]

    def positions(self) -> dict[TopicPartition, int]:
        """Return the offset that may be committed for each partition: the first unfinished one, else the next."""
        found = {}
        for partition, known in self._tracked.items():
            while known.work and known.work[0].remaining == 0:
                known.work.popleft()
            found[partition] = known.work[0].offset if known.work else known.next
        return found

    def next(self, partition: TopicPartition) -> int:
        """Return the offset after the last record that was begun."""
        return self._tracked[partition].next if partition in self._tracked else 0


MAX_SENDING, MAX_SENDING_BYTES = 20_000, 32 * 1024 * 1024
"""While more answers than this are on their way, or more bytes of them, no further records are read."""

MAX_WAITING = 10_000
"""Maximum number of acknowledgements that wait for a lapsed lease; for further ones the requester gets a timeout."""


class Answers(ReliableSender):
    """The answers of a client to its records. ``send``, ``hold``, ``release``: from any thread; the rest from one."""

    def __init__(self, producer: Producer, connection: Connection, labels: declared.Labels | None = None) -> None:
        """Send with ``producer``, except while the labels' lease has lapsed; drop acks of labels that are taken."""
        super().__init__(producer)
        self.stored = self.lost = 0
        self._connection, self._labels = connection, labels
        self.broker = declared.BrokerTime(connection.now)

    @property
    def full(self) -> bool:
        """Whether the answers on their way have reached the limit, so that nothing more should be read."""
        return self.sending > MAX_SENDING or self.sending_bytes > MAX_SENDING_BYTES

    @property
    def ready(self) -> bool:
        """Whether answers may be sent: the labels are held, or another client has them."""
        return self._labels is None or self._labels.ready

    def ask_time(self) -> None:
        """Read the broker's clock; raise the errors of :func:`~ackstream.client.core.labels.ask_time`."""
        self.prepare(declared.TOPIC)
        self.broker.note(declared.ask_time(self._producer, self._connection.kafka.topic(declared.TOPIC)))

    def prepare(self, topic: str) -> None:
        """Look up the partitions of a further topic (its name without the prefix): the first answer does not wait."""
        self._producer.prepare(self._connection.kafka.topic(topic))

    def send(self, correlation_id: str, message: Envelope, work: Work, delay: float = 0.0, topic: str = "acks") -> None:
        """Send an answer after ``delay`` seconds; its record's work is done when the broker has stored it."""
        thing_id = message.topic.thing_id
        record = {
            "topic": self._connection.kafka.topic(topic),
            # answers without a thing would all be in one partition
            "key": (correlation_id if thing_id == UNKNOWN_THING else thing_id).encode(),
            "value": encode(message),
            "headers": [(CORRELATION_ID, correlation_id.encode())],
        }
        self.hold(work)
        sending = Sending(record, partial(self._finish, correlation_id, work), self.broker.note)
        if message.topic.criterion == "acks":
            sending.withdrawn = lambda: _TAKEN if self._labels is not None and self._labels.taken else None
        self.submit(sending, round(self._connection.now() + delay, 6) if delay > 0 else 0.0)

    def hold(self, work: Work) -> None:
        """Keep the work of a record open until ``release``."""
        with self._lock:
            work.remaining += 1

    def release(self, work: Work) -> None:
        """Undo a ``hold``."""
        with self._lock:
            work.remaining -= 1

    def _finish(self, correlation_id: str, work: Work, error: BaseException | None) -> None:
        self.release(work)
        self.stored += error is None
        self.lost += error is not None
        if error is _TAKEN:
            log.warning("Another client has the labels: %s gets no acknowledgement.", correlation_id)
        elif error is not None:
            log.error("Kafka rejected an answer to %s: %s", correlation_id, error)


_TAKEN = ClientError("Another client has the labels.")


class LabelAcks:
    """Acknowledges the declared labels that a message requests, to the request with the message's correlation-id.

    While their lease has lapsed, the acknowledgements wait in the outbox, which has the same labels. Headers of the
    message: ``correlation-id``, ``requested-acks`` (a JSON list), and ``ditto-entity-id`` unless the key is an id
    (``namespace:name``).
    """

    def __init__(self, labels: declared.Labels, outbox: Answers) -> None:
        self._labels, self._outbox = labels, outbox

    def acknowledged(self, message: Message, response: bytes | None, auto: AutoReason | None) -> None:
        """Acknowledge that the application has finished with a message; weakly if it never received it."""
        payload, weak = (_payload(response), {}) if auto is None else (raw(FILTERED), {WEAK_ACK: True})
        self._issue(message, lambda label, headers: Acknowledgement(label, OK, payload, headers | weak))

    def rejected(self, message: Message, reason: str, status: int) -> None:
        """Report that the application rejected a message."""
        self._issue(message, lambda label, headers: Acknowledgement(label, status, raw(reason), headers))

    def failed(self, message: Message, error: BaseException) -> None:
        """Report that the handler failed."""
        self._issue(message, lambda label, headers: issued_ack(label, error, headers))

    def requested(self, message: Message) -> list[str]:
        """Return the labels to be issued that a message requests."""
        requested, issued = text(message.headers.get(REQUESTED_ACKS)), self._labels.issued
        if not requested or not issued or not message.headers.get(CORRELATION_ID):
            return []
        found = [label for label in requested_acks_in(requested) if isinstance(label, str) and label in issued]
        return list(dict.fromkeys(found))

    def _issue(self, message: Message, write: Callable[[str, dict[str, Any]], Acknowledgement]) -> None:
        """Send what ``write`` returns for each requested label and the headers of its acknowledgement."""
        labels, correlation_id = self.requested(message), text(message.headers.get(CORRELATION_ID))
        if not labels:
            return
        if self._outbox.waiting >= MAX_WAITING:
            log.warning("%s acknowledgements wait for their labels: %s gets none.", MAX_WAITING, correlation_id)
            return
        headers = {CORRELATION_ID: correlation_id}
        if message.headers.get(CHANNEL) == b"live":
            headers[CHANNEL] = "live"
        for label in labels:
            self._outbox.send(correlation_id, write_ack(write(label, headers), _thing_id(message)), Work(0))


def _thing_id(message: Message) -> str:
    for id_ in (text(message.headers.get(ENTITY_ID)).removeprefix("thing:"), text(message.key)):
        namespace, _, name = id_.partition(":")
        if namespace and name and "/" not in id_:
            return id_
    return UNKNOWN_THING


def _payload(response: bytes | None) -> Raw | UnsetType:
    """Return a response as a JSON value: itself if it is JSON, else its text, else its base64."""
    if response is None:
        return UNSET
    with suppress(*UNREADABLE, OverflowError):
        return raw(msgspec.json.decode(response))
    with suppress(UnicodeDecodeError):
        return raw(response.decode())
    return raw(base64.b64encode(response).decode())
